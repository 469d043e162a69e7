"""RMS norm binaries on the emulated gfx950 against float64, and their errors against those of PyTorch's float32.

With u = 2^-24, of rstd: a square goes through as many roundings as its work-item has steps, and then through a tree
of all the work-items' elements. The division by N and the addition of eps round once each, the root halves what came
before and is itself rounded, once and a little. Of y: rstd's error, and a rounding for each product and sum up to
the last, which rounds to the type of y. Second-order terms are far below the tenth of u that is added.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from emulated_rms_norm import NUMPY_TYPES, Matrix, Run, forward, ulp
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from flycc.contracts import RmsNormProblem
from flycc.kernels.rms_norm import RmsNormConfig, choose

EPS = 1e-6
DTYPES = ("bf16", "f16", "f32")
TORCH_TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
#: Of upstream's tests and published tables, and what kernels that keep rows and ones that do not change at.
LENGTHS = (
    *(3, 2056, 4096, 8192, 12288, 24576, 114688, 4097, 4103, 8193, 16384, 16385, 32768, 32769, 65536, 98305),
    *(131072, 131073, 163841, 300001),
)

seed = int(os.environ["FLYCC_TEST_SEED"])


def operands_of(
    problem: RmsNormProblem, rng: np.random.Generator, padding: int = 0, misalign: int = 0
) -> dict[str, Matrix]:
    shape = (problem.rows, problem.columns)
    kind = NUMPY_TYPES[problem.dtype]
    operands = {"x": Matrix(rng.standard_normal(shape).astype(kind), padding, misalign)}
    if problem.residual:
        operands["residual"] = Matrix(rng.standard_normal(shape).astype(kind), padding)
    if problem.weight != "none":
        weight = rng.standard_normal((1, problem.columns)) + 1
        operands["weight"] = Matrix(weight.astype(NUMPY_TYPES[problem.weight]))
    return operands


def check(problem: RmsNormProblem, operands: dict[str, Matrix], results: dict[str, np.ndarray]) -> None:
    """Results against float64, with the bound above; new_residual exactly."""
    h = operands["x"].values
    if problem.residual:
        # float32 holds the sum of 16-bit floats of like magnitude, or rounds it as PyTorch does.
        h = (h.astype(np.float32) + operands["residual"].values.astype(np.float32)).astype(h.dtype)
        np.testing.assert_array_equal(results["new_residual"], h)
    h = h.astype(np.float64)
    exact_rstd = 1 / np.sqrt((h * h).mean(1, keepdims=True) + EPS)
    wide = torch.from_numpy(h).float()
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    weight = operands["weight"].values.astype(np.float64) if problem.weight != "none" else np.ones((1, 1))
    weight = weight + 1 if problem.weight_offset and problem.weight != "none" else weight
    exact = h * exact_rstd
    roundings = rstd_roundings(problem)
    if problem.rstd:
        assert (abs(results["rstd"] / exact_rstd - 1) <= roundings * 2.0**-24).all()
    y = results["y"].astype(np.float64)
    if problem.cast_before_weight:
        check_cast(problem, exact, weight, y)
        return
    exact = exact * weight
    roundings += 1 + (problem.weight != "none") + problem.weight_offset
    assert (abs(y - exact) <= roundings * 2.0**-24 * abs(exact) + 0.5 * ulp(exact, problem.out_dtype)).all()
    # In float32 the roundings of the two, which the bound above counts, are all there is to compare.
    if exact.size > 1000 and problem.out_dtype != "f32":
        theirs = wide * rstd * torch.from_numpy(weight).float()
        error = abs(theirs.to(TORCH_TYPES[problem.out_dtype]).double().numpy() - exact)
        unit = ulp(exact, problem.out_dtype)
        assert (abs(y - exact) / unit).max() <= (error / unit).max() + 1


def rstd_roundings(problem: RmsNormProblem) -> float:
    """How many units of 2^-24 rstd may be off."""
    config = choose(problem)
    assert isinstance(config, RmsNormConfig)
    columns = int(problem.columns)
    steps = -(-columns // (config.threads * 8))
    return (steps + np.log2(columns) + 4 + 2) / 2 + 1.1


def check_cast(problem: RmsNormProblem, exact: np.ndarray, weight: np.ndarray, y: np.ndarray) -> None:
    """The normalised value may be rounded either way if it is within 2^-20 of the middle: several times the error
    of float32 statistics. The product with the weight is exact to float32's last bit."""
    element, out = NUMPY_TYPES[problem.dtype], NUMPY_TYPES[problem.out_dtype]
    ends = [
        ((exact * (1 + sign * 2.0**-20)).astype(element).astype(np.float64) * weight) * (1 + nudge * 2.0**-23)
        for sign in (-1, 1)
        for nudge in (-1, 1)
    ]
    rounded = [end.astype(out).astype(np.float64) for end in ends]
    assert (np.minimum.reduce(rounded) <= y).all()
    assert (y <= np.maximum.reduce(rounded)).all()


def run_and_check(problem: RmsNormProblem, rng: np.random.Generator, **placement: int) -> None:
    operands, run = operands_of(problem, rng, **placement), Run()
    check(problem, operands, forward(problem, operands, EPS, run))
    assert run.findings == ()
    assert run.scratch_bytes == 0


@pytest.mark.parametrize(
    ("dtype", "columns"),
    [
        # f16 goes the way of bf16: every day with every fourth length.
        pytest.param(dtype, columns, marks=pytest.mark.nightly if dtype == "f16" and number % 4 else ())
        for dtype in DTYPES
        for number, columns in enumerate(LENGTHS)
    ],
)
def test_lengths(dtype: Any, columns: int) -> None:
    rng = np.random.default_rng((seed, columns))
    run_and_check(RmsNormProblem(dtype, 2, columns, dtype, residual=bool(columns % 3), rstd=True), rng)


@settings(max_examples=40, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(data=st.data())
def test_shapes_types_and_options(data: st.DataObject) -> None:
    draw = data.draw
    columns = draw(st.one_of(st.integers(1, 80), st.integers(1, 3000)), label="columns")
    problem = RmsNormProblem(
        draw(st.sampled_from(DTYPES), label="dtype"),
        draw(st.integers(1, 70 if columns <= 80 else 6), label="rows"),
        columns,
        draw(st.sampled_from(("none", *DTYPES)), label="weight"),
        draw(st.sampled_from((None, *DTYPES)), label="out"),
        weight_offset=draw(st.booleans(), label="weight_offset"),
        cast_before_weight=draw(st.booleans(), label="cast_before_weight"),
        residual=draw(st.booleans(), label="residual"),
        rstd=draw(st.booleans(), label="rstd"),
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32), label="seed"))
    # Rows of 16-bit elements start at whole words as those of a contiguous tensor do.
    padding = draw(st.integers(0, 5), label="padding") * 2
    misalign = draw(st.sampled_from((0, 4, 8)), label="misalign")
    run_and_check(problem, rng, padding=padding, misalign=misalign)


CONFIGS = {
    "several rows a wave": (RmsNormProblem("bf16", 37, 65, "bf16", residual=True, rstd=True), None),
    "a row a wave": (RmsNormProblem("f16", 6, 1027, "f16", residual=True, rstd=True), None),
    "a row a workgroup": (RmsNormProblem("bf16", 3, 4099, "f32", residual=True, rstd=True), None),
    "in registers and LDS": (
        RmsNormProblem("f32", 2, 4103, "bf16", residual=True, rstd=True),
        RmsNormConfig(256, 1, 3, 2),
    ),
    "read twice": (
        RmsNormProblem("bf16", 3, 9001, "bf16", residual=True, rstd=True),
        RmsNormConfig(256, 1, 2, stream=True),
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_wave_order_does_not_matter(name: str) -> None:
    problem, config = CONFIGS[name]
    operands = operands_of(problem, np.random.default_rng(seed))
    results = []
    for order in ("lockstep", "serial", "reverse", seed, seed + 1):
        run = Run(wave_order=order)
        results.append(forward(problem, operands, EPS, run, config))
        assert run.findings == ()
    check(problem, operands, results[0])
    for other in results[1:]:
        for key, value in results[0].items():
            assert value.tobytes() == other[key].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [5, 200, 4097])
def test_rows_of_nan_inf_and_zero_give_what_pytorch_gives(dtype: Any, columns: int) -> None:
    rng = np.random.default_rng((seed, columns))
    problem = RmsNormProblem(dtype, 6, columns, dtype, rstd=True)
    operands = operands_of(problem, rng)
    x, place = operands["x"].view, columns - 2
    x[0, place], x[1, place], x[2, place], x[3], x[4, place] = np.nan, np.inf, -np.inf, 0, 0
    if dtype != "f16":
        x[5] = 1e30  # its square overflows
    results = forward(problem, operands, 0.0, Run())
    wide = torch.from_numpy(x.astype(np.float32))
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True))
    expected = (wide * rstd * torch.from_numpy(operands["weight"].values.astype(np.float32))).numpy()
    for ours, theirs in ((results["y"].astype(np.float32), expected), (results["rstd"], rstd.numpy())):
        for same in (np.isnan, np.isinf, lambda a: a == 0):
            np.testing.assert_array_equal(same(ours), same(theirs))


def test_a_binary_for_unknown_sizes_computes_known_ones() -> None:
    """What a kernel for a symbolic length assumes must be less than what it assumes for a known one."""
    rng = np.random.default_rng(seed)
    known = RmsNormProblem("bf16", 5, 64, "bf16")
    config = choose(known)
    assert isinstance(config, RmsNormConfig)
    operands, run = operands_of(known, rng), Run()
    check(known, operands, forward(known, operands, EPS, run, config))
    assert run.findings == ()
