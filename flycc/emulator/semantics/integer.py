"""Integer and bitwise vector instructions: tables of forms, with the functions numpy has no name for."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from flycc.emulator.semantics.operands import I16, I32, I64, U16, U32, U64
from flycc.emulator.semantics.vector import Form

_U, _W = np.uint32, np.uint64
_31, _63 = _U(31), _W(63)
_NOTHING = np.array(0, np.uint32)


def shift_left(amount: np.ndarray, value: np.ndarray) -> np.ndarray:
    """v_lshlrev: `value << amount`, the amount modulo the width."""
    return np.left_shift(value, amount & np.uint32(8 * value.dtype.itemsize - 1), dtype=value.dtype)


def shift_right(amount: np.ndarray, value: np.ndarray) -> np.ndarray:
    """v_lshrrev and, for signed types, v_ashrrev."""
    amount = (amount & np.uint32(8 * value.dtype.itemsize - 1)).astype(value.dtype)
    return np.right_shift(value, amount)


def low24(value: np.ndarray) -> np.ndarray:
    """The low 24 bits, zero- or sign-extended by the type's own sign."""
    return (value << value.dtype.type(8)) >> value.dtype.type(8)


def mul24(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Low 32 bits of the product of two 24-bit numbers."""
    return low24(a) * low24(b)


def mul_high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """High 32 bits of the 64-bit product."""
    wide = np.int64 if a.dtype.kind == "i" else np.uint64
    return (np.multiply(a, b, dtype=wide) >> wide(32)).astype(a.dtype)


def mul24_high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Bits 32 and up of the 48-bit product of two 24-bit numbers."""
    return mul_high(low24(a), low24(b))


def bit_field_extract(value: np.ndarray, offset: np.ndarray, width: np.ndarray) -> np.ndarray:
    """v_bfe: `width` bits from bit `offset`, sign-extended for signed values; width 0 gives 0."""
    kind = value.dtype.type
    offset, width = (offset & 31).astype(np.int64), (width & 31).astype(np.int64)
    field = value.view(_U) >> offset.astype(_U)
    mask = ((1 << width) - 1).astype(_U)
    field = field & mask
    if kind is np.int32:
        # Bits past the top of the value read as the sign only if the field reaches that far.
        shifted = (value >> offset.astype(np.int32)).astype(np.int64)
        out = np.where(width == 0, 0, (shifted << (64 - width) % 64) >> (64 - width) % 64)
        return out.astype(np.int32)
    return field


def bit_field_mask(width: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """v_bfm: `width` ones from bit `offset`."""
    return ((_U(1) << (width & _31)) - _U(1)) << (offset & _31)


def byte_permute(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """v_perm_b32: each selector byte picks a byte of {a, b} (b is bytes 0..3), a sign or a constant."""
    shape = np.broadcast_shapes(a.shape, b.shape, selector.shape)
    first = int(selector.flat[0])
    picks = [first >> 8 * i & 0xFF for i in range(4)]
    if max(picks) < 8 and (selector == first).all():
        return _bytes_of(a, b, picks, shape)
    out = np.zeros(shape, _U)
    data = np.broadcast_to(b, out.shape).astype(_W) | np.broadcast_to(a, out.shape).astype(_W) << _W(32)
    for i in range(4):
        pick = selector >> _U(8 * i) & _U(0xFF)
        byte = (data >> (pick & _U(7)).astype(_W) * _W(8) & _W(0xFF)).astype(_U)
        if (pick > 7).any():
            sign_bit = ((pick & _U(3)) * _U(16) + _U(15)).astype(
                _W
            )  # selectors 8..11: signs of bytes 1, 3, 5, 7
            sign = (data >> sign_bit & _W(1)).astype(_U) * _U(0xFF)
            byte = np.where(pick < 8, byte, np.where(pick < 12, sign, np.where(pick == 12, _U(0), _U(0xFF))))
        out |= byte << _U(8 * i)
    return out


def _bytes_of(a: np.ndarray, b: np.ndarray, picks: list[int], shape: tuple[int, ...]) -> np.ndarray:
    """The bytes `picks` of {a, b}, the same for all elements."""
    halves = [np.ascontiguousarray(x)[..., None].view(np.uint8) for x in (b, a)]
    out = np.empty((*shape, 4), np.uint8)
    for i, pick in enumerate(picks):
        out[..., i] = halves[pick >> 2][..., pick & 3]
    return out.view(_U)[..., 0]


def align(scale: int) -> Callable[..., np.ndarray]:
    """v_alignbit (1) and v_alignbyte (8): `{a, b} >> amount`, low 32 bits."""

    def shifted(a: np.ndarray, b: np.ndarray, amount: np.ndarray) -> np.ndarray:
        data = a.astype(_W) << _W(32) | b.astype(_W)
        return (data >> ((amount & _U(31 // scale)) * _U(scale)).astype(_W)).astype(_U)

    return shifted


def reverse_bits(value: np.ndarray) -> np.ndarray:
    """The 32 or 64 bits in reverse order."""
    value = np.ascontiguousarray(value)
    shape, dtype = value.shape, value.dtype
    as_bytes = value[..., None].view(np.uint8)
    bits = np.unpackbits(as_bytes, axis=-1, bitorder="little")[..., ::-1]
    return np.packbits(bits, axis=-1, bitorder="little").view(dtype).reshape(shape)


def find_high(value: np.ndarray) -> np.ndarray:
    """Leading zeros of an unsigned value, -1 (as unsigned 32) for 0."""
    bits = np.frexp(value.astype(np.float64))[1] if value.dtype.itemsize == 4 else _bit_length64(value)
    return np.where(value == 0, -1, 8 * value.dtype.itemsize - bits).astype(np.int32).view(_U)


def _bit_length64(value: np.ndarray) -> np.ndarray:
    high, low = (value >> _W(32)).astype(np.float64), (value & _W(0xFFFFFFFF)).astype(np.float64)
    return np.where(high > 0, np.frexp(high)[1] + 32, np.frexp(low)[1])


def find_high_signed(value: np.ndarray) -> np.ndarray:
    """Leading bits equal to the sign bit, -1 for 0 and -1."""
    unsigned = value.view(U32 if value.dtype.itemsize == 4 else U64)
    return find_high(np.where(value < 0, ~unsigned, unsigned))


def find_low(value: np.ndarray) -> np.ndarray:
    """Trailing zeros, -1 for 0."""
    lowest = value & (~value + value.dtype.type(1))
    bits = np.frexp(lowest.astype(np.float64))[1] - 1
    return np.where(value == 0, -1, bits).astype(np.int32).view(_U)


def count_bits(value: np.ndarray, add: np.ndarray) -> np.ndarray:
    """v_bcnt_u32_b32: ones in `value`, plus `add`."""
    return np.bitwise_count(value).astype(_U) + add


def median(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def sum_abs_diff8(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """v_sad_u8: the sum of absolute differences of four bytes, plus c."""
    total = c
    for i in range(0, 32, 8):
        x, y = a >> _U(i) & _U(0xFF), b >> _U(i) & _U(0xFF)
        total = total + (np.maximum(x, y) - np.minimum(x, y))
    return total


def bytes_of(value: np.ndarray) -> list[np.ndarray]:
    """The four bytes of dwords, lowest first."""
    return [value >> _U(8 * i) & _U(0xFF) for i in range(4)]


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.maximum(a, b) - np.minimum(a, b)


def masked_sad(a: np.ndarray, reference: np.ndarray, c: np.ndarray) -> np.ndarray:
    """v_msad_u8: as v_sad_u8, without the bytes whose reference is zero."""
    parts = zip(bytes_of(a), bytes_of(reference), strict=True)
    return c + sum(np.where(y == 0, _U(0), distance(x, y)) for x, y in parts)


def sad16(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """v_sad_u16: the sum of absolute differences of two halves, plus c."""
    low, high = _U(0xFFFF), _U(16)
    return c + distance(a & low, b & low) + distance(a >> high, b >> high)


def quad_sad(
    sad: Callable[..., np.ndarray],
) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """v_qsad, v_mqsad: `sad` of four windows of 8 bytes (uint64), each one byte on, into 16 bits each."""

    def evaluate(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        total = np.array(0, _W)
        for i in range(4):
            window, addend = (a >> _W(8 * i)).astype(_U), (c >> _W(16 * i) & _W(0xFFFF)).astype(_U)
            total = total | (sad(window, b, addend) & _U(0xFFFF)).astype(_W) << _W(16 * i)
        return total

    return evaluate


def average_bytes(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """v_lerp_u8: the mean of bytes, rounded up where bit 0 of c's byte is set."""
    parts = zip(bytes_of(a), bytes_of(b), bytes_of(c), strict=True)
    return sum(((x + y + (z & _U(1))) >> _U(1)) << _U(8 * i) for i, (x, y, z) in enumerate(parts))


def shift_and_pack(low: int, high: int) -> Callable[..., np.ndarray]:
    """v_ashr_pk: two shifted numbers saturated to [low, high], as bytes of 16 bits."""

    def evaluate(a: np.ndarray, b: np.ndarray, amount: np.ndarray) -> np.ndarray:
        first, second = (np.clip(x >> (amount & _31).astype(np.int32), low, high) & 0xFF for x in (a, b))
        return (first | second << 8).astype(np.uint16)

    return evaluate


_2U, _3U = (U32, U32), (U32, U32, U32)

FORMS: dict[str, Form] = {
    "v_mov_b32": Form(np.positive, U32, (U32,)),
    "v_mov_b64": Form(np.positive, U64, (U64,)),
    "v_accvgpr_read_b32": Form(np.positive, U32, (U32,)),
    "v_accvgpr_write_b32": Form(np.positive, U32, (U32,)),
    "v_accvgpr_mov_b32": Form(np.positive, U32, (U32,)),
    "v_not_b32": Form(np.invert, U32, (U32,)),
    "v_bfrev_b32": Form(reverse_bits, U32, (U32,)),
    "v_ffbh_u32": Form(find_high, U32, (U32,)),
    "v_ffbh_i32": Form(find_high_signed, U32, (I32,)),
    "v_ffbl_b32": Form(find_low, U32, (U32,)),
    "v_add_u32": Form(np.add, U32, _2U),
    "v_sub_u32": Form(np.subtract, U32, _2U),
    "v_subrev_u32": Form(lambda a, b: b - a, U32, _2U),
    "v_mul_lo_u32": Form(np.multiply, U32, _2U),
    "v_mul_hi_u32": Form(mul_high, U32, _2U),
    "v_mul_hi_i32": Form(mul_high, I32, (I32, I32)),
    "v_mul_u32_u24": Form(mul24, U32, _2U),
    "v_mul_i32_i24": Form(mul24, I32, (I32, I32)),
    "v_mul_hi_u32_u24": Form(mul24_high, U32, _2U),
    "v_mul_hi_i32_i24": Form(mul24_high, I32, (I32, I32)),
    "v_mad_u32_u24": Form(lambda a, b, c: mul24(a, b) + c, U32, _3U),
    "v_mad_i32_i24": Form(lambda a, b, c: mul24(a, b) + c, I32, (I32, I32, I32)),
    "v_and_b32": Form(np.bitwise_and, U32, _2U),
    "v_or_b32": Form(np.bitwise_or, U32, _2U),
    "v_xor_b32": Form(np.bitwise_xor, U32, _2U),
    "v_xnor_b32": Form(lambda a, b: ~(a ^ b), U32, _2U),
    "v_lshlrev_b32": Form(shift_left, U32, _2U),
    "v_lshrrev_b32": Form(shift_right, U32, _2U),
    "v_ashrrev_i32": Form(shift_right, I32, (U32, I32)),
    "v_lshlrev_b64": Form(shift_left, U64, (U32, U64)),
    "v_lshrrev_b64": Form(shift_right, U64, (U32, U64)),
    "v_ashrrev_i64": Form(shift_right, I64, (U32, I64)),
    "v_lshl_add_u32": Form(lambda a, s, c: (a << (s & _31)) + c, U32, _3U),
    "v_lshl_add_u64": Form(lambda a, s, c: (a << (s & _U(7)).astype(_W)) + c, U64, (U64, U32, U64)),
    "v_add_lshl_u32": Form(lambda a, b, s: (a + b) << (s & _31), U32, _3U),
    "v_add3_u32": Form(lambda a, b, c: a + b + c, U32, _3U),
    "v_lshl_or_b32": Form(lambda a, s, c: (a << (s & _31)) | c, U32, _3U),
    "v_and_or_b32": Form(lambda a, b, c: (a & b) | c, U32, _3U),
    "v_or3_b32": Form(lambda a, b, c: a | b | c, U32, _3U),
    "v_xad_u32": Form(lambda a, b, c: (a ^ b) + c, U32, _3U),
    "v_bfe_u32": Form(bit_field_extract, U32, _3U),
    "v_bfe_i32": Form(bit_field_extract, I32, (I32, U32, U32)),
    "v_bfi_b32": Form(lambda m, a, b: (m & a) | (~m & b), U32, _3U),
    "v_bfm_b32": Form(bit_field_mask, U32, _2U),
    "v_perm_b32": Form(byte_permute, U32, _3U),
    "v_alignbit_b32": Form(align(1), U32, _3U),
    "v_alignbyte_b32": Form(align(8), U32, _3U),
    "v_bcnt_u32_b32": Form(count_bits, U32, _2U),
    "v_sad_u8": Form(sum_abs_diff8, U32, _3U),
    "v_sad_u32": Form(lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c, U32, _3U),
    "v_sad_hi_u8": Form(lambda a, b, c: (sum_abs_diff8(a, b, _NOTHING) << _U(16)) + c, U32, _3U),
    "v_sad_u16": Form(sad16, U32, _3U),
    "v_msad_u8": Form(masked_sad, U32, _3U),
    "v_qsad_pk_u16_u8": Form(quad_sad(sum_abs_diff8), U64, (U64, U32, U64)),
    "v_mqsad_pk_u16_u8": Form(quad_sad(masked_sad), U64, (U64, U32, U64)),
    "v_lerp_u8": Form(average_bytes, U32, _3U),
    "v_ashr_pk_i8_i32": Form(shift_and_pack(-128, 127), U16, (I32, I32, U32), keeps=True),
    "v_ashr_pk_u8_i32": Form(shift_and_pack(0, 255), U16, (I32, I32, U32), keeps=True),
    "v_add_i32": Form(np.add, I32, (I32, I32)),
    "v_sub_i32": Form(np.subtract, I32, (I32, I32)),
    "v_add_i16": Form(np.add, I16, (I16, I16), keeps=True),
    "v_sub_i16": Form(np.subtract, I16, (I16, I16), keeps=True),
    "v_subrev_u16": Form(lambda a, b: b - a, U16, (U16, U16)),
    "v_add_u16": Form(np.add, U16, (U16, U16)),
    "v_sub_u16": Form(np.subtract, U16, (U16, U16)),
    "v_mul_lo_u16": Form(np.multiply, U16, (U16, U16)),
    "v_lshlrev_b16": Form(shift_left, U16, (U16, U16)),
    "v_lshrrev_b16": Form(shift_right, U16, (U16, U16)),
    "v_ashrrev_i16": Form(shift_right, I16, (U16, I16)),
    "v_mad_u16": Form(lambda a, b, c: a * b + c, U16, (U16, U16, U16), keeps=True),
    "v_mad_i16": Form(lambda a, b, c: a * b + c, I16, (I16, I16, I16), keeps=True),
    "v_mad_legacy_u16": Form(lambda a, b, c: a * b + c, U16, (U16, U16, U16)),
    "v_mad_legacy_i16": Form(lambda a, b, c: a * b + c, I16, (I16, I16, I16)),
    "v_mad_u32_u16": Form(lambda a, b, c: a.astype(_U) * b + c, U32, (U16, U16, U32)),
    "v_mad_i32_i16": Form(lambda a, b, c: a.astype(np.int32) * b + c, I32, (I16, I16, I32)),
    "v_sat_pk_u8_i16": Form(
        lambda a: (
            np.clip(a.view(np.int32) << 16 >> 16, 0, 255) | np.clip(a.view(np.int32) >> 16, 0, 255) << 8
        ).astype(_U),
        U32,
        (U32,),
    ),
}

for _name, _type in (("u32", U32), ("i32", I32), ("u16", U16), ("i16", I16)):
    FORMS[f"v_min_{_name}"] = Form(np.minimum, _type, (_type, _type))
    FORMS[f"v_max_{_name}"] = Form(np.maximum, _type, (_type, _type))
    _three, _keeps = (_type, _type, _type), _type.itemsize == 2
    FORMS[f"v_min3_{_name}"] = Form(
        lambda a, b, c: np.minimum(np.minimum(a, b), c), _type, _three, keeps=_keeps
    )
    FORMS[f"v_max3_{_name}"] = Form(
        lambda a, b, c: np.maximum(np.maximum(a, b), c), _type, _three, keeps=_keeps
    )
    FORMS[f"v_med3_{_name}"] = Form(median, _type, _three, keeps=_keeps)


#: The sums and products that clamp saturates, on integers of 64 bits.
_EXACT: dict[str, Callable[..., np.ndarray]] = {
    **{f"v_add_{name}": operator.add for name in ("u32", "i32", "u16", "i16")},
    **{f"v_sub_{name}": operator.sub for name in ("u32", "i32", "u16", "i16")},
    **{f"v_subrev_{name}": lambda a, b: b - a for name in ("u32", "u16")},
    **{f"v_mad_{name}": lambda a, b, c: a * b + c for name in ("u16", "i16", "u32_u16", "i32_i16")},
    **{f"v_mad_legacy_{name}": lambda a, b, c: a * b + c for name in ("u16", "i16")},
    "v_mad_u32_u24": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_mad_i32_i24": lambda a, b, c: (a << 40 >> 40) * (b << 40 >> 40) + c,
    "v_mul_lo_u16": operator.mul,
    "v_sad_u8": lambda a, b, c: sum_abs_diff8(a.astype(_U), b.astype(_U), _NOTHING).astype(np.int64) + c,
    "v_sad_u16": lambda a, b, c: sad16(a.astype(_U), b.astype(_U), _NOTHING).astype(np.int64) + c,
    "v_sad_u32": lambda a, b, c: abs(a - b) + c,
    "v_msad_u8": lambda a, b, c: masked_sad(a.astype(_U), b.astype(_U), _NOTHING).astype(np.int64) + c,
}
for _name, _function in _EXACT.items():
    FORMS[_name] = FORMS[_name]._replace(exact=_function)


def bitop3(table: int) -> Callable[..., np.ndarray]:
    """v_bitop3: any function of three bits; bit `4a + 2b + c` of `table` is its value."""

    def evaluate(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        out = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), a.dtype)
        for term in range(8):
            if table >> term & 1:
                out |= (a if term & 4 else ~a) & (b if term & 2 else ~b) & (c if term & 1 else ~c)
        return out

    return evaluate
