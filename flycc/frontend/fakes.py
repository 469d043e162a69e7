"""Runs new nodes of a Dynamo graph on fake tensors, and compares what they give with what they replace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.fx import Node
from torch.fx.node import map_arg

from flycc.frontend.nodes import size_text

_KEY = "example_value"


def example(node: Node) -> Any:
    """The fake value that Dynamo, or `evaluate`, gave `node`."""
    return node.meta.get(_KEY)


def evaluate(nodes: Iterable[Node], before: Node) -> None:
    """Gives those of `nodes` a fake value that have none, in the grad mode there is at `before`.

    `nodes` are calls in an order in which they can run. Raises what PyTorch raises for them.
    """
    missing = [node for node in nodes if _KEY not in node.meta]
    if not missing:
        return
    # Not the tracing context's mode: that one is for what comes after the backend's graph.
    mode = next(x.fake_mode for x in map(example, before.graph.nodes) if isinstance(x, FakeTensor))
    symbols = mode.shape_env
    # Sizes that depend on data get symbols here that no graph will bind: AOTAutograd makes its own.
    fresh = symbols.ignore_fresh_unbacked_symbols() if symbols else contextlib.nullcontext()
    with mode, fresh, torch.set_grad_enabled(_grad_mode(before)):
        for node in missing:
            node.meta[_KEY] = _run(node)


def _run(node: Node) -> Any:
    args, kwargs = map_arg((node.args, node.kwargs), example)
    if node.op == "call_function":
        assert callable(node.target)
        return node.target(*args, **kwargs)
    assert node.op == "call_method"
    if node.target.endswith("_"):
        args = (args[0].detach().clone(), *args[1:])  # fakes of the graph keep what Dynamo made them
    return getattr(args[0], node.target)(*args[1:], **kwargs)


def _grad_mode(at: Node) -> bool:
    """Whether autograd records `at`; backends are called in the mode in which the graph begins."""
    node = at.prev
    while node.op != "root":
        if node.target is torch._C._set_grad_enabled:
            return bool(node.args[0])
        node = node.prev
    return torch.is_grad_enabled()


def difference(old: Any, new: Any) -> str | None:
    """What users of `old` could see if they were given `new`, for example "dtype torch.float32"; None if nothing."""
    if not isinstance(old, Tensor) or not isinstance(new, Tensor):
        return None if type(old) is type(new) else f"type {type(new).__name__}"
    seen = [
        ("dtype", old.dtype, new.dtype),
        ("device", old.device, new.device),
        ("shape", size_text(old), size_text(new)),
        ("strides", list(map(str, old.stride())), list(map(str, new.stride()))),
        ("requires_grad", old.requires_grad, new.requires_grad),
    ]
    return next((f"{name} {after}" for name, before, after in seen if before != after), None)
