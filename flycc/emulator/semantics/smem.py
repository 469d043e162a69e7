"""Scalar loads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.memory import AccessError
from flycc.emulator.semantics.operands import (
    U32,
    U64,
    Binder,
    Op,
    UnsupportedInstruction,
    reader,
    scalar_source,
)
from flycc.emulator.state import EXEC, Batch, Land


def _offset(batch: Batch, inst: Instruction, operand: Operand) -> Callable[[], np.ndarray]:
    """Byte offset of every wave, uint64 [waves] or 0-d: register plus immediate."""
    immediate = np.array(inst.mods.get("offset", 0) & 0xFFFF_FFFF_FFFF_FFFF, np.uint64)
    if operand.kind is OperandKind.OFF:
        return lambda: immediate
    read = reader([scalar_source(batch, operand, U32)])
    return lambda: read()[0].astype(np.uint64) + immediate


def _bind_load(batch: Batch, inst: Instruction) -> Op:
    dwords = inst.dst[0].count
    target = batch.sgpr[:, inst.dst[0].index : inst.dst[0].index + dwords]
    if inst.dst[0].index + dwords > EXEC:
        raise UnsupportedInstruction(inst, "a load into EXEC is not emulated")
    base = reader([scalar_source(batch, inst.src[0], U64)])
    offset = _offset(batch, inst, inst.src[1])
    align = np.uint64(0xFFFF_FFFF_FFFF_FFFC)

    def op() -> None:
        batch.at = inst
        addresses = np.broadcast_to(base()[0] + offset() & align, (batch.waves,))
        batch.smem.push(batch.active, _landing(target, _load(batch, inst, addresses, dwords)))

    return op


def _landing(target: np.ndarray, words: np.ndarray) -> Land:
    """The `Land` of a scalar load: `words` into `target`, both uint32 [waves, n]."""

    def land(waves: np.ndarray | None) -> None:
        np.copyto(target, words, where=True if waves is None else waves[:, None])

    return land


def _load(batch: Batch, inst: Instruction, addresses: np.ndarray, dwords: int) -> np.ndarray:
    """Load `dwords` for every active wave, uint32 [waves, dwords]; waves usually share one address."""
    active, size = batch.active, 4 * dwords
    if batch.watch is not None:
        mask = None if active is None else active[:, None]
        allowed = batch.watched(inst, "scalar", "load", addresses[:, None], size, mask)
        active = None if allowed is None else allowed[:, 0]
    loaded = np.zeros((batch.waves, dwords), np.uint32)
    for address in np.unique(addresses if active is None else addresses[active]):
        try:
            words = batch.memory.read(int(address), size)
        except AccessError as error:
            wave = int((addresses == address).argmax())
            raise AccessError(error.why, (wave,), error.address, size) from None
        loaded[addresses == address] = np.frombuffer(words.tobytes(), np.uint32)
    return loaded


def _bind_buffer_load(batch: Batch, inst: Instruction) -> Op:
    """s_buffer_load: dwords beyond num_records read as 0."""
    first, dwords = inst.src[0].index, inst.dst[0].count
    descriptor = batch.sgpr[:, first : first + 4]
    target = batch.sgpr[:, inst.dst[0].index : inst.dst[0].index + dwords]
    offset = _offset(batch, inst, inst.src[1])

    def op() -> None:
        batch.at = inst
        offsets = np.broadcast_to(offset(), (batch.waves,)) & np.uint64(0xFFFF_FFFF_FFFF_FFFC)
        base = descriptor[:, 0].astype(np.uint64) | (
            descriptor[:, 1].astype(np.uint64) & np.uint64(0xFFFF)
        ) << np.uint64(32)
        stride = (descriptor[:, 1] >> np.uint32(16) & np.uint32(0x3FFF)).astype(np.uint64)
        size = descriptor[:, 2].astype(np.uint64) * np.maximum(stride, np.uint64(1))
        at = offsets[:, None] + np.uint64(4) * np.arange(dwords, dtype=np.uint64)
        inside = at + np.uint64(4) <= size[:, None]
        if batch.active is not None:
            inside &= batch.active[:, None]
        words = np.zeros((batch.waves, dwords), np.uint32)
        addresses = base[:, None] + at
        allowed = batch.watched(inst, "scalar", "load", addresses, 4, inside)
        if allowed is not None and allowed.any():
            words = np.where(allowed, batch.memory.gather(addresses, 4, allowed), words)
        batch.smem.push(batch.active, _landing(target, words))

    return op


#: How much the clocks advance at every reading.
TICKS = 64


def _bind_clock(batch: Batch, inst: Instruction) -> Op:
    """s_memtime, s_memrealtime: no time is modelled; every reading is later than the one before."""
    target = batch.sgpr[:, inst.dst[0].index : inst.dst[0].index + 2]

    def op() -> None:
        batch.clock += TICKS
        words = np.array([batch.clock], np.uint64).view(np.uint32)
        batch.smem.push(batch.active, _landing(target, np.broadcast_to(words, target.shape)))

    return op


BINDERS: dict[str, Binder] = {"s_memtime": _bind_clock, "s_memrealtime": _bind_clock}
for _width in ("", "x2", "x4", "x8", "x16"):
    BINDERS[f"s_load_dword{_width}"] = _bind_load
    BINDERS[f"s_buffer_load_dword{_width}"] = _bind_buffer_load
