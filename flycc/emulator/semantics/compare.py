"""Vector compares, carries and selects: the instructions that write or read lane masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.semantics.floating import classify, div_fmas, div_scale
from flycc.emulator.semantics.operands import (
    F16,
    F32,
    F64,
    I16,
    I32,
    I64,
    MASK,
    U16,
    U32,
    U64,
    Binder,
    Op,
    UnsupportedInstruction,
    mask_sink,
    plain_source,
    reader,
    vector_sink,
    vector_source,
)
from flycc.emulator.semantics.vector import flushing
from flycc.emulator.state import EXEC, VCC, Batch

_EXEC = Operand(OperandKind.SGPR, EXEC, 2)
_VCC = Operand(OperandKind.SGPR, VCC, 2)


def _constant(value: bool) -> Callable[..., Any]:
    return lambda a, b: np.array(value)


_ORDERED: dict[str, Callable[..., Any]] = {
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _negated(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: ~function(a, b)


def _conditions(dtype: np.dtype) -> dict[str, Callable[..., Any]]:
    """Mnemonic part of each condition to its function."""
    if dtype.kind in "iu":
        return {**_ORDERED, "ne": np.not_equal, "f": _constant(False), "t": _constant(True)}
    return {
        **_ORDERED,
        "lg": lambda a, b: (a < b) | (a > b),
        "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
        "u": lambda a, b: np.isnan(a) | np.isnan(b),
        "f": _constant(False),
        "tru": _constant(True),
        "neq": np.not_equal,
        "nlg": lambda a, b: ~((a < b) | (a > b)),
        **{f"n{name}": _negated(_ORDERED[name]) for name in ("lt", "le", "gt", "ge")},
    }


def bind_compare(function: Callable[..., Any], types: tuple[np.dtype, np.dtype], writes_exec: bool) -> Binder:
    """A binder for v_cmp (into a lane mask) or v_cmpx (into EXEC as well)."""

    def bind(batch: Batch, inst: Instruction) -> Op:
        sources = [vector_source(batch, inst, i, dtype) for i, dtype in enumerate(types)]
        if function is not classify:
            sources = [flushing(batch, s, dtype) for s, dtype in zip(sources, types, strict=True)]
        read, put = reader(sources), mask_sink(batch, inst.dst[0])
        if not writes_exec:
            return lambda: put(function(*read()))
        put_exec = mask_sink(batch, _EXEC)

        def compare_into_exec() -> None:
            lanes = function(*read())
            put(lanes)
            put_exec(lanes)

        return compare_into_exec

    return bind


def bind_cndmask(batch: Batch, inst: Instruction) -> Op:
    """v_cndmask_b32: source 1 where the mask is set, else source 0."""
    read = reader([vector_source(batch, inst, i, U32) for i in range(2)])
    lanes = plain_source(batch, inst.src[2], MASK)
    read_lanes = reader([lanes])
    put = vector_sink(batch, inst.dst[0], U32)

    def select() -> None:
        off, on = read()
        put(np.where(read_lanes()[0], on, off))

    return select


def _sum(a: np.ndarray, b: np.ndarray, carry: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
    wide = np.add(a, b, dtype=np.uint64) + np.asarray(carry, np.uint64)
    return wide.astype(np.uint32), wide >> np.uint64(32) != 0


def _difference(a: np.ndarray, b: np.ndarray, borrow: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
    wide = np.subtract(a, b, dtype=np.int64) - np.asarray(borrow, np.int64)
    return wide.astype(np.uint32), wide < 0


def _reversed(a: np.ndarray, b: np.ndarray, borrow: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
    return _difference(b, a, borrow)


def _mad64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """v_mad_u64_u32: (a * b + c) modulo 2**64, and the carry out."""
    total = np.multiply(a, b, dtype=np.uint64) + c
    return total, total < c


def _mad64_signed(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """v_mad_i64_i32: the same for signed numbers; the flag is the signed overflow."""
    product = np.multiply(a, b, dtype=np.int64)
    total = product + c
    return total, ((product ^ total) & (c ^ total)) < 0


def _all_ones(value: np.ndarray) -> np.ndarray:
    return ~np.zeros_like(value)


def _signed_limit(value: np.ndarray) -> np.ndarray:
    """What a sum that wrapped to `value` saturates to."""
    limits = np.iinfo(value.dtype)
    return np.where(value < 0, limits.max, limits.min)


def bind_with_mask_result(
    function: Callable[..., Any],
    out: np.dtype,
    types: tuple[np.dtype, ...],
    limit: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Binder:
    """A binder for instructions with a vector result and a lane mask result.

    `limit` makes of an integer result the one that clamp puts where the mask result is set.
    """

    def bind(batch: Batch, inst: Instruction) -> Op:
        read = reader(
            [
                plain_source(batch, inst.src[i], dtype)
                if dtype is MASK
                else vector_source(batch, inst, i, dtype)
                for i, dtype in enumerate(types)
            ]
        )
        put, put_lanes = vector_sink(batch, inst.dst[0], out), mask_sink(batch, inst.dst[1])
        clamps = bool(inst.mods.get("clamp", 0))
        if inst.mods.get("omod", 0) or (clamps and limit is None):
            raise UnsupportedInstruction(inst, "output modifiers of this form are not emulated")

        def op() -> None:
            value, lanes = function(*read())
            if clamps and limit is not None:
                value = np.where(lanes, limit(value), value)
            put(value)
            put_lanes(lanes)

        return op

    return bind


def _bind_div_fmas(dtype: np.dtype) -> Binder:
    def bind(batch: Batch, inst: Instruction) -> Op:
        sources = [vector_source(batch, inst, i, dtype) for i in range(3)]
        read = reader([*sources, plain_source(batch, _VCC, MASK)])
        put = vector_sink(batch, inst.dst[0], dtype)
        return lambda: put(div_fmas(*read()))

    return bind


BINDERS: dict[str, Binder] = {
    "v_cndmask_b32": bind_cndmask,
    "v_mad_u64_u32": bind_with_mask_result(_mad64, U64, (U32, U32, U64), _all_ones),
    "v_mad_i64_i32": bind_with_mask_result(_mad64_signed, I64, (I32, I32, I64), _signed_limit),
    "v_div_scale_f32": bind_with_mask_result(div_scale, F32, (F32, F32, F32)),
    "v_div_scale_f64": bind_with_mask_result(div_scale, F64, (F64, F64, F64)),
    "v_div_fmas_f32": _bind_div_fmas(F32),
    "v_div_fmas_f64": _bind_div_fmas(F64),
}

for _name, _with_carry, _function, _limit in (
    ("add", "addc", _sum, _all_ones),
    ("sub", "subb", _difference, np.zeros_like),
    ("subrev", "subbrev", _reversed, np.zeros_like),
):
    BINDERS[f"v_{_name}_co_u32"] = bind_with_mask_result(
        lambda a, b, f=_function: f(a, b, 0), U32, (U32, U32), _limit
    )
    BINDERS[f"v_{_with_carry}_co_u32"] = bind_with_mask_result(_function, U32, (U32, U32, MASK), _limit)

for _suffix, _type in (
    *(("f16", F16), ("f32", F32), ("f64", F64)),
    *(("i16", I16), ("i32", I32), ("i64", I64), ("u16", U16), ("u32", U32), ("u64", U64)),
):
    for _condition, _function in _conditions(_type).items():
        for _prefix, _exec in (("v_cmp", False), ("v_cmpx", True)):
            BINDERS[f"{_prefix}_{_condition}_{_suffix}"] = bind_compare(_function, (_type, _type), _exec)
    if _type.kind == "f":
        for _prefix, _exec in (("v_cmp", False), ("v_cmpx", True)):
            BINDERS[f"{_prefix}_class_{_suffix}"] = bind_compare(classify, (_type, U32), _exec)
