"""Vector memory instructions: buffer (MUBUF), global, flat and scratch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.memory import ELEMENT, AccessError, Memory, elements, load_elements, store_elements
from flycc.emulator.observe import Kind
from flycc.emulator.semantics.buffer_formats import SINT, Format, format_of, pack_element, unpack_element
from flycc.emulator.semantics.operands import (
    PRIVATE_APERTURE,
    SHARED_APERTURE,
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
    as_elements,
    fetcher,
    landing,
)
from flycc.emulator.state import LANES, M0, Batch, Land, took_effect

#: Addresses of an access, uint64 [waves, 64], and where it happens: bool [waves, 64], or None for every lane.
Addresses = Callable[[], tuple[np.ndarray, np.ndarray | None]]


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


class _Descriptor(NamedTuple):
    """V#s of a batch: ints where all waves agree, else int64 [waves, 1].

    `base` is the least base address and `shift` how far a wave's own lies above it; `limit` is
    num_records in bytes. `swizzle` is the index stride of a swizzled buffer, 0 for one that is not;
    `adds_lane` says that the lane's number is added to the index.
    """

    base: int
    shift: np.ndarray | int
    stride: np.ndarray | int
    limit: np.ndarray | int
    swizzle: int
    adds_lane: bool


class _Reach(NamedTuple):
    """Where a MUBUF access goes: `base + places` (int64 [waves, 64]) in the lanes `inside` (None: all).

    `offsets` are what num_records (`limit`) is compared with; `cut` says that it cuts some lane's
    dwords in two.
    """

    base: int
    places: np.ndarray
    offsets: np.ndarray
    limit: np.ndarray | int
    inside: np.ndarray | None
    cut: bool

    def addresses(self) -> np.ndarray:
        return self.places.view(np.uint64) + np.uint64(self.base)


class _Buffer:
    """The addresses of a MUBUF access and its range check (raw buffers: ISA document, "Buffer addressing").

    The V# is base (48 bits), stride (14 bits, 18 with add_tid), num_records. Without swizzling the whole
    byte offset is compared with num_records; lanes beyond it read 0 and their stores are dropped. A
    swizzled buffer interleaves the dwords of `swizzle` elements; its range check is by index and by
    offset within the element.
    """

    def __init__(self, batch: Batch, inst: Instruction) -> None:
        vaddr, srsrc, soffset = inst.src[-3:]
        self.batch, self.inst = batch, inst
        self.words = batch.sgpr[:, srsrc.index : srsrc.index + 4]
        self._key = b""
        self.immediate = np.array(inst.mods.get("offset", 0))
        self.shape = (batch.waves, LANES)
        indexed = bool(inst.mods.get("idxen", 0))
        parts: list[Source] = []
        if inst.mods.get("offen", 0):
            parts.append(plain_source(batch, Operand(vaddr.kind, vaddr.index + indexed), U32))
        if soffset.kind is OperandKind.CONST:
            self.immediate = self.immediate + soffset.value
        elif soffset.kind is not OperandKind.OFF:
            parts.append(plain_source(batch, soffset, U32))
        self.parts = reader(parts)
        self.index = reader([plain_source(batch, Operand(vaddr.kind, vaddr.index), U32)] if indexed else [])

    def reach(self, size: int) -> _Reach:
        base, shift, stride, limit, swizzle, adds_lane = self._descriptor()
        if swizzle:
            return self._swizzled(size)
        offsets, parts = self.immediate, self.parts()
        for part in parts:
            offsets = np.add(part, offsets, dtype=np.int64)
        for index in self.index():
            offsets = offsets + index.astype(np.int64) * stride
        if adds_lane:
            offsets = offsets + np.arange(LANES) * stride
        if offsets.shape != self.shape:
            offsets = np.array(np.broadcast_to(offsets, self.shape))
        highest = int(offsets.max())
        if highest >> 32 and self.inst.mods.get("offen", 0):
            # The vector offset and the immediate are added in 32 bits.
            carries = (parts[0].astype(np.int64) + self.inst.mods.get("offset", 0)) >> 32
            offsets = offsets - (carries << 32)
            highest = int(offsets.max())
        places: np.ndarray = offsets if isinstance(shift, int) else offsets + shift
        mask = self.batch.mask
        if isinstance(limit, int) and highest <= limit - size:
            return _Reach(base, places, offsets, limit, mask, False)
        inside: np.ndarray = offsets <= limit - size
        cut = size > 4 and bool((inside != (offsets <= limit - 4)).any())
        if mask is not None:
            inside &= mask
        elif inside.all():
            return _Reach(base, places, offsets, limit, None, False)
        return _Reach(base, places, offsets, limit, inside, cut)

    def _descriptor(self) -> _Descriptor:
        """The decoded V#s, which loops rarely change."""
        active = self.batch.active
        live = self.words if active is None else self.words[active]
        key = live.tobytes() if active is None else live.tobytes() + active.tobytes()
        if key != self._key:
            self._decoded = self._decode(live.astype(np.int64), active)
            self._key = key
        return self._decoded

    def _decode(self, live: np.ndarray, active: np.ndarray | None) -> _Descriptor:
        kinds = live[:, 1] >> 31 << 3 | live[:, 3] >> 21 & 7  # swizzle enable, add_tid enable, index stride
        if (kinds != kinds[0]).any():
            raise UnsupportedInstruction(self.inst, "waves of differently addressed buffers are not emulated")
        kind = int(kinds[0])
        adds_lane = bool(kind >> 2 & 1)
        bases = live[:, 0] | (live[:, 1] & 0xFFFF) << 32
        strides = live[:, 1] >> 16 & 0x3FFF
        if adds_lane:
            strides |= (live[:, 3] >> 15 & 15) << 14
        limits = live[:, 2] * np.maximum(strides, 1)

        def column(values: np.ndarray) -> np.ndarray | int:
            if (values == values[0]).all():
                return int(values[0])
            everyone = np.zeros(self.batch.waves, np.int64)
            everyone[slice(None) if active is None else active] = values
            return everyone[:, None]

        base = int(bases.min())
        swizzle = 8 << (kind & 3) if kind >> 3 else 0
        return _Descriptor(base, column(bases - base), column(strides), column(limits), swizzle, adds_lane)

    def _swizzled(self, size: int) -> _Reach:
        """Dwords of `swizzle` neighbouring elements lie side by side, so only dwords can be reached."""
        base, shift, stride, limit, swizzle, adds_lane = self._descriptor()
        if size > 4:
            raise UnsupportedInstruction(self.inst, "wide accesses of swizzled buffers are not emulated")
        parts = self.parts()
        within = np.asarray(self.inst.mods.get("offset", 0), np.int64)
        if self.inst.mods.get("offen", 0):
            within = within + parts[0].astype(np.int64)
        scalar = self.immediate - self.inst.mods.get("offset", 0)
        for part in parts[int(bool(self.inst.mods.get("offen", 0))) :]:
            scalar = scalar + part.astype(np.int64)
        index = np.arange(LANES) if adds_lane else np.zeros(1, np.int64)
        for given in self.index():
            index = index + given.astype(np.int64)
        places = (index // swizzle * stride + within // 4 * 4) * swizzle + index % swizzle * 4 + within % 4
        inside = (index < limit // np.maximum(stride, 1)) & (within <= stride - size)
        inside, places = (np.broadcast_to(x, self.shape) for x in (inside, places + scalar + shift))
        mask = inside if self.batch.mask is None else inside & self.batch.mask
        return _Reach(base, np.where(mask, places, 0), places, limit, mask, False)

    def announced(self, reach: _Reach, kind: Kind, size: int, values: np.ndarray | None = None) -> _Reach:
        """`reach` without the lanes that observers take out."""
        inside = self.batch.watched(self.inst, "global", kind, reach.addresses(), size, reach.inside, values)
        return reach._replace(inside=inside)

    def parts_inside(self, reach: _Reach, dwords: int) -> list[np.ndarray]:
        """For each dword of a cut access, the lanes that have it within num_records."""
        parts = [reach.offsets <= reach.limit - 4 * (i + 1) for i in range(dwords)]
        return parts if self.batch.mask is None else [part & self.batch.mask for part in parts]


def _load_buffer(buffer: _Buffer, data: Data) -> np.ndarray:
    """The loaded elements, 0 where out of range."""
    batch, memory = buffer.batch, buffer.batch.memory
    reach = buffer.reach(data.size)
    if reach.cut:
        parts = []
        for i, inside in enumerate(buffer.parts_inside(reach, data.size // 4)):
            addresses = reach.addresses() + np.uint64(4 * i)
            allowed = batch.watched(buffer.inst, "global", "load", addresses, 4, inside)
            assert allowed is not None
            parts.append(_gather(addresses, 4, allowed, memory))
        return as_elements(np.stack(parts, axis=-1), data.size)
    if batch.watch is not None:
        reach = buffer.announced(reach, "load", data.size)
    if reach.inside is None:
        return memory.gather_from(reach.base, reach.places, data.size, None)
    if not reach.inside.any():
        return _zeros(buffer.shape, data.size)
    return _clear(memory.gather_from(reach.base, reach.places, data.size, reach.inside), reach.inside)


def _gather(addresses: np.ndarray, size: int, inside: np.ndarray, memory: Memory) -> np.ndarray:
    """Elements where inside, 0 elsewhere."""
    if not inside.any():
        return _zeros(addresses.shape, size)
    return _clear(memory.gather(addresses, size, inside), inside)


def _zeros(shape: tuple[int, ...], size: int) -> np.ndarray:
    return np.zeros((*shape, 3), np.uint32) if size == 12 else np.zeros(shape, ELEMENT[size])


def _clear(values: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Zero the elements that are not inside, in place."""
    outside = ~inside
    np.copyto(values, 0, where=outside if values.ndim == inside.ndim else outside[..., None])
    return values


def _bind_buffer_load(data: Data) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        buffer = _Buffer(batch, inst)
        if inst.mods.get("lds", 0):
            return _to_lds(batch, inst, data, lambda: _load_buffer(buffer, data))
        land = landing(batch, inst.dst[0], data)

        def op() -> None:
            batch.at = inst
            batch.vmcnt.push(
                batch.active, took_effect if batch.is_idle() else land(_load_buffer(buffer, data))
            )

        return op

    return bind


def _apertures(
    where: np.ndarray, mask: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """The lanes whose FLAT addresses lie in LDS, in scratch and elsewhere; None if all lie elsewhere."""
    high = where >> np.uint64(32)
    in_lds, in_scratch = high == SHARED_APERTURE, high == PRIVATE_APERTURE
    if mask is not None:
        in_lds, in_scratch = in_lds & mask, in_scratch & mask
    if not (in_lds.any() or in_scratch.any()):
        return None
    elsewhere = ~(in_lds | in_scratch)
    return in_lds, in_scratch, elsewhere if mask is None else elsewhere & mask


def _local_places(
    batch: Batch,
    inst: Instruction,
    where: np.ndarray,
    parts: tuple[np.ndarray, np.ndarray],
    size: int,
    kind: Kind,
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(memory, byte places, lanes within bounds) of the parts of a FLAT access in LDS and in scratch."""
    offsets = (where & np.uint64(0xFFFF_FFFF)).view(np.int64)
    own = (np.arange(batch.waves * LANES) * batch.scratch_size).reshape(batch.waves, LANES)
    found = []
    spaces = (
        ("lds", batch.lds, batch.lds_size, batch.lds_base),
        ("scratch", batch.scratch, batch.scratch_size, own),
    )
    for (space, memory, limit, base), lanes in zip(spaces, parts, strict=True):
        if not lanes.any():
            continue
        allowed = batch.watched(inst, space, kind, offsets.view(np.uint64), size, lanes)  # type: ignore[arg-type]
        assert allowed is not None
        outside = allowed & (offsets > limit - size)
        if space == "scratch" and outside.any():
            index = tuple(int(i) for i in np.unravel_index(int(outside.argmax()), outside.shape))
            raise AccessError(f"past the {limit} bytes of scratch", index, int(offsets[index]), size)
        found.append((memory, offsets + base, allowed & ~outside))
    return found


def _bind_load(data: Data, to_lds: bool = False) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        addresses = _global_addresses(batch, inst, None)
        is_flat = inst.encoding == "FLAT"

        def loaded_global(where: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
            inside = batch.watched(inst, "global", "load", where, data.size, mask)
            values = batch.memory.gather(where, data.size, inside)
            return values if inside is mask or inside is None else _clear(values, inside)

        def loaded() -> np.ndarray:
            where, mask = addresses()
            parts = _apertures(where, mask) if is_flat else None
            if parts is None:
                return loaded_global(where, mask)
            in_lds, in_scratch, elsewhere = parts
            values = _zeros(where.shape, data.size)
            if elsewhere.any():
                values = _clear(loaded_global(where, elsewhere), elsewhere)
            for memory, at, inside in _local_places(
                batch, inst, where, (in_lds, in_scratch), data.size, "load"
            ):
                values[inside] = load_elements(memory, at[inside], data.size)
            return values

        if to_lds:
            return _to_lds(batch, inst, data, loaded)
        land = landing(batch, inst.dst[0], data)

        def op() -> None:
            batch.at = inst
            batch.vmcnt.push(batch.active, took_effect if batch.is_idle() else land(loaded()))
            if is_flat:
                batch.smem.push(batch.active, took_effect)

        return op

    return bind


def _to_lds(batch: Batch, inst: Instruction, data: Data, loaded: Callable[[], np.ndarray]) -> Op:
    """A load to LDS: lane i's data lands at M0 + offset + i * size, and only when a wait requires it.

    Memory is read at issue, as later stores of the same wave must not be seen. What lies outside
    LDS is dropped.
    """
    size = max(data.size, 4)
    lane = np.arange(LANES) * size + inst.mods.get("offset", 0)
    m0 = batch.sgpr[:, M0, None]

    def op() -> None:
        batch.at = inst
        if batch.is_idle():
            batch.vmcnt.push(batch.active, took_effect)
            return
        values, mask = loaded(), batch.mask
        if data.size < 4:
            kind = np.dtype(f"{'i' if data.signed else 'u'}{data.size}")
            values = values.view(kind).astype(np.int32).view(np.uint32)
        offsets = (m0 & np.uint32(0x3FFFF)).astype(np.int64) + lane
        batch.watched(inst, "lds", "load-to-lds", offsets.view(np.uint64), size, mask)
        inside = (offsets >= 0) & (offsets <= batch.lds_size - size)
        if not inside.all():
            mask = inside if mask is None else inside & mask
        places = offsets + batch.lds_base

        def land(waves: np.ndarray | None) -> None:
            here = batch.where(mask, waves)
            if here is None:
                store_elements(batch.lds, places, values, size)
            else:
                store_elements(batch.lds, places[here], values[here], size)

        batch.vmcnt.push(batch.active, land)

    return op


def _bind_buffer_store(data: Data) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        buffer, fetch = _Buffer(batch, inst), fetcher(batch, inst.src[0], data)

        def perform() -> None:
            reach = buffer.reach(data.size)
            if reach.cut:
                _store_dwords(buffer, reach, as_dwords(fetch(), data.size))
                return
            values = fetch()
            if batch.watch is not None:
                reach = buffer.announced(reach, "store", data.size, values)
            if reach.inside is None or reach.inside.any():
                batch.memory.scatter(reach.addresses(), values, data.size, reach.inside)

        def op() -> None:
            batch.at = inst
            if not batch.is_idle():
                perform()
            batch.vmcnt.push(batch.active, took_effect)

        return op

    return bind


def _format(buffer: _Buffer) -> Format:
    """The element format of a typed access."""
    words = buffer.words[:, 3] if buffer.batch.active is None else buffer.words[buffer.batch.active, 3]
    form = format_of(int(words[0])) if (words == words[0]).all() else None
    if form is None:
        raise UnsupportedInstruction(buffer.inst, "a V# has no valid element format, or waves differ in it")
    return form


def _bind_format_load(count: int, halves: tuple[int, ...] | None) -> Binder:
    """buffer_load_format: `count` components as dwords; or 16 bits each, into consecutive halves from `halves` on."""

    def bind(batch: Batch, inst: Instruction) -> Op:
        if inst.mods.get("lds", 0):
            raise UnsupportedInstruction(inst, "typed loads to LDS are not emulated")
        buffer, target = _Buffer(batch, inst), inst.dst[0]
        if halves is None:
            lands = [landing(batch, target, Data(4 * count))]
        else:
            lands = [
                landing(batch, Operand(target.kind, target.index + half // 2), Data(2, half=half % 2))
                for half in halves
            ]

        def issue() -> Land:
            form = _format(buffer)
            raw = np.ascontiguousarray(_load_buffer(buffer, Data(form.size)))
            raw = raw.view(np.uint8).reshape(*buffer.shape, form.size)
            parts = unpack_element(raw, form, count)
            if halves is None:
                issued = [lands[0](as_elements(np.stack(parts, axis=-1), 4 * count))]
            else:
                issued = [land(_narrow(part, form)) for land, part in zip(lands, parts, strict=True)]

            def land_all(waves: np.ndarray | None) -> None:
                for land in issued:
                    land(waves)

            return land_all

        def op() -> None:
            batch.at = inst
            batch.vmcnt.push(batch.active, took_effect if batch.is_idle() else issue())

        return op

    return bind


def _narrow(part: np.ndarray, form: Format) -> np.ndarray:
    """A component as 16 bits: a float16, or the low half of an integer."""
    if form.gives_floats:
        return part.view(np.float32).astype(np.float16).view(np.uint16)
    return part.astype(np.uint16)


def _widen(part: np.ndarray, form: Format) -> np.ndarray:
    """The inverse of `_narrow`: a float32's or an integer's bits."""
    if form.gives_floats:
        return part.view(np.float16).astype(np.float32).view(np.uint32)
    return part.view(np.int16 if form.number == SINT else np.uint16).astype(np.int32).view(np.uint32)


def _bind_format_store(count: int, halves: tuple[int, ...] | None) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        buffer, source = _Buffer(batch, inst), inst.src[0]
        fetches = [
            fetcher(batch, Operand(source.kind, source.index + i), Data(4))
            if halves is None
            else fetcher(
                batch, Operand(source.kind, source.index + halves[i] // 2), Data(2, half=halves[i] % 2)
            )
            for i in range(count)
        ]

        def perform() -> None:
            form = _format(buffer)
            parts = [np.ascontiguousarray(fetch()) for fetch in fetches]
            raw = pack_element(parts if halves is None else [_widen(part, form) for part in parts], form)
            reach = buffer.reach(form.size)
            values = np.ascontiguousarray(raw).view(U32 if form.size == 12 else ELEMENT[form.size])
            values = values if form.size == 12 else values[..., 0]
            if reach.cut:
                _store_dwords(buffer, reach, as_dwords(values, form.size))
                return
            reach = buffer.announced(reach, "store", form.size, values)
            if reach.inside is None or reach.inside.any():
                batch.memory.scatter(reach.addresses(), values, form.size, reach.inside)

        def op() -> None:
            batch.at = inst
            if not batch.is_idle():
                perform()
            batch.vmcnt.push(batch.active, took_effect)

        return op

    return bind


def _store_dwords(buffer: _Buffer, reach: _Reach, dwords: np.ndarray) -> None:
    """A store of which some lanes are cut by num_records: each dword is checked on its own."""
    batch = buffer.batch
    for i, inside in enumerate(buffer.parts_inside(reach, dwords.shape[-1])):
        addresses = reach.addresses() + np.uint64(4 * i)
        allowed = batch.watched(buffer.inst, "global", "store", addresses, 4, inside, dwords[..., i])
        assert allowed is not None
        if allowed.any():
            batch.memory.scatter(addresses, dwords[..., i], 4, allowed)


def _bind_store(data: Data) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        addresses, fetch = _global_addresses(batch, inst, inst.src[1]), fetcher(batch, inst.src[1], data)
        is_flat = inst.encoding == "FLAT"

        def perform() -> None:
            where, mask = addresses()
            parts = _apertures(where, mask) if is_flat else None
            if parts is not None:
                in_lds, in_scratch, mask = parts
                values = fetch()
                places = _local_places(batch, inst, where, (in_lds, in_scratch), data.size, "store")
                for memory, at, inside in places:
                    store_elements(memory, at[inside], values[inside], data.size)
                if not mask.any():
                    return
            values = fetch()
            mask = batch.watched(inst, "global", "store", where, data.size, mask, values)
            batch.memory.scatter(where, values, data.size, mask)

        def op() -> None:
            batch.at = inst
            if not batch.is_idle():
                perform()
            batch.vmcnt.push(batch.active, took_effect)
            if is_flat:
                batch.smem.push(batch.active, took_effect)

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
        land = landing(batch, Operand(inst.dst[0].kind, inst.dst[0].index), Data(size)) if inst.dst else None
        is_flat = inst.encoding == "FLAT"
        buffer = _Buffer(batch, inst) if is_buffer else None
        addresses = None if is_buffer else _global_addresses(batch, inst, operand)
        whole = np.ones((batch.waves, LANES), bool)

        def update() -> Land:
            if buffer is not None:
                reach = buffer.reach(size)
                where, mask = reach.addresses(), reach.inside
            else:
                assert addresses is not None
                where, mask = addresses()
            local: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
            parts = _apertures(where, mask) if is_flat else None
            if parts is not None:
                in_lds, in_scratch, mask = parts
                local = _local_places(batch, inst, where, (in_lds, in_scratch), size, "atomic")
            mask = batch.watched(inst, "global", "atomic", where, size, mask)
            mask = whole if mask is None else mask
            values = fetch().view(atomic.dtype)
            compare = None if fetch_compare is None else fetch_compare().view(atomic.dtype)
            old = np.zeros(whole.shape, atomic.dtype)

            def apply(memory: np.ndarray, offsets: np.ndarray, part: np.ndarray) -> None:
                if (offsets % size).any():
                    raise AccessError("a misaligned atomic", (0, 0), int(where[part][0]), size)
                cells = elements(memory, size).view(atomic.dtype)
                given = None if compare is None else compare[part]
                old[part] = apply_atomic(atomic, cells, offsets // size, values[part], given)

            for memory, at, lanes in local:
                apply(memory, at[lanes], lanes)
            for region, offsets, part in batch.memory.split(where, size, mask):
                apply(region.data, offsets, part)
            batch.mirror(old)
            return took_effect if land is None else land(old.view(f"u{size}"))

        def op() -> None:
            batch.at = inst
            batch.vmcnt.push(batch.active, took_effect if batch.is_idle() else update())
            if is_flat:
                batch.smem.push(batch.active, took_effect)

        return op

    return bind


def _scratch_places(
    batch: Batch, inst: Instruction, size: int, kind: Kind
) -> Callable[[], tuple[np.ndarray, np.ndarray | None]]:
    """Byte positions in the batch's scratch, int64 [waves, 64], checked; 0 in lanes outside the mask, the second."""
    vaddr, saddr = inst.src[0], inst.src[-1]
    read = reader([plain_source(batch, s, U32) for s in (vaddr, saddr) if s.kind is not OperandKind.OFF])
    immediate = inst.mods.get("offset", 0)
    base = (np.arange(batch.waves * LANES) * batch.scratch_size).reshape(batch.waves, LANES)

    def places() -> tuple[np.ndarray, np.ndarray | None]:
        at = np.zeros(base.shape, np.int64) + immediate
        for part in read():
            at += part
        mask = batch.watched(inst, "scratch", kind, at.view(np.uint64), size, batch.mask)
        outside = (at < 0) | (at + size > batch.scratch_size)
        if mask is not None:
            outside &= mask
        if outside.any():
            index = tuple(int(i) for i in np.unravel_index(int(outside.argmax()), outside.shape))
            raise AccessError(f"past the {batch.scratch_size} bytes of scratch", index, int(at[index]), size)
        return (at + base, None) if mask is None else ((at + base) * mask, mask)

    return places


def _bind_scratch_load(data: Data, to_lds: bool = False) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        places = _scratch_places(batch, inst, data.size, "load")

        def loaded() -> np.ndarray:
            at, inside = places()
            if inside is not None and not inside.any():
                return _zeros(at.shape, data.size)
            values = load_elements(batch.scratch, at, data.size)
            return values if inside is None else _clear(values, inside)

        if to_lds:
            return _to_lds(batch, inst, data, loaded)
        land = landing(batch, inst.dst[0], data)

        def op() -> None:
            batch.at = inst
            batch.vmcnt.push(batch.active, took_effect if batch.is_idle() else land(loaded()))

        return op

    return bind


def _bind_scratch_store(data: Data) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        places, fetch = _scratch_places(batch, inst, data.size, "store"), fetcher(batch, inst.src[1], data)

        def op() -> None:
            batch.at = inst
            if not batch.is_idle():
                (at, mask), values = places(), fetch()
                if mask is not None:
                    at, values = at[mask], values[mask]
                store_elements(batch.scratch, at, values, data.size)
            batch.vmcnt.push(batch.active, took_effect)

        return op

    return bind


def _bind_nothing(batch: Batch, inst: Instruction) -> Op:
    """Cache maintenance: memory is always coherent here."""
    return lambda: None


BINDERS: dict[str, Binder] = {
    "buffer_wbl2": _bind_nothing,
    "buffer_inv": _bind_nothing,
}
for _count, _suffix in enumerate(("x", "xy", "xyz", "xyzw"), 1):
    BINDERS[f"buffer_load_format_{_suffix}"] = _bind_format_load(_count, None)
    BINDERS[f"buffer_store_format_{_suffix}"] = _bind_format_store(_count, None)
    BINDERS[f"buffer_load_format_d16_{_suffix}"] = _bind_format_load(_count, tuple(range(_count)))
    BINDERS[f"buffer_store_format_d16_{_suffix}"] = _bind_format_store(_count, tuple(range(_count)))
BINDERS["buffer_load_format_d16_hi_x"] = _bind_format_load(1, (1,))
BINDERS["buffer_store_format_d16_hi_x"] = _bind_format_store(1, (1,))
for _name, _data in LOADS.items():
    BINDERS[f"buffer_load_{_name}"] = _bind_buffer_load(_data)
    BINDERS[f"global_load_{_name}"] = BINDERS[f"flat_load_{_name}"] = _bind_load(_data)
    BINDERS[f"scratch_load_{_name}"] = _bind_scratch_load(_data)
    BINDERS[f"global_load_lds_{_name}"] = _bind_load(_data, to_lds=True)
    BINDERS[f"scratch_load_lds_{_name}"] = _bind_scratch_load(_data, to_lds=True)
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
