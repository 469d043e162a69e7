"""FX out: a copy of the original graph in which each matched op is a call of its kernel's custom op.

Only two kinds of node differ from the original: the root of a match (the FX node whose result the match
computes) keeps its name, metadata and users but calls the kernel with the match's operands, and nodes that
the match consumed are gone once nothing uses them. Order, placeholders and outputs are the original's.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import make_contiguous_strides_for
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch_mlir.dialects import func
from torch_mlir.ir import BlockArgument, Module, Operation, Value

from flycc.contracts import FlyccError, GemmProblem, Reason
from flycc.dialects import GemmOp, problem
from flycc.dialects.tensor import SHAPE_ATTR
from flycc.frontend.importer import SHAPES_ATTR
from flycc.frontend.nodes import is_impure, mutates
from flycc.passes.match_gemm import CONSUMED_ATTR, REASON_ATTR, REASON_CODE_ATTR
from flycc.passes.torch_ir import NODE_ATTR, nested_ops

#: Why no kernel can serve a problem with tensors on a device, or None.
Serve = Callable[[GemmProblem, torch.device], Reason | None]


class Inconsistent(FlyccError):
    """The matched module does not describe the FX graph it was imported from; `reason` says where."""


@dataclass(frozen=True, slots=True)
class Match:
    """A kernel call that replaced FX nodes: the op called, its problem in one line, the nodes replaced."""

    kernel: str
    problem: str
    consumed: frozenset[str]


def rebuild_graph(
    gm: GraphModule, module: Module, serve: Serve
) -> tuple[GraphModule, list[Match], dict[str, Reason]]:
    """The graph of `gm` with the matches of `module` as calls, the matches made, and those refused here.

    `module` is `import_graph(gm)` after the passes. `serve` says why a kernel cannot serve a problem. A
    refusal is found under each consumed node's name. `gm` itself is only read. Raises Inconsistent.
    """
    graph = copy.deepcopy(gm.graph)
    rebuilding = _Rebuilding(list(gm.graph.nodes), list(graph.nodes))
    matches: list[Match] = []
    refusals: dict[str, Reason] = {}
    for op in nested_ops(module.operation):
        if isinstance(op.opview, GemmOp):
            consumed = frozenset(name.value for name in op.attributes[CONSUMED_ATTR])
            gemm = problem(op.opview)
            reason = rebuilding.refusal(op, consumed) or serve(gemm, rebuilding.device(op))
            if reason is not None:
                refusals |= dict.fromkeys(consumed, reason)
                continue
            rebuilding.call_gemm(op.opview)
            matches.append(Match("flycc::gemm", str(gemm), consumed))
        elif isinstance(op.opview, func.ReturnOp):
            rebuilding.check_outputs(op)
    rebuilding.erase_dead(frozenset().union(*(match.consumed for match in matches)))
    graph.lint()
    rebuilt = GraphModule(gm, graph)
    rebuilt.meta = dict(gm.meta)
    return rebuilt, matches, refusals


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

    def refusal(self, op: Operation, consumed: frozenset[str]) -> Reason | None:
        """Why the match `op` may not replace its root, or None."""
        root = self._root(op)
        val = root.meta.get("val")
        if not isinstance(val, torch.Tensor) or not _is_row_major(val):
            return Reason(
                "rebuild.layout",
                f"kernels write row-major results, but the graph relies on {root.name} having {_layout(val)}",
            )
        first = min(map(self._node, consumed), key=self._position.__getitem__)
        for writer in self._writers:
            if self._position[first] < self._position[writer] < self._position[root]:
                return Reason(
                    "rebuild.mutation",
                    f"{writer.name} may write to memory between {first.name} and {root.name}",
                )
        return None

    def device(self, op: Operation) -> torch.device:
        """Where the tensors of the match `op` are."""
        return self._root(op).meta["val"].device

    def call_gemm(self, op: GemmOp) -> None:
        root = self._root(op)
        operands = [self._value(value) for value in (op.a, op.b, op.bias) if value is not None]
        for node in operands:
            if self._position[node] >= self._position[root]:
                raise Inconsistent(Reason("rebuild.order", f"{root.name} would use {node.name} too early"))
        root.target = torch.ops.flycc.gemm.default
        root.args = tuple(operands)
        root.kwargs = {"trans_a": op.trans_a, "trans_b": op.trans_b}

    def check_outputs(self, op: Operation) -> None:
        """Tensor results of the function must still be the nodes that the graph returns."""
        [output] = (node for node in self._nodes.values() if node.op == "output")
        returned: Any = output.args[0]
        returned = returned if isinstance(returned, list | tuple) else (returned,)
        for index, (node, value) in enumerate(zip(returned, op.operands, strict=True)):
            tensor = isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)
            if tensor and self._value(value) is not node:
                raise Inconsistent(Reason("rebuild.output", f"output {index} is no longer {node.name}"))

    def erase_dead(self, names: frozenset[str]) -> None:
        """Drops those of the nodes `names` that nothing uses any more."""
        for node in sorted(map(self._node, names), key=self._position.__getitem__, reverse=True):
            if not node.users and not is_impure(node):
                node.graph.erase_node(node)

    def _root(self, op: Operation) -> Node:
        """The node whose result the match `op` computes."""
        return self._node(op.attributes[NODE_ATTR].value)

    def _node(self, name: str) -> Node:
        if name not in self._nodes:
            raise Inconsistent(Reason("rebuild.provenance", f"the graph has no node {name}"))
        return self._nodes[name]

    def _value(self, value: Value) -> Node:
        """The FX node whose value `value` is."""
        if isinstance(value, BlockArgument):
            return self._placeholders[value.arg_number]
        owner = value.owner
        producer = self._node(owner.attributes[NODE_ATTR].value)
        if SHAPES_ATTR in owner.attributes:
            index = value.result_number
            for user in producer.users:
                if user.target is operator.getitem and user.args[1] == index:
                    return user
            raise Inconsistent(
                Reason("rebuild.provenance", f"nothing takes result {index} of {producer.name}")
            )
        if SHAPE_ATTR in owner.attributes:
            return producer
        raise Inconsistent(Reason("rebuild.provenance", f"{owner.name} of {producer.name} is not its result"))


def _is_row_major(val: torch.Tensor) -> bool:
    """Whether `val` is provably contiguous; unlike `val.is_contiguous()` this adds no guard on sizes."""
    expected = make_contiguous_strides_for(val.shape)
    return all(
        statically_known_true(size == 1) or statically_known_true(stride == wanted)
        for size, stride, wanted in zip(val.shape, val.stride(), expected, strict=True)
    )


def _layout(val: Any) -> str:
    if not isinstance(val, torch.Tensor):
        return type(val).__name__
    return f"sizes {list(val.shape)} with strides {list(val.stride())}"
