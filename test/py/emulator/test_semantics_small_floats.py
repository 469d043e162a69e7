"""Conversions to and from 8-, 6- and 4-bit floats, element by element with fractions and ml_dtypes' tables."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from harness import SEED, SHAPE, V, batch, const, execute

from flycc.emulator.isa.instruction import Instruction, Operand
from flycc.emulator.isa.opcodes import OPCODES
from flycc.emulator.state import Mode

SMALL = {
    "fp8": (8, ml_dtypes.float8_e4m3fn, 3),
    "bf8": (8, ml_dtypes.float8_e5m2, 2),
    "fp6": (6, ml_dtypes.float6_e2m3fn, 3),
    "bf6": (6, ml_dtypes.float6_e3m2fn, 2),
    "fp4": (4, ml_dtypes.float4_e2m1fn, 1),
}
WIDE = {"f32": (np.float32, 23), "f16": (np.float16, 10), "bf16": (ml_dtypes.bfloat16, 7)}
TABLES = {
    name: np.arange(1 << bits, dtype=np.uint8).view(dtype).astype(np.float64).tolist()
    for name, (bits, dtype, _) in SMALL.items()
}
NAMES = sorted({o.name for o in OPCODES.values() if re.search(r"v_cvt.*_(fp8|bf8|fp6|bf6|fp4)(_|$)", o.name)})
SOURCE_AT, SCALE_AT, RANDOM_AT, DESTINATION_AT = 2, 36, 37, 40
JUNK = 0xDEADBEEF


def encoded(value: float, kind: str, saturate: bool, dither: Fraction | None) -> int:
    """The code of a number: nearest, ties to the even code; or cut off after `dither` last places are added."""
    bits, _, _ = SMALL[kind]
    table = TABLES[kind][: 1 << bits - 1]
    finite = [Fraction(v) for v in table if math.isfinite(v)]
    sign = (1 << bits - 1) if math.copysign(1, value) < 0 else 0
    if math.isnan(value):
        return (0x7F if bits == 8 else len(finite) - 1) | sign
    beyond = {"fp8": 0x7F, "bf8": 0x7C}.get(kind, len(finite) - 1)
    if math.isinf(value):
        return beyond | sign
    size = abs(Fraction(value))
    last = finite[-1] - finite[-2]
    steps = [*finite, finite[-1] + last]
    if size >= steps[-1]:
        code = len(finite)
    else:
        low = max(i for i, v in enumerate(steps) if v <= size)
        gap = steps[low + 1] - steps[low] if low + 1 < len(steps) else last
        part = (size - steps[low]) / gap
        if dither is not None:
            code = low + (part + dither >= 1)
        else:
            code = low + (part > Fraction(1, 2) or (part == Fraction(1, 2) and low % 2 == 1))
    if code >= len(finite):
        code = len(finite) - 1 if saturate else beyond
    return code | sign


def step(state: int) -> int:
    """v_prng_b32."""
    return (state << 1 & 0xFFFFFFFF) ^ (197 if state >> 31 else 0)


def numbers(rng: np.random.Generator, kind: str, count: int, scale: np.ndarray) -> np.ndarray:
    """[2, 64, count] around what the scaled formats hold, with ties, denormals and special values."""
    dtype = WIDE[kind][0]
    with np.errstate(all="ignore"):
        values = rng.standard_normal((*SHAPE, count)) * 2.0 ** rng.integers(-12, 12, (*SHAPE, count))
        ties = rng.integers(-64, 65, (*SHAPE, count)) / 16 * 2.0 ** rng.integers(-8, 4, (*SHAPE, count))
        values = np.where(rng.integers(0, 2, values.shape), ties, values) * scale[..., None]
        special = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 448, -464, 61440], values.shape)
        return np.where(rng.integers(0, 8, values.shape), values, special).astype(dtype)


def write_values(state, first: int, values: np.ndarray) -> int:
    """Put [2, 64, n] into registers from `first`; returns how many. A lone 16-bit number is zero-extended."""
    if values.dtype.itemsize == 2 and values.shape[-1] == 1:
        values = np.concatenate([values, np.zeros_like(values)], axis=-1)
    rows = np.moveaxis(np.ascontiguousarray(values).view(np.uint32), -1, 0)
    state.vgpr[first : first + len(rows)] = rows
    return len(rows)


def fields(state, first: int, bits: int, count: int) -> np.ndarray:
    """`count` fields of `bits` from registers, [2, 64, count] of int."""
    out = np.zeros((*SHAPE, count), object)
    rows = -(-bits * count // 32)
    for at in np.ndindex(*SHAPE):
        whole = sum(int(state.vgpr[(first + r, *at)]) << 32 * r for r in range(rows))
        for i in range(count):
            out[(*at, i)] = whole >> bits * i & (1 << bits) - 1
    return out


def scales(rng: np.random.Generator, wanted: bool, spread: int) -> tuple[np.ndarray, np.ndarray]:
    """float32 scale operands, whose sign and mantissa mean nothing, and the powers of two they stand for."""
    exponent = rng.integers(127 - spread, 128 + spread, SHAPE)
    bits = (exponent << 23 | rng.integers(0, 1 << 23, SHAPE) | rng.integers(0, 2, SHAPE) << 31).astype(
        np.uint32
    )
    return bits, 2.0 ** (exponent - 127.0) if wanted else np.ones(SHAPE)


PARSED = re.compile(r"v_cvt_(scalef32_)?(sr_)?(?:(pk|pk32|2xpk16)_)?(\w+?)_(\w+)")


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("name", [n for n in NAMES if PARSED.fullmatch(n)[4] in SMALL])
def test_to_small(name: str, saturate: bool) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name), saturate])
    scaled, stochastic, packing, kind, source = PARSED.fullmatch(name).groups()
    bits, _, mantissa = SMALL[kind]
    count = {None: 1, "pk": 2, "pk32": 32, "2xpk16": 32}[packing]
    scale_bits, scale = scales(rng, bool(scaled), 20 if source == "f32" else 3)
    values = numbers(rng, source, count, scale)
    random = rng.integers(0, 2**32, SHAPE, dtype=np.uint32)
    state = batch(mode=Mode(fp16_overflow=saturate))
    state.vgpr[SCALE_AT], state.vgpr[RANDOM_AT] = scale_bits, random
    state.vgpr[DESTINATION_AT : DESTINATION_AT + 6] = JUNK
    separate = packing == "2xpk16" or (packing == "pk" and source == "f32" and not stochastic)
    if separate:
        half = count // 2
        used = write_values(state, SOURCE_AT, np.ascontiguousarray(values[..., 0::2]))
        write_values(state, SOURCE_AT + half, np.ascontiguousarray(values[..., 1::2]))
        operands = [Operand(V, SOURCE_AT, used), Operand(V, SOURCE_AT + half, used)]
    else:
        operands = [Operand(V, SOURCE_AT, write_values(state, SOURCE_AT, values))]
    if stochastic:
        operands.append(Operand(V, RANDOM_AT))
    if scaled:
        operands.append(Operand(V, SCALE_AT))
    parts = 1 if count == 32 else 32 // (bits * count)
    part = int(rng.integers(parts))
    mods = {} if count == 32 else {"op_sel": part << (3 if parts == 2 else 2)}
    target = Operand(V, DESTINATION_AT, 6 if count == 32 else 1)
    execute(state, Instruction(0, 8, name, "VOP3", (target,), tuple(operands), mods))
    got = fields(state, DESTINATION_AT, bits, 32 if count == 32 else 32 // bits)
    dropped = WIDE[source][1] - mantissa
    for at in np.ndindex(*SHAPE):
        seed = int(random[at])
        expected = [JUNK >> bits * i & (1 << bits) - 1 for i in range(got.shape[-1])]
        for i in range(count):
            dither = Fraction(seed >> 32 - dropped, 1 << dropped) if stochastic else None
            value = float(values[(*at, i)]) / scale[at]
            expected[part * count * (count < 32) + i] = encoded(value, kind, saturate, dither)
            seed = step(seed)
        assert got[at].tolist() == expected, f"at {at}, seed {SEED}: {values[at].tolist()} by {scale[at]}"


@pytest.mark.parametrize(
    "name", [n for n in NAMES if PARSED.fullmatch(n)[5] in SMALL and PARSED.fullmatch(n)[4] in WIDE]
)
def test_from_small(name: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    scaled, _, packing, kind, source = PARSED.fullmatch(name).groups()
    bits = SMALL[source][0]
    dtype = WIDE[kind][0]
    count = {None: 1, "pk": 2, "pk32": 32}[packing]
    scale_bits, scale = scales(rng, bool(scaled), 24)
    state = batch()
    words = rng.integers(0, 2**32, (6, *SHAPE), dtype=np.uint32)
    state.vgpr[SOURCE_AT : SOURCE_AT + 6] = words
    state.vgpr[SCALE_AT] = scale_bits
    state.vgpr[DESTINATION_AT : DESTINATION_AT + 32] = JUNK
    parts = 1 if count == 32 or not scaled else 32 // (bits * count)
    part = int(rng.integers(parts))
    high = kind == "f16" and count == 1 and int(rng.integers(2))
    operands = [Operand(V, SOURCE_AT, 6 if count == 32 else 1)] + [Operand(V, SCALE_AT)] * bool(scaled)
    rows = max(1, np.dtype(dtype).itemsize * count // 4)
    inst = Instruction(
        0, 8, name, "VOP3", (Operand(V, DESTINATION_AT, rows),), tuple(operands), {"op_sel": part | high << 3}
    )
    execute(state, inst)
    codes = fields(state, SOURCE_AT, bits, 32 if count == 32 else 32 // bits)
    width = 8 * np.dtype(dtype).itemsize
    got = fields(state, DESTINATION_AT, width, max(count, 32 // width))
    for at in np.ndindex(*SHAPE):
        values = [
            TABLES[source][codes[(*at, part * count * (count < 32) + i)]] * scale[at] for i in range(count)
        ]
        with np.errstate(all="ignore"):
            expected = np.array(values).astype(np.float32).astype(dtype)
        for i, value in enumerate(expected):
            bits_got = np.array(got[(*at, i + high)], f"u{width // 8}").view(dtype)
            same = bits_got == value and math.copysign(1, bits_got) == math.copysign(1, value)
            assert same or (np.isnan(bits_got) and np.isnan(value)), f"seed {SEED}"
        if count == 1 and width == 16:
            assert got[(*at, 1 - high)] == JUNK >> 16 * (1 - high) & 0xFFFF


def test_a_scale_of_nan_and_the_smallest() -> None:
    state = batch()
    state.vgpr[2, 0], state.vgpr[2, 1] = 0x7F800000, 0x00000001  # exponent 255; a denormal, exponent 0
    state.vgpr[3] = np.float32(2.0**-126).view(np.uint32)
    operands = (Operand(V, 3), Operand(V, 3), Operand(V, 2))
    execute(state, Instruction(0, 8, "v_cvt_scalef32_pk_fp8_f32", "VOP3", (Operand(V, 4),), operands, {}))
    assert (state.vgpr[4, 0] == 0x7F7F).all()
    assert (state.vgpr[4, 1] == 0x4040).all()  # 2^-126 / 2^-127 = 2


@pytest.mark.parametrize("name", ["v_cvt_sr_f16_f32", "v_cvt_sr_bf16_f32"])
def test_stochastic_rounding_to_16_bits(name: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    kind = name.split("_")[3]
    dtype, mantissa = WIDE[kind]
    least = -14 if kind == "f16" else -126
    values = (rng.standard_normal(SHAPE) * 2.0 ** rng.integers(-20, 12, SHAPE)).astype(np.float32)
    random = rng.integers(0, 2**32, SHAPE, dtype=np.uint32)
    state = batch()
    state.vgpr[2], state.vgpr[3], state.vgpr[4] = values.view(np.uint32), random, JUNK
    mods = {"op_sel": 8}
    execute(state, Instruction(0, 8, name, "VOP3", (Operand(V, 4),), (Operand(V, 2), Operand(V, 3)), mods))
    assert (state.vgpr[4] & 0xFFFF == JUNK & 0xFFFF).all()
    got = (state.vgpr[4] >> 16).astype(np.uint16).view(dtype)
    dropped = 23 - mantissa
    for at in np.ndindex(*SHAPE):
        size = abs(Fraction(float(values[at])))
        unit = Fraction(2) ** (max(math.frexp(float(size))[1] - 1, least) - mantissa)
        whole = math.floor(size / unit + Fraction(int(random[at]) >> 32 - dropped, 1 << dropped))
        assert float(got[at]) == math.copysign(float(whole * unit), float(values[at])), f"seed {SEED}"


def test_mean_of_stochastic_rounding_is_the_number() -> None:
    state = batch()
    rng = np.random.default_rng(SEED)
    total = 0.0
    draws = 40
    for _ in range(draws):
        state.vgpr[2] = np.float32(1.3).view(np.uint32)
        state.vgpr[3] = rng.integers(0, 2**32, SHAPE, dtype=np.uint32)
        operands = (Operand(V, 2), Operand(V, 3))
        execute(state, Instruction(0, 8, "v_cvt_sr_fp8_f32", "VOP3", (Operand(V, 4),), operands, {}))
        codes = (state.vgpr[4] & 255).astype(np.uint8)
        total += codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64).mean()
    # Results are 1.25 or 1.375; the mean of 5,120 of them has a standard deviation below 0.125 / 2 / 71.
    assert abs(total / draws - 1.3) < 6 * 0.125 / 2 / math.sqrt(draws * 128)


def test_sdwa_picks_the_byte() -> None:
    rng = np.random.default_rng(SEED)
    codes = rng.integers(0, 2**32, SHAPE, dtype=np.uint32)
    for byte in range(4):
        state = batch()
        state.vgpr[2] = codes
        mods = {"src0_sel": byte}
        execute(state, Instruction(0, 8, "v_cvt_f32_fp8", "SDWA", (Operand(V, 4),), (Operand(V, 2),), mods))
        expected = np.array(TABLES["fp8"], np.float32)[codes >> 8 * byte & 255]
        np.testing.assert_array_equal(state.vgpr[4].view(np.float32), expected)
    state.vgpr[2] = codes
    inst = Instruction(
        0, 8, "v_cvt_pk_f32_bf8", "SDWA", (Operand(V, 4, 2),), (Operand(V, 2),), {"src0_sel": 5}
    )
    execute(state, inst)
    for i in range(2):
        expected = np.array(TABLES["bf8"], np.float32)[codes >> 16 + 8 * i & 255]
        np.testing.assert_array_equal(state.vgpr[4 + i].view(np.float32), expected)


def test_random_generator() -> None:
    rng = np.random.default_rng(SEED)
    values = rng.integers(0, 2**32, SHAPE, dtype=np.uint32)
    state = batch()
    state.vgpr[2] = values
    execute(state, Instruction(0, 4, "v_prng_b32", "VOP1", (Operand(V, 4),), (Operand(V, 2),)))
    assert state.vgpr[4].ravel().tolist() == [step(int(v)) for v in values.flat]


def test_scalar_sources() -> None:
    state = batch()
    operands = (const(0x40000000, 244), const(0xC0000000, 245), const(0x3F800000, 242))
    execute(state, Instruction(0, 8, "v_cvt_scalef32_pk_fp8_f32", "VOP3", (Operand(V, 4),), operands, {}))
    assert (state.vgpr[4] == 0xC040).all()
