"""A block's sum times one scale and then the other (Theorem 4): is that another number than 2^(e1 + e2) sum?"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from flycc.proofs.float32 import rounded
from flycc.proofs.machine import limit_term, number
from flycc.scales.formats import Format, product_maximum, product_q


@dataclass(frozen=True, slots=True)
class SpellingQuery:
    """Is there a sum of at most `k` products for which `2^e2 * (2^e1 * sum)`, rounded twice, is another number?

    e1 is within `first` and e2 within `second`, ends included; with `ordered`, e1 is not above e2. It is if 2^e1
    sum overflows and the whole does not, or is not exact: only a first multiplication that is exact leaves no trace
    for every e2. With `equal`, only sums of equal products are asked for, of the greatest or of the least size.
    """

    a: Format
    b: Format
    k: int
    first: tuple[int, int]
    second: tuple[int, int]
    ordered: bool
    equal: bool

    def script(self) -> str:
        """The assertions, which hold together where the two differ."""
        q = product_q(self.a, self.b)
        greatest = int(product_maximum(self.a, self.b) * 2.0**q)
        reach = self.k * greatest
        low, end = (x + y for x, y in zip(self.first, self.second, strict=True))
        grid = 2 ** max(q - 149 - self.first[0], 0)
        equal = f"(and (<= 1 count {self.k}) (or (= n count) (= n (* {greatest} count))))"
        once = limit_term("first", *self.first, 128 + q, reach)
        whole = limit_term("both", low, end, 128 + q, reach)
        return "\n".join(
            [
                "(set-logic QF_LIA)",
                *(
                    f"(declare-const {x} Int)"
                    for x in ("n", "count", "first", "second", "both", "multiple", "rest")
                ),
                f"(assert (<= 0 n {reach}))",
                f"(assert {equal})" if self.equal else "",
                f"(assert (<= {number(self.first[0])} first {number(self.first[1])}))",
                f"(assert (<= {number(self.second[0])} second {number(self.second[1])}))",
                "(assert (<= first second))" if self.ordered else "",
                "(assert (= both (+ first second)))",
                f"(assert (= n (+ (* {grid} multiple) rest)))",
                f"(assert (and (<= 0 rest) (< rest {grid})))",
                f"(assert (or (> rest 0) (and (>= n {once}) (< n {whole}))))",
            ]
        )

    def constants(self) -> list[str]:
        """Names of the constants that a model is told by."""
        return ["n", "first", "second"]

    def differs(self, model: dict[str, int]) -> bool:
        """Whether the two are different numbers for a model's sum and exponents."""
        total = Fraction(model["n"]) / 2 ** product_q(self.a, self.b)
        assert rounded(total) == total
        twice = rounded(total * Fraction(2) ** model["first"])
        if isinstance(twice, Fraction):
            twice = rounded(twice * Fraction(2) ** model["second"])
        return twice != rounded(total * Fraction(2) ** (model["first"] + model["second"]))
