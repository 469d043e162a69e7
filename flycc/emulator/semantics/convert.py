"""Conversions between number formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flycc.emulator.semantics.operands import F16, F32, F64, I16, I32, U16, U32
from flycc.emulator.semantics.vector import Form

_U = np.uint32


def bf16_to_f32(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bits (uint16) to float32, exactly."""
    return (bits.astype(_U) << _U(16)).view(np.float32)


def f32_to_bf16(value: np.ndarray) -> np.ndarray:
    """float32 to bfloat16 bits (uint16), nearest even; NaNs stay NaNs and become quiet."""
    bits = np.ascontiguousarray(value).view(_U)
    rounded = (bits + _U(0x7FFF) + (bits >> _U(16) & _U(1))) >> _U(16)
    quiet = bits >> _U(16) | _U(0x40)
    return np.where(np.isnan(value), quiet, rounded).astype(np.uint16)


def f32_to_f16_toward_zero(value: np.ndarray) -> np.ndarray:
    """float32 to float16, rounded toward zero: overflow gives the largest number, not infinity."""
    nearest = value.astype(np.float16)
    bits = nearest.view(np.uint16)
    too_large = np.abs(nearest.astype(np.float32)) > np.abs(value)
    return np.where(too_large, bits - np.uint16(1), bits).view(np.float16)


def pack16(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Two 16-bit arrays into one of uint32."""
    low, high = np.broadcast_arrays(low, high)
    pair = np.stack([low, high], axis=-1)
    return pair.view(_U)[..., 0]


def to_integer(
    dtype: np.dtype, rounding: Callable[[np.ndarray], np.ndarray] = np.trunc
) -> Callable[..., Any]:
    """Float to integer, rounded by `rounding` and saturated; a NaN gives 0."""
    limits = np.iinfo(dtype)

    def convert(value: np.ndarray) -> np.ndarray:
        whole = rounding(value.astype(np.float64))
        return np.where(np.isnan(whole), 0, np.clip(whole, limits.min, limits.max)).astype(dtype)

    return convert


def _cast(dtype: np.dtype) -> Callable[..., Any]:
    return lambda value: value.astype(dtype)


def _byte(index: int) -> Callable[..., Any]:
    return lambda value: (value >> _U(8 * index) & _U(0xFF)).astype(np.float32)


def _packed(convert: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: pack16(convert(a), convert(b))


def _normalised(dtype: np.dtype) -> Callable[..., Any]:
    """[-1, 1] or [0, 1] to the integer's range, nearest even."""
    largest = float(np.iinfo(dtype).max)
    convert = to_integer(dtype, np.rint)
    lowest = -1.0 if dtype.kind == "i" else 0.0
    return lambda value: convert(np.clip(value.astype(np.float64), lowest, 1.0) * largest)


def _saturated(dtype: np.dtype) -> Callable[..., Any]:
    limits = np.iinfo(dtype)
    return lambda value: np.clip(value, limits.min, limits.max).astype(dtype)


def _put_byte(value: np.ndarray, index: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """v_cvt_pk_u8_f32: one byte of `rest` replaced, by the value rounded to nearest even."""
    shift = (index & _U(3)) * _U(8)
    return rest & ~(_U(0xFF) << shift) | to_integer(np.dtype(np.uint8), np.rint)(value).astype(_U) << shift


def _offset(code: np.ndarray) -> np.ndarray:
    """v_cvt_off_f32_i4: a signed 4-bit number, in sixteenths."""
    return ((code & _U(15) ^ _U(8)).astype(np.int32) - 8).astype(np.float32) / np.float32(16)


_to_half = _cast(F16)

FORMS: dict[str, Form] = {
    "v_cvt_f32_i32": Form(_cast(F32), F32, (I32,)),
    "v_cvt_f32_u32": Form(_cast(F32), F32, (U32,)),
    "v_cvt_f64_i32": Form(_cast(F64), F64, (I32,)),
    "v_cvt_f64_u32": Form(_cast(F64), F64, (U32,)),
    "v_cvt_f64_f32": Form(_cast(F64), F64, (F32,)),
    "v_cvt_f32_f64": Form(_cast(F32), F32, (F64,)),
    "v_cvt_f32_f16": Form(_cast(F32), F32, (F16,)),
    "v_cvt_f16_f32": Form(_to_half, F16, (F32,)),
    "v_cvt_f16_u16": Form(_to_half, F16, (U16,)),
    "v_cvt_f16_i16": Form(_to_half, F16, (I16,)),
    "v_cvt_u16_f16": Form(to_integer(U16), U16, (F16,)),
    "v_cvt_i16_f16": Form(to_integer(I16), I16, (F16,)),
    "v_cvt_u32_f32": Form(to_integer(U32), U32, (F32,)),
    "v_cvt_i32_f32": Form(to_integer(I32), I32, (F32,)),
    "v_cvt_u32_f64": Form(to_integer(U32), U32, (F64,)),
    "v_cvt_i32_f64": Form(to_integer(I32), I32, (F64,)),
    "v_cvt_rpi_i32_f32": Form(to_integer(I32, lambda x: np.floor(x + 0.5)), I32, (F32,)),
    "v_cvt_flr_i32_f32": Form(to_integer(I32, np.floor), I32, (F32,)),
    "v_cvt_f32_bf16": Form(bf16_to_f32, F32, (U16,)),
    "v_cvt_pk_bf16_f32": Form(_packed(f32_to_bf16), U32, (F32, F32)),
    "v_cvt_pk_f16_f32": Form(_packed(_to_half), U32, (F32, F32)),
    "v_cvt_pkrtz_f16_f32": Form(_packed(f32_to_f16_toward_zero), U32, (F32, F32)),
    "v_cvt_pk_u16_u32": Form(_packed(_saturated(U16)), U32, (U32, U32)),
    "v_cvt_pk_i16_i32": Form(_packed(_saturated(I16)), U32, (I32, I32)),
    "v_cvt_pknorm_i16_f32": Form(_packed(_normalised(I16)), U32, (F32, F32)),
    "v_cvt_pknorm_u16_f32": Form(_packed(_normalised(U16)), U32, (F32, F32)),
    "v_cvt_pknorm_i16_f16": Form(_packed(_normalised(I16)), U32, (F16, F16)),
    "v_cvt_pknorm_u16_f16": Form(_packed(_normalised(U16)), U32, (F16, F16)),
    "v_cvt_norm_i16_f16": Form(_normalised(I16), I16, (F16,)),
    "v_cvt_norm_u16_f16": Form(_normalised(U16), U16, (F16,)),
    "v_cvt_off_f32_i4": Form(_offset, F32, (U32,)),
    "v_cvt_pkaccum_u8_f32": Form(_put_byte, U32, (F32, U32, U32), ties=True),
    "v_cvt_pk_u8_f32": Form(_put_byte, U32, (F32, U32, U32)),
    "v_pack_b32_f16": Form(pack16, U32, (U16, U16)),
}
for _index in range(4):
    FORMS[f"v_cvt_f32_ubyte{_index}"] = Form(_byte(_index), F32, (U32,))
