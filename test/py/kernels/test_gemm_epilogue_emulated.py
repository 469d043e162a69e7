"""What GEMM kernels make of a product's sums before they store them, on the emulated gfx950 against float64.

Where inputs are small integers and the activation is none or relu, results must be exact.
"""

from __future__ import annotations

import math
import os
import random
from dataclasses import replace

import numpy as np
import pytest
from emulated_gemm import NUMPY_TYPES, Gemm, Stored, half_ulp
from loaded_kernels import loaded
from test_gemm_emulated import LAYOUTS, any_configuration, gemm_of, integers, stored
from test_gemm_ring_emulated import any_ring, served

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.contracts import Epilogue, GemmProblem, Reason
from flycc.contracts.gemm import Activation
from flycc.emulator.trace import SPACES
from flycc.emulator.trace_recorder import Recorder
from flycc.kernels import gemm
from flycc.kernels.gemm import GemmConfig
from flycc.tuning.modelled import steps

CONFIGS = {
    "decode": GemmConfig(16, 64, 64, waves_k=4, staged=False),
    "direct": GemmConfig(64, 128, 32, 2, 2, staged=False),
    "staged": GemmConfig(64, 64, 64, 2, 2),
    "ring": GemmConfig(64, 128, 64, 2, 2, stages_m=4, stages_n=2),
    "split": GemmConfig(64, 128, 64, 2, 2, stages_m=3, stages_n=3, splits=3),
}
RING = GemmConfig(256, 256, 64, 2, 4, stages_m=2, stages_n=2, schedule="staggered")
EXACT = (
    Epilogue(activation="relu", residual=True),
    Epilogue(scale=True, activation="relu", preactivation=True, out_dtype="f32"),
    Epilogue(gated=True, activation="relu", residual=True),
    Epilogue(gated=True, scale=True, out_dtype="f32"),
)
#: How far an activation is from its formula, of its value; and what the flush of tiny intermediate results may cost.
RELATIVE, TINY = 2.0**-15, 2.0**-118
#: The steepest of the activations is gelu, with a slope of 1.129 at sqrt(2).
SLOPE = 1.13

seed = int(os.environ["FLYCC_TEST_SEED"])


def formula(name: Activation, x: np.ndarray) -> np.ndarray:
    """PyTorch's activation in float64, written so that nothing cancels where x is far below 0."""

    def sigmoid(u: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-u))

    functions = {
        "none": lambda: x,
        "relu": lambda: np.where(x < 0, 0, x),
        "gelu": lambda: x * np.vectorize(math.erfc)(-x / 2**0.5) / 2,
        "gelu_tanh": lambda: x * sigmoid(2 * (2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)),
        "silu": lambda: x * sigmoid(x),
    }
    with np.errstate(all="ignore"):
        return functions[name]()


def with_epilogue(case: Gemm, epilogue: Epilogue, rng: np.random.Generator, values=integers) -> Gemm:
    """The same with an epilogue, and a bias where it may be; addends have all sizes of 1, or none."""
    batch, m, n, _ = case.sizes
    if epilogue.gated:
        logical = values(rng, *case.operands()[1].shape)
        place = {"padding": case.b.padding, "misalign": case.b.misalign}
        case.b2 = stored(logical, case.trans_b, case.dtype, **place)
    elif case.bias is None:
        case.bias = values(rng, *rng.permuted([[1, batch], [1, m], [1, n]], axis=1)[:, 0])
    if epilogue.residual:
        case.residual = values(rng, batch, m, n)
    return replace(case, epilogue=epilogue, scale=0.375 if epilogue.scale else 1.0)


def reference(case: Gemm) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Result, pre-activation and error bound of the result before rounding, all float64 [batch, m, n].

    The sums are off by at most g times the sum of their terms' magnitudes (see `emulated_gemm.bound`), with two more
    roundings for scale and bias. An activation passes on at most `SLOPE` of it and adds `RELATIVE` of its value; the
    product with the gate and the residual round once more each.
    """
    a, b = case.operands()
    g = (case.sizes[3] + 2) * 2.0**-24

    def product(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return case.scale * (a @ b), g * case.scale * (abs(a) @ abs(b))

    def rounded(addend: np.ndarray | None) -> np.ndarray:
        return np.zeros(1) if addend is None else addend.astype(NUMPY_TYPES[case.dtype]).astype(np.float64)

    pre, error = product(b)
    pre = pre + rounded(case.bias)
    error = error + g * abs(rounded(case.bias))
    result = formula(case.epilogue.activation, pre)
    if case.epilogue.activation != "none":
        error = SLOPE * error + RELATIVE * abs(result) + TINY
    if case.b2 is not None:
        second = case.b2.read()
        gate, gate_error = product(second.swapaxes(1, 2) if case.trans_b else second)
        error = abs(gate) * error + abs(result) * gate_error + error * gate_error
        result = result * gate
    result = result + rounded(case.residual)
    return result, pre, error + 2.0**-23 * (abs(result) + abs(rounded(case.residual)))


def check_exact(case: Gemm, config: GemmConfig) -> None:
    """Both results are the exact ones rounded once, and the memory between their rows is untouched."""
    out, pre, _ = reference(case)
    assert max(abs(out).max(), abs(pre).max()) < 2**20, "the test's inputs are too large to be summed exactly"
    found = case.run(config)
    dtype = case.epilogue.out_dtype or case.dtype
    clean = Stored(out, dtype, case.out_padding, case.out_misalign)
    what = f"{config} {case.sizes} {case.epilogue} seed {seed}"
    np.testing.assert_array_equal(found.out, clean.read(), err_msg=what)
    np.testing.assert_array_equal(unsigned_zeros(found.memory), unsigned_zeros(clean.buffer), err_msg=what)
    if found.pre is not None:
        clean = Stored(pre, dtype, case.out_padding, case.out_misalign)
        memory = unsigned_zeros(found.pre.buffer)
        np.testing.assert_array_equal(memory, unsigned_zeros(clean.buffer), err_msg=what)


def unsigned_zeros(bits: np.ndarray) -> np.ndarray:
    """Without the sign of zeros: the sum of a fused multiply-add has its own."""
    return np.where(bits == 1 << 8 * bits.itemsize - 1, 0, bits)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("epilogue", EXACT, ids=str)
def test_exact(name: str, epilogue: Epilogue) -> None:
    """Sizes and strides that divide by 8, and others; of all layouts two at random."""
    rng = np.random.default_rng([seed, *map(ord, name + str(epilogue))])
    ring = CONFIGS[name].ring
    for layout, sizes in zip(rng.permutation(LAYOUTS), ((24, 136, 72), (33, 70, 97)), strict=False):
        m, n, k = served(layout, *sizes) if ring else sizes
        padding = 8 if sizes[0] == 24 or ring else 1
        case = gemm_of(rng, "bf16", layout, (2, m, n, k), padding=padding)
        check_exact(with_epilogue(case, epilogue, rng), CONFIGS[name])


@pytest.mark.parametrize("name", ["decode", "direct", "staged"])
@pytest.mark.parametrize("epilogue", EXACT[::2], ids=str)
def test_misaligned(name: str, epilogue: Epilogue) -> None:
    rng = np.random.default_rng(seed)
    case = gemm_of(rng, "f16", "NN", (1, 24, 72, 80), padding=7, misalign=6)
    check_exact(with_epilogue(case, epilogue, rng), CONFIGS[name])


@pytest.mark.parametrize("name", ["decode", "ring"])
def test_results_of_the_other_16_bit_type(name: str) -> None:
    """Addends have the operands' type."""
    rng = np.random.default_rng(seed)
    case = gemm_of(rng, "bf16", "NT", (1, 33, 72, 72))
    check_exact(with_epilogue(case, Epilogue(residual=True, out_dtype="f16"), rng), CONFIGS[name])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_largest_gated_tile(layout: str) -> None:
    rng = np.random.default_rng(seed)
    case = gemm_of(rng, "bf16", layout, (1, 264, 136, 136))
    check_exact(with_epilogue(case, EXACT[2], rng), RING)


@pytest.mark.parametrize("shape", [(1, 1, 40), (1, 21, 1), (1, 1, 1), (1, 21, 40), (3, 1, 40)])
def test_residual_broadcasts(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng([seed, *shape])
    case = with_epilogue(gemm_of(rng, "bf16", "NT", (3, 21, 40, 40)), EXACT[0], rng)
    case.residual = integers(rng, *shape)
    check_exact(case, CONFIGS["staged"])


@pytest.mark.parametrize("count", [3, pytest.param(30, marks=pytest.mark.nightly)])
def test_every_valid_configuration_computes(count: int) -> None:
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    # LLVM takes seconds for what has more results a work-item.
    most = 64 if count == 3 else 128
    while count:
        layout, epilogue = draw.choice(LAYOUTS), draw.choice(EXACT)
        ring = draw.random() < 0.5
        config = any_ring(draw, layout) if ring else any_configuration(draw)
        sizes = draw.randint(1, 150), draw.randint(1, 150), draw.randint(1, 300)
        if ring:
            sizes = served(layout, *sizes)
        case = gemm_of(rng, "bf16", layout, (1, *sizes), padding=8 if ring else draw.choice([0, 1, 8]))
        case = with_epilogue(case, epilogue, rng)
        fits = config.tile_m * config.tile_n <= most * config.threads
        if fits and config.is_valid(case.problem(case.a)) is None:
            check_exact(case, config)
            count -= 1


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activation_of_every_bf16(activation: Activation) -> None:
    """Products are zero and the bias has all 65,536 numbers: the float32 results are within the stated bound.

    NaN, infinities, and both zeros give what PyTorch's formulas do.
    """
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(1, 256, 256)
    with np.errstate(invalid="ignore"):  # NaNs that signal
        x = bits.view(NUMPY_TYPES["bf16"]).astype(np.float64)
    zeros = Stored(np.zeros((1, 256, 8)), "bf16")
    epilogue = Epilogue(activation=activation, out_dtype="f32")
    out = Gemm("bf16", zeros, zeros, trans_b=True, bias=x, epilogue=epilogue).run(CONFIGS["staged"]).out
    expected = formula(activation, x)
    finite = np.isfinite(expected) & np.isfinite(x)
    error = abs(out[finite] - expected[finite])
    bound = RELATIVE * abs(expected[finite]) + TINY
    worst = (error / bound).argmax()
    assert error[worst] <= bound[worst], f"{activation} of {x[finite][worst]}: {out[finite][worst]}"
    np.testing.assert_array_equal(out[~finite], expected[~finite])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    "epilogue",
    [Epilogue(gated=True, activation="silu", residual=True), Epilogue(scale=True, activation="gelu")],
    ids=str,
)
def test_error_is_within_the_bound(name: str, epilogue: Epilogue) -> None:
    rng = np.random.default_rng([seed, *map(ord, name)])

    def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
        return rng.standard_normal(shape)

    case = gemm_of(rng, "bf16", "NT", (1, 33, 72, 264), values=normal)
    case = with_epilogue(case, epilogue, rng, normal)
    expected, _, error = reference(case)
    bound = error + half_ulp(abs(expected) + error, "bf16")
    off = abs(case.run(CONFIGS[name]).out - expected)
    assert (off <= bound).all(), f"seed {seed}: {(off / bound).max()} times the bound"


@pytest.mark.parametrize("name", CONFIGS)
def test_nan_of_the_second_b_stays_in_its_column(name: str) -> None:
    rng = np.random.default_rng(seed)
    case = with_epilogue(gemm_of(rng, "bf16", "NT", (1, 24, 72, 72)), EXACT[2], rng)
    clean = case.run(CONFIGS[name]).out
    assert case.b2 is not None
    case.b2.view[0, 5, 70] = 0x7FC0  # NaN
    out = case.run(CONFIGS[name]).out
    assert np.isnan(out[:, :, 5]).all()
    np.testing.assert_array_equal(np.delete(out, 5, 2), np.delete(clean, 5, 2))


@pytest.mark.parametrize("name", CONFIGS)
def test_wave_order_does_not_matter_and_sanitizers_are_quiet(name: str) -> None:
    rng = np.random.default_rng(seed)
    epilogue = Epilogue(gated=True, activation="silu", residual=True, scale=True)
    case = with_epilogue(gemm_of(rng, "bf16", "NT", (1, 40, 136, 264)), epilogue, rng)
    first = case.run(CONFIGS[name]).memory
    for order in ("serial", "reverse", "lockstep", seed):
        result = case.run(CONFIGS[name], order, sanitize="all" if order in ("lockstep", seed) else ())
        assert not result.findings, "\n".join(map(str, result.findings))
        np.testing.assert_array_equal(result.memory, first, err_msg=str(order))


@pytest.mark.parametrize(
    "epilogue", [Epilogue(gated=True, activation="gelu", residual=True), Epilogue(residual=True)]
)
@pytest.mark.parametrize(("layout", "align"), [("NN", 16), ("NT", 2)])
def test_nothing_is_spilled_and_lds_has_no_conflicts(layout: str, align: int, epilogue: Epilogue) -> None:
    problem = GemmProblem(
        "bf16",
        256,
        256,
        256,
        trans_b=layout == "NT",
        bias=not epilogue.gated,
        epilogue=epilogue,
        align_bias=align,
        align_residual=align,
    )
    assert scratch_and_conflicts(problem, RING) == (0, 0)


def scratch_and_conflicts(problem: GemmProblem, config: GemmConfig) -> tuple[int, int]:
    """Bytes of scratch memory a lane, and clocks of LDS accesses beyond the least, of a workgroup."""
    (step,) = steps(problem, config)
    compiled = compile_kernel(step.spec)
    kernel = loaded(compiled)
    memory, recorder = emulator.Memory(), Recorder()
    buffers = {name: np.zeros(size, np.uint8) for name, size in step.buffers.items()}
    pointers = {name: memory.register(buffer) if buffer.size else 0 for name, buffer in buffers.items()}
    kernarg = compiled.kernarg.pack({**pointers, **step.numbers})
    grid, block = step.launch.grid, step.launch.block
    emulator.launch(kernel, grid, block, kernarg, memory, workgroups=[(0, 0, 0)], observers=(recorder,))
    accesses = recorder.trace().accesses
    of_lds = accesses[accesses["space"] == SPACES.index("lds")]
    assert len(of_lds)
    return kernel.descriptor.scratch_bytes, int((of_lds["clocks"] - of_lds["phases"]).sum())


GATED = GemmProblem("bf16", 512, 512, 512, trans_b=True, epilogue=Epilogue(gated=True))


@pytest.mark.parametrize(
    ("problem", "config", "code"),
    [
        (GATED, GemmConfig(32, 32, 64, 1, 2), "gemm.gated"),  # one block along N a wave
        (replace(GATED, trans_b=False), GemmConfig(64, 64, 64, 2, 2, stages_m=2, stages_n=2), "gemm.gated"),
        (replace(GATED, bias=True), GemmConfig(64, 64, 64, 2, 2), "gemm.epilogue"),
        (replace(GATED, epilogue=Epilogue(activation="mish")), GemmConfig(64, 64, 64, 2, 2), "gemm.epilogue"),  # type: ignore[arg-type]
        (replace(GATED, n=65535 * 64), GemmConfig(64, 64, 64, 2, 2), "gemm.size"),
    ],
)
def test_refusals(problem: GemmProblem, config: GemmConfig, code: str) -> None:
    reason = config.is_valid(problem)
    assert isinstance(reason, Reason)
    assert reason.code == code


def test_a_gated_launch_has_workgroups_for_both_halves() -> None:
    config = GemmConfig(64, 64, 64, 2, 2)
    assert gemm.launch(replace(GATED, n=96), config).grid == (8, 3, 1)


def test_variants_have_names_of_their_own() -> None:
    problems = [
        replace(GATED, epilogue=epilogue, align_residual=align) for epilogue in EXACT for align in (2, 16)
    ]
    problems += [replace(GATED, epilogue=Epilogue(activation=name)) for name in ("gelu", "gelu_tanh", "silu")]
    specs = [gemm.kernel(problem, CONFIGS["ring"]) for problem in problems]
    assert len({spec.symbol for spec in specs}) == len({spec.key for spec in specs})
