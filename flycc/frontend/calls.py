"""How each op of the flycc dialect is called in an FX graph: nodes for the call and for each of its results."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg
from torch_mlir.ir import OpView, Value

from flycc.dialects import (
    GemmOp,
    GroupedGemmOp,
    MxDequantizeOp,
    MxQuantizeOp,
    RmsNormBackwardOp,
    RmsNormOp,
    ScaledGemmOp,
    ScaledGroupedGemmOp,
    SdpaBackwardOp,
    SdpaOp,
    TopkOp,
)
from flycc.dialects.sizes import known
from flycc.passes.torch_ir import NODE_ATTR, constant, is_none, producer

#: The FX node, or number, that is the value of an operand; None for an operand that is absent.
Operand = Callable[[Value | None], Any]

_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def call(graph: Graph, op: OpView, operand: Operand, layout: Sequence[int]) -> list[Node]:
    """Inserts at the insert point of `graph` what computes `op`; returns a node for each result of `op`.

    `layout` is that of the first result in the graph, `layout_of` it; others follow it or are row-major. Every
    node has its fake value in `meta["val"]`.
    """
    return _CALLS[type(op)](graph, op, operand, layout)


def called(op: OpView) -> str:
    """The custom operator that computes `op`, for example "flycc::gemm"."""
    if isinstance(op, GemmOp) and op.preactivation is not None:
        return "flycc::gemm_with_preactivation"
    return _NAMES[type(op)]


def with_layout(graph: Graph, node: Node, val: torch.Tensor) -> Node:
    """`node` with the strides of `val`, a tensor of its shape: a view where only those of sizes of 1 differ, or a copy.

    Where others differ and `val` is not row-major its sizes and strides must be numbers: see `has_layout`.
    """
    given, layout = node.meta["val"], (list(val.shape), list(val.stride()))
    if _identical_strides(given, val):
        return node
    alike = _same_strides(given, val)
    if alike and _are_numbers(val):
        return _function(graph, torch.ops.aten.as_strided.default, node, *layout)
    if _identical_strides(val.new_empty(val.shape), val) or (is_row_major(val) and not alike):
        return _function(graph, torch.ops.aten.clone.default, node, memory_format=torch.contiguous_format)
    if alike:
        return node
    empty = _function(graph, torch.ops.aten.new_empty_strided.default, node, *layout)
    return _function(graph, torch.ops.aten.copy.default, empty, node)


def has_layout(
    op: OpView, val: torch.Tensor, layout: Sequence[int], like: torch.Tensor | None = None
) -> bool:
    """Whether a result of `op`, whose first has `layout`, can have the strides of `val` at little cost.

    `like`, for gradients, is what they are of: the operator lays them out as `torch.empty_like` does.
    """
    if is_row_major(val) or (like is not None and _same_strides(torch.empty_like(like), val)):
        return True
    if isinstance(op, RmsNormOp):
        # Rows may be normalised in any order, so that of memory serves as well.
        return layout[-1] == val.dim() - 1 and layout == layout_of(val) and is_row_major(val.permute(layout))
    if isinstance(op, SdpaOp) and val.dim() == len(layout) and _attention_layout(layout) is not None:
        return is_row_major(val.permute(list(layout)))
    # k elements a row are few beside what was read to find them, and gradients beside the products that make them.
    return isinstance(op, TopkOp | SdpaBackwardOp) and _are_numbers(val)


def layout_of(val: torch.Tensor) -> list[int]:
    """The dimensions of `val` from the largest stride to the smallest, for the sizes that were traced.

    A guess to be proven for all sizes: `is_row_major` of `val` so permuted.
    """
    strides = [s if isinstance(s, int) else s.node.hint if s.node.has_hint() else 0 for s in val.stride()]
    return sorted(range(val.dim()), key=lambda dim: -strides[dim])


def is_row_major(val: torch.Tensor) -> bool:
    """Whether `val` is provably dense and row-major."""
    return _same_strides(val.new_empty(val.shape), val)


def _same_strides(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether strides are provably equal where they matter; unlike `is_contiguous` this adds no guard."""
    return all(
        statically_known_true(size == 1) or statically_known_true(stride == wanted)
        for size, stride, wanted in zip(y.shape, x.stride(), y.stride(), strict=True)
    )


def _identical_strides(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether all strides are provably equal."""
    return all(map(statically_known_true, map(operator.eq, x.stride(), y.stride())))


def _are_numbers(val: torch.Tensor) -> bool:
    """Whether all sizes and strides are known."""
    return all(isinstance(n, int) for n in (*val.shape, *val.stride()))


def _function(graph: Graph, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
    node = graph.call_function(target, args, kwargs)
    values = map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    node.meta["val"] = target(*values[0], **values[1])
    return node


def is_new(value: Value) -> bool:
    """Whether `value` is the result of an op that a pass put into the module: see `passes.new_ops`."""
    op = producer(value)
    return op is not None and op.name.startswith("torch.aten.") and NODE_ATTR not in op.attributes


def new_node(graph: Graph, value: Value, operand: Operand) -> Node:
    """Inserts the operator of PyTorch whose result `value`, one for which `is_new`, is."""
    op = producer(value)
    assert op is not None
    name, _, overload = op.name.removeprefix("torch.aten.").partition(".")
    name = "sym_size" if name == "size" else name  # `size` itself would make a number of a symbol
    if overload == "int" and name == "add":
        return _function(graph, operator.add, *(_argument(item, operand) for item in op.operands))
    target = getattr(getattr(torch.ops.aten, name), overload or "default")
    parameters = target._schema.arguments
    positional = sum(not parameter.kwarg_only for parameter in parameters)
    arguments = [_argument(item, operand) for item in op.operands]
    named = {p.name: given for p, given in zip(parameters, arguments, strict=True) if p.kwarg_only}
    return _function(graph, target, *arguments[:positional], **named)


def _argument(value: Value, operand: Operand) -> Any:
    """An argument of PyTorch: a number, None, a list, or the node of a tensor."""
    if is_none(value):
        return None
    op = producer(value)
    if op is not None and op.name == "torch.prim.ListConstruct":
        return [_argument(item, operand) for item in op.operands]
    number = constant(value)
    return operand(value) if number is None else number


def _results(graph: Graph, node: Node, indices: Sequence[int]) -> list[Node]:
    return [_function(graph, operator.getitem, node, index) for index in indices]


def _gemm(graph: Graph, op: GemmOp, operand: Operand, _: Sequence[int]) -> list[Node]:
    operands = [operand(value) for value in (op.a, op.b, op.bias) if value is not None]
    named: dict[str, Any] = _transposed(op)
    named |= {
        name: operand(getattr(op, name)) for name in ("b2", "residual") if getattr(op, name) is not None
    }
    if op.scale != 1:
        named["scale"] = op.scale
    if op.activation != "none":
        named["activation"] = op.activation
    out_dtype = known(op.result).dtype
    if out_dtype != known(op.a).dtype:
        named["out_dtype"] = _DTYPES[out_dtype]
    if op.preactivation is None:
        return [_function(graph, torch.ops.flycc.gemm.default, *operands, **named)]
    call = _function(graph, torch.ops.flycc.gemm_with_preactivation.default, *operands, **named)
    return _results(graph, call, [0, 1])


def _transposed(op: GemmOp | GroupedGemmOp) -> dict[str, bool]:
    """Only what is not the default: PyTorch takes half a microsecond for each argument."""
    return {name: True for name in ("trans_a", "trans_b") if getattr(op, name)}


def _grouped_gemm(graph: Graph, op: GroupedGemmOp, operand: Operand, _: Sequence[int]) -> list[Node]:
    operands = [None if value is None else operand(value) for value in (op.a, op.b, op.offsets, op.bias)]
    return [_function(graph, torch.ops.flycc.grouped_gemm.default, *operands, **_transposed(op))]


def _scaled_gemm(graph: Graph, op: ScaledGemmOp, operand: Operand, _: Sequence[int]) -> list[Node]:
    """The custom op has the rows of its result in one dimension."""
    result = known(op.result)
    operands = [
        None if value is None else operand(value) for value in (op.a, op.b, op.scale_a, op.scale_b, op.bias)
    ]
    named: dict[str, Any] = {"out_dtype": _DTYPES[result.dtype]}
    sizes = [
        dim if isinstance(dim, int) else -1 for dim in result.dims
    ]  # of which one at most may be unknown
    in_rows = len(sizes) == 2
    if op.residual is not None:
        residual = operand(op.residual)
        if not in_rows:
            residual = _function(graph, torch.ops.aten.reshape.default, residual, [-1, sizes[-1]])
        named["residual"] = residual
    if op.activation != "none":
        named["activation"] = op.activation
    call = _function(graph, torch.ops.flycc.scaled_gemm.default, *operands, **named)
    return [call if in_rows else _function(graph, torch.ops.aten.view.default, call, sizes)]


def _scaled_grouped_gemm(
    graph: Graph, op: ScaledGroupedGemmOp, operand: Operand, _: Sequence[int]
) -> list[Node]:
    values = op.a, op.b, op.scale_a, op.scale_b, op.offsets, op.bias
    operands = [None if value is None else operand(value) for value in values]
    out_dtype = _DTYPES[known(op.result).dtype]
    return [_function(graph, torch.ops.flycc.scaled_grouped_gemm.default, *operands, out_dtype=out_dtype)]


def _mx_quantize(graph: Graph, op: MxQuantizeOp, operand: Operand, _: Sequence[int]) -> list[Node]:
    how = {"format": op.format.value, "rounding": op.rounding.value}
    call = _function(graph, torch.ops.flycc.mx_quantize.default, operand(op.x), **how)
    return _results(graph, call, [0, 1, 2])


def _mx_dequantize(graph: Graph, op: MxDequantizeOp, operand: Operand, _: Sequence[int]) -> list[Node]:
    operands, dtype = (operand(op.data), operand(op.scales)), _DTYPES[known(op.result).dtype]
    return [_function(graph, torch.ops.flycc.mx_dequantize.default, *operands, dtype=dtype)]


def _rms_norm(graph: Graph, op: RmsNormOp, operand: Operand, layout: Sequence[int]) -> list[Node]:
    """Transposed tensors are normalised row by row in the order of memory, as views."""
    eps = constant(op.eps)
    dtype, out_dtype = known(op.x).dtype, known(op.y).dtype
    in_order = list(layout) == sorted(layout)

    def permuted(node: Any, order: Sequence[int]) -> Any:
        if node is None or in_order:
            return node
        return _function(graph, torch.ops.aten.permute.default, node, list(order))

    call = _function(
        graph,
        torch.ops.flycc.rms_norm_fwd.default,
        permuted(operand(op.x), layout),
        operand(op.weight),
        permuted(operand(op.residual), layout),
        operand(op.eps) if eps is None else eps,
        weight_offset=op.weight_offset.value,
        cast_before_weight=op.cast_before_weight.value,
        want_rstd=op.rstd is not None,
        out_dtype=None if out_dtype == dtype else _DTYPES[out_dtype],
    )
    present = [0, *([1] if op.new_residual is not None else []), *([2] if op.rstd is not None else [])]
    back = sorted(range(len(layout)), key=layout.__getitem__)
    return [
        permuted(result, back[:-1] if index == 2 else back)
        for index, result in zip(present, _results(graph, call, present), strict=True)
    ]


def _rms_norm_backward(graph: Graph, op: RmsNormBackwardOp, operand: Operand, _: Sequence[int]) -> list[Node]:
    call = _function(
        graph,
        torch.ops.flycc.rms_norm_bwd.default,
        *(operand(value) for value in (op.grad, op.x, op.weight, op.rstd)),
        weight_offset=op.weight_offset.value,
        cast_before_weight=op.cast_before_weight.value,
    )
    return _results(graph, call, [0] if op.dweight is None else [0, 1])


def _attention_layout(layout: Sequence[int]) -> str | None:
    """What `flycc::sdpa_fwd` calls the order in memory of what it gives; None for an order that it does not write."""
    *outer, heads, rows, row = range(len(layout)) if len(layout) > 2 else (-1, 0, 1)
    orders = {
        (rows, *outer, heads, row): "sbhd",
        (*outer, rows, heads, row): "bshd",  # after the one before, which is the same without a batch
        (*outer, heads, rows, row): "bhsd",
    }
    return orders.get(tuple(layout) if len(layout) > 2 else (-1, *layout))


def _four(graph: Graph, node: Any, rank: int) -> Any:
    """An operand of attention of `rank` as [batch, heads, length, dim]; a view, as a rule."""
    for _ in range(4 - rank):
        node = _function(graph, torch.ops.aten.unsqueeze.default, node, 0)
    if rank > 4:
        node = _function(graph, torch.ops.aten.flatten.using_ints, node, 0, rank - 4)
    return node


def _mask_in_four(graph: Graph, mask: Any, outer: Sequence[int]) -> Any:
    """A mask for operands with `outer` in the place of a batch."""
    if mask is None or mask.meta["val"].dim() < 4 or len(outer) == 1:
        return mask
    rank = len(outer) + 3
    for _ in range(rank - mask.meta["val"].dim()):
        mask = _function(graph, torch.ops.aten.unsqueeze.default, mask, 0)
    if any(size != 1 for size in mask.meta["val"].shape[:-3]):
        mask = _function(graph, torch.ops.aten.expand.default, mask, [*outer, -1, -1, -1])
    return _four(graph, mask, rank)


def _as_before(graph: Graph, node: Node, sizes: Sequence[int], rank: int) -> Node:
    """A result of attention, [batch, heads, ...], with `sizes` in the place of batch and heads."""
    for _ in range(4 - rank):
        node = _function(graph, torch.ops.aten.squeeze.dim, node, 0)
    if rank > 4:
        node = _function(graph, torch.ops.aten.unflatten.int, node, 0, list(sizes[: rank - 3]))
    return node


def _operands_in_four(
    graph: Graph, op: SdpaOp | SdpaBackwardOp, operand: Operand
) -> tuple[list[Any], int, list[int]]:
    """Query, key, value, mask and what else both ops take; the rank of the first and its sizes."""
    query, key, value = (operand(x) for x in (op.query, op.key, op.value))
    sizes, rank = list(query.meta["val"].shape), query.meta["val"].dim()
    mask = _mask_in_four(graph, operand(op.mask), sizes[: max(rank - 3, 1)])
    others = map(operand, (op.query_documents, op.key_documents, op.slopes, op.seed))
    return [*(_four(graph, x, rank) for x in (query, key, value)), mask, *others], rank, sizes


def _sdpa(graph: Graph, op: SdpaOp, operand: Operand, layout: Sequence[int]) -> list[Node]:
    tensors, rank, sizes = _operands_in_four(graph, op, operand)
    call = _function(
        graph,
        torch.ops.flycc.sdpa_fwd.default,
        *tensors,
        **_attending(op, operand),
        want_lse=op.lse is not None,
        layout=_attention_layout(layout),
    )
    results = _results(graph, call, [0] if op.lse is None else [0, 1])
    return [_as_before(graph, result, sizes, rank) for result in results]


def _sdpa_backward(graph: Graph, op: SdpaBackwardOp, operand: Operand, _: Sequence[int]) -> list[Node]:
    tensors, rank, sizes = _operands_in_four(graph, op, operand)
    query, key, value, *others = tensors
    grad, out = (_four(graph, operand(x), rank) for x in (op.grad, op.out))
    lse = _four(graph, operand(op.lse), rank)
    call = _function(
        graph,
        torch.ops.flycc.sdpa_bwd.default,
        *(grad, query, key, value, out, lse, *others),
        **_attending(op, operand),
    )
    return [_as_before(graph, result, sizes, rank) for result in _results(graph, call, [0, 1, 2])]


def _attending(op: SdpaOp | SdpaBackwardOp, operand: Operand) -> dict[str, Any]:
    """The numbers that say how to attend, by their names."""
    numbers = {"scale": op.scale, "lower": op.lower, "upper": op.upper}
    named = {name: _argument(value, operand) for name, value in numbers.items() if value is not None}
    return named | {name: getattr(op, name).value for name in ("softcap", "dropout_p")}


def _topk(graph: Graph, op: TopkOp, operand: Operand, _: Sequence[int]) -> list[Node]:
    """The custom op works along the last dimension and keeps it."""
    x, k, dim = operand(op.x), constant(op.k), op.dim.value
    last = x.meta["val"].dim() - 1
    if dim != last:
        x = _function(graph, torch.ops.aten.transpose.int, x, dim, last)
    call = _function(
        graph,
        torch.ops.flycc.topk.default,
        x,
        operand(op.k) if k is None else k,
        largest=op.largest.value,
        sorted=op.sorted.value,
    )
    results = _results(graph, call, [0, 1])
    if dim != last:
        results = [_function(graph, torch.ops.aten.transpose.int, node, dim, last) for node in results]
    if not op.keep_dim.value:
        results = [_function(graph, torch.ops.aten.squeeze.dim, node, dim) for node in results]
    return results


_CALLS: dict[type, Callable[[Graph, Any, Operand, Sequence[int]], list[Node]]] = {
    GemmOp: _gemm,
    GroupedGemmOp: _grouped_gemm,
    MxDequantizeOp: _mx_dequantize,
    MxQuantizeOp: _mx_quantize,
    RmsNormOp: _rms_norm,
    RmsNormBackwardOp: _rms_norm_backward,
    ScaledGemmOp: _scaled_gemm,
    ScaledGroupedGemmOp: _scaled_grouped_gemm,
    SdpaOp: _sdpa,
    SdpaBackwardOp: _sdpa_backward,
    TopkOp: _topk,
}
_NAMES: dict[type, str] = {
    GemmOp: "flycc::gemm",
    GroupedGemmOp: "flycc::grouped_gemm",
    MxDequantizeOp: "flycc::mx_dequantize",
    MxQuantizeOp: "flycc::mx_quantize",
    RmsNormOp: "flycc::rms_norm_fwd",
    RmsNormBackwardOp: "flycc::rms_norm_bwd",
    ScaledGemmOp: "flycc::scaled_gemm",
    ScaledGroupedGemmOp: "flycc::scaled_grouped_gemm",
    SdpaOp: "flycc::sdpa_fwd",
    SdpaBackwardOp: "flycc::sdpa_bwd",
    TopkOp: "flycc::topk",
}
