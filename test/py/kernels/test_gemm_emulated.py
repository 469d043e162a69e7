"""GEMM binaries on the emulated gfx950 against float64.

Most tests use small integers, whose sums float32 holds exactly: the result must be the exact sum rounded
once, so that any misplaced, missing or doubled term shows.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import numpy as np
import pytest
from emulated_gemm import NUMPY_TYPES, PRECISION, Gemm, Stored, bound, reference
from pairs import pairwise

from flycc.contracts import GemmProblem
from flycc.kernels.gemm import GemmConfig

CONFIGS = {
    "decode256": GemmConfig(16, 64, 64, waves_k=4, staged=False),
    "decode192": GemmConfig(16, 64, 96, waves_k=2, staged=False),
    "small": GemmConfig(64, 64, 64, waves_m=2, waves_n=2),
    "large": GemmConfig(128, 128, 64, waves_m=2, waves_n=2),
    "direct4": GemmConfig(64, 128, 32, waves_m=2, waves_n=2, staged=False),
}
LAYOUTS = ("NN", "NT", "TN", "TT")
SIZES = (1, 2, 3, 15, 16, 17, 31, 33, 64, 65, 127, 130)

seed = int(os.environ["FLYCC_TEST_SEED"])


def stored(values: np.ndarray, transposed: bool, dtype: str, **placement: int) -> Stored:
    return Stored(values.swapaxes(1, 2).copy() if transposed else values, dtype, **placement)


def integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Whole numbers of magnitude at most 4: exact in both types, their sums exact in float32 below 2^24."""
    return rng.integers(-4, 5, shape).astype(np.float64)


Draw = Callable[..., np.ndarray]


def gemm_of(
    rng: np.random.Generator,
    dtype: str,
    layout: str,
    sizes: tuple[int, int, int, int],
    *,
    padding: int = 0,
    misalign: int = 0,
    bias: np.ndarray | None = None,
    values: Draw = integers,
) -> Gemm:
    batch, m, n, k = sizes
    trans_a, trans_b = layout[0] == "T", layout[1] == "T"
    place = {"padding": padding, "misalign": misalign}
    a = stored(values(rng, batch, m, k), trans_a, dtype, **place)
    b = stored(values(rng, batch, k, n), trans_b, dtype, **place)
    return Gemm(dtype, a, b, trans_a, trans_b, bias, padding, misalign)


def check_exact(case: Gemm, config: GemmConfig) -> None:
    """The result is the exact one rounded once, and the memory between the rows of `out` is untouched."""
    exact, magnitude = reference(case)
    assert magnitude.max() < 2**24, "the test's inputs are too large to be summed exactly"
    expected = exact.astype(np.float32).astype(NUMPY_TYPES[case.dtype]).astype(np.float64)
    result = case.run(config)
    what = f"{config} {case.sizes} seed {seed}"
    np.testing.assert_array_equal(result.out, expected, err_msg=what)
    clean = Stored(expected, case.dtype, case.out_padding, case.out_misalign)
    np.testing.assert_array_equal(result.memory, clean.buffer, err_msg=what)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("count", [2, pytest.param(len(SIZES), marks=pytest.mark.nightly)])
def test_sizes(name: str, layout: str, count: int) -> None:
    """M, N and K each take `count` of the sizes, paired at random."""
    rng = np.random.default_rng([seed, *map(ord, name + layout)])
    orders = [rng.permutation(SIZES)[:count] for _ in range(3)]
    for number, (m, n, k) in enumerate(zip(*orders, strict=True)):
        dtype = ("bf16", "f16")[number % 2]
        check_exact(gemm_of(rng, dtype, layout, (1, int(m), int(n), int(k))), CONFIGS[name])


@pytest.mark.parametrize(("name", "layout", "k"), pairwise(CONFIGS, LAYOUTS, [8, 584]))
def test_aligned_sizes_take_the_wide_accesses(name: str, layout: str, k: int) -> None:
    rng = np.random.default_rng([seed, k])
    check_exact(gemm_of(rng, "bf16", layout, (1, 24, 136, k), padding=8), CONFIGS[name])


@pytest.mark.parametrize(("name", "layout", "placed"), pairwise(CONFIGS, LAYOUTS, [(0, 8), (2, 0), (7, 6)]))
def test_alignments(name: str, layout: str, placed: tuple[int, int]) -> None:
    padding, misalign = placed
    rng = np.random.default_rng([seed, padding, misalign])
    case = gemm_of(rng, "f16", layout, (1, 24, 72, 80), padding=padding, misalign=misalign)
    check_exact(case, CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("broadcast", ["neither", "a", "b"])
def test_batches(name: str, broadcast: str) -> None:
    rng = np.random.default_rng(seed)
    a = Stored(integers(rng, 1 if broadcast == "a" else 3, 20, 40), "bf16", padding=8, batch_padding=24)
    b = Stored(integers(rng, 1 if broadcast == "b" else 3, 40, 72), "bf16", batch_padding=8)
    check_exact(Gemm("bf16", a, b), CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("shape", [(1, 1, 37), (1, 21, 1), (1, 1, 1), (1, 21, 37), (2, 1, 37), (2, 21, 37)])
def test_bias(name: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng([seed, *shape])
    case = gemm_of(rng, "bf16", "NT", (2, 21, 37, 40), bias=integers(rng, *shape))
    check_exact(case, CONFIGS[name])


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_bias_is_added_before_the_one_rounding(dtype: str) -> None:
    """1 + half an ulp, which a rounding before the bias would drop, plus the bias's half ulp."""
    step = 2.0 ** (1 - PRECISION[dtype][0])
    a = Stored(np.array([[[1.0, step / 2]]]), dtype)
    b = Stored(np.ones((1, 2, 1)), dtype)
    case = Gemm(dtype, a, b, bias=np.full((1, 1, 1), step / 2))
    assert case.run(CONFIGS["decode256"]).out.item() == 1 + step


@pytest.mark.parametrize(("name", "dtype", "k"), pairwise(CONFIGS, ["bf16", "f16"], [1, 64, 577]))
def test_rounding_error_is_within_the_bound(name: str, dtype: str, k: int) -> None:
    rng = np.random.default_rng([seed, k])

    def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
        return rng.standard_normal(shape)

    case = gemm_of(rng, dtype, "NT", (1, 33, 72, k), values=normal, bias=normal(rng, 1, 1, 72))
    error = abs(case.run(CONFIGS[name]).out - reference(case)[0])
    assert (error <= bound(case)).all(), f"seed {seed}: {(error / bound(case)).max()} times the bound"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_nan_and_infinity_stay_in_their_row_and_column(name: str, layout: str) -> None:
    rng = np.random.default_rng(seed)
    case = gemm_of(rng, "bf16", layout, (1, 21, 40, 70))
    a = case.a.view.swapaxes(1, 2) if case.trans_a else case.a.view
    b = case.b.view.swapaxes(1, 2) if case.trans_b else case.b.view
    nan, infinity = 0x7FC0, 0x7F80
    a[0, 3, 69] = nan
    b[0, 0, 7] = infinity
    a[0, :, 0] = 0x3F80  # 1.0, so that the infinity stays one
    with np.errstate(invalid="ignore"):
        exact, _ = reference(case)
    out = case.run(CONFIGS[name]).out
    assert np.isnan(out[0, 3]).all()
    others = np.arange(21) != 3
    assert (out[0, others, 7] == np.inf).all()
    rest = np.ix_([0], others, np.arange(40) != 7)
    expected = exact[rest].astype(NUMPY_TYPES["bf16"]).astype(np.float64)
    np.testing.assert_array_equal(out[rest], expected)


@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize("name", CONFIGS)
def test_wave_order_does_not_matter(name: str, layout: str) -> None:
    rng = np.random.default_rng(seed)

    def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
        return rng.standard_normal(shape)

    case = gemm_of(rng, "bf16", layout, (1, 40, 136, 600), values=normal)
    first = case.run(CONFIGS[name]).memory
    for order in ("serial", "reverse", seed):
        np.testing.assert_array_equal(case.run(CONFIGS[name], order).memory, first, err_msg=str(order))


@pytest.mark.parametrize(("name", "layout", "aligned"), pairwise(CONFIGS, LAYOUTS, [True, False]))
def test_sanitizers_are_quiet(name: str, layout: str, aligned: bool) -> None:
    """Nothing races, is used too early or undefined, or touches what is not its own."""
    rng = np.random.default_rng(seed)
    sizes = (1, 40, 136, 600) if aligned else (2, 33, 70, 129)
    bias = rng.integers(-4, 5, sizes[2:3]).astype(np.float64)
    case = gemm_of(rng, "bf16", layout, sizes, misalign=0 if aligned else 2, bias=bias)
    expected = case.run(CONFIGS[name]).memory
    for order in ("lockstep", seed):
        result = case.run(CONFIGS[name], order, sanitize="all")
        assert not result.findings, "\n".join(map(str, result.findings))
        np.testing.assert_array_equal(result.memory, expected, err_msg=str(order))


def any_configuration(draw: random.Random) -> GemmConfig:
    """A valid configuration, shipped or not, that leaves at most 128 results to a work-item."""
    while True:
        config = GemmConfig(
            draw.choice([16, 32, 48, 64, 128, 256]),
            draw.choice([16, 32, 64, 96, 128, 256]),
            draw.choice([32, 64, 96, 128]),
            draw.choice([1, 2, 3, 4]),
            draw.choice([1, 2, 3, 4]),
            draw.choice([1, 1, 2, 3, 4, 8]),
            draw.choice([True, False]),
        )
        fits = config.tile_m * config.tile_n <= 128 * config.threads
        if fits and config.is_valid(GemmProblem("bf16", 64, 64, 64)) is None:
            return config


@pytest.mark.parametrize("count", [3, pytest.param(100, marks=pytest.mark.nightly)])
def test_every_valid_configuration_computes(count: int) -> None:
    """What is_valid accepts is right, not only what is shipped: the tuner searches all of it."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    for _ in range(count):
        config, layout = any_configuration(draw), draw.choice(LAYOUTS)
        k = draw.choice([draw.randint(1, 300), 8 * draw.randint(1, 40)])
        sizes = (1, draw.randint(1, 150), draw.randint(1, 150), k)
        check_exact(gemm_of(rng, "bf16", layout, sizes, padding=draw.choice([0, 1, 2, 8])), config)


def test_infinite_results_of_fp16() -> None:
    a = Stored(np.full((1, 2, 2), 300.0), "f16")
    b = Stored(np.array([[[200.0, -200.0], [200.0, -200.0]]]), "f16")
    out = Gemm("f16", a, b).run(CONFIGS["small"]).out
    np.testing.assert_array_equal(out, [[[np.inf, -np.inf]] * 2])


@pytest.mark.parametrize("name", ["decode192", "small"])
def test_operands_beyond_two_gibibytes(name: str) -> None:
    """The second matrix of the batch begins past 2^32 bytes; what lies between is never touched."""
    rng = np.random.default_rng(seed)
    b = Stored(integers(rng, 2, 64, 64), "bf16", batch_padding=2**31 + 64)
    check_exact(Gemm("bf16", Stored(integers(rng, 1, 8, 64), "bf16"), b), CONFIGS[name])


@pytest.mark.parametrize("name", ["decode192", "small"])
def test_largest_strides(name: str) -> None:
    rng = np.random.default_rng(seed)
    config = CONFIGS[name]
    for layout in ("NT", "TN"):
        case = gemm_of(rng, "bf16", layout, (1, 70, 66, 72))
        for operand in (case.a, case.b):
            operand.padding = config.max_stride - operand.values.shape[2]
            operand.__post_init__()
        check_exact(case, config)


def test_decoding_takes_few_instructions() -> None:
    """The cost of a launch on the emulated device: instructions a wave executes for M=1, K=576."""
    rng = np.random.default_rng(seed)
    case = gemm_of(rng, "bf16", "NT", (1, 1, 64, 576))
    assert case.run(CONFIGS["decode192"]).instructions_per_wave <= 400
