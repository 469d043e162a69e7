"""Questions about FX nodes that importing, rebuilding and reporting share."""

from __future__ import annotations

import torch
from torch.fx import Node


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


def size_text(val: torch.Tensor) -> list[str]:
    """Sizes as strings, symbols by name; within one graph, equal strings are equal sizes."""
    return [str(size.node.expr) if isinstance(size, torch.SymInt) else str(size) for size in val.shape]


def tensor_text(val: torch.Tensor) -> str:
    """For example `bf16[s33, 576]`."""
    return f"{val.dtype.abbr}[{', '.join(size_text(val))}]"
