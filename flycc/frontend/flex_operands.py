"""What a body of flex_attention computes for one score, computed for all in the graph around the call.

Every value becomes a tensor of four dimensions, [batch, heads, queries, keys], that has 1 for each that it does not
depend on. So numbers of queries and the like broadcast, captured tensors are indexed by whole tensors, and no tensor is
of rank 0, whose type would count less than that of others.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from flycc.frontend.fakes import evaluate, example
from flycc.frontend.flex_bodies import FILLS, INDICES
from flycc.frontend.flex_forms import Expression, Linear
from flycc.frontend.lockstep import called

_ONE = (1, 1, 1, 1)

#: Nodes by what they call with what.
Calls = dict[Any, Node]


class NewNodes:
    """Calls in front of a node. One that `shared` has, from a call further up, is not made again."""

    def __init__(self, before: Node, shared: Calls) -> None:
        self.before = before
        self._shared = shared
        self._made: Calls = {}

    def function(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of a function."""
        return self.call("call_function", target, args, kwargs)

    def method(self, name: str, *args: Any) -> Any:
        """The result of a method of the first argument."""
        return self.call("call_method", name, args, {})

    def call(self, op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Node:
        """The call of the function or method `target`, of which others may have the result, too."""
        key = (op, target, _hashable(args), _hashable(tuple(sorted(kwargs.items()))))
        found = self._shared.get(key) or self._made.get(key)
        if found is None:
            found = self._made[key] = self._create(op, target, args, kwargs)
        return found

    def own(self, target: Callable[..., Any], *args: Any) -> Node:
        """The result of a function that users of the graph may write to."""
        node = self._create("call_function", target, args, {})
        self._made[node] = node
        return node

    def _create(self, op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Node:
        with self.before.graph.inserting_before(self.before):
            return self.before.graph.create_node(op, target, args, dict(kwargs))

    def size(self, tensor: Node, dim: int) -> Any:
        """A size of `tensor`: a node where only the run knows it."""
        size = example(tensor).shape[dim]
        return size if isinstance(size, int) else self.method("size", tensor, dim)

    def evaluate(self) -> None:
        """Gives the new nodes their fake values. Raises what PyTorch raises."""
        evaluate(self._made.values(), self.before)

    def keep(self) -> None:
        """The new nodes may be shared from now on."""
        self._shared |= self._made

    def give_up(self) -> None:
        """Takes the new nodes out again."""
        for node in reversed(self._made.values()):
            node.graph.erase_node(node)


def _hashable(value: Any) -> Any:
    """Equal for arguments that give equal results: 1, 1.0 and True do not."""
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    if isinstance(value, slice):
        return "slice", _hashable((value.start, value.stop, value.step))
    return value if isinstance(value, Node) else (type(value), str(value))


class Operands:
    """Values of bodies, given with what the call gives each beside the score and `INDICES`."""

    def __init__(
        self, new: NewNodes, query: Node, key: Node, bodies: Iterable[tuple[GraphModule, Sequence[Any]]]
    ) -> None:
        self._new = new
        self._device = example(query).device
        self._sizes = ((query, 0), (query, 1), (query, 2), (key, 2))
        self._captured: dict[Node, Any] = {}
        self._indices: dict[Node, int] = {}
        for body, arguments in bodies:
            inputs = body.graph.find_nodes(op="placeholder")
            first = len(inputs) - len(arguments)
            self._captured |= dict(zip(inputs[first:], arguments, strict=True))
            self._indices |= {node: dim for dim, node in enumerate(inputs[first - len(INDICES) : first])}

    def captured(self, expression: Expression) -> list[Node]:
        """The tensors around the call that `expression` reads."""
        return [self._captured[node] for node in expression.captured]

    def size(self, dim: int) -> Any:
        """How many batches, heads, queries or keys there are."""
        return self._new.size(*self._sizes[dim])

    def value(self, expression: Expression) -> Any:
        """A tensor of four dimensions."""
        source = expression.source
        return self._of(source) if isinstance(source, Node) else self.filled(source)

    def filled(self, value: Any, dtype: torch.dtype | None = None) -> Any:
        """A constant."""
        return self._new.function(torch.full, _ONE, value, dtype=dtype, device=self._device)

    def number(self, linear: Linear) -> Any:
        """What does not depend on positions: an int, or a node."""
        total: Any = linear.constant
        for node, coefficient in linear.numbers:
            term = self._of(node)
            term = term if coefficient == 1 else self._new.function(operator.mul, coefficient, term)
            total = self._new.function(operator.add, term, total) if total != 0 else term
        return total

    def _of(self, node: Node) -> Any:
        if node in self._indices:
            return self._index(self._indices[node])
        if node in self._captured:
            return self._argument(self._captured[node], example(node))
        target = called(node)
        if target in FILLS:
            value = node.args[-1] if FILLS[target] is None else FILLS[target]
            return self.filled(self._of(value) if isinstance(value, Node) else value, example(node).dtype)
        if target is operator.getitem:
            return self._element(node)
        args, kwargs = map_arg((node.args, node.kwargs), self._of)
        return self._new.call(node.op, target, args, kwargs)

    def _argument(self, value: Any, like: Any) -> Any:
        """What the call gives: a tensor that is indexed, a number, or a scalar, which may be on the host."""
        if not isinstance(like, torch.Tensor) or like.dim():
            return value
        if like.device != self._device:
            value = self._new.method("to", value, self._device)
        return self._new.method("view", value, *_ONE)

    def _index(self, dim: int) -> Any:
        """The numbers of batches, heads, queries or keys, int64 as those that PyTorch gives bodies in its graphs."""
        shape = [-1 if d == dim else 1 for d in range(len(INDICES))]
        count = self._new.function(torch.arange, self.size(dim), device=self._device)
        return self._new.method("view", count, *shape)

    def _element(self, node: Node) -> Any:
        """An element of a captured tensor for each score."""
        indices: list[Any] = []
        while node not in self._captured:
            tensor, index = node.args
            indices = [*(index if isinstance(index, list | tuple) else (index,)), *indices]
            assert isinstance(tensor, Node)
            node = tensor
        found = tuple(self._of(index) if isinstance(index, Node) else index for index in indices)
        element = self._new.function(operator.getitem, self._captured[node], found)
        one = not any(isinstance(index, Node) for index in indices)
        return self._new.method("view", element, *_ONE) if one else element
