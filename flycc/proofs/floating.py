"""The same question asked of floating-point arithmetic itself (QF_FP), without the integers of `machine`.

Solvers have float32 by its definition, bit by bit, and it costs them dearly: blocks of two or three products, and one
exponent at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flycc.proofs.float32 import same, scale_inside, scale_outside
from flycc.scales.formats import Format, elements
from flycc.scales.trees import Tree


@dataclass(frozen=True, slots=True)
class FloatQuery:
    """Is there a block of `element`s for which the float32 scale 2^s in each product, and after the sum, differ?

    s is from -149 to 127, where 2^s is a number. Elements are given by codes: their number in `numbers()`.
    """

    element: Format
    tree: Tree
    s: int

    def numbers(self) -> list[float]:
        """Every element, -0 too."""
        return [-0.0, *elements(self.element)]

    def script(self) -> str:
        """The assertions, which hold together where the two differ."""
        numbers, leaves = self.numbers(), range(self.tree.leaves)
        width = (len(numbers) - 1).bit_length()
        lines = ["(set-logic QF_BVFP)", f"(define-fun scale () Float32 {_literal(2.0**self.s)})"]
        for name in self.constants():
            lines.append(f"(declare-const {name} (_ BitVec {width}))")
            lines.append(f"(assert (bvule {name} {_bits(len(numbers) - 1, width)}))")
            value = _literal(numbers[-1])
            for code, number in enumerate(numbers[:-1]):
                value = f"(ite (= {name} {_bits(code, width)}) {_literal(number)} {value})"
            lines.append(f"(define-fun x{name} () Float32 {value})")
        for i in leaves:
            lines.append(f"(define-fun after{i} () Float32 (fp.mul RNE xa{i} xb{i}))")
            lines.append(f"(define-fun before{i} () Float32 (fp.mul RNE after{i} scale))")
        for at, (left, right) in enumerate(self.tree.nodes(), self.tree.leaves):
            for side in ("before", "after"):
                lines.append(f"(define-fun {side}{at} () Float32 (fp.add RNE {side}{left} {side}{right}))")
        root = 2 * self.tree.leaves - 2
        lines.append(
            f"(assert (not (= before{root} (fp.mul RNE after{root} scale))))"
        )  # = takes all NaNs as one
        return "\n".join(lines)

    def constants(self) -> list[str]:
        """Names of the constants that a model is told by."""
        return [f"{side}{i}" for i in range(self.tree.leaves) for side in ("a", "b")]

    def differs(self, model: dict[str, int]) -> bool:
        """Whether float32 arithmetic gives other bits for the two sides of a model."""
        numbers = self.numbers()
        values = np.array([numbers[model[name]] for name in self.constants()])
        products = (values[0::2] * values[1::2])[:, None]
        return not same(
            scale_inside(products, self.tree, self.s), scale_outside(products, self.tree, self.s)
        ).any()


def _bits(value: int, width: int) -> str:
    return f"#b{value:0{width}b}"


def _literal(value: float) -> str:
    bits = f"{np.float32(value).view(np.uint32):032b}"
    return f"(fp #b{bits[0]} #b{bits[1:9]} #b{bits[9:]})"
