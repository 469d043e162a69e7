"""LDS instructions: reads, writes, transposed reads, atomics, and lane permutes."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from flycc.emulator.isa.instruction import Instruction, Operand
from flycc.emulator.memory import AccessError, elements, load_elements, store_elements
from flycc.emulator.semantics.operands import Binder, Op, UnsupportedInstruction, row, store
from flycc.emulator.semantics.transfer import (
    FLOAT_ATOMICS,
    INTEGER_ATOMICS,
    Atomic,
    Data,
    apply_atomic,
    fetcher,
    lander,
)
from flycc.emulator.state import LANES, Batch

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


def _done(waves: np.ndarray | None) -> None:
    """LDS operations of a wave take effect in order, at issue; they only count."""


def _places(batch: Batch, inst: Instruction, size: int, offset: int) -> Callable[[], np.ndarray]:
    """Checked byte positions in the batch's LDS, int64 [waves, 64]; some valid one in lanes that are off."""
    address = row(batch, inst.src[0])

    def places() -> np.ndarray:
        at = np.add(address, offset, dtype=np.int64)
        if batch.mask is not None:
            at *= batch.mask
        if int(at.max()) > batch.lds_size - size:
            outside = at > batch.lds_size - size
            if batch.mask is not None:
                outside &= batch.mask
            if outside.any():
                index = tuple(int(i) for i in np.unravel_index(int(outside.argmax()), outside.shape))
                raise AccessError(f"past the {batch.lds_size} bytes of LDS", index, int(at[index]), size)
        at += batch.lds_base
        return at

    return places


def _is_idle(batch: Batch) -> bool:
    return batch.mask is not None and not batch.mask.any()


def _bind_read(data: Data) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        places = _places(batch, inst, data.size, inst.mods.get("offset", 0))
        land = lander(batch, inst.dst[0], data)

        def op() -> None:
            batch.at = inst
            if not _is_idle(batch):
                land(load_elements(batch.lds, places(), data.size))
            batch.lgkmcnt.push(batch.active, _done)

        return op

    return bind


def _bind_write(data: Data) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        places = _places(batch, inst, data.size, inst.mods.get("offset", 0))
        fetch = fetcher(batch, inst.src[1], data)

        def op() -> None:
            batch.at = inst
            if not _is_idle(batch):
                _store(batch, places(), fetch(), data.size)
            batch.lgkmcnt.push(batch.active, _done)

        return op

    return bind


def _store(batch: Batch, places: np.ndarray, values: np.ndarray, size: int) -> None:
    if batch.mask is not None:
        places, values = places[batch.mask], values[batch.mask]
    store_elements(batch.lds, places, values, size)


def _pair_offsets(inst: Instruction, size: int) -> tuple[int, int]:
    """Byte offsets of a read2 or write2: in elements, or in units of 64 elements."""
    unit = size * (64 if "st64" in inst.name else 1)
    return inst.mods.get("offset0", 0) * unit, inst.mods.get("offset1", 0) * unit


def _bind_read2(data: Data) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        first, second = (_places(batch, inst, data.size, at) for at in _pair_offsets(inst, data.size))
        target = inst.dst[0]
        count = data.size // 4
        land_first = lander(batch, Operand(target.kind, target.index, count), data)
        land_second = lander(batch, Operand(target.kind, target.index + count, count), data)

        def op() -> None:
            batch.at = inst
            if not _is_idle(batch):
                values = (
                    load_elements(batch.lds, first(), data.size),
                    load_elements(batch.lds, second(), data.size),
                )
                land_first(values[0])
                land_second(values[1])
            batch.lgkmcnt.push(batch.active, _done)

        return op

    return bind


def _bind_write2(data: Data) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        first, second = (_places(batch, inst, data.size, at) for at in _pair_offsets(inst, data.size))
        fetch_first, fetch_second = (fetcher(batch, source, data) for source in inst.src[1:3])

        def op() -> None:
            batch.at = inst
            if not _is_idle(batch):
                _store(batch, first(), fetch_first(), data.size)
                _store(batch, second(), fetch_second(), data.size)
            batch.lgkmcnt.push(batch.active, _done)

        return op

    return bind


def _bind_transposed(bits: int) -> Binder:
    """ds_read_b64_tr_b*: 16 lanes read rows of a matrix of `bits`-bit elements and get its columns.

    16 lanes hold 64 / bits rows of 16 elements, row-major, 8 bytes a lane; lane i receives column i.
    """
    per_lane = 64 // bits

    def bind(batch: Batch, inst: Instruction) -> Op:
        places = _places(batch, inst, 8, inst.mods.get("offset", 0))
        land = lander(batch, inst.dst[0], Data(8))

        def op() -> None:
            batch.at = inst
            if not _is_idle(batch):
                values = np.ascontiguousarray(load_elements(batch.lds, places(), 8))
                matrix = _unpack(values, bits).reshape(batch.waves, LANES // 16, per_lane, 16)
                land(_pack(matrix.swapaxes(2, 3).reshape(batch.waves, LANES, per_lane), bits))
            batch.lgkmcnt.push(batch.active, _done)

        return op

    return bind


def _unpack(values: np.ndarray, bits: int) -> np.ndarray:
    """uint64 [waves, 64] to elements [waves, 64, 64 / bits]; 4-bit ones one a byte."""
    if bits > 4:
        return values[..., None].view(f"u{bits // 8}")
    as_bytes = values[..., None].view(np.uint8)
    return np.stack([as_bytes & 15, as_bytes >> 4], axis=-1).reshape(*values.shape, 16)


def _pack(parts: np.ndarray, bits: int) -> np.ndarray:
    if bits > 4:
        return np.ascontiguousarray(parts).view(np.uint64)[..., 0]
    return np.ascontiguousarray(parts[..., 0::2] | parts[..., 1::2] << 4).view(np.uint64)[..., 0]


def _bind_bpermute(batch: Batch, inst: Instruction) -> Op:
    """ds_bpermute_b32: every lane reads from the lane that its address names; 0 from lanes that are off."""
    address, data = (row(batch, source) for source in inst.src)
    target = row(batch, inst.dst[0])
    offset = inst.mods.get("offset", 0)

    def op() -> None:
        lanes = (address.astype(np.int64) + offset) >> 2 & 63
        values = data if batch.mask is None else data * batch.mask
        store(batch, target, np.take_along_axis(values, lanes, axis=1))
        batch.lgkmcnt.push(batch.active, _done)

    return op


def _bind_permute(batch: Batch, inst: Instruction) -> Op:
    """ds_permute_b32: every lane sends to the lane that its address names; the highest sender wins."""
    address, data = (row(batch, source) for source in inst.src)
    target = row(batch, inst.dst[0])
    offset = inst.mods.get("offset", 0)

    def op() -> None:
        lanes = (address.astype(np.int64) + offset) >> 2 & 63
        out = np.zeros_like(data)
        for lane in range(LANES):
            on = slice(None) if batch.mask is None else batch.mask[:, lane]
            waves = np.arange(batch.waves)[on]
            out[waves, lanes[waves, lane]] = data[waves, lane]
        store(batch, target, out)
        batch.lgkmcnt.push(batch.active, _done)

    return op


def swizzle_lanes(pattern: int) -> np.ndarray:
    """For each lane the lane that ds_swizzle_b32 reads (ISA document, "DS_SWIZZLE_B32": three modes)."""
    lane = np.arange(LANES)
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
    if pattern >= 0xE000:
        raise UnsupportedInstruction(inst, "swizzling in FFT mode is not emulated")
    lanes = swizzle_lanes(pattern)
    data, target = row(batch, inst.src[0]), row(batch, inst.dst[0])

    def op() -> None:
        values = data if batch.mask is None else data * batch.mask
        store(batch, target, values[:, lanes])
        batch.lgkmcnt.push(batch.active, _done)

    return op


def _bind_atomic(atomic: Atomic) -> Binder:
    size = atomic.dtype.itemsize

    def bind(batch: Batch, inst: Instruction) -> Op:
        places = _places(batch, inst, size, inst.mods.get("offset", 0))
        # For a cmpst data0 is the value to compare with and data1 the new one.
        fetch = fetcher(batch, inst.src[2 if atomic.compares else 1], Data(size))
        fetch_compare = fetcher(batch, inst.src[1], Data(size)) if atomic.compares else None
        land = lander(batch, inst.dst[0], Data(size)) if inst.dst else None
        whole = np.ones((batch.waves, LANES), bool)

        def op() -> None:
            batch.at = inst
            batch.lgkmcnt.push(batch.active, _done)
            mask = whole if batch.mask is None else batch.mask
            at = places()[mask]
            cells = elements(batch.lds, size).view(atomic.dtype)
            compare = None if fetch_compare is None else fetch_compare().view(atomic.dtype)[mask]
            old = np.zeros(whole.shape, atomic.dtype)
            old[mask] = apply_atomic(atomic, cells, at // size, fetch().view(atomic.dtype)[mask], compare)
            if land is not None:
                land(old.view(f"u{size}"))

        return op

    return bind


BINDERS: dict[str, Binder] = {
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
            (f"cmpst{_kind}_b{_bits}", "cmpswap"),
            (f"wrxchg{_kind}_b{_bits}", "swap"),
        ):
            BINDERS[f"ds_{_name}"] = _bind_atomic(INTEGER_ATOMICS[_bits][_key])
for _name, _atomic in FLOAT_ATOMICS.items():
    BINDERS[f"ds_{_name}"] = _bind_atomic(_atomic)
    BINDERS["ds_" + re.sub(r"_(b?f\d+)$", r"_rtn_\1", _name)] = _bind_atomic(_atomic)
for _bits in (4, 8, 16):
    BINDERS[f"ds_read_b64_tr_b{_bits}"] = _bind_transposed(_bits)
