"""A result in two forms, as `torch.cond`: one body for where its guard holds, one for what the graph says."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from dataclasses import astuple, dataclass, field

import torch
from torch.fx import Graph, GraphModule, Node
from torch_mlir.ir import OpView, Region, Value

from flycc.dialects import ScaleGuardOp, VersionedOp, yielded
from flycc.dialects.base import Flycc
from flycc.dialects.sizes import known
from flycc.frontend.calls import call, is_new, new_node
from flycc.passes.torch_ir import producer

#: The node in the outer graph whose value an MLIR value is.
Outer = Callable[[Value], Node]


def form(region: Region) -> OpView:
    """The op of the dialect that a region of a `flycc.versioned` computes its result with, the last in it."""
    ops = [op.operation.opview for op in region.blocks[0].operations]
    return next(op for op in reversed(ops[:-1]) if isinstance(op, Flycc.Operation))


def guarded_form(op: VersionedOp, graph: Graph, outer: Outer) -> Node:
    """Inserts the guarded form of `op` at the insert point of `graph`, and returns the node of the result."""
    return _emit(yielded(op.guarded), form(op.guarded), graph, outer)


def versioned(
    op: VersionedOp, root: Node, outer: Outer, inner: Collection[Node], written: bool, product: str
) -> tuple[Node, dict[str, GraphModule]]:
    """Inserts a `torch.cond` of the two forms of `op` in front of `root`, the node that it stands for.

    `inner` are the nodes, `root` among them, that make the form that is written: the body for that has copies of them,
    or, if a kernel serves it (`written`), the kernel's call in the place of the last ones. `product` is what the
    guard's verdicts are counted by. Returns the node of the result, and the bodies by the names under which the module
    of the graph must have them.
    """
    graph = root.graph
    yes, no = _Body(), _Body(frozenset(inner))
    yes.graph.output((guarded_form(op, yes.graph, lambda value: yes.node(outer(value))),))
    result = (
        _emit(yielded(op.written), form(op.written), no.graph, lambda value: no.node(outer(value)))
        if written
        else no.node(root)
    )
    no.graph.output((result,))
    operands = list(dict.fromkeys([*yes.captured, *no.captured]))
    bodies = {
        f"{root.name}_{name}": body.module(operands) for name, body in (("guarded", yes), ("written", no))
    }
    assert op.guard is not None, "without one there is nothing to choose by"
    guard = op.guard.owner.opview
    with graph.inserting_before(root):
        predicate = _guard(guard, graph, outer, product)
        branches = [graph.create_node("get_attr", name) for name in bodies]
        chosen = graph.call_function(torch.ops.higher_order.cond, (predicate, *branches, tuple(operands)))
        chosen.meta["val"] = (result.meta["val"],)
        taken = graph.call_function(operator.getitem, (chosen, 0))
        taken.meta["val"] = result.meta["val"]
    return taken, bodies


def _emit(value: Value, made: OpView, graph: Graph, outer: Outer) -> Node:
    """Inserts what `value` is computed by: the op `made`, new ops around it, and nodes of the outer graph."""

    def node(value: Value | None) -> Node | None:
        if value is None:
            return None
        if is_new(value):
            return new_node(graph, value, node)
        op = producer(value)
        if op is not None and op == made.operation:
            return call(graph, made, node, list(range(len(known(value).dims))))[0]
        return outer(value)

    found = node(value)
    assert found is not None
    return found


#: Operators that only see a tensor's bytes in another way, where both types are of one byte.
_SAME_BYTES = (torch.ops.aten.view.dtype, torch.ops.aten.detach.default, torch.ops.aten.alias.default)
_BYTES = (torch.uint8, torch.float8_e8m0fnu)


@dataclass
class _Body:
    """The graph of one body. `copied` are nodes of the outer graph that it has copies of; it captures all others."""

    copied: frozenset[Node] = frozenset()
    graph: Graph = field(default_factory=Graph)
    captured: dict[Node, Node] = field(default_factory=dict)
    _copies: dict[Node, Node] = field(default_factory=dict)

    def node(self, outer: Node) -> Node:
        """The node of this graph for one of the outer graph, and all that it needs."""
        if outer not in self.copied:
            return self._placeholder(outer)
        if outer not in self._copies:
            self._copies[outer] = self.graph.node_copy(outer, self.node)
        return self._copies[outer]

    def module(self, operands: list[Node]) -> GraphModule:
        """The body as a function of `operands`, values of nodes of the outer graph."""
        for operand in reversed(operands):
            placeholder, first = self._placeholder(operand), next(iter(self.graph.nodes))
            if placeholder is not first:
                first.prepend(placeholder)
        self.graph.lint()
        return GraphModule({}, self.graph)

    def _placeholder(self, outer: Node) -> Node:
        if outer not in self.captured:
            first = next(iter(self.graph.nodes), None)
            with self.graph.inserting_before(first):
                placeholder = self.graph.placeholder(outer.name)
            placeholder.meta = dict(outer.meta)
            self.captured[outer] = placeholder
        return self.captured[outer]


def _guard(guard: ScaleGuardOp, graph: Graph, outer: Outer, product: str) -> Node:
    """Whether `guard` holds: a bool tensor."""
    ranges = [None if scales is None else _range(outer(scales), graph) for scales in (guard.a, guard.b)]
    bounds = list(astuple(guard.bounds))
    blocks = list(guard.blocks)
    node = graph.call_function(torch.ops.flycc.scale_guard.default, (*ranges, bounds, blocks, product))
    node.meta["val"] = torch.ops.flycc.scale_guard.default(
        *(None if each is None else each.meta["val"] for each in ranges), bounds, blocks, product
    )
    return node


def _range(scales: Node, graph: Graph) -> Node:
    """The range of E8M0 scales: what the quantiser that wrote them has found, or what is asked now.

    Scales that come into the graph stay scales: they may be a weight's, whose range the guard keeps. So do bytes that
    the graph views as scales, as the view is another tensor at each call.
    """
    seen = scales
    while seen.target in _SAME_BYTES and seen.all_input_nodes[0].meta["val"].dtype in _BYTES:
        [seen] = seen.all_input_nodes
    if seen.op in ("placeholder", "get_attr"):
        return seen
    if scales.meta["val"].dtype == torch.int32:
        return scales
    source = scales.args[0] if scales.target is operator.getitem else None
    target = source.target if isinstance(source, Node) else None
    if target is torch.ops.flycc.mx_weight.default:
        return scales
    if isinstance(source, Node) and target is torch.ops.flycc.mx_quantize.default:
        node = graph.call_function(operator.getitem, (source, 2))
        node.meta["val"] = source.meta["val"][2]
    else:
        node = graph.call_function(torch.ops.flycc.scale_range.default, (scales,))
        node.meta["val"] = torch.ops.flycc.scale_range.default(scales.meta["val"])
    return node
