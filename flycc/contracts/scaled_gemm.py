"""The MX-scaled GEMM problem: what a `flycc.scaled_gemm` op asks of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flycc.contracts.gemm import Epilogue, GemmDtype
from flycc.contracts.sizes import Size

#: Element types of operands, as the OCP MX specification names them: those of 8 bits, and that of 4.
ElementFormat = Literal["e4m3", "e5m2", "e2m1"]

#: Bits of an element in memory.
ELEMENT_BITS: dict[ElementFormat, int] = {"e4m3": 8, "e5m2": 8, "e2m1": 4}

#: Elements along K that share a block scale.
BLOCK_K = 32

#: How an operand is scaled. "none": not at all. "block": by an E8M0 byte for each 32 elements along K, inside the
#: product, where the MFMA itself applies it. "row" and "row_f32": by one E8M0 byte, or one float32 number, for each of
#: its rows (those of A, and the columns of the product that are B's), which multiplies the finished sums.
ScaleKind = Literal["none", "block", "row", "row_f32"]


@dataclass(frozen=True, slots=True)
class ScaledGemmProblem:
    """`out[m, n] = sum_k A[m, k] * 2^(sa[m, k // 32] - 127) * B[n, k] * 2^(sb[n, k // 32] - 127)`, then the `epilogue`.

    Both operands are stored with K innermost, A as [M, K] and B as [N, K] ("NT"); `k` counts elements, of which two of
    e2m1 share a byte (the first in its low half). Block scales are [rows, ceil(K / 32)] bytes, the last block of a row
    may be short. Sums are float32; a byte of 255 makes its sums NaN. `dtype` is that of the result, of the bias and of
    the residual. `align_a` and `align_b` are the largest powers of two, at most 16, that divide the byte address of
    every row, `align_scale_a` and `align_scale_b` those of every row of block scales.
    """

    format_a: ElementFormat
    format_b: ElementFormat
    dtype: GemmDtype
    m: Size
    n: Size
    k: Size
    scale_a: ScaleKind = "block"
    scale_b: ScaleKind = "block"
    bias: bool = False
    align_a: int = 16
    align_b: int = 16
    align_scale_a: int = 16
    align_scale_b: int = 16
    align_out: int = 16
    align_bias: int = 2
    align_residual: int = 2
    epilogue: Epilogue = Epilogue()  # noqa: RUF009 (it is frozen)

    def __str__(self) -> str:
        bias = "+bias" if self.bias else ""
        return (
            f"scaled_gemm {self.m}x{self.n}x{self.k} {self.format_a}:{self.scale_a} x {self.format_b}:{self.scale_b} "
            f"-> {self.dtype}{bias}{self.epilogue} align {self.align_a}/{self.align_b}/"
            f"{self.align_scale_a}/{self.align_scale_b}/{self.align_out}"
        )
