"""Reads what a score_mod or mask_mod of flex_attention computes from the graph that Dynamo makes of it.

A body has scalars for arguments: a score (of score_mod alone), and the numbers of a batch, a head, a query and a key.
What it makes of these and of captured tensors without the score is an `Expression`, of the operators in `POINTWISE`,
some of which have a form that kernels compute by themselves. The score may only be scaled, capped, added to and
hidden, in this order.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from flycc.contracts import FlyccError, Reason
from flycc.frontend.fakes import example
from flycc.frontend.flex_forms import (
    Band,
    Condition,
    Expression,
    Form,
    Hiding,
    Linear,
    Loaded,
    Magnitude,
    SameDocument,
    Score,
    Seen,
    Sloped,
)
from flycc.frontend.lockstep import called
from flycc.frontend.nodes import reached

#: The numbers that a body is given, in the order of its arguments, after the score.
INDICES = ("b", "h", "q_idx", "kv_idx")


def _spelled(*names: str) -> set[Any]:
    """Functions and methods of these names."""
    found = {getattr(module, name, None) for module in (operator, torch, builtins) for name in names}
    return {*found, *names} - {None}


#: What a call computes, by its function or, for a method, its name.
_KINDS: dict[Any, str] = {
    **dict.fromkeys(_spelled("add"), "add"),
    **dict.fromkeys(_spelled("sub", "subtract"), "sub"),
    **dict.fromkeys(_spelled("mul", "multiply"), "mul"),
    **dict.fromkeys(_spelled("truediv", "div", "divide", "true_divide"), "div"),
    **dict.fromkeys(_spelled("neg", "negative"), "neg"),
    **dict.fromkeys(_spelled("abs", "absolute"), "abs"),
    **dict.fromkeys(_spelled("lt", "less"), "lt"),
    **dict.fromkeys(_spelled("le", "less_equal"), "le"),
    **dict.fromkeys(_spelled("gt", "greater"), "gt"),
    **dict.fromkeys(_spelled("ge", "greater_equal"), "ge"),
    **dict.fromkeys(_spelled("eq"), "eq"),
    **dict.fromkeys(_spelled("and_", "logical_and", "bitwise_and"), "and"),
    **dict.fromkeys(_spelled("invert", "logical_not", "bitwise_not"), "not"),
    **dict.fromkeys(_spelled("tanh"), "tanh"),
    **dict.fromkeys(("to", "float", "double", "half", "bfloat16", "int", "long"), "cast"),
    torch.where: "where",
    **dict.fromkeys(_spelled("masked_fill"), "masked_fill"),
}
_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}

#: Calls that compute each element from those at its place and write to nothing, so that a body of them computes for
#: all queries and keys at once what it computes for one.
POINTWISE: frozenset[Any] = frozenset(_KINDS) | _spelled(
    *("floordiv", "floor_divide", "mod", "remainder", "fmod", "pow", "square", "sqrt", "rsqrt", "reciprocal"),
    *("or_", "xor", "logical_or", "logical_xor", "bitwise_or", "bitwise_xor", "ne", "not_equal", "where"),
    *("lshift", "rshift", "exp", "exp2", "log", "log2", "log1p", "sin", "cos", "sigmoid", "relu", "sign"),
    *(
        "floor",
        "ceil",
        "round",
        "trunc",
        "clamp",
        "minimum",
        "maximum",
        "zeros_like",
        "ones_like",
        "full_like",
    ),
)
#: Calls that make a scalar of a constant: which, or None if it is the last argument.
FILLS: dict[Any, int | None] = {
    **dict.fromkeys((torch.ones, "new_ones"), 1),
    **dict.fromkeys((torch.zeros, "new_zeros"), 0),
    **dict.fromkeys((torch.full, "new_full", torch.tensor, torch.scalar_tensor), None),
}

_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
#: Types that hold positions exactly.
_POSITIONS = (torch.int32, torch.int64, torch.float32, torch.float64)
_SCORES = (torch.float32, torch.bfloat16, torch.float16)


class Unreadable(FlyccError):
    """A body is outside of what flycc reads; `reason` names the node."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured tensor of which `indices` index the first dimensions."""

    tensor: Node
    indices: tuple[Expression, ...] = ()


Value = Expression | Captured | Score


def read_score_mod(body: GraphModule) -> Score:
    """Raises `Unreadable`."""
    score = _Body("score_mod", body, has_score=True).result()
    if not isinstance(score, Score):
        raise Unreadable(Reason("flex.score-mod", "score_mod: its result does not depend on the score"))
    return score


def read_mask_mod(body: GraphModule) -> tuple[Condition, ...]:
    """What must hold, all of it, for a query to see a key. Raises `Unreadable`."""
    result = _Body("mask_mod", body, has_score=False).result()
    if not isinstance(result, Expression) or not _is_bool(result):
        raise Unreadable(Reason("flex.mask-mod", "mask_mod: its result is not a bool"))
    return _seen(result).conditions


@dataclass
class _Body:
    """A body while it is read."""

    name: str
    body: GraphModule
    has_score: bool
    values: dict[Node, Value] = field(default_factory=dict)

    def result(self) -> Value:
        """What the body returns."""
        [output] = self.body.graph.find_nodes(op="output")
        names = iter([*(["score"] if self.has_score else []), *INDICES])
        for node in self.body.graph.find_nodes(op="placeholder"):
            self.values[node] = _argument(node, next(names, None))
        result = output.args[0]
        if isinstance(result, list | tuple) and len(result) == 1:
            [result] = result
        if not isinstance(result, Node):
            raise self._outside(output)
        needed = reached([result], back=True)
        for node in self.body.graph.nodes:
            if node in needed and node not in self.values:
                self.values[node] = self._call(node)
        return self.values[result]

    def _call(self, node: Node) -> Value:
        target = called(node)
        if target is operator.getitem and isinstance(self._value(node.args[0]), Captured):
            return self._lookup(node)
        arguments = [self._value(argument) for argument in (*node.args, *node.kwargs.values())]
        if any(isinstance(argument, Score) for argument in arguments):
            return self._scored(node, arguments)
        value = example(node)
        if isinstance(value, int | float | torch.SymInt | torch.SymFloat) and target is not None:
            expressions = [a for a in arguments if isinstance(a, Expression)]
            return Expression(node, form=_form(node, expressions) or _known(node))
        if not isinstance(value, Tensor) or value.dim():
            raise self._outside(node)
        if target in FILLS:
            return Expression(node, form=_filled(node, FILLS[target]))
        if target not in POINTWISE or any(isinstance(argument, Captured) for argument in arguments):
            raise self._outside(node)
        expressions = [argument for argument in arguments if isinstance(argument, Expression)]
        form = _form(node, expressions) if not node.kwargs or _KINDS.get(target) == "cast" else None
        return Expression(node, *_inputs(expressions), form)

    def _value(self, argument: Any) -> Value | None:
        """What an argument is; None where it is neither a value nor a number, such as a type."""
        if isinstance(argument, Node):
            return self.values[argument]
        return _constant(argument) if isinstance(argument, bool | int | float) else None

    def _lookup(self, node: Node) -> Value:
        """An element of a captured tensor, or a part of it that is indexed further."""
        source, index = self._value(node.args[0]), node.args[1]
        assert isinstance(source, Captured)
        indices = [self._value(item) for item in (index if isinstance(index, list | tuple) else (index,))]
        found = [*source.indices, *(i for i in indices if isinstance(i, Expression) and _is_index(i))]
        rank = example(source.tensor).dim()
        if len(found) != len(source.indices) + len(indices) or len(found) > rank:
            raise self._outside(node)
        if len(found) < rank:
            return Captured(source.tensor, tuple(found))
        uses, captured = _inputs(found)
        return Expression(node, uses, captured | {source.tensor})

    def _scored(self, node: Node, arguments: Sequence[Value | None]) -> Score:
        """The next step of a score."""
        kind = _KINDS.get(called(node))
        if kind == "cast" and example(node).dtype in _SCORES and isinstance(arguments[0], Score):
            return arguments[0]
        if node.kwargs:
            raise self._outside(node)
        match kind, arguments:
            case ("mul", [Score() as score, Expression() as by]) | (
                "mul",
                [Expression() as by, Score() as score],
            ):
                factor = _number(by)
            case "div", [Score() as score, Expression() as by]:
                divisor = _number(by)
                factor = 1 / divisor if divisor else None
            case "tanh", [Score() as score]:
                if score.capped or not score.is_product:
                    raise self._outside(node, "caps a score that is capped, biased or masked already")
                return replace(score, capped=True)
            case ("add", [Score() as score, Expression() as bias]) | (
                "add",
                [Expression() as bias, Score() as score],
            ):
                return _biased(score, bias, 1)
            case "sub", [Score() as score, Expression() as bias]:
                return _biased(score, bias, -1)
            case "where", [Expression() as seen, Score() as score, Expression() as other] if _is_hidden(
                other
            ):
                return _hidden(score, _seen(seen))
            case "where", [Expression() as hidden, Expression() as other, Score() as score] if _is_hidden(
                other
            ):
                return _hidden(score, _negated(hidden))
            case "masked_fill", [Score() as score, Expression() as hidden, Expression() as other] if (
                _is_hidden(other)
            ):
                return _hidden(score, _negated(hidden))
            case _:
                raise self._outside(node)
        if factor is None:
            raise self._outside(node, "multiplies a score by what is no constant")
        if not score.is_product:
            raise self._outside(node, "scales a score that is biased or masked already")
        name = "amplitude" if score.capped else "factor"
        return replace(score, **{name: getattr(score, name) * factor})

    def _outside(self, node: Node, what: str = "is outside of what flycc reads") -> Unreadable:
        target = called(node) or "its result"
        call = f"{getattr(target, '__name__', target)} ({node.name})"
        return Unreadable(Reason(f"flex.{self.name.replace('_', '-')}", f"{self.name}: {call} {what}"))


def _argument(node: Node, name: str | None) -> Value:
    """An argument of a body, by its name; captured tensors and numbers have none."""
    if name == "score":
        return Score()
    if name is not None:
        forms = {"q_idx": Linear(query=1), "kv_idx": Linear(key=1)}
        return Expression(node, frozenset([name]), form=forms.get(name))
    value = example(node)
    if isinstance(value, Tensor):
        return Captured(node) if value.dim() else Expression(node, captured=frozenset([node]))
    return Expression(node, form=_known(node))


def _known(node: Node) -> Form | None:
    """A number; a float that the run knows becomes a constant, with a guard."""
    value = example(node)
    if isinstance(value, torch.SymInt):
        return Linear(numbers=((node, 1),))
    return _constant(float(value) if isinstance(value, torch.SymFloat) else value).form


def _constant(number: Any) -> Expression:
    if isinstance(number, bool):
        return Expression(number, form=Seen(()) if number else None)
    return Expression(number, form=Linear(constant=number) if isinstance(number, int) else number)


def _filled(node: Node, fill: int | None) -> Form | None:
    """What `FILLS` make."""
    value = node.args[-1] if fill is None else fill
    if not isinstance(value, bool | int | float):
        return None
    dtype = example(node).dtype
    if dtype is torch.bool:
        return _constant(bool(value)).form
    return _constant(float(value) if dtype.is_floating_point else int(value)).form


def _inputs(expressions: Iterable[Expression]) -> tuple[frozenset[str], frozenset[Node]]:
    """What a function of `expressions` uses, and the captured tensors that it reads."""
    uses = (expression.uses for expression in expressions)
    captured = (expression.captured for expression in expressions)
    return frozenset().union(*uses), frozenset().union(*captured)


def _form(node: Node, of: Sequence[Expression]) -> Form | None:
    """What a call of `of`, with no other arguments, is in terms of `SdpaProblem`, if it is any of that."""
    kind = _KINDS.get(called(node))
    forms = [expression.form for expression in of]
    match kind, forms:
        case "add", [Linear() as a, Linear() as b]:
            return a + b
        case "sub", [Linear() as a, Linear() as b]:
            return a + -b
        case "neg", [Linear() as a]:
            return -a
        case "neg", [Sloped() | Magnitude() as a]:
            return _scaled(a, -1)
        case "abs", [Linear() as a]:
            return Magnitude(a)
        case "mul", [_, _]:
            return _product(*of) or _product(*reversed(of))
        case "div", [_, _] if divisor := _number(of[1]):
            return _scaled(of[0].form, 1 / divisor)
        case "and", [_, _] if all(map(_is_bool, of)):
            return Seen((*_seen(of[0]).conditions, *_seen(of[1]).conditions))
        case "not", [_] if _is_bool(of[0]):
            return _negated(of[0])
        case "where", [_, _, _] if _is_bool(of[0]):
            return _hiding(*of)
        case "cast", [form]:
            return _cast(form, example(node).dtype)
        case (("lt" | "le" | "gt" | "ge" | "eq"), [_, _]):
            return _compared(kind, *of)
    return None


def _cast(form: Form | None, dtype: torch.dtype) -> Form | None:
    """`form` in another type, if that holds it exactly or is at least float32."""
    kept = {
        Linear: _POSITIONS,
        Magnitude: _POSITIONS,
        Sloped: (torch.float32, torch.float64),
        Seen: (torch.bool,),
    }
    return form if dtype in kept.get(type(form), ()) else None


def _product(x: Expression, y: Expression) -> Form | None:
    """x * y where y is a number or, but for that, a function of the head."""
    number = _number(y)
    if isinstance(x.form, Linear) and isinstance(y.form, Linear) and number is not None:
        return x.form * y.form.constant
    if number is not None:
        return _scaled(x.form, number)
    sloped = as_sloped(x.form)
    of_heads = y.uses <= {"h"} and not isinstance(y.form, Linear) and y.dtype is not None
    return replace(sloped, slope=y) if sloped is not None and sloped.slope is None and of_heads else None


def _scaled(form: Form | None, factor: float) -> Form | None:
    sloped = as_sloped(form)
    return None if sloped is None else replace(sloped, factor=sloped.factor * factor)


def as_sloped(form: Form | None) -> Sloped | None:
    """`form` as a multiple of how far a key is."""
    if isinstance(form, Magnitude) or (isinstance(form, Linear) and form.key):
        return Sloped(form)
    return form if isinstance(form, Sloped) else None


def _number(expression: Expression) -> float | None:
    """A constant, or None."""
    form = expression.form
    if isinstance(form, Linear):
        return float(form.constant) if form.is_number and not form.numbers else None
    return form if isinstance(form, float) else None


def _is_bool(expression: Expression) -> bool:
    return isinstance(expression.source, bool) or expression.dtype is torch.bool


def _is_index(expression: Expression) -> bool:
    """Whether it indexes a tensor as one integer does."""
    if isinstance(expression.source, Node):
        return expression.dtype in (torch.int32, torch.int64)  # uint8 is a mask, as bool is
    return type(expression.source) is int


def _is_hidden(expression: Expression) -> bool:
    return expression.form == -math.inf


def _seen(expression: Expression) -> Seen:
    """Bools."""
    return expression.form if isinstance(expression.form, Seen) else Seen((Loaded(expression),))


def _negated(expression: Expression) -> Seen:
    """What bools are not."""
    match _seen(expression).conditions:
        case [Band(lower, None)] if lower is not None:
            return Seen((Band(None, lower + Linear(constant=-1)),))
        case [Band(None, upper)] if upper is not None:
            return Seen((Band(upper + Linear(constant=1), None),))
        case [Loaded(of, negated)]:
            return Seen((Loaded(of, not negated),))
    return Seen((Loaded(expression, negated=True),))


def _hiding(condition: Expression, x: Expression, y: Expression) -> Hiding | None:
    """where(condition, x, y), if it is 0 and -inf."""
    if _number(x) == 0 and _is_hidden(y):
        return Hiding(_seen(condition))
    return Hiding(_negated(condition)) if _is_hidden(x) and _number(y) == 0 else None


def _compared(kind: str, x: Expression, y: Expression) -> Seen | None:
    """A comparison of positions, or of documents."""
    match x.form, y.form:
        case Linear() as a, Linear() as b:
            return _bounded(kind, a + -b)
        case Magnitude(of), Linear() as limit if kind in ("lt", "le") and limit.is_number:
            return _both(_bounded(kind, of + -limit), _bounded(kind, -of + -limit))
        case Linear(), Magnitude() if kind in ("gt", "ge"):
            return _compared(_FLIPPED[kind], y, x)
    for query, key in ((x, y), (y, x)):
        of_queries = query.uses <= {"b", "q_idx"} and "q_idx" in query.uses
        of_keys = key.uses <= {"b", "kv_idx"} and "kv_idx" in key.uses
        if kind == "eq" and of_queries and of_keys and query.dtype in _INTEGERS and key.dtype in _INTEGERS:
            return Seen((SameDocument(query, key),))
    return None


def _bounded(kind: str, difference: Linear) -> Seen | None:
    """Where `difference` compares like this with 0."""
    if difference.key < 0:
        kind, difference = _FLIPPED[kind], -difference
    if (difference.query, difference.key) != (-1, 1):
        return None
    bound = -replace(difference, query=0, key=0)
    above, below = bound + Linear(constant=1), bound + Linear(constant=-1)
    bands = {
        "ge": (bound, None),
        "gt": (above, None),
        "le": (None, bound),
        "lt": (None, below),
        "eq": (bound, bound),
    }
    return Seen((Band(*bands[kind]),))


def _both(a: Seen | None, b: Seen | None) -> Seen | None:
    return Seen((*a.conditions, *b.conditions)) if a is not None and b is not None else None


def _biased(score: Score, bias: Expression, sign: int) -> Score:
    if isinstance(bias.form, Hiding) and sign > 0:
        return _hidden(score, bias.form.seen)
    return replace(score, biases=(*score.biases, (bias, sign)))


def _hidden(score: Score, seen: Seen) -> Score:
    return replace(score, seen=(*score.seen, *seen.conditions))
