"""Operands as arrays: how bound instructions read their sources and write their results.

A source is either a numpy view that stays valid for the life of a batch (a register row, a scalar
column, a constant), or a function that makes the array when the instruction executes (register pairs,
modifiers). Binding decides which, once; executing an instruction then costs no look-ups.

Vector operands have shape [waves, 64], scalar ones in vector instructions [waves, 1], scalar
instructions use [waves], constants are 0-d.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flycc.emulator.errors import EmulatorError
from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.state import EXEC, VCC, Batch

U8, U16, U32, U64 = (np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
I16, I32, I64 = (np.dtype(t) for t in (np.int16, np.int32, np.int64))
F16, F32, F64 = (np.dtype(t) for t in (np.float16, np.float32, np.float64))

#: An operand read as one bool a lane from a pair of scalar registers.
MASK = np.dtype(bool)

UNSIGNED = {2: U16, 4: U32, 8: U64}

#: A bound instruction.
Op = Callable[[], None]
Source = np.ndarray | Callable[[], np.ndarray]
Sink = Callable[[np.ndarray], None]

#: Binds an instruction to a batch.
Binder = Callable[[Batch, Instruction], Op]


class UnsupportedInstruction(EmulatorError):
    """A gfx950 instruction, or a form of one, whose meaning the emulator does not know."""

    def __init__(self, inst: Instruction, what: str) -> None:
        super().__init__(f"{inst.name} ({inst.encoding}) at {inst.address:#x}: {what}")


def reader(sources: Sequence[Source]) -> Callable[[], list[np.ndarray]]:
    """A function that returns all sources as arrays."""
    fixed = [s for s in sources if isinstance(s, np.ndarray)]
    if len(fixed) == len(sources):
        return lambda: fixed
    makers = [(lambda s=s: s) if isinstance(s, np.ndarray) else s for s in sources]
    return lambda: [make() for make in makers]


def constant(bits: int, dtype: np.dtype) -> np.ndarray:
    """The low bits of an integer as a 0-d array."""
    return np.array(bits & ((1 << 8 * dtype.itemsize) - 1), UNSIGNED[dtype.itemsize]).view(dtype)


def is_vector(operand: Operand) -> bool:
    return operand.kind in (OperandKind.VGPR, OperandKind.AGPR)


def require_register(operand: Operand) -> None:
    """Raise EmulatorError for what is no part of a register, where only register parts are emulated."""
    if operand.kind not in (OperandKind.VGPR, OperandKind.AGPR, OperandKind.SGPR):
        raise EmulatorError(f"source {operand.index} is emulated as a whole operand only, not in parts")


def first_row(batch: Batch, operand: Operand) -> int:
    """Where a vector operand begins in the batch's vector registers."""
    return operand.index + (batch.accum_offset if operand.kind is OperandKind.AGPR else 0)


def rows(batch: Batch, operand: Operand, count: int | None = None) -> np.ndarray:
    """A range of vector registers, uint32 [count, waves, 64], as a view."""
    first, count = first_row(batch, operand), operand.count if count is None else count
    batch.row(operand.index + count - 1, operand.kind is OperandKind.AGPR)
    return batch.vgpr[first : first + count]


def row(batch: Batch, operand: Operand, offset: int = 0) -> np.ndarray:
    """A vector register, uint32 [waves, 64], as a view."""
    return batch.row(operand.index + offset, operand.kind is OperandKind.AGPR)


def join(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """uint64 from two uint32 arrays of one shape."""
    pair = np.empty((*low.shape, 2), np.uint32)
    pair[..., 0] = low
    pair[..., 1] = high
    return pair.view(np.uint64)[..., 0]


def scalar_source(batch: Batch, operand: Operand, dtype: np.dtype) -> Source:
    """A source of a scalar instruction, `dtype` of 32 or 64 bits, [waves] or 0-d."""
    if operand.kind is OperandKind.CONST:
        return constant(operand.value, dtype)
    if operand.kind is OperandKind.SPECIAL:
        return _special(batch, operand, dtype)
    if dtype.itemsize == 4:
        return batch.sgpr[:, operand.index].view(dtype)
    if operand.index % 2 == 0:
        return batch.sgpr64[:, operand.index // 2].view(dtype)
    low, high = batch.sgpr[:, operand.index], batch.sgpr[:, operand.index + 1]
    return lambda: join(low, high).view(dtype)


#: The encodings of scalar sources that are no registers.
SHARED_BASE, SHARED_LIMIT, PRIVATE_BASE, PRIVATE_LIMIT = 235, 236, 237, 238
VCCZ, EXECZ, SCC = 251, 252, 253

#: High halves of the 64-bit apertures through which FLAT instructions reach LDS and scratch.
SHARED_APERTURE, PRIVATE_APERTURE = 0x2_0000, 0x3_0000


def _special(batch: Batch, operand: Operand, dtype: np.dtype) -> Source:
    if operand.index == SCC:
        return lambda: batch.scc.astype(dtype)
    if operand.index in (VCCZ, EXECZ):
        pair = batch.sgpr64[:, (VCC if operand.index == VCCZ else EXEC) // 2]
        return lambda: (pair == 0).astype(dtype)
    apertures = {
        SHARED_BASE: SHARED_APERTURE << 32,
        SHARED_LIMIT: SHARED_APERTURE << 32 | 0xFFFF_FFFF,
        PRIVATE_BASE: PRIVATE_APERTURE << 32,
        PRIVATE_LIMIT: PRIVATE_APERTURE << 32 | 0xFFFF_FFFF,
    }
    if operand.index not in apertures:
        raise EmulatorError(f"scalar source {operand.index} is not emulated")
    value = apertures[operand.index]
    return constant(value if dtype.itemsize == 8 else value >> 32, dtype)


def vector_source(batch: Batch, inst: Instruction, position: int, dtype: np.dtype) -> Source:
    """Source `position` of a vector instruction with its `neg`, `abs` and `op_sel` modifiers applied."""
    high = inst.mods.get("op_sel", 0) >> position & 1
    source = plain_source(batch, inst.src[position], dtype, high)
    negate = inst.mods.get("neg", 0) >> position & 1
    absolute = inst.mods.get("abs", 0) >> position & 1
    return with_sign(source, dtype, bool(negate), bool(absolute))


def plain_source(batch: Batch, operand: Operand, dtype: np.dtype, high: int = 0) -> Source:
    """An operand of a vector instruction, without modifiers; `high` picks the upper half of 16-bit types."""
    if dtype is MASK:
        if operand.kind is OperandKind.CONST:
            return lambda: constant_mask(operand.value)
        if operand.kind is not OperandKind.SGPR:
            raise EmulatorError(f"source {operand.kind.value}{operand.index} cannot be a lane mask")
        return lambda: batch.lanes_of(operand.index)
    if operand.kind is OperandKind.CONST:
        return constant(operand.value >> 16 * high if dtype.itemsize == 2 else operand.value, dtype)
    if not is_vector(operand):
        if dtype.itemsize == 2:
            require_register(operand)
            return batch.sgpr.view(np.uint16)[:, 2 * operand.index + high, None].view(dtype)
        scalar = scalar_source(batch, operand, dtype)
        if isinstance(scalar, np.ndarray):
            return scalar[:, None] if scalar.ndim else scalar
        return lambda: scalar()[:, None]
    if dtype.itemsize == 2:
        return row(batch, operand).view(np.uint16)[:, high::2].view(dtype)
    if dtype.itemsize == 4:
        return row(batch, operand).view(dtype)
    low, upper = row(batch, operand), row(batch, operand, 1)
    return lambda: join(low, upper).view(dtype)


def constant_mask(value: int) -> np.ndarray:
    """A constant lane mask, bool [1, 64]."""
    return np.unpackbits(np.array([[value]], np.uint64).view(np.uint8), axis=1, bitorder="little").view(bool)


def with_sign(source: Source, dtype: np.dtype, negate: bool, absolute: bool) -> Source:
    """Apply float source modifiers as what they are: operations on the sign bit, also of NaNs."""
    if not (negate or absolute):
        return source
    bits = UNSIGNED[dtype.itemsize]
    sign = np.array(1 << (8 * dtype.itemsize - 1), bits)

    def modified() -> np.ndarray:
        value = (source if isinstance(source, np.ndarray) else source()).view(bits)
        if absolute:
            value = value & ~sign
        if negate:
            value = value ^ sign
        return np.asarray(value).view(dtype)

    return modified if not (isinstance(source, np.ndarray) and source.ndim == 0) else modified()


def vector_sink(batch: Batch, operand: Operand, dtype: np.dtype, keep_half: int | None = None) -> Sink:
    """Write a vector register where lanes are active.

    A 16-bit result zeroes the other half, unless `keep_half` names the half (0 or 1) to write alone.
    """
    if dtype.itemsize == 8:
        low, high = row(batch, operand), row(batch, operand, 1)

        def put_pair(value: np.ndarray) -> None:
            halves = np.broadcast_to(value, low.shape).astype(dtype, copy=True).view(np.uint32)
            store(batch, low, halves[:, 0::2])
            store(batch, high, halves[:, 1::2])

        return put_pair
    target = row(batch, operand)
    if dtype.itemsize == 2:
        if keep_half is not None:
            target = target.view(np.uint16)[:, keep_half::2]

        return lambda value: store(batch, target, np.asarray(value, dtype).view(np.uint16))
    target = target.view(dtype)
    return lambda value: store(batch, target, value)


def store(batch: Batch, target: np.ndarray, value: np.ndarray) -> None:
    """Copy into a register row ([waves, 64]) under the lane mask."""
    if batch.mask is None:
        np.copyto(target, value)
    else:
        np.copyto(target, value, where=batch.mask)


def scalar_sink(batch: Batch, operand: Operand, dtype: np.dtype) -> Sink:
    """Write a scalar register of the active waves; notices writes of EXEC."""
    if dtype.itemsize == 8 and operand.index % 2 == 0:
        target = batch.sgpr64[:, operand.index // 2].view(dtype)
    elif dtype.itemsize == 4:
        target = batch.sgpr[:, operand.index].view(dtype)
    else:
        raise EmulatorError(f"s{operand.index} cannot hold a {8 * dtype.itemsize}-bit result")

    def put(value: np.ndarray) -> None:
        if batch.active is None:
            np.copyto(target, value)
        else:
            np.copyto(target, value, where=batch.active)

    if operand.index + operand.count <= EXEC:
        return put

    def put_exec(value: np.ndarray) -> None:
        put(value)
        batch.exec_changed()

    return put_exec


def mask_sink(batch: Batch, operand: Operand) -> Sink:
    """Write a lane mask (bool, broadcast to [waves, 64]) into a scalar pair; inactive lanes become 0."""
    put = scalar_sink(batch, operand, U64)
    shape = (batch.waves, 64)

    def put_mask(value: np.ndarray) -> None:
        lanes = np.broadcast_to(value, shape) if batch.mask is None else value & batch.mask
        put(pack_lanes(lanes))

    return put_mask


def pack_lanes(lanes: np.ndarray) -> np.ndarray:
    """bool [waves, 64] to uint64 [waves]."""
    return np.packbits(lanes, axis=1, bitorder="little").view(np.uint64)[:, 0]


def scc_sink(batch: Batch) -> Sink:
    """Write SCC (bool, broadcast to [waves]) of the active waves."""

    def put(value: np.ndarray) -> None:
        if batch.active is None:
            np.copyto(batch.scc, value)
        else:
            np.copyto(batch.scc, value, where=batch.active)

    return put
