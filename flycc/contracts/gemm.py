"""The GEMM problem: what a `flycc.gemm` op asks of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flycc.contracts.sizes import Size

#: Element types by their MLIR names.
GemmDtype = Literal["bf16", "f16", "f32"]


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """`out[b, m, n] = sum_k A[b, m, k] * B[b, k, n] (+ bias[b, m, n])`, accumulated in float32.

    `trans_a` says that A is stored as [K, M] (its M is the unit-stride dimension), `trans_b` that B is
    stored as [N, K]; so `torch.nn.functional.linear` is `trans_a=False, trans_b=True` ("NT").
    `bias` says whether a bias tensor, broadcastable to [batch, M, N], is added in float32 before the one
    rounding to `dtype`. `align_a`, `align_b` and `align_out` are the largest powers of two, at most 16,
    that divide the byte address of every row of the stored operand: what decides the load width.
    """

    dtype: GemmDtype
    m: Size
    n: Size
    k: Size
    batch: Size = 1
    trans_a: bool = False
    trans_b: bool = False
    bias: bool = False
    align_a: int = 16
    align_b: int = 16
    align_out: int = 16

    @property
    def layout(self) -> str:
        """BLAS spelling of the operand layouts: "NN", "NT", "TN" or "TT"."""
        return ("T" if self.trans_a else "N") + ("T" if self.trans_b else "N")

    def __str__(self) -> str:
        batch = "" if self.batch == 1 else f"{self.batch}x"
        bias = "+bias" if self.bias else ""
        return (
            f"gemm {batch}{self.m}x{self.n}x{self.k} {self.dtype} {self.layout}{bias} "
            f"align {self.align_a}/{self.align_b}/{self.align_out}"
        )
