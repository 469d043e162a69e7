"""The softmax over keys that come tile by tile, of a lane's query, in FlyDSL.

O and the sums of p are relative to `shift`, a score in units of ln 2: a row's highest so far, or one up to `SLACK`
lower. As long as no row of a wave has grown by more than that, nothing is rescaled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl._mlir.dialects import llvm
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.kernels.attention.mfma import RESULTS
from flycc.kernels.attention.scores import exp2

#: By so many powers of two p may be above 1: far from overflow in both 16-bit types, and no bit less exact.
SLACK = 8.0
#: Numbers of this size are rounded by 1/4 at most.
_ROUNDS = 2.0**22
#: The shift of a row that has seen nothing.
LOWEST = -float.fromhex("0x1.fffffep127")


def highest(values: Sequence[fx.Vector]) -> fx.Float32:
    """The highest of a query's scores, which are in two lanes; NaN is left out."""
    parts = [vector[i] for vector in values for i in range(vector.numel)]
    while len(parts) > 1:
        parts = [higher(*parts[i : i + 3]) for i in range(0, len(parts), 3)]
    return over_halves(higher, parts[0])


def higher(*values: fx.Float32) -> fx.Float32:
    """The highest, NaN left out; of three in one instruction."""
    total = values[0]
    for value in values[1:]:
        total = fx.Float32(fx.arith.maxnumf(total, value))
    return total


def over_halves(function: Callable[[Any, Any], Any], value: fx.Float32) -> fx.Float32:
    """`function` of what this lane has and what lane ^ 32 has; it must not matter which is first.

    v_permlane32_swap exchanges the upper half of one register with the lower half of another.
    """
    pair = ir.Type.parse("!llvm.struct<(i32, i32)>")
    word = value.bitcast(fx.Int32).ir_value()
    both = rocdl.permlane32_swap(pair, word, word, False, False)
    return function(*(fx.Int32(llvm.extractvalue(T.i32, both, [i])).bitcast(fx.Float32) for i in range(2)))


@flyc.jit
def weights(scores: Any, values: Any, shift: Any, sums: Any, total: Any) -> Any:
    """p of a lane's scores, `values` in units of `scores`, and the new `shift`, `sums` of p and `total`s of p V."""
    now = higher(highest(values) * scores.unit, shift)
    moves = now > shift + SLACK
    if fx.const_expr(scores.features.linear):
        # So large a score is rounded by so much that p of the highest, in one FMA, were not near 1. A row that has seen
        # nothing counts as well, and loses nothing by it.
        moves = moves | (abs(now) > _ROUNDS)
    unit, base = scores.unit, shift
    if fx.Int64(rocdl.ballot(T.i64, moves.ir_value())) != 0:
        factor = exp2(shift - now)
        shift = now
        sums = sums * factor
        total = [block * splat(factor) for block in total]
        values = [value * splat(unit) - splat(now) for value in values]
        unit, base = fx.Float32(1.0), fx.Float32(0.0)
    p = [_exponentials(value, unit, base) for value in values]
    return p, shift, sums + total_of(p), total


def total_of(vectors: Sequence[fx.Vector]) -> fx.Float32:
    """The sum of all elements, in pairs."""
    total = vectors[0]
    for vector in vectors[1:]:
        total = total + vector
    parts = [fx.Vector.from_elements([total[i], total[i + 1]], fx.Float32) for i in range(0, RESULTS, 2)]
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0][0] + parts[0][1]


def _exponentials(values: fx.Vector, unit: fx.Float32, shift: fx.Float32) -> fx.Vector:
    """p of scores in `unit`s, relative to `shift`."""
    exponents = fx.math.fma(values, splat(unit), splat(-shift))
    return fx.Vector.from_elements([exp2(exponents[i]) for i in range(RESULTS)], fx.Float32)


def splat(value: fx.Float32) -> fx.Vector:
    """The value for each of a lane's results."""
    return fx.Vector.filled(RESULTS, value, fx.Float32)
