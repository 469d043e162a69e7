"""Instructions that move data between lanes, or between vector and scalar registers."""

from __future__ import annotations

import numpy as np

from flycc.emulator.isa.instruction import Instruction, Operand
from flycc.emulator.semantics.operands import (
    U32,
    Binder,
    Op,
    Source,
    plain_source,
    reader,
    row,
    scalar_sink,
    scalar_source,
    vector_sink,
)
from flycc.emulator.state import LANES, Batch

_LANE = np.arange(LANES)
_BELOW = (1 << _LANE.astype(object)) - 1
_BELOW_LOW = np.array([mask & 0xFFFF_FFFF for mask in _BELOW], np.uint32)
_BELOW_HIGH = np.array([mask >> 32 for mask in _BELOW], np.uint32)


def _per_wave(batch: Batch, operand: Operand) -> Source:
    return scalar_source(batch, operand, U32)


def _bind_readfirstlane(batch: Batch, inst: Instruction) -> Op:
    """v_readfirstlane_b32: the value of the first active lane; of lane 0 if none is."""
    source = row(batch, inst.src[0])
    put = scalar_sink(batch, inst.dst[0], U32)
    waves = np.arange(batch.waves)

    def op() -> None:
        put(source[:, 0] if batch.mask is None else source[waves, batch.mask.argmax(axis=1)])

    return op


def _bind_readlane(batch: Batch, inst: Instruction) -> Op:
    """v_readlane_b32, whatever EXEC says."""
    source, read = row(batch, inst.src[0]), reader([_per_wave(batch, inst.src[1])])
    put = scalar_sink(batch, inst.dst[0], U32)
    waves = np.arange(batch.waves)
    return lambda: put(source[waves, read()[0] & np.uint32(63)])


def _bind_writelane(batch: Batch, inst: Instruction) -> Op:
    """v_writelane_b32, whatever EXEC says."""
    target, read = row(batch, inst.dst[0]), reader([_per_wave(batch, source) for source in inst.src])
    waves = np.arange(batch.waves)

    def op() -> None:
        value, lane = read()
        on = waves if batch.active is None else waves[batch.active]
        lanes = np.broadcast_to(lane & np.uint32(63), waves.shape)[on]
        target[on, lanes] = np.broadcast_to(value, waves.shape)[on]

    return op


def _bind_mbcnt(below: np.ndarray) -> Binder:
    """v_mbcnt_lo/hi: bits of the mask's half that belong to lanes below this one, plus source 1."""

    def bind(batch: Batch, inst: Instruction) -> Op:
        read = reader([plain_source(batch, source, U32) for source in inst.src])
        put = vector_sink(batch, inst.dst[0], U32)

        def op() -> None:
            mask, add = read()
            put(np.bitwise_count(mask & below).astype(np.uint32) + add)

        return op

    return bind


def _bind_exchange(first_lanes: slice | np.ndarray, second_lanes: slice | np.ndarray) -> Binder:
    """Swap `first_lanes` of destination 0 with `second_lanes` of destination 1."""

    def bind(batch: Batch, inst: Instruction) -> Op:
        first, second = (row(batch, operand) for operand in inst.dst)

        def op() -> None:
            upper, lower = first[:, first_lanes].copy(), second[:, second_lanes].copy()
            if batch.mask is not None:
                to_first, to_second = batch.mask[:, first_lanes], batch.mask[:, second_lanes]
                new_first = np.where(to_first, lower, upper)
                lower, upper = new_first, np.where(to_second, upper, lower)
            first[:, first_lanes] = lower
            second[:, second_lanes] = upper

        return op

    return bind


_ODD_ROWS, _EVEN_ROWS = np.flatnonzero(_LANE // 16 % 2 == 1), np.flatnonzero(_LANE // 16 % 2 == 0)

BINDERS: dict[str, Binder] = {
    "v_readfirstlane_b32": _bind_readfirstlane,
    "v_readlane_b32": _bind_readlane,
    "v_writelane_b32": _bind_writelane,
    "v_mbcnt_lo_u32_b32": _bind_mbcnt(_BELOW_LOW),
    "v_mbcnt_hi_u32_b32": _bind_mbcnt(_BELOW_HIGH),
    "v_swap_b32": _bind_exchange(slice(None), slice(None)),
    "v_permlane32_swap_b32": _bind_exchange(slice(32, 64), slice(0, 32)),
    "v_permlane16_swap_b32": _bind_exchange(_ODD_ROWS, _EVEN_ROWS),
    "v_nop": lambda batch, inst: lambda: None,
    "v_clrexcp": lambda batch, inst: lambda: None,  # no exceptions are modelled
}
