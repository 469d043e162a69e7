"""What became of the ops of one graph that a kernel might serve."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from flycc.contracts import Reason
from flycc.frontend.families import (
    KEPT_CALLS,
    NEAR_MISSES,
    SERVED_FAMILIES,
    family_of,
    family_of_reason,
    unserved,
)
from flycc.frontend.nodes import target_name, tensor_text
from flycc.frontend.rebuild import Match


@dataclass(frozen=True, slots=True)
class Candidate:
    """One op that a kernel might serve, and the kernel it got or the reason it did not.

    `node` is the FX node's name; in the body of a higher-order op, the op's and the body's names come first
    (`cond.true_graph_0.mm`). `shapes` holds its operand and result types in text, `kernel` the custom op that
    now computes it, `problem` the kernel's problem in one line, `count` how many FX nodes that op stands for: 0 for
    the second product of a gated one, for which the first stands. `fused` are the targets of the nodes that became a
    product's epilogue, in their order. `placement` says of a product of scaled operands where its scales stand, within
    which bounds, and why. Either `kernel` or `reason` is None.
    """

    node: str
    family: str
    target: str
    shapes: str
    kernel: str | None = None
    reason: Reason | None = None
    problem: str = ""
    count: int = 1
    fused: tuple[str, ...] = ()
    placement: str = ""
    detail: str = ""


@dataclass(slots=True)
class Report:
    """The candidates of one graph in graph order; `failure` where the graph as a whole stays on PyTorch.

    Those in the bodies of a higher-order op count as the graph's, in the op's place. `others` counts, by
    target, the ops that compute something and that no kernel family covers; views and arithmetic on sizes
    compute nothing. `number` is the graph's among all that this process compiled.
    """

    nodes: list[Candidate] = field(default_factory=list)
    others: dict[str, int] = field(default_factory=dict)
    failure: Reason | None = None
    number: int | None = None

    def refused(self) -> list[Reason]:
        """Why ops that kernels are for stay on PyTorch; what only looks like such an op is not refused."""
        reasons = [
            node.reason for node in self.nodes if node.reason is not None and node.family in SERVED_FAMILIES
        ]
        return [reason for reason in reasons if reason.code not in NEAR_MISSES]

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        return asdict(self)


def report_graph(gm: GraphModule, matches: list[Match], refusals: Mapping[str, Reason]) -> Report:
    """`gm` is the graph before any replacement; `refusals` gives reasons by the name of a candidate's node."""
    served = {match.node: match for match in matches}
    within = {name: match for match in matches for name in match.consumed}
    targets = {node.name: target_name(node) for node in gm.graph.nodes}
    consumed = frozenset().union(*(match.consumed for match in matches if match.reason is None))
    report = Report()
    for name, node, outer in _nodes(gm):
        family, match, refusal = family_of(node), served.get(name), refusals.get(name)
        if match is None and family is not None:
            match = within.get(name)
        if match is not None and match.family == "sdpa" and family == "gemm":
            # A product that attention was written with: the first stands for it.
            if match.node != name:
                continue
            family = match.family
        if family is None and match is not None:
            family = match.family
        if family is None and refusal is not None:
            family = family_of_reason(refusal)
        if family is not None:
            refusal = refusal or (outer and _inside(outer, family))
            report.nodes.append(_candidate(name, node, family, match, refusal, targets))
        elif name not in consumed and _computes(node):
            target = target_name(node)
            report.others[target] = report.others.get(target, 0) + 1
    return report


def report_failure(gm: GraphModule, failure: Reason) -> Report:
    """Every candidate of `gm` stays on PyTorch for the one reason."""
    report = report_graph(gm, [], {name: failure for name, node, _ in _nodes(gm) if family_of(node)})
    report.failure = failure
    return report


def _nodes(
    gm: GraphModule, prefix: str = "", outer: Node | None = None
) -> Iterator[tuple[str, Node, Node | None]]:
    """Nodes of `gm` and of the bodies its higher-order ops hold: name, node and the op in whose body it is."""
    for node in gm.graph.nodes:
        yield prefix + node.name, node, outer
        for source in node.all_input_nodes if node.op == "call_function" else ():
            body = operator.attrgetter(source.target)(gm) if source.op == "get_attr" else None
            if isinstance(body, GraphModule):
                yield from _nodes(body, f"{prefix}{node.name}.{source.name}.", node)


def _inside(outer: Node, family: str) -> Reason:
    where = f"inside a body of {target_name(outer)} ({outer.name})"
    return Reason(
        f"{family.replace('_', '-')}.higher-order", f"{where}; flycc does not look into higher-order ops yet"
    )


def _computes(node: Node) -> bool:
    """Whether `node` is an operator that makes new tensors; a view's result shares its input's memory."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    returns = node.target._schema.returns
    return any("Tensor" in str(value.type) and value.alias_info is None for value in returns)


def _candidate(
    name: str,
    node: Node,
    family: str,
    match: Match | None,
    refusal: Reason | None,
    targets: Mapping[str, str],
) -> Candidate:
    inputs: list[Node] = []
    map_arg((node.args, node.kwargs), inputs.append)
    values = [arg.meta.get("val") for arg in inputs]
    operands = " x ".join(tensor_text(val) for val in values if isinstance(val, torch.Tensor))
    val = node.meta.get("val")
    results = val if isinstance(val, tuple | list) else [val]
    result = ", ".join(tensor_text(item) for item in results if isinstance(item, torch.Tensor))
    described = (name, family, target_name(node), f"{operands} -> {result}")
    if match is not None and match.reason is not None:
        return Candidate(*described, None, match.reason, placement=match.placement)
    if match is not None:
        count = len(match.consumed) if match.node == name else 0
        fused = tuple(targets[node] for node in reversed(match.fused))
        placement = match.placement if match.node == name else ""
        return Candidate(*described, match.kernel, None, match.problem, count, fused, placement, match.detail)
    if target_name(node) in KEPT_CALLS:
        assert isinstance(node.target, torch._ops.OpOverload)
        return Candidate(*described, node.target._schema.name, None, "kept with the weight")
    return Candidate(*described, None, refusal or unserved(family))
