"""Counts and sums over the lanes of a wave, in FlyDSL."""

from __future__ import annotations

from typing import Any

import flydsl.expr as fx
from flydsl.expr import rocdl
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
