"""The grouped GEMM problem: what a `flycc.grouped_gemm` op asks of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flycc.contracts.gemm import GemmDtype, GemmProblem
from flycc.contracts.sizes import Size

#: The dimension of the product that the groups share out among them.
Ragged = Literal["m", "n", "k"]


@dataclass(frozen=True, slots=True)
class GroupedGemmProblem:
    """`out_g = A_g @ B_g (+ bias[g])` for every group g, accumulated in float32 and rounded once; int32 offsets on the
    device say where groups end.

    Group g has the indices `offsets[g - 1] ..< offsets[g]` (from 0 for the first) of the `ragged` dimension:

    - "m": A [M, K] times B [G, K, N] gives out [M, N], rows by group;
    - "n": A [G, M, K] times B [K, N] gives out [M, N], columns by group;
    - "k": A [M, K] times B [K, N] gives out [G, M, N], a sum over part of K each (0 for an empty group).

    The size of the ragged dimension is that of all groups together, and of what comes after the last one.
    `trans_a`, `trans_b` and the alignments are those of `GemmProblem`, of groups that start at index 0. A `bias` [G, N]
    has a row for each group; there is none where the groups share out N.
    """

    dtype: GemmDtype
    ragged: Ragged
    groups: Size
    m: Size
    n: Size
    k: Size
    trans_a: bool = False
    trans_b: bool = False
    align_a: int = 16
    align_b: int = 16
    align_out: int = 16
    bias: bool = False
    align_bias: int = 2

    @property
    def layout(self) -> str:
        """BLAS spelling of the operand layouts: "NN", "NT", "TN" or "TT"."""
        return ("T" if self.trans_a else "N") + ("T" if self.trans_b else "N")

    @property
    def group(self) -> GemmProblem:
        """The product of one group, whose ragged size is known at run time only."""
        sizes = {"m": self.m, "n": self.n, "k": self.k, self.ragged: "ragged"}
        return GemmProblem(
            self.dtype,
            sizes["m"],
            sizes["n"],
            sizes["k"],
            trans_a=self.trans_a,
            trans_b=self.trans_b,
            bias=self.bias,
            align_a=self.align_a,
            align_b=self.align_b,
            align_out=self.align_out,
            align_bias=self.align_bias,
        )

    def __str__(self) -> str:
        sizes = {"m": self.m, "n": self.n, "k": self.k}
        shape = "x".join(f"{'*' if name == self.ragged else ''}{size}" for name, size in sizes.items())
        bias = "+bias" if self.bias else ""
        return (
            f"grouped_gemm {self.groups}: {shape} {self.dtype} {self.layout}{bias} "
            f"align {self.align_a}/{self.align_b}/{self.align_out}"
        )
