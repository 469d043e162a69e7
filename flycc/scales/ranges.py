"""Ranges of scale bytes, and what a range decides: whether a guard holds, sums may be reordered, a scale be hoisted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from flycc.scales.bounds import Guard, exponent_max, exponent_min
from flycc.scales.formats import (
    BIAS,
    MAX_BYTE,
    NAN_BYTE,
    FloatType,
    Format,
    ceil_lg,
    elements,
    lg,
    product_maximum,
    product_q,
)
from flycc.scales.trees import Tree

#: How a quantiser picks a block's scale: see `quantised`.
Rounding = Literal["floor", "even", "ceil"]


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the greatest of scale bytes that are numbers, and whether some byte is, or may be, NaN (255)."""

    lo: int
    hi: int
    nan: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.lo <= self.hi <= MAX_BYTE:
            raise ValueError(
                f"scale bytes from {self.lo} to {self.hi}: 0 <= lo <= hi <= {MAX_BYTE} is needed"
            )

    def __or__(self, other: Range) -> Range:
        """The range of both together."""
        return Range(min(self.lo, other.lo), max(self.hi, other.hi), self.nan or other.nan)

    def __str__(self) -> str:
        return f"{self.lo}..{self.hi}{' and NaN' if self.nan else ''}"


#: Of scales of which nothing is known.
UNKNOWN = Range(0, MAX_BYTE, True)


def scan(scales: bytes | bytearray | memoryview, zero_blocks: Iterable[object] | None = None) -> Range:
    """The range of E8M0 bytes, given as a buffer; `zero_blocks` tells for each whether its block is all zero.

    The scale of a block of zeros cannot make a product too small, and so does not count for the least; it does for the
    greatest, as 0 times infinity is NaN. Of no byte at all, or of NaN bytes alone, the range is 127..127.
    """
    data = memoryview(scales).tobytes()
    present = set(data)
    nan = NAN_BYTE in present
    numbers = present - {NAN_BYTE}
    if not numbers:
        return Range(BIAS, BIAS, nan)
    counted = numbers
    if zero_blocks is not None:
        counted = {byte for byte, zero in zip(data, zero_blocks, strict=True) if not zero} - {NAN_BYTE}
    return Range(min(counted or {max(numbers)}), max(numbers), nan)


def quantised(element: Format, source: FloatType, rounding: Rounding) -> Range:
    """The range of scales that a quantiser can write for blocks of finite numbers of type `source`; not for others.

    For a block's largest magnitude `amax`, and `emax` of the format, lg of its greatest element, the byte is 127 plus
    - "floor": lg(amax) - emax
    - "even": the same of amax rounded to the element's significant bits, which may reach the next power of two
    - "ceil": the least exponent e for which amax is at most that element times 2^e
    and at least 0; a block of zeros has byte 127. A block with NaN or infinity has byte 255, which is not in the range.
    """
    emax = lg(elements(element)[-1])
    step = rounding != "floor"
    low = max(source.subnormal - emax + BIAS, 0)
    high = max(min(source.greatest + step - emax + BIAS, MAX_BYTE), 0)
    return Range(min(low, BIAS), max(high, BIAS))


def ok(guard: Guard, a: Range, b: Range, *, nan_propagates: bool = True) -> bool:
    """Whether every pair of bytes of the two ranges is within the guard.

    NaN bytes make both sides NaN where both decode them, even for blocks of zeros; where one side does not, as a bare
    `ldexp` by `byte - 127`, `nan_propagates` is False, and then a range with NaN is refused.
    """
    if (a.nan or b.nan) and not nan_propagates:
        return False
    return (
        guard.a_min <= a.lo
        and a.hi <= guard.a_max
        and guard.b_min <= b.lo
        and b.hi <= guard.b_max
        and guard.sum_min <= a.lo + b.lo
        and a.hi + b.hi <= guard.sum_max
    )


def order_free(
    a_format: Format,
    b_format: Format,
    k: int,
    a: Range,
    b: Range,
    *,
    flush: bool = False,
    nan_propagates: bool = True,
) -> bool:
    """Whether every partial sum of the `k` scaled products is a float32 number, in every order (Theorem 6).

    Then all orders, trees, contractions and splits of the sum give the same bits, and so do the placements product and
    block; element, one_sided and hoisted need their own guards besides. Holds if
    `P 2^q k 2^(S.hi - S.lo) <= 2^24`, `S.lo - 254 >= -149 + q` (-126 + q to flush) and `S.hi - 254 <= 127 - lg(P k)`.
    `nan_propagates` as for `ok`.
    """
    if (a.nan or b.nan) and not nan_propagates:
        return False
    low, high = a.lo + b.lo, a.hi + b.hi
    spread = spread_limit(a_format, b_format, k)
    return (
        spread is not None
        and high - low <= spread
        and low - 2 * BIAS >= exponent_min(a_format, b_format, flush)
        and high - 2 * BIAS <= exponent_max(a_format, b_format, k)
    )


def hoist(
    a_format: Format, b_format: Format, tree: Tree, sums: tuple[int, int], t: int, *, flush: bool = False
) -> bool:
    """Whether 2^t may be taken out of a whole sum, its blocks keeping exponents lower by t (Theorem 5).

    `sums` are the least and the greatest sum of bytes S of the blocks, `tree` that of all products, which both sides
    must share; no sum need be exact. With the accumulator starting at 0, `2^t * sum of 2^(s - t) p` has the bits of
    `sum of 2^s p` if s and s - t are both at least -149 + q (-126 + q to flush), s is at most 127 - lg(P L), and s - t
    at most 127 - lg(P L'), where L is the leaves of the root's larger child, and L' is L, or all leaves where t < 0.
    """
    low, high = (total - 2 * BIAS for total in sums)
    least = exponent_min(a_format, b_format, flush)
    inner = tree.leaves if t < 0 else tree.larger
    return (
        min(low, low - t) >= least
        and high <= exponent_max(a_format, b_format, tree.larger)
        and high - t <= exponent_max(a_format, b_format, inner)
    )


def spread_limit(a_format: Format, b_format: Format, k: int) -> int | None:
    """How far S may spread over `k` products for `order_free`: 24 - ceil(log2(P 2^q k)), or None if not even by 0."""
    units = product_maximum(a_format, b_format) * 2.0 ** product_q(a_format, b_format)
    limit = 24 - ceil_lg(units * max(k, 1))
    return limit if limit >= 0 else None
