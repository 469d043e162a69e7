"""FX out: a copy of the original graph in which each matched op is a call of its kernel's custom op.

The call of a match stands in front of the first of the nodes whose results the match computes, its roots. Each
root keeps its name, metadata and users and becomes what takes its result from the call. Nodes that nothing uses any
more are gone. Order, placeholders and outputs are the original's.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch_mlir.dialects import func
from torch_mlir.ir import BlockArgument, Module, Operation, OpView, UnitAttr, Value

from flycc.contracts import FlyccError, Problem, Reason
from flycc.dialects import ScaleGuardOp, SdpaBackwardOp, VersionedOp, problem
from flycc.dialects.base import Flycc
from flycc.dialects.sizes import known
from flycc.dialects.tensor import SHAPE_ATTR, SHAPES_ATTR
from flycc.frontend.attention_text import attention_text
from flycc.frontend.calls import (
    Operand,
    call,
    called,
    has_layout,
    is_new,
    is_row_major,
    layout_of,
    new_node,
    with_layout,
)
from flycc.frontend.families import FAMILY_OF_PROBLEM, family_of
from flycc.frontend.nodes import is_impure, mutates
from flycc.frontend.versions import form, guarded_form, versioned
from flycc.passes.epilogues import FUSED_ATTR, UNFUSED_ATTR
from flycc.passes.matching import CONSUMED_ATTR, REASON_ATTR, REASON_CODE_ATTR, RESULTS_ATTR
from flycc.passes.place_scales import PLACEMENT_ATTR
from flycc.passes.torch_ir import NODE_ATTR, nested_ops, node_name
from flycc.passes.versioning import FEEDING_ATTR

#: Why no kernel can serve a problem with tensors on a device, or None.
Serve = Callable[[Problem, torch.device], Reason | None]


class Inconsistent(FlyccError):
    """The matched module does not describe the FX graph it was imported from; `reason` says where."""


@dataclass(frozen=True, slots=True)
class Match:
    """A kernel call that replaced FX nodes, or with `reason` one that may not.

    `kernel` is the op called, `family` and `problem` (in one line) what it serves, `node` the one of the
    replaced nodes `consumed` that stands for all. `fused` are those of them that became a product's epilogue.
    `placement` says of a product of scaled operands where its scales are and why, `detail` what attention became, and
    `posed` is the problem itself.
    """

    kernel: str
    family: str
    problem: str
    node: str
    consumed: frozenset[str]
    reason: Reason | None = None
    fused: tuple[str, ...] = ()
    placement: str = ""
    posed: Problem | None = None
    detail: str = ""


def rebuild_graph(
    gm: GraphModule, module: Module, serve: Serve, number: int = 0
) -> tuple[GraphModule, list[Match]]:
    """The graph of `gm` with the matches of `module` as calls, and all matches, those refused here with reasons.

    `module` is `import_graph(gm)` after the passes. `serve` says why a kernel cannot serve a problem. `gm`
    itself is only read. `number` is what guards know the graph by. Raises Inconsistent.
    """
    graph = copy.deepcopy(gm.graph)
    rebuilding = _Rebuilding(list(gm.graph.nodes), list(graph.nodes))
    matches: list[Match] = []
    for op in nested_ops(module.operation):
        view = op.opview
        if op.parent is not None and isinstance(op.parent.opview, VersionedOp):
            continue  # served with the whole
        if isinstance(view, VersionedOp):
            matches.append(_rebuild_versioned(rebuilding, view, serve, number))
        elif isinstance(view, Flycc.Operation) and not isinstance(view, ScaleGuardOp):
            matches.append(_rebuild(rebuilding, view, serve))
        elif isinstance(view, func.ReturnOp):
            rebuilding.check_outputs(op)
    rebuilding.erase_dead(graph)
    graph.lint()
    if rebuilding.bodies:
        # With a dict for a root, what the graph's get_attr nodes name comes from there.
        targets = {str(node.target) for node in graph.find_nodes(op="get_attr")} - rebuilding.bodies.keys()
        attributes = {target: operator.attrgetter(target)(gm) for target in targets}
        rebuilt = GraphModule({**attributes, **rebuilding.bodies}, graph)
    else:
        rebuilt = GraphModule(gm, graph)
    rebuilt.meta = dict(gm.meta)
    return rebuilt, matches


def _rebuild(rebuilding: _Rebuilding, op: OpView, serve: Serve) -> Match:
    """Replaces what `op` matches by its call, if it may and a kernel serves it."""
    operation = op.operation
    consumed = _names(operation, CONSUMED_ATTR)
    face, posed = rebuilding.face(operation, consumed), problem(op)
    reason = rebuilding.refusal(op, consumed) or serve(posed, rebuilding.device(operation))
    if reason is None:
        rebuilding.replace(op)
    family, attributes = FAMILY_OF_PROBLEM[type(posed)], operation.attributes
    fused = tuple(name.value for name in attributes[FUSED_ATTR]) if FUSED_ATTR in attributes else ()
    placement = _placement(operation)
    text = attention_text(op)
    return Match(called(op), family, str(posed), face, consumed, reason, fused, placement, posed, text)


def _rebuild_versioned(rebuilding: _Rebuilding, op: VersionedOp, serve: Serve, number: int) -> Match:
    """Replaces what is written by both forms of it, or by that form alone that a kernel serves."""
    operation = op.operation
    guarded, written = form(op.guarded), form(op.written)
    consumed = _names(operation, CONSUMED_ATTR)
    face, posed = rebuilding.face(operation, consumed), problem(guarded)
    consumed |= _names(operation, FEEDING_ATTR)
    device = rebuilding.device(operation)
    reason = rebuilding.refusal(op, consumed) or serve(posed, device)
    if reason is not None:
        return replace(_rebuild(rebuilding, written, serve), placement=f"as written: {reason.sentence}")
    rebuilding.replace_versioned(op, consumed, f"{number}.{face}", serve(problem(written), device) is None)
    family = FAMILY_OF_PROBLEM[type(posed)]
    placement = _placement(operation)
    return Match(called(guarded), family, str(posed), face, consumed, placement=placement)


def _names(op: Operation, attribute: str) -> frozenset[str]:
    """The FX nodes that an attribute lists."""
    return frozenset(name.value for name in op.attributes[attribute])


def _placement(op: Operation) -> str:
    return op.attributes[PLACEMENT_ATTR].value if PLACEMENT_ATTR in op.attributes else ""


def keep_apart(module: Module, names: Collection[str]) -> None:
    """Says of the ops of FX nodes `names` that they are not to be fused."""
    for op in nested_ops(module.operation) if names else ():
        if node_name(op) in names:
            op.attributes[UNFUSED_ATTR] = UnitAttr.get(module.context)


def pass_refusals(module: Module) -> dict[str, Reason]:
    """Why passes left ops as they are, by the name of the FX node."""
    return {
        op.attributes[NODE_ATTR].value: Reason(
            op.attributes[REASON_CODE_ATTR].value, op.attributes[REASON_ATTR].value
        )
        for op in nested_ops(module.operation)
        if REASON_CODE_ATTR in op.attributes
    }


class _Rebuilding:
    """The copied graph, and how names and MLIR values find their nodes in it."""

    def __init__(self, original: list[Node], copied: list[Node]) -> None:
        self._nodes = {old.name: new for old, new in zip(original, copied, strict=True)}
        self._position = {node: index for index, node in enumerate(copied)}
        self._placeholders = [node for node in copied if node.op == "placeholder"]
        self._writers = [node for node in copied if mutates(node)]
        self._results: dict[tuple[Node, int], list[Node]] = {}
        #: Graph modules that the graph refers to by these names.
        self.bodies: dict[str, GraphModule] = {}
        for node in copied:
            if node.target is operator.getitem and isinstance(node.args[0], Node):
                self._results.setdefault((node.args[0], node.args[1]), []).append(node)

    def face(self, op: Operation, consumed: frozenset[str]) -> str:
        """The name of the node that stands for a match: the one whose target says what it computes, or the root."""
        named = [name for name in consumed if family_of(self._node(name)) is not None]
        first = min(named, key=lambda name: self._position[self._node(name)], default=None)
        return first or next(root.name for roots in self._roots(op) for root in roots)

    def refusal(self, op: OpView, consumed: frozenset[str]) -> Reason | None:
        """Why the match `op` may not replace its roots, or None."""
        grouped = self._roots(op.operation)
        layout = self._layout(op)
        for group, like in zip(grouped, self._likes(op), strict=True):
            for root in group:
                val = root.meta.get("val")
                if not isinstance(val, torch.Tensor) or not has_layout(op, val, layout, like):
                    return Reason(
                        "rebuild.layout",
                        "kernels write row-major results, "
                        f"but the graph relies on {root.name} having {_layout(val)}",
                    )
        roots = [root for group in grouped for root in group]
        involved = [self._node(name) for name in consumed]
        devices = {str(v.device) for node in involved if isinstance(v := node.meta.get("val"), torch.Tensor)}
        if len(devices) > 1:
            return Reason("rebuild.device", f"the match spans the devices {', '.join(sorted(devices))}")
        first = min([*involved, *roots], key=self._position.__getitem__)
        last = max(roots, key=self._position.__getitem__)
        for writer in self._writers:
            if self._position[first] < self._position[writer] < self._position[last]:
                return Reason(
                    "rebuild.mutation",
                    f"{writer.name} may write to memory between {first.name} and {last.name}",
                )
        return None

    def device(self, op: Operation) -> torch.device:
        """Where the tensors of the match `op` are."""
        return next(root.meta["val"].device for roots in self._roots(op) for root in roots)

    def replace(self, op: OpView) -> None:
        """Puts the call of the match `op` in front of its roots, which become its results."""
        self._replace(op, lambda graph, operand: call(graph, op, operand, self._layout(op)))

    def replace_versioned(
        self, op: VersionedOp, consumed: frozenset[str], product: str, written: bool
    ) -> None:
        """Puts both forms of `op` in front of its root, or without a guard the guarded one.

        `written` says that a kernel serves what is written. `product` names the match where its guard is counted.
        """
        [[root]] = self._roots(op.operation)

        def forms(graph: Graph, operand: Operand) -> list[Node]:
            if op.guard is None:
                return [guarded_form(op, graph, operand)]
            inner = [self._node(name) for name in consumed]
            taken, bodies = versioned(op, root, operand, inner, written, product)
            self.bodies |= bodies
            return [taken]

        self._replace(op, forms)

    def _replace(self, op: OpView, make: Callable[[Graph, Operand], list[Node]]) -> None:
        """Puts what `make` inserts, given where operands are found, in front of the roots of `op`."""
        roots = self._roots(op.operation)
        first = min((root for group in roots for root in group), key=self._position.__getitem__)

        def operand(value: Value | None) -> Node | None:
            if value is None:
                return None
            if is_new(value):
                with first.graph.inserting_before(first):
                    return new_node(first.graph, value, operand)
            node = self._values(value)[0]
            if self._position[node] >= self._position[first]:
                raise Inconsistent(Reason("rebuild.order", f"{first.name} would use {node.name} too early"))
            return node

        with first.graph.inserting_before(first):
            results = make(first.graph, operand)
        for group, result in zip(roots, results, strict=True):
            for root in group:
                if root.meta["val"].dim() != result.meta["val"].dim():
                    # Row-major both: see `refusal`. Only views that set all sizes read it: see `matching.replace`.
                    root.meta["val"] = result.meta["val"]
                with first.graph.inserting_before(root):
                    node = with_layout(first.graph, result, root.meta["val"])
                root.target, root.args, root.kwargs = node.target, node.args, node.kwargs
                if node is not result:
                    first.graph.erase_node(node)
            if not result.users:
                first.graph.erase_node(result)

    def check_outputs(self, op: Operation) -> None:
        """Tensor results of the function must still be the nodes that the graph returns."""
        [output] = (node for node in self._nodes.values() if node.op == "output")
        returned: Any = output.args[0]
        returned = returned if isinstance(returned, list | tuple) else (returned,)
        for index, (node, value) in enumerate(zip(returned, op.operands, strict=True)):
            tensor = isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)
            if tensor and node not in self._values(value):
                raise Inconsistent(Reason("rebuild.output", f"output {index} is no longer {node.name}"))

    def erase_dead(self, graph: Graph) -> None:
        """Drops what nothing uses any more: copies that views were looked through, too."""
        for node in reversed(graph.nodes):
            if not node.users and not is_impure(node):
                graph.erase_node(node)

    def _layout(self, op: OpView) -> list[int]:
        """The order of the dimensions in memory that the graph wants the first result of `op` to have."""
        [first, *_] = self._roots(op.operation)
        val = first[0].meta.get("val") if first else None
        rank = len(known(op.results[0]).dims)
        if isinstance(val, torch.Tensor) and val.dim() == rank and not is_row_major(val):
            return layout_of(val)
        return list(range(rank))

    def _likes(self, op: OpView) -> list[torch.Tensor | None]:
        """For each result of `op` the value of the operand that it is a gradient of, laid out like it."""
        if isinstance(op, SdpaBackwardOp):
            operands = (op.query, op.key, op.value)
            return [None if is_new(x) else self._values(x)[0].meta.get("val") for x in operands]
        return [None] * len(op.operation.results)

    def _roots(self, op: Operation) -> list[list[Node]]:
        """For each result of the match `op` the nodes whose value it computes; one result at least has some."""
        if RESULTS_ATTR not in op.attributes:
            return [[self._node(op.attributes[NODE_ATTR].value)]]
        return [
            [node for reference in references for node in self._referenced(reference.value)]
            for references in op.attributes[RESULTS_ATTR]
        ]

    def _referenced(self, reference: str) -> list[Node]:
        """The nodes of a value of the FX graph: see `RESULTS_ATTR`."""
        name, separator, index = reference.partition("#")
        node = self._node(name)
        return self._results.get((node, int(index)), []) if separator else [node]

    def _node(self, name: str) -> Node:
        if name not in self._nodes:
            raise Inconsistent(Reason("rebuild.provenance", f"the graph has no node {name}"))
        return self._nodes[name]

    def _values(self, value: Value) -> list[Node]:
        """The FX nodes whose value `value` is; one at least."""
        if isinstance(value, BlockArgument):
            return [self._placeholders[value.arg_number]]
        owner = value.owner
        if isinstance(owner.opview, Flycc.Operation):
            nodes = self._roots(owner)[value.result_number]
        else:
            producer = self._node(owner.attributes[NODE_ATTR].value)
            is_number = str(value.type) in ("!torch.int", "!torch.float")
            if SHAPES_ATTR in owner.attributes:
                nodes = self._results.get((producer, value.result_number), [])
            elif SHAPE_ATTR in owner.attributes or is_number:
                nodes = [producer]
            else:
                raise Inconsistent(
                    Reason("rebuild.provenance", f"{owner.name} of {producer.name} is not its result")
                )
        if not nodes:
            name = owner.attributes[NODE_ATTR].value if NODE_ATTR in owner.attributes else owner.name
            raise Inconsistent(
                Reason("rebuild.provenance", f"nothing takes result {value.result_number} of {name}")
            )
        return nodes


def _layout(val: Any) -> str:
    if not isinstance(val, torch.Tensor):
        return type(val).__name__
    return f"sizes {list(val.shape)} with strides {list(val.stride())}"
