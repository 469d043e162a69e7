"""RMS norm gradients on the emulated gfx950 against float64.

Bounds, with u = 2^-24 and g = grad * w, n = x * rstd, both rounded to float32: a product is off by at most 3 u of its
magnitude, a sum of N of them in a tree of depth d over steps of s by (s + d + 3) u of the sum of magnitudes (Higham,
Accuracy and Stability of Numerical Algorithms, section 4.2). dx is rstd * (g - n * mean): four more roundings of its
terms' magnitudes, and half an ulp. dweight sums its rows in turns, as many roundings as rows at most.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from emulated_rms_norm import NUMPY_TYPES, Matrix, Run, backward, ulp
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from flycc.contracts import RmsNormBackwardProblem

DTYPES = ("bf16", "f16", "f32")
U = 2.0**-24
LENGTHS = (1, 3, 64, 2056, 4096, 4097, 8193, 16385, 24577, 24584, 32769, 65536, 131072)

seed = int(os.environ["FLYCC_TEST_SEED"])


def operands_of(
    problem: RmsNormBackwardProblem, rng: np.random.Generator, padding: int = 0
) -> dict[str, Matrix]:
    shape = (problem.rows, problem.columns)
    x = rng.standard_normal(shape).astype(NUMPY_TYPES[problem.dtype])
    grad = rng.standard_normal(shape).astype(NUMPY_TYPES[problem.out_dtype])
    wide = x.astype(np.float64)
    rstd = 1 / np.sqrt((wide * wide).mean(1, keepdims=True) + 1e-6)
    operands = {
        "x": Matrix(x, padding),
        "grad": Matrix(grad, 2 * padding),
        "rstd": Matrix(rstd.astype(np.float32)),
    }
    if problem.weight != "none":
        weight = rng.standard_normal((1, problem.columns)).astype(NUMPY_TYPES[problem.weight])
        operands["weight"] = Matrix(weight)
    return operands


def check(
    problem: RmsNormBackwardProblem, operands: dict[str, Matrix], dx: np.ndarray, partial: np.ndarray
) -> None:
    x, grad, rstd = (operands[name].values.astype(np.float64) for name in ("x", "grad", "rstd"))
    rows, columns = x.shape
    n, g = x * rstd, grad
    if problem.weight != "none":
        weight = operands["weight"].values.astype(np.float64)
        g = grad * (weight + 1 if problem.weight_offset else weight)
    mean = (g * n).mean(1, keepdims=True)
    exact = rstd * (g - n * mean)
    depth = -(-columns // 4096) + np.log2(columns) + 8
    size = abs(g) + abs(n) * abs(g * n).mean(1, keepdims=True) * (1 + depth)
    error = 6 * U * rstd * size + 0.5 * ulp(exact, problem.dtype) + ulp(np.zeros(()), "f32")
    assert (abs(dx.astype(np.float64) - exact) <= error).all()
    if problem.weight != "none":
        terms = grad * n
        # partial is summed here in float64, so what it is off by is the kernel's alone.
        off = abs(partial.astype(np.float64).sum(0) - terms.sum(0))
        assert (off <= (rows + 3) * U * abs(terms).sum(0)).all()


def run_and_check(problem: RmsNormBackwardProblem, rng: np.random.Generator, padding: int = 0) -> None:
    operands, run = operands_of(problem, rng, padding), Run()
    check(problem, operands, *backward(problem, operands, run))
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
    run_and_check(RmsNormBackwardProblem(dtype, 3, columns, dtype), np.random.default_rng((seed, columns)))


@pytest.mark.parametrize("columns", [8, 65, 515])
def test_many_turns(columns: int) -> None:
    """More rows than the workgroups of a launch take at once."""
    rng = np.random.default_rng((seed, columns))
    rows = 16 * 1024 + 3 if columns < 512 else 2051
    run_and_check(RmsNormBackwardProblem("bf16", rows, columns, "bf16"), rng)


@settings(max_examples=30, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(data=st.data())
def test_shapes_types_and_options(data: st.DataObject) -> None:
    draw = data.draw
    columns = draw(st.one_of(st.integers(1, 80), st.integers(1, 3000)), label="columns")
    problem = RmsNormBackwardProblem(
        draw(st.sampled_from(DTYPES), label="dtype"),
        draw(st.integers(1, 70 if columns <= 80 else 6), label="rows"),
        columns,
        draw(st.sampled_from(("none", *DTYPES)), label="weight"),
        draw(st.sampled_from((None, *DTYPES)), label="out"),
        weight_offset=draw(st.booleans(), label="weight_offset"),
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32), label="seed"))
    run_and_check(problem, rng, padding=draw(st.integers(0, 3), label="padding") * 2)


@pytest.mark.parametrize("columns", [33, 1025, 4099, 25001, 33001])
def test_wave_order_does_not_matter(columns: int) -> None:
    problem = RmsNormBackwardProblem("bf16", 5, columns, "bf16")
    operands = operands_of(problem, np.random.default_rng(seed))
    results = []
    for order in ("lockstep", "serial", "reverse", seed):
        run = Run(wave_order=order)
        results.append(b"".join(part.tobytes() for part in backward(problem, operands, run)))
        assert run.findings == ()
    assert len(set(results)) == 1
