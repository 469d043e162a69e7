"""Scalar memory instructions: loads, stores and atomics, one access a wave."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.memory import AccessError, elements
from flycc.emulator.semantics.operands import (
    U32,
    U64,
    Binder,
    Op,
    UnsupportedInstruction,
    join,
    reader,
    scalar_source,
)
from flycc.emulator.semantics.transfer import INTEGER_ATOMICS, Atomic, apply_atomic
from flycc.emulator.state import EXEC, Batch, Land, took_effect


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


def _wave_addresses(batch: Batch, inst: Instruction) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """Device addresses, uint64 [waves, n], of n dwords of every wave, and where they are: active and in bounds."""
    base_operand, offset_operand = inst.src[-2:]
    offset = _offset(batch, inst, offset_operand)
    first = base_operand.index
    is_buffer = "buffer" in inst.name
    words = batch.sgpr[:, first : first + (4 if is_buffer else 2)]

    def addresses(dwords: int) -> tuple[np.ndarray, np.ndarray]:
        at = np.broadcast_to(offset(), (batch.waves,)) & np.uint64(0xFFFF_FFFF_FFFF_FFFC)
        places = at[:, None] + np.uint64(4) * np.arange(dwords, dtype=np.uint64)
        high = words[:, 1] & np.uint32(0xFFFF) if is_buffer else words[:, 1]
        base = join(words[:, 0], high)[:, None]
        on = np.ones(places.shape, bool) if batch.active is None else np.tile(batch.active[:, None], dwords)
        if is_buffer:
            stride = (words[:, 1] >> np.uint32(16) & np.uint32(0x3FFF)).astype(np.uint64)
            size = words[:, 2].astype(np.uint64) * np.maximum(stride, np.uint64(1))
            on &= places + np.uint64(4) <= size[:, None]
        return base + places, on

    return addresses


def _bind_buffer_load(batch: Batch, inst: Instruction) -> Op:
    """s_buffer_load: dwords beyond num_records read as 0."""
    dwords = inst.dst[0].count
    target = batch.sgpr[:, inst.dst[0].index : inst.dst[0].index + dwords]
    addresses = _wave_addresses(batch, inst)

    def op() -> None:
        batch.at = inst
        where, inside = addresses(dwords)
        words = np.zeros((batch.waves, dwords), np.uint32)
        allowed = batch.watched(inst, "scalar", "load", where, 4, inside)
        if allowed is not None and allowed.any():
            words = np.where(allowed, batch.memory.gather(where, 4, allowed), words)
        batch.smem.push(batch.active, _landing(target, words))

    return op


def _bind_store(batch: Batch, inst: Instruction) -> Op:
    """s_store, s_buffer_store."""
    data = inst.src[0]
    values = batch.sgpr[:, data.index : data.index + data.count]
    addresses = _wave_addresses(batch, inst)

    def op() -> None:
        batch.at = inst
        where, on = addresses(data.count)
        allowed = batch.watched(inst, "scalar", "store", where, 4, on)
        if allowed is not None and allowed.any():
            batch.memory.scatter(where, values, 4, allowed)
        batch.smem.push(batch.active, took_effect)

    return op


def _bind_atomic(atomic: Atomic) -> Binder:
    """s_atomic, s_buffer_atomic: the old value comes back into the data register if glc is set."""
    size = atomic.dtype.itemsize
    count = size // 4

    def bind(batch: Batch, inst: Instruction) -> Op:
        first = inst.src[0].index
        words = batch.sgpr[:, first : first + count * (2 if atomic.compares else 1)]
        target = batch.sgpr[:, inst.dst[0].index : inst.dst[0].index + count] if inst.dst else None
        addresses = _wave_addresses(batch, inst)

        def update() -> Land:
            where, on = (x[:, :1] for x in addresses(count))
            allowed = batch.watched(inst, "scalar", "atomic", where, size, on)
            operands = np.ascontiguousarray(words).view(atomic.dtype)
            old = np.zeros((batch.waves, 1), atomic.dtype)
            for region, offsets, part in batch.memory.split(where, size, allowed):
                if (offsets % size).any():
                    raise AccessError("a misaligned atomic", (0,), int(where[part][0]), size)
                waves = part[:, 0]
                compare = operands[waves, 1] if atomic.compares else None
                cells = elements(region.data, size).view(atomic.dtype)
                old[part] = apply_atomic(atomic, cells, offsets // size, operands[waves, 0], compare)
            batch.mirror(old)
            return took_effect if target is None else _landing(target, old.view(np.uint32))

        def op() -> None:
            batch.at = inst
            batch.smem.push(batch.active, update())

        return op

    return bind


def _bind_discard(batch: Batch, inst: Instruction) -> Op:
    """s_dcache_discard: memory is always coherent here, so there is nothing to drop."""
    return lambda: None


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
for _width in ("", "x2", "x4"):
    BINDERS[f"s_store_dword{_width}"] = BINDERS[f"s_buffer_store_dword{_width}"] = _bind_store
for _bits, _suffix in ((32, ""), (64, "_x2")):
    BINDERS[f"s_dcache_discard{_suffix}"] = _bind_discard
    for _name, _atomic in INTEGER_ATOMICS[_bits].items():
        if _name != "rsub":
            BINDERS[f"s_atomic_{_name}{_suffix}"] = _bind_atomic(_atomic)
            BINDERS[f"s_buffer_atomic_{_name}{_suffix}"] = _bind_atomic(_atomic)
