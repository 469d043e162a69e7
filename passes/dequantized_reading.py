"""The ways to write a matrix of MX elements dequantised: elements times the scales of their blocks, in a wider type.

Read backwards from the matrix. What counts is not how the scales were spread over the elements (a view to
[.., K / 32, 32], repeat_interleave, expand) but which scale each element meets in the end, and `views.View` says that.
Elements are of an fp8 type, or unpacked by `flycc::mx_dequantize` or by the graph itself (`flycc.unpacked`). Scales
are of E8M0, so that they are powers of two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cmp_to_key

from torch_mlir import ir

from flycc.contracts.scaled_gemm import BLOCK_K
from flycc.dialects.scaled_gemm import E8M0, FORMATS
from flycc.dialects.tensor import stamped
from flycc.passes.torch_ir import constant, int_list, node_name, operator_name, producer, value_name
from flycc.passes.views import ONE, REPEATS, Extent, Factor, View

#: Array attribute of an op whose result is elements of e2m1, each byte of a tensor unpacked to two: the FX node of the
#: bytes, then those that unpack them.
UNPACKED_ATTR = "flycc.unpacked"

#: Types that elements and scales are widened to.
WIDE = ("bf16", "f16", "f32")


@dataclass(frozen=True)
class Source:
    """A tensor, which of its elements each one of a value is, the wide types it was rounded to, and by which ops."""

    value: ir.Value
    view: View
    types: frozenset[str] = frozenset()
    ops: tuple[ir.Operation, ...] = ()


@dataclass(frozen=True)
class Dequantized:
    """A value that is `elements * scales`, each rounded to all of `types` on the way; `ops` are those between.

    The view of elements of e2m1 counts elements, of which each byte of the tensor holds two.
    """

    elements: Source
    scales: Source
    types: frozenset[str]
    ops: tuple[ir.Operation, ...]


_Read = Source | Dequantized
#: Reads an operand of an op.
_Reader = Callable[[ir.Value], _Read | None]


def read_dequantized(value: ir.Value) -> Dequantized | None:
    """What `value` is the product of, if it is one of elements and scales."""
    found = _read(value)
    return found if isinstance(found, Dequantized) else None


def read_scales(value: ir.Value) -> Source | None:
    """Which E8M0 scales `value`, scales too, is a view or a copy of."""
    found = _factor(value)
    return found if isinstance(found, Source) and not found.types and _is_scale(found) else None


def near_miss(value: ir.Value) -> str | None:
    """What keeps `value`, which `read_dequantized` does not read, from it; None if it is nothing like it."""
    op = producer(_origin(value, _STEPS.keys()))
    name = "" if op is None else operator_name(op)
    if op is not None and name == "flycc.mx_dequantize":
        return f"its K is not known to be whole blocks of {BLOCK_K}"
    if op is None or name != "aten.mul.Tensor":
        return None
    factors = [_origin(operand, (*_STEPS, *_REPEATS)) for operand in list(op.operands)[:2]]
    scales = [factor for factor in factors if not _is_element(factor)]
    if len(scales) != 1:
        return None
    tensor = stamped(scales[0])
    if tensor is not None and tensor.dtype != E8M0:
        return f"its scales are {tensor.dtype}; E8M0 is accepted"
    return "its scales are not read as one for each block of 32 along K"


def _origin(value: ir.Value, through: Collection[str]) -> ir.Value:
    """What `value` is made from by operators `through`, as long as that is neither elements nor E8M0."""
    while True:
        op, tensor = producer(value), stamped(value)
        scale = tensor is not None and tensor.dtype == E8M0
        if op is None or scale or _is_element(value) or operator_name(op) not in through:
            return value
        value = op.operands[0]


def _is_element(value: ir.Value) -> bool:
    op, tensor = producer(value), stamped(value)
    unpacked = op is not None and UNPACKED_ATTR in op.attributes
    return unpacked or (tensor is not None and tensor.dtype in FORMATS)


def scale_columns(view: View, rows: Extent, k: int) -> int | None:
    """Of a matrix of scales as its elements meet them, [rows, k]: how many columns the tensor of scales has, row-major.

    ceil(k / 32) where each block of 32 along k has its own, 1 where a row has, 0 where there is one for all.
    """
    blocks, short = divmod(k, BLOCK_K)
    if short:
        return None
    block = (Factor(Extent(BLOCK_K), REPEATS),)
    forms = {
        blocks: (Factor(rows * Extent(blocks), ONE), *block),
        1: (Factor(rows, ONE), Factor(Extent(k), REPEATS)),
        0: (Factor(rows * Extent(k), REPEATS),),
    }
    found = view.factors()
    return next((columns for columns, form in forms.items() if found == form), None)


def _read(value: ir.Value) -> _Read | None:
    """Elements, scales, or their product."""
    op = producer(value)
    step = None if op is None else _PRODUCTS.get(operator_name(op))
    return _read_source(value, _read) if op is None or step is None else step(op)


def _factor(value: ir.Value) -> _Read | None:
    """Elements or scales: no product is looked for inside a product."""
    return _read_source(value, _factor)


def _read_source(value: ir.Value, read: _Reader) -> _Read | None:
    tensor, op = stamped(value), producer(value)
    if tensor is None:
        return None
    if op is not None and UNPACKED_ATTR in op.attributes:
        return _unpacked(op)
    step = None if op is None else _STEPS.get(operator_name(op))
    found = None if op is None or step is None else step(op, read)
    if found is not None:
        return found
    if tensor.dtype != E8M0 and FORMATS.get(tensor.dtype) not in ("e4m3", "e5m2"):
        return None
    view = View.whole(tensor.dims)
    return None if view is None else Source(value, view)


def _seen(read: _Read, through: Callable[[View], View | None], op: ir.Operation) -> _Read | None:
    """`read` with all views seen through another one."""
    if isinstance(read, Source):
        view = through(read.view)
        return None if view is None else replace(read, view=view, ops=(*read.ops, op))
    elements, scales = through(read.elements.view), through(read.scales.view)
    if elements is None or scales is None:
        return None
    return replace(
        read,
        elements=replace(read.elements, view=elements),
        scales=replace(read.scales, view=scales),
        ops=(*read.ops, op),
    )


def _unpacked(op: ir.Operation) -> Source | None:
    """Elements that a graph unpacks itself, as `flycc.unpacked` says: of the tensor of bytes."""
    packed, *between = (name.value for name in op.attributes[UNPACKED_ATTR])
    tensor, ops, left, bytes_ = stamped(op.results[0]), list[ir.Operation](), [op], list[ir.Value]()
    while left:
        each = left.pop()
        if each in ops:
            continue
        ops.append(each)
        for operand in each.operands:
            source = producer(operand)
            if value_name(operand) == packed and stamped(operand) is not None:
                bytes_.append(operand)
            elif source is not None and node_name(source) in between:
                left.append(source)
    view = None if tensor is None else View.whole(tensor.dims)
    if tensor is None or view is None or not bytes_:
        return None
    ops.sort(key=cmp_to_key(_in_order))
    return Source(bytes_[0], view, frozenset({tensor.dtype}), tuple(ops))


def _in_order(x: ir.Operation, y: ir.Operation) -> int:
    return -1 if x.is_before_in_block(y) else 1


def _copied(op: ir.Operation, read_operand: _Reader) -> _Read | None:
    read = read_operand(op.operands[0])
    return None if read is None else _seen(read, lambda view: view, op)


def _cast(op: ir.Operation, read_operand: _Reader) -> _Read | None:
    """To a wide type; a cast between narrow ones rounds, and makes other elements."""
    read, source, target = read_operand(op.operands[0]), stamped(op.operands[0]), stamped(op.results[0])
    if read is None or source is None or target is None:
        return None
    if target.dtype not in WIDE and target.dtype != source.dtype:
        return None
    return replace(read, types=read.types | ({target.dtype} & set(WIDE)), ops=(*read.ops, op))


def _reshaped(op: ir.Operation, read_operand: _Reader) -> _Read | None:
    read, result = read_operand(op.operands[0]), stamped(op.results[0])
    if read is None or result is None:
        return None
    return _seen(read, lambda view: view.reshape(result.dims), op)


def _expanded(op: ir.Operation, read_operand: _Reader) -> _Read | None:
    read, result = read_operand(op.operands[0]), stamped(op.results[0])
    if read is None or result is None:
        return None
    return _seen(read, lambda view: view.expand(result.dims), op)


def _permuted(op: ir.Operation, read_operand: _Reader) -> _Read | None:
    read, source = read_operand(op.operands[0]), stamped(op.operands[0])
    if read is None or source is None:
        return None
    rank, name = len(source.dims), operator_name(op)
    order: Sequence[int] | None = list(range(rank))
    if name == "aten.permute":
        order = int_list(op.operands[1])
    elif rank >= 2:
        ends = [-2, -1] if name == "aten.t" else [constant(axis) for axis in list(op.operands)[1:]]
        if not all(isinstance(end, int) for end in ends):
            return None
        first, second = (int(end) % rank for end in ends if end is not None)
        order = [{first: second, second: first}.get(dim, dim) for dim in range(rank)]
    if order is None:
        return None
    axes = [axis % rank for axis in order]
    return _seen(read, lambda view: view.permute(axes), op)


def _multiplied(op: ir.Operation) -> _Read | None:
    """Elements times scales, in either order; a product of anything else is none that this reads."""
    left, right = (_factor(operand) for operand in list(op.operands)[:2])
    result = stamped(op.results[0])
    if not isinstance(left, Source) or not isinstance(right, Source) or result is None:
        return None
    elements, scales = (left, right) if _is_scale(right) else (right, left)
    if _is_scale(elements) or not _is_scale(scales) or result.dtype not in WIDE:
        return None
    views = elements.view.expand(result.dims), scales.view.expand(result.dims)
    if views[0] is None or views[1] is None:
        return None
    return Dequantized(
        replace(elements, view=views[0]),
        replace(scales, view=views[1]),
        frozenset({result.dtype}),
        (*elements.ops, *scales.ops, op),
    )


def _is_scale(source: Source) -> bool:
    tensor = stamped(source.value)
    return tensor is not None and tensor.dtype == E8M0


def _dequantized(op: ir.Operation) -> _Read | None:
    """`flycc::mx_dequantize`, which rounds once, to the type of its result."""
    data, scales = list(op.operands)[:2]
    tensor, result = stamped(scales), stamped(op.results[0])
    if tensor is None or result is None or result.dtype not in WIDE:
        return None
    elements, view = View.whole(result.dims), View.whole(tensor.dims)
    blocks, k = tensor.dims[-1], result.dims[-1]
    if elements is None or view is None or not isinstance(k, int) or blocks != -(-k // BLOCK_K):
        return None
    if (
        k % BLOCK_K
    ):  # the last block is short, so that no view of whole ones says which scale an element meets
        return None
    spread = view.reshape((*tensor.dims, 1))
    spread = None if spread is None else spread.expand((*tensor.dims, BLOCK_K))
    spread = None if spread is None else spread.reshape(result.dims)
    if spread is None:
        return None
    return Dequantized(Source(data, elements), Source(scales, spread), frozenset({result.dtype}), (op,))


_STEPS: dict[str, Callable[[ir.Operation, _Reader], _Read | None]] = {
    "aten._to_copy": _cast,
    "prims.convert_element_type": _cast,
    "aten.clone": _copied,
    "aten.detach": _copied,
    "aten.alias": _copied,
    "aten.view": _reshaped,
    "aten._unsafe_view": _reshaped,
    "aten.reshape": _reshaped,
    "aten.unsqueeze": _reshaped,
    "aten.squeeze.dim": _reshaped,
    "aten.expand": _expanded,
    "aten.permute": _permuted,
    "aten.transpose.int": _permuted,
    "aten.t": _permuted,
}
_PRODUCTS: dict[str, Callable[[ir.Operation], _Read | None]] = {
    "aten.mul.Tensor": _multiplied,
    "flycc.mx_dequantize": _dequantized,
}
#: Ways to spread scales that are not read, or not in every form.
_REPEATS = ("aten.repeat", "aten.repeat_interleave.self_int", "aten.index_select", "aten.slice.Tensor")
