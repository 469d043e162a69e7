"""LDS instructions: reads, writes, transposed reads, atomics, and lane permutes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from flycc.emulator.isa.instruction import Instruction, Operand
from flycc.emulator.memory import ELEMENT, elements, load_elements, store_elements
from flycc.emulator.observe import Kind
from flycc.emulator.semantics.operands import F32, F64, U32, U64, Binder, Op, row
from flycc.emulator.semantics.small_floats import pack, unpack
from flycc.emulator.semantics.transfer import (
    FLOAT_ATOMICS,
    INTEGER_ATOMICS,
    Atomic,
    Data,
    apply_atomic,
    fetcher,
    landing,
)
from flycc.emulator.state import LANES, M0, Batch, Land, took_effect

_READS: dict[str, Data] = {
    "u8": Data(1),
    "i8": Data(1, signed=True),
    "u16": Data(2),
    "i16": Data(2, signed=True),
    "b32": Data(4),
    "b64": Data(8),
    "b96": Data(12),
    "b128": Data(16),
}
for _name in ("u8", "i8", "u16"):
    for _half, _suffix in enumerate(("_d16", "_d16_hi")):
        _READS[_name + _suffix] = _READS[_name]._replace(half=_half)
_WRITES: dict[str, Data] = {
    "b8": Data(1),
    "b16": Data(2),
    "b8_d16_hi": Data(1, half=1),
    "b16_d16_hi": Data(2, half=1),
    **{name: _READS[name] for name in ("b32", "b64", "b96", "b128")},
}


#: Byte positions of an access in the batch's LDS, int64 [waves, 64], valid in every lane, and the lanes
#: (bool, None for all) that take part: those that are on and within bounds. A store passes its elements.
Places = Callable[[np.ndarray | None], tuple[np.ndarray, np.ndarray | None]]


def _places(
    batch: Batch, inst: Instruction, size: int, offset: int, kind: Kind, address: np.ndarray | None = None
) -> Places:
    """Announces the access too. Out of bounds, reads give 0 and writes are dropped, whatever their width.

    `address`, uint32 broadcastable to [waves, 64], stands for the first source where given.
    """
    if address is None:
        address = row(batch, inst.src[0])
    shape = (batch.waves, LANES)

    def places(values: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        # The sum wraps: LLVM folds an offset onto a base below zero on every GPU since the first of its line.
        at = np.add(address, np.uint32(offset)).astype(np.int64)
        if at.shape != shape:
            at = np.array(np.broadcast_to(at, shape))
        mask = batch.mask
        if batch.watch is not None:
            batch.watched(inst, "lds", kind, at.astype(np.uint64), size, mask, values)
        if mask is not None:
            at *= mask
        if int(at.max()) > batch.lds_size - size:
            inside = at <= batch.lds_size - size
            at *= inside
            mask = inside if mask is None else inside & mask
        at += batch.lds_base
        return at, mask

    return places


def _load(batch: Batch, places: Places, size: int) -> np.ndarray:
    """The elements, [waves, 64]; 0 out of bounds."""
    at, inside = places(None)
    if inside is not None and inside is not batch.mask:
        if not inside.any():
            return np.zeros((*at.shape, 3), np.uint32) if size == 12 else np.zeros(at.shape, ELEMENT[size])
        values = load_elements(batch.lds, at, size)
        values[~inside] = 0
        return values
    return load_elements(batch.lds, at, size)


def _bind_read(data: Data) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        places = _places(batch, inst, data.size, inst.mods.get("offset", 0), "load")
        land = landing(batch, inst.dst[0], data)

        def op() -> None:
            batch.at = inst
            batch.lgkmcnt.push(
                batch.active, took_effect if batch.is_idle() else land(_load(batch, places, data.size))
            )

        return op

    return bind


def _bind_write(data: Data) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        places = _places(batch, inst, data.size, inst.mods.get("offset", 0), "store")
        fetch = fetcher(batch, inst.src[1], data)

        def op() -> None:
            batch.at = inst
            if not batch.is_idle():
                _store(batch, places, fetch(), data.size)
            batch.lgkmcnt.push(batch.active, took_effect)

        return op

    return bind


def _store(batch: Batch, places: Places, values: np.ndarray, size: int) -> None:
    at, mask = places(values)
    if mask is not None:
        at, values = at[mask], values[mask]
    store_elements(batch.lds, at, values, size)


def _pair_offsets(inst: Instruction, size: int) -> tuple[int, int]:
    """Byte offsets of a read2 or write2: in elements, or in units of 64 elements."""
    unit = size * (64 if "st64" in inst.name else 1)
    return inst.mods.get("offset0", 0) * unit, inst.mods.get("offset1", 0) * unit


def _bind_read2(data: Data) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        first, second = (_places(batch, inst, data.size, at, "load") for at in _pair_offsets(inst, data.size))
        target = inst.dst[0]
        count = data.size // 4
        land_first = landing(batch, Operand(target.kind, target.index, count), data)
        land_second = landing(batch, Operand(target.kind, target.index + count, count), data)

        def issue() -> Land:
            lands = land_first(_load(batch, first, data.size)), land_second(_load(batch, second, data.size))

            def land(waves: np.ndarray | None) -> None:
                for part in lands:
                    part(waves)

            return land

        def op() -> None:
            batch.at = inst
            batch.lgkmcnt.push(batch.active, took_effect if batch.is_idle() else issue())

        return op

    return bind


def _bind_write2(data: Data) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        first, second = (
            _places(batch, inst, data.size, at, "store") for at in _pair_offsets(inst, data.size)
        )
        fetch_first, fetch_second = (fetcher(batch, source, data) for source in inst.src[1:3])

        def op() -> None:
            batch.at = inst
            if not batch.is_idle():
                _store(batch, first, fetch_first(), data.size)
                _store(batch, second, fetch_second(), data.size)
            batch.lgkmcnt.push(batch.active, took_effect)

        return op

    return bind


def _bind_transposed(bits: int) -> Binder:
    """ds_read_b64_tr_b*, ds_read_b96_tr_b6: 16 lanes read rows of a matrix and get its columns.

    16 lanes hold rows of 16 elements of `bits` bits, row-major, 8 (or 12) bytes a lane; lane i receives
    column i.
    """
    size = 12 if bits == 6 else 8
    per_lane = 8 * size // bits

    def bind(batch: Batch, inst: Instruction) -> Op:
        places = _places(batch, inst, size, inst.mods.get("offset", 0), "load")
        land = landing(batch, inst.dst[0], Data(size))

        def loaded() -> np.ndarray:
            values = np.ascontiguousarray(_load(batch, places, size))
            matrix = _unpack(values, bits).reshape(batch.waves, LANES // 16, per_lane, 16)
            return _pack(matrix.swapaxes(2, 3).reshape(batch.waves, LANES, per_lane), bits)

        def op() -> None:
            batch.at = inst
            batch.lgkmcnt.push(batch.active, took_effect if batch.is_idle() else land(loaded()))

        return op

    return bind


def _unpack(values: np.ndarray, bits: int) -> np.ndarray:
    """uint64 [waves, 64] to elements [waves, 64, 64 / bits]; 4-bit ones one a byte, as are 6-bit ones, which
    come in uint32 [waves, 64, 3]."""
    if bits == 6:
        return np.moveaxis(unpack(np.moveaxis(values, -1, 0), bits), 0, -1)
    if bits > 4:
        return values[..., None].view(f"u{bits // 8}")
    as_bytes = values[..., None].view(np.uint8)
    return np.stack([as_bytes & 15, as_bytes >> 4], axis=-1).reshape(*values.shape, 16)


def _pack(parts: np.ndarray, bits: int) -> np.ndarray:
    if bits == 6:
        return np.moveaxis(pack(np.moveaxis(parts, -1, 0), bits), 0, -1)
    if bits > 4:
        return np.ascontiguousarray(parts).view(np.uint64)[..., 0]
    return np.ascontiguousarray(parts[..., 0::2] | parts[..., 1::2] << 4).view(np.uint64)[..., 0]


def _announce_lanes(batch: Batch, inst: Instruction, lanes: np.ndarray) -> None:
    """Tell observers that every lane reads from, or sends to, another: int64 [waves, 64]."""
    if batch.watch is not None:
        batch.watched(inst, "lanes", "load", 4 * lanes.astype(np.uint64), 4, batch.mask)


def _bind_bpermute(batch: Batch, inst: Instruction) -> Op:
    """ds_bpermute_b32: every lane reads from the lane that its address names; 0 from lanes that are off."""
    address, data = (row(batch, source) for source in inst.src)
    land = landing(batch, inst.dst[0], Data(4))
    offset = inst.mods.get("offset", 0)

    def op() -> None:
        lanes = (address.astype(np.int64) + offset) >> 2 & 63
        values = data if batch.mask is None else data * batch.mask
        _announce_lanes(batch, inst, lanes)
        batch.lgkmcnt.push(batch.active, land(np.take_along_axis(values, lanes, axis=1)))

    return op


def _bind_permute(batch: Batch, inst: Instruction) -> Op:
    """ds_permute_b32: every lane sends to the lane that its address names; the highest sender wins."""
    address, data = (row(batch, source) for source in inst.src)
    land = landing(batch, inst.dst[0], Data(4))
    offset = inst.mods.get("offset", 0)

    def op() -> None:
        lanes = (address.astype(np.int64) + offset) >> 2 & 63
        out = np.zeros_like(data)
        for lane in range(LANES):
            on = slice(None) if batch.mask is None else batch.mask[:, lane]
            waves = np.arange(batch.waves)[on]
            out[waves, lanes[waves, lane]] = data[waves, lane]
        _announce_lanes(batch, inst, lanes)
        batch.lgkmcnt.push(batch.active, land(out))

    return op


def swizzle_lanes(pattern: int) -> np.ndarray:
    """For each lane the lane that ds_swizzle_b32 reads (ISA document, "DS_SWIZZLE_B32": four modes)."""
    lane = np.arange(LANES)
    if pattern >= 0xE000:  # the order of a fast Fourier transform
        keep = pattern & 31
        reversed_lane = sum((lane >> i & 1) << 4 - i for i in range(5))
        return lane & 32 | lane & keep | reversed_lane >> keep.bit_count()
    if pattern >= 0xC000:  # rotate within 32 lanes
        amount, keep = pattern >> 5 & 31, pattern & 31
        amount = -amount if pattern >> 10 & 1 else amount
        return lane & 32 | lane & keep | (lane + amount) & 31 & ~keep
    if pattern & 0x8000:  # full sharing within 4 lanes
        return lane & ~3 | pattern >> 2 * (lane & 3) & 3
    and_mask, or_mask, xor_mask = pattern & 31, pattern >> 5 & 31, pattern >> 10 & 31
    return lane & 32 | ((lane & and_mask | or_mask) ^ xor_mask)


def _bind_swizzle(batch: Batch, inst: Instruction) -> Op:
    pattern = inst.mods.get("offset", 0)
    lanes = swizzle_lanes(pattern)
    data, land = row(batch, inst.src[0]), landing(batch, inst.dst[0], Data(4))

    def op() -> None:
        values = data if batch.mask is None else data * batch.mask
        _announce_lanes(batch, inst, np.broadcast_to(lanes, data.shape))
        batch.lgkmcnt.push(batch.active, land(values[:, lanes]))

    return op


def _bind_atomic(atomic: Atomic) -> Binder:
    size = atomic.dtype.itemsize

    def bind(batch: Batch, inst: Instruction) -> Op:
        places = _places(batch, inst, size, inst.mods.get("offset", 0), "atomic")
        return _atomic_op(batch, inst, atomic, places, [fetcher(batch, inst.src[1], Data(size))])

    return bind


def _bind_two_operand_atomic(
    update: Callable[[np.ndarray, np.ndarray], np.ndarray], dtype: np.dtype
) -> Binder:
    """An atomic whose update takes data0 and data1, as the columns of [n, 2]."""
    size = dtype.itemsize

    def bind(batch: Batch, inst: Instruction) -> Op:
        places = _places(batch, inst, size, inst.mods.get("offset", 0), "atomic")
        fetches = [fetcher(batch, source, Data(size)) for source in inst.src[1:3]]
        return _atomic_op(batch, inst, Atomic(update, dtype), places, fetches)

    return bind


def _atomic_op(
    batch: Batch, inst: Instruction, atomic: Atomic, places: Places, fetches: list[Callable[[], np.ndarray]]
) -> Op:
    """An LDS atomic on operands that `fetches` collect: one, or two as the columns of [n, 2]."""
    size = atomic.dtype.itemsize
    land = landing(batch, inst.dst[0], Data(size)) if inst.dst else None
    whole = np.ones((batch.waves, LANES), bool)

    def update() -> Land:
        at, mask = places(None)
        mask = whole if mask is None else mask
        operands = [fetch().view(atomic.dtype)[mask] for fetch in fetches]
        operand = operands[0] if len(operands) == 1 else np.stack(operands, axis=-1)
        cells = elements(batch.lds, size).view(atomic.dtype)
        old = np.zeros(whole.shape, atomic.dtype)
        old[mask] = apply_atomic(atomic, cells, at[mask] // size, operand, None)
        return took_effect if land is None else land(old.view(f"u{size}"))

    def op() -> None:
        batch.at = inst
        batch.lgkmcnt.push(batch.active, took_effect if batch.is_idle() else update())

    return op


def _mask_or(old: np.ndarray, masks: np.ndarray) -> np.ndarray:
    return old & ~masks[:, 0] | masks[:, 1]


def _compare_store(old: np.ndarray, data: np.ndarray) -> np.ndarray:
    """ds_cmpst: data1 where memory equals data0, of floats as numbers."""
    return np.where(old == data[:, 0], data[:, 1], old)


def _wrap(old: np.ndarray, data: np.ndarray) -> np.ndarray:
    return np.where(old >= data[:, 0], old - data[:, 0], old + data[:, 1])


def _exchange_flagged(old: np.ndarray, data: np.ndarray) -> np.ndarray:
    """ds_condxchg32: of two dwords those whose new value has its top bit set get it, without that bit."""
    before, new = (x[:, None].view(np.uint32) for x in (old, np.ascontiguousarray(data)))
    return np.where(new >> np.uint32(31), new & np.uint32(0x7FFF_FFFF), before).view(np.uint64)[:, 0]


def _bind_exchange_flagged(batch: Batch, inst: Instruction) -> Op:
    address, offset = row(batch, inst.src[0]), np.uint32(inst.mods.get("offset", 0))
    aligned = np.empty_like(address)
    places = _places(batch, inst, 8, 0, "atomic", aligned)

    def places_of_pairs(values: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        np.bitwise_and(address + offset, np.uint32(0xFFF8), out=aligned)
        return places(values)

    fetch = fetcher(batch, inst.src[1], Data(8))
    return _atomic_op(batch, inst, Atomic(_exchange_flagged, U64), places_of_pairs, [fetch])


def _bind_exchange2(data: Data) -> Binder:
    """ds_wrxchg2: two swaps, one after the other."""
    swap = INTEGER_ATOMICS[8 * data.size]["swap"]

    def bind(batch: Batch, inst: Instruction) -> Op:
        count, target = data.size // 4, inst.dst[0]
        ops = []
        for i, offset in enumerate(_pair_offsets(inst, data.size)):
            part = replace(inst, dst=(Operand(target.kind, target.index + count * i, count),))
            places = _places(batch, inst, data.size, offset, "atomic")
            ops.append(_atomic_op(batch, part, swap, places, [fetcher(batch, inst.src[1 + i], data)]))

        def op() -> None:
            for part in ops:
                part()

        return op

    return bind


def _with_m0(batch: Batch, inst: Instruction, kind: Kind, per_lane: int) -> Places:
    """Dwords at M0[15:0] + offset + `per_lane` * lane."""
    m0, steps = batch.sgpr[:, M0, None], per_lane * np.arange(LANES, dtype=np.uint32)
    address = np.empty((batch.waves, LANES), np.uint32)
    places = _places(batch, inst, 4, inst.mods.get("offset", 0), kind, address)

    def places_of_lanes(values: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        np.add(m0 & np.uint32(0xFFFF), steps, out=address)
        return places(values)

    return places_of_lanes


def _bind_read_addtid(batch: Batch, inst: Instruction) -> Op:
    places, land = _with_m0(batch, inst, "load", 4), landing(batch, inst.dst[0], Data(4))

    def op() -> None:
        batch.at = inst
        batch.lgkmcnt.push(batch.active, took_effect if batch.is_idle() else land(_load(batch, places, 4)))

    return op


def _bind_write_addtid(batch: Batch, inst: Instruction) -> Op:
    places, fetch = _with_m0(batch, inst, "store", 4), fetcher(batch, inst.src[0], Data(4))

    def op() -> None:
        batch.at = inst
        if not batch.is_idle():
            _store(batch, places, fetch(), 4)
        batch.lgkmcnt.push(batch.active, took_effect)

    return op


def _bind_count(name: str) -> Binder:
    """ds_append, ds_consume: a wave adds or takes its number of active lanes; all get the old value."""
    atomic = INTEGER_ATOMICS[32][name]

    def bind(batch: Batch, inst: Instruction) -> Op:
        places, land = _with_m0(batch, inst, "atomic", 0), landing(batch, inst.dst[0], Data(4))
        waves = np.arange(batch.waves)

        def update() -> Land:
            at, mask = places(None)
            lanes = np.ones(at.shape, bool) if mask is None else mask
            one = lanes.any(axis=1)
            first = at[waves, lanes.argmax(axis=1)][one]
            counts = lanes.sum(axis=1).astype(np.uint32)[one]
            old = np.zeros(at.shape, np.uint32)
            old[one] = apply_atomic(atomic, elements(batch.lds, 4), first // 4, counts, None)[:, None]
            return land(old)

        def op() -> None:
            batch.at = inst
            batch.lgkmcnt.push(batch.active, took_effect if batch.is_idle() else update())

        return op

    return bind


BINDERS: dict[str, Binder] = {
    "ds_append": _bind_count("add"),
    "ds_consume": _bind_count("sub"),
    "ds_read_addtid_b32": _bind_read_addtid,
    "ds_write_addtid_b32": _bind_write_addtid,
    "ds_condxchg32_rtn_b64": _bind_exchange_flagged,
    "ds_wrap_rtn_b32": _bind_two_operand_atomic(_wrap, U32),
    "ds_bpermute_b32": _bind_bpermute,
    "ds_permute_b32": _bind_permute,
    "ds_swizzle_b32": _bind_swizzle,
    "ds_nop": lambda batch, inst: lambda: None,
}
for _name, _data in _READS.items():
    BINDERS[f"ds_read_{_name}"] = _bind_read(_data)
for _name, _data in _WRITES.items():
    BINDERS[f"ds_write_{_name}"] = _bind_write(_data)
for _bits in (32, 64):
    for _stride in ("", "st64"):
        BINDERS[f"ds_read2{_stride}_b{_bits}"] = _bind_read2(Data(_bits // 8))
        BINDERS[f"ds_write2{_stride}_b{_bits}"] = _bind_write2(Data(_bits // 8))
    for _kind in ("", "_rtn"):
        for _name, _key in (
            *((f"{op}{_kind}_u{_bits}", op) for op in ("add", "sub", "rsub", "inc", "dec")),
            *((f"{op}{_kind}_b{_bits}", op) for op in ("and", "or", "xor")),
            *((f"{op}{_kind}_i{_bits}", f"s{op}") for op in ("min", "max")),
            *((f"{op}{_kind}_u{_bits}", f"u{op}") for op in ("min", "max")),
            (f"wrxchg{_kind}_b{_bits}", "swap"),
        ):
            BINDERS[f"ds_{_name}"] = _bind_atomic(INTEGER_ATOMICS[_bits][_key])
for _name, _atomic in FLOAT_ATOMICS.items():
    BINDERS[f"ds_{_name}"] = _bind_atomic(_atomic)
    BINDERS["ds_" + re.sub(r"_(b?f\d+)$", r"_rtn_\1", _name)] = _bind_atomic(_atomic)
for _bits, _unsigned, _float in ((32, U32, F32), (64, U64, F64)):
    for _kind in ("", "_rtn"):
        BINDERS[f"ds_mskor{_kind}_b{_bits}"] = _bind_two_operand_atomic(_mask_or, _unsigned)
        BINDERS[f"ds_cmpst{_kind}_b{_bits}"] = _bind_two_operand_atomic(_compare_store, _unsigned)
        BINDERS[f"ds_cmpst{_kind}_f{_bits}"] = _bind_two_operand_atomic(_compare_store, _float)
    for _stride in ("", "st64"):
        BINDERS[f"ds_wrxchg2{_stride}_rtn_b{_bits}"] = _bind_exchange2(Data(_bits // 8))
BINDERS["ds_read_b96_tr_b6"] = _bind_transposed(6)
for _bits in (4, 8, 16):
    BINDERS[f"ds_read_b64_tr_b{_bits}"] = _bind_transposed(_bits)
