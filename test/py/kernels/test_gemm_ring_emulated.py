"""The GEMM kernels whose operand tiles lie in rings in LDS, on the emulated gfx950 against float64.

As in test_gemm_emulated, most inputs are small integers, so that results must be exact.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import emulated_gemm
import numpy as np
import pytest
from emulated_gemm import Gemm, Stored, bound, reference
from loaded_kernels import loaded
from test_gemm_emulated import LAYOUTS, check_exact, gemm_of, integers, stored

from flycc import emulator
from flycc.codegen import Compiled, compile_kernel
from flycc.codegen.cache import CodeObjectCache
from flycc.contracts import GemmProblem
from flycc.emulator.trace import KINDS, SPACES
from flycc.emulator.trace_recorder import Recorder
from flycc.kernels import gemm
from flycc.kernels.common.spec import KernelSpec
from flycc.kernels.gemm import GemmConfig
from flycc.kernels.gemm.parts import Plan

CONFIGS = {
    "equal": GemmConfig(64, 64, 64, 2, 2, stages_m=3, stages_n=3),
    "longer a": GemmConfig(64, 128, 64, 2, 2, stages_m=4, stages_n=2),
    "deep k": GemmConfig(64, 64, 128, 2, 2, stages_m=3, stages_n=2),
    "large": GemmConfig(256, 256, 64, 2, 4, stages_m=3, stages_n=2),
    "ahead": GemmConfig(256, 64, 64, 2, 2, stages_m=2, stages_n=2, schedule="ahead"),
    "staggered": GemmConfig(256, 128, 64, 2, 4, stages_m=2, stages_n=2, schedule="staggered"),
    "halves": GemmConfig(256, 256, 64, 2, 4, stages_m=2, stages_n=2, schedule="staggered"),
    "thirds": GemmConfig(384, 256, 64, 2, 4, stages_m=2, stages_n=2, schedule="staggered"),
}
SIZES = (1, 2, 15, 17, 63, 64, 65, 130, 257)
S_BARRIER, S_NOP = 0xBF8A_0000, 0xBF80_0000
SIZES_K = (1, 8, 37, 64, 72, 128, 136, 192, 328, 584)

seed = int(os.environ["FLYCC_TEST_SEED"])


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape)


def served(layout: str, m: int, n: int, k: int) -> tuple[int, int, int]:
    """The next larger sizes whose loads of 8 elements lie inside an operand or outside."""
    whole = ("m" if layout[0] == "T" else "k", "k" if layout[1] == "T" else "n")
    m, n, k = (
        -(-size // 8) * 8 if name in whole else size for name, size in zip("mnk", (m, n, k), strict=True)
    )
    return m, n, k


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("count", [2, pytest.param(len(SIZES), marks=pytest.mark.nightly)])
def test_sizes(name: str, layout: str, count: int) -> None:
    """M, N and K each take `count` of the sizes, paired at random; K from less than a step to several rounds."""
    rng = np.random.default_rng([seed, *map(ord, name + layout)])
    orders = [rng.permutation(sizes)[:count].tolist() for sizes in (SIZES, SIZES, SIZES_K)]
    for number, (m, n, k) in enumerate(zip(*orders, strict=True)):
        dtype, padding = ("bf16", "f16")[number % 2], 8 * (number % 3)
        case = gemm_of(rng, dtype, layout, (1, *served(layout, m, n, k)), padding=padding)
        check_exact(case, CONFIGS[name])


@pytest.mark.parametrize(("m", "n"), [(9, 5), (3, 7), (4, 4), (1, 11)])
def test_every_tile_is_computed_once(m: int, n: int) -> None:
    """Workgroups take tiles in an order of their own; the numbers of tiles divide by 8 XCDs and bands of 4, or not."""
    rng = np.random.default_rng([seed, m, n])
    check_exact(gemm_of(rng, "bf16", "NT", (2, 64 * m - 3, 64 * n - 5, 72)), CONFIGS["equal"])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("broadcast", ["neither", "a", "b"])
def test_batches(layout: str, broadcast: str) -> None:
    rng = np.random.default_rng(seed)
    left, right = (
        integers(rng, 1 if broadcast == "a" else 3, 24, 40),
        integers(rng, 1 if broadcast == "b" else 3, 40, 72),
    )
    a = stored(left, layout[0] == "T", "bf16", padding=8, batch_padding=24)
    b = stored(right, layout[1] == "T", "bf16", batch_padding=8)
    check_exact(Gemm("bf16", a, b, layout[0] == "T", layout[1] == "T"), CONFIGS["equal"])


@pytest.mark.parametrize("name", CONFIGS)
def test_bias_and_rounding(name: str) -> None:
    rng = np.random.default_rng(seed)
    case = gemm_of(rng, "bf16", "NT", (1, 33, 70, 584), values=normal, bias=normal(rng, 1, 1, 70))
    error = abs(case.run(CONFIGS[name]).out - reference(case)[0])
    assert (error <= bound(case)).all(), f"seed {seed}: {(error / bound(case)).max()} times the bound"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_and_infinity_stay_in_their_row_and_column(layout: str) -> None:
    rng = np.random.default_rng(seed)
    case = gemm_of(rng, "bf16", layout, (1, 24, 40, 72))
    a = case.a.view.swapaxes(1, 2) if case.trans_a else case.a.view
    b = case.b.view.swapaxes(1, 2) if case.trans_b else case.b.view
    a[0, 3, 71] = 0x7FC0  # NaN
    b[0, 0, 7] = 0x7F80  # infinity
    a[0, :, 0] = 0x3F80  # 1.0, so that the infinity stays one
    out = case.run(CONFIGS["equal"]).out
    others = np.arange(24) != 3
    assert np.isnan(out[0, 3]).all()
    assert (out[0, others, 7] == np.inf).all()
    assert np.isfinite(out[0, others][:, np.arange(40) != 7]).all()


@pytest.mark.parametrize(
    ("name", "layout", "k"),
    [("longer a", "NT", 40), ("longer a", "NN", 648), ("longer a", "TT", 648), ("deep k", "TN", 648)]
    + [("ahead", "NT", 328), ("staggered", "TN", 328), ("thirds", "NT", 200)]
    + [
        pytest.param(name, layout, 648, marks=pytest.mark.nightly)
        for name, layout in (("large", "NT"), ("equal", "NT"), ("deep k", "NT"), ("equal", "TN"))
    ]
    + [
        pytest.param(name, layout, k, marks=pytest.mark.nightly)
        for name in ("ahead", "staggered", "halves", "thirds")
        for layout, k in (("NN", 40), ("TN", 584), ("TT", 72))
    ],
)
def test_wave_order_does_not_matter_and_sanitizers_are_quiet(name: str, layout: str, k: int) -> None:
    """Loads land as late as the waits allow, so that a wait or barrier that is missing shows."""
    rng = np.random.default_rng([seed, k])
    case = gemm_of(rng, "bf16", layout, (1, 72, 136, k), values=normal, bias=normal(rng, 136))
    first = case.run(CONFIGS[name]).memory
    for order in ("serial", "reverse", "lockstep", seed):
        result = case.run(CONFIGS[name], order, sanitize="all" if order in ("lockstep", seed) else ())
        assert not result.findings, "\n".join(map(str, result.findings))
        np.testing.assert_array_equal(result.memory, first, err_msg=str(order))


def test_operands_beyond_two_gibibytes_and_largest_strides() -> None:
    rng = np.random.default_rng(seed)
    config = CONFIGS["equal"]
    b = Stored(integers(rng, 2, 64, 64), "bf16", batch_padding=2**31 + 64)
    check_exact(Gemm("bf16", Stored(integers(rng, 1, 8, 64), "bf16"), b, trans_b=True), config)
    for layout in ("NT", "TN"):
        case = gemm_of(rng, "bf16", layout, (1, 72, 80, 72))
        for operand in (case.a, case.b):
            operand.padding = config.max_stride // 8 * 8 - operand.values.shape[2]
            operand.__post_init__()
        check_exact(case, config)


def any_ring(draw: random.Random, layout: str) -> GemmConfig:
    """A valid configuration that leaves at most 128 results to a work-item."""
    trans_a, trans_b = layout[0] == "T", layout[1] == "T"
    while True:
        config = GemmConfig(
            draw.choice([16, 32, 64, 128, 192, 256]),
            draw.choice([16, 32, 64, 96, 128, 256]),
            draw.choice([64, 128]),
            draw.choice([1, 2, 4]),
            draw.choice([1, 2, 4]),
            stages_m=draw.randint(2, 6),
            stages_n=draw.randint(2, 6),
            schedule=draw.choice(["steps", "staggered", "ahead"]),
        )
        fits = config.tile_m * config.tile_n <= 128 * config.threads
        problem = GemmProblem("bf16", 64, 64, 64, trans_a=trans_a, trans_b=trans_b)
        if fits and config.is_valid(problem) is None:
            return config


@pytest.mark.parametrize("count", [6, pytest.param(60, marks=pytest.mark.nightly)])
def test_every_valid_ring_computes(count: int) -> None:
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    for _ in range(count):
        layout = draw.choice(LAYOUTS)
        sizes = served(layout, draw.randint(1, 150), draw.randint(1, 150), draw.randint(1, 700))
        case = gemm_of(rng, "bf16", layout, (1, *sizes), padding=draw.choice([0, 8]))
        check_exact(case, any_ring(draw, layout))


@pytest.mark.parametrize("wrong", ["a part comes too late", "a place is refilled too early"])
@pytest.mark.parametrize("name", ["ahead", "staggered", "thirds"])
def test_a_wrong_wait_is_a_race(
    name: str, wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """That the sanitizers are quiet says something: with one load too many on its way, or the loads of a part a turn
    too early, they are not."""
    config, in_flight, slot = CONFIGS[name], Plan.in_flight, Plan.slot
    if wrong == "a part comes too late":
        later = min(Plan.of(config).size(group) for group in range(Plan.of(config).parts + 2))
        monkeypatch.setattr(Plan, "in_flight", lambda self, *at: in_flight(self, *at) + later)
    else:
        monkeypatch.setattr(Plan, "slot", lambda self, group: slot(self, group) - 1)
    apart = partial(compile_kernel, cache=CodeObjectCache(tmp_path))
    monkeypatch.setattr(emulated_gemm, "compile_kernel", apart)
    case = gemm_of(np.random.default_rng(seed), "bf16", "NT", (1, 384, 256, 456), values=normal)
    kinds = {finding.sanitizer for finding in case.run(config, "lockstep", sanitize="all").findings}
    assert "race" in kinds or "wait" in kinds


@pytest.mark.parametrize("place", [1, -2], ids=["before the loop", "after it"])
def test_a_barrier_of_one_group_of_waves_cannot_be_missing(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Staggered waves of a group have one of their own before the loop, the other group's have it after the loop."""

    def without(spec: KernelSpec) -> Compiled:
        compiled = compile_kernel(spec)
        code = np.frombuffer(compiled.elf, "<u4").copy()
        code[np.flatnonzero(code == S_BARRIER)[place]] = S_NOP
        return replace(compiled, elf=code.tobytes())

    monkeypatch.setattr(emulated_gemm, "compile_kernel", without)
    case = gemm_of(np.random.default_rng(seed), "bf16", "NT", (1, 72, 136, 200))
    findings = case.run(CONFIGS["staggered"], sanitize="all").findings
    assert "barrier" in {finding.sanitizer for finding in findings}


@pytest.mark.parametrize("staggered", [False, True])
@pytest.mark.parametrize("parts", range(2, 7))
def test_a_part_is_loaded_when_its_place_is_free_and_comes_in_time(parts: int, staggered: bool) -> None:
    """A part of A is read from turn 2 * part on, in two turns, B in the first two; a turn before, if read ahead. What a
    staggered wave reads, others read a barrier later."""
    plan = Plan(parts, 4 * parts, 4, staggered)
    reads = {group: 2 * max(0, group - 2) - (not staggered) for group in range(parts + 2)}
    for group, first in reads.items():
        assert plan.slot(group) > first + 1, "its place must be free"
        assert plan.slot(group) < first + 2 * plan.turns, "it must be on its way before it is read"
        issued = [turn for turn in range(plan.turns) for _, other in plan.issued_in(turn) if other == group]
        assert issued == [plan.slot(group) % plan.turns]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_holds_the_main_loop_up(name: str, layout: str) -> None:
    """No bank conflicts in LDS, no spilled registers, and no wait of the loop asks for all loads to have come."""
    problem = GemmProblem("bf16", 256, 256, 512, trans_a=layout[0] == "T", trans_b=layout[1] == "T")
    compiled = compile_kernel(gemm.kernel(problem, CONFIGS[name]))
    kernel = loaded(compiled)
    assert kernel.descriptor.scratch_bytes == 0
    memory, recorder = emulator.Memory(), Recorder()
    pointers = {
        operand: memory.register(np.zeros(256 * 512, np.uint16), name=operand)
        for operand in ("a", "b", "out")
    }
    numbers = dict.fromkeys(compiled.kernarg.names, 0) | {"m": 256, "n": 256, "k": 512}
    leading = {
        "ld_a": 256 if problem.trans_a else 512,
        "ld_b": 512 if problem.trans_b else 256,
        "ld_out": 256,
    }
    launch = gemm.launch(problem, CONFIGS[name])
    kernarg = compiled.kernarg.pack({**numbers, **leading, **pointers})
    emulator.launch(
        kernel, launch.grid, launch.block, kernarg, memory, workgroups=[(0, 0, 0)], observers=(recorder,)
    )
    trace = recorder.trace()
    most = np.bincount(trace.steps["set"]).argmax()  # waves that go through the loop together
    executed = trace.steps["instruction"][trace.steps["set"] == most]
    times = np.bincount(executed, minlength=len(trace.instructions))
    waits = trace.instructions[
        (times >= 512 // CONFIGS[name].tile_k) & (trace.instructions["name"] == "s_waitcnt")
    ]
    assert (waits["vmcnt"] > 0).all()
    assert (waits["vmcnt"] < 63).any()
    accesses = trace.accesses
    of_lds = accesses[accesses["space"] == SPACES.index("lds")]
    assert (of_lds["kind"] == KINDS.index("load")).any()
    assert (of_lds["clocks"] == of_lds["phases"]).all()
