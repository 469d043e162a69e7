"""Attention that a Dynamo graph has in primitive calls and that autograd differentiates, kept as `flycc::sdpa`.

In an ATen graph that has a backward pass it would be too late: the weights are kept for that. What the calls around a
softmax compute is found by the pass that finds it in ATen graphs (`passes/written_attention.py`), which is given a
trace of them: from tensors that something else makes to the product of weights and values.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, make_fx
from torch.fx.node import map_arg
from torch.nn import functional
from torch_mlir.ir import BlockArgument, Context, Module, Value

from flycc import dialects
from flycc.contracts import FlyccError, Reason
from flycc.dialects import SdpaOp
from flycc.dialects.constants import constant
from flycc.frontend import composite_ops
from flycc.frontend.blind_queries import with_moderate_scores
from flycc.frontend.calls import is_new, new_node
from flycc.frontend.fakes import difference, evaluate, example
from flycc.frontend.importer import import_graph
from flycc.frontend.lockstep import called, switches_mode, writes
from flycc.frontend.model_numbers import PRODUCTS, known_number
from flycc.frontend.nodes import changes_dispatch, reached, target_name
from flycc.frontend.rebuild import pass_refusals
from flycc.passes import run_pipeline
from flycc.passes.matching import CONSUMED_ATTR, RESULTS_ATTR
from flycc.passes.torch_ir import NODE_ATTR, nested_ops
from flycc.passes.written_attention import SOFTMAXES

#: Under this name in a node's "custom" metadata, which AOTAutograd hands on, is the reason why a softmax stays.
_REASON = "flycc.written_attention"
#: What PyTorch's own attention becomes in ATen graphs, as far as there may be kernels for it.
_PARTS = (*SOFTMAXES, "aten.bmm", "aten.mm")
_SOFTMAXES = (functional.softmax, torch.softmax, "softmax")
_HOMES = (torch, operator, torch.functional, functional, builtins)
#: Functions and methods of PyTorch and Python that only compute, by their names.
_PURE = frozenset(
    """
    add sub mul truediv div neg matmul bmm baddbmm einsum softmax tanh dropout where masked_fill tril triu
    arange full ones zeros ones_like zeros_like full_like new_ones new_zeros new_full
    ge gt le lt eq ne and_ or_ invert logical_not logical_and logical_or bitwise_and bitwise_or bitwise_not
    getitem view reshape transpose permute swapaxes expand expand_as unsqueeze squeeze flatten unflatten contiguous
    clone cat cumsum diff t to type type_as float half bfloat16 bool long size dim getattr repeat_interleave
    """.split()  # noqa: SIM905
)
#: Those that write to their first argument, and what computes the same elsewhere.
_IN_PLACE: dict[Any, Any] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    **{f"{name}_": name for name in ("add", "sub", "mul", "div", "masked_fill")},
}
#: Those whose results share no memory with anything.
_FRESH = frozenset(
    {
        "add",
        "sub",
        "mul",
        "truediv",
        "div",
        "masked_fill",
        "where",
        "tanh",
        "matmul",
        "bmm",
        "baddbmm",
        "einsum",
    }
)
_SPLITS = ("view", "reshape", "unflatten", torch.reshape)
_TURNS = ("transpose", torch.transpose, "permute", torch.permute)
_REORDERS = ("contiguous", "reshape", torch.reshape, "flatten", torch.flatten)


class _Refused(FlyccError):
    """What looks like attention stays; `reason` says why."""


def keep_written_attention(gm: GraphModule) -> None:
    """Makes attention in `gm`, and in the graphs it holds, `flycc::sdpa` where it needs gradients.

    `gm` is the graph that Dynamo hands to a backend; it is edited. Results are those of float32 scores: the program's
    roundings of scores to 16 bits are not made. Dropout of weights draws a seed from PyTorch's generator instead of a
    number for each weight. Why others stay is handed on to ATen graphs: see `written_refusals`.
    """
    if changes_dispatch(gm):
        return
    for module in [module for module in gm.modules() if isinstance(module, GraphModule)]:
        softmaxes = [
            node for node in module.graph.nodes if called(node) in _SOFTMAXES and _needs_gradient(node)
        ]
        for softmax in softmaxes:
            new: list[Node] = []
            try:
                _keep(softmax, new)
            except FlyccError as refused:
                _stays(softmax, refused.reason, new)
            except Exception as error:  # a fault of ours must not become the model's
                text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                _stays(softmax, Reason("sdpa.internal", f"a fault in flycc: {text}"), new)
        if softmaxes:
            module.graph.lint()
            module.recompile()


def written_refusals(gm: GraphModule) -> dict[str, Reason]:
    """Why the softmaxes of an ATen graph, and the products beside them that are of the same call, were not kept as
    attention before autograd, by the names of nodes."""
    found = {
        node.name: (node.meta.get("custom") or {}).get(_REASON)
        for node in gm.graph.nodes
        if target_name(node).removesuffix(".default") in _PARTS
    }
    return {name: Reason(*reason) for name, reason in found.items() if reason is not None}


def _stays(softmax: Node, reason: Reason, new: Sequence[Node]) -> None:
    for node in reversed(new):
        node.graph.erase_node(node)
    note_refusal(softmax, reason)


def note_refusal(node: Node, reason: Reason) -> None:
    """Has `written_refusals` give `reason` for the softmax and the products that `node` becomes."""
    node.meta["custom"] = {**(node.meta.get("custom") or {}), **refusal_note(reason)}


def refusal_note(reason: Reason) -> dict[str, tuple[str, str]]:
    """What `written_refusals` looks for in the "custom" metadata of nodes."""
    return {_REASON: (reason.code, reason.sentence)}


def _needs_gradient(node: Node) -> bool:
    value = example(node)
    return type(value) is FakeTensor and value.requires_grad


@dataclass
class _Region:
    """Calls that end with the product of weights and values, in the order of the graph, and what they are given."""

    product: Node
    calls: list[Node]
    inputs: list[Node]
    dropout: Node | None


@dataclass
class _Trace:
    """The ATen graph of a region, the calls of the region by names of nodes that hold what they give, and the module
    that lives as long as its ops are looked at."""

    graph: GraphModule
    named: dict[str, Node]
    module: Module


def _keep(softmax: Node, new: list[Node]) -> None:
    path = _path(softmax)
    if path is None:
        return
    region = _region(path)
    trace = _traced(region)
    op = _matched(trace, softmax)
    if op is None:
        return
    _Splice(region, trace, op, new).run()


def _path(softmax: Node) -> list[Node] | None:
    """The calls from `softmax` to what the product of its weights is seen as; None where there is none."""
    path = [softmax]
    while called(path[-1]) not in PRODUCTS:
        users = [user for user in path[-1].users if isinstance(example(user), torch.Tensor)]
        steps = [user for user in users if _is_pure(user)]
        if not steps or len(path) > 12:
            return None
        if len(path[-1].users) > 1:
            to_product = any(called(step) in PRODUCTS for step in steps)
            if to_product:
                raise _Refused(Reason("sdpa.weights", f"the weights {path[-1]} are used more than once"))
            return None
        path.append(steps[0])
    behind = list(path[-1].users)
    if len(behind) == 1 and called(behind[0]) in _SPLITS and example(path[-1]).dim() == 3:
        path.append(behind[0])  # batch and heads are told apart again
    return path


def _region(path: Sequence[Node]) -> _Region:
    """All pure calls that the last of `path` depends on through pure calls."""
    product = path[-1]
    dropouts = [node for node in path if called(node) is functional.dropout and _dropout(node)]
    if len(dropouts) > 1:
        raise _Refused(Reason("sdpa.dropout", "its weights go through dropout more than once"))
    found, waiting, inputs = {product}, [product], set[Node]()
    while waiting:
        for node in waiting.pop().all_input_nodes:
            inside = (
                _is_pure(node)
                and not _of_others(node)
                and (called(node) is not functional.dropout or node in path or not _dropout(node))
            )
            if not inside:
                inputs.add(node)
            elif node not in found:
                found.add(node)
                waiting.append(node)
    for node in inputs:
        value = example(node)
        if not isinstance(value, torch.SymInt) and type(value) is not FakeTensor:
            raise _Refused(
                Reason("sdpa.form", f"{node} is {type(value).__name__}, no tensor of PyTorch's own type")
            )
    return _Region(product, sorted(found), sorted(inputs), dropouts[0] if dropouts else None)


def _of_others(node: Node) -> bool:
    """Whether `node` takes one of several tensors that something else makes."""
    source = node.args[0] if node.target is operator.getitem else None
    return isinstance(source, Node) and isinstance(example(source), tuple | list) and not _is_pure(source)


def _is_pure(node: Node) -> bool:
    """Whether `node` only computes, as one of `_PURE` or as good as one."""
    target = called(node)
    if target in _IN_PLACE:
        first = node.args[0]
        return (
            isinstance(first, Node) and len(first.users) == 1 and _is_pure(first) and _name(first) in _FRESH
        )
    if target is functional.dropout:  # any True among its arguments counts as inplace with `writes`
        return not node.kwargs.get("inplace", len(node.args) > 3 and node.args[3])
    if writes(node) or _name(node) not in _PURE:
        return False
    return node.op == "call_method" or any(getattr(home, _name(node), None) is target for home in _HOMES)


def _name(node: Node) -> str:
    target = called(node)
    target = _IN_PLACE.get(target, target)
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _dropout(node: Node) -> float:
    """The part of elements that a call of dropout drops."""

    def read(input: Any, p: Any = 0.5, training: Any = True, inplace: Any = False) -> float:
        number = known_number(p)
        if not isinstance(number, int | float) or not isinstance(training, bool):
            raise _Refused(Reason("sdpa.dropout", f"p or training of {node} is known only when it runs"))
        return float(number) if training else 0.0

    return read(*node.args, **node.kwargs)


def _traced(region: _Region) -> _Trace:
    named: dict[str, Node] = {}

    def run(*inputs: Any) -> Any:
        values: dict[Node, Any] = dict(zip(region.inputs, inputs, strict=True))
        mode = get_proxy_mode()
        assert mode is not None
        for node in region.calls:
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            target = called(node)
            target = _IN_PLACE.get(target, target)
            if node is region.dropout:
                values[node] = args[0]
                continue
            values[node] = (
                getattr(args[0], target)(*args[1:], **kwargs)
                if isinstance(target, str)
                else target(*args, **kwargs)
            )
            if isinstance(values[node], torch.Tensor):
                slot = get_proxy_slot(values[node], mode.tracer, None)
                if slot is not None:
                    named.setdefault(slot.proxy.node.name, node)
        return values[region.product]

    fakes = [example(node) for node in region.inputs]
    mode = example(region.product).fake_mode
    with mode, torch.no_grad():
        graph = make_fx(run)(*fakes)
    graph.graph.eliminate_dead_code()
    return _Trace(graph, named, import_graph(graph, dialects.load(Context())))


def _matched(trace: _Trace, softmax: Node) -> SdpaOp | None:
    """The attention that `softmax` is part of in a trace. Raises _Refused with the reason of the pass."""
    run_pipeline(trace.module, "match-sdpa")
    for name, reason in pass_refusals(trace.module).items():
        if trace.named.get(name) is softmax:
            raise _Refused(reason)
    for op in nested_ops(trace.module.operation):
        if isinstance(op.opview, SdpaOp):
            consumed = {name.value for name in op.attributes[CONSUMED_ATTR]}
            if any(trace.named.get(name) is softmax for name in consumed):
                return op.opview
    return None


class _Splice:
    """Puts `flycc::sdpa` for `op` in the place of a region's product; `new` are the nodes that it makes."""

    def __init__(self, region: _Region, trace: _Trace, op: SdpaOp, new: list[Node]) -> None:
        self._region, self._trace, self._op, self._new = region, trace, op, new
        self._graph = region.product.graph
        self._traced = {node.name: node for node in trace.graph.graph.nodes}
        self._placeholders = dict(
            zip(trace.graph.graph.find_nodes(op="placeholder"), region.inputs, strict=True)
        )
        self._emitted: dict[Node, Node] = {}
        self._shown: list[Node] = []

    def run(self) -> None:
        """Raises _Refused before anything but new nodes has changed."""
        op, region = self._op, self._region
        operands = [self._operand(value) for value in (op.query, op.key, op.value)]
        mask = self._operand(op.mask)
        if mask is not None and example(mask).requires_grad:
            raise _Refused(Reason("sdpa.mask", f"its mask needs a gradient ({mask}), which no kernel makes"))
        self._check_writes([node for node in (*operands, mask) if node is not None])
        lower, upper = (self._number(value) for value in (op.lower, op.upper))
        causal = upper == 0 and lower is None and mask is None
        query, key, _ = map(example, operands)
        if mask is not None and example(mask).dtype != torch.bool:
            operands[0], mask = self._moderate(operands, mask, lower, upper)
        grouped = query.dim() > 2 and query.shape[-3] != key.shape[-3]
        dropout_p = _dropout(region.dropout) if region.dropout is not None else 0.0
        seed = self._seed(query) if dropout_p else None
        scale, softcap = constant(op.scale), op.softcap.value
        band = (lower, None if causal else upper)
        options = (
            True,
            mask,
            causal,
            scale,
            bool(grouped),
            dropout_p,
            seed,
            None,
            None,
            None,
            *band,
            softcap,
        )
        whole = self._call(composite_ops.sdpa._opoverload, *operands, *options)
        root = op.operation.attributes[RESULTS_ATTR][0][0].value
        self._emitted[self._traced[root]] = self._call(operator.getitem, whole, 0)
        [output] = self._trace.graph.graph.find_nodes(op="output")
        after = reached([self._traced[root]])
        result = self._emit(output.args[0], after)
        self._replace(self._laid_out(result))
        for node in self._shown:
            node.meta.pop("val", None)

    def _replace(self, result: Node) -> None:
        product = self._region.product
        product.replace_all_uses_with(result)
        for node in reversed(self._region.calls):
            if not node.users:
                self._graph.erase_node(node)

    def _laid_out(self, result: Node) -> Node:
        """`result` with the strides of the product, if anything may rely on these."""
        product = self._region.product
        seen = difference(example(product), example(result))
        if seen is None or all(_reorders(user) for user in product.users):
            return result
        strides = example(product).stride()
        order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
        back = [order.index(axis) for axis in range(len(order))]
        outermost_first = self._call(torch.ops.aten.permute.default, result, order)
        copy = self._call(
            torch.ops.aten.clone.default, outermost_first, memory_format=torch.contiguous_format
        )
        result = self._call(torch.ops.aten.permute.default, copy, back)
        seen = difference(example(product), example(result))
        if seen is not None:
            raise _Refused(Reason("sdpa.results", f"{product} would have {seen}"))
        return result

    def _check_writes(self, operands: Sequence[Node]) -> None:
        """Nothing may change what attention reads, or what autograd records, between its first call and its last."""
        readers = [user for node in operands for user in node.users if user in self._region.calls]
        node = min(readers, default=self._region.product)
        while node is not self._region.product:
            if writes(node) and node not in self._region.calls:
                raise _Refused(Reason("sdpa.mutation", f"{node} may write to memory that attention reads"))
            if switches_mode(node):
                raise _Refused(
                    Reason("sdpa.mode", f"{node}, between its calls, may change what autograd records")
                )
            node = node.next

    def _operand(self, value: Value | None) -> Any:
        if value is None:
            return None
        if is_new(value):
            return self._made(lambda: new_node(self._graph, value, self._with_val))
        if isinstance(value, BlockArgument):
            return self._region.inputs[value.arg_number]
        return self._emit(self._traced[value.owner.attributes[NODE_ATTR].value])

    def _with_val(self, value: Value | None) -> Any:
        """The operand with its fake value where new nodes look for it."""
        node = self._operand(value)
        if isinstance(node, Node):
            node.meta["val"] = example(node)
            self._shown.append(node)
        return node

    def _number(self, value: Value | None) -> Any:
        number = None if value is None else constant(value)
        return self._operand(value) if number is None else number

    def _moderate(self, operands: Sequence[Node], mask: Node, lower: Any, upper: Any) -> tuple[Node, Node]:
        """Query and mask with which queries that see nothing have gradients: see `with_moderate_scores`."""
        query, key, _ = operands
        both = self._call(with_moderate_scores, query, key, mask, lower, upper)
        return self._call(operator.getitem, both, 0), self._call(operator.getitem, both, 1)

    def _seed(self, like: FakeTensor) -> Node:
        return self._call(torch.randint, 1 << 62, (2,), dtype=torch.int64, device=like.device)

    def _emit(self, traced: Node, after: set[Node] | None = None) -> Node:
        """The node that gives what `traced` gives; a new call where the region has none, or for what is `after`."""
        if traced in self._emitted:
            return self._emitted[traced]
        if traced in self._placeholders:
            return self._placeholders[traced]
        if traced.name in self._trace.named and not (after and traced in after):
            return self._trace.named[traced.name]
        args, kwargs = map_arg((traced.args, traced.kwargs), lambda node: self._emit(node, after))
        self._emitted[traced] = self._call(traced.target, *args, **kwargs)
        return self._emitted[traced]

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        return self._made(lambda: self._graph.call_function(target, args, kwargs))

    def _made(self, make: Callable[[], Node]) -> Node:
        before = set(self._graph.nodes)
        with self._graph.inserting_before(self._region.product):
            node = make()
        made = [each for each in self._graph.nodes if each not in before]
        self._new += [each for each in made if each not in self._new]
        evaluate(made, self._region.product)
        return node


def _reorders(user: Node) -> bool:
    """Whether `user` and what follows copies into an order of its own, whatever the order of what it is given."""
    if called(user) in _REORDERS:
        return True
    return (
        called(user) in _TURNS
        and bool(user.users)
        and all(called(next_) in _REORDERS for next_ in user.users)
    )
