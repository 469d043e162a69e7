"""The float32 sums of a scaled block as a machine on integers, in SMT-LIB 2 text (QF_LIA).

A product is `n 2^-q` with an integer n, and a value of the sum with the scale 2^x inside is `n 2^(x - q)`: multiplying
by a power of two changes no integer. What float32 adds to that, the machine has exactly:

- overflow: a value is infinite from `|n| >= limit = 2^(128 + q - x)`. (float32 also rounds up to infinity from half a
  unit below 2^128; between there and 2^128 is no multiple of `2^(x - q)`, where n can reach `limit` at all.)
- infinities and NaN as three flags, and the sign of a zero as a fourth
- subnormal rounding: where `x - q < -149`, products round to multiples of 2^-149, ties to even; sums of those are exact
- flushing: where asked for, results below 2^-126 are zeros of their sign

Sums below 2^24 units are exact. Where a format's are not, `Sums.ROUNDED` knows of the rounding no more than that it is
within `2^-24` of the sum, and the same on both sides (it commutes with powers of two, Theorem 5): such a query is about
overflow alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

import numpy as np

from flycc.proofs.dequantised import dequantised
from flycc.proofs.float32 import same, scale_inside, scale_outside, tree_sum
from flycc.scales.formats import BIAS, FloatType, Format, elements, lg, product_maximum, product_q
from flycc.scales.trees import Tree


class Leaves(Enum):
    """Which products a query is about: a superset proves what is asked and more, a subset's models are real ones."""

    ELEMENTS = "elements"  # exactly the products of two elements
    SUPERSET = "superset"  # every multiple of 2^-q up to P
    LEAST = "least"  # 0, and in the first four leaves the two of the least size
    GREATEST = "greatest"  # 0, the greatest, and the most negative


class Sums(Enum):
    """How sums are modelled."""

    EXACT = "exact"
    ROUNDED = "rounded"


@dataclass(frozen=True, slots=True)
class Query:
    """Is there a block for which `2^outer * sum of 2^inner p` and `2^(inner + outer) * sum of p` differ?

    `inner` is any exponent from `low` to `high`. With `hoisted`, each product has an exponent of its own, from `inner`
    up to `inner + spread` and to `high`, and the other side is `2^hoisted * sum of` products with exponents lower by so
    much. With `operand`, elements are dequantised to that type, with `ea` and `eb` that add up to `inner`, each at most
    `most` and at least where all elements are numbers of the type. `lemmas` states the bounds of every node that follow
    from those of its children, which a solver finds by itself, but slowly.

    Raises ValueError for what the machine has not: products rounded below 2^-149 or flushed over a range of exponents,
    rounded ones of a superset or with flushing, or results that are rounded once more.
    """

    a: Format
    b: Format
    tree: Tree
    low: int
    high: int
    outer: int = 0
    flush: bool = False
    leaves: Leaves = Leaves.SUPERSET
    sums: Sums = Sums.EXACT
    lemmas: bool = True
    spread: int = 0
    hoisted: int | None = None
    operand: FloatType | None = None
    most: int = 0

    def __post_init__(self) -> None:
        finest = product_q(self.a, self.b) - 149  # below it products round, and results too
        one = self.low == self.high
        rounds, flushes = self.low < finest, self.flush and self.low < finest + 23
        if (
            (rounds and (not one or self.flush or self.leaves is Leaves.SUPERSET))
            or (flushes and not one)
            or self.low + self.outer < min(self.low, finest)
            or (
                self.hoisted is not None
                and (self.flush or self.outer or self.low - max(self.hoisted, 0) < finest)
            )
        ):
            raise ValueError(f"{self}: subnormal numbers that the machine does not have")

    def script(self) -> str:
        """The assertions, which hold together where the two differ."""
        return _Script(self).write()

    def constants(self) -> list[str]:
        """Names of the constants that a model is told by."""
        sides = ["a", "b"] if self.leaves is Leaves.ELEMENTS else ["p"]
        sides += ["d"] if self.spread else []
        first = ["inner", "ea", "eb"] if self.operand else ["inner"]
        return first + [f"{name}{i}" for i in range(self.tree.leaves) for name in (*sides, "minus")]

    def pairs(self, model: dict[str, int]) -> list[tuple[float, float]]:
        """The elements (a, b) of a model's leaves. Raises ValueError where products need not be those of elements."""
        leaves = range(self.tree.leaves)
        if self.leaves is Leaves.SUPERSET:
            raise ValueError("the products of a superset need not be products of elements")
        if self.leaves is Leaves.ELEMENTS:
            unit_a, unit_b = 2.0**-self.a.q, 2.0**-self.b.q
            return [
                ((-1) ** model[f"minus{i}"] * model[f"a{i}"] * unit_a, model[f"b{i}"] * unit_b)
                for i in leaves
            ]
        zero = {0: (0.0, elements(self.b)[-1]), 1: (0.0, elements(self.b)[0])}  # the sign of 0 is b's
        known = {int(a * b * 2 ** product_q(self.a, self.b)): (a, b) for a, b in extremes(self)}
        return [known[model[f"p{i}"]] if model[f"p{i}"] else zero[model[f"minus{i}"]] for i in leaves]

    def differs(self, model: dict[str, int]) -> bool:
        """Whether float32 arithmetic gives other bits for the two sides of a model."""
        products = np.array([a * b for a, b in self.pairs(model)])[:, None]
        inner = model["inner"]
        if self.operand is not None:
            held = [
                dequantised(np.array(side), model[name], self.operand)
                for name, side in zip(("ea", "eb"), zip(*self.pairs(model), strict=True), strict=True)
            ]
            with np.errstate(over="ignore", invalid="ignore"):
                inside = tree_sum((held[0] * held[1])[:, None], self.tree)
            return not same(inside, scale_outside(products, self.tree, inner)).any()
        if self.spread:
            products = np.ldexp(products, [[model[f"d{i}"]] for i in range(self.tree.leaves)])
        inside = scale_inside(products, self.tree, inner, self.outer, self.flush)
        if self.hoisted is not None:
            return not same(
                inside, scale_inside(products, self.tree, inner - self.hoisted, self.hoisted)
            ).any()
        outside = scale_outside(products, self.tree, inner + self.outer, self.flush)
        return not same(inside, outside).any()


@dataclass(frozen=True, slots=True)
class _Value:
    """Names of a value's parts: its integer, which means nothing of an infinity; is it +inf, -inf, NaN, or -0."""

    n: str
    up: str
    down: str
    nan: str
    minus_zero: str


class _Script:
    def __init__(self, query: Query) -> None:
        self.query = query
        self.q = product_q(query.a, query.b)
        self.greatest = int(product_maximum(query.a, query.b) * 2.0**self.q)
        self.lines = ["(set-logic QF_LIA)"]
        self.names = 0

    def declare(self, kind: str, name: str | None = None) -> str:
        self.names += 1
        name = name or f"v{self.names}"
        self.lines.append(f"(declare-const {name} {kind})")
        return name

    def define(self, kind: str, term: str) -> str:
        self.names += 1
        self.lines.append(f"(define-fun v{self.names} () {kind} {term})")
        return f"v{self.names}"

    def require(self, term: str) -> None:
        self.lines.append(f"(assert {term})")

    def bound(self, n: str, limit: int) -> None:
        self.require(f"(<= (- {limit}) {n} {limit})")

    # The parts of the machine.

    def limit(self, x: str, offset: int, reach: int) -> str:
        """The least |n| that overflows at the exponent x + offset; no |n| is above `reach`."""
        term = limit_term(x, self.query.low, self.query.high, 128 + self.q - offset, reach)
        return self.define("Int", term)

    def finite(self, value: _Value) -> str:
        return f"(not (or {value.up} {value.down} {value.nan}))"

    def settle(
        self,
        n: str,
        minus_zero: str,
        where: str,
        exponent: int,
        limit: str,
        nan: str = "false",
        up: str = "false",
        down: str = "false",
    ) -> _Value:
        """The value `n 2^(exponent - q)`, flushed where asked for, or infinite; `where` it is finite to begin with."""
        if self.query.flush and (least := self.q - 126 - exponent) > 0:
            small = self.define("Bool", f"(and (not (= {n} 0)) (< (- {2**least}) {n} {2**least}))")
            minus_zero = self.define("Bool", f"(or {minus_zero} (and {small} (< {n} 0)))")
            n = self.define("Int", f"(ite {small} 0 {n})")
        return _Value(
            n,
            self.define("Bool", f"(or {up} (and {where} (>= {n} {limit})))"),
            self.define("Bool", f"(or {down} (and {where} (<= {n} (- {limit}))))"),
            nan,
            minus_zero,
        )  # fmt: skip

    def digits(self, exponent: int) -> int:
        """How many binary digits of n are below 2^-149 in `n 2^(exponent - q)`."""
        return max(self.q - 149 - exponent, 0)

    def rounded_product(self, n: str, minus_zero: str) -> tuple[str, str]:
        """(integer, minus zero) of a product scaled by 2^low, in units of 2^-149 where n's own are finer."""
        digits = self.digits(self.query.low)
        if digits == 0 or self.query.leaves is Leaves.ELEMENTS:
            return self.rounded(n, minus_zero, digits)
        m = "0"
        for value in self.values():
            nearest = round(Fraction(value, 2**digits))  # ties to even
            m = f"(ite (= {n} {number(value)}) {number(nearest)} {m})" if nearest else m
        m = self.define("Int", m)
        return m, self.define("Bool", f"(and (= {m} 0) (or {minus_zero} (< {n} 0)))")

    def rounded(self, n: str, minus_zero: str, digits: int) -> tuple[str, str]:
        """(integer, minus zero) of `n 2^-digits`, to the nearest integer, ties to even."""
        if digits == 0:
            return n, minus_zero
        half, rest, odd = (self.declare("Int") for _ in range(3))
        self.require(f"(= {n} (+ (* {2 * 2**digits} {half}) (* {2**digits} {odd}) {rest}))")
        self.require(f"(and (<= 0 {odd} 1) (<= 0 {rest} {2**digits - 1}))")
        middle = 2 ** (digits - 1)
        up = f"(or (> {rest} {middle}) (and (= {rest} {middle}) (= {odd} 1)))"
        m = self.define("Int", f"(+ (* 2 {half}) {odd} (ite {up} 1 0))")
        return m, self.define("Bool", f"(and (= {m} 0) (or {minus_zero} (< {n} 0)))")

    def values(self) -> list[int]:
        """The two products but 0, of leaves that have only those."""
        return [int(a * b * 2**self.q) for a, b in extremes(self.query)]

    def product(self, i: int) -> tuple[str, str]:
        """(integer, minus zero) of leaf i, of the constants `minus<i>`, and `a<i>` and `b<i>` or `p<i>`, in units."""
        query = self.query
        minus = self.declare("Bool", f"minus{i}")
        if query.leaves is Leaves.ELEMENTS:
            sizes = []
            for side, element in (("a", query.a), ("b", query.b)):
                size = self.declare("Int", f"{side}{i}")
                units = [int(x * 2**element.q) for x in elements(element) if x >= 0]
                self.require(f"(or {' '.join(f'(= {size} {x})' for x in units)})")
                sizes.append(size)
            a, b = sizes
            size = "0"
            for unit in (int(x * 2**query.a.q) for x in elements(query.a) if x > 0):
                size = f"(ite (= {a} {unit}) (* {unit} {b}) {size})"
            size = self.define("Int", size)
            n = self.define("Int", f"(ite {minus} (- {size}) {size})")
        else:
            n = self.declare("Int", f"p{i}")
            self.require(f"(=> {minus} (<= {n} 0))")
            self.require(f"(=> (not {minus}) (>= {n} 0))")
            if query.leaves is Leaves.LEAST and i >= 4:
                self.require(f"(and (= {n} 0) (not {minus}))")
            elif query.leaves is not Leaves.SUPERSET:
                self.require(f"(or (= {n} 0) {' '.join(f'(= {n} {number(x)})' for x in self.values())})")
        self.bound(n, self.greatest)
        return n, self.define("Bool", f"(and {minus} (= {n} 0))")

    def operands(self) -> tuple[str, str]:
        """The least sizes of elements of a and of b that overflow in the type that they are dequantised to."""
        query, limits = self.query, []
        assert query.operand is not None
        for name, element in (("ea", query.a), ("eb", query.b)):
            low = max(query.operand.subnormal + element.q, -BIAS)
            self.declare("Int", name)
            self.require(f"(<= {number(low)} {name} {number(query.most)})")
            power, reach = query.operand.greatest + 1 + element.q, int(element.maximum * 2**element.q)
            limits.append(self.define("Int", limit_term(name, low, query.most, power, reach)))
        self.require("(= inner (+ ea eb))")
        return limits[0], limits[1]

    def infinite(self, i: int, limit_a: str, limit_b: str) -> tuple[str, str, str, str]:
        """(finite operands, NaN, infinity, minus infinity) of the product of leaf i's elements, as dequantised."""
        up = self.define("Bool", f"(or (>= a{i} {limit_a}) (>= b{i} {limit_b}))")
        nan = self.define("Bool", f"(and {up} (or (= a{i} 0) (= b{i} 0)))")
        signed = [f"(and {up} (not {nan}) {sign})" for sign in (f"(not minus{i})", f"minus{i}")]
        return f"(not {up})", nan, signed[0], signed[1]

    def shifted(self, i: int, n: str, minus: str) -> tuple[str, str]:
        """(integer, minus zero) of leaf i times 2^d, of the constant `d<i>`."""
        if not self.query.spread:
            return n, minus
        d = self.declare("Int", f"d{i}")
        self.require(f"(and (<= 0 {d} {self.query.spread}) (<= (+ inner {d}) {number(self.query.high)}))")
        term = f"(* {2**self.query.spread} {n})"
        for at in range(self.query.spread):
            term = f"(ite (= {d} {at}) (* {2**at} {n}) {term})"
        return self.define("Int", term), minus

    def sum_of(self, node: int, left: str, right: str, reach: int) -> str:
        """The integer of a node, which is at most `reach`; rounded it is the constant `sum<node>`."""
        total = self.define("Int", f"(+ {left} {right})")
        if self.query.sums is Sums.ROUNDED:
            near, error = self.declare("Int", f"sum{node}"), self.declare("Int")
            self.require(f"(= {near} (+ {total} {error}))")
            magnitude = self.define("Int", f"(ite (< {total} 0) (- {total}) {total})")
            self.require(f"(<= (- {magnitude}) (* {2**24} {error}) {magnitude})")
            total = near
        if self.query.lemmas:
            self.bound(total, reach)
        return total

    def node(self, left: _Value, right: _Value, total: str, exponent: int, limit: str) -> _Value:
        nan = self.define(
            "Bool",
            f"(or {left.nan} {right.nan} (and {left.up} {right.down}) (and {left.down} {right.up}))",
        )
        up = self.define("Bool", f"(and (not {nan}) (or {left.up} {right.up}))")
        down = self.define("Bool", f"(and (not {nan}) (or {left.down} {right.down}))")
        where = self.define("Bool", f"(and {self.finite(left)} {self.finite(right)})")
        minus_zero = self.define("Bool", f"(and {left.minus_zero} {right.minus_zero})")
        return self.settle(total, minus_zero, where, exponent, limit, nan, up, down)

    def write(self) -> str:
        query = self.query
        k = query.tree.leaves
        x = self.declare("Int", "inner")
        self.require(f"(<= {number(query.low)} {x} {number(query.high)})")
        reach = [self.greatest * 2**query.spread] * k
        for left, right in query.tree.nodes():
            bound = reach[left] + reach[right]
            reach.append(bound + (bound // 2**24 if query.sums is Sums.ROUNDED else 0))
        inside = self.limit(x, 0, reach[-1])
        outside = self.limit(x, query.outer, reach[-1])
        # Exponents at which to flush or round matter only at the low end: above it, nothing is small enough.
        operands = self.operands() if query.operand else None
        kept = None if query.hoisted is None else self.limit(x, -query.hoisted, reach[-1])
        products = [self.shifted(i, *self.product(i)) for i in range(k)]
        before, after = [], []
        for i, (n, minus) in enumerate(products):
            m, zero = self.rounded_product(n, minus)
            flags = self.infinite(i, *operands) if operands else ("true", "false", "false", "false")
            before.append(self.settle(m, zero, flags[0], query.low, inside, *flags[1:]))
            after.append(
                self.settle(n, minus, "true", 0, kept)
                if kept
                else _Value(n, "false", "false", "false", minus)
            )
        shared = self.digits(query.low) == 0 and not (query.flush and query.low < self.q - 126)
        for (left, right), most in zip(query.tree.nodes(), reach[k:], strict=True):
            total = self.sum_of(len(after), after[left].n, after[right].n, most)
            if kept:
                after.append(self.node(after[left], after[right], total, 0, kept))
            else:
                minus = self.define("Bool", f"(and {after[left].minus_zero} {after[right].minus_zero})")
                after.append(_Value(total, "false", "false", "false", minus))
            # Without rounding or flushing, both sides add the same integers.
            inner = total if shared else self.define("Int", f"(+ {before[left].n} {before[right].n})")
            before.append(self.node(before[left], before[right], inner, query.low, inside))
        final = query.low + query.outer
        first = before[-1]
        if query.outer:
            # A sum in units of 2^-149 is in finer units after a multiplication by 2^outer.
            n = f"(* {2 ** (self.digits(query.low) - self.digits(final))} {first.n})"
            where = self.define("Bool", self.finite(first))
            first = self.settle(n, first.minus_zero, where, final, outside, first.nan, first.up, first.down)
        last = after[-1]
        n, minus = self.rounded(last.n, last.minus_zero, self.digits(final))
        where = self.define("Bool", self.finite(last)) if kept else "true"
        second = self.settle(n, minus, where, final, outside, last.nan, last.up, last.down)
        self.require(f"(not {self.same(first, second)})")
        return "\n".join(self.lines)

    def same(self, first: _Value, second: _Value) -> str:
        equal = (
            f"(and (= {first.n} {second.n}) (= {first.minus_zero} {second.minus_zero}) "
            f"{self.finite(first)} {self.finite(second)})"
        )
        classes = [f"(and {getattr(first, c)} {getattr(second, c)})" for c in ("up", "down", "nan")]
        return f"(or {equal} {' '.join(classes)})"


def extremes(query: Query) -> list[tuple[float, float]]:
    """Pairs of elements that a query's leaves other than 0 are the products of: one positive, one negative."""
    if query.leaves is Leaves.LEAST:
        a, b = 2.0**-query.a.q, 2.0**-query.b.q
        return [(a, b), (-a, b)]
    (low_a, *_, high_a), (low_b, *_, high_b) = elements(query.a), elements(query.b)
    greatest = max((low_a, low_b), (high_a, high_b), key=lambda pair: pair[0] * pair[1])
    lowest = min((low_a, high_b), (high_a, low_b), key=lambda pair: pair[0] * pair[1])
    return [greatest, lowest]


def limit_term(x: str, low: int, high: int, power: int, reach: int) -> str:
    """`2^(power - x)` of a constant x from `low` to `high`, or more than `reach` where that is more."""
    first = max(power - lg(reach), low)  # the first x at which it is not
    term = str(2 ** max(power - first + 1, 0))
    for at in range(first, high + 1):
        term = f"(ite (= {x} {number(at)}) {2 ** max(power - at, 0)} {term})"
    return term


def number(value: int) -> str:
    """An integer in SMT-LIB."""
    return str(value) if value >= 0 else f"(- {-value})"
