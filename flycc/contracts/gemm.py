"""The GEMM problem: what a `flycc.gemm` op asks of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flycc.contracts.sizes import Size

#: Element types by their MLIR names.
GemmDtype = Literal["bf16", "f16", "f32"]

#: Functions of one float32 number: "gelu" is that of erf, "gelu_tanh" its approximation by tanh, "silu" x * sigmoid(x).
Activation = Literal["none", "relu", "gelu", "gelu_tanh", "silu"]


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What becomes of a product's float32 sums s before the one rounding.

        p = scale * s + bias                  `scale` is one float32 number, known at run time
        y = activation(p)                     or, if `gated`, activation(p) * (scale * t)
        out = y + residual

    where t are the sums with a second B of the same shape, strides and alignment. The bias, any addend before the
    activation, is `GemmProblem.bias`; a gated product has none. `residual` is broadcastable to [batch, M, N]. With
    `preactivation` there is a second result p, of the shape, strides and type of `out`; not if `gated`. `out_dtype` is
    the type of the results, None for that of the operands; bias and residual always have that of the operands.
    """

    scale: bool = False
    activation: Activation = "none"
    gated: bool = False
    residual: bool = False
    preactivation: bool = False
    out_dtype: GemmDtype | None = None

    def __str__(self) -> str:
        parts = [name for name in ("scale", "gated", "residual", "preactivation") if getattr(self, name)]
        parts += [self.activation] * (self.activation != "none")
        parts += [f"to {self.out_dtype}"] * (self.out_dtype is not None)
        return "".join(f"+{part}" for part in parts)


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """`out[b, m, n] = sum_k A[b, m, k] * B[b, k, n] (+ bias[b, m, n])`, accumulated in float32; then the `epilogue`.

    `trans_a` says that A is stored as [K, M] (its M is the unit-stride dimension), `trans_b` that B is
    stored as [N, K]; so `torch.nn.functional.linear` is `trans_a=False, trans_b=True` ("NT").
    `bias` says whether a bias tensor, broadcastable to [batch, M, N], is added in float32 before the one
    rounding to `dtype`. `align_a`, `align_b` and `align_out` are the largest powers of two, at most 16,
    that divide the byte address of every row of the stored operand: what decides the load width. `align_bias` and
    `align_residual` are the same where columns are neighbours in memory (broadcast rows count), and 2 where not.
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
    align_bias: int = 2
    align_residual: int = 2
    epilogue: Epilogue = Epilogue()

    @property
    def layout(self) -> str:
        """BLAS spelling of the operand layouts: "NN", "NT", "TN" or "TT"."""
        return ("T" if self.trans_a else "N") + ("T" if self.trans_b else "N")

    def __str__(self) -> str:
        batch = "" if self.batch == 1 else f"{self.batch}x"
        bias = "+bias" if self.bias else ""
        return (
            f"gemm {batch}{self.m}x{self.n}x{self.k} {self.dtype} {self.layout}{bias}{self.epilogue} "
            f"align {self.align_a}/{self.align_b}/{self.align_out}"
        )
