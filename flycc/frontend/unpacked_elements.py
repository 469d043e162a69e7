"""Elements of e2m1 that a graph unpacks from bytes by hand: with a table, with bits, or any other way.

However it is written, it is a function of each byte that gives two numbers, if between the bytes and the numbers there
is nothing but pointwise operators and one stack that puts the two side by side. So it is run for all 256 bytes, and
what it gives is compared with the format: that is a proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from flycc.frontend.nodes import size_text

aten = torch.ops.aten

#: Operators that compute each element of their result from one element of each operand, or from constants.
_POINTWISE = frozenset(
    {
        aten.__and__.Scalar,
        aten.__lshift__.Scalar,
        aten.__or__.Scalar,
        aten.__rshift__.Scalar,
        aten._to_copy.default,
        aten.add.Tensor,
        aten.alias.default,
        aten.bitwise_and.Scalar,
        aten.bitwise_and.Tensor,
        aten.bitwise_left_shift.Tensor_Scalar,
        aten.bitwise_or.Scalar,
        aten.bitwise_or.Tensor,
        aten.bitwise_right_shift.Tensor_Scalar,
        aten.clone.default,
        aten.detach.default,
        aten.eq.Scalar,
        aten.full_like.default,
        aten.ge.Scalar,
        aten.gt.Scalar,
        aten.le.Scalar,
        aten.logical_and.default,
        aten.logical_not.default,
        aten.logical_or.default,
        aten.lt.Scalar,
        aten.mul.Tensor,
        aten.ne.Scalar,
        aten.neg.default,
        aten.ones_like.default,
        aten.sub.Tensor,
        aten.where.self,
        aten.zeros_like.default,
    }
)
_CONSTANTS = frozenset({aten.full.default, aten.scalar_tensor.default})
_RESHAPES = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_WIDE = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Unpacked:
    """`elements` are what the bytes of `packed` hold, two each, the first in the low half; `between` computes them."""

    packed: str
    elements: str
    between: tuple[str, ...]


def find_unpacked(gm: GraphModule) -> list[Unpacked]:
    """What of an ATen graph are elements of e2m1, unpacked from uint8 [.., K / 2] to [.., K] of a wide type."""
    with _disable_current_modes():  # compilers run under fake tensors
        return [found for node in gm.graph.nodes if _has_halves(node) for found in _unpacked(node)]


def _has_halves(node: Node) -> bool:
    val = node.meta.get("val")
    if not isinstance(val, Tensor) or val.dtype != torch.uint8 or not val.dim():
        return False
    if not isinstance(val.shape[-1], int):
        return False
    return any(15 in user.args for user in node.users) and any(4 in user.args for user in node.users)


def _unpacked(packed: Node) -> Iterator[Unpacked]:
    *rows, columns = size_text(packed.meta["val"])
    size = [*rows, str(2 * int(columns))]
    bytes_ = torch.arange(256, dtype=torch.uint8)
    codes = torch.stack((bytes_ & 15, bytes_ >> 4), -1).flatten()
    expected = torch.tensor(_MAGNITUDES + tuple(-magnitude for magnitude in _MAGNITUDES))[codes.long()]
    values: dict[Node, Tensor] = {packed: bytes_}
    for node in _later(packed):
        try:
            value = _value(node, values)
        except Exception:  # an operator that refuses 256 bytes in the place of the graph's own unpacks none
            continue
        if value is None:
            continue
        values[node] = value
        val = node.meta["val"]
        if val.dtype in _WIDE and size_text(val) == size and torch.equal(value.float(), expected):
            yield Unpacked(packed.name, node.name, tuple(_between(node, packed)))
            return


def _later(node: Node) -> Iterator[Node]:
    while (node := node.next).op != "output":
        yield node


def _value(node: Node, values: dict[Node, Tensor]) -> Tensor | None:
    """What `node` is where the packed bytes are all 256 there are, or a constant; None if that is not known."""
    if node.op == "get_attr":
        value = getattr(node.graph.owning_module, str(node.target), None)
        return (
            value
            if isinstance(value, Tensor) and not isinstance(value, FakeTensor) and value.numel() <= 16
            else None
        )
    inputs, target = node.all_input_nodes, node.target
    if node.op != "call_function" or not all(each in values for each in inputs):
        return None
    if not inputs and (target not in _CONSTANTS or node.meta["val"].dim()):
        return None
    assert callable(target)
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    kwargs = {name: given for name, given in kwargs.items() if name not in ("device", "pin_memory")}
    if target in _RESHAPES:
        return args[0].flatten() if args[0].dim() > 1 and _merges(node) else None
    pointwise = target in (_POINTWISE | _CONSTANTS) and all(
        _shape(each) in ([], _shape(node)) for each in inputs
    )
    # Both put in each place what belongs there: the entry of a table for a code, a constant where a mask is set.
    looked_up = (
        target is aten.index.Tensor and len(args[1]) == 1 and args[0].dim() == 1 and args[0].numel() <= 16
    )
    masked = target is aten.index_put.default and args[2].numel() == 1 and args[1][0].dtype == torch.bool
    stacked = (
        target is aten.stack.default
        and args[1:] in ((-1,), (node.meta["val"].dim() - 1,))
        and len(args[0]) == 2
    )
    retyped = target is aten.view.dtype and args[0].element_size() == args[1].itemsize
    if target is aten.lift_fresh_copy.default:
        return args[0]
    if stacked:
        return torch.stack(args[0], -1)
    return target(*args, **kwargs) if pointwise or looked_up or masked or retyped else None


def _merges(node: Node) -> bool:
    """Whether a reshape puts the two of a stack into one dimension."""
    *rows, columns, pair = _shape(node.all_input_nodes[0])
    return pair == "2" and columns.isdecimal() and _shape(node) == [*rows, str(2 * int(columns))]


def _shape(node: Node) -> list[str]:
    val = node.meta.get("val")
    return size_text(val) if isinstance(val, Tensor) else ["?"]


def _between(node: Node, packed: Node) -> list[str]:
    """What computes `node` from `packed`, without constants."""
    found: dict[Node, None] = {}
    left = [node]
    while left:
        each = left.pop()
        if each is not packed and each.op == "call_function" and each not in found:
            found[each] = None
            left += each.all_input_nodes
    return [each.name for each in found]
