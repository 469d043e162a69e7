"""Float vector instructions of 16, 32 and 64 bits.

Results are correctly rounded (nearest even) where the ISA says IEEE. The transcendental ones are
computed in float64 and rounded once, which is inside every documented bound; v_exp, v_log, v_rcp and
v_rsq of float32 take denormals as zeros and give none, as the hardware does.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from flycc.emulator.semantics.operands import F16, F32, F64, I16, I32, U32
from flycc.emulator.semantics.vector import Form, flush_denormals

_D = np.float64


def fma32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """float32 `a * b + c`, rounded once.

    The product is exact in float64. Rounding the float64 sum again is wrong only if that sum sits on
    a float32 rounding boundary without being exact: a tie of normals (low 29 bits 1 << 28), or
    anything among denormals, whose ties lie elsewhere. Those are rounded to odd first.
    """
    product = np.multiply(a, b, dtype=_D)
    total = np.add(product, c, dtype=_D)
    low = total.view(np.int64) & 0x1FFF_FFFF
    if (low == 0x1000_0000).any() or (np.abs(total) < 2.0**-126).any():
        total = round_to_odd(product, np.asarray(c, _D), total)
    return total.astype(np.float32)


def round_to_odd(x: np.ndarray, y: np.ndarray, total: np.ndarray) -> np.ndarray:
    """`total = x + y` with its last bit made odd where it is inexact, so that a second rounding is right."""
    part = total - x
    error = (x - (total - part)) + (y - part)
    bits = np.array(total).view(np.int64)
    adjust = (error != 0) & np.isfinite(error) & (bits & 1 == 0)
    away = np.signbit(error) == np.signbit(total)
    return np.where(adjust, bits + np.where(away, 1, -1), bits).view(_D)


def fma16(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """float16 `a * b + c`, rounded once."""
    product = np.multiply(a, b, dtype=_D)
    addend = np.asarray(c, _D)
    return round_to_odd(product, addend, product + addend).astype(np.float16)


def fma64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """float64 `a * b + c`, rounded once: the plain result where it is exact or special, else by fractions."""
    a, b, c = np.broadcast_arrays(a, b, c)
    # A finite product that overflows float64 must not meet an infinite addend of the other sign.
    out = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, a * b + c)
    flat = np.ascontiguousarray(out).reshape(-1)
    for i, (x, y, z) in enumerate(zip(a.flat, b.flat, c.flat, strict=True)):
        if np.isfinite(x) and np.isfinite(y) and np.isfinite(z) and x != 0 and y != 0:
            exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
            if exact:
                flat[i] = _nearest(exact)
            else:  # exact cancellation is +0
                flat[i] = 0.0
    return flat.reshape(out.shape)


def _nearest(value: Fraction) -> float:
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


FMA = {F16: fma16, F32: fma32, F64: fma64}


def maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """v_max in IEEE mode: a number beats a quiet NaN, a signalling NaN gives a quiet one, +0 beats -0."""
    return _select(a, b, np.maximum, np.bitwise_and)


def minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """v_min in IEEE mode, the mirror of `maximum`."""
    return _select(a, b, np.minimum, np.bitwise_or)


def _select(a: np.ndarray, b: np.ndarray, pick: np.ufunc, join_zeros: np.ufunc) -> np.ndarray:
    bits = np.dtype(f"u{a.dtype.itemsize}")
    out = pick(a, b)
    zero = out == 0
    if zero.any():
        joined = join_zeros(a.view(bits), b.view(bits)).view(a.dtype)
        out = np.where(zero & (a == b), joined, out)
    odd = np.isnan(out)
    if odd.any():
        other = np.where(np.isnan(a), np.where(np.isnan(b), quiet(a), b), a)
        signalling = np.where(is_signalling(a), quiet(a), quiet(b))
        out = np.where(odd, np.where(is_signalling(a) | is_signalling(b), signalling, other), out)
    return out


def _quiet_bit(dtype: np.dtype) -> np.ndarray:
    return np.array(1 << np.finfo(dtype).nmant - 1, f"u{dtype.itemsize}")


def quiet(value: np.ndarray) -> np.ndarray:
    """Set the quiet bit of NaNs."""
    bits = np.asarray(value).view(f"u{value.dtype.itemsize}")
    return np.where(np.isnan(value), bits | _quiet_bit(value.dtype), bits).view(value.dtype)


def is_signalling(value: np.ndarray) -> np.ndarray:
    bits = np.asarray(value).view(f"u{value.dtype.itemsize}")
    return np.isnan(value) & (bits & _quiet_bit(value.dtype) == 0)


def median(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """v_med3: the middle value; with a NaN among them, the minimum of all three."""
    middle = maximum(minimum(a, b), minimum(maximum(a, b), c))
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(nan, minimum(minimum(a, b), c), middle)


def fract(value: np.ndarray) -> np.ndarray:
    """`x - floor(x)`, kept below 1; NaN for infinities."""
    below_one = np.nextafter(value.dtype.type(1), value.dtype.type(0))
    out = value - np.floor(value)
    return np.where(out >= 1, below_one, out)


def frexp_exponent(value: np.ndarray) -> np.ndarray:
    """The exponent e of `value = m * 2**e`, 0.5 <= |m| < 1; 0 for zeros, infinities and NaNs."""
    return np.where(np.isfinite(value), np.frexp(value)[1], 0).astype(np.int32)


def frexp_mantissa(value: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(value), np.frexp(value)[0], quiet(value))


def ldexp(value: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """`value * 2**exponent`, rounded once. Going through float64 in two steps keeps every bit until then."""
    exponent = np.clip(exponent.astype(np.int64), -2200, 2200)
    if value.dtype == F64:
        return np.ldexp(value, exponent.astype(np.int32))
    clipped = np.clip(exponent, -600, 600).astype(np.int32)
    return np.ldexp(value.astype(_D), clipped).astype(value.dtype)


def in_double(function: Callable[..., Any], flush: bool = False) -> Callable[..., np.ndarray]:
    """`function` evaluated in float64 and rounded once; `flush` drops denormals of sources and result."""

    def evaluate(*values: np.ndarray) -> np.ndarray:
        dtype = values[0].dtype
        if flush:
            values = tuple(flush_denormals(v) for v in values)
        out = function(*(v.astype(_D) for v in values)).astype(dtype)
        return flush_denormals(out) if flush else out

    return evaluate


def in_single(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """A float16 sum, product or rounding through float32, which rounds it right (24 >= 2 * 11 + 2 bits)."""
    return lambda *values: function(*(v.astype(np.float32) for v in values)).astype(np.float16)


def _turns(function: np.ufunc) -> Callable[[np.ndarray], np.ndarray]:
    """v_sin and v_cos take turns: sin(2 pi x)."""
    return lambda x: function(2 * np.pi * (x - np.floor(x)))


_UNARY: dict[str, Callable[..., Any]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rndne": np.rint,
}
_TRANSCENDENTAL: dict[str, Callable[..., Any]] = {
    "exp": np.exp2,
    "log": np.log2,
    "rcp": np.reciprocal,
    "rsq": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "sin": _turns(np.sin),
    "cos": _turns(np.cos),
}
_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "subrev": lambda a, b: b - a,
    "mul": np.multiply,
}

FORMS: dict[str, Form] = {}
for _name, _type in (("f16", F16), ("f32", F32), ("f64", F64)):
    _half = _type == F16
    for _op, _function in _BINARY.items():
        FORMS[f"v_{_op}_{_name}"] = Form(in_single(_function) if _half else _function, _type, (_type, _type))
    for _op, _function in _UNARY.items():
        FORMS[f"v_{_op}_{_name}"] = Form(in_single(_function) if _half else _function, _type, (_type,))
    for _op, _function in _TRANSCENDENTAL.items():
        _flush = _type == F32 and _op in ("exp", "log", "rcp", "rsq")
        FORMS[f"v_{_op}_{_name}"] = Form(in_double(_function, _flush), _type, (_type,))
    _three = (_type, _type, _type)
    FORMS[f"v_fract_{_name}"] = Form(fract, _type, (_type,))
    FORMS[f"v_frexp_mant_{_name}"] = Form(frexp_mantissa, _type, (_type,))
    FORMS[f"v_min_{_name}"] = Form(minimum, _type, (_type, _type))
    FORMS[f"v_max_{_name}"] = Form(maximum, _type, (_type, _type))
    FORMS[f"v_min3_{_name}"] = Form(lambda a, b, c: minimum(minimum(a, b), c), _type, _three, keeps=_half)
    FORMS[f"v_max3_{_name}"] = Form(lambda a, b, c: maximum(maximum(a, b), c), _type, _three, keeps=_half)
    FORMS[f"v_med3_{_name}"] = Form(median, _type, _three, keeps=_half)
    FORMS[f"v_fma_{_name}"] = Form(FMA[_type], _type, _three, keeps=_half)
    FORMS[f"v_fmac_{_name}"] = Form(FMA[_type], _type, _three, ties=True)
    FORMS[f"v_ldexp_{_name}"] = Form(ldexp, _type, (_type, I16 if _half else I32))

# The names of a few differ from the pattern.
FORMS["v_frexp_exp_i32_f32"] = Form(frexp_exponent, I32, (F32,))
FORMS["v_frexp_exp_i32_f64"] = Form(frexp_exponent, I32, (F64,))
FORMS["v_frexp_exp_i16_f16"] = Form(lambda x: frexp_exponent(x).astype(np.int16), I16, (F16,))
FORMS["v_rcp_iflag_f32"] = FORMS["v_rcp_f32"]
FORMS["v_fmaak_f32"] = Form(fma32, F32, (F32, F32, F32))
FORMS["v_fmamk_f32"] = Form(lambda a, k, c: fma32(a, k, c), F32, (F32, F32, F32))
FORMS["v_mul_legacy_f32"] = Form(
    lambda a, b: np.where((a == 0) | (b == 0), np.float32(0), a * b), F32, (F32, F32)
)
FORMS["v_minimum3_f32"] = Form(lambda a, b, c: np.minimum(np.minimum(a, b), c), F32, (F32, F32, F32))
FORMS["v_maximum3_f32"] = Form(lambda a, b, c: np.maximum(np.maximum(a, b), c), F32, (F32, F32, F32))
del FORMS["v_sub_f64"], FORMS["v_subrev_f64"], FORMS["v_exp_f64"], FORMS["v_log_f64"]
del FORMS["v_sin_f64"], FORMS["v_cos_f64"], FORMS["v_min3_f64"], FORMS["v_max3_f64"], FORMS["v_med3_f64"]


FORMS["v_exp_legacy_f32"], FORMS["v_log_legacy_f32"] = FORMS["v_exp_f32"], FORMS["v_log_f32"]
FORMS["v_fma_legacy_f16"] = Form(fma16, F16, (F16, F16, F16))


def mad16(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """v_mad_f16, v_mac_f16: the product and then the sum is rounded."""
    return in_single(np.add)(in_single(np.multiply)(a, b), c)


FORMS["v_mad_f16"] = Form(mad16, F16, (F16, F16, F16), keeps=True)
FORMS["v_mac_f16"] = Form(mad16, F16, (F16, F16, F16), ties=True)
for _name in ("v_mad_legacy_f16", "v_madak_f16", "v_madmk_f16"):
    FORMS[_name] = Form(mad16, F16, (F16, F16, F16))


def _cube(kind: str) -> Callable[..., np.ndarray]:
    """v_cube*: the face of a cube map that (x, y, z) points to, coordinates on it, or twice its axis."""

    def evaluate(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        ax, ay, az = abs(x), abs(y), abs(z)
        is_z, is_y = (az >= ax) & (az >= ay), ay >= ax
        by_face: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {
            "id": (np.where(z < 0, 5, 4), np.where(y < 0, 3, 2), np.where(x < 0, 1, 0)),
            "sc": (np.where(z < 0, -x, x), x, np.where(x < 0, z, -z)),
            "tc": (-y, np.where(y < 0, -z, z), -y),
            "ma": (2 * z, 2 * y, 2 * x),
        }
        on_z, on_y, on_x = by_face[kind]
        return np.where(is_z, on_z, np.where(is_y, on_y, on_x)).astype(np.float32)

    return evaluate


for _name in ("id", "sc", "tc", "ma"):
    FORMS[f"v_cube{_name}_f32"] = Form(_cube(_name), F32, (F32, F32, F32))

#: Bits of 2 / pi that v_trig_preop_f64 knows.
_TWO_OVER_PI_BITS = 1201


@cache
def _two_over_pi() -> int:
    """floor(2 / pi * 2**1201), by Machin's formula on integers with bits to spare."""
    one = 1 << _TWO_OVER_PI_BITS + 64

    def arctan_of_inverse(n: int) -> int:
        total = term = one // n
        for k in range(3, 1200, 2):
            term = -term // (n * n)
            total += term // k
        return total

    pi = 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))
    return (2 * one << _TWO_OVER_PI_BITS) // pi


def trig_preop(value: np.ndarray, segment: np.ndarray) -> np.ndarray:
    """v_trig_preop_f64: 53 bits of 2 / pi, segment by segment, from where they matter to the value's exponent."""
    value, segment = np.broadcast_arrays(value, segment)
    exponent = (value.view(np.uint64) >> np.uint64(52) & np.uint64(0x7FF)).astype(np.int64)
    shift = 53 * (segment & np.uint32(31)).astype(np.int64) + np.maximum(exponent - 1077, 0)
    out = np.empty(value.shape)
    for at in np.unique(shift):
        bits = _two_over_pi() << int(at) >> _TWO_OVER_PI_BITS - 53 & (1 << 53) - 1
        out[shift == at] = float(bits)
    return np.ldexp(out, (-53 - shift + np.where(exponent >= 1968, 128, 0)).astype(np.int32))


FORMS["v_trig_preop_f64"] = Form(trig_preop, F64, (F64, U32))


def div_fixup(quotient: np.ndarray, denominator: np.ndarray, numerator: np.ndarray) -> np.ndarray:
    """v_div_fixup: the special cases of `numerator / denominator` put right, and its sign."""
    kind = quotient.dtype.type
    negative = np.signbit(denominator) ^ np.signbit(numerator)
    sign = np.where(negative, kind(-1), kind(1))
    # The refinement of a quotient that overflows ends in a NaN.
    out = np.copysign(np.where(np.isnan(quotient), kind(np.inf), quotient), sign)
    least = np.finfo(kind).minexp - np.finfo(kind).nmant - 1
    out = np.where(np.frexp(numerator)[1] - np.frexp(denominator)[1] < least, np.copysign(kind(0), sign), out)
    out = np.where((denominator == 0) | np.isinf(numerator), np.copysign(kind(np.inf), sign), out)
    out = np.where((numerator == 0) | np.isinf(denominator), np.copysign(kind(0), sign), out)
    indefinite = ((denominator == 0) & (numerator == 0)) | (np.isinf(denominator) & np.isinf(numerator))
    out = np.where(indefinite, -kind(np.nan), out)  # the one NaN that the ISA document spells out: negative
    out = np.where(np.isnan(denominator), quiet(denominator), out)
    return np.where(np.isnan(numerator), quiet(numerator), out)


for _name, _type in (("f16", F16), ("f32", F32), ("f64", F64)):
    FORMS[f"v_div_fixup_{_name}"] = Form(div_fixup, _type, (_type, _type, _type), keeps=_type == F16)
FORMS["v_div_fixup_legacy_f16"] = Form(div_fixup, F16, (F16, F16, F16))


def div_scale(
    which: np.ndarray, denominator: np.ndarray, numerator: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """v_div_scale: the operand `which`, scaled so that the division cannot over- or underflow, and the flag.

    The flag says that v_div_fmas must undo a scaling of the numerator. Follows the ISA document's
    table of exponent cases; `which` is bit for bit the denominator or the numerator.
    """
    dtype = which.dtype
    single = dtype == F32
    far, near, bias = (96, 23, 127) if single else (768, 53, 1023)
    step = dtype.type(2.0 ** (64 if single else 128))
    exponent = lambda x: np.frexp(x)[1] - 1 + bias  # noqa: E731
    spread = exponent(numerator) - exponent(denominator)
    tiny = np.finfo(dtype).smallest_normal
    small_denominator = (np.abs(denominator) < tiny) & (denominator != 0)
    small_reciprocal = np.abs(1 / denominator.astype(_D)) < float(tiny)
    ratio = numerator.astype(_D) / denominator.astype(_D)
    small_ratio = (np.abs(ratio) < float(tiny)) & (numerator != 0)
    same = which.view(f"u{dtype.itemsize}") == denominator.view(f"u{dtype.itemsize}")
    flag = np.zeros(np.broadcast_shapes(which.shape, denominator.shape, numerator.shape), bool)
    cases: list[tuple[np.ndarray, np.ndarray, np.ndarray | bool]] = [
        ((denominator == 0) | (numerator == 0), np.full_like(flag, np.nan, dtype), False),
        (spread >= far, np.where(same, which * step, which), True),
        (small_denominator, which * step, False),
        (small_reciprocal & small_ratio, np.where(same, which / step, which), True),
        (small_reciprocal, which / step, False),
        (small_ratio, np.where(same, which, which * step), True),
        (exponent(numerator) <= near, which * step, False),
    ]
    out = np.broadcast_to(which, flag.shape)
    for condition, value, sets in reversed(cases):
        out = np.where(condition, value, out)
        flag = np.where(condition, sets, flag)
    return out, flag


def div_fmas(a: np.ndarray, b: np.ndarray, c: np.ndarray, scaled: np.ndarray) -> np.ndarray:
    """v_div_fmas: fused multiply-add; where vcc says so, what div_scale did is undone by a power of two.

    The quotient of a scaled denominator was made smaller or larger by that power; the addend, which is
    the approximate quotient, tells which.
    """
    dtype = a.dtype
    step = 2.0 ** (64 if dtype == F32 else 128)
    factor = np.where(scaled, np.where(np.abs(c) >= 2, step, 1 / step), 1.0)
    if dtype == F64:
        return fma64(a, b, c) * factor
    product, addend = np.multiply(a, b, dtype=_D), np.asarray(c, _D)
    return (round_to_odd(product, addend, product + addend) * factor).astype(dtype)


def classify(value: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """v_cmp_class: whether the value is in one of the ten classes that `classes` has a bit for."""
    negative, nan = np.signbit(value), np.isnan(value)
    size = np.abs(value)
    kinds = [
        nan & is_signalling(value),
        nan & ~is_signalling(value),
        np.isinf(value) & negative,
        np.isfinite(value) & (size >= np.finfo(value.dtype).smallest_normal) & negative,
        (size > 0) & (size < np.finfo(value.dtype).smallest_normal) & negative,
        (value == 0) & negative,
        (value == 0) & ~negative,
        (size > 0) & (size < np.finfo(value.dtype).smallest_normal) & ~negative,
        np.isfinite(value) & (size >= np.finfo(value.dtype).smallest_normal) & ~negative,
        np.isinf(value) & ~negative,
    ]
    out = np.zeros(value.shape, bool)
    for bit, kind in enumerate(kinds):
        out = out | (kind & (classes >> bit & 1).astype(bool))
    return out
