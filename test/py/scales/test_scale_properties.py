"""The guards against float32 arithmetic on arrays of blocks: where one holds, no bit differs, whatever the elements.

Elements are random, and in part of the blocks all of the greatest or of the least size: a bound that is off by one
shows in those (see `test_guards_are_tight`). Types other than float32 are numpy's and ml_dtypes'.
"""

from __future__ import annotations

import os
from fractions import Fraction
from itertools import combinations_with_replacement

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flycc.proofs.float32 import flushed, rounded, same, scale_inside, scale_outside, scaled, tree_sum
from flycc.scales.bounds import derive, exponent_max, exponent_min
from flycc.scales.formats import (
    E2M1,
    E4M3,
    E5M2,
    FLOAT_TYPES,
    FORMATS,
    FloatType,
    Format,
    elements,
    lg,
    product_maximum,
    product_q,
    sums_are_exact,
)
from flycc.scales.ranges import Range, hoist, ok, order_free
from flycc.scales.trees import Tree

SEED = int(os.environ["FLYCC_TEST_SEED"])
NUMPY = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
ML_DTYPES = {
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
FORMAT = st.sampled_from(list(FORMATS.values()))
SEEDS = st.integers(0, 2**32 - 1)
CASES = 256


@st.composite
def trees(draw: st.DrawFn, most: int = 40) -> Tree:
    leaves = draw(st.integers(2, most))
    name = draw(st.sampled_from(["balanced", "chain", "blocked"]))
    return Tree(name, leaves, draw(st.integers(1, 8)) if name == "blocked" else None)


def blocks(rng: np.random.Generator, a: Format, b: Format, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Elements [k, CASES] of both, as float64: random, of the greatest and least size, and mixtures with zeros."""
    sides = []
    kind = rng.integers(4, size=CASES)
    for element in (a, b):
        numbers = np.array(elements(element))
        any_ = rng.choice(numbers, (k, CASES))
        greatest = np.where(rng.integers(2, size=(k, CASES)) == 0, numbers[0], numbers[-1])
        least = 2.0**-element.q * rng.choice([-1.0, 1.0], (k, CASES))
        sparse = any_ * (rng.integers(4, size=(k, CASES)) == 0)
        sides.append(np.choose(kind, [any_, greatest, least, sparse]))
    return sides[0], sides[1]


def typed(values: np.ndarray, exponent: int, operand: FloatType, flush: bool) -> np.ndarray:
    """Elements times 2^exponent in a type, as float32."""
    with np.errstate(over="ignore"):
        held = np.ldexp(values, exponent).astype(np.float32).astype(NUMPY[operand.name]).astype(np.float32)
    return (
        np.where(abs(held) < 2.0**operand.normal, np.copysign(0, held), held).astype(np.float32)
        if flush
        else held
    )


def multiplied(a: np.ndarray, b: np.ndarray, flush: bool) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return flushed(a * b, flush)


@pytest.mark.parametrize("name", ML_DTYPES)
def test_elements_are_those_of_ml_dtypes(name: str) -> None:
    dtype = ML_DTYPES[name]
    bits = ml_dtypes.finfo(dtype).bits
    table = np.arange(1 << bits, dtype=np.uint8).view(dtype).astype(np.float64)
    finite = table[np.isfinite(table)]
    assert elements(FORMATS[name]) == sorted(set(finite.tolist()))
    assert FORMATS[name].maximum == finite.max()
    assert 2.0 ** -FORMATS[name].q == finite[finite > 0].min()


@settings(max_examples=60, deadline=None)
@given(
    FORMAT, FORMAT, trees(), st.sampled_from(["product", "element", "one_sided"]), st.booleans(),
    st.sampled_from(list(FLOAT_TYPES.values())), st.data(),
)  # fmt: skip
def test_a_guard_that_holds(
    a: Format, b: Format, tree: Tree, placement: str, flush: bool, operand: FloatType, data: st.DataObject
) -> None:
    guard = derive(a, b, tree, placement, operand=operand, flush=flush)
    bytes_a = range(guard.a_min, guard.a_max + 1)
    bytes_b = range(guard.b_min, guard.b_max + 1)
    assume(bytes_a and bytes_b)
    byte_a = data.draw(st.sampled_from(bytes_a), "byte a")
    sums = range(max(guard.sum_min, byte_a + guard.b_min), min(guard.sum_max, byte_a + guard.b_max) + 1)
    assume(sums)
    byte_b = data.draw(st.sampled_from([sums[0], sums[-1], *sums]), "S") - byte_a
    assert ok(guard, Range(byte_a, byte_a), Range(byte_b, byte_b))
    rng = np.random.default_rng(data.draw(SEEDS, "seed"))
    x, y = blocks(rng, a, b, tree.leaves)
    ea, eb = byte_a - 127, byte_b - 127
    after = scale_outside(x * y, tree, ea + eb, flush)
    if placement == "product":
        before = scale_inside(x * y, tree, ea + eb, 0, flush)
    elif placement == "element":
        products = multiplied(typed(x, ea, operand, flush), typed(y, eb, operand, flush), flush)
        before = tree_sum(products, tree, flush)
    else:
        products = multiplied(x.astype(np.float32), typed(y, eb, operand, flush), flush)
        before = flushed(scaled(tree_sum(products, tree, flush), ea), flush)
    assert same(before, after).all()
    if guard.any_order and not flush:
        order = rng.permutation(tree.leaves)
        assert same(scale_outside((x * y)[order], Tree("chain", tree.leaves), ea + eb), after).all()


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize(("a", "b"), [(E2M1, E2M1), (E4M3, E4M3), (E5M2, E5M2), (E2M1, E4M3)])
def test_guards_are_tight(a: Format, b: Format, flush: bool) -> None:
    """The same blocks find a difference at one more and at one less than every bound: the checks above can fail."""
    rng = np.random.default_rng([SEED, a.q, b.q, flush])
    for k in (2, 3, 8, 32):
        for tree in (Tree("balanced", k), Tree("chain", k)):
            x, y = (
                np.concatenate(parts, axis=1)
                for parts in zip(*(blocks(rng, a, b, k) for _ in range(4)), strict=True)
            )
            high, low = exponent_max(a, b, tree.larger) + 1, exponent_min(a, b, flush) - 1
            products = np.zeros((k, 2 * k))
            for count in range(
                1, k
            ):  # of the greatest, then zeros, and the most negative: one of them is Theorem 1's
                products[:count, count] = a.maximum * b.maximum
                products[-1, count] = -a.maximum * b.maximum
            assert not same(
                scale_inside(products, tree, high, 0, flush), scale_outside(products, tree, high, flush)
            ).all()
            assert not same(
                scale_inside(x * y, tree, low, 0, flush), scale_outside(x * y, tree, low, flush)
            ).all()


@pytest.mark.parametrize("k", [2, 3, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("flush", [False, True])
def test_every_block(k: int, flush: bool) -> None:
    """All blocks of k products of e2m1, at the ends of the bound (of 2 at all exponents, in test_proofs.py nightly)."""
    numbers = np.array(elements(E2M1))
    signed = np.unique(np.append(np.outer(numbers, numbers), -0.0).view(np.int64)).view(np.float64)
    every = np.stack([x.ravel() for x in np.meshgrid(*[signed] * k)])
    tree = Tree("chain", k)
    low, high = exponent_min(E2M1, E2M1, flush), exponent_max(E2M1, E2M1, tree.larger)
    for s, legal in {low - 1: False, low: True, low + 1: True, 0: True, high: True, high + 1: False}.items():
        assert (
            same(scale_inside(every, tree, s, 0, flush), scale_outside(every, tree, s, flush)).all() == legal
        ), s


@pytest.mark.parametrize(
    ("a", "b"), list(combinations_with_replacement(FORMATS.values(), 2)), ids=lambda f: f.name
)
def test_pairs_of_bytes_with_the_smaller_exponent_first(a: Format, b: Format) -> None:
    """Theorem 4: two multiplications round once if the smaller power comes first, and is at least -149 + q.

    Over sums of the least products, of the greatest, and random ones, of pairs of bytes of which one is at an end.
    """
    q, greatest = product_q(a, b), product_maximum(a, b)
    rng = np.random.default_rng([SEED, a.q, b.q])
    units = np.concatenate([np.arange(1, 40), 2.0**24 - np.arange(1, 4), rng.integers(1, 2**24, 40)])
    sums = np.concatenate([units * 2.0**-q, units * 2.0 ** lg(greatest / 2**18), [greatest, 2 * greatest]])
    sums = np.concatenate([sums, -sums])
    least = max(-127, exponent_min(a, b, False))

    def twice(first: int, second: int) -> bool:
        return same(scaled(scaled(sums, first), second), scaled(sums, first + second)).all()

    for first in {least, least + 1, -126, -23, 0, 100, 126, 127} - set(range(-127, least)):
        assert all(twice(first, second) for second in range(first, 128)), first
    assert not twice(127, -127)  # the larger first: it overflows
    assert least == max(-127, q - 149)
    assert least == -127 or not twice(least - 1, 127)


def test_one_side_flushed_alone() -> None:
    """Theorem 3: the multiplication after a sum may flush where the other side's `ldexp` does not."""
    for a, b in ((E2M1, E2M1), (E4M3, E4M3), (E5M2, E2M1)):
        guard = derive(a, b, Tree("chain", 8), "one_sided", flush=True)
        least = np.array([2.0 ** -product_q(a, b)])
        for total, legal in ((guard.sum_min, True), (guard.sum_min - 1, False)):
            byte_b = max(guard.b_min, total - 127)
            byte_a = total - byte_b
            assert ok(guard, Range(byte_a, byte_a), Range(byte_b, byte_b)) == legal
            kept = scaled(scaled(least, byte_b - 127), byte_a - 127)
            assert same(kept, scaled(least, total - 254)).all()
            assert same(flushed(kept, True), kept).all() == legal


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([(E2M1, E2M1), (E4M3, E4M3), (E2M1, E4M3)]), st.integers(1, 64), st.data())
def test_multiply_add(pair: tuple[Format, Format], k: int, data: st.DataObject) -> None:
    """Theorem 7: within the bound of a contracted sum `fma(sum, 2^s, c)` is `c + 2^s sum`, for every c."""
    a, b = pair
    guard = derive(a, b, Tree("any", k), "product", contracted=True)
    low, high = guard.sum_min - 254, guard.sum_max - 254
    s = data.draw(st.sampled_from([low, high, *range(low, high + 1)]))
    limit = k * a.maximum * b.maximum
    total = Fraction(data.draw(st.floats(width=32, min_value=-limit, max_value=limit)))
    total = round(total * 2 ** product_q(a, b)) / Fraction(2 ** product_q(a, b))
    assume(rounded(total) == total)
    c = Fraction(data.draw(st.floats(width=32, allow_nan=False, allow_infinity=False)))
    assert rounded(rounded(total * Fraction(2) ** s) + c) == rounded(total * Fraction(2) ** s + c)


@settings(max_examples=60, deadline=None)
@given(FORMAT, FORMAT, trees(), st.booleans(), st.data())
def test_hoisted(a: Format, b: Format, tree: Tree, flush: bool, data: st.DataObject) -> None:
    """Theorem 5, with an exponent for every product: 2^t inside or after, in the same tree, exact or not."""
    least, most = exponent_min(a, b, flush), exponent_max(a, b, tree.larger)
    assume(least < most)
    low = data.draw(st.sampled_from([least - 1, least]) | st.integers(least - 3, most))
    high = data.draw(st.sampled_from([low, max(low, most)]) | st.integers(low, max(low, most + 1)))
    t = data.draw(st.integers(high - most - 8, low - least + 1))
    assume(hoist(a, b, tree, (low + 254, high + 254), t, flush=flush))
    rng = np.random.default_rng(data.draw(SEEDS, "seed"))
    x, y = blocks(rng, a, b, tree.leaves)
    s = rng.integers(low, high + 1, (tree.leaves, 1))
    with np.errstate(over="ignore"):
        inside = tree_sum(flushed(np.ldexp(x * y, s).astype(np.float32), flush), tree, flush)
        inner = tree_sum(flushed(np.ldexp(x * y, s - t).astype(np.float32), flush), tree, flush)
    assert same(inside, flushed(scaled(inner, t), flush)).all()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([f for f in FORMATS.values() if sums_are_exact(f, f, 64)]),
    st.integers(1, 64),
    st.integers(1, 8),
    st.booleans(),
    st.data(),
)
def test_order_free(element: Format, k: int, parts: int, flush: bool, data: st.DataObject) -> None:
    """Theorem 6: any order, any tree, any split of the sum, and the scale of a block inside or after it."""
    room = range(exponent_min(element, element, flush), exponent_max(element, element, k * parts) + 1)
    low = data.draw(st.sampled_from([room[0], room[-1], *room]))
    spread = data.draw(st.integers(0, min(12, room[-1] - low)))
    rng = np.random.default_rng(data.draw(SEEDS, "seed"))
    exponents = [low, *rng.integers(low, low + spread + 1, parts - 1).tolist()]
    sums = [e + 254 for e in exponents]
    byte_b = sums[0] // 2
    byte_a = Range(sums[0] - byte_b, max(sums) - byte_b)
    by_range = order_free(element, element, k * parts, byte_a, Range(byte_b, byte_b), flush=flush)
    assume(by_range)
    x, y = blocks(rng, element, element, k * parts)
    leaves = np.ldexp(x * y, np.repeat(exponents, k)[:, None]).astype(np.float32)
    total = k * parts
    chain = tree_sum(leaves, Tree("chain", total), flush)
    others = [
        tree_sum(leaves[rng.permutation(total)], Tree("balanced", total), flush),
        tree_sum(leaves[rng.permutation(total)], Tree("chain", total), flush),
        tree_sum(
            np.stack(
                [
                    scale_outside((x * y)[i * k : (i + 1) * k], Tree("chain", k), e, flush)
                    for i, e in enumerate(exponents)
                ]
            ),
            Tree("balanced", parts),
            flush,
        ),
    ]
    assert all(same(other, chain).all() for other in others)
