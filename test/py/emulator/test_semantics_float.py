"""Float vector instructions against exact arithmetic on fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from exact import FORMATS, finite, fma, rounded, same
from harness import SEED, SHAPE, batch, const, execute, floats, vector, words

from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.state import Mode

TYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
SPREAD = {"f16": 10, "f32": 40, "f64": 300}


def result_of(name: str, form: str, sources: list[np.ndarray], **options) -> np.ndarray:
    """The result as floats of the form; a float16 one must have zeroed the upper half."""
    if form != "f16":
        return vector(name, sources, TYPES[form], **options)
    register = vector(name, sources, **options)
    assert not (register >> 16).any()
    return register.astype(np.uint16).view(np.float16)


def elementwise(function, form: str, *sources: np.ndarray) -> np.ndarray:
    values = [function(*map(float, args)) for args in zip(*(x.flat for x in sources), strict=True)]
    with np.errstate(over="ignore"):
        return np.array(values, TYPES[form]).reshape(SHAPE)


OPERANDS = {
    "add": lambda a, b: (1.0, a, b),
    "sub": lambda a, b: (1.0, a, -b),
    "subrev": lambda a, b: (-1.0, a, b),
    "mul": lambda a, b: (a, b, -0.0),
}


@pytest.mark.parametrize("form", TYPES)
@pytest.mark.parametrize("name", OPERANDS)
def test_arithmetic_is_correctly_rounded(name: str, form: str) -> None:
    if form == "f64" and name.startswith("sub"):
        pytest.skip("gfx950 has no such instruction")
    rng = np.random.default_rng([SEED, *map(ord, name + form)])
    a, b = (floats(rng, TYPES[form], spread=SPREAD[form]) for _ in range(2))
    expected = elementwise(lambda x, y: fma(*OPERANDS[name](x, y), form), form, a, b)
    same(result_of(f"v_{name}_{form}", form, [a, b]), expected, f"seed {SEED}")


@pytest.mark.parametrize("form", TYPES)
@pytest.mark.parametrize("ties", [False, True])
def test_fma_rounds_once(form: str, ties: bool) -> None:
    rng = np.random.default_rng([SEED, *map(ord, form), ties])
    dtype, mantissa = TYPES[form], FORMATS[form][0]
    a, b, c = (floats(rng, dtype, spread=SPREAD[form]) for _ in range(3))
    if ties:
        # (1 + 2^-i)(1 + 2^-j) with i + j = bits is halfway between two numbers; c, however small, decides.
        i = rng.integers(1, mantissa + 1, SHAPE)
        a, b = ((1 + 2.0**-x).astype(dtype) for x in (i, mantissa + 1 - i))
        exponent = rng.integers(mantissa + 2, 25 if form == "f16" else 120, SHAPE)
        c = (rng.choice([-1, 0, 1], SHAPE) * 2.0**-exponent).astype(dtype)
    expected = elementwise(lambda x, y, z: fma(x, y, z, form), form, a, b, c)
    name = f"v_fma_{form}"
    old = np.zeros(SHAPE, np.uint32) if form == "f16" else None
    same(result_of(name, form, [a, b, c], old=old), expected, f"seed {SEED}")
    if form != "f16":
        same(vector(f"v_fmac_{form}", [a, b], dtype, old=c, encoding="VOP2"), expected, f"seed {SEED}")


@pytest.mark.parametrize("low", [0, 1])
def test_fma_of_float32_denormals_rounds_once(low: int) -> None:
    rng = np.random.default_rng([SEED, low])
    a = ((1 + rng.random(SHAPE)) * 2.0**-70).astype(np.float32)
    b = ((1 + rng.random(SHAPE)) * 2.0 ** -rng.integers(56, 80, SHAPE)).astype(np.float32)
    c = (rng.integers(-8, 9, SHAPE) * 2.0**-149 * low).astype(np.float32)
    # Just below a tie between denormals, closer than float64 can tell.
    a[:, 0], b[:, 0] = (1 + 2.0**-23) * 2.0**-75, (1 - 2.0**-23) * 2.0**-75
    c[:, 0] = (2.0**22 + 1) * 2.0**-149
    expected = elementwise(lambda x, y, z: fma(x, y, z, "f32"), "f32", a, b, c)
    same(vector("v_fma_f32", [a, b, c], np.float32), expected, f"seed {SEED}")


def ieee_pick(larger: bool):
    def pick(a: float, b: float) -> float:
        if math.isnan(a) or math.isnan(b):
            return a if math.isnan(b) else b
        if a == b == 0:
            signs = [math.copysign(1, a), math.copysign(1, b)]
            return 0.0 * (max(signs) if larger else min(signs))
        return max(a, b) if larger else min(a, b)

    return pick


@pytest.mark.parametrize("form", TYPES)
@pytest.mark.parametrize("larger", [True, False])
def test_min_and_max(form: str, larger: bool) -> None:
    rng = np.random.default_rng([SEED, *map(ord, form)])
    a, b = (floats(rng, TYPES[form]) for _ in range(2))
    expected = elementwise(ieee_pick(larger), form, a, b)
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    quiet_bit = unsigned.type(1 << FORMATS[form][0] - 1)
    signalling = [np.isnan(x) & (x.view(unsigned) & quiet_bit == 0) for x in (a, b)]
    expected[signalling[0] | signalling[1]] = np.nan
    result = result_of(f"v_{'max' if larger else 'min'}_{form}", form, [a, b])
    same(result, expected, f"seed {SEED}")
    assert (result.view(unsigned)[np.isnan(result)] & quiet_bit).all(), "a NaN result must be quiet"


@pytest.mark.parametrize("form", TYPES)
@pytest.mark.parametrize(
    ("name", "function"),
    [("floor", math.floor), ("ceil", math.ceil), ("trunc", math.trunc), ("rndne", round)],
)
def test_rounding_to_whole_numbers(name: str, function, form: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name + form)])
    a = floats(rng, TYPES[form])
    expected = elementwise(lambda x: math.copysign(float(function(x)), x) if finite(x) else x, form, a)
    same(result_of(f"v_{name}_{form}", form, [a]), expected, f"seed {SEED}")


#: name: (function, ulp of the result the ISA document allows).
TRANSCENDENTAL = {
    "exp": (lambda x: 2.0**x, 1),
    "log": (math.log2, 1),
    "rcp": (lambda x: 1 / x, 1),
    "rsq": (lambda x: 1 / math.sqrt(x), 1),
    "sqrt": (math.sqrt, 1),
    "sin": (lambda x: math.sin(2 * math.pi * (x - math.floor(x))), 16),
    "cos": (lambda x: math.cos(2 * math.pi * (x - math.floor(x))), 16),
}


@pytest.mark.parametrize("form", ["f16", "f32"])
@pytest.mark.parametrize("name", TRANSCENDENTAL)
def test_transcendental_within_their_bounds(name: str, form: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name + form)])
    function, ulps = TRANSCENDENTAL[name]
    a = (rng.standard_normal(SHAPE) * 2.0 ** rng.integers(-8, 4, SHAPE)).astype(TYPES[form])
    if name in ("log", "rsq", "sqrt"):
        a = np.abs(a) + TYPES[form](2**-10)
    expected = np.array([function(float(x)) for x in a.flat]).reshape(SHAPE)
    result = result_of(f"v_{name}_{form}", form, [a]).astype(np.float64)
    limits = np.finfo(TYPES[form])
    with np.errstate(over="ignore", invalid="ignore"):
        unit = np.spacing(np.abs(expected).astype(TYPES[form])).astype(np.float64)
        # Near its zeros a sine is as exact as the turns it is computed from, not as its own ulp.
        floor = float(np.spacing(TYPES[form](1))) / 8 if name in ("sin", "cos") else 0.0
        close = np.abs(result - expected) <= ulps * np.maximum(unit, floor)
    overflow = np.isinf(result) & (np.abs(expected) > float(limits.max))
    assert (close | overflow).all(), f"seed {SEED}"


def test_transcendental_special_values() -> None:
    inf, nan, tiny = np.inf, np.nan, 2.0**-149
    cases = {
        "v_exp_f32": [(0, 1), (-0.0, 1), (inf, inf), (-inf, 0), (nan, nan), (200, inf), (-200, 0), (-127, 0)],
        "v_log_f32": [(0, -inf), (-0.0, -inf), (1, 0), (inf, inf), (-1, nan), (nan, nan), (tiny, -inf)],
        "v_rcp_f32": [(0, inf), (-0.0, -inf), (inf, 0), (-inf, -0.0), (nan, nan), (tiny, inf), (2.0**127, 0)],
        "v_rsq_f32": [(0, inf), (-0.0, -inf), (inf, 0), (-1, nan), (4, 0.5)],
        "v_sqrt_f32": [(0, 0), (-0.0, -0.0), (inf, inf), (-1, nan), (4, 2)],
        "v_fract_f32": [(-0.25, 0.75), (1.5, 0.5), (-(2.0**-30), 1 - 2.0**-24), (inf, nan)],
    }
    for name, pairs in cases.items():
        for value, expected in pairs:
            result = vector(name, [np.full(SHAPE, value, np.float32)], np.float32)
            same(result, np.full(SHAPE, expected, np.float32), f"{name} of {value}")


@pytest.mark.parametrize("form", ["f32", "f64"])
def test_division_sequence_is_correctly_rounded(form: str) -> None:
    """div_scale, an exact-enough reciprocal by fma steps, div_fmas and div_fixup give n / d rounded once."""
    rng = np.random.default_rng([SEED, *map(ord, form)])
    dtype = TYPES[form]
    numerator = floats(rng, dtype, spread=SPREAD[form])
    denominator = floats(rng, dtype, spread=SPREAD[form])
    state = batch()
    width = np.dtype(dtype).itemsize // 4

    def reg(at: int) -> Operand:
        return Operand(OperandKind.VGPR, 2 * at, width)

    def do(name: str, dst: tuple[Operand, ...], *src: Operand, **mods: int) -> None:
        execute(state, Instruction(0, 8, name, "VOP3", dst, src, mods))

    n, d, nd, ds, ns, r, e, q = map(reg, range(8))
    spare = Operand(OperandKind.SGPR, 4, 2)
    vcc = Operand(OperandKind.SGPR, 106, 2)
    one = const(int(np.array(1, dtype).view(f"u{np.dtype(dtype).itemsize}")), 242)
    for operand, values in ((n, numerator), (d, denominator)):
        state.vgpr[operand.index : operand.index + width] = words(values)
    do(f"v_div_scale_{form}", (ds, spare), d, d, n)
    do(f"v_div_scale_{form}", (ns, vcc), n, d, n)
    do(f"v_rcp_{form}", (r,), ds)
    for _ in range(2):
        do(f"v_fma_{form}", (e,), ds, r, one, neg=1)
        do(f"v_fma_{form}", (r,), e, r, r)
    do(f"v_mul_{form}", (q,), ns, r)
    if form == "f32":  # one more step, as LLVM's sequence for float32 has
        do(f"v_fma_{form}", (e,), ds, q, ns, neg=1)
        do(f"v_fma_{form}", (q,), e, r, q)
    do(f"v_fma_{form}", (e,), ds, q, ns, neg=1)
    do(f"v_div_fmas_{form}", (nd,), e, r, q)
    do(f"v_div_fixup_{form}", (nd,), nd, d, n)
    rows = state.vgpr[nd.index : nd.index + width]
    result = np.ascontiguousarray(np.moveaxis(rows, 0, -1)).view(dtype)[..., 0]

    def divide(x: float, y: float) -> float:
        if math.isnan(x) or math.isnan(y) or (x == y == 0) or (math.isinf(x) and math.isinf(y)):
            return math.nan
        sign = math.copysign(1, x) * math.copysign(1, y)
        if math.isinf(x) or y == 0:
            return math.copysign(math.inf, sign)
        if x == 0 or math.isinf(y):
            return math.copysign(0, sign)
        return math.copysign(float(rounded(Fraction(x) / Fraction(y), form)), sign)

    expected = elementwise(divide, form, numerator, denominator)
    normal = ~(np.abs(expected) < np.finfo(dtype).smallest_normal) | (expected == 0)
    same(
        np.where(normal, result, 0).astype(dtype), np.where(normal, expected, 0).astype(dtype), f"seed {SEED}"
    )


def test_modifiers_apply_in_order() -> None:
    rng = np.random.default_rng(SEED)
    a, b = (floats(rng, np.float32) for _ in range(2))
    with np.errstate(all="ignore"):
        negated = -np.abs(a) + b
        same(vector("v_add_f32", [a, b], np.float32, mods={"neg": 1, "abs": 1}), negated)
        for omod, scale in ((1, 2.0), (2, 4.0), (3, 0.5)):
            same(vector("v_add_f32", [a, b], np.float32, mods={"omod": omod}), (a + b) * np.float32(scale))
        total = a + b
    clamped = np.array([min(max(x, 0.0), 1.0) if x == x else 0.0 for x in total.flat], np.float32).reshape(
        SHAPE
    )
    same(vector("v_add_f32", [a, b], np.float32, mods={"clamp": 1}), clamped + 0.0)


def test_denormals_follow_the_mode() -> None:
    rng = np.random.default_rng(SEED)
    a = (rng.standard_normal(SHAPE) * 2.0**-127).astype(np.float32)
    zero = np.zeros(SHAPE, np.float32)
    same(vector("v_add_f32", [a, zero], np.float32), a + 0.0)
    flushed = np.where(np.abs(a) < 2.0**-126, np.float32(0), a)
    result = vector("v_add_f32", [a, zero], np.float32, mode=Mode(denormals_f32=False, may_flush=True))
    np.testing.assert_array_equal(result, flushed)
    # Sources are flushed too: without that the product would be about 1.
    huge = np.full(SHAPE, 2.0**127, np.float32)
    product = vector("v_mul_f32", [a, huge], np.float32, mode=Mode(denormals_f32=False, may_flush=True))
    np.testing.assert_array_equal(product, flushed * huge)


CLASSES = ["snan", "qnan", "-inf", "-normal", "-denormal", "-0", "+0", "+denormal", "+normal", "+inf"]


def class_of(bits: int) -> str:
    exponent, mantissa, sign = bits >> 23 & 255, bits & 0x7FFFFF, "-" if bits >> 31 else "+"
    if exponent == 255:
        return f"{sign}inf" if not mantissa else "qnan" if mantissa >> 22 else "snan"
    return sign + ("normal" if exponent else "denormal" if mantissa else "0")


def test_compare_class() -> None:
    rng = np.random.default_rng(SEED)
    a = floats(rng, np.float32)
    classes = rng.integers(0, 1024, SHAPE, dtype=np.uint32)
    state = batch()
    state.vgpr[2], state.vgpr[4] = a.view(np.uint32), classes
    sources = tuple(Operand(OperandKind.VGPR, i) for i in (2, 4))
    execute(state, Instruction(0, 8, "v_cmp_class_f32", "VOP3", (Operand(OperandKind.SGPR, 6, 2),), sources))
    expected = [
        bool(int(wanted) >> CLASSES.index(class_of(int(bits))) & 1)
        for bits, wanted in zip(a.view(np.uint32).flat, classes.flat, strict=True)
    ]
    np.testing.assert_array_equal(state.lanes_of(6).ravel(), expected)
