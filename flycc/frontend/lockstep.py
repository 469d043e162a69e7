"""The unrolled iterations of a loop over experts in a Dynamo graph: which of their nodes and arguments correspond."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.fx import Node

from flycc.contracts import FlyccError, Reason


class NotAlike(FlyccError):
    """The iterations of a loop cannot be made one; `reason` says why."""


def refuse(what: str, sentence: str) -> NotAlike:
    """The error for a loop over experts."""
    return NotAlike(Reason(f"grouped-gemm.loop-{what}", f"loop over experts: {sentence}"))


def fault(error: Exception) -> Reason:
    """The reason for a loop that stays because of a fault of ours, which must not become the model's."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return Reason("grouped-gemm.loop-internal", f"a fault in flycc: {text}")


@dataclass(frozen=True, eq=False)
class Lane:
    """The nodes that correspond to each other, one an iteration, and `packed`, the node that computes all of them."""

    nodes: tuple[Node, ...]
    packed: Node

    @property
    def example(self) -> Any:
        """The fake value in the first iteration."""
        return example(self.nodes[0])


@dataclass(frozen=True)
class Slices:
    """Iteration e's argument is `tensor[e, *inner]`, its last two dimensions swapped if `transposed`.

    `first` is the fake value of the first iteration's, before that.
    """

    tensor: Node
    inner: tuple[Any, ...]
    first: Tensor
    transposed: bool = False


def example(node: Node) -> Any:
    """The fake value that Dynamo gave `node`."""
    return node.meta.get("example_value")


def slice_of(node: Node) -> tuple[Node, int, tuple[Any, ...]] | None:
    """(T, e, inner) if `node` is `T[e, *inner]` of a tensor, and `inner` has nothing but slices and numbers."""
    if node.op != "call_function" or node.target is not operator.getitem:
        return None
    tensor, index = node.args
    if not isinstance(tensor, Node) or type(example(tensor)) is not FakeTensor:
        return None  # subclasses have rules of their own
    e, *inner = index if isinstance(index, tuple) else (index,)
    numbers = [
        n
        for item in inner
        for n in ((item.start, item.stop, item.step) if isinstance(item, slice) else (item,))
    ]
    if type(e) is not int or not all(n is None or type(n) is int for n in numbers):
        return None
    return tensor, e, tuple(inner)


def called(node: Node) -> Any:
    """What `node` calls: a function, or the name of a method; None if it calls neither."""
    return node.target if node.op in ("call_function", "call_method") else None


def pack_arguments(values: Sequence[Any], lane_of: dict[Node, tuple[Lane, int]]) -> Any:
    """One argument for those at the same place in all iterations: a `Lane`, `Slices`, or what is the same in all.

    Raises NotAlike.
    """
    first = values[0]
    if isinstance(first, tuple | list) and all(
        isinstance(v, tuple | list) and len(v) == len(first) for v in values
    ):
        return tuple(pack_arguments(items, lane_of) for items in zip(*values, strict=True))
    if not all(isinstance(value, Node) for value in values):
        if all(type(value) is type(first) and not _has_node(value) and value == first for value in values):
            return first
        raise refuse("differs", f"iterations differ in an argument: {first} and {values[-1]}")
    found = [lane_of.get(node) for node in values]
    if all(found):
        lane, _ = found[0]  # type: ignore[misc]
        if all(place == (lane, e) for e, place in enumerate(found)):
            return lane
    if any(found):
        raise refuse("differs", f"iterations do not take the corresponding values: {first} and {values[-1]}")
    if all(node is first for node in values):
        return first
    return _slices(values)


def _has_node(value: Any) -> bool:
    return isinstance(value, slice) and any(
        isinstance(v, Node) for v in (value.start, value.stop, value.step)
    )


def _slices(nodes: Sequence[Node]) -> Slices:
    places = [slice_of(node) for node in nodes]
    if all(places):
        tensors, indices, inner = zip(*places, strict=True)  # type: ignore[arg-type]
        count = example(tensors[0]).shape[0]
        if all(tensor is tensors[0] for tensor in tensors) and all(rest == inner[0] for rest in inner):
            if list(indices) == list(range(len(nodes))) and count == len(nodes):
                return Slices(tensors[0], inner[0], example(nodes[0]))
            raise refuse(
                "experts",
                f"it takes the slices {_listed(indices)} of {tensors[0]}, which has {count}; it must take all in order",
            )
    transposed = [_transposed(node) for node in nodes]
    if all(transposed):
        found = _slices(transposed)  # type: ignore[arg-type]
        return replace(found, transposed=not found.transposed)
    raise refuse(
        "weights",
        f"iterations use tensors of their own, such as {nodes[0]} and {nodes[-1]}; they must be the same slices of "
        "one, because bringing them together in each call would copy every weight",
    )


def _transposed(node: Node) -> Node | None:
    """The matrix whose transpose `node` is."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or not isinstance(example(source), Tensor):
        return None
    if example(source).dim() != 2 or node.kwargs:
        return None
    target, options = called(node), node.args[1:]
    swaps = target in ("t", torch.t) and not options
    swaps |= target is getattr and options in (("T",), ("mT",))
    swaps |= target in ("transpose", torch.transpose) and sorted(d % 2 for d in options) == [0, 1]  # type: ignore[operator]
    return source if swaps else None


def _listed(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")


def plain(argument: Any) -> Any:
    """`argument` with the nodes of all rows in place of lanes."""
    if isinstance(argument, Lane):
        return argument.packed
    if isinstance(argument, dict):
        return {name: plain(item) for name, item in argument.items()}
    if isinstance(argument, list | tuple):
        return tuple(map(plain, argument))
    return argument


#: Products of two matrices, or methods of the first.
PRODUCTS = (operator.matmul, torch.matmul, torch.mm, "matmul", "mm")
#: Functions and methods that cut along a dimension, the argument after the next.
CHUNKS = (torch.chunk, "chunk", torch.split, "split")
#: What makes tensors that share memory with no other.
NEW = (torch.zeros, torch.zeros_like, torch.full, torch.full_like, "new_zeros", "new_full")
#: Functions and methods that compute each element from those at its place, and write to none of their arguments.
POINTWISE: frozenset[Any] = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.pow),
        *(torch.add, torch.sub, torch.mul, torch.div, torch.neg, torch.pow, torch.square),
        *(torch.relu, torch.sigmoid, torch.tanh, torch.exp, torch.clamp, torch.where, torch._C._nn.gelu),
        *(torch.nn.functional.relu, torch.nn.functional.silu, torch.nn.functional.sigmoid),
        *(torch.nn.functional.tanh, torch.nn.functional.gelu, torch.nn.functional.leaky_relu),
        *("add", "sub", "mul", "div", "neg", "pow", "square", "relu", "sigmoid", "tanh", "exp", "clamp"),
        *("to", "float", "double", "half", "bfloat16", "type_as"),
    }
)


def writes(node: Node) -> bool:
    """Whether `node` may write to memory that others read; where that is not known, yes."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    if node.op != "call_function":
        return node.op != "call_method" or _in_place(node.target)
    if node.kwargs.get("inplace") or node.kwargs.get("out") is not None:
        return True
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.is_mutable
    if isinstance(target, torch._ops.OpOverloadPacket | torch._ops.HigherOrderOperator):
        return True
    module = getattr(target, "__module__", "") or ""
    if module == "torch.nn.functional" and any(argument is True for argument in node.args):
        return True  # `inplace`, perhaps
    name = getattr(target, "__name__", "")
    return (module == "_operator" and (name == "setitem" or name in _IN_PLACE)) or _in_place(name)


_IN_PLACE = frozenset(
    name for name in dir(operator) if name.startswith("i") and f"__{name}__" in dir(operator)
) - {
    "inv",
    "invert",
    "index",
}


def _in_place(name: Any) -> bool:
    return isinstance(name, str) and name.endswith("_") and not name.endswith("__")
