"""Guards: for which scale bytes a product of scaled blocks has the same bits with its scales in another place.

A block is `sum over i of a_i b_i`, k products with the scale exponents `ea = byte_a - 127` and `eb = byte_b - 127`, and
`s = ea + eb`. Arithmetic is float32, rounded to nearest even; equal means the same bits, all NaNs taken as one and -0
apart from +0. `S = byte_a + byte_b = s + 254` is the sum of the bytes. The scales stand

- element:   `sum of (a_i 2^ea) (b_i 2^eb)`, each operand dequantised, in a type of its own (float32, bfloat16, float16)
- product:   `sum of (a_i b_i) 2^s`
- one_sided: `2^ea * sum of a_i (b_i 2^eb)`
- operand:   as a matrix unit applies them, which is "product" in an order that is not known
- block:     `2^s * sum of a_i b_i`, with the one multiplication the only one that rounds: what all are compared with
- hoisted:   `2^t * (a sum over blocks whose exponents are s - t)`: see `ranges.hoist`

docs/scale-placement.md has the theorems that are named here, with their proofs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from flycc.scales.formats import (
    BIAS,
    F32,
    MAX_BYTE,
    FloatType,
    Format,
    lg,
    product_maximum,
    product_q,
    sums_are_exact,
)
from flycc.scales.trees import Tree

Placement = Literal["element", "product", "one_sided", "operand", "block", "hoisted"]


@dataclass(frozen=True, slots=True)
class Guard:
    """Bytes for which two placements agree: each operand's byte and their sum S are within these, ends included.

    `any_order`: sums within a block do not round, so the two may also add in different orders. Where it is False both
    must use the same tree of additions. Bounds where the least is above the greatest hold for no byte at all.
    """

    sum_min: int
    sum_max: int
    a_min: int
    a_max: int
    b_min: int
    b_max: int
    any_order: bool

    def __str__(self) -> str:
        return (
            f"{self.sum_min} <= a + b <= {self.sum_max}, "
            f"{self.a_min} <= a <= {self.a_max}, {self.b_min} <= b <= {self.b_max}"
        )


def exponent_min(a: Format, b: Format, flush: bool) -> int:
    """The least exponent s for which every product times 2^s is exact (Theorem 1): -149 + q.

    With `flush`, subnormal numbers may be taken for zero anywhere, or not: then -126 + q, from where none comes up.
    """
    return (F32.normal if flush else F32.subnormal) + product_q(a, b)


def exponent_max(a: Format, b: Format, count: int) -> int:
    """The greatest exponent s for which `count` products times 2^s cannot overflow: 127 - lg(P count).

    That is as long as P times every number up to `count` is a float32 number, so that sums of products of the greatest
    size do not round up (Theorem 5): up to 74565 of e2m3, and further of the others. Beyond, a sum is below
    `(1 + 2^-24)^count <= 2^ceil(count / 2^23)` times P count, and so many exponents are given away.
    """
    count, greatest = max(count, 1), product_maximum(a, b)
    odd = Fraction(greatest).numerator
    odd //= odd & -odd
    spare = 0 if odd * count <= 2**24 else -(-count // 2**23)
    return F32.greatest - lg(greatest * count) - spare


def element_bytes(element: Format, operand: FloatType, flush: bool) -> tuple[int, int] | None:
    """Bytes for which every element times its scale is a number of type `operand` (Theorem 2), or None for no byte.

    The exponent is within [subnormal + q, greatest - lg M]; with `flush` from normal + q.
    """
    low = (operand.normal if flush else operand.subnormal) + element.q + BIAS
    high = operand.greatest - lg(element.maximum) + BIAS
    low, high = max(low, 0), min(high, MAX_BYTE)
    return (low, high) if low <= high else None


def derive(
    a: Format,
    b: Format,
    tree: Tree,
    placement: Placement,
    *,
    operand: FloatType = F32,
    flush: bool = False,
    zero_byte_exact: bool = True,
    contracted: bool = False,
) -> Guard:
    """The guard for which `placement` has the bits of "block", for all elements whatever.

    - `tree` adds the products of one block.
    - `operand`: the type that "element" and "one_sided" dequantise to; "one_sided" has b's scale inside, a's outside.
      If "element" has another type for each operand, the bytes of each are those of a guard with its own type.
    - `flush`: subnormal numbers may be taken for zero, or not, anywhere, and on either side without the other. Such
      bounds hold in every mode, and in mixtures.
    - `zero_byte_exact` is False where a decoder takes byte 0 for 0.0 and not for 2^-127.
    - `contracted`: the sum goes on into a multiply-add, `fma(sum, 2^s, c)`, and is not rounded alone (Theorem 7).

    The theorems: 1 and 5 for "product", 2 for "element", 3 for "one_sided", 7 for `contracted`.
    """
    if placement == "hoisted":
        raise ValueError("derive(placement='hoisted'): hoisting is over blocks, see ranges.hoist")
    least = 0 if zero_byte_exact else 1
    exact = sums_are_exact(a, b, tree.leaves)
    free = Guard(0, 2 * MAX_BYTE, least, MAX_BYTE, least, MAX_BYTE, exact)
    if placement == "operand":
        tree = Tree("any", tree.leaves)
    below_root = tree.leaves if contracted else tree.larger
    low, high = exponent_min(a, b, flush), exponent_max(a, b, below_root)
    sums = replace(free, sum_min=max(low + 2 * BIAS, 0), sum_max=min(high + 2 * BIAS, 2 * MAX_BYTE))
    outside = sums if contracted else replace(free, sum_min=sums.sum_min) if flush else free
    if placement == "block":
        return outside
    if placement == "element":
        sums = _within(sums, "a", element_bytes(a, operand, flush))
        return _within(sums, "b", element_bytes(b, operand, flush))
    if placement == "one_sided":
        inside = (max(low + BIAS, 0), exponent_max(a, b, tree.leaves) + BIAS)
        guard = _within(outside, "b", inside)
        guard = _within(guard, "b", element_bytes(b, operand, flush))
        return _within(guard, "a", (1, MAX_BYTE)) if flush else guard
    return sums


def _within(guard: Guard, side: Literal["a", "b"], limits: tuple[int, int] | None) -> Guard:
    """The guard with the bytes of one operand limited further; to none where `limits` is None."""
    low, high = limits or (MAX_BYTE, 0)
    if side == "a":
        return replace(guard, a_min=max(guard.a_min, low), a_max=min(guard.a_max, high))
    return replace(guard, b_min=max(guard.b_min, low), b_max=min(guard.b_max, high))
