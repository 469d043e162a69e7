"""Integer and bitwise vector instructions against definitions on Python integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from harness import SEED, SHAPE, const, integers, vector

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def s(value: int, bits: int = 32) -> int:
    """The low bits as a signed number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def u24(value: int) -> int:
    return value & 0xFFFFFF


def s24(value: int) -> int:
    return s(value, 24)


def perm(a: int, b: int, selector: int) -> int:
    data = [(a << 32 | b) >> 8 * i & 0xFF for i in range(8)]
    out = 0
    for i in range(4):
        pick = selector >> 8 * i & 0xFF
        if pick < 8:
            byte = data[pick]
        elif pick < 12:
            byte = 0xFF if data[2 * (pick - 8) + 1] & 0x80 else 0
        else:
            byte = 0 if pick == 12 else 0xFF
        out |= byte << 8 * i
    return out


def bfe_signed(value: int, offset: int, width: int) -> int:
    offset, width = offset & 31, width & 31
    return s(s(value) >> offset, width) if width else 0


def median(*values: int) -> int:
    return sorted(values)[1]


def leading(value: int, bits: int = 32) -> int:
    return bits - value.bit_length() if value else -1


def leading_signed(value: int) -> int:
    value = s(value)
    return leading(value if value >= 0 else ~value)


#: name: (function, bits of the sources); the result is cut to the destination's width.
CASES: dict[str, tuple[Callable[..., int], tuple[int, ...]]] = {
    "v_mov_b32": (lambda a: a, (32,)),
    "v_not_b32": (lambda a: ~a, (32,)),
    "v_bfrev_b32": (lambda a: int(f"{a:032b}"[::-1], 2), (32,)),
    "v_ffbh_u32": (leading, (32,)),
    "v_ffbh_i32": (leading_signed, (32,)),
    "v_ffbl_b32": (lambda a: (a & -a).bit_length() - 1 if a else -1, (32,)),
    "v_add_u32": (lambda a, b: a + b, (32, 32)),
    "v_sub_u32": (lambda a, b: a - b, (32, 32)),
    "v_subrev_u32": (lambda a, b: b - a, (32, 32)),
    "v_mul_lo_u32": (lambda a, b: a * b, (32, 32)),
    "v_mul_hi_u32": (lambda a, b: a * b >> 32, (32, 32)),
    "v_mul_hi_i32": (lambda a, b: s(a) * s(b) >> 32, (32, 32)),
    "v_mul_u32_u24": (lambda a, b: u24(a) * u24(b), (32, 32)),
    "v_mul_i32_i24": (lambda a, b: s24(a) * s24(b), (32, 32)),
    "v_mul_hi_u32_u24": (lambda a, b: u24(a) * u24(b) >> 32, (32, 32)),
    "v_mul_hi_i32_i24": (lambda a, b: s24(a) * s24(b) >> 32, (32, 32)),
    "v_mad_u32_u24": (lambda a, b, c: u24(a) * u24(b) + c, (32, 32, 32)),
    "v_mad_i32_i24": (lambda a, b, c: s24(a) * s24(b) + c, (32, 32, 32)),
    "v_and_b32": (lambda a, b: a & b, (32, 32)),
    "v_or_b32": (lambda a, b: a | b, (32, 32)),
    "v_xor_b32": (lambda a, b: a ^ b, (32, 32)),
    "v_xnor_b32": (lambda a, b: ~(a ^ b), (32, 32)),
    "v_lshlrev_b32": (lambda a, b: b << (a & 31), (32, 32)),
    "v_lshrrev_b32": (lambda a, b: b >> (a & 31), (32, 32)),
    "v_ashrrev_i32": (lambda a, b: s(b) >> (a & 31), (32, 32)),
    "v_lshlrev_b64": (lambda a, b: b << (a & 63), (32, 64)),
    "v_lshrrev_b64": (lambda a, b: b >> (a & 63), (32, 64)),
    "v_ashrrev_i64": (lambda a, b: s(b, 64) >> (a & 63), (32, 64)),
    "v_lshl_add_u32": (lambda a, b, c: (a << (b & 31)) + c, (32, 32, 32)),
    "v_add_lshl_u32": (lambda a, b, c: ((a + b) & M32) << (c & 31), (32, 32, 32)),
    "v_add3_u32": (lambda a, b, c: a + b + c, (32, 32, 32)),
    "v_lshl_or_b32": (lambda a, b, c: (a << (b & 31)) | c, (32, 32, 32)),
    "v_and_or_b32": (lambda a, b, c: (a & b) | c, (32, 32, 32)),
    "v_or3_b32": (lambda a, b, c: a | b | c, (32, 32, 32)),
    "v_xad_u32": (lambda a, b, c: (a ^ b) + c, (32, 32, 32)),
    "v_bfe_u32": (lambda a, b, c: a >> (b & 31) & ((1 << (c & 31)) - 1), (32, 32, 32)),
    "v_bfe_i32": (bfe_signed, (32, 32, 32)),
    "v_bfi_b32": (lambda a, b, c: (a & b) | (~a & c), (32, 32, 32)),
    "v_bfm_b32": (lambda a, b: ((1 << (a & 31)) - 1) << (b & 31), (32, 32)),
    "v_alignbit_b32": (lambda a, b, c: (a << 32 | b) >> (c & 31), (32, 32, 32)),
    "v_alignbyte_b32": (lambda a, b, c: (a << 32 | b) >> 8 * (c & 3), (32, 32, 32)),
    "v_bcnt_u32_b32": (lambda a, b: a.bit_count() + b, (32, 32)),
    "v_min_u32": (min, (32, 32)),
    "v_max_u32": (max, (32, 32)),
    "v_min_i32": (lambda a, b: min(s(a), s(b)), (32, 32)),
    "v_max_i32": (lambda a, b: max(s(a), s(b)), (32, 32)),
    "v_min3_u32": (min, (32, 32, 32)),
    "v_max3_i32": (lambda *v: max(map(s, v)), (32, 32, 32)),
    "v_med3_u32": (median, (32, 32, 32)),
    "v_med3_i32": (lambda *v: median(*map(s, v)), (32, 32, 32)),
    "v_sad_u32": (lambda a, b, c: abs(a - b) + c, (32, 32, 32)),
    "v_sad_u8": (
        lambda a, b, c: c + sum(abs((a >> i & 255) - (b >> i & 255)) for i in (0, 8, 16, 24)),
        (32, 32, 32),
    ),
    "v_add_u16": (lambda a, b: a + b & 0xFFFF, (16, 16)),
    "v_sub_u16": (lambda a, b: a - b & 0xFFFF, (16, 16)),
    "v_mul_lo_u16": (lambda a, b: a * b & 0xFFFF, (16, 16)),
    "v_lshlrev_b16": (lambda a, b: b << (a & 15) & 0xFFFF, (16, 16)),
    "v_ashrrev_i16": (lambda a, b: s(b, 16) >> (a & 15) & 0xFFFF, (16, 16)),
    "v_max_i16": (lambda a, b: max(s(a, 16), s(b, 16)) & 0xFFFF, (16, 16)),
    "v_min_u16": (min, (16, 16)),
    "v_mad_u32_u16": (lambda a, b, c: a * b + c, (16, 16, 32)),
    "v_mad_i32_i16": (lambda a, b, c: s(a, 16) * s(b, 16) + c, (16, 16, 32)),
    "v_perm_b32": (perm, (32, 32, 32)),
}


@pytest.mark.parametrize("name", CASES)
def test_matches_definition(name: str) -> None:
    function, widths = CASES[name]
    rng = np.random.default_rng([SEED, *map(ord, name)])
    sources = [integers(rng, bits) for bits in widths]
    wide = name.endswith(("b64", "i64"))
    result = vector(name, sources, np.uint64 if wide else np.uint32)
    expected = [
        function(*map(int, values)) & (M64 if wide else M32)
        for values in zip(*(x.flat for x in sources), strict=True)
    ]
    np.testing.assert_array_equal(result.ravel(), np.array(expected, result.dtype), err_msg=f"seed {SEED}")


def test_perm_selectors_all_mean_something() -> None:
    rng = np.random.default_rng(SEED)
    a, b = integers(rng, 32), integers(rng, 32)
    selector = rng.integers(0, 14, (*SHAPE, 4), dtype=np.uint8).view(np.uint32)[..., 0]
    expected = [perm(*map(int, values)) for values in zip(a.flat, b.flat, selector.flat, strict=True)]
    np.testing.assert_array_equal(
        vector("v_perm_b32", [a, b, selector]).ravel(), np.array(expected, np.uint32)
    )


@pytest.mark.parametrize("selector", [0x05040100, 0x07060302, 0x0C010C00, 0x0B0A0908])
def test_perm_with_one_selector_for_all(selector: int) -> None:
    rng = np.random.default_rng([SEED, selector])
    a, b = integers(rng, 32), integers(rng, 32)
    expected = [perm(int(x), int(y), selector) for x, y in zip(a.flat, b.flat, strict=True)]
    for given in (const(selector), np.full(SHAPE, selector, np.uint32)):
        result = vector("v_perm_b32", [a, b, given])
        np.testing.assert_array_equal(result.ravel(), np.array(expected, np.uint32))
    np.testing.assert_array_equal(
        vector("v_perm_b32", [const(0x01234567), b, const(selector)]).ravel(),
        np.array([perm(0x01234567, int(y), selector) for y in b.flat], np.uint32),
    )


def test_lshl_add_u64_shifts_by_three_bits() -> None:
    rng = np.random.default_rng(SEED)
    a, shift, c = integers(rng, 64), rng.integers(0, 5, SHAPE, dtype=np.uint32), integers(rng, 64)
    expected = [
        ((int(x) << int(n)) + int(z)) & M64 for x, n, z in zip(a.flat, shift.flat, c.flat, strict=True)
    ]
    # Sources of 64, 32 and 64 bits: v2, v4, v6.
    np.testing.assert_array_equal(
        vector("v_lshl_add_u64", [a, shift, c], np.uint64).ravel(), np.array(expected, np.uint64)
    )


@pytest.mark.parametrize("table", [0x00, 0xFF, 0x96, 0xE8, 0xCA, 0x01, 0x80, 0x78])
def test_bitop3_is_its_truth_table(table: int) -> None:
    rng = np.random.default_rng([SEED, table])
    a, b, c = (integers(rng, 32) for _ in range(3))
    expected = np.zeros(SHAPE, np.uint32)
    for bit in range(32):
        row = (a >> bit & 1) * 4 + (b >> bit & 1) * 2 + (c >> bit & 1)
        expected |= (np.uint32(table) >> row & 1) << np.uint32(bit)
    np.testing.assert_array_equal(
        vector("v_bitop3_b32", [a, b, c], mods={"bitop3": table} if table else {}), expected
    )


def test_lanes_that_are_off_keep_their_value() -> None:
    rng = np.random.default_rng(SEED)
    a, b, old = (integers(rng, 32) for _ in range(3))
    mask = rng.integers(0, 2, SHAPE).astype(bool)
    for name, expected in (("v_add_u32", a + b), ("v_lshl_add_u32", (a << (b & 31)) + a)):
        sources = [a, b] if name == "v_add_u32" else [a, b, a]
        result = vector(name, sources, old=old, mask=mask)
        np.testing.assert_array_equal(result, np.where(mask, expected, old))


def test_sixteen_bit_results_zero_or_keep_the_other_half() -> None:
    rng = np.random.default_rng(SEED)
    a, b, old = integers(rng, 32), integers(rng, 32), integers(rng, 32)
    low = (a + b) & 0xFFFF
    np.testing.assert_array_equal(vector("v_add_u16", [a, b], old=old), low)
    high = ((a >> 16) + b) & 0xFFFF
    # op_sel bit 0: high half of source 0; bit 3: into the high half, the low one kept.
    result = vector("v_add_u16", [a, b], old=old, mods={"op_sel": 0b1001})
    np.testing.assert_array_equal(result, old & 0xFFFF | high << np.uint32(16))
    np.testing.assert_array_equal(
        vector("v_mad_u16", [a, b, const(0, 128)], old=old), old & np.uint32(0xFFFF0000) | (a * b) & 0xFFFF
    )
