"""What multiplies fragments: one MFMA for each block of 16 x 16 sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import flydsl.expr as fx
from flydsl.expr import rocdl

from flycc.kernels.gemm.config import MFMA_K

Fragment: TypeAlias = fx.Vector  # of 8 16-bit elements for each piece of a slice


class Mfma(ABC):
    """What a product's operands, as 16-bit elements, are for. Where they are of other sizes (`kernels.mx`) K counts
    pairs of bytes all the same.

    A *slice* is what one MFMA takes along K: `pieces` fragments of each lane.
    """

    @property
    def pieces(self) -> tuple[int, int]:
        """Of A and of B, fragments of 8 elements in a slice."""
        return 1, 1

    @property
    def loads(self) -> int:
        """Load instructions of `beside`."""
        return 0

    @property
    def slice_k(self) -> int:
        """16-bit elements along K of a slice, of the operand that has more."""
        return MFMA_K * max(self.pieces)

    def beside(self, k: fx.Int32, left: fx.Int32 | None) -> list[fx.Int32]:
        """What multiplying a wave's tiles of the step at `k` takes beside them, on its way from memory.

        `left` are the elements of K that are left from there on, None if all of the step's.
        """
        return []

    def slice_of(
        self, operand: int, number: int, read: Callable[[int], Sequence[Fragment]]
    ) -> list[Fragment]:
        """Fragments of slice `number` of A (0) or B (1), of which `read` gives pieces by their number along K."""
        count = self.pieces[operand]
        pieces = [read(number * count + i) for i in range(count)]
        if count == 1:
            return list(pieces[0])
        return [
            fx.Vector.from_elements([piece[i] for piece in of_block for i in range(piece.numel)], fx.Int16)
            for of_block in zip(*pieces, strict=True)
        ]

    @abstractmethod
    def multiply(
        self,
        a: Sequence[Fragment],
        b: Sequence[Fragment],
        acc: list[fx.Vector],
        beside: list[fx.Int32],
        slice_number: int = 0,
        first: int = 0,
    ) -> list[fx.Vector]:
        """acc[n][m] += b[n] a[m] for all blocks; those of A are the wave's from number `first` on."""


@dataclass(frozen=True)
class DenseMfma(Mfma):
    """v_mfma_f32_16x16x32 of a 16-bit type."""

    element: Any

    def multiply(
        self,
        a: Sequence[Fragment],
        b: Sequence[Fragment],
        acc: list[fx.Vector],
        beside: list[fx.Int32],
        slice_number: int = 0,
        first: int = 0,
    ) -> list[fx.Vector]:
        mfma = rocdl.mfma_f32_16x16x32_bf16 if self.element is fx.BFloat16 else rocdl.mfma_f32_16x16x32_f16
        result_type = fx.Vector.make_type(4, fx.Float32)
        a = [fragment.bitcast(self.element) for fragment in a]
        b = [fragment.bitcast(self.element) for fragment in b]
        blocks = [(n, m) for n in b for m in a]
        return [
            fx.Vector(mfma(result_type, [n, m, total])) for (n, m), total in zip(blocks, acc, strict=True)
        ]
