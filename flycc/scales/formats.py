"""Element formats of block-scaled operands, and the floating types that they are dequantised to.

Every finite element of a format is a multiple of `2^-q` of magnitude at most `maximum`; a product of two is therefore a
multiple of `2^-(q_a + q_b)` of magnitude at most `maximum_a * maximum_b`. Those two numbers are all that the theorems
of `bounds` and `ranges` need. Formats are those of the OCP Microscaling (MX) specification 1.0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Bias of an E8M0 byte: it stands for 2^(byte - 127), but for NaN_BYTE.
BIAS = 127
#: The largest byte that is a number, 2^127.
MAX_BYTE = 254
NAN_BYTE = 255


def lg(x: float) -> int:
    """floor(log2 x) of a number above 0, exactly."""
    if x <= 0:
        raise ValueError(f"lg({x}): a number above 0 is needed")
    return math.frexp(x)[1] - 1


def ceil_lg(x: float) -> int:
    """ceil(log2 x) of a number above 0, exactly."""
    mantissa, exponent = math.frexp(x)
    return exponent - (mantissa == 0.5) if x > 0 else lg(x)


@dataclass(frozen=True, slots=True)
class Format:
    """An element format: its elements are multiples of 2^-`q`, at most `maximum`, with at most `bits` significant bits.

    `maximum` is a magnitude; that of MXINT8 is of its most negative number, -2.
    """

    name: str
    q: int
    maximum: float
    bits: int


E2M1 = Format("e2m1", 1, 6.0, 2)
E2M3 = Format("e2m3", 3, 7.5, 4)
E3M2 = Format("e3m2", 4, 28.0, 3)
E4M3 = Format("e4m3", 9, 448.0, 4)
E5M2 = Format("e5m2", 16, 57344.0, 3)
MXINT8 = Format("mxint8", 6, 2.0, 7)

#: name -> format. The names of `contracts.scaled_gemm.ElementFormat` are among them.
FORMATS = {each.name: each for each in (E2M1, E2M3, E3M2, E4M3, E5M2, MXINT8)}


@dataclass(frozen=True, slots=True)
class FloatType:
    """A binary floating type: the exponents of its least subnormal, its least normal and its greatest numbers."""

    name: str
    subnormal: int
    normal: int
    greatest: int


F32 = FloatType("f32", -149, -126, 127)
BF16 = FloatType("bf16", -133, -126, 127)
F16 = FloatType("f16", -24, -14, 15)

#: name -> type.
FLOAT_TYPES = {each.name: each for each in (F32, BF16, F16)}


def elements(element: Format) -> list[float]:
    """Every finite element of a format but -0, in order."""
    if element is MXINT8:
        return [n / 64 for n in range(-128, 128)]
    found, unit = set(), 2.0**-element.q
    while (
        2 ** (element.bits - 1) * unit <= element.maximum
    ):  # one exponent's, and below the first the subnormal ones
        found |= {n * unit for n in range(2**element.bits)}
        unit *= 2
    sizes = sorted(size for size in found if size <= element.maximum)
    return [-size for size in reversed(sizes[1:])] + sizes


def product_q(a: Format, b: Format) -> int:
    """The q of products: every one is a multiple of 2^-q."""
    return a.q + b.q


def product_maximum(a: Format, b: Format) -> float:
    """The largest magnitude of a product, P."""
    return a.maximum * b.maximum


def sums_are_exact(a: Format, b: Format, k: int) -> bool:
    """Whether every sum of `k` unscaled products is a float32 number, whatever the elements: P 2^q k <= 2^24.

    Then no order of the additions rounds, and all give the same bits. Of e4m3 and e5m2, no sum of two is sure to be.
    """
    return k <= 1 or product_maximum(a, b) * 2.0 ** product_q(a, b) * k <= 2**24
