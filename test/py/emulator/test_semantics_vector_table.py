"""Vector ALU instructions by table: each named function on Python integers, floats or fractions, lane by lane."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from exact import fma, rounded, same
from harness import SEED, SHAPE, S, V, batch, const, execute, floats, integers, pack, unpack, vector, words

from flycc.emulator.isa.instruction import Instruction, Operand
from flycc.emulator.semantics.floating import trig_preop
from flycc.emulator.state import Mode

DWORD = 0xFFFFFFFF


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) * (value >> bits - 1)


def saturate(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


def limits(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "i" else (0, (1 << bits) - 1)


def read(bits_value: int, kind: str) -> int:
    bits = int(kind[1:])
    return signed(bits_value, bits) if kind[0] == "i" else bits_value & (1 << bits) - 1


COMPARES: dict[str, Callable[[int, int], bool]] = {
    "f": lambda a, b: False,
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ne": lambda a, b: a != b,
    "ge": lambda a, b: a >= b,
    "t": lambda a, b: True,
}
FLOAT_COMPARES: dict[str, Callable[[float, float], bool]] = {
    **{name: COMPARES[name] for name in ("f", "lt", "eq", "le", "gt", "ge")},
    "lg": lambda a, b: a < b or a > b,
    "o": lambda a, b: not (math.isnan(a) or math.isnan(b)),
    "u": lambda a, b: math.isnan(a) or math.isnan(b),
    "nge": lambda a, b: not a >= b,
    "nlg": lambda a, b: not (a < b or a > b),
    "ngt": lambda a, b: not a > b,
    "nle": lambda a, b: not a <= b,
    "neq": lambda a, b: a != b,
    "nlt": lambda a, b: not a < b,
    "tru": lambda a, b: True,
}


def compare(name: str, a: np.ndarray, b: np.ndarray, mask: np.ndarray, mode: Mode | None = None):
    """(the mask result, EXEC afterwards) as bool [2, 64]."""
    state = batch(mode=mode)
    for first, value in ((2, a), (4, b)):
        rows = words(value)
        state.vgpr[first : first + len(rows)] = rows
    state.sgpr64[:, 63] = pack(mask)
    state.exec_changed()
    count = max(a.dtype.itemsize // 4, 1)
    sources = (Operand(V, 2, count), Operand(V, 4, count))
    execute(state, Instruction(0, 8, name, "VOP3", (Operand(S, 8, 2),), sources))
    return unpack(state.sgpr64[:, 4]), unpack(state.sgpr64[:, 63])


@pytest.mark.parametrize("kind", ["i16", "u16", "i32", "u32", "i64", "u64"])
def test_integer_compares(kind: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, kind)])
    a, b = (integers(rng, int(kind[1:])) for _ in range(2))
    b[:, ::3] = a[:, ::3]
    mask = rng.integers(0, 4, SHAPE) > 0
    for condition, function in COMPARES.items():
        expected = np.array(
            [function(read(int(x), kind), read(int(y), kind)) for x, y in zip(a.flat, b.flat, strict=True)]
        ).reshape(SHAPE)
        for prefix in ("v_cmp", "v_cmpx"):
            got, after = compare(f"{prefix}_{condition}_{kind}", a, b, mask)
            np.testing.assert_array_equal(got, expected & mask, err_msg=f"{condition}, seed {SEED}")
            np.testing.assert_array_equal(after, expected & mask if prefix == "v_cmpx" else mask)


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
def test_float_compares(kind: str, flush: bool) -> None:
    """With denormals off a denormal compares as the zero of its sign."""
    rng = np.random.default_rng([SEED, *map(ord, kind), flush])
    dtype = np.dtype(f"f{int(kind[1:]) // 8}")
    a, b = (floats(rng, dtype.type) for _ in range(2))
    b[:, ::3] = a[:, ::3]
    tiny = np.finfo(dtype).smallest_subnormal
    a[:, 1::8], b[:, 1::8] = tiny, rng.choice([-tiny, 0, 2 * tiny], b[:, 1::8].shape)
    mode = Mode(denormals_f32=not flush, denormals_f16_f64=not flush, may_flush=flush)
    least = float(np.finfo(dtype).smallest_normal)
    mask = np.ones(SHAPE, bool)

    def seen(x: float) -> float:
        return 0.0 if flush and abs(x) < least else x

    with np.errstate(invalid="ignore"):  # signalling NaNs
        left, right = a.astype(float), b.astype(float)
    for condition, function in FLOAT_COMPARES.items():
        pairs = zip(left.flat, right.flat, strict=True)
        expected = np.array([function(seen(x), seen(y)) for x, y in pairs]).reshape(SHAPE)
        for prefix in ("v_cmp", "v_cmpx"):
            got, after = compare(f"{prefix}_{condition}_{kind}", a, b, mask, mode)
            np.testing.assert_array_equal(got, expected, err_msg=f"{condition}, seed {SEED}")
            np.testing.assert_array_equal(after, expected if prefix == "v_cmpx" else mask)


def low24(value: int, kind: str) -> int:
    return signed(value, 24) if kind[0] == "i" else value & 0xFFFFFF


def sad(a: int, b: int, width: int, masked: bool = False) -> int:
    total = 0
    for shift in range(0, 32, width):
        x, y = (v >> shift & (1 << width) - 1 for v in (a, b))
        total += 0 if masked and y == 0 else abs(x - y)
    return total


#: name: (types of result and sources, exact value); saturated with clamp, else cut to the result's bits.
ARITHMETIC: dict[str, tuple[str, Callable[..., int]]] = {
    "v_add_u32": ("u32 u32 u32", lambda a, b: a + b),
    "v_sub_u32": ("u32 u32 u32", lambda a, b: a - b),
    "v_subrev_u32": ("u32 u32 u32", lambda a, b: b - a),
    "v_add_i32": ("i32 i32 i32", lambda a, b: a + b),
    "v_sub_i32": ("i32 i32 i32", lambda a, b: a - b),
    "v_add_u16": ("u16 u16 u16", lambda a, b: a + b),
    "v_sub_u16": ("u16 u16 u16", lambda a, b: a - b),
    "v_subrev_u16": ("u16 u16 u16", lambda a, b: b - a),
    "v_add_i16": ("i16 i16 i16", lambda a, b: a + b),
    "v_sub_i16": ("i16 i16 i16", lambda a, b: a - b),
    "v_mul_lo_u16": ("u16 u16 u16", lambda a, b: a * b),
    "v_mad_u16": ("u16 u16 u16 u16", lambda a, b, c: a * b + c),
    "v_mad_i16": ("i16 i16 i16 i16", lambda a, b, c: a * b + c),
    "v_mad_legacy_u16": ("u16 u16 u16 u16", lambda a, b, c: a * b + c),
    "v_mad_legacy_i16": ("i16 i16 i16 i16", lambda a, b, c: a * b + c),
    "v_mad_u32_u16": ("u32 u16 u16 u32", lambda a, b, c: a * b + c),
    "v_mad_i32_i16": ("i32 i16 i16 i32", lambda a, b, c: a * b + c),
    "v_mad_u32_u24": ("u32 u32 u32 u32", lambda a, b, c: low24(a, "u") * low24(b, "u") + c),
    "v_mad_i32_i24": ("i32 i32 i32 i32", lambda a, b, c: low24(a, "i") * low24(b, "i") + c),
    "v_sad_u8": ("u32 u32 u32 u32", lambda a, b, c: sad(a, b, 8) + c),
    "v_sad_u16": ("u32 u32 u32 u32", lambda a, b, c: sad(a, b, 16) + c),
    "v_sad_u32": ("u32 u32 u32 u32", lambda a, b, c: sad(a, b, 32) + c),
    "v_msad_u8": ("u32 u32 u32 u32", lambda a, b, c: sad(a, b, 8, True) + c),
}


@pytest.mark.parametrize("clamp", [0, 1])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_sums_and_their_clamp(name: str, clamp: int) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name), clamp])
    types, function = ARITHMETIC[name]
    out, *kinds = types.split()
    sources = [integers(rng, int(kind[1:])) for kind in kinds]
    old = np.zeros(SHAPE, np.uint32)
    got = vector(name, sources, np.uint32, mods={"clamp": clamp} if clamp else {}, old=old)
    low, high = limits(out)
    for at in np.ndindex(*SHAPE):
        exact = function(*(read(int(s[at]), kind) for s, kind in zip(sources, kinds, strict=True)))
        exact = saturate(exact, low, high) if clamp else exact
        assert int(got[at]) == exact & (1 << int(out[1:])) - 1, f"at {at}, seed {SEED}"


def halves(value: int) -> tuple[int, int]:
    return value & 0xFFFF, value >> 16 & 0xFFFF


PACKED: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "min": min,
    "max": max,
    "mad": lambda a, b, c: a * b + c,
}


@pytest.mark.parametrize("clamp", [0, 1])
@pytest.mark.parametrize("kind", ["u16", "i16"])
@pytest.mark.parametrize("name", PACKED)
def test_packed_integers_and_their_clamp(name: str, kind: str, clamp: int) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name + kind), clamp])
    count = 3 if name == "mad" else 2
    sources = [integers(rng, 32) for _ in range(count)]
    op_sel, op_sel_hi = (int(rng.integers(8)) for _ in range(2))
    mods = {"op_sel": op_sel, "op_sel_hi": op_sel_hi, **({"clamp": 1} if clamp else {})}
    got = vector(f"v_pk_{name}_{kind}", sources, encoding="VOP3P", mods=mods)
    low, high = limits(kind)
    for at in np.ndindex(*SHAPE):
        for half, select in enumerate((op_sel, op_sel_hi)):
            operands = [read(halves(int(s[at]))[select >> i & 1], kind) for i, s in enumerate(sources)]
            exact = PACKED[name](*operands)
            exact = saturate(exact, low, high) if clamp else exact
            assert halves(int(got[at]))[half] == exact & 0xFFFF, f"seed {SEED}"


#: name: type of the elements, of the accumulator.
INTEGER_DOTS = {
    "v_dot2_i32_i16": ("i16", "i32"),
    "v_dot2_u32_u16": ("u16", "u32"),
    "v_dot4_i32_i8": ("i8", "i32"),
    "v_dot4_u32_u8": ("u8", "u32"),
    "v_dot8_i32_i4": ("i4", "i32"),
    "v_dot8_u32_u4": ("u4", "u32"),
    "v_dot2c_i32_i16": ("i16", "i32"),
    "v_dot4c_i32_i8": ("i8", "i32"),
    "v_dot8c_i32_i4": ("i4", "i32"),
}


@pytest.mark.parametrize("clamp", [0, 1])
@pytest.mark.parametrize("name", INTEGER_DOTS)
def test_integer_dots(name: str, clamp: int) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name), clamp])
    kind, out = INTEGER_DOTS[name]
    a, b, c = (integers(rng, 32) for _ in range(3))
    bits = int(kind[1:])
    accumulates = "c_" in name
    mods = {"clamp": clamp} if clamp else {}
    if not accumulates:
        mods["op_sel_hi"] = 7
    sources = [a, b] if accumulates else [a, b, c]
    got = vector(name, sources, encoding="VOP3" if accumulates else "VOP3P", mods=mods, old=c)
    for at in np.ndindex(*SHAPE):
        parts = [[read(int(x[at]) >> s, kind) for s in range(0, 32, bits)] for x in (a, b)]
        total = sum(x * y for x, y in zip(*parts, strict=True)) + read(int(c[at]), out)
        total = saturate(total, *limits(out)) if clamp else total
        assert int(got[at]) == total & DWORD, f"seed {SEED}"


@pytest.mark.parametrize("name", ["v_dot2_f32_f16", "v_dot2_f32_bf16", "v_dot2c_f32_f16", "v_dot2c_f32_bf16"])
def test_float_dots(name: str) -> None:
    """Selected and negated halves; the exact sum is rounded once."""
    rng = np.random.default_rng([SEED, *map(ord, name)])
    dtype = ml_dtypes.bfloat16 if name.endswith("bf16") else np.float16
    pairs = [rng.standard_normal((*SHAPE, 2)).astype(dtype) for _ in range(2)]
    packed = [pair.view(np.uint32)[..., 0] for pair in pairs]
    c = rng.standard_normal(SHAPE).astype(np.float32)
    accumulates = "c_" in name
    if accumulates:
        mods = {"neg": 2}
        got = vector(name, packed, np.float32, mods=mods, old=c)
    else:
        mods = {"op_sel": 1, "op_sel_hi": 2, "neg_lo": 6, "neg_hi": 1}
        got = vector(name, [*packed, c], np.float32, encoding="VOP3P", mods=mods)
    for at in np.ndindex(*SHAPE):
        (a0, a1), (b0, b1) = ((Fraction(float(x)) for x in pair[at]) for pair in pairs)
        start = Fraction(float(c[at]))
        if accumulates:
            exact = a0 * -b0 + a1 * -b1 + start
        else:
            # low: a's high half, b's low half negated; high: a's low half negated, b's high half; c negated
            exact = a1 * -b0 + -a0 * b1 - start
        assert float(got[at]) == float(rounded(exact, "f32")), f"seed {SEED}"


def bytes_of(value: int) -> list[int]:
    return [value >> 8 * i & 255 for i in range(4)]


def shift_pack(a: int, b: int, amount: int, low: int, high: int) -> int:
    parts = [saturate(signed(x, 32) >> (amount & 31), low, high) & 255 for x in (a, b)]
    return parts[0] | parts[1] << 8


def quad(a: int, b: int, c: int, masked: bool) -> int:
    return sum(
        (sad(a >> 8 * i & DWORD, b, 8, masked) + (c >> 16 * i & 0xFFFF) & 0xFFFF) << 16 * i for i in range(4)
    )


#: name: bits of result and sources, value.
BITWISE: dict[str, tuple[str, Callable[..., int]]] = {
    "v_sad_hi_u8": ("32 32 32 32", lambda a, b, c: (sad(a, b, 8) << 16) + c),
    "v_lerp_u8": (
        "32 32 32 32",
        lambda a, b, c: sum(
            (x + y + (z & 1) >> 1) << 8 * i
            for i, (x, y, z) in enumerate(zip(bytes_of(a), bytes_of(b), bytes_of(c), strict=True))
        ),
    ),
    "v_ashr_pk_i8_i32": ("16 32 32 32", lambda a, b, s: shift_pack(a, b, s, -128, 127)),
    "v_ashr_pk_u8_i32": ("16 32 32 32", lambda a, b, s: shift_pack(a, b, s, 0, 255)),
    "v_qsad_pk_u16_u8": ("64 64 32 64", lambda a, b, c: quad(a, b, c, False)),
    "v_mqsad_pk_u16_u8": ("64 64 32 64", lambda a, b, c: quad(a, b, c, True)),
    "v_cvt_off_f32_i4": ("32 32", lambda a: int(np.float32(signed(a, 4) / 16).view(np.uint32))),
}


@pytest.mark.parametrize("name", BITWISE)
def test_bitwise(name: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    types, function = BITWISE[name]
    out, *widths = map(int, types.split())
    sources = [integers(rng, bits) for bits in widths]
    got = vector(
        name,
        sources,
        np.uint64 if out == 64 else np.uint32,
        old=None if out == 64 else np.zeros(SHAPE, np.uint32),
    )
    for at in np.ndindex(*SHAPE):
        assert int(got[at]) == function(*(int(s[at]) for s in sources)) & (1 << out) - 1, (
            f"at {at}, seed {SEED}"
        )


def test_four_wide_masked_sad() -> None:
    rng = np.random.default_rng(SEED)
    state = batch()
    a, b = integers(rng, 64), integers(rng, 32)
    c = rng.integers(0, 2**32, (4, *SHAPE), dtype=np.uint32)
    state.vgpr[2:4], state.vgpr[4], state.vgpr[8:12] = words(a), b, c
    src = (Operand(V, 2, 2), Operand(V, 4), Operand(V, 8, 4))
    execute(state, Instruction(0, 8, "v_mqsad_u32_u8", "VOP3", (Operand(V, 12, 4),), src))
    for at in np.ndindex(*SHAPE):
        for i in range(4):
            expected = sad(int(a[at]) >> 8 * i & DWORD, int(b[at]), 8, True) + int(c[(i, *at)]) & DWORD
            assert int(state.vgpr[(12 + i, *at)]) == expected, f"seed {SEED}"


@pytest.mark.parametrize("clamp", [0, 1])
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("v_add_co_u32", lambda a, b: a + b),
        ("v_sub_co_u32", lambda a, b: a - b),
        ("v_subrev_co_u32", lambda a, b: b - a),
    ],
)
def test_clamp_of_carries(name: str, function: Callable[[int, int], int], clamp: int) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    a, b = integers(rng, 32), integers(rng, 32)
    state = batch()
    state.vgpr[2], state.vgpr[3] = a, b
    dst, src = (Operand(V, 4), Operand(S, 8, 2)), (Operand(V, 2), Operand(V, 3))
    execute(state, Instruction(0, 8, name, "VOP3", dst, src, {"clamp": clamp} if clamp else {}))
    for at in np.ndindex(*SHAPE):
        exact = function(int(a[at]), int(b[at]))
        expected = saturate(exact, 0, DWORD) if clamp else exact & DWORD
        assert int(state.vgpr[4][at]) == expected
        assert unpack(state.sgpr64[:, 4])[at] == (not 0 <= exact <= DWORD)


@pytest.mark.parametrize("name", ["v_mad_f16", "v_mad_legacy_f16", "v_madak_f16", "v_mac_f16"])
def test_multiply_then_add(name: str) -> None:
    """Two roundings, where v_fma_f16 has one."""
    rng = np.random.default_rng([SEED, *map(ord, name)])
    a, b, c = (floats(rng, np.float16, spread=6) for _ in range(3))
    old = c if name == "v_mac_f16" else np.zeros(SHAPE, np.uint32)
    sources = [a, b] if name == "v_mac_f16" else [a, b, c]
    got = vector(name, sources, old=words(old)[0]).astype(np.uint16).view(np.float16)
    expected = []
    for x, y, z in zip(a.flat, b.flat, c.flat, strict=True):
        product = fma(float(x), float(y), -0.0, "f16")
        expected.append(fma(1.0, product, float(z), "f16"))
    same(got, np.array(expected, np.float16).reshape(SHAPE), f"seed {SEED}")


def cube(x: float, y: float, z: float) -> dict[str, float]:
    """Face, coordinates and twice the axis (ISA document, V_CUBEID_F32 and the next three)."""
    if abs(z) >= abs(x) and abs(z) >= abs(y):
        return {"id": 5.0 if z < 0 else 4.0, "sc": -x if z < 0 else x, "tc": -y, "ma": 2 * z}
    if abs(y) >= abs(x):
        return {"id": 3.0 if y < 0 else 2.0, "sc": x, "tc": -z if y < 0 else z, "ma": 2 * y}
    return {"id": 1.0 if x < 0 else 0.0, "sc": z if x < 0 else -z, "tc": -y, "ma": 2 * x}


@pytest.mark.parametrize("what", ["id", "sc", "tc", "ma"])
def test_cube_maps(what: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, what)])
    sources = [rng.choice([-2.0, -1.0, 0.0, 0.5, 1.0, 2.0], SHAPE).astype(np.float32) for _ in range(3)]
    got = vector(f"v_cube{what}_f32", sources, np.float32)
    rows = zip(*(s.astype(float).flat for s in sources), strict=True)
    same(got, np.array([cube(*row)[what] for row in rows], np.float32).reshape(SHAPE), f"seed {SEED}")


@pytest.mark.parametrize(("name", "low", "scale"), [("i16", -1.0, 32767), ("u16", 0.0, 65535)])
def test_normalised_half_precision(name: str, low: float, scale: int) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    a, b = floats(rng, np.float16), floats(rng, np.float16)

    def normalised(x: float) -> int:
        return 0 if math.isnan(x) else round(Fraction(min(max(x, low), 1.0)) * scale) & 0xFFFF

    both = vector(f"v_cvt_pknorm_{name}_f16", [a, b])
    one = vector(f"v_cvt_norm_{name}_f16", [a])
    for at in np.ndindex(*SHAPE):
        x, y = normalised(float(a[at])), normalised(float(b[at]))
        assert int(both[at]) == x | y << 16, f"seed {SEED}"
        assert int(one[at]) == x


def test_accumulated_byte() -> None:
    rng = np.random.default_rng(SEED)
    value, where, old = rng.integers(-20, 300, SHAPE), integers(rng, 32), integers(rng, 32)
    got = vector("v_cvt_pkaccum_u8_f32", [(value + 0.25).astype(np.float32), where], old=old)
    for at in np.ndindex(*SHAPE):
        shift = 8 * (int(where[at]) & 3)
        byte = saturate(int(value[at]), 0, 255)
        assert int(got[at]) == int(old[at]) & ~(255 << shift) & DWORD | byte << shift, f"seed {SEED}"


def test_segments_of_two_over_pi() -> None:
    """The segments of v_trig_preop_f64, added up, are 2 / pi: 53 bits each."""
    total = Fraction(0)
    one = np.ones((1, 1))
    for segment in range(20):
        total += Fraction(float(trig_preop(one, np.array([[segment]], np.uint32))[0, 0]))
    # pi to 60 digits
    pi = Fraction("3.14159265358979323846264338327950288419716939937510582097494")
    assert abs(total - 2 / pi) < Fraction(1, 10**57)
    rng = np.random.default_rng(SEED)
    value = (2.0 ** rng.integers(0, 900, SHAPE)).astype(np.float64)
    got = vector("v_trig_preop_f64", [value, np.full(SHAPE, 1, np.uint32)], np.float64)
    for at in np.ndindex(*SHAPE):
        skipped = 53 + max(int(math.log2(value[at])) + 1023 - 1077, 0)
        segment = (total * 2**skipped) % 1 if skipped < 800 else None
        if segment is not None:
            scale = Fraction(1, 2**skipped) * (2**128 if math.log2(value[at]) + 1023 >= 1968 else 1)
            assert Fraction(float(got[at])) == Fraction(math.floor(segment * 2**53), 2**53) * scale, (
                f"seed {SEED}"
            )


@pytest.mark.parametrize("name", ["v_pk_minimum3_f16", "v_pk_maximum3_f16"])
def test_packed_minimum_of_three(name: str) -> None:
    """IEEE 754-2019 minimum and maximum: a NaN wins."""
    rng = np.random.default_rng([SEED, *map(ord, name)])
    parts = [[floats(rng, np.float16) for _ in range(2)] for _ in range(3)]
    packed = [np.stack(pair, axis=-1).view(np.uint32)[..., 0] for pair in parts]
    got = vector(name, packed, encoding="VOP3P", mods={"op_sel_hi": 7})
    pick = min if "minimum" in name else max
    for half in range(2):
        expected = []
        for row in zip(*(pair[half].astype(float).flat for pair in parts), strict=True):
            expected.append(math.nan if any(map(math.isnan, row)) else pick(row))
        result = (got >> 16 * half).astype(np.uint16).view(np.float16)
        wanted = np.array(expected, np.float16).reshape(SHAPE)
        np.testing.assert_array_equal(result, wanted, err_msg=f"seed {SEED}")


@pytest.mark.parametrize("saturated", [False, True])
def test_overflow_of_half_precision(saturated: bool) -> None:
    """FP16_OVFL turns overflows into the largest number; infinities and poles stay infinite."""
    mode = Mode(fp16_overflow=saturated)
    big, infinity = np.full(SHAPE, 60000, np.float16), np.full(SHAPE, np.inf, np.float16)
    zero, most = np.zeros(SHAPE, np.float16), 65504 if saturated else np.inf
    cases = [
        ("v_add_f16", [big, big], most),
        ("v_mul_f16", [big, -big], -most),
        ("v_add_f16", [big, infinity], np.inf),
        ("v_rcp_f16", [zero], np.inf),
        ("v_cvt_f16_f32", [np.full(SHAPE, 1e6, np.float32)], most),
        ("v_cvt_f16_f32", [np.full(SHAPE, np.inf, np.float32)], np.inf),
    ]
    for name, sources, expected in cases:
        got = vector(name, sources, mode=mode).astype(np.uint16).view(np.float16)
        np.testing.assert_array_equal(got, np.float16(expected), err_msg=name)
    packed = np.stack([big, infinity], axis=-1).view(np.uint32)[..., 0]
    got = vector("v_pk_add_f16", [packed, packed], encoding="VOP3P", mods={"op_sel_hi": 3}, mode=mode)
    np.testing.assert_array_equal((got & 0xFFFF).astype(np.uint16).view(np.float16), np.float16(most))
    np.testing.assert_array_equal((got >> 16).astype(np.uint16).view(np.float16), np.inf)


def test_packed_results_flush_denormals() -> None:
    mode = Mode(denormals_f32=False, denormals_f16_f64=False, may_flush=True)
    tiny = np.full(SHAPE, 2.0**-20, np.float16)
    packed = np.stack([tiny, np.full(SHAPE, 2.0**-10, np.float16)], axis=-1).view(np.uint32)[..., 0]
    half = const(0x38003800, 255)
    got = vector("v_pk_mul_f16", [packed, half], encoding="VOP3P", mods={"op_sel_hi": 3}, mode=mode)
    assert (got == 0x1000_0000).all()  # 0 from a denormal source, and 2^-11
    dot = vector(
        "v_dot2_f32_f16",
        [packed, half, const(1, 255)],
        np.float32,
        encoding="VOP3P",
        mods={"op_sel_hi": 7},
        mode=mode,
    )
    assert (dot >= 2.0**-11).all()


def test_mode_register() -> None:
    """s_setreg and s_getreg of MODE: FP16_OVFL is bit 23, DX10_CLAMP bit 8."""
    state = batch()
    field = 1 | 23 << 6  # one bit
    execute(state, Instruction(0, 8, "s_setreg_imm32_b32", "SOPK", (), (), {"simm16": field, "imm": 1}))
    assert state.mode.fp16_overflow
    execute(state, Instruction(0, 4, "s_getreg_b32", "SOPK", (Operand(S, 4),), (), {"simm16": field}))
    assert (state.sgpr[:, 4] == 1).all()
    state.sgpr[:, 5] = 0
    for simm16 in (field, 1 | 8 << 6):
        execute(state, Instruction(0, 4, "s_setreg_b32", "SOPK", (), (Operand(S, 5),), {"simm16": simm16}))
    assert not state.mode.fp16_overflow
    assert not state.mode.dx10_clamp
