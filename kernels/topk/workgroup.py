"""Sums over the waves of a workgroup, and words of its LDS, in FlyDSL."""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import range_constexpr, rocdl
from flydsl.expr.typing import T

from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.common.wave import uniform, wave_scan


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
