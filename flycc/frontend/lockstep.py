"""The unrolled iterations of a loop over experts in a Dynamo graph: which of their nodes and arguments correspond."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.fx import GraphModule, Node

from flycc.contracts import FlyccError, Reason
from flycc.frontend.fakes import difference, evaluate, example
from flycc.frontend.nodes import copied


class NotAlike(FlyccError):
    """The iterations of a loop cannot be made one; `reason` says why."""


def refuse(what: str, sentence: str) -> NotAlike:
    """The error for a loop over experts."""
    return NotAlike(Reason(f"grouped-gemm.loop-{what}", f"loop over experts: {sentence}"))


def fault(error: Exception) -> Reason:
    """The reason for a loop that stays because of a fault of ours, which must not become the model's."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return Reason("grouped-gemm.loop-internal", f"a fault in flycc: {text}")


class Rewrite(Protocol):
    """One loop while it is replaced in its graph."""

    def replace(self, site: Any) -> None:
        """Raises NotAlike, before any node that the graph had is changed."""

    def give_up(self) -> None:
        """Takes the new nodes out again, after NotAlike."""


def in_turn(gm: GraphModule, rewrites: Sequence[tuple[Rewrite, Any]]) -> list[Reason]:
    """Replaces each site of the graph of `gm`; the reasons of those that stay.

    A fault of ours leaves the whole graph as it was.
    """
    before = copied(gm.graph) if rewrites else None
    reasons = []
    try:
        for rewrite, site in rewrites:
            try:
                rewrite.replace(site)
            except NotAlike as not_alike:
                rewrite.give_up()
                reasons.append(not_alike.reason)
        gm.graph.lint()
    except Exception as error:
        assert before is not None
        gm.graph = before
        reasons.append(fault(error))
    gm.recompile()
    return reasons


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


def same_call(node: Node, other: Node) -> bool:
    """Whether both call the same function or method, with the same names of arguments."""
    return (
        called(node) is not None
        and called(node) == called(other)
        and node.kwargs.keys() == other.kwargs.keys()
    )


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
    if all(_same_view(node, first) for node in values):
        return min(values)
    return _slices(values)


def _same_view(node: Node, other: Node) -> bool:
    """Whether both take the same part, or the transpose, of one tensor: the same memory."""
    if called(node) != called(other) or (node.args, node.kwargs) != (other.args, other.kwargs):
        return False
    is_view = slice_of(node) is not None or _transposed(node) is not None
    return is_view and difference(example(node), example(other)) is None


def check_lane(lane: Lane, made: Sequence[Node]) -> None:
    """Runs `made`, the nodes that give `lane`, on fake tensors; what stands for all iterations must be like each.

    Raises NotAlike, also where PyTorch refuses what was made.
    """
    try:
        evaluate(made, min(lane.nodes))
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise refuse("op", f"PyTorch refuses {lane.nodes[0]} for all iterations at once: {text}") from error
    new = example(lane.packed)
    for node in lane.nodes:
        old = example(node)
        if not isinstance(old, Tensor):
            continue
        for name in ("dtype", "device", "requires_grad"):
            before, after = getattr(old, name), getattr(new, name, None)
            if before != after:
                what = "mode" if name == "requires_grad" else "differs"
                raise refuse(what, f"{node} has {name} {before}, for all iterations at once {after}")


def check_same(old: Node, new: Node) -> None:
    """Nobody can tell `new` from `old`, which it replaces. Raises NotAlike."""
    if (seen := difference(example(old), example(new))) is not None:
        raise refuse("differs", f"{old} would have {seen} if made with those of the other iterations")


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
            recorded = {example(node).requires_grad for node in nodes}
            if recorded != {example(tensors[0]).requires_grad}:
                raise refuse("mode", f"slices of {tensors[0]} are taken where autograd does not record them")
            if list(indices) == list(range(len(nodes))) and count == len(nodes):
                return Slices(tensors[0], inner[0], example(nodes[0]))
            raise refuse(
                "experts",
                f"it takes the slices {_listed(indices)} of {tensors[0]}, which has {count}; it must take all in order",
            )
    transposed = [_transposed(node) for node in nodes]
    if all(transposed):
        found = _slices(transposed)  # type: ignore[arg-type]
        if any(example(node).requires_grad != found.first.requires_grad for node in nodes):
            raise refuse("mode", f"{nodes[0]} is transposed where autograd does not record it")
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


def switches_mode(node: Node) -> bool:
    """Whether `node` may change what ops after it do, such as what autograd records."""
    switch = node.op == "call_function" and not isinstance(node.target, torch._ops.OpOverload)
    return switch and example(node) is None and not writes(node)


def written(node: Node) -> list[Node]:
    """The arguments of `node` that it may write to."""
    if not writes(node):
        return []
    target, out = node.target, node.kwargs.get("out")
    if _renormalises(node):
        return node.all_input_nodes
    known = node.op == "call_method" or not isinstance(
        target, torch._ops.OpOverload | torch._ops.OpOverloadPacket | torch._ops.HigherOrderOperator
    )
    if not known or out is not None or not node.args or not isinstance(node.args[0], Node):
        return node.all_input_nodes
    return [node.args[0]]


def writes(node: Node) -> bool:
    """Whether `node` may write to memory that others read; where that is not known, yes."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    if node.op != "call_function":
        return node.op != "call_method" or _in_place(node.target)
    if node.kwargs.get("inplace") or node.kwargs.get("out") is not None or _renormalises(node):
        return True
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.is_mutable
    if isinstance(target, torch._ops.OpOverloadPacket | torch._ops.HigherOrderOperator):
        return (
            target is not torch.ops.aten.index
        )  # what bodies of flex_attention look captured tensors up with
    module = getattr(target, "__module__", "") or ""
    if module == "torch.nn.functional" and any(argument is True for argument in node.args):
        return True  # `inplace`, perhaps
    name = getattr(target, "__name__", "")
    if module == "_operator":  # where some that write to nothing are called and_, or_
        return name in ("setitem", "delitem") or name in _IN_PLACE
    return _in_place(name)


def _renormalises(node: Node) -> bool:
    """Whether it looks up embeddings and scales rows of their table to a largest norm."""
    if node.target not in (torch.nn.functional.embedding, torch.nn.functional.embedding_bag):
        return False
    return node.kwargs.get("max_norm", node.args[3] if len(node.args) > 3 else None) is not None


_IN_PLACE = frozenset(
    name for name in dir(operator) if name.startswith("i") and f"__{name}__" in dir(operator)
) - {
    "inv",
    "invert",
    "index",
}


def _in_place(name: Any) -> bool:
    if not isinstance(name, str) or not name.endswith("_"):
        return False
    return not name.endswith("__") or name == "__setitem__" or name[2:-2] in _IN_PLACE
