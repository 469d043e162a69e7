"""GEMM kernels that share a tile's K among workgroups, on the emulated gfx950 against float64.

As in test_gemm_emulated, most inputs are small integers, so that results must be exact. Partial sums are NaN before a
launch, so one that is read before it is written shows; counters must be zero after it (`Gemm.run` checks that).
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from emulated_gemm import Gemm, bound, reference
from loaded_kernels import loaded
from test_gemm_emulated import LAYOUTS, check_exact, gemm_of, stored
from test_gemm_ring_emulated import normal, served

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.contracts import GemmProblem
from flycc.emulator.isa.decode import decode_range
from flycc.emulator.isa.format import format_instruction
from flycc.kernels import gemm
from flycc.kernels.gemm import GemmConfig

CONFIGS = {
    "ring": GemmConfig(64, 64, 64, 2, 2, stages_m=3, stages_n=3, splits=3),
    "direct": GemmConfig(16, 64, 64, waves_k=2, staged=False, splits=4),
    "few results": GemmConfig(16, 16, 64, waves_k=4, staged=False, splits=2),
    "staged": GemmConfig(64, 64, 64, 2, 2, splits=2),
}

seed = int(os.environ["FLYCC_TEST_SEED"])


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        # The way of a layout to registers is the unsplit kernels'; what is split is the same for all.
        pytest.param(
            name, layout, marks=() if name == "ring" or layout in ("NT", "TN") else pytest.mark.nightly
        )
        for name in CONFIGS
        for layout in LAYOUTS
    ],
)
def test_layouts_and_sizes(name: str, layout: str) -> None:
    """K of less than a step, of fewer steps than parts, and of parts that differ."""
    rng = np.random.default_rng([seed, *map(ord, name + layout)])
    for k in (8, 200, int(rng.integers(256, 700))):
        m, n = (int(size) for size in rng.integers(1, 150, 2))
        sizes = served(layout, m, n, -(-k // 8) * 8) if CONFIGS[name].ring else (m, n, k)
        check_exact(gemm_of(rng, ("bf16", "f16")[k % 2], layout, (1, *sizes), padding=8), CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
def test_batches_bias_and_rounding(name: str) -> None:
    """Whatever the parts, a product goes through at most K additions in float32, so `bound` holds as it is."""
    rng = np.random.default_rng([seed, 1])
    a = stored(normal(rng, 1, 33, 584), False, "bf16", padding=8)
    b = stored(normal(rng, 3, 584, 72), True, "bf16", batch_padding=8)
    case = Gemm("bf16", a, b, trans_b=True, bias=normal(rng, 1, 1, 72))
    error = abs(case.run(CONFIGS[name]).out - reference(case)[0])
    assert (error <= bound(case)).all(), f"seed {seed}: {(error / bound(case)).max()} times the bound"


@pytest.mark.parametrize("splits", [2, 5, 256])
def test_one_binary_serves_any_number_of_parts(splits: int) -> None:
    rng = np.random.default_rng([seed, splits])
    config, case = replace(CONFIGS["ring"], splits=splits), gemm_of(rng, "bf16", "NT", (1, 40, 72, 520))
    check_exact(case, config)
    out = stored(np.zeros((1, 40, 72)), False, "bf16")
    keys = {
        gemm.kernel(case.problem(out), c).key for c in (config, CONFIGS["ring"], replace(config, tail=True))
    }
    assert len(keys) == 1


def test_parts_beyond_the_end_of_k_are_empty() -> None:
    """The host asks for none, but the kernel takes them."""
    rng = np.random.default_rng([seed, 2])
    case, config = gemm_of(rng, "bf16", "NT", (1, 20, 24, 136)), CONFIGS["direct"]
    expected = case.run(config).out
    out = stored(np.full((1, 20, 24), -77.0), False, "bf16")
    problem, memory = case.problem(out), emulator.Memory()
    compiled, parts, part_k = compile_kernel(gemm.kernel(problem, config)), 7, 128
    partial, arrived = np.full(2 * 7 * 16 * 64, np.nan, np.float32), np.zeros(2 * config.waves, np.int32)
    values = {
        **gemm.ABSENT,
        "a": memory.register(case.a.buffer, writable=False),
        "b": memory.register(case.b.buffer, writable=False),
        "out": memory.register(out.buffer),
        "partial": memory.register(partial),
        "arrived": memory.register(arrived),
        **{"batch_a": 0, "batch_b": 0, "batch_out": 0, "m": 20, "n": 24, "k": 136, "whole": 0},
        **{
            "ld_a": case.a.stride,
            "ld_b": case.b.stride,
            "ld_out": out.stride,
            "parts": parts,
            "part_k": part_k,
        },
    }
    kernel = loaded(compiled)
    emulator.launch(kernel, (2 * parts, 1, 1), (config.threads, 1, 1), compiled.kernarg.pack(values), memory)
    np.testing.assert_array_equal(out.read(), expected)


@pytest.mark.parametrize("tiles", [(16, 19), (16, 16), (3, 5)])
def test_the_tail_of_the_last_round_is_split(tiles: tuple[int, int]) -> None:
    """304 tiles: 256 whole ones and 48 in parts; 256: none in parts; 15: all of them."""
    rng = np.random.default_rng([seed, *tiles])
    config = GemmConfig(16, 16, 64, staged=False, splits=2, tail=True)
    case = gemm_of(rng, "bf16", "NT", (1, 16 * tiles[0], 16 * tiles[1] - 3, 136))
    check_exact(case, config)
    count = tiles[0] * tiles[1]
    rest = count % 256
    assert gemm.shares(case.problem(case.a), config).workgroups == count + rest


def test_nan_and_infinity_stay_in_their_row_and_column() -> None:
    rng = np.random.default_rng(seed)
    case = gemm_of(rng, "bf16", "NT", (1, 24, 40, 392))
    case.a.view[0, 3, 391] = 0x7FC0  # NaN, in the last part
    case.b.view[0, 7, 0] = 0x7F80  # infinity, in the first
    case.a.view[0, :, 0] = 0x3F80  # 1.0, so that the infinity stays one
    out = case.run(CONFIGS["ring"]).out
    others = np.arange(24) != 3
    assert np.isnan(out[0, 3]).all()
    assert (out[0, others, 7] == np.inf).all()
    assert np.isfinite(out[0, others][:, np.arange(40) != 7]).all()


def test_sums_are_released_before_they_are_counted_and_acquired_before_they_are_read() -> None:
    """What the emulated memory, which has no caches, cannot show: LLVM's fences of agent scope for gfx942 and on."""
    problem = GemmProblem("bf16", 64, 64, 512, trans_b=True)
    compiled = compile_kernel(gemm.kernel(problem, CONFIGS["direct"]))
    kernel = loaded(compiled)
    code = kernel.code.code(kernel.descriptor)
    found = [format_instruction(each) for each in decode_range(code, kernel.descriptor.entry)]
    (release,), (acquire,) = (
        [i for i, text in enumerate(found) if text == what] for what in ("buffer_wbl2 sc1", "buffer_inv sc1")
    )
    counts = [i for i, text in enumerate(found) if text.startswith("global_atomic_add")]
    stores = [i for i, text in enumerate(found) if text.startswith("buffer_store") and "sc1" in text]
    loads = [i for i, text in enumerate(found) if text.startswith("buffer_load") and "sc1" in text]
    looks = [i for i, text in enumerate(found) if text.startswith("global_load") and "sc1" in text]
    assert min(map(len, (stores, loads, looks))) > 0
    assert max(stores) < release < max(counts)
    assert "s_waitcnt vmcnt(0)" in found[release : max(counts)]
    assert max(looks) < acquire < min(loads)
    assert "s_waitcnt vmcnt(0)" in found[max(looks) : acquire]
    assert any(text.startswith("s_sleep") for text in found[:acquire])


@pytest.mark.parametrize("name", CONFIGS)
def test_order_does_not_matter_and_sanitizers_are_quiet(name: str) -> None:
    """Whichever wave of a tile comes last: workgroups run in their order, in reverse, and at random."""
    rng = np.random.default_rng([seed, 3])
    case = gemm_of(rng, "bf16", "NT", (2, 72, 72, 648), values=normal, bias=normal(rng, 72))
    first = case.run(CONFIGS[name]).memory
    for order in ("serial", "reverse", "lockstep", seed, seed + 1):
        result = case.run(CONFIGS[name], order, sanitize="all" if order in ("lockstep", seed) else ())
        assert not result.findings, "\n".join(map(str, result.findings))
        np.testing.assert_array_equal(result.memory, first, err_msg=str(order))
