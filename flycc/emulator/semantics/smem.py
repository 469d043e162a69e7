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
from flycc.emulator.state import EXEC, Batch


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
        _load(batch, base()[0] + offset() & align, target)

    return op


def _load(batch: Batch, addresses: np.ndarray, target: np.ndarray) -> None:
    """Fill rows of `target` (uint32 [waves, n]) of the active waves; waves usually share one address."""
    live = addresses if batch.active is None else addresses[batch.active]
    size = 4 * target.shape[1]
    for address in np.unique(live):
        try:
            words = batch.memory.read(int(address), size)
        except AccessError as error:
            wave = int((addresses == address).argmax())
            raise AccessError(error.why, (wave,), error.address, size) from None
        waves = addresses == address if batch.active is None else (addresses == address) & batch.active
        if waves.all():
            target[:] = np.frombuffer(words.tobytes(), np.uint32)
        else:
            target[waves] = np.frombuffer(words.tobytes(), np.uint32)


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
        if inside.any():
            words = np.where(inside, batch.memory.gather(base[:, None] + at, 4, inside), words)
        np.copyto(target, words, where=True if batch.active is None else batch.active[:, None])

    return op


BINDERS: dict[str, Binder] = {}
for _width in ("", "x2", "x4", "x8", "x16"):
    BINDERS[f"s_load_dword{_width}"] = _bind_load
    BINDERS[f"s_buffer_load_dword{_width}"] = _bind_buffer_load
