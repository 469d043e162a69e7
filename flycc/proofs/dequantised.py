"""Elements times their scale in a floating type (Theorem 2): is some element not a number of that type?"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from flycc.scales.formats import FloatType, Format, elements

_NUMPY = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}


def dequantised(values: np.ndarray, exponent: int, operand: FloatType) -> np.ndarray:
    """float64 elements times 2^exponent, in a type, as float32."""
    with np.errstate(over="ignore"):
        return np.ldexp(values, exponent).astype(np.float32).astype(_NUMPY[operand.name]).astype(np.float32)


@dataclass(frozen=True, slots=True)
class ElementQuery:
    """Is there an element x of `element` for which `x 2^exponent`, converted to `operand`, is another number?

    Elements have sizes n in units of 2^-q. Types have more significant bits than elements, so that a conversion
    changes a number only by overflow, by subnormal rounding, or, where asked for, by flushing it to zero.
    """

    element: Format
    operand: FloatType
    exponent: int
    flush: bool

    def script(self) -> str:
        """The assertions, which hold together where the two differ."""
        sizes = sorted({int(abs(x) * 2**self.element.q) for x in elements(self.element)})
        units = " ".join(f"(= n {size})" for size in sizes)
        unit = self.exponent - self.element.q  # of n, as a power of two
        limit = 2 ** max(self.operand.greatest + 1 - unit, 0)
        grid = 2 ** max(self.operand.subnormal - unit, 0)
        least = 2 ** max(self.operand.normal - unit, 0) if self.flush else 1
        return "\n".join(
            [
                "(set-logic QF_LIA)",
                *(f"(declare-const {name} Int)" for name in ("n", "rounded", "rest")),
                f"(assert (or {units}))",
                f"(assert (= n (+ (* {grid} rounded) rest)))",
                f"(assert (and (<= 0 rest) (< rest {grid})))",
                f"(assert (or (>= n {limit}) (> rest 0) (and (< 0 n) (< n {least}))))",
            ]
        )

    def constants(self) -> list[str]:
        """Names of the constants that a model is told by."""
        return ["n"]

    def differs(self, model: dict[str, int]) -> bool:
        """Whether numpy's conversion to the type changes a model's element."""
        n = np.array(model["n"] / 2**self.element.q)
        exact = np.ldexp(n, self.exponent)
        held = dequantised(n, self.exponent, self.operand).astype(np.float64)
        if self.flush and abs(held) < 2.0**self.operand.normal:
            held = np.zeros(())
        return bool(held != exact)
