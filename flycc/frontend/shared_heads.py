"""Heads of K and V that a Dynamo graph repeats for attention, found before they are."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

_RESHAPES = ("reshape", "view", "flatten", torch.reshape, torch.flatten)
_REPEATS = (torch.repeat_interleave, "repeat_interleave")
_ALL = slice(None, None, None)


def unrepeated(heads: Node) -> Node:
    """The tensor [batch, heads, length, dim] each of whose heads `heads` repeats, or `heads`."""
    source = _repeated_by_views(heads) if heads.target in _RESHAPES else _interleaved(heads)
    if source is None:
        return heads
    batch, count, *row = source.meta["example_value"].shape
    repeated = heads.meta["example_value"].shape
    same = [*zip((batch, *row), (repeated[0], *repeated[2:]), strict=True)]
    known = isinstance(count, int) and isinstance(repeated[1], int) and repeated[1] % count == 0
    return source if known and all(statically_known_true(x == y) for x, y in same) else heads


def _repeated_by_views(heads: Node) -> Node | None:
    """x of `x[:, :, None].expand(batch, heads, times, length, dim).reshape(batch, heads * times, length, dim)`."""
    expand = heads.args[0]
    if not isinstance(expand, Node) or expand.target != "expand" or _rank(heads) != 4 or _rank(expand) != 5:
        return None
    single = expand.args[0]
    if not isinstance(single, Node) or _rank(single) != 5 or not single.args:
        return None
    source, *where = single.args
    indexed = single.op == "call_function" and where and isinstance(where[0], tuple)
    is_third = single.target in ("unsqueeze", torch.unsqueeze) and where == [2]
    if indexed and where[0][:3] == (_ALL, _ALL, None) and all(item in (_ALL, ...) for item in where[0][3:]):
        is_third = True
    sizes = expand.meta["example_value"].shape
    if not is_third or not isinstance(source, Node) or _rank(source) != 4:
        return None
    merged = heads.meta["example_value"].shape
    outer = [
        (merged[0], sizes[0]),
        (merged[1], sizes[1] * sizes[2]),
        (source.meta["example_value"].shape[1], sizes[1]),
    ]
    return source if all(statically_known_true(x == y) for x, y in outer) else None


def _interleaved(heads: Node) -> Node | None:
    """x of `repeat_interleave(x, times, 1)`."""
    if heads.target not in _REPEATS:
        return None

    def read(input: Any, repeats: Any, dim: Any = None, **others: Any) -> Node | None:
        fits = isinstance(repeats, int) and dim in (1, -3) and not others
        return input if fits and isinstance(input, Node) and _rank(input) == 4 else None

    return read(*heads.args, **heads.kwargs)


def _rank(node: Node) -> int:
    value = node.meta.get("example_value")
    return value.dim() if isinstance(value, torch.Tensor) else -1
