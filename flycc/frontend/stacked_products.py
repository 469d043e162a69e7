"""Makes products of one matrix and each slice of a tensor one batch of products, with what follows them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from flycc.contracts import Reason
from flycc.frontend.fakes import evaluate, example
from flycc.frontend.lockstep import (
    CHUNKS,
    NEW,
    POINTWISE,
    PRODUCTS,
    Lane,
    NotAlike,
    Slices,
    called,
    check_lane,
    check_same,
    in_turn,
    pack_arguments,
    plain,
    refuse,
    same_call,
    slice_of,
    switches_mode,
    writes,
    written,
)
from flycc.frontend.nodes import changes_dispatch


def stack_products(gm: GraphModule) -> list[Reason]:
    """Replaces unrolled loops in which every expert sees every token, and says why others stay.

    `gm` is the graph that Dynamo hands to a backend; it is edited. What is replaced, in the words of Python:

        for e in range(E):
            y = y + scores[:, e, None] * F.linear(act(F.linear(x, w1[e])), w2[e])

    and what it becomes:

        h = act(torch.bmm(x.expand(E, -1, -1), w1.mT))
        each = torch.bmm(h, w2.mT)
        for e in range(E):
            y = y + scores[:, e, None] * each[e]

    The results of the batch are the same but for the order of float32 sums in a product and for biases of
    linear layers, before which there is one rounding more. What slices of the batch are used for stays as it is,
    wherever it is not the same for all of them.
    """
    if changes_dispatch(gm):
        return []
    return in_turn(gm, [(_Stack(gm.graph), products) for products in _stacks(gm.graph)])


def _stacks(graph: Graph) -> Iterator[list[list[Node]]]:
    """For each matrix, its products with all slices of a tensor, in their order, for one tensor or several."""
    found: dict[Node, dict[Any, dict[int, Node]]] = {}
    for node in graph.nodes:
        if called(node) is not torch._C._nn.linear and called(node) not in PRODUCTS:
            continue
        if len(node.args) < 2 or node.kwargs or not all(isinstance(arg, Node) for arg in node.args[:2]):
            continue
        x, weight = node.args[:2]
        place = slice_of(weight)
        if place is not None and example(x).dim() == 2 and example(weight).dim() == 2:
            tensor, e, inner = place
            found.setdefault(x, {}).setdefault((called(node), tensor, str(inner)), {}).setdefault(e, node)
    for by_tensor in found.values():
        stacks: dict[int, list[list[Node]]] = {}
        for (_, tensor, _), by_expert in by_tensor.items():
            experts = sorted(by_expert)
            if len(experts) > 1 and experts == list(range(_count(tensor))):
                stacks.setdefault(len(experts), []).append([by_expert[e] for e in experts])
        yield from stacks.values()


def _count(tensor: Node) -> int:
    size = example(tensor).shape[0]
    return size if isinstance(size, int) else 0


@dataclass
class _Stack:
    """One stack while it is replaced; the new nodes, `made`, have what belongs to slice e at place e of dimension 0."""

    graph: Graph
    lanes: dict[Node, tuple[Lane, int]] = field(default_factory=dict)
    made: list[Node] = field(default_factory=list)

    def replace(self, products: list[list[Node]]) -> None:
        """Makes one of each of `products`, and of what uses them alike.

        Raises NotAlike; then `give_up` restores the graph.
        """
        position = {node: index for index, node in enumerate(self.graph.nodes)}
        self._escaping = _escaping(self.graph)
        for nodes in products:
            self._take(nodes)
        waiting = {user for nodes in products for user in nodes[0].users}
        while waiting:
            user = min(waiting, key=position.__getitem__)
            waiting.discard(user)
            if user in self.lanes:
                continue
            for nodes in self._corresponding(user):
                before = len(self.made)
                try:
                    self._take(nodes)
                    waiting.update(user.users)
                    break
                except NotAlike:  # each slice goes its own way
                    for node in reversed(self.made[before:]):
                        self.graph.erase_node(node)
                    del self.made[before:]
        self._check_writes(position)
        self._hand_out()
        for node in sorted(self.lanes, key=position.__getitem__, reverse=True):
            if not node.users:
                self.graph.erase_node(node)

    def give_up(self) -> None:
        for node in reversed(self.made):
            self.graph.erase_node(node)

    def _corresponding(self, user: Node) -> Iterator[list[Node]]:
        """What may correspond to `user`, which uses a first slice."""
        for source in user.all_input_nodes:
            lane, _ = self.lanes.get(source, (None, 0))
            if lane is not None and len({len(node.users) for node in lane.nodes}) == 1:
                place = list(lane.nodes[0].users).index(user)
                yield [list(node.users)[place] for node in lane.nodes]

    def _take(self, nodes: list[Node]) -> None:
        first = nodes[0]
        if len(set(nodes)) < len(nodes) or any(not same_call(node, first) for node in nodes):
            raise refuse("differs", f"{first} and {nodes[-1]} are not the same call")
        if any(not self._escaping.isdisjoint(_storages(example(node))) for node in nodes):
            raise refuse(
                "shared", f"{first} or its like is returned or written to, so it needs memory of its own"
            )
        args = pack_arguments([node.args for node in nodes], self.lanes)
        options = {
            name: pack_arguments([node.kwargs.get(name) for node in nodes], self.lanes)
            for name in first.kwargs
        }
        # The slice that is computed first needs not be slice 0; its arguments are there, and none of its users.
        with self.graph.inserting_before(min(nodes)):
            lane = Lane(tuple(nodes), self._one(first, args, options))
        check_lane(lane, self.made)
        self.lanes.update((node, (lane, e)) for e, node in enumerate(nodes))

    def _one(self, first: Node, args: tuple[Any, ...], options: dict[str, Any]) -> Node:
        target = called(first)
        if target is operator.getitem and isinstance(args[0], Lane) and isinstance(args[0].example, tuple):
            return self._new(first, args, options)
        if target is torch._C._nn.linear and not options and isinstance(args[1], Slices):
            product = self._batch(args[0], replace(args[1], transposed=not args[1].transposed))
            bias = self._beside(first, args[2]) if len(args) > 2 and args[2] is not None else None
            return product if bias is None else self._call(operator.add, product, bias)
        if target in PRODUCTS and len(args) == 2 and not options and isinstance(args[1], Slices):
            return self._batch(args[0], args[1])
        if target in POINTWISE and not options.get("inplace") and not any(a is True for a in args):
            beside = [self._beside(first, a) for a in args]
            return self._new(first, beside, {name: self._beside(first, a) for name, a in options.items()})
        if target in CHUNKS and isinstance(args[0], Lane):
            dim = args[2] if len(args) > 2 else options.get("dim", 0)
            from_the_end = dim if dim < 0 else dim - args[0].example.dim()
            return self._new(first, args[:2], {"dim": from_the_end})
        raise refuse("op", f"{first} is not known to treat slices one by one")

    def _batch(self, x: Any, weight: Slices) -> Node:
        """The matrices `x`, or for all the matrix `x`, times the slices of `weight`, [K, N]."""
        seen = x.example if isinstance(x, Lane) else example(x) if isinstance(x, Node) else None
        if not isinstance(seen, Tensor) or seen.dim() != 2:
            raise refuse("op", "a factor is no matrix")
        a = x.packed if isinstance(x, Lane) else self._method("expand", x, _count(weight.tensor), -1, -1)
        b = self._whole(weight)
        return self._call(torch.bmm, a, self._method("transpose", b, -2, -1) if weight.transposed else b)

    def _whole(self, slices: Slices) -> Node:
        if not slices.inner:
            return slices.tensor
        return self._call(operator.getitem, slices.tensor, (slice(None), *slices.inner))

    def _beside(self, first: Node, value: Any) -> Any:
        """`value` as an operand of a pointwise op whose first node is `first`."""
        rank = example(first).dim()
        if isinstance(value, Slices) and not value.transposed:
            missing = (None,) * (rank - value.first.dim())
            return (
                self._call(operator.getitem, self._whole(value), (slice(None), *missing))
                if missing
                else self._whole(value)
            )
        if isinstance(value, Slices) or (isinstance(value, Lane) and value.example.dim() != rank):
            raise refuse("op", f"{first} gives its operands other dimensions")
        return value

    def _check_writes(self, position: dict[Node, int]) -> None:
        """Slices are now computed with the first; nothing that is written until the last may reach them."""
        first, last = (f(position[node] for node in self.lanes) for f in (min, max))
        for node, index in position.items():
            if not first <= index <= last:
                continue
            if switches_mode(node):
                raise refuse("mode", f"{node} may change how products are computed or recorded")
            if not writes(node):
                continue
            root = node
            while writes(root) and root.args and isinstance(root.args[0], Node):
                root = root.args[0]
            if called(root) not in NEW or not self.lanes.keys().isdisjoint(_descendants(root)):
                raise refuse(
                    "write", f"{node} may write to memory between products of {next(iter(self.lanes))}"
                )

    def _hand_out(self) -> None:
        """Users that are no lanes take their slice of the batch."""
        taken = {node: [user for user in node.users if user not in self.lanes] for node in self.lanes}
        for node, users in taken.items():
            if users and isinstance(example(node), tuple):
                raise refuse("op", f"{users[0]} takes a part of {node} that others do not")
        parts = {}
        for node in filter(taken.get, taken):
            lane, e = self.lanes[node]
            with self.graph.inserting_before(node):
                parts[node] = self._call(operator.getitem, lane.packed, e)
            evaluate(self.made, node)
            check_same(node, parts[node])
        for node, part in parts.items():
            for user in taken[node]:
                user.replace_input_with(node, part)

    def _new(self, first: Node, args: Sequence[Any], options: dict[str, Any]) -> Node:
        self.made.append(self.graph.create_node(first.op, first.target, plain(args), plain(options)))
        return self.made[-1]

    def _call(self, function: Any, *args: Any) -> Node:
        self.made.append(self.graph.call_function(function, args))
        return self.made[-1]

    def _method(self, name: str, *args: Any) -> Node:
        self.made.append(self.graph.call_method(name, args))
        return self.made[-1]


def _escaping(graph: Graph) -> set[int]:
    """The memory of what `graph` returns or writes to, where products may not share a batch's."""
    found: set[int] = set()
    for node in graph.nodes:
        for given in node.all_input_nodes if node.op == "output" else written(node):
            found |= _storages(example(given))
    return found


def _storages(value: Any) -> set[int]:
    values = value if isinstance(value, tuple | list) else (value,)
    return {item.untyped_storage()._cdata for item in values if isinstance(item, Tensor)}


def _descendants(root: Node) -> Iterable[Node]:
    seen: set[Node] = set()
    waiting = [root]
    while waiting:
        new = waiting.pop().users.keys() - seen
        seen |= new
        waiting.extend(new)
    return seen
