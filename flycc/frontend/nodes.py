"""Questions about FX nodes that importing, rebuilding and reporting share."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch.amp.autocast_mode import _enter_autocast
from torch.fx import Graph, GraphModule, Node
from torch.nn.attention import _sdpa_kernel


def target_name(node: Node) -> str:
    """How reports and opaque ops spell a node's target: `aten.mm.default`, `higher_order.cond`, ..."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    if callable(target):
        return f"{target.__module__.lstrip('_')}.{target.__qualname__}"
    return str(target)


def mutates(node: Node) -> bool:
    """Whether `node` may write to memory that other nodes read."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable
    return isinstance(node.target, torch._ops.HigherOrderOperator)  # their bodies are not looked into


def is_impure(node: Node) -> bool:
    """Whether dropping `node` while nothing uses it could change what the graph does."""
    seeded = isinstance(node.target, torch._ops.OpOverload) and (
        torch.Tag.nondeterministic_seeded in node.target.tags
    )
    return seeded or mutates(node) or node.is_impure()


def reached(nodes: Iterable[Node], *, back: bool = False) -> set[Node]:
    """`nodes` and all that depends on them or, `back`, all that they depend on."""
    found = set(nodes)
    waiting = list(found)
    while waiting:
        node = waiting.pop()
        new = set(node.all_input_nodes if back else node.users) - found
        found |= new
        waiting += new
    return found


def size_text(val: torch.Tensor) -> list[str]:
    """Sizes as strings, symbols by name; within one graph, equal strings are equal sizes."""
    return [str(size.node.expr) if isinstance(size, torch.SymInt) else str(size) for size in val.shape]


def tensor_text(val: torch.Tensor) -> str:
    """For example `bf16[s33, 576]`."""
    return f"{val.dtype.abbr}[{', '.join(size_text(val))}]"


def copied(graph: Graph) -> Graph:
    """A copy of a Dynamo graph that can take its place."""
    made = copy.deepcopy(graph)
    for old, new in zip(graph.nodes, made.nodes, strict=True):
        if hasattr(old, "_dynamo_source"):  # AOTAutograd asks for it
            new._dynamo_source = old._dynamo_source
    return made


def changes_dispatch(gm: GraphModule) -> bool:
    """Whether autocast, a choice of attention backends or a functorch transform is at work in a Dynamo graph.

    They act on PyTorch's own ops, each in its own way, so that one op cannot stand for another.
    """
    return torch._C._is_any_autocast_enabled() or any(
        _changes_dispatch(node)
        for module in gm.modules()
        if isinstance(module, GraphModule)
        for node in module.graph.nodes
        if node.op == "call_function"
    )


def _changes_dispatch(node: Node) -> bool:
    if node.target is _enter_autocast:
        _, _, enabled, _ = node.args
        return bool(enabled)  # with autocast off around the graph, switching it off changes nothing
    return node.target is _sdpa_kernel or is_of_functorch(node)


def is_of_functorch(node: Node) -> bool:
    """Whether `node` calls a part of a functorch transform."""
    module = getattr(node.target, "__module__", None) or ""
    return module.startswith(("torch._functorch", "torch._C._functorch"))
