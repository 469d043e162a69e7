"""Ops that only rearrange or repeat elements, and what becomes of a `View` through them."""

from __future__ import annotations

from torch_mlir import ir

from flycc.dialects.tensor import Dims, same, same_dims, stamped
from flycc.passes.torch_ir import constant, int_list, operator_name
from flycc.passes.views import View

_RESHAPES = (
    *("aten.view", "aten._unsafe_view", "aten.reshape"),
    *("aten.unsqueeze", "aten.squeeze.dim", "aten.squeeze.dims"),
)
_COPIES = ("aten.clone", "aten.alias", "aten.detach", "aten.contiguous")
#: Operators that change the order of dimensions.
TRANSPOSES = ("aten.permute", "aten.transpose.int", "aten.t")
#: Operators whose first operand `seen_through` can see.
VIEWS = frozenset({*_RESHAPES, *_COPIES, *TRANSPOSES, "aten.expand", "aten.slice.Tensor"})


def sizes(value: ir.Value) -> Dims:
    """The shape of a tensor as far as it is known; () for what is none."""
    tensor = stamped(value)
    return () if tensor is None else tensor.dims


def seen_through(op: ir.Operation, view: View) -> View | None:
    """The view that the result of `op`, one of `VIEWS`, is, where its first operand is `view`; None if it is none."""
    name, before, after = operator_name(op), sizes(op.operands[0]), sizes(op.results[0])
    if name in _RESHAPES:
        return view.reshape(after)
    if name in _COPIES:
        return view
    if name == "aten.expand":
        return view.expand(after)
    if name == "aten.slice.Tensor":
        return view if same_dims(before, after) else None
    order = permutation(op)
    return None if order is None else view.permute(order)


def permutation(op: ir.Operation) -> list[int] | None:
    """Which dimension of the operand of a transpose each of its result is, or None where that is not known."""
    rank, name = len(sizes(op.operands[0])), operator_name(op)
    if name == "aten.permute":
        order = int_list(op.operands[1])
        return None if order is None else [axis % rank for axis in order]
    ends = [0, 1] if name == "aten.t" else [constant(axis) for axis in list(op.operands)[1:]]
    if rank < 2 or None in ends:
        return list(range(rank)) if name == "aten.t" else None
    first, second = (int(end) % rank for end in ends if end is not None)
    return [{first: second, second: first}.get(axis, axis) for axis in range(rank)]


def moved_axes(before: Dims, after: Dims) -> dict[int, int] | None:
    """Where a reshape that only adds or drops sizes of 1 puts the others, counted from the end; None for another."""
    old, new = ([axis - len(d) for axis in range(len(d)) if d[axis] != 1] for d in (before, after))
    if len(old) != len(new):
        return None
    moved = dict(zip(old, new, strict=True))
    return moved if all(same(before[x], after[y]) for x, y in moved.items()) else None
