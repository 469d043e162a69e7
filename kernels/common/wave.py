"""Counts and sums over the lanes of a wave, in FlyDSL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flydsl.expr as fx
from flydsl._mlir.dialects import llvm
from flydsl.expr import rocdl
from flydsl.expr.typing import T


def uniform(value: Any) -> fx.Int32:
    """A value that all lanes of the wave share, as a scalar."""
    return fx.Int32(rocdl.readfirstlane(T.i32, fx.Int32(value)))


def anew(value: fx.Int32) -> fx.Int32:
    """`value`, not known to the compiler to be the same each time: what is computed of it is not moved out of loops."""
    return fx.Int32(llvm.inline_asm(T.i32, [value.ir_value()], "", "=v,0", has_side_effects=True))


def anew_uniform(value: fx.Int32) -> fx.Int32:
    """The same for a value that all lanes of the wave share, which stays a scalar."""
    return fx.Int32(llvm.inline_asm(T.i32, [value.ir_value()], "", "=s,0", has_side_effects=False))


def need(values: Sequence[Any]) -> None:
    """Waits here for `values`, numbers that are the same in all lanes: those from memory are on their way before, and
    so are the lines that they lie in, which the compiler would leave to where they are used."""
    if values:
        operands = [value.ir_value() for value in values]
        llvm.inline_asm(None, operands, "", ",".join("s" * len(operands)), has_side_effects=True)


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
    """Sum over this lane, number `lane` of its wave, and those below."""
    for distance in (1, 2, 4, 8, 16, 32):
        # FlyDSL's shuffle would count the lane itself, from nothing, so that the compiler may keep what it counts.
        place = ((lane - distance) * 4).ir_value()
        below = fx.Int32(rocdl.ds_bpermute(T.i32, place, value.ir_value()))
        value = value + (lane >= distance).select(below, fx.Int32(0))
    return value
