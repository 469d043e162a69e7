"""Packed instructions: two 16-bit or two 32-bit operations at once, dot products, and mixed-precision fma.

Two 16-bit halves are a last axis of 2, [waves, 64, 2]; two registers are a first axis of 2,
[2, waves, 64]. op_sel and op_sel_hi, which pick the source of the low and of the high result, become
views with a stride of 1, -1 or 0 along that axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.isa.operands import OperandType, inline_constant
from flycc.emulator.semantics.convert import bf16_to_f32
from flycc.emulator.semantics.floating import fma16, fma32, in_single, maximum, minimum
from flycc.emulator.semantics.integer import masked_sad, shift_left, shift_right
from flycc.emulator.semantics.operands import (
    F16,
    F32,
    I16,
    U16,
    U32,
    U64,
    Binder,
    Op,
    Source,
    UnsupportedInstruction,
    is_vector,
    plain_source,
    reader,
    require_register,
    row,
    rows,
    store,
    vector_sink,
    with_sign,
)
from flycc.emulator.semantics.vector import clamp_float, flush_denormals, flushing, saturated, saturating
from flycc.emulator.state import Batch

_PICK = {(0, 1): slice(None), (1, 0): slice(None, None, -1), (0, 0): slice(0, 1), (1, 1): slice(1, 2)}


def _selection(inst: Instruction, position: int) -> slice:
    low = inst.mods.get("op_sel", 0) >> position & 1
    high = inst.mods.get("op_sel_hi", 7) >> position & 1  # VOP2's packed instruction has no such field
    return _PICK[low, high]


def _signed(inst: Instruction, position: int, source: np.ndarray, shape: tuple[int, ...]) -> Source:
    """Apply neg_lo and neg_hi, or neg of VOP3; `shape` spreads the two along the packed axis."""
    both = inst.mods.get("neg", 0) >> position & 1
    flips = [both ^ (inst.mods.get(name, 0) >> position & 1) for name in ("neg_lo", "neg_hi")]
    if not any(flips) or source.dtype.kind != "f":
        return source
    bits = np.dtype(f"u{source.dtype.itemsize}")
    sign = (np.array(flips, bits) << bits.type(8 * bits.itemsize - 1)).reshape(shape)
    return lambda: (source.view(bits) ^ sign).view(source.dtype)


def halves(batch: Batch, inst: Instruction, position: int, dtype: np.dtype) -> Source:
    """A packed 16-bit source, [waves, 64, 2] or broadcastable to it."""
    operand, pick = inst.src[position], _selection(inst, position)
    if operand.kind is OperandKind.CONST:
        value = np.array([operand.value & 0xFFFF, operand.value >> 16 & 0xFFFF], np.uint16)
    elif is_vector(operand):
        value = row(batch, operand).view(np.uint16).reshape(batch.waves, -1, 2)
    else:
        require_register(operand)
        value = batch.sgpr.view(np.uint16).reshape(batch.waves, -1, 2)[:, operand.index, None]
    return _signed(inst, position, value[..., pick].view(dtype), (2,))


def registers(batch: Batch, inst: Instruction, position: int, dtype: np.dtype) -> Source:
    """A packed 32-bit source, [2, waves, 64] or broadcastable to it."""
    operand, pick = inst.src[position], _selection(inst, position)
    if operand.kind is OperandKind.CONST:
        value = np.array([operand.value & 0xFFFF_FFFF, operand.value >> 32], np.uint32)[:, None, None]
    elif is_vector(operand):
        value = rows(batch, operand, 2)
    else:
        require_register(operand)
        value = batch.sgpr[:, operand.index : operand.index + 2].T[..., None]
    return _signed(inst, position, value[pick].view(dtype), (2, 1, 1))


def _bind_halves(
    function: Callable[..., Any],
    dtype: np.dtype,
    count: int,
    ties: bool = False,
    exact: Callable[..., Any] | None = None,
) -> Binder:
    """`exact` is the function on wide integers, for what clamp saturates."""

    def bind(batch: Batch, inst: Instruction) -> Op:
        sources: list[Source] = [halves(batch, inst, i, dtype) for i in range(len(inst.src))]
        target = row(batch, inst.dst[0]).view(dtype).reshape(batch.waves, -1, 2)
        if ties:
            sources.append(target)
        if len(sources) != count:
            raise UnsupportedInstruction(inst, f"{count} sources are needed, got {len(sources)}")
        compute = _with_modifiers(batch, inst, function, dtype, exact)
        read = reader([flushing(batch, source, dtype) for source in sources])

        def op() -> None:
            value = compute(*read())
            np.copyto(target, value, where=True if batch.mask is None else batch.mask[..., None])

        return op

    return bind


def _bind_registers(function: Callable[..., Any], dtype: np.dtype) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        sources = [registers(batch, inst, i, dtype) for i in range(len(inst.src))]
        read = reader([flushing(batch, source, dtype) for source in sources])
        target, compute = (
            rows(batch, inst.dst[0], 2).view(dtype),
            _with_modifiers(batch, inst, function, dtype),
        )

        def op() -> None:
            value = compute(*read())
            np.copyto(target, value, where=True if batch.mask is None else batch.mask)

        return op

    return bind


def _with_modifiers(
    batch: Batch,
    inst: Instruction,
    function: Callable[..., Any],
    dtype: np.dtype,
    exact: Callable[..., Any] | None = None,
) -> Callable[..., np.ndarray]:
    """`function` with clamp, the flush of denormal results and the overflow of float16 as the mode says."""
    clamps = bool(inst.mods.get("clamp", 0))
    if dtype.kind != "f":
        if not clamps:
            return function
        if exact is None:
            raise UnsupportedInstruction(inst, "clamp of this packed form is not emulated")
        return saturated(exact, dtype)
    computed = saturating(batch, function) if dtype == F16 else function
    if not clamps and not batch.mode.may_flush:
        return computed

    def finished(*sources: np.ndarray) -> np.ndarray:
        value = computed(*sources)
        if clamps:
            value = clamp_float(value, batch.mode.dx10_clamp)
        return value if batch.mode.keeps(dtype) else flush_denormals(value)

    return finished


def _bind_pk_mov(batch: Batch, inst: Instruction) -> Op:
    """v_pk_mov_b32: the low result from source 0, the high one from source 1, registers picked by op_sel."""
    picks = [
        plain_source(batch, _register(inst.src[i], inst.mods.get("op_sel", 0) >> i & 1), U32)
        for i in range(2)
    ]
    read = reader(picks)
    low, high = (vector_sink(batch, Operand(inst.dst[0].kind, inst.dst[0].index + i), U32) for i in range(2))

    def op() -> None:
        first, second = (value.copy() for value in read())
        low(first)
        high(second)

    return op


def _register(operand: Operand, offset: int) -> Operand:
    """One dword of a register pair or constant."""
    if operand.kind is OperandKind.CONST:
        return operand._replace(value=operand.value >> 32 * offset)
    return operand._replace(index=operand.index + offset, count=1)


_HALF = OperandType("f16", 1)


def _mixed_source(batch: Batch, inst: Instruction, position: int) -> Source:
    """A v_fma_mix source as float32: a half (by op_sel) if op_sel_hi is set."""
    dtype = F16 if inst.mods["op_sel_hi"] >> position & 1 else F32
    operand = inst.src[position]
    if operand.kind is OperandKind.CONST and dtype == F16:
        # Decoded as float32, which the same encoding is where op_sel_hi is clear.
        value = inline_constant(operand.index, _HALF)
        operand = operand if value is None else operand._replace(value=value)
    source = plain_source(batch, operand, dtype, inst.mods.get("op_sel", 0) >> position & 1)
    negate, absolute = (bool(inst.mods.get(name, 0) >> position & 1) for name in ("neg", "abs"))
    source = flushing(batch, with_sign(source, dtype, negate, absolute), dtype)
    if dtype == F32:
        return source
    return lambda: (source if isinstance(source, np.ndarray) else source()).astype(np.float32)


def _bind_fma_mix(half: int | None) -> Binder:
    out = F32 if half is None else F16

    def rounded(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        return fma32(a, b, c).astype(out)  # to float16 by a second rounding, as LLVM's patterns say

    def bind(batch: Batch, inst: Instruction) -> Op:
        read = reader([_mixed_source(batch, inst, i) for i in range(3)])
        put = vector_sink(batch, inst.dst[0], out, half)
        compute = _with_modifiers(batch, inst, rounded, out)
        return lambda: put(compute(*read()))

    return bind


class Part(NamedTuple):
    """What a dword of a dot product holds: `split` gives its elements along a new last axis."""

    split: Callable[[np.ndarray], np.ndarray]
    is_half: bool = False


def _parts(dtype: np.dtype) -> Part:
    return Part(lambda value: np.ascontiguousarray(value)[..., None].view(dtype), dtype.itemsize == 2)


def _nibbles(value: np.ndarray) -> np.ndarray:
    as_bytes = np.ascontiguousarray(value)[..., None].view(np.uint8)
    return np.stack([as_bytes & 15, as_bytes >> 4], axis=-1).reshape(*value.shape, 8)


_F16_PART, _I16_PART, _U16_PART = _parts(F16), _parts(I16), _parts(U16)
_BF16_PART = Part(lambda value: bf16_to_f32(_U16_PART.split(value)), is_half=True)
_I8_PART, _U8_PART = _parts(np.dtype(np.int8)), _parts(np.dtype(np.uint8))
_I4_PART = Part(lambda value: (_nibbles(value) ^ 8).astype(np.int8) - np.int8(8))
_U4_PART = Part(_nibbles)


def _dot_source(batch: Batch, inst: Instruction, position: int, part: Part) -> Callable[[], np.ndarray]:
    """The elements of a source: two halves may be picked and negated, by the fields of VOP3P or of VOP3."""
    read = reader([plain_source(batch, inst.src[position], U32)])
    if not part.is_half:
        return lambda: part.split(read()[0])
    pick = _selection(inst, position)
    both = inst.mods.get("neg", 0) >> position & 1
    negated = [both ^ (inst.mods.get(name, 0) >> position & 1) for name in ("neg_lo", "neg_hi")]
    absolute = inst.mods.get("abs", 0) >> position & 1
    signs = np.where(negated, -1, 1).astype(np.int8)

    def elements() -> np.ndarray:
        value = part.split(read()[0])[..., pick]
        value = abs(value) if absolute else value
        return value * signs if any(negated) else value

    return elements


def _bind_dot(part: Part, out: np.dtype) -> Binder:
    """Sum of products of packed elements plus an addend: floats rounded once at the end, integers exact."""

    def bind(batch: Batch, inst: Instruction) -> Op:
        first, second = (_dot_source(batch, inst, i, part) for i in range(2))
        addend = plain_source(batch, inst.src[2] if len(inst.src) > 2 else inst.dst[0], out)
        if out == F32:
            negate, absolute = (bool(inst.mods.get(name, 0) >> 2 & 1) for name in ("neg_lo", "neg_hi"))
            addend = with_sign(addend, out, negate, absolute)
        read = reader([first, second, flushing(batch, addend, out)])
        put = vector_sink(batch, inst.dst[0], out)
        wide = np.float64 if out == F32 else np.int64

        def total(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
            return (a.astype(wide) * b.astype(wide)).sum(axis=-1) + c.astype(wide)

        if out == F32:
            compute = _with_modifiers(batch, inst, lambda a, b, c: total(a, b, c).astype(F32), F32)
        elif inst.mods.get("clamp", 0):
            compute = saturated(total, out)
        else:
            compute = lambda a, b, c: total(a, b, c).astype(out)  # noqa: E731
        return lambda: put(compute(*read()))

    return bind


def _bind_mqsad(batch: Batch, inst: Instruction) -> Op:
    """v_mqsad_u32_u8: v_msad_u8 of four windows of source 0, each one byte on, into four registers."""
    read = reader(
        [plain_source(batch, source, dtype) for source, dtype in zip(inst.src[:2], (U64, U32), strict=True)]
    )
    addends, targets = (rows(batch, operand, 4) for operand in (inst.src[2], inst.dst[0]))

    def op() -> None:
        a, b = read()
        windows = [(a >> np.uint64(8 * i)).astype(np.uint32) for i in range(4)]
        sums = [masked_sad(window, b, addends[i]) for i, window in enumerate(windows)]
        for target, value in zip(targets, sums, strict=True):
            store(batch, target, value)

    return op


_I32 = np.dtype(np.int32)


def _mad(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return a * b + c


BINDERS: dict[str, Binder] = {
    "v_pk_fma_f32": _bind_registers(fma32, F32),
    "v_pk_mul_f32": _bind_registers(np.multiply, F32),
    "v_pk_add_f32": _bind_registers(np.add, F32),
    "v_pk_mov_b32": _bind_pk_mov,
    "v_pk_fma_f16": _bind_halves(fma16, F16, 3),
    "v_pk_fmac_f16": _bind_halves(fma16, F16, 3, ties=True),
    "v_pk_add_f16": _bind_halves(in_single(np.add), F16, 2),
    "v_pk_mul_f16": _bind_halves(in_single(np.multiply), F16, 2),
    "v_pk_min_f16": _bind_halves(minimum, F16, 2),
    "v_pk_max_f16": _bind_halves(maximum, F16, 2),
    "v_pk_minimum3_f16": _bind_halves(lambda a, b, c: np.minimum(np.minimum(a, b), c), F16, 3),
    "v_pk_maximum3_f16": _bind_halves(lambda a, b, c: np.maximum(np.maximum(a, b), c), F16, 3),
    "v_pk_mul_lo_u16": _bind_halves(np.multiply, U16, 2, exact=np.multiply),
    "v_pk_lshlrev_b16": _bind_halves(shift_left, U16, 2),
    "v_pk_lshrrev_b16": _bind_halves(shift_right, U16, 2),
    "v_pk_ashrrev_i16": _bind_halves(lambda s, a: shift_right(s.view(U16), a), I16, 2),
    "v_fma_mix_f32": _bind_fma_mix(None),
    "v_fma_mixlo_f16": _bind_fma_mix(0),
    "v_fma_mixhi_f16": _bind_fma_mix(1),
    "v_dot2_f32_f16": _bind_dot(_F16_PART, F32),
    "v_dot2_f32_bf16": _bind_dot(_BF16_PART, F32),
    "v_dot2_i32_i16": _bind_dot(_I16_PART, _I32),
    "v_dot2_u32_u16": _bind_dot(_U16_PART, U32),
    "v_dot4_i32_i8": _bind_dot(_I8_PART, _I32),
    "v_dot4_u32_u8": _bind_dot(_U8_PART, U32),
    "v_dot8_i32_i4": _bind_dot(_I4_PART, _I32),
    "v_dot8_u32_u4": _bind_dot(_U4_PART, U32),
    "v_dot2c_f32_f16": _bind_dot(_F16_PART, F32),
    "v_dot2c_f32_bf16": _bind_dot(_BF16_PART, F32),
    "v_dot2c_i32_i16": _bind_dot(_I16_PART, _I32),
    "v_dot4c_i32_i8": _bind_dot(_I8_PART, _I32),
    "v_dot8c_i32_i4": _bind_dot(_I4_PART, _I32),
    "v_mqsad_u32_u8": _bind_mqsad,
}
for _suffix, _type in (("u16", U16), ("i16", I16)):
    for _name, _function in (
        ("add", np.add),
        ("sub", np.subtract),
        ("min", np.minimum),
        ("max", np.maximum),
    ):
        BINDERS[f"v_pk_{_name}_{_suffix}"] = _bind_halves(_function, _type, 2, exact=_function)
    BINDERS[f"v_pk_mad_{_suffix}"] = _bind_halves(_mad, _type, 3, exact=_mad)
