"""Compares, carries, lane moves, DPP, SDWA, packed forms and conversions, lane by lane in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from exact import fma, same
from harness import SEED, SHAPE, WAVES, S, V, batch, const, execute, floats, integers, pack, unpack, vector

from flycc.emulator.isa.instruction import Instruction, Operand

EXEC = 126
LANES = range(64)


def lanes_off(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 4, SHAPE) > 0


def state_with(rows: dict[int, np.ndarray], mask: np.ndarray | None = None):
    state = batch()
    for index, values in rows.items():
        state.vgpr[index] = values.view(np.uint32)
    if mask is not None:
        state.sgpr64[:, EXEC // 2] = pack(mask)
        state.exec_changed()
    return state


CONDITIONS: dict[str, Callable[[float, float], bool]] = {
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "ne": lambda a, b: a != b,
    "neq": lambda a, b: a != b,
    "lg": lambda a, b: a < b or a > b,
    "nlg": lambda a, b: not (a < b or a > b),
    "nlt": lambda a, b: not a < b,
    "nle": lambda a, b: not a <= b,
    "ngt": lambda a, b: not a > b,
    "nge": lambda a, b: not a >= b,
    "o": lambda a, b: a == a and b == b,
    "u": lambda a, b: a != a or b != b,
    "f": lambda a, b: False,
    "t": lambda a, b: True,
    "tru": lambda a, b: True,
}
INTEGER = ["f", "lt", "eq", "le", "gt", "ne", "ge", "t"]
FLOAT = ["f", "lt", "eq", "le", "gt", "lg", "ge", "o", "u", "nge", "nlg", "ngt", "nle", "neq", "nlt", "tru"]


@pytest.mark.parametrize("writes_exec", [False, True])
@pytest.mark.parametrize(
    ("condition", "kind"), [(c, k) for k in ("i32", "u32") for c in INTEGER] + [(c, "f32") for c in FLOAT]
)
def test_compares(condition: str, kind: str, writes_exec: bool) -> None:
    rng = np.random.default_rng([SEED, *map(ord, condition + kind)])
    dtype = np.dtype({"i32": "i4", "u32": "u4", "f32": "f4"}[kind])
    if kind == "f32":
        a, b = floats(rng, np.float32), floats(rng, np.float32)
    else:
        a, b = (integers(rng, 32).view(dtype) for _ in range(2))
    b[:, ::3] = a[:, ::3]
    mask = lanes_off(rng)
    state = state_with({2: a, 3: b}, mask)
    name = f"v_cmp{'x' if writes_exec else ''}_{condition}_{kind}"
    execute(state, Instruction(0, 8, name, "VOP3", (Operand(S, 8, 2),), (Operand(V, 2), Operand(V, 3))))
    expected = [
        CONDITIONS[condition](x, y) for x, y in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)
    ]
    expected = np.array(expected).reshape(SHAPE) & mask
    np.testing.assert_array_equal(unpack(state.sgpr64[:, 4]), expected, err_msg=f"seed {SEED}")
    if writes_exec:
        np.testing.assert_array_equal(unpack(state.sgpr64[:, EXEC // 2]), expected)
        np.testing.assert_array_equal(state.mask, expected)


CARRIES = {
    "v_add_co_u32": lambda a, b, c: a + b,
    "v_sub_co_u32": lambda a, b, c: a - b,
    "v_subrev_co_u32": lambda a, b, c: b - a,
    "v_addc_co_u32": lambda a, b, c: a + b + c,
    "v_subb_co_u32": lambda a, b, c: a - b - c,
    "v_subbrev_co_u32": lambda a, b, c: b - a - c,
}


@pytest.mark.parametrize("name", CARRIES)
def test_carries(name: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    a, b, carry, mask = (
        integers(rng, 32),
        integers(rng, 32),
        rng.integers(0, 2, SHAPE).astype(bool),
        lanes_off(rng),
    )
    state = state_with({2: a, 3: b}, mask)
    state.sgpr64[:, 5] = pack(carry)
    sources = [Operand(V, 2), Operand(V, 3)]
    if "addc" in name or "subb" in name:
        sources.append(Operand(S, 10, 2))
    execute(state, Instruction(0, 8, name, "VOP3", (Operand(V, 4), Operand(S, 8, 2)), tuple(sources)))
    for at in np.ndindex(*SHAPE):
        total = CARRIES[name](int(a[at]), int(b[at]), int(carry[at]))
        assert int(state.vgpr[4][at]) == (total & 0xFFFFFFFF if mask[at] else 0)
        assert unpack(state.sgpr64[:, 4])[at] == (mask[at] and not 0 <= total < 1 << 32)


def test_cndmask_and_mad64() -> None:
    rng = np.random.default_rng(SEED)
    a, b, c = integers(rng, 32), integers(rng, 32), integers(rng, 64)
    pick = rng.integers(0, 2, SHAPE).astype(bool)
    state = state_with({2: a, 3: b})
    state.vgpr[4], state.vgpr[5] = c.astype(np.uint32), (c >> np.uint64(32)).astype(np.uint32)
    state.sgpr64[:, 4] = pack(pick)
    sources = (Operand(V, 2), Operand(V, 3), Operand(S, 8, 2))
    execute(state, Instruction(0, 8, "v_cndmask_b32", "VOP3", (Operand(V, 6),), sources))
    np.testing.assert_array_equal(state.vgpr[6], np.where(pick, b, a))
    sources = (Operand(V, 2), Operand(V, 3), Operand(V, 4, 2))
    execute(state, Instruction(0, 8, "v_mad_u64_u32", "VOP3", (Operand(V, 8, 2), Operand(S, 8, 2)), sources))
    for at in np.ndindex(*SHAPE):
        total = int(a[at]) * int(b[at]) + int(c[at])
        assert int(state.vgpr[8][at]) | int(state.vgpr[9][at]) << 32 == total & (1 << 64) - 1
        assert unpack(state.sgpr64[:, 4])[at] == (total >> 64 != 0)


def test_scalar_reads_and_writes_of_lanes() -> None:
    rng = np.random.default_rng(SEED)
    a, mask = integers(rng, 32), lanes_off(rng)
    mask[:, :3] = False
    state = state_with({2: a}, mask)
    execute(state, Instruction(0, 4, "v_readfirstlane_b32", "VOP1", (Operand(S, 8),), (Operand(V, 2),)))
    lane = rng.integers(0, 64, WAVES).astype(np.uint32)
    state.sgpr[:, 9] = lane
    execute(
        state, Instruction(0, 8, "v_readlane_b32", "VOP3", (Operand(S, 10),), (Operand(V, 2), Operand(S, 9)))
    )
    execute(
        state, Instruction(0, 8, "v_writelane_b32", "VOP3", (Operand(V, 3),), (const(7, 135), Operand(S, 9)))
    )
    for wave in range(WAVES):
        first = next(i for i in LANES if mask[wave, i])
        assert state.sgpr[wave, 8] == a[wave, first]
        assert state.sgpr[wave, 10] == a[wave, lane[wave]]
        assert state.vgpr[3][wave].tolist() == [7 if i == lane[wave] else 0 for i in LANES]


def test_mbcnt_counts_lanes_below() -> None:
    rng = np.random.default_rng(SEED)
    bits = [int(x) for x in rng.integers(0, 2**32, 2)]
    low = vector("v_mbcnt_lo_u32_b32", [const(bits[0]), const(5, 133)])
    both = vector("v_mbcnt_hi_u32_b32", [const(bits[1]), low])
    mask = bits[0] | bits[1] << 32
    expected = [5 + (mask & ((1 << lane) - 1)).bit_count() for lane in LANES]
    np.testing.assert_array_equal(both, np.array([expected] * WAVES))


@pytest.mark.parametrize("name", ["v_permlane32_swap_b32", "v_permlane16_swap_b32", "v_swap_b32"])
def test_swaps(name: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    a, b = integers(rng, 32), integers(rng, 32)
    state = state_with({2: a, 3: b})
    execute(state, Instruction(0, 4, name, "VOP1", (Operand(V, 2), Operand(V, 3)), ()))
    x, y = a.copy(), b.copy()
    size = {"v_permlane32_swap_b32": 32, "v_permlane16_swap_b32": 16, "v_swap_b32": 0}[name]
    for lane in LANES:
        if not size:
            x[:, lane], y[:, lane] = b[:, lane], a[:, lane]
        elif lane // size % 2:
            x[:, lane], y[:, lane - size] = b[:, lane - size], a[:, lane]
    np.testing.assert_array_equal(state.vgpr[2], x)
    np.testing.assert_array_equal(state.vgpr[3], y)


def dpp_source(control: int, lane: int) -> int | None:
    """The lane that `lane` reads, None if there is none."""
    row, at = lane // 16 * 16, lane % 16
    n = control & 15
    if control < 0x100:
        return lane // 4 * 4 + (control >> 2 * (lane % 4) & 3)
    if 0x101 <= control <= 0x10F:
        return lane + n if at + n < 16 else None
    if 0x111 <= control <= 0x11F:
        return lane - n if at >= n else None
    if 0x121 <= control <= 0x12F:
        return row + (at - n) % 16
    if 0x150 <= control <= 0x15F:
        return row + n
    special = {
        0x130: lane + 1 if lane < 63 else None,
        0x134: (lane + 1) % 64,
        0x138: lane - 1 if lane else None,
        0x13C: (lane - 1) % 64,
        0x140: row + 15 - at,
        0x141: lane // 8 * 8 + 7 - lane % 8,
        0x142: row - 1 if row else None,
        0x143: 31 if lane >= 32 else None,
    }
    return special[control]


@pytest.mark.parametrize(
    "control",
    [
        0x1B,
        0xE4,
        0xB1,
        0x101,
        0x10F,
        0x111,
        0x118,
        0x121,
        0x12C,
        0x130,
        0x134,
        0x138,
        0x13C,
        0x140,
        0x141,
        0x142,
        0x143,
        0x155,
    ],
)
@pytest.mark.parametrize("bound_ctrl", [0, 1])
def test_dpp(control: int, bound_ctrl: int) -> None:
    rng = np.random.default_rng([SEED, control])
    a, b, old, mask = integers(rng, 32), integers(rng, 32), integers(rng, 32), lanes_off(rng)
    row_mask, bank_mask = int(rng.integers(1, 16)), int(rng.integers(1, 16))
    mods = {"dpp_ctrl": control, "row_mask": row_mask, "bank_mask": bank_mask}
    if bound_ctrl:
        mods["bound_ctrl"] = 1
    result = vector("v_add_u32", [a, b], encoding="DPP", mods=mods, old=old, mask=mask)
    for wave, lane in np.ndindex(*SHAPE):
        source = dpp_source(control, lane)
        reads = source is not None and mask[wave, source]
        writes = mask[wave, lane] and row_mask >> lane // 16 & 1 and bank_mask >> lane % 16 // 4 & 1
        value = (int(a[wave, source]) if reads else 0) + int(b[wave, lane]) & 0xFFFFFFFF
        expected = value if writes and (reads or bound_ctrl) else int(old[wave, lane])
        assert int(result[wave, lane]) == expected, (wave, lane, SEED)


def selected(value: int, select: int, signed: bool) -> int:
    shift, bits = ((0, 8), (8, 8), (16, 8), (24, 8), (0, 16), (16, 16), (0, 32))[select]
    part = value >> shift & (1 << bits) - 1
    return part - (1 << bits) if signed and part >> (bits - 1) else part


@pytest.mark.parametrize("dst_sel", range(7))
@pytest.mark.parametrize("unused", [0, 1, 2])
def test_sdwa(dst_sel: int, unused: int) -> None:
    rng = np.random.default_rng([SEED, dst_sel, unused])
    a, b, old, mask = integers(rng, 32), integers(rng, 32), integers(rng, 32), lanes_off(rng)
    for src0_sel, src1_sel, sext in rng.integers(0, (7, 7, 4), (8, 3)).tolist():
        mods = {
            "dst_sel": dst_sel, "dst_unused": unused, "src0_sel": src0_sel, "src1_sel": src1_sel, "sext": sext
        }  # fmt: skip
        result = vector("v_add_u32", [a, b], encoding="SDWA", mods=mods, old=old, mask=mask)
        shift, bits = ((0, 8), (8, 8), (16, 8), (24, 8), (0, 16), (16, 16), (0, 32))[dst_sel]
        field = (1 << bits) - 1 << shift
        for at in np.ndindex(*SHAPE):
            total = selected(int(a[at]), src0_sel, bool(sext & 1)) + selected(
                int(b[at]), src1_sel, bool(sext & 2)
            )
            value = total << shift & field
            if unused == 1 and total >> (bits - 1) & 1:
                value |= ~((1 << shift + bits) - 1) & 0xFFFFFFFF
            if unused == 2:
                value |= int(old[at]) & ~field
            assert int(result[at]) == (value if mask[at] else int(old[at])), (at, mods, SEED)


@pytest.mark.parametrize("op_sel", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("op_sel_hi", [7, 0, 5])
def test_packed_float32(op_sel: int, op_sel_hi: int) -> None:
    rng = np.random.default_rng([SEED, op_sel, op_sel_hi])
    pairs = [np.stack([floats(rng, np.float32, spread=20) for _ in range(2)], axis=-1) for _ in range(3)]
    sources = [pair.view(np.uint64)[..., 0] for pair in pairs]
    mods = {"op_sel": op_sel, "op_sel_hi": op_sel_hi, "neg_lo": 2, "neg_hi": 1}
    result = vector("v_pk_fma_f32", sources, np.uint64, encoding="VOP3P", mods=mods)
    result = np.ascontiguousarray(result)[..., None].view(np.float32)
    for half, select, negate in ((0, op_sel, 2), (1, op_sel_hi, 1)):
        picked = [pair[..., select >> i & 1] for i, pair in enumerate(pairs)]
        expected = np.array(
            [
                fma(*(float(-v if negate >> i & 1 else v) for i, v in enumerate(values)), "f32")
                for values in zip(*(p.flat for p in picked), strict=True)
            ],
            np.float32,
        ).reshape(SHAPE)
        same(np.ascontiguousarray(result[..., half]), expected, f"half {half}, seed {SEED}")


@pytest.mark.parametrize(
    ("name", "function"), [("v_pk_add_u16", lambda a, b: a + b), ("v_pk_mul_lo_u16", lambda a, b: a * b)]
)
@pytest.mark.parametrize(("op_sel", "op_sel_hi"), [(0, 3), (1, 2), (3, 0)])
def test_packed_integers(name: str, function: Callable[[int, int], int], op_sel: int, op_sel_hi: int) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    a, b = integers(rng, 32), integers(rng, 32)
    result = vector(name, [a, b], encoding="VOP3P", mods={"op_sel": op_sel, "op_sel_hi": op_sel_hi})
    for at in np.ndindex(*SHAPE):
        expected = 0
        for half, select in enumerate((op_sel, op_sel_hi)):
            x, y = (int(v[at]) >> 16 * (select >> i & 1) & 0xFFFF for i, v in enumerate((a, b)))
            expected |= (function(x, y) & 0xFFFF) << 16 * half
        assert int(result[at]) == expected


def test_packed_move() -> None:
    rng = np.random.default_rng(SEED)
    a, b = integers(rng, 64), integers(rng, 64)
    result = vector("v_pk_mov_b32", [a, b], np.uint64, encoding="VOP3P", mods={"op_sel": 1, "op_sel_hi": 3})
    np.testing.assert_array_equal(result, a >> np.uint64(32) | b << np.uint64(32))


def as_f16(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.uint16).view(np.float16)


def test_mixed_fma_and_dots() -> None:
    rng = np.random.default_rng(SEED)
    halves = [np.stack([floats(rng, np.float16) for _ in range(2)], axis=-1) for _ in range(2)]
    packed = [pair.view(np.uint32)[..., 0] for pair in halves]
    c = floats(rng, np.float32)
    mods = {"op_sel_hi": 3, "op_sel": 1}
    result = vector("v_fma_mix_f32", [*packed, c], np.float32, encoding="VOP3P", mods=mods)
    rows = zip(halves[0][..., 1].flat, halves[1][..., 0].flat, c.flat, strict=True)
    same(
        result,
        np.array([fma(*map(float, row), "f32") for row in rows], np.float32).reshape(SHAPE),
        f"seed {SEED}",
    )
    old = integers(rng, 32)
    low = vector("v_fma_mixlo_f16", [*packed, c], encoding="VOP3P", mods=mods, old=old)
    np.testing.assert_array_equal(low >> 16, old >> 16)
    with np.errstate(all="ignore"):
        same(as_f16(low & 0xFFFF), result.astype(np.float16))
    for mods in ({"op_sel_hi": 6}, {"op_sel_hi": 4}):
        # -c * 1.0 + |half|, where op_sel_hi makes the constant 1.0 a float16.
        signs = {**mods, "neg": 1, "abs": 4}
        sources = [c, const(0x3F800000, 242), packed[0]]
        got = vector("v_fma_mix_f32", sources, np.float32, encoding="VOP3P", mods=signs)
        rows = zip(c.flat, halves[0][..., 0].flat, strict=True)
        expected = [fma(-float(x), 1.0, abs(float(y)), "f32") for x, y in rows]
        same(got, np.array(expected, np.float32).reshape(SHAPE), f"seed {SEED}")
    a, b = integers(rng, 32), integers(rng, 32)
    total = vector("v_dot4_i32_i8", [a, b, old], encoding="VOP3P", mods={"op_sel_hi": 7})
    for at in np.ndindex(*SHAPE):
        expected = int(old[at]) + sum(
            selected(int(a[at]), i, True) * selected(int(b[at]), i, True) for i in range(4)
        )
        assert int(total[at]) == expected & 0xFFFFFFFF


def test_bfloat16_conversions_agree_with_ml_dtypes() -> None:
    rng = np.random.default_rng(SEED)
    a, b = floats(rng, np.float32), floats(rng, np.float32)
    a[:, ::2] = (a[:, ::2].view(np.uint32) & np.uint32(0xFFFF0000) | np.uint32(0x8000)).view(
        np.float32
    )  # ties
    with np.errstate(all="ignore"):
        low, high = (x.astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32) for x in (a, b))
    result = vector("v_cvt_pk_bf16_f32", [a, b])
    for got, expected, value in ((result & 0xFFFF, low, a), (result >> 16, high, b)):
        number = ~np.isnan(value)
        np.testing.assert_array_equal(got[number], expected[number], err_msg=f"seed {SEED}")
        assert ((got & 0x7FFF)[~number] >= 0x7FC0).all()
    widened = vector("v_cvt_f32_bf16", [low], np.float32)
    same(widened, low.astype(np.uint16).view(ml_dtypes.bfloat16).astype(np.float32))


def test_float16_conversion_toward_zero() -> None:
    rng = np.random.default_rng(SEED)
    a = floats(rng, np.float32, spread=16)
    result = as_f16(vector("v_cvt_pkrtz_f16_f32", [a, a]) & 0xFFFF).reshape(SHAPE)
    for got, value in zip(result.ravel().tolist(), a.ravel().tolist(), strict=True):
        if math.isnan(value):
            assert math.isnan(got)
        elif math.isinf(value):
            assert got == value
        else:
            assert abs(got) <= abs(value)
            with np.errstate(over="ignore"):
                following = float(np.nextafter(np.float16(abs(got)), np.float16(np.inf)))
            assert abs(value) < following or abs(got) == 65504


@pytest.mark.parametrize(
    ("name", "least", "most"), [("v_cvt_i32_f32", -(2**31), 2**31 - 1), ("v_cvt_u32_f32", 0, 2**32 - 1)]
)
def test_float_to_integer_saturates(name: str, least: int, most: int) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    a = floats(rng, np.float32, spread=34)
    result = vector(name, [a], np.int32 if least else np.uint32)
    for got, value in zip(result.ravel().tolist(), a.ravel().tolist(), strict=True):
        if math.isnan(value):
            assert got == 0
        elif math.isinf(value):
            assert got == (most if value > 0 else least)
        else:
            assert got == min(max(math.trunc(value), least), most)
