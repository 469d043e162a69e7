"""RMS normalisation problems, forward and backward: what `flycc.rms_norm` ops ask of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flycc.contracts.mx import ScaleRounding
from flycc.contracts.scaled_gemm import ElementFormat
from flycc.contracts.sizes import Size

#: Element types by their MLIR names.
NormDtype = Literal["bf16", "f16", "f32"]
#: The type of the weight, or that there is none.
WeightDtype = Literal["none", "bf16", "f16", "f32"]
#: The largest eps: the largest float32, as kernels take it in that type.
MAX_EPS = (2 - 2.0**-23) * 2.0**127


@dataclass(frozen=True, slots=True)
class RmsNormProblem:
    """`y[r, c] = h[r, c] * rstd[r] * w[c]` with `rstd[r] = 1 / sqrt(mean_c(h[r, c]^2) + eps)`, in float32.

    `h` is `x`, or with `residual` `x + residual` rounded to `dtype`, which the kernel then also returns as
    the new residual. `dtype` is the type of x, residual and new residual, `out` that of y. `w` is 1 without
    a weight, and 1 + weight with `weight_offset` (Gemma). With `cast_before_weight` the normalised value is
    rounded to `dtype` before the product with the weight, which is then rounded to `out` (Llama); without,
    the one rounding is that to `out`. `rstd` says that the kernel also returns rstd, in float32.
    `align` is the largest power of two, at most 16, that divides the byte address of every row of every
    [rows, columns] operand. With `mx`, a format, the kernel returns y quantised instead, as `MxQuantizeProblem` of
    type `out` and `mx_rounding` says.
    """

    dtype: NormDtype
    rows: Size
    columns: Size
    weight: WeightDtype = "none"
    out: NormDtype | None = None
    weight_offset: bool = False
    cast_before_weight: bool = False
    residual: bool = False
    rstd: bool = False
    align: int = 16
    mx: ElementFormat | None = None
    mx_rounding: ScaleRounding = "floor"

    @property
    def out_dtype(self) -> NormDtype:
        """The type of y: `out`, by default `dtype`."""
        return self.out or self.dtype

    def __str__(self) -> str:
        weight = "" if self.weight == "none" else f" weight {self.weight}{'+1' if self.weight_offset else ''}"
        parts = [name for name in ("residual", "rstd") if getattr(self, name)]
        cast = " cast before weight" if self.cast_before_weight else ""
        out = "" if self.out_dtype == self.dtype else f" -> {self.out_dtype}"
        out += "" if self.mx is None else f" -> {self.mx} {self.mx_rounding}"
        extra = "".join(f"+{part}" for part in parts)
        return (
            f"rms_norm {self.rows}x{self.columns} {self.dtype}{out}{extra}{weight}{cast} align {self.align}"
        )


@dataclass(frozen=True, slots=True)
class RmsNormBackwardProblem:
    """Gradients of `RmsNormProblem`'s h and weight, for a gradient of y, given h and rstd.

    With `g[r, c] = grad[r, c] * w[c]`: `dx = rstd * (g - h * rstd^2 * mean_c(g * h))` and, with a weight,
    `dweight[c] = sum_r grad[r, c] * h[r, c] * rstd[r]`, all in float32 and rounded once, to `dtype` and to
    the weight's type. `grad` is of type `out`.
    """

    dtype: NormDtype
    rows: Size
    columns: Size
    weight: WeightDtype = "none"
    out: NormDtype | None = None
    weight_offset: bool = False
    cast_before_weight: bool = False
    align: int = 16

    @property
    def out_dtype(self) -> NormDtype:
        """The type of the gradient of y: `out`, by default `dtype`."""
        return self.out or self.dtype

    def __str__(self) -> str:
        weight = "" if self.weight == "none" else f" weight {self.weight}{'+1' if self.weight_offset else ''}"
        return f"rms_norm_backward {self.rows}x{self.columns} {self.dtype}{weight} align {self.align}"
