"""New torch ops that passes put in front of what they raise: views and casts that the graph did not have.

They have no `flycc.node`; where a kernel's call reads one, the rebuild inserts the same operator into the FX graph.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from flycc.dialects.tensor import SHAPE_ATTR, Dims, stamped
from flycc.passes.torch_ir import new_constant

#: PyTorch's number of float32.
_FLOAT32 = 6


def new_op(name: str, operands: Sequence[ir.Value], dims: Dims, dtype: str, before: ir.Operation) -> ir.Value:
    """The result, a tensor of `dims` and the MLIR type `dtype`, of a new `torch.aten.<name>` in front of `before`."""
    with before.context, before.location:
        op = ir.Operation.create(
            f"torch.aten.{name}",
            [tensor_type(dims, dtype, before)],
            list(operands),
            ip=ir.InsertionPoint(before),
        )
        if any(isinstance(dim, str) for dim in dims) and None not in dims:
            op.attributes[SHAPE_ATTR] = ir.ArrayAttr.get([ir.StringAttr.get(str(dim)) for dim in dims])
    return op.results[0]


def tensor_type(dims: Dims, dtype: str, near: ir.Operation) -> ir.Type:
    """The type of a tensor of the MLIR type `dtype`, in the context of `near`."""
    sizes = ",".join(str(dim) if isinstance(dim, int) else "?" for dim in dims)
    return ir.Type.parse(f"!torch.vtensor<[{sizes}],{dtype}>", near.context)


def widened(value: ir.Value, before: ir.Operation) -> ir.Value:
    """`value` as f32."""
    tensor = stamped(value)
    assert tensor is not None
    with before.context, before.location:
        none = ir.Operation.create(
            "torch.constant.none", [ir.Type.parse("!torch.none")], ip=ir.InsertionPoint(before)
        )
        no = ir.Operation.create(
            "torch.constant.bool",
            [ir.Type.parse("!torch.bool")],
            attributes={"value": ir.BoolAttr.get(False)},
            ip=ir.InsertionPoint(before),
        )
    absent = none.results[0]  # layout, device, pin_memory; non_blocking; memory_format
    options = [new_constant(_FLOAT32, before), absent, absent, absent, no.results[0], absent]
    return new_op("_to_copy", [value, *options], tensor.dims, "f32", before)


def new_list(numbers: Sequence[int | ir.Value], before: ir.Operation) -> ir.Value:
    """A `torch.prim.ListConstruct`, of constants but for what are values already, in front of `before`."""
    items = [new_constant(number, before) if isinstance(number, int) else number for number in numbers]
    with before.context, before.location:
        op = ir.Operation.create(
            "torch.prim.ListConstruct",
            [ir.Type.parse("!torch.list<int>")],
            items,
            ip=ir.InsertionPoint(before),
        )
    return op.results[0]


def transposed(value: ir.Value, before: ir.Operation) -> ir.Value:
    """The transpose of a matrix, or of each in a batch."""
    tensor = stamped(value)
    assert tensor is not None
    if len(tensor.dims) == 2:
        return new_op("t", [value], tensor.dims[::-1], tensor.dtype, before)
    *batch, rows, columns = tensor.dims
    axes = [new_constant(axis, before) for axis in (-2, -1)]
    return new_op("transpose.int", [value, *axes], (*batch, columns, rows), tensor.dtype, before)


def viewed(
    value: ir.Value,
    sizes: Sequence[int | ir.Value],
    before: ir.Operation,
    how: str = "view",
    dims: Dims | None = None,
) -> ir.Value:
    """`value` with other sizes, by `view` or by `reshape`; `dims` says what is known of those that are no numbers."""
    tensor = stamped(value)
    assert tensor is not None
    if dims is None:
        dims = tuple(size if isinstance(size, int) else None for size in sizes)
    return new_op(how, [value, new_list(sizes, before)], dims, tensor.dtype, before)


def new_size(value: ir.Value, dim: int, before: ir.Operation) -> ir.Value:
    """The size of a tensor along `dim`."""
    with before.context, before.location:
        op = ir.Operation.create(
            "torch.aten.size.int",
            [ir.Type.parse("!torch.int")],
            [value, new_constant(dim, before)],
            ip=ir.InsertionPoint(before),
        )
    return op.results[0]


def new_sum(value: ir.Value, number: int, before: ir.Operation) -> ir.Value:
    """An integer and a number."""
    if not number:
        return value
    with before.context, before.location:
        op = ir.Operation.create(
            "torch.aten.add.int",
            [ir.Type.parse("!torch.int")],
            [value, new_constant(number, before)],
            ip=ir.InsertionPoint(before),
        )
    return op.results[0]
