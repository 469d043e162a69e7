"""RMS norms that a Dynamo graph has in primitive calls, as models write them by hand.

`passes/norm_reading.py` reads the same of ATen graphs, where it is too late for those that autograd
differentiates. A norm here is `x * rsqrt(mean(x**2) + eps)` over the last dimension in float32, between casts,
with or without a product with a weight or 1 + weight.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

#: The float types of x, weight and result.
DTYPES = (torch.bfloat16, torch.float16, torch.float32)

#: The targets of calls that take a mean, and of those that add.
MEANS = (torch.mean, "mean")
ADDITIONS = (operator.add, torch.add, "add")
SUBTRACTIONS = (operator.sub, operator.isub, torch.sub, "sub", "sub_")

#: What a call computes, by its function or, for a method, its name.
_KINDS: dict[Any, str] = {
    **dict.fromkeys((operator.mul, torch.mul, "mul"), "mul"),
    **dict.fromkeys(ADDITIONS, "add"),
    **dict.fromkeys((operator.truediv, torch.div, "div"), "div"),
    **dict.fromkeys((operator.pow, torch.pow, "pow"), "pow"),
    **dict.fromkeys((torch.square, "square"), "square"),
    **dict.fromkeys(MEANS, "mean"),
    **dict.fromkeys((torch.rsqrt, "rsqrt"), "rsqrt"),
    **dict.fromkeys((torch.sqrt, "sqrt"), "sqrt"),
    **dict.fromkeys((torch.reciprocal, "reciprocal"), "reciprocal"),
    **dict.fromkeys(("to", "type", "type_as", "float", "half", "bfloat16"), "cast"),
}


@dataclass(frozen=True)
class WrittenNorm:
    """`y`, of the type it has in the graph, is the norm of `x`; `inner` are the calls before it, users first.

    `weight_offset` and `cast_before_weight` mean what they mean in `RmsNormProblem`.
    """

    x: Node
    y: Node
    eps: float
    inner: tuple[Node, ...]
    weight: Node | None
    weight_offset: bool
    cast_before_weight: bool


class _NoNorm(Exception):
    """What was read so far makes no norm."""


def read_written_norm(mean: Node) -> WrittenNorm | None:
    """The norm whose mean of squares `mean` is, or None.

    None too where it needs no gradient, where anything else uses a value between x and y (casts of x or
    weight aside), and where other calls stand among its own: those could write to what it reads.
    """
    try:
        return _read(mean)
    except _NoNorm:
        return None


def _read(mean: Node) -> WrittenNorm:
    squares, wide = _squared(mean)
    chain = _Chain(mean, [squares, mean])
    root, eps = chain.user(), 0.0
    if _kind(root) == "add":
        eps, _ = chain.step(root)
        _require(isinstance(eps, int | float) and eps >= 0)
        root = chain.user()
    x, widening = _unwidened(wide)
    other, other_widening = _unwidened(_scale(chain, root))
    _require(other is x and _dtype(x) in DTYPES and not _is_centred(x))
    _require(_dtype(squares) == _dtype(chain.value) == torch.float32)
    weight, weight_offset, weight_calls, cast_before_weight = _weigh(chain, x)
    y = chain.value
    _require(_dtype(y) in DTYPES and y.meta["example_value"].requires_grad)
    whole = sorted({*chain.calls, *widening, *other_widening, *weight_calls})
    _check_exclusive(chain.calls, whole, y)
    inner = tuple(node for node in reversed(whole) if node is not y)
    return WrittenNorm(x, y, float(eps), inner, weight, weight_offset, cast_before_weight)


@dataclass
class _Chain:
    """A value and the calls it came through, of which each alone uses the one before."""

    value: Node
    calls: list[Node]

    def user(self) -> Node | None:
        """The call that alone uses the value, behind casts to the type that it has."""
        value = self.value
        while len(value.users) == 1:
            [user] = value.users
            if _kind(user) != "cast" or _dtype(user) != _dtype(value):
                return user
            value = user
        return None

    def step(self, call: Node | None) -> tuple[Any, int]:
        """Goes on to the result of `call`, the user. Its other argument (or None), and where the value stands."""
        assert call is not None
        while call not in self.value.users:
            [self.value] = self.value.users
            self.calls.append(self.value)
        places = [place for place, argument in enumerate(call.args) if argument is self.value]
        _require(len(places) == 1)
        others = [argument for argument in call.args if argument is not self.value]
        self.value = call
        self.calls.append(call)
        return (others[0] if others else None), places[0]


def _squared(mean: Node) -> tuple[Node, Node]:
    """What `mean` averages over the last dimension, and what that is the square of."""
    _require(_kind(mean) == "mean" and _dtype(mean) is not None)
    squares = _averaged(mean)
    kind = _kind(squares)
    _require(kind in ("pow", "square", "mul"))
    wide, *rest = squares.args
    _require(isinstance(wide, Node) and rest == {"pow": [2], "square": [], "mul": [wide]}[kind or ""])
    return squares, wide  # type: ignore[return-value]


def _is_centred(x: Node) -> bool:
    """Whether `x` is a tensor less its own mean over the last dimension, which makes a layer norm."""
    if x.target not in (*SUBTRACTIONS, *ADDITIONS) or len(x.args) != 2:
        return False
    minuend, mean = x.args
    if x.kwargs.get("alpha", 1) != (1 if x.target in SUBTRACTIONS else -1) or _kind(mean) != "mean":
        return False
    try:
        return _averaged(mean) is minuend
    except _NoNorm:
        return False


def _averaged(mean: Node) -> Node:
    """What `mean` averages over the last dimension, which it keeps."""

    def averaged(input: Node, dim: Any = None, keepdim: Any = False, **others: Any) -> Node:
        rank = input.meta["example_value"].dim()
        dims = list(dim) if isinstance(dim, list | tuple) else [dim]
        _require(rank > 0 and dims in ([-1], [rank - 1]) and keepdim is True and not others)
        return input

    return averaged(*mean.args, **mean.kwargs)


def _scale(chain: _Chain, root: Node | None) -> Any:
    """Goes on to the product with 1 / `root`, or the division by it; returns what is scaled."""
    kind = _kind(root)
    _require(kind in ("rsqrt", "sqrt", "pow"))
    given, place = chain.step(root)
    exponent = {"rsqrt": -0.5, "sqrt": 0.5}.get(kind or "", given)
    _require(exponent in (-0.5, 0.5) and place == 0)
    if exponent == 0.5:
        inverse = chain.user()
        _require(_kind(inverse) in ("div", "reciprocal"))
        numerator, place = chain.step(inverse)
        if isinstance(numerator, Node):
            _require(place == 1)
            return numerator
        _require((numerator, place) in ((1, 1), (None, 0)))
    product = chain.user()
    _require(_kind(product) == "mul")
    scaled, _ = chain.step(product)
    return scaled


def _weigh(chain: _Chain, x: Node) -> tuple[Node | None, bool, tuple[Node, ...], bool]:
    """Goes through the product with a weight and the cast that follow, in the one order or the other.

    Returns the weight, whether 1 is added to it, the calls that only make it, and whether the cast came first.
    """
    narrowing = chain.user()
    if _kind(narrowing) == "cast" and _dtype(narrowing) == _dtype(x):
        cast = _Chain(chain.value, list(chain.calls))
        cast.step(narrowing)
        found = _weight(cast, x)
        if found is not None:
            chain.value, chain.calls = cast.value, cast.calls
            return *found, True
    found = _weight(chain, x) or (None, False, ())
    narrowing = chain.user()
    if _kind(narrowing) == "cast" and _dtype(chain.value) == torch.float32 and _dtype(narrowing) in DTYPES:
        chain.step(narrowing)
    return *found, False


def _weight(chain: _Chain, x: Node) -> tuple[Node, bool, tuple[Node, ...]] | None:
    """Goes through the product with a weight [N], if that follows."""
    product = chain.user()
    if _kind(product) != "mul":
        return None
    multiplied = _Chain(chain.value, list(chain.calls))
    factor, _ = multiplied.step(product)
    calls: tuple[Node, ...] = ()
    offset = _kind(factor) == "add" and _dtype(factor) == torch.float32 and 1 in factor.args
    if offset:
        calls, factor = (factor,), next(term for term in factor.args if isinstance(term, Node))
    if not isinstance(factor, Node):
        return None
    weight, casts = _unwidened(factor)
    row, value = x.meta["example_value"], weight.meta.get("example_value")
    if _dtype(weight) not in DTYPES or value.dim() != 1:
        return None
    if not statically_known_true(value.shape[0] == row.shape[-1]):
        return None
    chain.value, chain.calls = multiplied.value, multiplied.calls
    return weight, offset, (*calls, *casts)


def _unwidened(node: Any) -> tuple[Node, tuple[Node, ...]]:
    """`node` before its casts to float32, and those casts."""
    casts: list[Node] = []
    while _kind(node) == "cast" and _dtype(node) == torch.float32 and _dtype(node.args[0]) in DTYPES:
        casts.append(node)
        node = node.args[0]
    return node, tuple(casts)


def _check_exclusive(calls: list[Node], whole: list[Node], y: Node) -> None:
    """Only the norm uses what its `calls` (but y) compute, and what stands among its nodes writes to nothing."""
    _require(all(user in whole for call in calls if call is not y for user in call.users))
    node = whole[0]
    while node is not y:
        _require(_kind(node) is not None or node.op in ("placeholder", "get_attr"))
        node = node.next


def _kind(node: Any) -> str | None:
    """What `node` computes, None for what is not read here; all kinds but the mean take arguments by position."""
    if not isinstance(node, Node) or node.op not in ("call_function", "call_method"):
        return None
    kind = _KINDS.get(node.target)
    if kind == "cast":
        given, result = (part.meta.get("example_value") for part in (node.args[0], node))
        moved = not isinstance(given, torch.Tensor) or given.device != result.device
        return None if moved or not node.kwargs.keys() <= {"dtype"} else kind
    return None if node.kwargs and kind != "mean" else kind


def _dtype(node: Any) -> torch.dtype | None:
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None


def _require(condition: Any) -> None:
    if not condition:
        raise _NoNorm
