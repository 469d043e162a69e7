"""Exact arithmetic for scalar references: rounding of fractions to a float format, nearest even."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

#: Explicit mantissa bits and the exponent of the smallest normal number.
FORMATS = {
    "bf16": (7, -126, 128),
    "f16": (10, -14, 16),
    "f32": (23, -126, 128),
    "f64": (52, -1022, 1024),
}


def rounded(value: Fraction, form: str) -> Fraction | float:
    """`value` rounded to the format; infinity (a float) on overflow."""
    mantissa, least, most = FORMATS[form]
    if not value:
        return Fraction(0)
    exponent = max(floor_log2(abs(value)), least)
    unit = Fraction(2) ** (exponent - mantissa)
    result = round(value / unit) * unit  # Python rounds halves to even
    if abs(result) >= Fraction(2) ** most:
        return math.inf if result > 0 else -math.inf
    return result


def floor_log2(value: Fraction) -> int:
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if Fraction(2) ** guess <= value else guess - 1


def finite(*values: float) -> bool:
    return all(math.isfinite(v) for v in values)


def fma(a: float, b: float, c: float, form: str) -> float:
    """a * b + c rounded once, on Python floats that hold the format's values exactly."""
    if not finite(a, b, c):
        product = math.nan if (a == 0 and math.isinf(b)) or (b == 0 and math.isinf(a)) else None
        if product is None:
            if math.isinf(a) or math.isinf(b):
                product = math.copysign(math.inf, math.copysign(1, a) * math.copysign(1, b))
            else:
                product = 0.0
            if any(map(math.isnan, (a, b, c))):
                product = math.nan
        return product + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if not exact:
        sign = math.copysign(1, a) * math.copysign(1, b)
        is_negative = (a == 0 or b == 0) and c == 0 and sign < 0 and math.copysign(1, c) < 0
        return -0.0 if is_negative else 0.0
    result = rounded(exact, form)
    return math.copysign(float(result), 1 if exact > 0 else -1)


def same(actual: np.ndarray, expected: np.ndarray, message: str = "") -> None:
    """Equal bit for bit, but any NaN for a NaN."""
    assert actual.dtype == expected.dtype
    unsigned = f"u{actual.dtype.itemsize}"
    equal = (actual.view(unsigned) == expected.view(unsigned)) | (np.isnan(actual) & np.isnan(expected))
    if not equal.all():
        at = tuple(np.argwhere(~equal)[0])
        raise AssertionError(f"{message} at {at}: got {actual[at]!r}, expected {expected[at]!r}")
