"""MX quantisation in float64, by search: the scale by its definition, the element as the nearest of all there are."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

TYPES: dict[str, Any] = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
#: Explicit bits of the significand, the exponent of the largest number.
FORMATS = {"e4m3": (3, 8), "e5m2": (2, 15), "e2m1": (1, 2)}


def magnitudes(format: str) -> np.ndarray:
    """All finite magnitudes, by their codes."""
    codes = np.arange(8 if format == "e2m1" else 128, dtype=np.uint8)
    values = codes.view(TYPES[format]).astype(np.float64)
    return values[np.isfinite(values)]


def scale_byte(block: np.ndarray, format: str, rounding: str) -> int:
    """E8M0 byte of a block of float64 numbers."""
    if not np.isfinite(block).all():
        return 255
    amax = float(abs(block).max(initial=0.0))
    if amax == 0:
        return 127
    bits, emax = FORMATS[format]
    exponent = math.frexp(amax)[1] - 1
    if rounding == "even":
        rounded = float(np.rint(math.ldexp(amax, bits - exponent)))  # ties to even
        exponent += rounded >= 2 ** (bits + 1)
    exponent -= emax
    if rounding == "ceil" and amax > math.ldexp(magnitudes(format)[-1], exponent):
        exponent += 1
    return max(exponent + 127, 0)


def encode(values: np.ndarray, format: str) -> np.ndarray:
    """uint8 codes of float64 numbers: the nearest magnitude, of two as near the one with an even code."""
    table = magnitudes(format)
    magnitude = np.minimum(abs(values), table[-1])
    above = np.minimum(np.searchsorted(table, magnitude), len(table) - 1)
    below = np.maximum(above - 1, 0)
    to_above, to_below = table[above] - magnitude, magnitude - table[below]
    up = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
    sign = np.signbit(values) * (8 if format == "e2m1" else 128)
    return (np.where(up, above, below) + sign).astype(np.uint8)


def quantize(x: np.ndarray, format: str, rounding: str) -> tuple[np.ndarray, np.ndarray]:
    """uint8 data [rows, K] or, of e2m1, [rows, ceil(K / 2)], and scales [rows, ceil(K / 32)], of x [rows, K]."""
    rows, columns = x.shape
    blocks = -(-columns // 32)
    wide = np.zeros((rows, blocks * 32))
    with np.errstate(invalid="ignore"):  # of NaN that signal
        wide[:, :columns] = x.astype(np.float64)
    wide = wide.reshape(rows, blocks, 32)
    scales = [scale_byte(block, format, rounding) for block in wide.reshape(-1, 32)]
    bytes_ = np.array(scales, np.uint8).reshape(rows, blocks)
    exponents = bytes_.astype(np.int32) - 127
    with np.errstate(invalid="ignore", over="ignore"):
        codes = encode(np.ldexp(wide, -exponents[..., None]), format)
    codes[bytes_ == 255] = 0
    data = codes.reshape(rows, -1)[:, : columns + columns % 2]
    return (data[:, ::2] | data[:, 1::2] << 4 if format == "e2m1" else data[:, :columns]), bytes_


def dequantize(data: np.ndarray, scales: np.ndarray, format: str) -> np.ndarray:
    """float64 [rows, K] of uint8 data and scales."""
    if format == "e2m1":
        data = np.stack((data & 15, data >> 4), -1).reshape(len(data), -1)
    values = data.view(TYPES[format]).astype(np.float64)
    factors = np.where(scales == 255, np.nan, np.ldexp(1.0, scales.astype(np.int32) - 127))
    return values * np.repeat(factors, 32, 1)[:, : values.shape[1]]


def scale_range(scales: np.ndarray) -> list[int]:
    """[lowest, highest, any NaN]."""
    numbers = scales[scales != 255]
    ends = [int(numbers.min()), int(numbers.max())] if numbers.size else [127, 127]
    return [*ends, int((scales == 255).any())]
