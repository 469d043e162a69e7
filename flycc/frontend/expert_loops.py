"""Makes a loop over experts that Dynamo has unrolled one iteration over all of them, with grouped products."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
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
)
from flycc.frontend.nodes import changes_dispatch


def roll_up_expert_loops(gm: GraphModule) -> list[Reason]:
    """Replaces loops over experts in `gm` and says why others stay.

    `gm` is the graph that Dynamo hands to a backend; it is edited. What is replaced, in the words of Python:

        for e in range(E):
            slot, token = torch.where(mask[e])           # or torch.where(chosen == e)
            h = act(F.linear(x[token], w1[e]))
            out.index_add_(0, token, F.linear(h, w2[e]) * scores[token, slot, None])

    and what it becomes, with offsets and everything else on the device:

        expert, slot, token = torch.where(mask)
        offsets = mask.ne(0).sum([1, 2]).cumsum(0, dtype=torch.int32)
        h = act(F.grouped_mm(x[token], w1.mT, offs=offsets))
        out.index_add_(0, token, F.grouped_mm(h, w2.mT, offs=offsets) * scores[token, slot, None])

    `where` of the whole mask gives the places of the iterations one after the other. So every op must compute the
    rows of chosen tokens each by itself, and weights must be slices of one tensor. Then the result is the loop's, but
    for the order in which a product is summed in float32, for biases of linear layers, before which there is one
    rounding more, and for roundings within `index_add`, which PyTorch may leave out between rows of one call.
    Iterations find places without a host that waits for their number; the loop waited E times.
    """
    if changes_dispatch(gm):
        return []
    return in_turn(gm, [(_Loop(gm.graph), choices) for choices in _loops(gm.graph)])


@dataclass(frozen=True)
class _Choice:
    """Where iteration `expert` asks which tokens chose it: `torch.where(source[expert])`, or `source == expert`."""

    source: Node
    expert: int
    compared: bool
    where: Node


def _loops(graph: Graph) -> list[list[_Choice]]:
    """The iterations of each loop, in order of experts; there are two at least."""
    found: dict[tuple[Node, bool], list[_Choice]] = {}
    for choice in filter(None, map(_choice, graph.nodes)):
        found.setdefault((choice.source, choice.compared), []).append(choice)
    return [sorted(choices, key=lambda c: c.expert) for choices in found.values() if len(choices) > 1]


def _choice(node: Node) -> _Choice | None:
    as_tuple = node.kwargs == {"as_tuple": True} and called(node) in (torch.nonzero, "nonzero")
    if not as_tuple and (called(node) is not torch.where or node.kwargs):
        return None
    if len(node.args) != 1 or not isinstance(node.args[0], Node):
        return None
    mask = node.args[0]
    if (place := slice_of(mask)) is not None:
        source, expert, inner = place
        return None if inner else _Choice(source, expert, False, node)
    if called(mask) in (operator.eq, torch.eq, "eq") and len(mask.args) == 2:
        chosen, expert = mask.args
        if isinstance(chosen, Node) and isinstance(expert, int):
            return _Choice(chosen, expert, True, node)
    return None


_RESHAPES = ("reshape", "view", torch.reshape)
_ADDITIONS = (torch.index_add, "index_add", "index_add_")


@dataclass
class _Loop:
    """One loop while it is rolled up.

    `lanes` has the nodes of the iterations, `ends` those that add an iteration's rows up, `dropped` those that only
    assert sizes; `made` are new ones.
    """

    graph: Graph
    lanes: dict[Node, tuple[Lane, int]] = field(default_factory=dict)
    ends: list[list[Node]] = field(default_factory=list)
    dropped: set[Node] = field(default_factory=set)
    made: list[Node] = field(default_factory=list)
    products: int = 0

    def replace(self, choices: list[_Choice]) -> None:
        """Raises NotAlike, and then `give_up` restores the graph."""
        self._position = {node: index for index, node in enumerate(self.graph.nodes)}
        with self.graph.inserting_before(choices[0].where):
            self._choose(choices)
        while (nodes := self._next()) is not None:
            self._take(nodes)
        if not self.products:
            raise refuse("no-product", "no product in it takes an expert's weight")
        self._check_writes()
        for end, packed in zip(self.ends, self._packed_ends, strict=True):
            end[-1].replace_all_uses_with(packed)
        gone = {*self.lanes, *self.dropped, *(node for end in self.ends for node in end)}
        for node in sorted(gone, key=self._position.__getitem__, reverse=True):
            self.graph.erase_node(node)
        for node in reversed(self.made):
            if not node.users and node not in self._packed_ends:
                self.graph.erase_node(node)

    def give_up(self) -> None:
        for node in reversed(self.made):
            self.graph.erase_node(node)

    # How the walk goes: from the first iteration's nodes, in the order of the graph, to those that use them.

    def _choose(self, choices: list[_Choice]) -> None:
        """The first lane: the places of all chosen tokens, their experts, and the offsets of the groups."""
        first, experts = choices[0], len(choices)
        source = example(first.source)
        if [choice.expert for choice in choices] != list(range(experts)) or (
            not first.compared and source.shape[0] != experts
        ):
            seen = ", ".join(str(choice.expert) for choice in choices[:8])
            raise refuse(
                "experts",
                f"it runs over the experts {seen}; they must be all of the mask's, each once, from 0 on",
            )
        mask = first.source
        if first.compared:
            shape = [experts] + [1] * source.dim()
            device = self._call(getattr, mask, "device")
            numbers = self._call(torch.arange, experts, device=device)
            mask = self._call(torch.eq, mask, self._method("view", numbers, shape))
        dims = list(range(1, source.dim() + first.compared))
        if len(example(first.where)) != len(dims):
            raise refuse("op", f"{first.where} looks at one number an expert, not at tokens")
        self.rows = tuple(example(choice.where)[0].shape[0] for choice in choices)
        where = self._call(torch.where, mask)
        self.experts = self._call(operator.getitem, where, 0)
        counts = self._method("sum", self._method("ne", mask, 0), dims)
        self.offsets = self._method("cumsum", counts, 0, dtype=torch.int32)
        self._where = self._add([choice.where for choice in choices], where)
        self._packed_ends: list[Node] = []

    def _next(self) -> list[Node] | None:
        """The first nodes in the graph's order that use what is known and are not known themselves."""
        known = {*self.lanes, *self.dropped, *(node for end in self.ends for node in end)}
        candidates = {
            user: lane
            for lane in dict.fromkeys(lane for lane, _ in self.lanes.values())
            for user in lane.nodes[0].users
            if user not in known
        }
        if not candidates:
            self._check_users(known)
            return None
        user = min(candidates, key=self._position.__getitem__)
        lane = candidates[user]
        place = list(lane.nodes[0].users).index(user)
        if len({len(node.users) for node in lane.nodes}) > 1:
            raise refuse("differs", f"{lane.nodes[0]} and {lane.nodes[-1]} are not used alike")
        return [list(node.users)[place] for node in lane.nodes]

    def _check_users(self, known: set[Node]) -> None:
        """Nothing but the loop itself uses what is computed in it."""
        for node in self.lanes:
            for user in node.users:
                if user not in known:
                    raise refuse("differs", f"{user} uses {node}, but no other iteration has the like")

    def _take(self, nodes: list[Node]) -> None:
        """Makes one of `nodes`, which correspond to each other."""
        first = nodes[0]
        if first.target is torch.ops.aten.sym_size.int:
            self.dropped.update(asserted for node in nodes for asserted in self._asserted(node))
            return
        if any(not same_call(node, first) for node in nodes):
            raise refuse("differs", f"iterations differ: {first} and {nodes[-1]} are not the same call")
        with self.graph.inserting_before(first):
            if called(first) in _ADDITIONS:
                self._end(nodes)
                return
            args = pack_arguments([node.args for node in nodes], self.lanes)
            options = {
                name: pack_arguments([node.kwargs.get(name) for node in nodes], self.lanes)
                for name in first.kwargs
            }
            self._add(nodes, self._one(first, args, options))

    def _asserted(self, size: Node) -> Iterator[Node]:
        """`size`, and what compares and asserts it; `where` gives as many places as its mask has elements at most."""
        yield size
        for user in size.users:
            if called(user) in (operator.ge, operator.le) and all(
                check.target is torch.ops.aten._assert_scalar.default for check in user.users
            ):
                yield from (user, *user.users)
            else:
                raise refuse("op", f"{user} computes with the number of tokens of one expert")

    def _add(self, nodes: Sequence[Node], packed: Node) -> Lane:
        lane = Lane(tuple(nodes), packed)
        check_lane(lane, self.made)
        for e, node in enumerate(nodes):
            self.lanes[node] = lane, e
        if isinstance(lane.example, Tensor):
            dims = {self._rows_dim(node, e) for e, node in enumerate(nodes)}
            if len(dims) > 1:
                raise refuse("differs", f"{nodes[0]} and {nodes[-1]} have different shapes")
        return lane

    def _rows_dim(self, node: Node, e: int) -> int:
        """The dimension of the tokens that chose expert `e`. Raises NotAlike unless there is exactly one."""
        rows = str(self.rows[e])
        dims = [dim for dim, size in enumerate(example(node).shape) if rows in str(size)]
        if len(dims) != 1 or str(example(node).shape[dims[0]]) != rows:
            raise refuse("op", f"{node} does not keep the tokens of an expert along one dimension")
        return dims[0]

    # One op for all iterations.

    def _one(self, first: Node, args: tuple[Any, ...], options: dict[str, Any]) -> Node:
        target = called(first)
        if target is operator.getitem:
            return self._getitem(first, *args)
        if target is torch._C._nn.linear and not options:
            return self._linear(first, *args)
        if target in PRODUCTS and len(args) == 2 and not options and isinstance(args[1], Slices):
            return self._grouped(first, args[0], args[1])
        if target in POINTWISE and not options.get("inplace") and not any(a is True for a in args):
            aligned = [self._aligned(first, a) for a in args]
            return self._like(first, aligned, {name: self._aligned(first, a) for name, a in options.items()})
        if target in CHUNKS and self._other_dim(first, args, options):
            return self._like(first, args, options)
        if target in _RESHAPES and self._regroups(first, args):
            return self._like(first, args, options)
        if target == "unsqueeze":
            return self._like(first, args, options)
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        raise refuse("op", f"{name} ({first}) is not known to compute each token's row by itself")

    def _like(self, first: Node, args: Sequence[Any], options: dict[str, Any]) -> Node:
        """The call of `first` for all rows."""
        node = self.graph.create_node(first.op, first.target, plain(args), plain(options))
        self.made.append(node)
        return node

    def _getitem(self, first: Node, source: Any, index: Any) -> Node:
        if isinstance(source, Lane):
            if source is self._where:
                return self._call(operator.getitem, source.packed, index + 1)
            if isinstance(source.example, tuple) and isinstance(index, int):
                return self._like(first, (source, index), {})
            if self._keeps_rows(source, index):
                return self._like(first, (source, index), {})
            raise refuse("op", f"{first} indexes tokens of one expert")
        items = index if isinstance(index, tuple) else (index,)
        if not isinstance(source, Node) or any(isinstance(item, Slices) for item in items):
            raise refuse("op", f"{first} indexes a slice of an expert's own")
        return self._like(first, (source, index), {})

    def _keeps_rows(self, source: Lane, index: Any) -> bool:
        """Whether `index` takes the dimension of rows of `source` as it is."""
        items = list(index) if isinstance(index, tuple) else [index]
        if any(isinstance(item, Node | Lane | Slices | bool | list | tuple) for item in items):
            return False
        dims = len(source.example.shape)
        taken = [item for item in items if item is not None]
        full = slice(None)
        if Ellipsis in taken:
            at = taken.index(Ellipsis)
            taken[at : at + 1] = [full] * (dims - len(taken) + 1)
        row = self._rows_dim(source.nodes[0], 0)
        return row >= len(taken) or taken[row] == full

    def _linear(self, first: Node, x: Any, weight: Any, bias: Any = None) -> Node:
        if isinstance(weight, Node) and isinstance(x, Lane) and not isinstance(bias, Lane | Slices):
            if self._rows_dim(x.nodes[0], 0) == len(x.example.shape) - 1:
                raise refuse("op", f"{first} sums over tokens")
            return self._like(first, (x, weight, bias), {})
        if not isinstance(weight, Slices):
            raise refuse("op", f"{first} takes no expert's weight")
        product = self._grouped(first, x, replace(weight, transposed=not weight.transposed))
        if bias is None:
            return product
        return self._call(operator.add, product, plain(self._aligned(first, bias)))

    def _grouped(self, first: Node, x: Any, weight: Slices) -> Node:
        """Rows of `x` times the weight of their expert, [K, N]."""
        if not isinstance(x, Lane) or len(x.example.shape) != 2 or self._rows_dim(x.nodes[0], 0) != 0:
            raise refuse("op", f"{first} multiplies something else than rows of tokens by an expert's weight")
        matrix = weight.first
        dtypes = {x.example.dtype, matrix.dtype}
        if dtypes != {torch.bfloat16}:
            seen = " and ".join(sorted(str(dtype) for dtype in dtypes))
            raise refuse(
                "dtype", f"{first} multiplies {seen}; PyTorch compiles grouped products of bfloat16 only"
            )
        steps = [stride for stride in matrix.stride() if stride != 1]
        if matrix.dim() != 2 or any(type(n) is not int or n % 8 for n in (*matrix.shape, *steps)):
            seen = f"{list(matrix.shape)} with strides {list(matrix.stride())}"
            raise refuse(
                "align",
                f"a weight of {first} is {seen}; PyTorch's grouped products need multiples of 8 elements",
            )
        self.products += 1
        b = self._whole(weight)
        if weight.transposed:
            b = self._call(torch.transpose, b, -2, -1)
        product = self._call(F.grouped_mm, x.packed, b, offs=self.offsets)
        try:
            evaluate(self.made, first)
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            raise refuse("align", f"PyTorch refuses a grouped product for {first}: {text}") from error
        return product

    def _whole(self, slices: Slices) -> Node:
        """The slices of all experts."""
        if not slices.inner:
            return slices.tensor
        return self._call(operator.getitem, slices.tensor, (slice(None), *slices.inner))

    def _aligned(self, first: Node, value: Any) -> Any:
        """`value` as an operand of a pointwise op whose first node is `first`: row by row beside the result's rows."""
        if isinstance(value, Slices):
            rank = len(example(first).shape)
            if value.transposed or value.first.dim() != rank - 1 or self._rows_dim(first, 0) != 0:
                raise refuse("op", f"{first} does not combine each row with one vector of its expert")
            return self._call(operator.getitem, self._whole(value), self.experts)
        if not isinstance(value, Node | Lane):
            return value
        seen = example(value) if isinstance(value, Node) else value.example
        if not isinstance(seen, Tensor):
            return value
        from_the_end = len(example(first).shape) - self._rows_dim(first, 0)
        if isinstance(value, Lane):
            fits = len(seen.shape) - self._rows_dim(value.nodes[0], 0) == from_the_end
        else:
            fits = seen.dim() < from_the_end or (
                isinstance(seen.shape[-from_the_end], int) and seen.shape[-from_the_end] == 1
            )
        if not fits:
            raise refuse("op", f"{first} combines rows of tokens with other rows")
        return value

    def _other_dim(self, first: Node, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Whether a chunk or split is along another dimension than that of rows."""
        source, *rest = args
        dim = rest[1] if len(rest) > 1 else options.get("dim", 0)
        if not isinstance(source, Lane) or not isinstance(dim, int):
            return False
        return dim % len(source.example.shape) != self._rows_dim(source.nodes[0], 0)

    def _regroups(self, first: Node, args: tuple[Any, ...]) -> bool:
        """Whether a reshape adds or drops dimensions of size 1 only, and leaves the number of rows open."""
        source, *sizes = args
        if not isinstance(source, Lane):
            return False
        before, after = ([str(n) for n in x.shape if str(n) != "1"] for x in (source.example, example(first)))
        flat = [n for item in sizes for n in (item if isinstance(item, tuple) else (item,))]
        return (
            before == after and len(flat) > self._rows_dim(first, 0) and flat[self._rows_dim(first, 0)] == -1
        )

    # The end of an iteration: its rows are added to those of their tokens.

    def _end(self, nodes: list[Node]) -> None:
        """One addition of all rows. Additions in place share their tensor, others take the one before's result."""
        first = nodes[0]
        if any(len(node.args) != 4 or node.kwargs for node in nodes):
            raise refuse("op", f"{first}: index_add must have the arguments (dim, index, source) alone")
        base, *rest = zip(*(node.args for node in nodes), strict=True)
        in_place = first.target == "index_add_"
        dim, index, rows = pack_arguments(list(zip(*rest, strict=True)), self.lanes)
        chained = [first.args[0], *nodes[:-1]]
        if list(base) != ([first.args[0]] * len(nodes) if in_place else chained):
            raise refuse("differs", f"iterations add to different tensors: {base[0]} and {base[-1]}")
        users = [user for node in nodes for user in node.users if user not in nodes]
        if users and (in_place or any(user not in nodes[-1].users for user in users)):
            raise refuse("write", f"{users[0]} uses what some of the iterations have added up")
        if dim != 0 or not isinstance(index, Lane) or not isinstance(rows, Lane):
            raise refuse("op", f"{first} must add rows of tokens along dimension 0")
        if self._rows_dim(rows.nodes[0], 0) != 0 or len(index.example.shape) != 1:
            raise refuse("op", f"{first} must add rows of tokens along dimension 0")
        self.ends.append(nodes)
        packed = self._like(first, (first.args[0], dim, index, rows), {})
        check_lane(Lane(tuple(nodes), packed), self.made)
        check_same(nodes[-1], packed)
        self._packed_ends.append(packed)

    def _check_writes(self) -> None:
        """Rows are now computed, and added, before what stood between iterations; no write there may be seen."""
        ends = [node for end in self.ends for node in end]
        inside = {*self.lanes, *self.dropped, *ends}
        first, last = (f(self._position[node] for node in inside) for f in (min, max))
        for node, position in self._position.items():
            if not first <= position <= last or node in inside:
                continue
            if switches_mode(node):
                raise refuse("mode", f"{node} may change how iterations are computed or recorded")
            if writes(node):
                raise refuse("write", f"{node} may write to memory between iterations")
        for end in self.ends:
            if end[0].target != "index_add_":
                continue
            out = end[0].args[0]
            assert isinstance(out, Node)
            if called(out) not in NEW:
                raise refuse(
                    "write", f"{out}, which it adds to, must be a tensor made for that, such as zeros_like"
                )
            early = [user for user in out.users if self._position.get(user, last) < last and user not in end]
            if early:
                raise refuse("write", f"{early[0]} uses {out} before everything is added to it")

    # New nodes.

    def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Node:
        self.made.append(self.graph.call_function(function, args, options))
        return self.made[-1]

    def _method(self, name: str, *args: Any, **options: Any) -> Node:
        self.made.append(self.graph.call_method(name, args, options))
        return self.made[-1]
