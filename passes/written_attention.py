"""Attention written as products and a softmax, read from the softmax on.

Down from it go casts and views to the product with V, up from it masks, scale and softcap to the product of Q and K.
What Q, K and V are is read through views (`passes.views`), so that repeated heads are found to be shared ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from torch_mlir import ir

from flycc.dialects.tensor import Dim, Dims, same, same_dims, stamped
from flycc.passes.attention_masks import fill_of
from flycc.passes.new_ops import new_list, new_op, viewed
from flycc.passes.seen_through import VIEWS, seen_through, sizes
from flycc.passes.torch_ir import constant, new_constant, node_name, operator_name, producer, users
from flycc.passes.views import View

_Item = TypeVar("_Item")

#: The ops that `read_attention` starts at.
SOFTMAXES = ("aten._softmax", "aten.softmax.int", "aten._safe_softmax")
#: The ops that `check_weights` starts at besides.
LOG_SOFTMAXES = ("aten._log_softmax", "aten.log_softmax.int")
_CASTS = ("aten._to_copy", "prims.convert_element_type")
_PRODUCTS = ("aten.bmm", "aten.mm", "aten.baddbmm", "aten.matmul")
_WEIGHING = ("aten.bmm", "aten.mm", "aten.matmul")
#: What programs do to weights before they meet V, or to scores, and kernels do not: operators with all their overloads.
_ON_WEIGHTS = frozenset({"mul", "div", "add", "sub", "where", "masked_fill", "exp", "native_dropout"})
_ON_SCORES = frozenset({"neg", "sub"})
_FLOATS = ("bf16", "f16", "f32")
#: A finite number that masks with it are as good as -inf, but where a query sees nothing.
LOWEST_SCORE = -1e4


class Unlike(Exception):
    """Why what looks like attention is none that a kernel computes."""

    def __init__(self, what: str, sentence: str) -> None:
        super().__init__(sentence)
        self.what, self.sentence = what, sentence


@dataclass(frozen=True, slots=True)
class Mask:
    """A number that is added to each score, or with `fill` bools: true, or with `banned` false, where a key is seen.

    `fill` is what the scores of others become.
    """

    value: ir.Value
    #: The shape of the scores where it meets them.
    scores: Dims
    fill: float | None = None
    banned: bool = False


@dataclass
class Written:
    """Attention in a graph: makers of its operands, masks from the last to the first, and the ops that go with it.

    `root` is the value that it gives, and `dims` its shape: [..., heads, queries, value dim], of the rank of the
    operands. A root of another shape is read only by views that take its elements in any shape.
    """

    query: Operand
    key: Operand
    value: Operand
    root: ir.Value
    dims: Dims
    scores: Dims
    scale: float
    softcap: float
    masks: list[Mask]
    folded: list[ir.Operation]


@dataclass(frozen=True, slots=True)
class Operand:
    """Q, K or V: `order` says which dimension of `source` each of `dims` is, None for a new one of size 1.

    None for `order` itself: `source` has the elements in order, and becomes a view of the sizes `dims`. `factor` is a
    number that the graph multiplies it with.
    """

    source: ir.Value
    order: tuple[int | None, ...] | None
    swapped: bool
    dims: Dims
    factor: float

    def build(self, before: ir.Operation) -> ir.Value:
        """The operand, with views in front of `before` where the graph has none of this form."""
        tensor = stamped(self.source)
        assert tensor is not None
        value = self.source
        if self.order is None:
            sizes_ = [size for size in self.dims if isinstance(size, int)]
            if self.swapped:
                sizes_[-2:] = sizes_[:-3:-1]
            value = viewed(value, sizes_, before)
            return _permuted(value, _swapped(range(len(sizes_))), before) if self.swapped else value
        there = [axis for axis in self.order if axis is not None]
        if there != list(range(len(tensor.dims))):
            value = _permuted(value, there, before)
        for axis, source in enumerate(self.order):
            if source is None:
                dims = list(sizes(value))
                dims.insert(axis, 1)
                value = new_op(
                    "unsqueeze", [value, new_constant(axis, before)], tuple(dims), tensor.dtype, before
                )
        return value


def _swapped(items: Sequence[_Item]) -> list[_Item]:
    """The last two the other way round."""
    return [*items[:-2], items[-1], items[-2]]


def _permuted(value: ir.Value, order: list[int], before: ir.Operation) -> ir.Value:
    tensor = stamped(value)
    assert tensor is not None
    dims = tuple(tensor.dims[axis] for axis in order)
    return new_op("permute", [value, new_list(order, before)], dims, tensor.dtype, before)


def read_attention(softmax: ir.Operation) -> Written | None:
    """The attention that `softmax` is part of, or None where it is part of none. Raises Unlike."""
    weighing, folded = _weighing(softmax)
    if weighing is None:
        check_weights(softmax)
        return None
    reading = _Scores()
    product = reading.read(softmax.operands[0])
    if product is None:
        return None
    weights = stamped(softmax.results[0])
    if weights is None or len(weights.dims) < 2:
        raise Unlike("rank", f"its weights are {softmax.results[0].type}; [..., queries, keys] is needed")
    _check_exclusive(softmax, weighing, folded)
    if constant(softmax.operands[1]) not in (-1, len(weights.dims) - 1):
        raise Unlike("softmax-dim", "its softmax is not over keys, the last dimension")
    if not _in_order(weighing.operands[0], softmax.results[0]):
        raise Unlike("form", "its weights are rearranged before they meet the values")
    reading.check_order(product, weights.dims)
    scores = _split(weighing, weights.dims)
    *outer, queries, keys = scores
    q, k = _factors(product)
    v = weighing.operands[1]
    query = _operand("query", q, (*outer, queries, sizes(q)[-1]), False)
    key = _operand("key", k, (*_heads(outer, sizes(k)), keys, sizes(k)[-2]), True)
    value = _operand("value", v, (*_heads(outer, sizes(v)), keys, sizes(v)[-1]), False)
    if value.factor != 1:
        raise Unlike("form", "its values are multiplied with a number")
    wanted = (*outer, queries, sizes(v)[-1])
    root, behind = _root(weighing, wanted)
    folded = [*behind, weighing, *folded, softmax, *reading.ops]
    scale = reading.scale * query.factor * key.factor
    if not math.isfinite(scale) or scale <= 0:
        raise Unlike("scale", f"its scores are multiplied with {scale}; a positive number is needed")
    return Written(query, key, value, root, wanted, scores, scale, reading.softcap, reading.masks, folded)


def _weighing(softmax: ir.Operation) -> tuple[ir.Operation | None, list[ir.Operation]]:
    """The product of the weights and V, and the ops before it, users first."""
    ops: list[ir.Operation] = []
    value = softmax.results[0]
    while True:
        step = None
        for user in users(value):
            name = operator_name(user)
            if name in _WEIGHING and user.operands[0] == value:
                return user, ops
            if name in VIEWS or name in _CASTS:
                step = user
        if step is None:
            return None, ops
        ops.insert(0, step)
        value = step.results[0]


def check_weights(softmax: ir.Operation) -> None:
    """Raises Unlike where `softmax`, between two products, gives weights that something changes before the second."""
    keys = sizes(softmax.results[0])[-1:]
    if not keys or not _leads_to_product(softmax.operands[0]):
        return
    path = _to_product(softmax.results[0], keys[0])
    changes = [op for op in path or () if _packet(op) in _ON_WEIGHTS]
    if changes:
        what = node_name(changes[0]) or operator_name(changes[0])
        raise Unlike("weights", f"{what} changes its weights before they meet the values; kernels do not")


def _packet(op: ir.Operation) -> str:
    """The name of its operator without the overload, where it is one of PyTorch's: `mul` of `aten.mul.Tensor`."""
    return operator_name(op).removeprefix("aten.").partition(".")[0]


def _to_product(value: ir.Value, keys: Dim, depth: int = 8) -> list[ir.Operation] | None:
    """Ops that make of weights `value` those that a product multiplies with rows for `keys`; None without a product.

    What is made of another product, too, as in a gated layer, are no weights.
    """
    for user in users(value) if depth else ():
        name = operator_name(user)
        if name in _WEIGHING and user.operands[0] == value:
            return [] if same(sizes(value)[-1], keys) else None
        if _packet(user) in _ON_WEIGHTS:
            others = [operand for operand in user.operands if operand != value]
            if not same_dims(sizes(user.results[0]), sizes(value)) or any(map(_leads_to_product, others)):
                continue
        elif name not in VIEWS and name not in _CASTS:
            continue
        rest = _to_product(user.results[0], keys, depth - 1)
        if rest is not None:
            return [user, *rest]
    return None


def _check_exclusive(softmax: ir.Operation, weighing: ir.Operation, between: list[ir.Operation]) -> None:
    """Nothing but `weighing` may read the weights: kernels do not write them."""
    for op in (softmax, *between):
        for user in users(op.results[0]):
            if user in between or user == weighing:
                continue
            if user.name == "func.return":
                raise Unlike(
                    "training",
                    "the graph returns its weights, for its backward pass perhaps, and kernels do not write them",
                )
            raise Unlike(
                "weights",
                f"its weights are also used by {node_name(user) or operator_name(user)}; kernels do not write them",
            )


def _factors(product: ir.Operation) -> tuple[ir.Value, ir.Value]:
    first = 1 if operator_name(product) == "aten.baddbmm" else 0
    return product.operands[first], product.operands[first + 1]


def _split(weighing: ir.Operation, dims: Dims) -> Dims:
    """The sizes of weights: with batch and heads apart where what they make is seen so, though they are not."""
    value = weighing.results[0]
    while len(dims) == 3 and len(used := users(value)) == 1 and operator_name(used[0]) in VIEWS:
        value = used[0].results[0]
        given, seen = View.whole(sizes(weighing.results[0])), sizes(value)
        if (
            len(seen) == 4
            and given is not None
            and given.reshape(seen) is not None
            and same(seen[2], dims[1])
        ):
            return (*seen[:3], dims[2])
    return dims


def _heads(outer: Sequence[Dim], given: Dims) -> Dims:
    """The sizes in front of rows of K or V, `given` in a product: one head where all heads' queries are rows of it."""
    shared, whole = (*outer[:-1], 1), View.whole(given)
    one = outer and whole is not None and whole.reshape((*shared, *given[-2:])) is not None
    return shared if one else tuple(outer)


def _root(weighing: ir.Operation, wanted: Dims) -> tuple[ir.Value, list[ir.Operation]]:
    """The value with the sizes `wanted` that the product with V is seen as, and the ops after the product up to it.

    The product itself where only views to sizes that `wanted` can become, too, read it: what `einsum` rearranges.
    """
    value, ops = weighing.results[0], list[ir.Operation]()
    view = View.whole(sizes(value))
    while view is not None and not same_dims(sizes(value), wanted):
        used = users(value)
        if len(used) != 1 or operator_name(used[0]) not in VIEWS:
            break
        view = seen_through(used[0], view)
        ops.insert(0, used[0])
        value = used[0].results[0]
    whole, source = View.whole(wanted), View.whole(sizes(weighing.results[0]))
    seen = same_dims(sizes(value), wanted)
    if whole is not None and source is not None and view is not None:
        if seen and view == source.reshape(wanted):
            return value, ops
        product = weighing.results[0]
        # The rank tells the FX graph that the shape is another.
        other = len(sizes(product)) != len(wanted) and source.reshape(wanted) == whole
        if other and all(_splits(reader, whole) for reader in users(product)):
            return product, []
        if seen:
            raise Unlike("form", "what it gives is rearranged")
    raise Unlike("form", "what it gives is not seen as [..., queries, value dim] again")


def _splits(op: ir.Operation, whole: View) -> bool:
    """Whether `op` is a view to sizes of its own that a row-major tensor of other sizes, `whole`, can have, too."""
    return operator_name(op) in ("aten.view", "aten._unsafe_view", "aten.reshape") and (
        whole.reshape(sizes(op.results[0])) is not None
    )


def _in_order(value: ir.Value, source: ir.Value) -> bool:
    """Whether `value` has the elements of `source` in their order, seen through views and casts."""
    ops: list[ir.Operation] = []
    while value != source:
        op = producer(value)
        if op is None:
            return False
        ops.insert(0, op)
        value = op.operands[0]
    view = whole = View.whole(sizes(source))
    for op in ops:
        if view is not None and operator_name(op) in VIEWS:
            view = seen_through(op, view)
    return view is not None and whole is not None and view.factors() == whole.factors()


def _operand(name: str, value: ir.Value, dims: Dims, swapped: bool) -> Operand:
    """What `value`, an operand of a product, is of: `dims`, [..., length, dim], the last two `swapped` in it."""
    values, steps = [value], list[ir.Operation]()
    while (op := producer(values[-1])) is not None and (
        operator_name(op) in VIEWS or _widens(op) or _times(op) is not None
    ):
        steps.append(op)
        values.append(op.operands[0])
    seen = tuple(_swapped(dims)) if swapped else dims
    found: list[Operand] = []
    for index in reversed(range(len(values))):
        view = View.whole(sizes(values[index]))
        factor = 1.0
        for op in reversed(steps[:index]):
            if operator_name(op) in VIEWS:
                view = None if view is None else seen_through(op, view)
            else:
                factor *= _times(op) or 1.0
        view = None if view is None else view.reshape(seen)
        if view is None:
            continue
        if swapped:
            view = view.permute(_swapped(range(len(dims))))
        order = _order(view, sizes(values[index]))
        if order is not None:
            found.append(Operand(values[index], order, swapped, dims, factor))
    in_place = [operand for operand in found if operand.order == tuple(range(len(dims)))]
    if in_place or found:
        return (in_place or found)[0]
    if not all(isinstance(dim, int) for dim in dims):
        raise Unlike("form", f"its {name} is not seen to be [..., length, dim] of a tensor")
    return Operand(value, None, swapped, dims, 1.0)


def _widens(op: ir.Operation) -> bool:
    """Whether `op` is a cast that loses nothing."""
    before, after = stamped(op.operands[0]), stamped(op.results[0])
    if operator_name(op) not in _CASTS or before is None or after is None:
        return False
    return before.dtype in ("bf16", "f16") and after.dtype in ("f32", before.dtype)


def _order(view: View, dims: Dims) -> tuple[int | None, ...] | None:
    """Which dimension of a tensor of `dims` each of a view of it is, where they are the same but for repeated heads."""
    whole = View.whole(dims)
    if whole is None or len(dims) > len(view.dims):
        return None
    places = {factors: axis for axis, factors in enumerate(whole.dims) if factors}
    order: list[int | None] = []
    for axis, factors in enumerate(view.dims):
        if axis == len(view.dims) - 3 and factors and factors[-1].stride.number == 0:
            factors = factors[:-1]  # heads share it
        if factors and factors not in places:
            return None
        order.append(places.pop(factors) if factors else None)
    if places:
        return None
    for axis, factors in enumerate(whole.dims):
        if not factors:
            if None not in order:
                return None
            # The dimension of one that is in its place, if it can be.
            place = axis if order[axis] is None else order.index(None)
            order[place] = axis
    return tuple(order)


def _times(op: ir.Operation) -> float | None:
    """What `op` multiplies each element of its first operand with, where that is a number."""
    name = operator_name(op)
    if not name.startswith(("aten.mul.", "aten.div.")) or len(op.operands) != 2:
        return None
    number = fill_of(op.operands[1])
    if number is None or not number:
        return None
    return float(number) if name.startswith("aten.mul.") else 1 / number


@dataclass
class _Scores:
    """What stands between the product of Q and K and the softmax, read upwards."""

    scale: float = 1.0
    softcap: float = 0.0
    masks: list[Mask] = field(default_factory=list)
    ops: list[ir.Operation] = field(default_factory=list)

    def read(self, value: ir.Value) -> ir.Operation | None:
        """Reads up to the product, and returns it; None if there is none."""
        if not _leads_to_product(value):
            return None
        while True:
            op = producer(value)
            assert op is not None, "a product is above"
            name = operator_name(op)
            self.ops.append(op)
            if name in _PRODUCTS:
                if name == "aten.baddbmm":
                    self._add_to_product(op)
                return op
            tensor = stamped(op.results[0])
            if tensor is None or tensor.dtype not in _FLOATS:
                raise Unlike("dtype", f"its scores are {op.results[0].type}")
            if name in VIEWS or name in _CASTS:
                value = op.operands[0]
            elif _times(op) is not None:
                value = self._multiply(op)
            elif name.startswith("aten.add."):
                value = self._add(op)
            else:
                value = self._fill(op, name)

    def check_order(self, product: ir.Operation, dims: Dims) -> None:
        """Views may not rearrange scores, nor masks make more of them: the softmax has `dims`."""
        chain = [op for op in reversed(self.ops) if op != product]
        view, whole = View.whole(sizes(product.results[0])), View.whole(dims)
        for op in chain:
            if view is not None and operator_name(op) in VIEWS:
                view = seen_through(op, view)
        if view is None or whole is None or view.factors() != whole.factors():
            raise Unlike("form", "its scores are rearranged, or broadcast, before the softmax")

    def _multiply(self, op: ir.Operation) -> ir.Value:
        factor, inner = _times(op), producer(op.operands[0])
        assert factor is not None
        while inner is not None and operator_name(inner) in _CASTS:
            self.ops.append(inner)
            inner = producer(inner.operands[0])
        if inner is None or operator_name(inner) != "aten.tanh":
            self.scale *= factor
            return op.operands[0]
        below = producer(inner.operands[0])
        while below is not None and operator_name(below) in _CASTS:
            self.ops.append(below)
            below = producer(below.operands[0])
        ratio = None if below is None else _times(below)
        if below is None or ratio is None or not math.isclose(ratio * factor, 1, rel_tol=1e-6):
            raise Unlike("softcap", "its softcap is not cap * tanh(scores / cap)")
        if self.softcap or self.scale != 1 or factor <= 0:
            raise Unlike("softcap", "its softcap is followed by another factor")
        self.softcap = factor
        self.ops += [inner, below]
        return below.operands[0]

    def _add(self, op: ir.Operation) -> ir.Value:
        left, right, alpha = op.operands
        if constant(alpha) != 1:
            raise Unlike("mask", "what is added to its scores is multiplied with alpha")
        scores, mask = (left, right) if _leads_to_product(left) else (right, left)
        self._mask(op, mask)
        return scores

    def _add_to_product(self, op: ir.Operation) -> None:
        mask, _, _, beta, alpha = op.operands
        alpha_, beta_ = constant(alpha), constant(beta)
        if alpha_ is None or beta_ not in (0, 1):
            raise Unlike("mask", "alpha and beta of its baddbmm must be numbers, beta 0 or 1")
        if beta_ == 1:
            self._mask(op, mask)
        self.scale *= alpha_

    def _fill(self, op: ir.Operation, name: str) -> ir.Value:
        if name.startswith("aten.masked_fill."):
            scores, mask, fill = op.operands
            banned = True
        elif name.startswith("aten.where."):
            mask, first, second = op.operands
            banned = not _leads_to_product(first)
            fill, scores = (first, second) if banned else (second, first)
        else:
            raise Unlike("form", f"{node_name(op) or name} stands between its scores and the softmax")
        number = fill_of(fill)
        if number is None or not number <= LOWEST_SCORE:
            shown = "unknown" if number is None else number
            raise Unlike("mask", f"masked scores become {shown}; -inf or at most {LOWEST_SCORE:g} is needed")
        self._mask(op, mask, float(number), banned)
        return scores

    def _mask(
        self, op: ir.Operation, mask: ir.Value, fill: float | None = None, banned: bool = False
    ) -> None:
        below = fill is not None and fill * self.scale <= LOWEST_SCORE
        if self.softcap or (self.scale != 1 and not below):
            raise Unlike("mask", "its scores are multiplied with a number, or capped, after they are masked")
        self.masks.append(Mask(mask, sizes(op.results[0]), fill, banned))


def _leads_to_product(value: ir.Value, depth: int = 24) -> bool:
    """Whether `value` is made of a product by what can stand between scores and softmax."""
    op = producer(value)
    if op is None or not depth:
        return False
    name = operator_name(op)
    if name in _PRODUCTS:
        return True
    if name.startswith(("aten.add.", "aten.where.")):
        return any(_leads_to_product(operand, depth - 1) for operand in op.operands)
    through = name in VIEWS or name in _CASTS or name == "aten.tanh"
    through |= name.startswith(("aten.masked_fill.", "aten.mul.", "aten.div.")) or _packet(op) in _ON_SCORES
    return through and _leads_to_product(op.operands[0], depth - 1)
