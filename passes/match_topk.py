"""match-topk: raises top-k, and the sorts and maxima that are one, to `flycc.topk`."""

from __future__ import annotations

from collections.abc import Callable

from torch_mlir import ir

from flycc.contracts import Reason
from flycc.dialects.tensor import Dims, Tensor, show, stamped
from flycc.dialects.topk import DTYPES, build_topk, result_dims
from flycc.passes.matching import match, replace
from flycc.passes.torch_ir import constant, is_none, nested_ops, new_constant, operator_name, users


def match_topk(module: ir.Operation) -> None:
    """Raises `topk`, `max(dim)`, `argmax(dim)`, and `sort` of which only the first k places are used, to `flycc.topk`.

    Before:

        %sorted, %places = torch.aten.sort %x, %last, %descending : ...
            -> !torch.vtensor<[4,16],f32>, !torch.vtensor<[4,16],si64>
        %best = torch.aten.slice.Tensor %sorted, %last, %zero, %k, %one : ... -> !torch.vtensor<[4,3],f32>

    After:

        %best, %indices = "flycc.topk"(%x, %k) {dim = 1, largest = true, sorted = true, ...} : ...
            -> (!torch.vtensor<[4,3],f32>, !torch.vtensor<[4,3],si64>)

    `argsort` reaches graphs as a sort whose values nobody uses. Of equal values the op takes
    those with the lowest indices, which PyTorch promises for stable sorts only. A minimum of floats is none: it
    is NaN if any element is, while NaN comes last of the smallest. An op that is not raised gets the
    attributes `flycc.reason_code` and `flycc.reason`.
    """
    # Listed first: raising an op erases it and slices of it, but no other op that is raised.
    for op in [op for op in nested_ops(module) if operator_name(op) in _FORMS]:
        if not any(list(result.uses) for result in op.results):
            continue
        match(op, "topk", _selection)


def _selection(op: ir.Operation) -> Reason | None:
    kind = operator_name(op).removeprefix("aten.")
    reason = _near_miss(op) or _refusal(op) or _FORMS[operator_name(op)](op)
    return None if reason is None else Reason(f"topk.{reason.code}", f"{kind}: {reason.sentence}")


# The reasons below are completed by `_selection`: their codes with the area, their sentences with the operator.


def _near_miss(op: ir.Operation) -> Reason | None:
    """Why `op` is no selection at all whatever its operand, or None."""
    if operator_name(op).startswith("aten.sort") and not all(
        operator_name(user) == "aten.slice.Tensor" for result in op.results for user in users(result)
    ):
        return Reason("full-sort", "more is used of it than first places along its dimension")
    return None


def _refusal(op: ir.Operation) -> Reason | None:
    """Why no form of top-k takes the operand of `op`, or None."""
    x = stamped(op.operands[0])
    if x is None:
        return Reason("type", f"x is {op.operands[0].type}; a value tensor of known rank is needed")
    if x.dtype not in DTYPES:
        return Reason("dtype", f"x is {x.dtype}; it must be one of {', '.join(DTYPES)}")
    if not x.dims:
        return Reason("rank", "x has no dimension to choose from")
    if 0 in x.dims:
        return Reason("empty", f"x is {show(x.dims)}; every size must be at least 1")
    return None


def _topk(op: ir.Operation) -> Reason | None:
    x, k, dim, largest, best_first = op.operands
    number, axis = constant(k), _axis(op, dim)
    flags = [constant(flag) for flag in (largest, best_first)]
    if axis is None or None in flags:
        return Reason("option", "dim, largest and sorted must be constants")
    if number == 0:
        return Reason("empty", "k is 0; it must be at least 1")
    raised = build_topk(
        x,
        k,
        (op.results[0].type, op.results[1].type),
        dim=axis,
        largest=bool(flags[0]),
        sorted=bool(flags[1]),
        before=op,
    )
    replace(raised, [[result] for result in op.results], [op])
    return None


def _extreme(op: ir.Operation) -> Reason | None:
    """`max(dim)`, `argmax(dim)` and, of integers, `min(dim)` and `argmin(dim)`.

    Of equal values `argmax` and `argmin` give the first, by PyTorch's documentation; NaN is the largest.
    """
    largest = operator_name(op) in ("aten.max.dim", "aten.argmax")
    if is_none(op.operands[1]):
        return Reason("dims", "it is taken over all dimensions; dim is needed")
    x, axis, keep_dim = _operand(op), _axis(op, op.operands[1]), constant(op.operands[2])
    if axis is None or keep_dim is None:
        return Reason("option", "dim and keepdim must be constants")
    if not largest and x.dtype != "si32":
        return Reason(
            "nan", f"x is {x.dtype}: a minimum is NaN if any element is, the smallest of a top-k is not"
        )
    places = op.results[-1]
    values = _tensor_type(result_dims(x.dims, axis, 1, bool(keep_dim)), x.dtype, op)
    raised = build_topk(
        op.operands[0],
        new_constant(1, op),
        (values if len(op.results) == 1 else op.results[0].type, places.type),
        dim=axis,
        keep_dim=bool(keep_dim),
        largest=largest,
        before=op,
    )
    replace(raised, [list(op.results)[:-1], [places]], [op])
    return None


def _sort(op: ir.Operation) -> Reason | None:
    x = _operand(op)
    dim, descending = list(op.operands)[-2:]  # a stable sort says so before them
    axis, largest = _axis(op, dim), constant(descending)
    if axis is None or largest is None:
        return Reason("option", "dim and descending must be constants")
    slices = [users(result) for result in op.results]
    ends = {_first_places(user, axis) for group in slices for user in group}
    k = ends.pop() if len(ends) == 1 else None
    if k is None:
        return Reason("full-sort", "not all that is used of it are the same first places along its dimension")
    dims = result_dims(x.dims, axis, k, True)
    raised = build_topk(
        op.operands[0],
        new_constant(k, op),
        (_tensor_type(dims, x.dtype, op), _tensor_type(dims, "si64", op)),
        dim=axis,
        largest=bool(largest),
        before=op,
    )
    replaced = [[user.results[0] for user in group] for group in slices]
    replace(raised, replaced, [*slices[0], *slices[1], op])
    return None


def _kthvalue(op: ir.Operation) -> Reason:
    return Reason("kth-value", "one place of the order is used; a top-k would compute all before it too")


def _first_places(op: ir.Operation, axis: int) -> int | None:
    """k if `op` is the slice of the first k places along dimension `axis`, provably so many; else None."""
    if operator_name(op) != "aten.slice.Tensor":
        return None
    _, dim, start, end, step = op.operands
    number, result = constant(end), stamped(op.results[0])
    from_the_start = constant(start) == 0 or is_none(start)
    if _axis(op, dim) != axis or not from_the_start or constant(step) != 1 or result is None:
        return None
    return number if isinstance(number, int) and number >= 1 and result.dims[axis] == number else None


def _operand(op: ir.Operation) -> Tensor:
    x = stamped(op.operands[0])
    assert x is not None, "_refusal has looked at it"
    return x


def _axis(op: ir.Operation, dim: ir.Value) -> int | None:
    """The dimension of the operand of `op` that `dim` names, counted from the front; None if not a constant."""
    x, number = stamped(op.operands[0]), constant(dim)
    return number % len(x.dims) if x is not None and isinstance(number, int) else None


def _tensor_type(dims: Dims, dtype: str, like: ir.Operation) -> ir.Type:
    sizes = ",".join(str(dim) if isinstance(dim, int) else "?" for dim in dims)
    return ir.Type.parse(f"!torch.vtensor<[{sizes}],{dtype}>", like.context)


_FORMS: dict[str, Callable[[ir.Operation], Reason | None]] = {
    "aten.topk": _topk,
    "aten.sort": _sort,
    "aten.sort.stable": _sort,
    "aten.max.dim": _extreme,
    "aten.min.dim": _extreme,
    "aten.argmax": _extreme,
    "aten.argmin": _extreme,
    "aten.kthvalue": _kthvalue,
}
