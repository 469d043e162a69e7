"""Counts and sums over the lanes of a wave and the waves of a workgroup, in FlyDSL."""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import range_constexpr, rocdl
from flydsl.expr.typing import T

from flycc.kernels.common.machine import WAVE_SIZE


def uniform(value: Any) -> fx.Int32:
    """A value that all lanes of the wave share, as a scalar."""
    return fx.Int32(rocdl.readfirstlane(T.i32, fx.Int32(value)))


def ones(mask: Any) -> fx.Int32:
    """How many lanes a ballot has."""
    return fx.Int32(fx.Int64(fx.math.ctpop(mask)))


def lower_ones(masks: list[Any]) -> fx.Int32:
    """How many lanes below this one `masks` have in all."""
    total = fx.Int32(0).ir_value()
    for mask in masks:
        low, high = fx.Int32(fx.Int64(mask)), fx.Int32(fx.Int64(mask) >> 32)
        total = rocdl.mbcnt_hi(T.i32, high.ir_value(), rocdl.mbcnt_lo(T.i32, low.ir_value(), total))
    return fx.Int32(total)


def wave_scan(value: fx.Int32, lane: fx.Int32) -> fx.Int32:
    """Sum over this lane and those below."""
    for distance in (1, 2, 4, 8, 16, 32):
        below = fx.Int32(fx.gpu.shuffle_up(value, distance, WAVE_SIZE))
        value = value + (lane >= distance).select(below, fx.Int32(0))
    return value


@flyc.jit
def block_scan(value: Any, totals: Any, thread: Any, waves: Any) -> Any:
    """Sum over the threads below this one, and over all. `totals` is LDS for one int32 a wave.

    There must be a barrier between the end of this and the next use of `totals`.
    """
    lane = thread % WAVE_SIZE
    inclusive = wave_scan(value, lane)
    if fx.const_expr(waves == 1):
        return inclusive - value, uniform(rocdl.readlane(T.i32, inclusive, WAVE_SIZE - 1))
    if lane == WAVE_SIZE - 1:
        fx.ptr_store(inclusive.ir_value(), totals + thread // WAVE_SIZE)
    fx.gpu.barrier()
    below, everyone = fx.Int32(0), fx.Int32(0)
    for wave in range_constexpr(waves):
        part = fx.Int32(fx.ptr_load(totals + wave))
        everyone = everyone + part
        below = below + (thread // WAVE_SIZE > wave).select(part, fx.Int32(0))
    return below + inclusive - value, uniform(everyone)


def load_words(pointer: fx.Pointer, count: int) -> list[fx.Int32]:
    """`count` (a power of two) int32 from LDS, 16 bytes to a load."""
    if count == 1:
        return [fx.Int32(fx.ptr_load(pointer))]
    step = min(count, 4)
    kind = fx.Vector.make_type(step, fx.Int32)
    vectors = [fx.Vector(fx.ptr_load(pointer + i, result_type=kind)) for i in range(0, count, step)]
    return [vector[i] for vector in vectors for i in range(step)]


def clear_words(pointer: fx.Pointer, count: int) -> None:
    """Zeroes `count` (a power of two) int32 of LDS."""
    step = min(count, 4)
    zeros = fx.Vector.filled(step, 0, fx.Int32) if step > 1 else fx.Int32(0)
    for i in range(0, count, step):
        fx.ptr_store(zeros.ir_value(), pointer + i)
