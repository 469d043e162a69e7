"""Sums in an order that is not known (Theorem 6): is some partial sum of scaled products not a float32 number?"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from flycc.proofs.float32 import rounded
from flycc.proofs.machine import limit_term, number
from flycc.scales.formats import Format, product_maximum, product_q


@dataclass(frozen=True, slots=True)
class OrderQuery:
    """Is there a set of `k` products, or of some of them, whose sum float32 has not?

    Every order, tree and split of a sum adds sets. Exponents are from any `least`, which is from `low` to `high`, to
    `least + spread`, and at most `high`; each product has its own. With `extreme`, products are only 0, the least and
    the greatest, of which blocks can be made, the first at the least exponent and the others at the greatest, and the
    sum is not a number for sure: infinite, or odd above 2^24 units.
    Otherwise they are all multiples of 2^-q, and every sum above 2^24 units is taken for none.
    """

    a: Format
    b: Format
    k: int
    low: int
    high: int
    spread: int
    extreme: bool

    def script(self) -> str:
        """The assertions, which hold together where there is such a set."""
        q = product_q(self.a, self.b)
        greatest = int(product_maximum(self.a, self.b) * 2.0**q)
        lines = ["(set-logic QF_LIA)", "(declare-const least Int)", "(declare-const half Int)"]
        lines.append(f"(assert (<= {number(self.low)} least {number(self.high)}))")
        cap = str(greatest * 2**self.spread)  # of |m|, which a solver finds by itself, but slowly
        for below in range(min(self.spread, self.high - self.low + 1)):
            cap = f"(ite (= least {number(self.high - below)}) {greatest * 2**below} {cap})"
        lines.append(f"(define-fun cap () Int {cap})")
        for i in range(self.k):
            lines += [f"(declare-const {name}{i} Int)" for name in ("p", "d")] + [
                f"(declare-const in{i} Bool)"
            ]
            lines.append(f"(assert (and (<= 0 d{i} {self.spread}) (<= (+ least d{i}) {number(self.high)})))")
            lines.append(f"(assert (<= (- {greatest}) p{i} {greatest}))")
            if self.extreme:
                lines.append(f"(assert (or (= p{i} 0) (= p{i} 1) (= p{i} {greatest})))")
                lines.append(f"(assert (and in{i} (= d{i} {self.spread if i else 0})))")
            scaled = f"(* {2**self.spread} p{i})"
            for d in reversed(range(self.spread)):
                scaled = f"(ite (= d{i} {d}) (* {2**d} p{i}) {scaled})"
            lines.append(f"(define-fun m{i} () Int (ite in{i} {scaled} 0))")
            lines.append(f"(assert (<= (- cap) m{i} cap))")
        limit = limit_term("least", self.low, self.high, 128 + q, self.k * greatest * 2**self.spread)
        lines.append(f"(define-fun total () Int (+ 0 {' '.join(f'm{i}' for i in range(self.k))}))")
        large = f"(or (< {2**24} total) (< total (- {2**24})))"
        if self.extreme:
            large = f"(and {large} (= total (+ (* 2 half) 1)))"
        lines.append(f"(assert (or {large} (>= total {limit}) (<= total (- {limit}))))")
        return "\n".join(lines)

    def constants(self) -> list[str]:
        """Names of the constants that a model is told by."""
        return ["least", *(f"{name}{i}" for i in range(self.k) for name in ("p", "d", "in"))]

    def differs(self, model: dict[str, int]) -> bool:
        """Whether float32 has not the sum of a model."""
        total = sum(model[f"p{i}"] * 2 ** model[f"d{i}"] * model[f"in{i}"] for i in range(self.k))
        exact = total * Fraction(2) ** (model["least"] - product_q(self.a, self.b))
        return rounded(exact) != exact
