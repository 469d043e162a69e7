"""Packing of block scales: [rows, blocks] bytes become those of each MFMA side by side, as rings take them.

Packed scales are uint8 [ceil(rows / 64)][steps][64 lanes][slices][4]: a step is 128 bytes along K of the operand (or of
the wider one that it is multiplied by), so 4 `slices` blocks; byte i of four is that of row 64 R + 16 i + lane mod 16
and of block 4 (slices s + slice) + lane div 16. What there is no block for is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flycc.contracts.scaled_gemm import BLOCK_K, ScaledGemmProblem
from flycc.kernels.common.spec import KernargLayout, KernelSpec, Launch
from flycc.kernels.mx.config import GROUP_ROWS, PACKED_K, pairs_of_block

#: `rows_a` and `rows_b` rows of `blocks` scales each are at `scale_a` and `scale_b`, none where an operand has no block
#: scales; packed they have `steps` along K.
KERNARG = KernargLayout(
    (
        ("scale_a", "ptr"),
        ("scale_b", "ptr"),
        ("packed_a", "ptr"),
        ("packed_b", "ptr"),
        ("rows_a", "i32"),
        ("rows_b", "i32"),
        ("blocks", "i32"),
        ("steps", "i32"),
    )
)
#: Work-items of a workgroup, and scales of each of its four rows that one takes.
THREADS, OF_THREAD = 256, 16
#: Rows of a lane: those of its place in MFMA blocks.
LANE_ROWS = 16

_HERE = Path(__file__).parent
_SOURCES = (
    *(_HERE / name for name in ("config.py", "pack.py", "pack_program.py")),
    *(_HERE.parent / "common" / name for name in ("arguments.py", "buffers.py", "machine.py")),
    _HERE.parent / "gemm" / "config.py",
)


@dataclass(frozen=True, slots=True)
class Packing:
    """Block scales of both operands of a product, [`rows_a`, `blocks`] and [`rows_b`, `blocks`], 0 rows where an
    operand has none; rows without gaps, whose addresses `align` divides (1 to 16).
    """

    rows_a: int
    rows_b: int
    blocks: int
    slices: int
    align: int

    @classmethod
    def of(cls, problem: ScaledGemmProblem) -> Packing:
        """That of a product whose sizes are all known."""
        rows, align = {}, 16
        for operand, size in (("a", problem.m), ("b", problem.n)):
            assert isinstance(size, int), "sizes are known"
            blocks = getattr(problem, f"scale_{operand}") == "block"
            rows[operand] = size if blocks else 0
            align = min(align, getattr(problem, f"align_scale_{operand}")) if blocks else align
        assert isinstance(problem.k, int), "sizes are known"
        slices = PACKED_K // (4 * pairs_of_block(problem))
        return cls(rows["a"], rows["b"], -(-problem.k // BLOCK_K), slices, align)

    @property
    def steps(self) -> int:
        return -(-self.blocks // (4 * self.slices))

    def bytes(self, operand: str) -> int:
        """Those of the packed scales of operand "a" or "b"."""
        rows = {"a": self.rows_a, "b": self.rows_b}[operand]
        return -(-rows // GROUP_ROWS) * GROUP_ROWS * self.steps * 4 * self.slices

    @property
    def numbers(self) -> dict[str, int]:
        """The arguments that are not pointers."""
        names = ("rows_a", "rows_b", "blocks", "steps")
        return {name: getattr(self, name) for name in names}

    @property
    def vector(self) -> int:
        """Bytes of a load: they lie inside a row or outside."""
        found = math.gcd(self.align, self.blocks)
        return found if found >= 4 else 1


def kernel(packing: Packing) -> KernelSpec:
    """The binary that packs; packings that differ in rows and blocks only, but for what divides these, share one."""
    slices, vector = packing.slices, packing.vector
    symbol = f"mx_pack_s{slices}_v{vector}"

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.mx.pack_program import build

        return build(symbol, slices, vector)

    return KernelSpec("mx_pack", symbol, symbol, KERNARG, _SOURCES, build)


def launch(packing: Packing) -> Launch:
    """Launch geometry: a workgroup packs 64 rows of 256 scales of one operand."""
    of_group = THREADS // LANE_ROWS * OF_THREAD
    along_k = -(-packing.steps * 4 * packing.slices // of_group)
    groups = -(-max(packing.rows_a, packing.rows_b) // GROUP_ROWS)
    return Launch((groups, along_k, 2), (THREADS, 1, 1))
