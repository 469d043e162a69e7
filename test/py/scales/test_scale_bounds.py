"""Bounds against the published constants, and against what they are bounds of: exact arithmetic on fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flycc.scales.bounds import derive, element_bytes
from flycc.scales.formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    F16,
    F32,
    FORMATS,
    MXINT8,
    FloatType,
    Format,
    ceil_lg,
    lg,
    sums_are_exact,
)
from flycc.scales.ranges import (
    UNKNOWN,
    Range,
    hoist,
    ok,
    order_free,
    quantised,
    scan,
    spread_limit,
)
from flycc.scales.trees import Tree

SIGNIFICAND = {"f32": 24, "bf16": 8, "f16": 11}


def leaves_below(tree: Tree) -> list[int]:
    """Leaves of every node, in order, from the tree's additions alone."""
    counts = [1] * tree.leaves
    for left, right in tree.nodes():
        counts.append(counts[left] + counts[right])
    return counts


@pytest.mark.parametrize("name", ["balanced", "chain", "blocked"])
@pytest.mark.parametrize("leaves", [1, 2, 3, 4, 7, 8, 31, 32, 64, 100, 1000])
def test_nodes_make_one_sum_and_the_larger_child_is_the_roots(name: str, leaves: int) -> None:
    tree = Tree(name, leaves, 32 if name == "blocked" else None)
    nodes = tree.nodes()
    used = [child for pair in nodes for child in pair]
    assert sorted(used) == list(range(2 * leaves - 2))
    counts = leaves_below(tree)
    assert counts[-1] == leaves
    assert tree.larger == (max(counts[child] for child in nodes[-1]) if nodes else 1)
    assert Tree("any", leaves).larger >= tree.larger


def test_a_chain_adds_from_the_left() -> None:
    assert Tree("chain", 4).nodes() == [(0, 1), (4, 2), (5, 3)]
    assert Tree("balanced", 4).nodes() == [(0, 1), (2, 3), (4, 5)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tree", 4), "balanced, chain"),
        (("chain", 0), "at least 1"),
        (("blocked", 4), "block"),
        (("chain", 4, 2), "block"),
    ],
)
def test_what_is_no_tree(arguments: tuple, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Tree(*arguments)


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_logarithms(x: float) -> None:
    assert Fraction(2) ** lg(x) <= Fraction(x) < Fraction(2) ** (lg(x) + 1)
    assert Fraction(2) ** (ceil_lg(x) - 1) < Fraction(x) <= Fraction(2) ** ceil_lg(x)


# k: s_hi of a balanced tree, of a chain.
E2M1_HIGH = {2: (122, 122), 4: (121, 121), 8: (120, 120), 16: (119, 118), 32: (118, 117), 64: (117, 116)}


@pytest.mark.parametrize("k", E2M1_HIGH)
def test_e2m1(k: int) -> None:
    for name, high in zip(("balanced", "chain"), E2M1_HIGH[k], strict=True):
        guard = derive(E2M1, E2M1, Tree(name, k), "product")
        assert (guard.sum_min - 254, guard.sum_max - 254, guard.any_order) == (-147, high, True)
        assert derive(E2M1, E2M1, Tree(name, k), "product", flush=True).sum_min - 254 == -124


# formats: q, P, exact up to K, s_lo, s_lo to flush, s_hi of a balanced tree of 32 and of a chain.
CONSTANTS = [
    (E2M1, E2M1, 116508, -147, -124, 118, 117),
    (E2M3, E2M3, 4660, -143, -120, 118, 117),
    (E3M2, E3M2, 83, -141, -118, 114, 113),
    (MXINT8, MXINT8, 1024, -137, -114, 121, 121),
    (E4M3, E4M3, 1, -131, -108, 106, 105),
    (E5M2, E5M2, 1, -117, -94, 92, 91),
    (E2M1, E4M3, 6, -139, -116, 112, 111),
    (E2M1, E5M2, 1, -132, -109, 105, 104),
]


@pytest.mark.parametrize(("a", "b", "exact", "low", "low_flush", "balanced", "chain"), CONSTANTS)
def test_constants_of_formats(
    a: Format, b: Format, exact: int, low: int, low_flush: int, balanced: int, chain: int
) -> None:
    guards = [
        derive(a, b, Tree(name, 32), "product", flush=flush)
        for name in ("balanced", "chain")
        for flush in (False, True)
    ]
    assert [g.sum_min - 254 for g in guards] == [low, low_flush] * 2
    assert [g.sum_max - 254 for g in guards] == [balanced] * 2 + [chain] * 2
    assert not sums_are_exact(a, b, exact + 1)
    assert sums_are_exact(a, b, exact)


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("operand", [F32, BF16, F16], ids=lambda t: t.name)
@pytest.mark.parametrize("element", FORMATS.values(), ids=lambda f: f.name)
def test_element_bytes_are_those_of_representable_elements(
    element: Format, operand: FloatType, flush: bool
) -> None:
    """Against the definition: the least and the greatest element, and one with all significant bits, times 2^e."""
    significant = 2**element.bits - 1
    elements = [
        Fraction(1, 2**element.q),
        Fraction(significant, 2**element.q),
        Fraction(element.maximum),
    ]
    least = Fraction(2) ** (operand.normal if flush else operand.subnormal)

    def representable(value: Fraction) -> bool:
        unit = max(
            Fraction(2) ** operand.subnormal, Fraction(2) ** (lg_of(value) - SIGNIFICAND[operand.name] + 1)
        )
        return least <= value < Fraction(2) ** (operand.greatest + 1) and (value / unit).denominator == 1

    legal = [
        byte for byte in range(255) if all(representable(x * Fraction(2) ** (byte - 127)) for x in elements)
    ]
    assert element_bytes(element, operand, flush) == ((legal[0], legal[-1]) if legal else None)
    assert not legal or len(legal) == legal[-1] - legal[0] + 1


def lg_of(value: Fraction) -> int:
    return math.floor(value).bit_length() - 1 if value >= 1 else -((math.ceil(1 / value) - 1).bit_length())


@pytest.mark.parametrize(
    ("element", "operand", "flush", "expected"),
    [
        (E2M1, BF16, False, (0, 252)), (E2M1, BF16, True, (2, 252)), (E4M3, BF16, False, (3, 246)),
        (E4M3, BF16, True, (10, 246)), (E5M2, BF16, False, (10, 239)), (E3M2, BF16, False, (0, 250)),
        (E2M1, F16, False, (104, 140)), (E4M3, F16, False, (112, 134)), (E5M2, F16, False, (119, 127)),
        (E2M1, F16, True, (114, 140)), (E5M2, F16, True, None),
    ],
)  # fmt: skip
def test_element_bytes(
    element: Format, operand: FloatType, flush: bool, expected: tuple[int, int] | None
) -> None:
    assert element_bytes(element, operand, flush) == expected


def test_one_sided() -> None:
    guard = derive(E2M1, E2M1, Tree("any", 32), "one_sided")
    assert (guard.sum_min, guard.sum_max, guard.b_min, guard.b_max) == (0, 508, 0, 244)
    flushed = derive(E2M1, E2M1, Tree("any", 32), "one_sided", flush=True)
    assert (flushed.a_min, flushed.b_min, flushed.b_max) == (1, 3, 244)
    assert (flushed.sum_min, flushed.sum_max) == (130, 508)  # below it, one side may be flushed alone
    # All of the sum is inside, and not only a child of its root.
    assert derive(E2M1, E2M1, Tree("balanced", 32), "one_sided").b_max == 244
    assert derive(E2M1, E2M1, Tree("balanced", 31), "one_sided").b_max == 244
    assert derive(E2M1, E2M1, Tree("balanced", 28), "one_sided").b_max == 245
    half = derive(E5M2, E4M3, Tree("any", 32), "one_sided", operand=F16)
    assert (half.a_min, half.a_max, half.b_min, half.b_max) == (0, 254, 112, 134)
    # A product of e5m2 has 32 bits below the point: with 2^-127 inside, those below 2^-149 would be lost.
    assert derive(E5M2, E5M2, Tree("any", 32), "one_sided").b_min == 10


def test_placements_that_are_the_same_and_decoders_of_zero() -> None:
    block = derive(E4M3, E4M3, Tree("chain", 32), "block")
    assert (block.sum_min, block.sum_max, block.any_order) == (0, 508, False)
    assert derive(E2M1, E2M1, Tree("balanced", 32), "operand").sum_max == 371
    assert derive(E2M1, E2M1, Tree("chain", 32), "product", contracted=True).sum_max == 371
    assert derive(E2M1, E2M1, Tree("chain", 29), "product").sum_max == 372
    assert derive(E2M1, E2M1, Tree("chain", 29), "block", contracted=True).sum_max == 371
    for placement in ("element", "product", "one_sided", "operand", "block"):
        shifted = derive(E2M1, E2M1, Tree("chain", 32), placement, zero_byte_exact=False)
        assert (shifted.a_min, shifted.b_min) == (1, 1)
    # A sum with one scale inside that goes on into a multiply-add must be exact as a whole, too.
    fused = derive(E2M1, E2M1, Tree("chain", 32), "one_sided", contracted=True)
    assert (fused.sum_min, fused.sum_max, fused.b_min, fused.b_max) == (107, 371, 0, 244)
    nothing = derive(E5M2, E5M2, Tree("chain", 32), "element", operand=F16, flush=True)
    assert not any(ok(nothing, Range(x, x), Range(x, x)) for x in range(255))
    with pytest.raises(ValueError, match="hoist"):
        derive(E2M1, E2M1, Tree("chain", 32), "hoisted")


def test_the_guard_of_a_kernel() -> None:
    """Of MXFP4, dequantised to float32 in blocks of 32: what the compiled check compares with."""
    guard = derive(E2M1, E2M1, Tree("any", 32), "element")
    assert str(guard) == "107 <= a + b <= 371, 0 <= a <= 252, 0 <= b <= 252"
    assert ok(guard, Range(107, 119), Range(0, 252))
    assert not ok(guard, Range(106, 119), Range(0, 252))
    assert not ok(guard, Range(107, 120), Range(0, 252))
    assert not ok(guard, Range(107, 107), Range(0, 253))
    assert ok(guard, Range(127, 127, nan=True), Range(127, 127))
    assert not ok(guard, Range(127, 127, nan=True), Range(127, 127), nan_propagates=False)


@given(st.binary(max_size=40), st.lists(st.booleans(), min_size=40, max_size=40))
def test_scan(scales: bytes, zeros: list[bool]) -> None:
    found = scan(scales, zeros[: len(scales)])
    numbers = [x for x in scales if x != 255]
    assert found.nan == (255 in scales)
    assert found.hi == max(numbers, default=127)
    counted = [x for x, zero in zip(scales, zeros, strict=False) if x != 255 and not zero]
    assert found.lo == min(counted or [found.hi])
    assert scan(scales).lo == min(numbers, default=127)
    whole = scan(scales[:20]) | scan(scales[20:]) if len(numbers) and min(len(scales), 20) else scan(scales)
    assert whole.lo <= scan(scales).lo
    assert whole.hi >= scan(scales).hi


def test_ranges_of_nothing() -> None:
    assert scan(b"") == Range(127, 127)
    assert scan(b"\xff\xff") == Range(127, 127, True)
    assert str(UNKNOWN) == "0..254 and NaN"
    with pytest.raises(ValueError, match="0 <= lo <= hi <= 254"):
        Range(3, 2)
    with pytest.raises(ValueError, match="0 <= lo <= hi <= 254"):
        Range(3, 255)


SPREADS = {64: 10, 128: 9, 1024: 6, 2048: 5, 4096: 4, 8192: 3, 16384: 2}


@pytest.mark.parametrize("k", SPREADS)
def test_spread(k: int) -> None:
    spread = SPREADS[k]
    assert spread_limit(E2M1, E2M1, k) == spread
    assert order_free(E2M1, E2M1, k, Range(120, 120 + spread), Range(127, 127))
    assert not order_free(E2M1, E2M1, k, Range(120, 121 + spread), Range(127, 127))
    assert not order_free(E2M1, E2M1, k, Range(0, 0), Range(106, 106))
    assert order_free(E2M1, E2M1, k, Range(0, 0), Range(107, 107))
    assert not order_free(E2M1, E2M1, k, Range(0, 0), Range(107, 107), flush=True)
    assert spread_limit(E4M3, E4M3, k) is None
    assert not order_free(E4M3, E4M3, k, Range(127, 127), Range(127, 127))
    high = 127 - lg(36 * k) + 254
    assert order_free(E2M1, E2M1, k, Range(high - 254, high - 254), Range(254, 254))
    assert not order_free(E2M1, E2M1, k, Range(high - 253, high - 253), Range(254, 254))
    nan = Range(127, 127, nan=True)
    assert order_free(E2M1, E2M1, k, nan, Range(127, 127))
    assert not order_free(E2M1, E2M1, k, nan, Range(127, 127), nan_propagates=False)
    assert not order_free(E2M1, E2M1, k, Range(127, 127), nan, nan_propagates=False)


def test_a_sum_of_nothing() -> None:
    assert order_free(E2M1, E2M1, 0, Range(127, 127), Range(127, 127))


def test_sums_of_the_greatest_products_that_round_up() -> None:
    """P times leaves is below a power of two, and the float32 sum, of blocks of three in a chain, is not."""
    tree = Tree("blocked", 149025, 3)
    guard = derive(E2M3, E2M3, tree, "product")
    size = E2M3.maximum**2 * 3
    assert lg(size / 3 * tree.larger) == 22

    def total(exponent: int) -> np.float32:
        parts = np.full(tree.leaves // 3, np.ldexp(size, exponent), np.float32)
        parts[-1] *= -1
        with np.errstate(over="ignore"):
            return np.cumsum(parts, dtype=np.float32)[-1]

    assert np.isinf(total(105))
    assert np.isfinite(np.ldexp(total(0), 105, dtype=np.float32))
    assert guard.sum_max - 254 == 104
    assert total(104) == np.ldexp(total(0), 104, dtype=np.float32)
    # Where the products of every number of leaves are float32 numbers, nothing is given away.
    assert derive(E2M3, E2M3, Tree("any", 74566), "product").sum_max - 254 == 127 - lg(56.25 * 74565)
    assert derive(E2M3, E2M3, Tree("any", 74567), "product").sum_max - 254 == 126 - lg(56.25 * 74566)
    # A chain of more than 2^24 products stands still; of other trees no more is known than that every addition rounds.
    assert derive(MXINT8, MXINT8, Tree("any", 2**25 + 1), "product").sum_max - 254 == 127 - 27 - 4


def test_hoist() -> None:
    tree = Tree("balanced", 32)
    assert hoist(E2M1, E2M1, tree, (254, 254), 0)
    assert hoist(E2M1, E2M1, tree, (254 + 118, 254 + 118), 118)
    assert not hoist(E2M1, E2M1, tree, (254 + 119, 254 + 119), 119)
    assert hoist(E4M3, E4M3, tree, (254 - 131, 254 + 106), 0)
    assert not hoist(E4M3, E4M3, tree, (254 - 131, 254 + 106), 1)
    assert not hoist(E4M3, E4M3, tree, (254 - 131, 254 + 106), -1)
    assert not hoist(
        E4M3, E4M3, tree, (254 - 132, 254 + 106), -9
    )  # what stands inside is low enough, but not what did
    assert not hoist(E4M3, E4M3, tree, (254 - 100, 254 + 107), 1)  # and here not high enough
    for low, t in ((-108, 0), (-107, 1), (0, 108)):
        assert hoist(E4M3, E4M3, tree, (254 + low, 254 + low), t, flush=True)
        assert not hoist(E4M3, E4M3, tree, (254 + low, 254 + low), t + 1, flush=True)
    assert not hoist(E4M3, E4M3, tree, (254 - 109, 254 - 109), -1, flush=True)
    # Downwards the whole sum must fit, and not only the root's larger child: 36 * 32 >= 2^10 > 36 * 16.
    assert hoist(E2M1, E2M1, tree, (254, 254), -117)
    assert not hoist(E2M1, E2M1, tree, (254, 254), -118)


@pytest.mark.parametrize(
    ("element", "source", "rounding", "expected"),
    [
        (E2M1, BF16, "floor", Range(0, 252)), (E2M1, F32, "ceil", Range(0, 253)), (E4M3, BF16, "even", Range(0, 247)),
        (E2M1, F16, "floor", Range(101, 140)), (MXINT8, F32, "floor", Range(0, 254)),
        (MXINT8, F16, "floor", Range(103, 142)), (E2M1, F16, "even", Range(101, 141)),
    ],
)  # fmt: skip
def test_what_a_quantiser_writes(element: Format, source: FloatType, rounding: str, expected: Range) -> None:
    assert quantised(element, source, rounding) == expected
