"""A block's sum that goes into a multiply-add (Theorem 7): is `fma(sum, 2^s, c)` another number than `c + 2^s sum`?"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from flycc.proofs.float32 import rounded
from flycc.scales.formats import Format, product_maximum, product_q


@dataclass(frozen=True, slots=True)
class ContractedQuery:
    """Is there a sum of at most `k` products for which `2^s sum` is not a float32 number?

    Then, and only then, some c makes a difference. With `equal`, only sums of equal products are asked for, of the
    greatest or of the least size: those are sure to be sums that a block can have. Otherwise all multiples of 2^-q are.
    """

    a: Format
    b: Format
    k: int
    s: int
    equal: bool

    def script(self) -> str:
        """The assertions, which hold together where the two differ."""
        q = product_q(self.a, self.b)
        greatest = int(product_maximum(self.a, self.b) * 2.0**q)
        limit = 2 ** (128 + q - self.s)
        grid = 2 ** max(q - 149 - self.s, 0)
        equal = f"(and (<= 1 count {self.k}) (or (= n count) (= n (* {greatest} count))))"
        return "\n".join(
            [
                "(set-logic QF_LIA)",
                *(f"(declare-const {name} Int)" for name in ("n", "count", "multiple", "rest")),
                f"(assert (<= 0 n {self.k * greatest}))",
                f"(assert {equal})" if self.equal else "",
                f"(assert (= n (+ (* {grid} multiple) rest)))",
                f"(assert (and (<= 0 rest) (< rest {grid})))",
                f"(assert (or (>= n {limit}) (> rest 0)))",
            ]
        )

    def constants(self) -> list[str]:
        """Names of the constants that a model is told by."""
        return ["n"]

    def differs(self, model: dict[str, int]) -> bool:
        """Whether the two are different numbers for a model's sum and the c that shows it."""
        scaled = Fraction(model["n"]) * Fraction(2) ** (self.s - product_q(self.a, self.b))
        # An overflow is taken back by the most negative number; half of 2^-149 counts beside an odd multiple of it.
        c = -Fraction(2**128 - 2**104) if scaled >= 2**128 else Fraction(1, 2**149)
        apart = rounded(scaled)
        return rounded(scaled + c) != (rounded(apart + c) if isinstance(apart, Fraction) else apart)
