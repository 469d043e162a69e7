"""Matrix instructions: D = A B + C for every wave, on float32, float64 or int32 accumulators.

Result register r of lane l is, for M = 16, row 4 * (l div 16) + r mod 4 of block r div 4, and for M = 32
row 8 * (r div 4 mod 4) + 4 * (l div 32) + r mod 4 of block r div 16; its column is l mod M. For M = 4 it is
row r of block l div 4. The operands' layout is in matrix_operands.py. EXEC does not apply, nor does MODE:
denormals are kept.

Accumulation: products are exact. `Mode.mfma_order` says how they are summed:

    fast        in float32 (of scaled operands in float64), in an order that the host's matrix multiply
                chooses, then C is added: at most K + 1 roundings, each at most 2**-24 of the sum of magnitudes
    sequential  C first, then one product after another in order of k, each rounded as a fused multiply-add
    exact       the exact sum of all products and C, rounded once

The order of the hardware is not documented; it lies within the first's bound. float64 results have the
same three orders with float64 roundings. Integers are exact modulo 2**32.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from flycc.emulator.isa.instruction import Instruction, Operand
from flycc.emulator.semantics.floating import fma32, fma64, round_to_odd
from flycc.emulator.semantics.matrix_operands import (
    ELEMENTS,
    F8F6F4,
    LANE_GROUPS,
    Fragment,
    bind_fragment,
    bind_sparse_fragment,
    scaled,
)
from flycc.emulator.semantics.operands import (
    F64,
    Binder,
    Op,
    UnsupportedInstruction,
    constant,
    is_vector,
    rows,
)
from flycc.emulator.state import LANES, Batch

_NAME = re.compile(
    r"v_(?P<kind>mfma|mfma_scale|smfmac)_(?P<result>f32|i32)_(?P<size>4|16|32)x(?P=size)x\d+"
    r"(?:_(?P<blocks>\d+)b)?_(?P<types>f8f6f4|bf16|f16|f32|i8|(?:fp8|bf8)_(?:fp8|bf8))"
)


def _bind_mfma(batch: Batch, inst: Instruction) -> Op:
    form = _NAME.fullmatch(inst.name)
    assert form is not None
    size, blocks = int(form["size"]), int(form["blocks"] or 1)
    result = np.dtype(np.int32 if form["result"] == "i32" else np.float32)
    a, b = _operands(batch, inst, form["kind"], form["types"], size, blocks, result)
    addend = inst.dst[0] if form["kind"] == "smfmac" else inst.src[2]
    if (a.depth == b.depth).all():
        left, right = a.read, b.read
    else:
        # Different formats: put B's rows into the order of A's.
        order = np.argsort(b.depth)[np.argsort(np.argsort(a.depth))]
        left, right = a.read, lambda: b.read()[:, order]
    order_name = batch.mode.mfma_order
    if order_name == "fast" or result.kind == "i":
        finish = _bind_result(batch, inst.dst[0], addend, size, blocks, result)

        def op() -> None:
            finish(np.matmul(left().swapaxes(-1, -2), right()))

        return op
    summed: Callable[..., np.ndarray] = {"sequential": _sequential, "exact": _exact}[order_name]
    by_depth = np.argsort(a.depth)
    c, put = _bind_accumulator(batch, inst.dst[0], addend, size, blocks)

    def op_in_order() -> None:
        matrices = [m if m.ndim == 4 else m[:, None] for m in (left(), right())]
        put(summed(*(m[:, :, by_depth] for m in matrices), c()))

    return op_in_order


def _operands(
    batch: Batch, inst: Instruction, kind: str, types: str, size: int, blocks: int, result: np.dtype
) -> tuple[Fragment, Fragment]:
    cbsz, abid, blgp = (inst.mods.get(name, 0) for name in ("cbsz", "abid", "blgp"))
    # int8 products summed in float64 are exact.
    work = np.dtype(np.float64 if result.kind == "i" or kind == "mfma_scale" else np.float32)
    a, b = inst.src[:2]
    if types == "f8f6f4":
        fragments = []
        for operand, code in ((a, cbsz), (b, blgp)):
            name = F8F6F4[code]
            fragments.append(
                bind_fragment(batch, operand, ELEMENTS[name], size, work, halves=name in ("fp8", "bf8"))
            )
        if kind == "mfma_scale":
            for i in range(2):
                byte = 2 * (inst.mods["op_sel_hi"] >> i & 1) + (inst.mods.get("op_sel", 0) >> i & 1)
                fragments[i] = scaled(batch, fragments[i], inst.src[3 + i], byte, size)
        return fragments[0], fragments[1]
    first, second = (ELEMENTS[name] for name in (types.split("_") if "_" in types else (types, types)))
    lanes = LANE_GROUPS[blgp] if blgp else None
    right = bind_fragment(batch, b, second, size, work, blocks=blocks, lanes=lanes)
    if kind == "smfmac":
        # cbsz = 0 lets abid choose among the sets of indices that the register holds.
        part = 0 if cbsz else abid
        return bind_sparse_fragment(batch, a, first, size, work, inst.src[2], part), right
    if 1 << cbsz > blocks or abid >> cbsz:
        raise UnsupportedInstruction(inst, f"cbsz {cbsz} and abid {abid} name no block of {blocks}")
    left = bind_fragment(batch, a, first, size, work, blocks=blocks)
    if not cbsz:
        return left, right
    # Of every 2**cbsz blocks of A, block abid stands for all.
    source = np.arange(blocks) >> cbsz << cbsz | abid
    return Fragment(lambda: left.read()[:, source], left.depth), right


def _layout(batch: Batch, size: int, blocks: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Shape of a result [waves, blocks, row, column] with its rows split, the axes in register order, and
    the shape of registers [n, waves, 64] in that order."""
    waves = batch.waves
    if size == 4:
        return (waves, blocks, 4, 4), (2, 0, 1, 3), (4, waves, blocks, 4)
    groups = LANES // size
    outer = size // (4 * groups)
    return (
        (waves, blocks, outer, groups, 4, size),
        (1, 2, 4, 0, 3, 5),
        (blocks, outer, 4, waves, groups, size),
    )


def _bind_result(
    batch: Batch, target: Operand, addend: Operand, size: int, blocks: int, dtype: np.dtype
) -> Callable[[np.ndarray], None]:
    """A function that adds C to a product [waves, (blocks,) size, size] and writes D."""
    count = size * size * blocks // LANES
    layout, axes, view = _layout(batch, size, blocks)
    out = rows(batch, target, count).view(dtype)
    added = rows(batch, addend, count).view(dtype) if is_vector(addend) else constant(addend.value, dtype)
    target_view = out.reshape(view)
    addend_view = added.reshape(view) if added.ndim else added
    wave_axis = (slice(None),) + (None,) * (len(view) - axes.index(0) - 1)

    def finish(product: np.ndarray) -> None:
        by_register = product.reshape(layout).transpose(axes)
        if dtype.kind == "i":
            by_register = by_register.astype(np.int64).astype(np.int32)
        where = True if batch.active is None else batch.active[wave_axis]
        np.add(by_register, addend_view, out=target_view, where=where)

    return finish


def _bind_accumulator(
    batch: Batch, target: Operand, addend: Operand, size: int, blocks: int
) -> tuple[Callable[[], np.ndarray], Callable[[np.ndarray], None]]:
    """Functions that read C as float32 [waves, blocks, size, size] and write such a D."""
    count = size * size * blocks // LANES
    layout, axes, view = _layout(batch, size, blocks)
    shape = (batch.waves, blocks, size, size)
    back = np.argsort(axes)
    out = rows(batch, target, count).view(np.float32).reshape(view).transpose(back)
    if is_vector(addend):
        added = rows(batch, addend, count).view(np.float32).reshape(view).transpose(back)
        read: Callable[[], np.ndarray] = lambda: added.reshape(shape)  # noqa: E731
    else:
        fixed = np.broadcast_to(constant(addend.value, np.dtype(np.float32)), shape)
        read = lambda: fixed  # noqa: E731

    def put(total: np.ndarray) -> None:
        where = True if batch.active is None else batch.active.reshape(-1, *(1,) * (out.ndim - 1))
        np.copyto(out, total.reshape(layout), where=where)

    return read, put


def _sequential(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """C plus one product after another: a [..., K, M], b [..., K, N], c [..., M, N] of float32 or float64."""
    fma = fma64 if c.dtype == F64 else fma32
    for k in range(a.shape[-2]):
        c = fma(a[..., k, :, None], b[..., k, None, :], c)
    return c


def _exact(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The same, rounded once. Products of float32 or shorter numbers are exact in float64."""
    if c.dtype == F64:
        return _exact64(a, b, c)
    terms = np.multiply(a[..., :, :, None], b[..., :, None, :], dtype=np.float64)
    terms = np.concatenate([terms, c[..., None, :, :].astype(np.float64)], axis=-3)
    terms = np.moveaxis(terms, -3, -1)
    total = terms.sum(axis=-1)  # for special values, and the sign of zero
    flat, out = terms.reshape(-1, terms.shape[-1]), total.reshape(-1)
    rest = np.zeros_like(out)
    for i in np.flatnonzero(np.isfinite(out)):
        values = flat[i].tolist()
        nearest = math.fsum(values)
        if nearest:
            out[i] = nearest
            rest[i] = math.fsum([*values, -nearest])
        elif out[i]:  # exact cancellation
            out[i] = 0.0
    return round_to_odd(out, rest, out).reshape(total.shape).astype(np.float32)


def _exact64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    out = _sequential(a, b, c)
    for at in np.argwhere(np.isfinite(out)):
        *outer, m, n = at
        pairs = zip(a[(*outer, slice(None), m)], b[(*outer, slice(None), n)], strict=True)
        total = sum(
            (Fraction(float(x)) * Fraction(float(y)) for x, y in pairs), Fraction(float(c[tuple(at)]))
        )
        if total:
            out[tuple(at)] = total.numerator / total.denominator
    return out


def _bind_mfma_f64(batch: Batch, inst: Instruction) -> Op:
    """v_mfma_f64: 16x16x4, or four blocks of 4x4x4. blgp negates A, B and C.

    16x16x4: lane l holds A and B of row or column l mod 16 at k = l div 16; result register pair r is row
    4 * r + l div 16. 4x4x4: lane l = i + 4 block + 16 k, and its result's row is l div 16.
    """
    large = "16x16" in inst.name
    pairs = 4 if large else 1
    a, b = (rows(batch, source, 2) for source in inst.src[:2])
    out = rows(batch, inst.dst[0], 2 * pairs)
    addend = rows(batch, inst.src[2], 2 * pairs) if is_vector(inst.src[2]) else None
    fixed = np.broadcast_to(constant(inst.src[2].value, F64), (pairs, batch.waves, LANES))
    signs = [-1.0 if inst.mods.get("blgp", 0) >> i & 1 else 1.0 for i in range(3)]
    waves = batch.waves

    def joined(registers: np.ndarray) -> np.ndarray:
        """[2 n, waves, 64] to float64 [n, waves, 64]."""
        stacked = np.stack([registers[0::2], registers[1::2]], axis=-1)
        return stacked.view(np.float64)[..., 0]

    def op() -> None:
        left, right = (joined(m)[0] * sign for m, sign in zip((a, b), signs, strict=False))
        c = (fixed if addend is None else joined(addend)) * signs[2]
        if large:
            left, right = (m.reshape(waves, 1, 4, 16) for m in (left, right))
            c = c.reshape(4, waves, 4, 16).swapaxes(0, 1).reshape(waves, 1, 16, 16)
        else:
            left, right = (m.reshape(waves, 4, 4, 4).swapaxes(1, 2) for m in (left, right))
            c = c.reshape(waves, 4, 4, 4).swapaxes(1, 2)
        total = _multiply_f64(left, right, c, batch.mode.mfma_order)
        if large:
            total = total.reshape(waves, 4, LANES).swapaxes(0, 1)
        else:
            total = total.swapaxes(1, 2).reshape(1, waves, LANES)
        halves = np.ascontiguousarray(total).view(np.uint32)
        where = True if batch.active is None else batch.active[:, None]
        np.copyto(out[0::2], halves[..., 0::2], where=where)
        np.copyto(out[1::2], halves[..., 1::2], where=where)

    return op


def _multiply_f64(a: np.ndarray, b: np.ndarray, c: np.ndarray, order: str) -> np.ndarray:
    if order == "fast":
        return np.matmul(a.swapaxes(-1, -2), b) + c
    return (_sequential if order == "sequential" else _exact64)(a, b, c)


def lookup(name: str) -> Binder | None:
    """The binder of a matrix instruction, None for any other name."""
    if name.startswith("v_mfma_f64_"):
        return _bind_mfma_f64
    return _bind_mfma if _NAME.fullmatch(name) else None
