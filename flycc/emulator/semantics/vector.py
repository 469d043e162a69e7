"""Binding of vector ALU instructions from a table of forms.

A `Form` says what an instruction computes on whole arrays and how its operands are read; everything
else (modifiers, lane masks, DPP, SDWA) is the same for all and lives here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.semantics.operands import (
    F16,
    F32,
    F64,
    U8,
    U16,
    Op,
    Source,
    UnsupportedInstruction,
    is_vector,
    reader,
    require_register,
    row,
    store,
    vector_sink,
    vector_source,
)
from flycc.emulator.state import LANES, Batch

FLOATS = (F16, F32, F64)


class Form(NamedTuple):
    """`function(*sources) -> result`, with the types of the result and of the sources.

    `ties` says that the destination is the last source (v_fmac). `keeps` says that a 16-bit result
    leaves the other half of its register alone instead of zeroing it. `exact` is the function on wide
    integers, for results that clamp saturates; None where there is no such thing.
    """

    function: Callable[..., Any]
    out: np.dtype
    sources: tuple[np.dtype, ...]
    ties: bool = False
    keeps: bool = False
    exact: Callable[..., Any] | None = None


def bind_form(batch: Batch, inst: Instruction, form: Form) -> Op:
    """A closure that executes one vector instruction of this form."""
    if form.ties:
        inst = replace(inst, src=(*inst.src, inst.dst[0]))
    if len(inst.src) != len(form.sources):
        raise UnsupportedInstruction(inst, f"{len(form.sources)} sources are needed, got {len(inst.src)}")
    sources = [
        flushing(batch, vector_source(batch, inst, i, dtype), dtype) for i, dtype in enumerate(form.sources)
    ]
    if form.out not in FLOATS and inst.mods.get("clamp", 0):
        if form.exact is None:
            raise UnsupportedInstruction(inst, "clamp of this integer form is not emulated")
        form = form._replace(function=saturated(form.exact, form.out))
    finish = _finisher(batch, inst, form)
    if isinstance(form.function, np.ufunc) and finish is None and form.out.itemsize == 4:
        fixed = [s for s in sources if isinstance(s, np.ndarray)]
        if len(fixed) == len(sources):
            return _bind_ufunc(batch, form.function, fixed, row(batch, inst.dst[0]).view(form.out))
    high = inst.mods.get("op_sel", 0) >> 3 & 1
    keeps = high if form.keeps or high else None
    put = vector_sink(batch, inst.dst[0], form.out, keeps)
    read = reader(sources)
    function = saturating(batch, form.function) if form.out == F16 else form.function
    if finish is None:
        return lambda: put(function(*read()))
    return lambda: put(finish(function(*read())))


def _bind_ufunc(batch: Batch, function: np.ufunc, sources: list[np.ndarray], target: np.ndarray) -> Op:
    """The fast path: one ufunc straight into the destination row."""
    if len(sources) == 2:
        first, second = sources

        def binary() -> None:
            if batch.mask is None:
                function(first, second, out=target)
            else:
                function(first, second, out=target, where=batch.mask)

        return binary

    def unary() -> None:
        if batch.mask is None:
            function(*sources, target)
        else:
            function(*sources, target, where=batch.mask)

    return unary


def _finisher(batch: Batch, inst: Instruction, form: Form) -> Callable[[np.ndarray], np.ndarray] | None:
    """Output modifiers: omod, clamp, and the flush of denormal results when the mode asks for it."""
    omod, clamp = inst.mods.get("omod", 0), inst.mods.get("clamp", 0)
    if form.out not in FLOATS:
        if omod:
            raise UnsupportedInstruction(inst, "an output multiplier of an integer form is not emulated")
        return None
    if not (omod or clamp or batch.mode.may_flush):
        return None
    scale = form.out.type([1, 2, 4, 0.5][omod])

    def finish(value: np.ndarray) -> np.ndarray:
        if omod:
            value = value * scale
        if clamp:
            value = clamp_float(value, batch.mode.dx10_clamp)
        return value if batch.mode.keeps(form.out) else flush_denormals(value)

    return finish


def saturating(batch: Batch, function: Callable[..., Any]) -> Callable[..., Any]:
    """A float16 function whose overflows, not its poles, give the largest number if FP16_OVFL is set."""

    def evaluate(*sources: np.ndarray) -> np.ndarray:
        value = function(*sources)
        if not batch.mode.fp16_overflow:
            return value
        overflow = np.isinf(value)
        for source in sources:
            overflow = overflow & (np.isfinite(source) if source.dtype.kind == "f" else True)
        if len(sources) == 1:
            overflow &= sources[0] != 0
        return np.where(overflow, np.copysign(np.float16(65504), value), value)

    return evaluate


def saturated(function: Callable[..., Any], dtype: np.dtype) -> Callable[..., np.ndarray]:
    """`function` evaluated on 64-bit integers and brought into the range of `dtype` (of at most 32 bits)."""
    limits = np.iinfo(dtype)

    def evaluate(*sources: np.ndarray) -> np.ndarray:
        return np.clip(function(*(s.astype(np.int64) for s in sources)), limits.min, limits.max).astype(dtype)

    return evaluate


def flushing(batch: Batch, source: Source, dtype: np.dtype) -> Source:
    """A source whose denormals are zeros whenever the mode says so."""
    if dtype not in FLOATS or not batch.mode.may_flush:
        return source

    def flushed() -> np.ndarray:
        value = source if isinstance(source, np.ndarray) else source()
        return value if batch.mode.keeps(dtype) else flush_denormals(value)

    return flushed


def clamp_float(value: np.ndarray, nan_to_zero: bool = True) -> np.ndarray:
    """Clamp to [0, 1]; a NaN becomes 0 when DX10_CLAMP is set."""
    one = value.dtype.type(1)
    clamped = np.where(value > 0, np.where(value < one, value, one), value.dtype.type(0))
    return clamped if nan_to_zero else np.where(np.isnan(value), value, clamped)


def flush_denormals(value: np.ndarray) -> np.ndarray:
    """Denormals of float16, float32 or float64 to zeros of their sign."""
    tiny = np.finfo(value.dtype).smallest_normal
    return np.where(np.abs(value) < tiny, np.copysign(value.dtype.type(0), value), value)


def rearranged(batch: Batch, inst: Instruction, bind: Callable[[Batch, Instruction], Op]) -> Op:
    """Bind a DPP or SDWA form: as the plain instruction on temporaries, with moves before and after."""
    if inst.encoding == "DPP":
        return _bind_dpp(batch, inst, bind)
    return _bind_sdwa(batch, inst, bind)


def _bind_dpp(batch: Batch, inst: Instruction, bind: Callable[[Batch, Instruction], Op]) -> Op:
    mods = inst.mods
    origin, valid = dpp_lanes(inst, mods["dpp_ctrl"])
    rows_on = np.repeat([mods["row_mask"] >> i & 1 for i in range(4)], 16).astype(bool)
    banks_on = np.tile(np.repeat([mods["bank_mask"] >> i & 1 for i in range(4)], 4), 4).astype(bool)
    enabled = rows_on & banks_on
    zero_invalid = bool(mods.get("bound_ctrl", 0))
    source = row(batch, inst.src[0])
    moved_to = Operand(OperandKind.VGPR, batch.temporary(0))
    moved = row(batch, moved_to)
    inner = bind(batch, replace(inst, encoding="VOP", src=(moved_to, *inst.src[1:])))

    def op() -> None:
        mask = batch.mask
        reaches = np.broadcast_to(valid, moved.shape) if mask is None else valid & mask[:, origin]
        np.copyto(moved, source[:, origin])
        moved[~reaches] = 0
        write = np.broadcast_to(enabled, moved.shape) if zero_invalid else enabled & reaches
        batch.mask = write if mask is None else write & mask
        inner()
        batch.mask = mask

    return op


def dpp_lanes(inst: Instruction, control: int) -> tuple[np.ndarray, np.ndarray]:
    """For each lane the lane it reads, and whether there is one (ISA document, "DPP")."""
    lane = np.arange(LANES)
    in_row, base = lane % 16, lane // 16 * 16
    everywhere = np.ones(LANES, bool)
    if control < 0x100:
        return lane // 4 * 4 + (control >> 2 * (lane % 4) & 3), everywhere
    kind, amount = control & 0x1F0, control & 15
    if kind == 0x100 and amount:  # row_shl: lane i reads lane i + amount
        return np.minimum(base + in_row + amount, 63), in_row + amount < 16
    if kind == 0x110 and amount:  # row_shr
        return np.maximum(base + in_row - amount, 0), in_row >= amount
    if kind == 0x120 and amount:  # row_ror
        return base + (in_row - amount) % 16, everywhere
    if kind == 0x150:  # row_newbcast
        return base + amount, everywhere
    table = {
        0x130: (np.minimum(lane + 1, 63), lane < 63),  # wave_shl
        0x134: ((lane + 1) % 64, everywhere),  # wave_rol
        0x138: (np.maximum(lane - 1, 0), lane > 0),  # wave_shr
        0x13C: ((lane - 1) % 64, everywhere),  # wave_ror
        0x140: (base + 15 - in_row, everywhere),  # row_mirror
        0x141: (lane // 8 * 8 + 7 - lane % 8, everywhere),  # row_half_mirror
        0x142: (np.maximum(base - 1, 0), base > 0),  # row_bcast15
        0x143: (np.full(LANES, 31), lane >= 32),  # row_bcast31
    }
    if control not in table:
        raise UnsupportedInstruction(inst, f"dpp_ctrl {control:#x} is not emulated")
    return table[control]


#: SDWA selections: byte or word offset and width in bytes, by encoding 0..6.
SDWA_SELECT = ((0, 1), (1, 1), (2, 1), (3, 1), (0, 2), (2, 2), (0, 4))
SDWA_DWORD = 6
SDWA_PAD, SDWA_SEXT, SDWA_PRESERVE = 0, 1, 2


def _bind_sdwa(batch: Batch, inst: Instruction, bind: Callable[[Batch, Instruction], Op]) -> Op:
    mods = inst.mods
    before: list[Op] = []
    sources = list(inst.src)
    for i in range(min(len(sources), 2)):
        select = mods.get(f"src{i}_sel", SDWA_DWORD)
        if select != SDWA_DWORD:
            signed = bool(mods.get("sext", 0) >> i & 1)
            temporary = Operand(OperandKind.VGPR, batch.temporary(i))
            before.append(_bind_select(batch, sources[i], temporary, select, signed))
            sources[i] = temporary
    select = mods.get("dst_sel", SDWA_DWORD)
    destination = inst.dst
    after: Op | None = None
    if select != SDWA_DWORD and is_vector(inst.dst[0]):
        temporary = Operand(OperandKind.VGPR, batch.temporary(2))
        destination = (temporary, *inst.dst[1:])
        after = _bind_merge(batch, temporary, inst.dst[0], select, mods.get("dst_unused", 0))
    inner = bind(batch, replace(inst, encoding="VOP", src=tuple(sources), dst=destination))

    def op() -> None:
        for select_source in before:
            select_source()
        inner()
        if after is not None:
            after()

    return op


def _part(batch: Batch, operand: Operand, select: int) -> Source:
    """The selected byte or word of an operand, as a view."""
    offset, width = SDWA_SELECT[select]
    dtype = {1: U8, 2: U16, 4: np.dtype(np.uint32)}[width]
    if is_vector(operand):
        return row(batch, operand).view(dtype)[:, offset // width :: 4 // width]
    require_register(operand)
    return batch.sgpr.view(dtype)[:, (4 * operand.index + offset) // width, None]


def _bind_select(batch: Batch, source: Operand, target: Operand, select: int, signed: bool) -> Op:
    part = _part(batch, source, select)
    assert isinstance(part, np.ndarray)
    if signed:
        part = part.view(np.dtype(f"i{part.itemsize}"))
    target_row = row(batch, target)
    return lambda: np.copyto(target_row, part, casting="unsafe")


def _bind_merge(batch: Batch, source: Operand, target: Operand, select: int, unused: int) -> Op:
    value, whole = row(batch, source), row(batch, target)
    part = _part(batch, target, select)
    assert isinstance(part, np.ndarray)
    low = _part(batch, source, {1: 0, 2: 4}[part.itemsize])
    assert isinstance(low, np.ndarray)
    if unused == SDWA_PRESERVE:
        return lambda: store(batch, part, low)
    shift, width = 8 * SDWA_SELECT[select][0], 8 * part.itemsize

    def op() -> None:
        if unused == SDWA_SEXT:
            widened = (value << np.uint32(32 - width)).view(np.int32) >> np.int32(32 - width)
            store(batch, whole, widened.view(np.uint32) << np.uint32(shift))
        else:
            store(batch, whole, low.astype(np.uint32) << np.uint32(shift))

    return op
