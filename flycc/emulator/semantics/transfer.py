"""What memory instructions have in common: element types of their data, and atomic updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from flycc.emulator.isa.instruction import Operand
from flycc.emulator.memory import ELEMENT
from flycc.emulator.semantics.convert import bf16_to_f32, f32_to_bf16
from flycc.emulator.semantics.floating import maximum, minimum
from flycc.emulator.semantics.operands import F32, F64, I32, I64, U32, U64, row, rows
from flycc.emulator.state import Batch, Land

I8 = np.dtype(np.int8)


class Data(NamedTuple):
    """How one lane's data lies in memory and in registers.

    `size` bytes in memory; `signed` extends bytes and shorts by their sign; `half` is the half of the
    register that a 16-bit load replaces (the other is kept) or that a store takes, None for all of it.
    """

    size: int
    signed: bool = False
    half: int | None = None


#: Loads and stores by the last part of their mnemonics.
LOADS: dict[str, Data] = {
    "ubyte": Data(1),
    "sbyte": Data(1, signed=True),
    "ushort": Data(2),
    "sshort": Data(2, signed=True),
    "dword": Data(4),
    "dwordx2": Data(8),
    "dwordx3": Data(12),
    "dwordx4": Data(16),
    "ubyte_d16": Data(1, half=0),
    "ubyte_d16_hi": Data(1, half=1),
    "sbyte_d16": Data(1, signed=True, half=0),
    "sbyte_d16_hi": Data(1, signed=True, half=1),
    "short_d16": Data(2, half=0),
    "short_d16_hi": Data(2, half=1),
}
STORES: dict[str, Data] = {
    "byte": Data(1),
    "byte_d16_hi": Data(1, half=1),
    "short": Data(2),
    "short_d16_hi": Data(2, half=1),
    **{name: LOADS[name] for name in ("dword", "dwordx2", "dwordx3", "dwordx4")},
}


def as_dwords(values: np.ndarray, size: int) -> np.ndarray:
    """Elements of `size` bytes (4 and up), [...], as uint32 [..., size / 4]; 12 bytes are that already."""
    return values if size == 12 else values[..., None].view(np.uint32)


def as_elements(dwords: np.ndarray, size: int) -> np.ndarray:
    """The inverse of `as_dwords`."""
    return dwords if size == 12 else dwords.view(ELEMENT[size])[..., 0]


def landing(batch: Batch, target: Operand, data: Data) -> Callable[[np.ndarray], Land]:
    """A function that gives a load's `Land`: it puts loaded elements, [waves, 64], into the destination.

    To be called when the load is issued, as its lanes are those that are active then; the result is
    for the queue of the load's counter. Elements of lanes that are off may be anything.
    """
    if data.size >= 4:
        targets = list(rows(batch, target, data.size // 4))

        def parts_of(values: np.ndarray) -> list[np.ndarray]:
            dwords = as_dwords(values, data.size)
            return [dwords[..., i] for i in range(len(targets))]
    else:
        register = row(batch, target)
        if data.half is not None:
            register = register.view(np.uint16)[:, data.half :: 2]
        targets = [register]
        kind = np.dtype(f"{'i' if data.signed else 'u'}{data.size}")
        wide = np.dtype(f"i{register.itemsize}")

        def parts_of(values: np.ndarray) -> list[np.ndarray]:
            return [values.view(kind).astype(wide).view(register.dtype)]

    def issue(values: np.ndarray) -> Land:
        lanes, parts = batch.mask, parts_of(values)

        def land(waves: np.ndarray | None) -> None:
            where = batch.where(lanes, waves)
            for target, part in zip(targets, parts, strict=True):
                if where is None:
                    np.copyto(target, part)
                else:
                    np.copyto(target, part, where=where)

        return land

    return issue


def fetcher(batch: Batch, source: Operand, data: Data) -> Callable[[], np.ndarray]:
    """A function that collects the elements to be stored, [waves, 64], from the source registers."""
    if data.size < 4:
        part: np.ndarray = row(batch, source).view(ELEMENT[data.size])
        step = 4 // data.size
        view = part[:, (data.half or 0) * step // 2 :: step]
        return lambda: view
    registers = rows(batch, source, data.size // 4)
    if len(registers) == 1:
        single = registers[0]
        return lambda: single
    return lambda: as_elements(np.stack(list(registers), axis=-1), data.size)


class Atomic(NamedTuple):
    """`update(old, operand) -> new` on elements of `dtype`; for a cmpswap the operand is (new, compare)."""

    update: Callable[[np.ndarray, np.ndarray], np.ndarray]
    dtype: np.dtype
    compares: bool = False


def _increment(old: np.ndarray, limit: np.ndarray) -> np.ndarray:
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def _decrement(old: np.ndarray, limit: np.ndarray) -> np.ndarray:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


def _add_halves_f16(old: np.ndarray, value: np.ndarray) -> np.ndarray:
    total = old[..., None].view(np.float16).astype(np.float32) + value[..., None].view(np.float16)
    return total.astype(np.float16).view(np.uint32)[..., 0]


def _add_halves_bf16(old: np.ndarray, value: np.ndarray) -> np.ndarray:
    parts = [bf16_to_f32(x[..., None].view(np.uint16)) for x in (old, value)]
    return f32_to_bf16(parts[0] + parts[1]).view(np.uint32)[..., 0]


def _swap(old: np.ndarray, value: np.ndarray) -> np.ndarray:
    return value


def _integer_atomics(unsigned: np.dtype, signed: np.dtype) -> dict[str, Atomic]:
    return {
        "swap": Atomic(_swap, unsigned),
        "cmpswap": Atomic(_swap, unsigned, compares=True),
        "add": Atomic(np.add, unsigned),
        "sub": Atomic(np.subtract, unsigned),
        "rsub": Atomic(lambda old, value: value - old, unsigned),
        "smin": Atomic(np.minimum, signed),
        "umin": Atomic(np.minimum, unsigned),
        "smax": Atomic(np.maximum, signed),
        "umax": Atomic(np.maximum, unsigned),
        "and": Atomic(np.bitwise_and, unsigned),
        "or": Atomic(np.bitwise_or, unsigned),
        "xor": Atomic(np.bitwise_xor, unsigned),
        "inc": Atomic(_increment, unsigned),
        "dec": Atomic(_decrement, unsigned),
    }


INTEGER_ATOMICS = {32: _integer_atomics(U32, I32), 64: _integer_atomics(U64, I64)}
FLOAT_ATOMICS: dict[str, Atomic] = {
    "add_f32": Atomic(np.add, F32),
    "add_f64": Atomic(np.add, F64),
    "min_f32": Atomic(minimum, F32),
    "max_f32": Atomic(maximum, F32),
    "min_f64": Atomic(minimum, F64),
    "max_f64": Atomic(maximum, F64),
    "pk_add_f16": Atomic(_add_halves_f16, U32),
    "pk_add_bf16": Atomic(_add_halves_bf16, U32),
}


def apply_atomic(
    atomic: Atomic, cells: np.ndarray, index: np.ndarray, operand: np.ndarray, compare: np.ndarray | None
) -> np.ndarray:
    """Update `cells[index]`, one lane after another where they collide; returns the old values.

    `cells` is a view of memory in the atomic's type, the others are 1-d over the lanes that take part.
    """
    old = np.empty(index.size, cells.dtype)
    for turn in _turns(index):
        before = cells[index[turn]]
        after = atomic.update(before, operand[turn])
        if compare is not None:
            after = np.where(before == compare[turn], after, before)
        cells[index[turn]] = after
        old[turn] = before
    return old


def _turns(index: np.ndarray) -> Iterator[np.ndarray]:
    """Split lanes so that no two of a turn share a cell and those that do stay in order."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    rank = np.arange(index.size) - np.repeat(starts, np.diff(np.r_[starts, index.size]))
    for turn in range(int(rank.max()) + 1 if index.size else 0):
        yield order[rank == turn]
