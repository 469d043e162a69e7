"""Vector memory instructions: buffer (MUBUF), global, flat and scratch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.memory import AccessError, elements, load_elements, store_elements
from flycc.emulator.semantics.operands import (
    U32,
    U64,
    Binder,
    Op,
    Source,
    UnsupportedInstruction,
    plain_source,
    reader,
)
from flycc.emulator.semantics.transfer import (
    FLOAT_ATOMICS,
    INTEGER_ATOMICS,
    LOADS,
    STORES,
    Atomic,
    Data,
    apply_atomic,
    as_dwords,
    fetcher,
    lander,
)
from flycc.emulator.state import LANES, M0, Batch

#: Addresses of an access, uint64 [waves, 64], and where it happens: bool [waves, 64], or None for every lane.
Addresses = Callable[[], tuple[np.ndarray, np.ndarray | None]]


def _done(waves: np.ndarray | None) -> None:
    """An operation that took effect when it was issued: it only counts."""


def _global_addresses(batch: Batch, inst: Instruction, data: Operand | None) -> Addresses:
    """vaddr [+ saddr] + offset: a 64-bit vaddr alone, or a 32-bit one added to a scalar base."""
    vaddr = inst.src[0]
    saddr = inst.src[-1] if inst.encoding != "FLAT" else None
    has_base = saddr is not None and saddr.kind is not OperandKind.OFF
    sources: list[Source] = []
    if vaddr.kind is not OperandKind.OFF:
        sources.append(plain_source(batch, vaddr, U32 if has_base else U64))
    if has_base:
        assert saddr is not None
        sources.append(plain_source(batch, saddr, U64))
    read = reader(sources)
    offset = np.array(inst.mods.get("offset", 0) & 0xFFFF_FFFF_FFFF_FFFF, np.uint64)
    shape = (batch.waves, LANES)

    def addresses() -> tuple[np.ndarray, np.ndarray | None]:
        total = offset
        for part in read():
            total = np.add(total, part, dtype=np.uint64)
        return (total if total.shape == shape else np.broadcast_to(total, shape)), batch.mask

    return addresses


class _Buffer:
    """The addresses of a MUBUF access and its range check (raw buffers: ISA document, "Buffer addressing").

    The V# is base (48 bits), stride (14 bits), num_records. Without swizzling the whole byte offset
    is compared with num_records; lanes beyond it read 0 and their stores are dropped.
    """

    def __init__(self, batch: Batch, inst: Instruction) -> None:
        vaddr, srsrc, soffset = inst.src[-3:]
        self.batch, self.inst = batch, inst
        self.descriptor = batch.sgpr[:, srsrc.index : srsrc.index + 4]
        parts: list[Source] = []
        self.indexed = bool(inst.mods.get("idxen", 0))
        if inst.mods.get("offen", 0):
            at = Operand(vaddr.kind, vaddr.index + self.indexed)
            parts.append(plain_source(batch, at, U32))
        if soffset.kind is not OperandKind.OFF:
            parts.append(plain_source(batch, soffset, U32))
        self.parts = reader(parts)
        self.index = reader(
            [plain_source(batch, Operand(vaddr.kind, vaddr.index), U32)] if self.indexed else []
        )
        self.immediate = np.array(inst.mods.get("offset", 0), np.uint64)

    def offsets(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(base, num_records in bytes, byte offsets), uint64 and broadcastable to [waves, 64]."""
        words = self.descriptor
        live = words if self.batch.active is None else words[self.batch.active]
        if (live[:, 1] >> np.uint32(31)).any() or (live[:, 3] >> np.uint32(23) & np.uint32(1)).any():
            raise UnsupportedInstruction(self.inst, "swizzled and add-tid buffers are not emulated")
        words = live[0][:, None, None] if (live == live[0]).all() else words.T[..., None]
        base = words[0].astype(np.uint64) | (words[1].astype(np.uint64) & np.uint64(0xFFFF)) << np.uint64(32)
        total: np.ndarray = self.immediate
        for part in self.parts():
            total = np.add(total, part, dtype=np.uint64)
        records = words[2].astype(np.uint64)
        stride = (words[1] >> np.uint32(16) & np.uint32(0x3FFF)).astype(np.uint64)
        if stride.any():
            records = records * np.maximum(stride, np.uint64(1))
        for index in self.index():
            total = total + index * stride
        return base, records, total

    def addresses(self, size: int) -> tuple[np.ndarray, np.ndarray | None, bool]:
        """(addresses, lanes inside, whether some lane is inside with a part of its dwords only)."""
        base, records, offsets = self.offsets()
        shape = (self.batch.waves, LANES)
        if offsets.shape != shape:
            offsets = np.broadcast_to(offsets, shape)
        end = offsets + np.uint64(size)
        mask = self.batch.mask
        if records.size == 1 and int(end.max()) <= int(records.flat[0]):
            return offsets + base, mask, False
        inside = end <= records
        partial = bool((~inside & (offsets + np.uint64(4) <= records)).any()) if size > 4 else False
        return offsets + base, inside if mask is None else inside & mask, partial


def _load_buffer(buffer: _Buffer, data: Data) -> np.ndarray:
    """The loaded elements, 0 where out of range."""
    memory = buffer.batch.memory
    addresses, inside, partial = buffer.addresses(data.size)
    if partial:
        parts = []
        for i in range(data.size // 4):
            _, records, offsets = buffer.offsets()
            here = offsets + np.uint64(4 * i + 4) <= records
            here = here if buffer.batch.mask is None else here & buffer.batch.mask
            parts.append(_gather(buffer.batch, addresses + np.uint64(4 * i), 4, here))
        dwords = np.stack(parts, axis=-1)
        return dwords if data.size == 12 else dwords.view(f"V{data.size}")[..., 0].view(_element(data.size))
    if inside is None:
        return memory.gather(addresses, data.size, None)
    return _gather(buffer.batch, addresses, data.size, inside)


def _element(size: int) -> np.dtype:
    return np.dtype({8: np.uint64, 16: np.complex128}[size])


def _gather(batch: Batch, addresses: np.ndarray, size: int, inside: np.ndarray) -> np.ndarray:
    """Elements where inside, 0 elsewhere."""
    if not inside.any():
        shape = (*addresses.shape, 3) if size == 12 else addresses.shape
        return np.zeros(shape, elements(np.empty(0, np.uint8), size).dtype if size != 12 else np.uint32)
    values = batch.memory.gather(addresses, size, inside)
    if not inside.all():
        values[~inside] = 0
    return values


def _bind_buffer_load(data: Data) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        buffer = _Buffer(batch, inst)
        if inst.mods.get("lds", 0):
            return _to_lds(batch, inst, data, lambda: (_load_buffer(buffer, data), batch.mask))
        land = lander(batch, inst.dst[0], data)

        def op() -> None:
            batch.at = inst
            if batch.mask is None or batch.mask.any():
                land(_load_buffer(buffer, data))
            batch.vmcnt.push(batch.active, _done)

        return op

    return bind


def _bind_load(data: Data, to_lds: bool = False) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        addresses = _global_addresses(batch, inst, None)

        def loaded() -> tuple[np.ndarray, np.ndarray | None]:
            where, mask = addresses()
            return batch.memory.gather(where, data.size, mask), mask

        if to_lds:
            return _to_lds(batch, inst, data, loaded)
        land = lander(batch, inst.dst[0], data)

        def op() -> None:
            batch.at = inst
            if batch.mask is None or batch.mask.any():
                land(loaded()[0])
            batch.vmcnt.push(batch.active, _done)

        return op

    return bind


def _to_lds(
    batch: Batch, inst: Instruction, data: Data, loaded: Callable[[], tuple[np.ndarray, np.ndarray | None]]
) -> Op:
    """A load to LDS: lane i's data lands at M0 + offset + i * size, and only when a wait requires it.

    Memory is read at issue, as later stores of the same wave must not be seen.
    """
    size = max(data.size, 4)
    lane = np.arange(LANES) * size + inst.mods.get("offset", 0)
    m0 = batch.sgpr[:, M0, None]

    def op() -> None:
        batch.at = inst
        if batch.mask is not None and not batch.mask.any():
            batch.vmcnt.push(batch.active, _done)
            return
        values, mask = loaded()
        if data.size < 4:
            kind = np.dtype(f"{'i' if data.signed else 'u'}{data.size}")
            values = values.view(kind).astype(np.int32).view(np.uint32)
        offsets = (m0 & np.uint32(0x3FFFF)).astype(np.int64) + lane
        outside = offsets + size > batch.lds_size
        if mask is not None:
            outside &= mask
        if outside.any():
            index = np.unravel_index(int(outside.argmax()), outside.shape)
            where = tuple(int(i) for i in index)
            raise AccessError(f"past the {batch.lds_size} bytes of LDS", where, int(offsets[where]), size)
        places = offsets + batch.lds_base

        def land(waves: np.ndarray | None) -> None:
            here = mask
            if waves is not None:
                here = (
                    np.broadcast_to(waves[:, None], places.shape) if mask is None else mask & waves[:, None]
                )
            if here is None:
                store_elements(batch.lds, places, values, size)
            else:
                store_elements(batch.lds, places[here], values[here], size)

        batch.vmcnt.push(batch.active, land)

    return op


def _bind_buffer_store(data: Data) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        buffer, fetch = _Buffer(batch, inst), fetcher(batch, inst.src[0], data)

        def op() -> None:
            batch.at = inst
            batch.vmcnt.push(batch.active, _done)
            if batch.mask is not None and not batch.mask.any():
                return
            addresses, inside, partial = buffer.addresses(data.size)
            if partial:
                _store_dwords(buffer, addresses, as_dwords(fetch(), data.size))
            elif inside is None or inside.any():
                batch.memory.scatter(addresses, fetch(), data.size, inside)

        return op

    return bind


def _store_dwords(buffer: _Buffer, addresses: np.ndarray, dwords: np.ndarray) -> None:
    """A store of which some lanes are cut by num_records: each dword is checked on its own."""
    _, records, offsets = buffer.offsets()
    for i in range(dwords.shape[-1]):
        here = np.broadcast_to(offsets + np.uint64(4 * i + 4) <= records, addresses.shape)
        here = here if buffer.batch.mask is None else here & buffer.batch.mask
        if here.any():
            buffer.batch.memory.scatter(addresses + np.uint64(4 * i), dwords[..., i], 4, here)


def _bind_store(data: Data) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        addresses, fetch = _global_addresses(batch, inst, inst.src[1]), fetcher(batch, inst.src[1], data)

        def op() -> None:
            batch.at = inst
            batch.vmcnt.push(batch.active, _done)
            if batch.mask is None or batch.mask.any():
                where, mask = addresses()
                batch.memory.scatter(where, fetch(), data.size, mask)

        return op

    return bind


def _bind_atomic(atomic: Atomic) -> Binder:
    size = atomic.dtype.itemsize

    def bind(batch: Batch, inst: Instruction) -> Op:
        is_buffer = inst.encoding == "MUBUF"
        operand = inst.src[0] if is_buffer else inst.src[1]
        fetch = fetcher(batch, Operand(operand.kind, operand.index), Data(size))
        fetch_compare = None
        if atomic.compares:
            fetch_compare = fetcher(batch, Operand(operand.kind, operand.index + size // 4), Data(size))
        land = lander(batch, Operand(inst.dst[0].kind, inst.dst[0].index), Data(size)) if inst.dst else None
        buffer = _Buffer(batch, inst) if is_buffer else None
        addresses = None if is_buffer else _global_addresses(batch, inst, operand)
        whole = np.ones((batch.waves, LANES), bool)

        def op() -> None:
            batch.at = inst
            batch.vmcnt.push(batch.active, _done)
            if buffer is not None:
                where, mask, _ = buffer.addresses(size)
            else:
                assert addresses is not None
                where, mask = addresses()
            mask = whole if mask is None else mask
            values = fetch().view(atomic.dtype)
            compare = None if fetch_compare is None else fetch_compare().view(atomic.dtype)
            old = np.zeros(whole.shape, atomic.dtype)
            for region, offsets, part in batch.memory.split(where, size, mask):
                if (offsets % size).any():
                    raise AccessError("a misaligned atomic", (0, 0), int(where[part][0]), size)
                cells = elements(region.data, size).view(atomic.dtype)
                old[part] = apply_atomic(
                    atomic, cells, offsets // size, values[part], None if compare is None else compare[part]
                )
            if land is not None:
                land(old.view(f"u{size}"))

        return op

    return bind


def _scratch_offsets(batch: Batch, inst: Instruction, size: int) -> Callable[[], np.ndarray]:
    """Byte positions in the batch's scratch, int64 [waves, 64], checked; 0 in lanes that are off."""
    vaddr, saddr = inst.src[0], inst.src[-1]
    read = reader([plain_source(batch, s, U32) for s in (vaddr, saddr) if s.kind is not OperandKind.OFF])
    immediate = inst.mods.get("offset", 0)
    base = (np.arange(batch.waves * LANES) * batch.scratch_size).reshape(batch.waves, LANES)

    def offsets() -> np.ndarray:
        at = np.zeros(base.shape, np.int64) + immediate
        for part in read():
            at += part
        outside = (at < 0) | (at + size > batch.scratch_size)
        if batch.mask is not None:
            outside &= batch.mask
        if outside.any():
            index = tuple(int(i) for i in np.unravel_index(int(outside.argmax()), outside.shape))
            raise AccessError(f"past the {batch.scratch_size} bytes of scratch", index, int(at[index]), size)
        return at + base if batch.mask is None else (at + base) * batch.mask

    return offsets


def _bind_scratch_load(data: Data) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        offsets, land = _scratch_offsets(batch, inst, data.size), lander(batch, inst.dst[0], data)

        def op() -> None:
            batch.at = inst
            batch.vmcnt.push(batch.active, _done)
            if batch.mask is None or batch.mask.any():
                land(load_elements(batch.scratch, offsets(), data.size))

        return op

    return bind


def _bind_scratch_store(data: Data) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        offsets, fetch = _scratch_offsets(batch, inst, data.size), fetcher(batch, inst.src[1], data)

        def op() -> None:
            batch.at = inst
            batch.vmcnt.push(batch.active, _done)
            at, values = offsets(), fetch()
            if batch.mask is not None:
                at, values = at[batch.mask], values[batch.mask]
            store_elements(batch.scratch, at, values, data.size)

        return op

    return bind


def _bind_nothing(batch: Batch, inst: Instruction) -> Op:
    """Cache maintenance: memory is always coherent here."""
    return lambda: None


BINDERS: dict[str, Binder] = {
    "buffer_wbl2": _bind_nothing,
    "buffer_inv": _bind_nothing,
}
for _name, _data in LOADS.items():
    BINDERS[f"buffer_load_{_name}"] = _bind_buffer_load(_data)
    BINDERS[f"global_load_{_name}"] = BINDERS[f"flat_load_{_name}"] = _bind_load(_data)
    BINDERS[f"scratch_load_{_name}"] = _bind_scratch_load(_data)
    BINDERS[f"global_load_lds_{_name}"] = _bind_load(_data, to_lds=True)
for _name, _data in STORES.items():
    BINDERS[f"buffer_store_{_name}"] = _bind_buffer_store(_data)
    BINDERS[f"global_store_{_name}"] = BINDERS[f"flat_store_{_name}"] = _bind_store(_data)
    BINDERS[f"scratch_store_{_name}"] = _bind_scratch_store(_data)
for _space in ("buffer", "global", "flat"):
    for _name, _atomic in FLOAT_ATOMICS.items():
        BINDERS[f"{_space}_atomic_{_name}"] = _bind_atomic(_atomic)
    for _bits, _suffix in ((32, ""), (64, "_x2")):
        for _name, _atomic in INTEGER_ATOMICS[_bits].items():
            BINDERS[f"{_space}_atomic_{_name}{_suffix}"] = _bind_atomic(_atomic)
