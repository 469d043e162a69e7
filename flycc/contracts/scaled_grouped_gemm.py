"""The MX-scaled grouped GEMM problem: what a `flycc.scaled_grouped_gemm` op asks of a kernel."""

from __future__ import annotations

from dataclasses import dataclass

from flycc.contracts.gemm import GemmDtype
from flycc.contracts.scaled_gemm import ElementFormat, ScaledGemmProblem
from flycc.contracts.sizes import Size


@dataclass(frozen=True, slots=True)
class ScaledGroupedGemmProblem:
    """`out_g = A_g @ B[g].T (+ bias[g])` for every group g of rows of A [M, K], with B [G, N, K].

    Int32 offsets on the device say where groups end, as in a `GroupedGemmProblem` where they share out M. Operands,
    their block scales, A's [M, ceil(K / 32)] and B's [G, N, ceil(K / 32)], and the alignments are those of a
    `ScaledGemmProblem`. A `bias` [G, N] has a row for each group.
    """

    format_a: ElementFormat
    format_b: ElementFormat
    dtype: GemmDtype
    groups: Size
    m: Size
    n: Size
    k: Size
    bias: bool = False
    align_a: int = 16
    align_b: int = 16
    align_scale_a: int = 16
    align_scale_b: int = 16
    align_out: int = 16
    align_bias: int = 2

    @property
    def group(self) -> ScaledGemmProblem:
        """The product of one group, whose M is known at run time only."""
        return ScaledGemmProblem(
            self.format_a,
            self.format_b,
            self.dtype,
            "ragged",
            self.n,
            self.k,
            bias=self.bias,
            align_a=self.align_a,
            align_b=self.align_b,
            align_scale_a=self.align_scale_a,
            align_scale_b=self.align_scale_b,
            align_out=self.align_out,
            align_bias=self.align_bias,
        )

    def __str__(self) -> str:
        bias = "+bias" if self.bias else ""
        return (
            f"scaled_grouped_gemm {self.groups}: *{self.m}x{self.n}x{self.k} {self.format_a} x {self.format_b} -> "
            f"{self.dtype}{bias} align {self.align_a}/{self.align_b}/{self.align_scale_a}/{self.align_scale_b}/"
            f"{self.align_out}"
        )
