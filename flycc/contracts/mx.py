"""MX quantisation problems: what `flycc.mx_quantize`, `flycc.mx_dequantize` and `scale_range` ask of a kernel.

The rule of scales: with `amax` the largest magnitude of a block, its byte is that of `2^(floor(log2 amax) - emax)`,
where `emax` is the exponent of the format's largest number. That is OCP's "floor", by which up to half a binade of
elements saturates. "even" first rounds amax to the format's significand (a tie goes up to the next binade, whose
significand is even), "ceil" takes the least scale by which nothing saturates. For amax in float32 all three are one
addition to its bits (`carry`), of which the exponent is taken. The byte of zeros is 127, of a block with an infinity
or NaN 255 (its elements are zeros), and no other is below 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flycc.contracts.scaled_gemm import ElementFormat
from flycc.contracts.sizes import Size

#: Types of what is quantised and of what is dequantised, by their MLIR names.
WideDtype = Literal["bf16", "f16", "f32"]
ScaleRounding = Literal["floor", "even", "ceil"]

#: Of a format: explicit bits of the significand, and the largest number.
MANTISSA_BITS: dict[ElementFormat, int] = {"e4m3": 3, "e5m2": 2, "e2m1": 1}
LARGEST: dict[ElementFormat, float] = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0}
#: The exponent of the largest number.
EMAX: dict[ElementFormat, int] = {"e4m3": 8, "e5m2": 15, "e2m1": 2}

#: The byte of a block of zeros: scale 1, which no bound on scales refuses.
ZERO_BLOCK = 127
#: The byte that is NaN.
NAN_BYTE = 255


def carry(format: ElementFormat, rounding: ScaleRounding) -> int:
    """What to add to the bits of float32 amax, so that the exponent goes up just where the rounding wants that."""
    if rounding == "floor":
        return 0
    if rounding == "even":
        return 1 << (22 - MANTISSA_BITS[format])
    largest_significand = int((LARGEST[format] / 2.0 ** EMAX[format] - 1) * 2**23)
    return 2**23 - 1 - largest_significand


@dataclass(frozen=True, slots=True)
class MxQuantizeProblem:
    """x [rows, columns] to elements [rows, columns] and E8M0 bytes [rows, ceil(columns / 32)], both contiguous, and to
    the range of those bytes. Elements are rounded to nearest even and saturate.

    Two elements of e2m1 share a byte, the first in its low half; that of an odd last one has a high half of 0. `align`
    is the largest power of two, at most 16, that divides the byte address of every row of x.
    """

    dtype: WideDtype
    format: ElementFormat
    rows: Size
    columns: Size
    rounding: ScaleRounding = "floor"
    align: int = 16

    def __str__(self) -> str:
        how = f"{self.dtype} -> {self.format} {self.rounding}"
        return f"mx_quantize {self.rows}x{self.columns} {how} align {self.align}"


@dataclass(frozen=True, slots=True)
class MxDequantizeProblem:
    """The reverse: `element * 2^(byte - 127)`, rounded once to `dtype`; NaN where the byte is 255.

    `columns` counts elements. `align` and `align_scale` are the largest powers of two, at most 16, that divide the
    byte address of every row of elements and of bytes; the result is contiguous.
    """

    format: ElementFormat
    dtype: WideDtype
    rows: Size
    columns: Size
    align: int = 16

    def __str__(self) -> str:
        return f"mx_dequantize {self.rows}x{self.columns} {self.format} -> {self.dtype} align {self.align}"


@dataclass(frozen=True, slots=True)
class ScaleRangeProblem:
    """int32 {lowest, highest byte but for 255, whether there is a 255} of `count` contiguous E8M0 bytes.

    Of no byte but 255s it is {127, 127, 1}.
    """

    count: Size

    def __str__(self) -> str:
        return f"scale_range {self.count}"
