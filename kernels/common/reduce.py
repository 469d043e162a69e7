"""Sums over the work-items that share a row, in FlyDSL. The order of additions is fixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import flydsl.expr as fx

from flycc.kernels.common.machine import WAVE_SIZE

Addend = TypeVar("Addend", fx.Float32, fx.Vector)


def tree_sum(parts: Sequence[Addend]) -> Addend:
    """The sum of `parts`, at least one, as a balanced tree."""
    parts = list(parts)
    while len(parts) > 1:
        parts = [parts[i] + parts[i + 1] if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0]


def sum_of_elements(values: fx.Vector) -> fx.Float32:
    """The sum of a vector's elements."""
    return tree_sum([values[i] for i in range(values.numel)])


def sum_over_threads(
    value: fx.Float32, threads: int, thread: fx.Int32, scratch: fx.Pointer | None
) -> fx.Float32:
    """The sum of `value` over each aligned group of `threads` (a power of two) work-items, in all of them.

    More than a wave is a whole workgroup, and `scratch` float32 [threads] in LDS, which the caller may use
    again only after another barrier. The waves' values are added first, lane by lane, then the lanes'.
    """
    if threads > WAVE_SIZE:
        fx.ptr_store(value.ir_value(), scratch + thread)
        fx.gpu.barrier()
        lane = thread % WAVE_SIZE
        parts = [
            fx.Float32(fx.ptr_load(scratch + (lane + first), result_type=fx.Float32.ir_type))
            for first in range(0, threads, WAVE_SIZE)
        ]
        value = tree_sum(parts)
    distance = min(threads, WAVE_SIZE) // 2
    while distance:
        value = value + fx.gpu.shuffle_xor(value, distance, WAVE_SIZE)
        distance //= 2
    return value
