"""MX quantisation binaries on the emulated gfx950, bit for bit against float64 by search."""

from __future__ import annotations

import itertools
import os
from typing import Any

import ml_dtypes
import mx_reference
import numpy as np
import pytest
from emulated_mx import dequantize, quantize, scale_range
from emulated_rms_norm import NUMPY_TYPES, Matrix, Run

from flycc.contracts import MxDequantizeProblem, MxQuantizeProblem, Reason, ScaleRangeProblem
from flycc.kernels.mx_quantize import RowsConfig, choose, flat, range_shares, shares

DTYPES = ("bf16", "f16", "f32")
FORMATS = ("e4m3", "e5m2", "e2m1")
ROUNDINGS = ("floor", "even", "ceil")
seed = int(os.environ["FLYCC_TEST_SEED"])


def numbers(rng: np.random.Generator, rows: int, columns: int, dtype: str) -> np.ndarray:
    """Of any size, with zeros, a block of zeros, denormal numbers, an infinity and NaN."""
    shape = (rows, columns)
    with np.errstate(over="ignore"):
        x = rng.standard_normal(shape) * np.exp2(rng.normal(0, 20 if dtype != "f16" else 4, shape))
        x[rng.random(shape) < 0.1] = -0.0
        x[0, :32] = 0.0
        if rows > 2:
            x[1, 0], x[2, -1] = np.inf, np.nan
        x = x.astype(NUMPY_TYPES[dtype])
    least = np.ones(1, np.uint16 if x.itemsize == 2 else np.uint32).view(x.dtype)[0]
    x[-1, : columns // 2] = least * x.dtype.type(rng.integers(1, 100))
    return x


def check_quantized(
    problem: MxQuantizeProblem,
    x: Matrix,
    run: Run | None = None,
    config: Any = None,
    groups: int | None = None,
) -> None:
    run = run or Run()
    found = quantize(problem, x, run, config, groups)
    data, scales = mx_reference.quantize(x.values, problem.format, problem.rounding)
    np.testing.assert_array_equal(found.scales, scales)
    np.testing.assert_array_equal(found.data, data)
    assert found.range == mx_reference.scale_range(scales)
    assert run.findings == ()
    assert run.scratch_bytes == 0


@pytest.mark.parametrize(
    ("dtype", "format", "rounding"),
    [
        pytest.param(*case, marks=() if index % 7 == seed % 7 else pytest.mark.nightly)
        for index, case in enumerate(itertools.product(DTYPES, FORMATS, ROUNDINGS))
    ],
)
def test_every_variant(dtype: str, format: Any, rounding: Any) -> None:
    rng = np.random.default_rng(seed)
    x = numbers(rng, 9, 256, dtype)
    check_quantized(MxQuantizeProblem(dtype, format, 9, 256, rounding), Matrix(x))  # type: ignore[arg-type]
    x = numbers(rng, 5, 39, dtype)
    check_quantized(MxQuantizeProblem(dtype, format, 5, 39, rounding, 2), Matrix(x))  # type: ignore[arg-type]


@pytest.mark.parametrize("format", FORMATS)
def test_every_bfloat16_as_an_element(format: Any) -> None:
    """Beside the format's largest number, so that the scale is 1, unless it is larger itself."""
    largest = mx_reference.magnitudes(format)[-1]
    magnitudes = np.arange(0x7F80, dtype=np.uint16)
    values = np.concatenate((magnitudes, magnitudes | 0x8000)).view(ml_dtypes.bfloat16)
    values = values[abs(values.astype(np.float32)) < 2 * largest]
    x = np.zeros((-(-len(values) // 31), 32), ml_dtypes.bfloat16)
    x[:, 0] = largest
    x[:, 1:].flat[: len(values)] = values
    rows = x.reshape(-1, 32)
    check_quantized(MxQuantizeProblem("bf16", format, len(rows), 32), Matrix(rows))


@pytest.mark.nightly
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("format", FORMATS)
def test_every_bfloat16_as_the_largest(format: Any, rounding: Any) -> None:
    values = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(ml_dtypes.bfloat16)
    x = np.zeros((len(values), 2), ml_dtypes.bfloat16)
    x[:, 1] = values
    check_quantized(MxQuantizeProblem("bf16", format, len(values), 2, rounding, 4), Matrix(x))


@pytest.mark.parametrize(
    ("columns", "padding", "misalign"),
    [(160, 8, 4), (64, 3, 2), (33, 1, 0), (8, 0, 0), (1, 0, 2), (2080, 0, 0)],
)
def test_layouts(columns: int, padding: int, misalign: int) -> None:
    x = Matrix(numbers(np.random.default_rng(seed), 6, columns, "bf16"), padding, misalign)
    align = np.gcd.reduce([16, 16 + misalign, 2 * x.stride])
    check_quantized(MxQuantizeProblem("bf16", "e2m1", 6, columns, align=int(align)), x)


@pytest.mark.parametrize("wave_order", ["serial", "reverse", seed])
def test_workgroups_with_several_turns_in_any_order(wave_order: str | int) -> None:
    """Strips of columns, and more rows than workgroups, the last of which are not there."""
    x = Matrix(numbers(np.random.default_rng(seed), 13, 640, "bf16"))
    problem = MxQuantizeProblem("bf16", "e4m3", 13, 640)
    check_quantized(problem, x, Run(wave_order), RowsConfig(32, 1), groups=1)
    check_quantized(problem, x, Run(wave_order), RowsConfig(32, 1), groups=2)


@pytest.mark.parametrize(
    ("dtype", "format"),
    [
        pytest.param(*case, marks=() if index % 3 == seed % 3 else pytest.mark.nightly)
        for index, case in enumerate(itertools.product(DTYPES, FORMATS))
    ],
)
def test_dequantized(dtype: Any, format: Any) -> None:
    """All codes, under scales that overflow, underflow and are NaN; float32 has every product, or its overflow."""
    rng = np.random.default_rng(seed)
    for columns, padding in ((256, 0), (36, 3)):
        data = rng.permuted(np.arange(16 * columns) % 256).astype(np.uint8).reshape(16, columns)
        data = data[:, : columns // 2] if format == "e2m1" else data
        scales = rng.integers(100, 150, (16, -(-columns // 32))).astype(np.uint8)
        scales[:4, 0] = 0, 255, 254, 12
        run = Run()
        problem = MxDequantizeProblem(format, dtype, 16, columns, 16 if not padding else 1)
        found = dequantize(problem, Matrix(data, padding), Matrix(scales, padding), run)
        exact = mx_reference.dequantize(data, scales, format)
        with np.errstate(over="ignore", invalid="ignore"):
            expected = exact.astype(np.float32).astype(NUMPY_TYPES[dtype])
        nan = np.isnan(exact)
        np.testing.assert_array_equal(np.isnan(found), nan)
        kind = f"u{found.itemsize}"
        np.testing.assert_array_equal(found.view(kind)[~nan], expected.view(kind)[~nan])
        assert (run.findings, run.scratch_bytes) == ((), 0)


@pytest.mark.parametrize("count", [1, 15, 17, 300, 16 * 1024 * 4 + 5, 150_000])
def test_ranges(count: int) -> None:
    rng = np.random.default_rng(seed)
    run = Run()
    bytes_ = rng.integers(3, 200, count).astype(np.uint8)
    assert scale_range(bytes_, run) == mx_reference.scale_range(bytes_)
    for place, byte in zip(rng.integers(0, count, 3), (0, 255, 254), strict=True):
        bytes_[place] = byte  # each of which may be the last, or the only one
        assert scale_range(bytes_, run) == mx_reference.scale_range(bytes_)
    assert scale_range(np.full(count, 255, np.uint8), run) == [127, 127, 1]
    assert (run.findings, run.scratch_bytes) == ((), 0)


def test_flat_rows_fill_workgroups() -> None:
    problem = flat(MxQuantizeProblem("bf16", "e4m3", 100, 576))
    assert (problem.rows, problem.columns) == (225, 256)
    config = choose(problem)
    assert isinstance(config, RowsConfig)
    assert config.threads * 8 == 256
    assert flat(MxQuantizeProblem("bf16", "e4m3", 4, 33)) == MxQuantizeProblem("bf16", "e4m3", 4, 33)
    large = flat(MxDequantizeProblem("e2m1", "bf16", 8192, 8192))
    assert shares(large, choose(large)).workgroups == 2048  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (choose(MxQuantizeProblem("f64", "e4m3", 1, 1)), "mx-quantize.dtype"),  # type: ignore[arg-type]
        (choose(MxQuantizeProblem("bf16", "e3m2", 1, 1)), "mx-quantize.dtype"),  # type: ignore[arg-type]
        (choose(MxQuantizeProblem("bf16", "e4m3", 1, 1, "up")), "mx-quantize.dtype"),  # type: ignore[arg-type]
        (choose(MxDequantizeProblem("e4m3", "bf16", 1, 1 << 28)), "mx-dequantize.size"),
        (range_shares(ScaleRangeProblem(0)), "scale-range.size"),
        (RowsConfig(3, 1).is_valid(MxQuantizeProblem("bf16", "e4m3", 1, 1)), "mx-quantize.config"),
        (
            RowsConfig(4, 1).check_stride(MxQuantizeProblem("bf16", "e4m3", 9, 1), 1 << 26, 2),
            "mx-quantize.stride",
        ),
    ],
)
def test_refusals(found: object, code: str) -> None:
    assert isinstance(found, Reason), found
    assert found.code == code
