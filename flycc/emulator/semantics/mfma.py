"""Matrix instructions: D = A B + C for every wave, on float32, float64 or int32 accumulators.

Operand layout of an MxNxK form (ISA document, "Matrix arithmetic instructions"): A lane holds the
elements of one row of A (lane mod M) and of one column of B; the lanes' groups, g = lane div M, hold
consecutive runs of K. Result register r of lane l is, for M = 16, row 4 * (l div 16) + r and for
M = 32 row 8 * (r div 4) + 4 * (l div 32) + r mod 4; its column is l mod M.

Accumulation: the products are summed in the accumulator's precision in an order that the host's
matrix multiply chooses, then C is added. bf16 and f16 products are exact in float32.
EXEC does not apply.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flycc.emulator.isa.instruction import Instruction, Operand
from flycc.emulator.semantics.operands import (
    Binder,
    Op,
    UnsupportedInstruction,
    constant,
    first_row,
    is_vector,
    rows,
)
from flycc.emulator.state import LANES, Batch

#: Expands packed register rows, uint32 [r, waves, 64], into [elements per register, r, waves, 64] of `out`.
Expand = Callable[[np.ndarray, np.ndarray], None]

_HIGH = np.uint32(0xFFFF_0000)
_16 = np.uint32(16)


def _expand_bf16(packed: np.ndarray, out: np.ndarray) -> None:
    bits = out.view(np.uint32)
    np.left_shift(packed, _16, out=bits[0])
    np.bitwise_and(packed, _HIGH, out=bits[1])


def _expand_f16(packed: np.ndarray, out: np.ndarray) -> None:
    halves = packed.view(np.float16)
    out[0] = halves[..., 0::2]
    out[1] = halves[..., 1::2]


def _expand_f32(packed: np.ndarray, out: np.ndarray) -> None:
    out[0] = packed.view(np.float32)


def _expand_i8(packed: np.ndarray, out: np.ndarray) -> None:
    parts = packed.view(np.int8)
    for i in range(4):
        out[i] = parts[..., i::4]


def _small_floats(exponent_bits: int, mantissa_bits: int) -> np.ndarray:
    """float32 [256]: every code of OCP fp8 (e4m3: no infinity, one NaN) or bf8 (e5m2)."""
    code = np.arange(256)
    exponent, mantissa = code >> mantissa_bits & (1 << exponent_bits) - 1, code & (1 << mantissa_bits) - 1
    bias = (1 << exponent_bits - 1) - 1
    scale = 2.0 ** (np.maximum(exponent, 1) - bias - mantissa_bits)
    value = (mantissa + np.where(exponent > 0, 1 << mantissa_bits, 0)) * scale
    if exponent_bits == 5:
        value = np.where(exponent == 31, np.where(mantissa == 0, np.inf, np.nan), value)
    else:
        value = np.where((exponent == 15) & (mantissa == 7), np.nan, value)
    return np.where(code & 0x80, -value, value).astype(np.float32)


FP8, BF8 = _small_floats(4, 3), _small_floats(5, 2)


def _expand_table(table: np.ndarray) -> Expand:
    def expand(packed: np.ndarray, out: np.ndarray) -> None:
        parts = packed.view(np.uint8)
        for i in range(4):
            out[i] = table[parts[..., i::4]]

    return expand


class Element(NamedTuple):
    """An operand's element type: how many a register holds, and how they are expanded."""

    per_register: int
    expand: Expand


ELEMENTS: dict[str, Element] = {
    "f32": Element(1, _expand_f32),
    "bf16": Element(2, _expand_bf16),
    "f16": Element(2, _expand_f16),
    "i8": Element(4, _expand_i8),
    "fp8": Element(4, _expand_table(FP8)),
    "bf8": Element(4, _expand_table(BF8)),
}

_NAME = re.compile(r"v_mfma_(f32|i32)_(16x16|32x32)x(\d+)_(bf16|f16|f32|i8|fp8_fp8|fp8_bf8|bf8_fp8|bf8_bf8)")


def _bind_mfma(batch: Batch, inst: Instruction) -> Op:
    form = _NAME.fullmatch(inst.name)
    assert form is not None
    if any(inst.mods.get(name) for name in ("cbsz", "abid", "blgp")):
        raise UnsupportedInstruction(inst, "broadcast and negation of matrix operands are not emulated")
    accumulator, shape, depth, types = form.groups()
    size = int(shape.split("x")[0])
    first, second = types.split("_") if "_" in types else (types, types)
    # int8 products summed in float64 are exact.
    work = np.dtype(np.float64 if accumulator == "i32" else np.float32)
    expand_a = _bind_fragment(batch, inst.src[0], ELEMENTS[first], size, work)
    expand_b = _bind_fragment(batch, inst.src[1], ELEMENTS[second], size, work)
    result = np.dtype(accumulator.replace("i32", "int32").replace("f32", "float32"))
    finish = _bind_result(batch, inst.dst[0], inst.src[2], size, result)

    def op() -> None:
        finish(np.matmul(expand_a().swapaxes(1, 2), expand_b()))

    assert int(depth) == 64 // size * inst.src[0].count * ELEMENTS[first].per_register
    return op


def _bind_fragment(
    batch: Batch, operand: Operand, element: Element, size: int, dtype: np.dtype
) -> Callable[[], np.ndarray]:
    """A function that gives an operand as [waves, K, size], K in an order that A and B share."""
    registers, per_register = operand.count, element.per_register
    first = first_row(batch, operand)
    groups = LANES // size

    def as_matrix(expanded: np.ndarray) -> np.ndarray:
        """[waves, element, register, lane] is [waves, K, size] with K = (element, register, lane group)."""
        return expanded.reshape(batch.waves, per_register * registers * groups, size)

    kind = (element, dtype)
    known = batch.fragments.find(first, registers, kind)
    if known is not None:
        matrix = as_matrix(known)
        return lambda: matrix
    packed = rows(batch, operand)
    expanded = batch.fragments.make(
        first, registers, kind, (batch.waves, per_register, registers, LANES), dtype
    )
    by_lane, made = expanded.transpose(1, 2, 0, 3), as_matrix(expanded)

    def fragment() -> np.ndarray:
        element.expand(packed, by_lane)
        return made

    return fragment


def _bind_result(
    batch: Batch, target: Operand, addend: Operand, size: int, dtype: np.dtype
) -> Callable[[np.ndarray], None]:
    """A function that adds C to a product [waves, size, size] and writes D."""
    count = size * size // LANES
    out = rows(batch, target, count).view(dtype)
    added = rows(batch, addend, count).view(dtype) if is_vector(addend) else constant(addend.value, dtype)
    groups = LANES // size
    layout = (batch.waves, count // 4, groups, 4, size)  # rows 4 * groups * block + 4 * group + r mod 4

    def finish(product: np.ndarray) -> None:
        by_register = product.reshape(layout).transpose(1, 3, 0, 2, 4)
        view = (count // 4, 4, batch.waves, groups, size)
        target_view = out.reshape(view)
        addend_view = added.reshape(view) if added.ndim else added
        if dtype.kind == "i":
            by_register = by_register.astype(np.int64).astype(np.int32)
        if batch.active is None:
            np.add(by_register, addend_view, out=target_view)
        else:
            np.add(by_register, addend_view, out=target_view, where=batch.active[:, None, None])

    return finish


def _bind_mfma_f64(batch: Batch, inst: Instruction) -> Op:
    """v_mfma_f64_16x16x4_f64: result register pair r of lane l is row 4 * r + l div 16, column l mod 16."""
    if any(inst.mods.get(name) for name in ("cbsz", "abid", "blgp", "neg")):
        raise UnsupportedInstruction(inst, "modifiers of float64 matrix operands are not emulated")
    a, b = (rows(batch, source, 2) for source in inst.src[:2])
    out = rows(batch, inst.dst[0], 8)
    addend = rows(batch, inst.src[2], 8) if is_vector(inst.src[2]) else None
    value = constant(inst.src[2].value, np.dtype(np.float64))

    def joined(pairs: np.ndarray) -> np.ndarray:
        """[2 n, waves, 64] to float64 [n, waves, 64]."""
        stacked = np.stack([pairs[0::2], pairs[1::2]], axis=-1)
        return stacked.view(np.float64)[..., 0]

    def op() -> None:
        left, right = (joined(m)[0].reshape(batch.waves, 4, 16) for m in (a, b))
        product = np.matmul(left.swapaxes(1, 2), right).reshape(batch.waves, 4, LANES).swapaxes(0, 1)
        total = np.ascontiguousarray(product + (value if addend is None else joined(addend)))
        halves = total.view(np.uint32)
        where = True if batch.active is None else batch.active[:, None]
        np.copyto(out[0::2], halves[..., 0::2], where=where)
        np.copyto(out[1::2], halves[..., 1::2], where=where)

    return op


def lookup(name: str) -> Binder | None:
    """The binder of a matrix instruction, or None for one that is not emulated (sparse, blocked, f8f6f4)."""
    if name == "v_mfma_f64_16x16x4_f64":
        return _bind_mfma_f64
    return _bind_mfma if _NAME.fullmatch(name) else None
