"""The ways to write an RMS norm in primitive ops, read from its statistic (the mean of squares) on.

What makes a norm is `x * rsqrt(mean(x**2) + eps)`, with the mean spelled as such or as a sum over N, its dimension
kept or put back by unsqueeze, and the inverse root spelled as rsqrt, as pow(-0.5), as the reciprocal of sqrt, or as
a division by sqrt. Around it may stand a widening cast of x, a cast back, the
product with a weight (or 1 + weight) on either side of that cast, and a cast of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch_mlir import ir

from flycc.contracts import Reason
from flycc.dialects.rms_norm import DTYPES, eps_fault
from flycc.dialects.tensor import Dims, same, same_dims, show, stamped
from flycc.passes.torch_ir import constant, int_list, node_name, only_user, operator_name, producer, users

_CASTS = ("aten._to_copy", "prims.convert_element_type")
_ADDITIONS = ("aten.add.Scalar", "aten.add.Tensor")
_CLAMPS = ("aten.clamp_min", "aten.clamp_min.Tensor", "aten.clamp", "aten.maximum")
#: What makes a mean of a sum.
_FACTORS = ("aten.div.Scalar", "aten.mul.Scalar")


@dataclass(frozen=True)
class Norm:
    """What `flycc.rms_norm` says of x, weight and flags; `y` (and `rstd`) are the values it replaces.

    `eps` is a number, or a `!torch.float` that is known at run time.

    `folded` are the ops that compute them, users before what they use.
    """

    x: ir.Value
    y: ir.Value
    eps: float | ir.Value
    folded: tuple[ir.Operation, ...]
    weight: ir.Value | None = None
    weight_offset: bool = False
    cast_before_weight: bool = False
    rstd: ir.Value | None = None


class _NoMatch(Exception):
    """What looks like a norm is none that a kernel computes."""

    def __init__(self, what: str, sentence: str) -> None:
        self.reason = Reason(f"rms-norm.{what}", sentence)


def read_norm(statistic: ir.Operation) -> Norm | Reason | None:
    """The norm that `statistic` (a mean, a sum, a variance or a vector norm along dimensions) is part of.

    A Reason where it makes a norm that `flycc.rms_norm` is not, and None where it makes no norm at all.
    """
    try:
        return _READERS[operator_name(statistic)](statistic)
    except _NoMatch as no_match:
        return no_match.reason


@dataclass
class _Chain:
    """A statistic and the ops that it went through, first ones first, up to `value`."""

    value: ir.Value
    ops: list[ir.Operation]
    unsqueezed: int = 0

    @classmethod
    def of(cls, statistic: ir.Operation) -> _Chain:
        return cls(statistic.results[0], [statistic])

    def user(self, *names: str) -> ir.Operation | None:
        """The first user of the value that has one of `names`, or of the value behind casts and unsqueezes.

        These are then gone through. Unsqueezes must add a last dimension.
        """
        value, through = self.value, list[ir.Operation]()
        while True:
            for user in reversed(users(value)):
                if operator_name(user) in names:
                    self.value = value
                    self.ops.extend(through)
                    self.unsqueezed += sum(operator_name(op) == "aten.unsqueeze" for op in through)
                    return user
            passed = next((user for user in reversed(users(value)) if _keeps_numbers(user)), None)
            if passed is None:
                return None
            through.append(passed)
            value = passed.results[0]

    def step(self, *names: str) -> ir.Operation | None:
        """Goes on to the result of `user(*names)`, if there is one."""
        op = self.user(*names)
        if op is not None:
            self._go_on(op)
        return op

    def root(self) -> float | None:
        """Goes on to a root of the value or its inverse; the exponent, 0.5 or -0.5."""
        exponents = {"aten.sqrt": 0.5, "aten.rsqrt": -0.5}
        op = self.user("aten.pow.Tensor_Scalar", *exponents)
        if op is None:
            return None
        exponent = exponents.get(operator_name(op)) or constant(op.operands[1])
        if exponent not in (0.5, -0.5):
            return None
        self._go_on(op)
        return exponent

    def _go_on(self, op: ir.Operation) -> None:
        self.value = op.results[0]
        self.ops.append(op)


def _keeps_numbers(op: ir.Operation) -> bool:
    """Whether `op` is a cast, or an unsqueeze that adds a last dimension."""
    if operator_name(op) != "aten.unsqueeze":
        return operator_name(op) in _CASTS
    tensor = stamped(op.operands[0])
    return tensor is not None and constant(op.operands[1]) in (-1, len(tensor.dims))


def _read_squares(statistic: ir.Operation) -> Norm | None:
    """Of a mean or a sum."""
    squares, casts = _before_casts(producer(statistic.operands[0]))
    squared = _squared(squares)
    if squares is None or squared is None:
        return None
    chain, count = _Chain.of(statistic), None
    if operator_name(statistic) == "aten.sum.dim_IntList":
        count = chain.step(*_FACTORS)
        if count is None:
            return None
    scaling = _scaling(chain)
    if scaling is None:
        return None
    scaled, scaled_value, eps = scaling
    x, widening = _unwidened(squared)
    other, other_widening = _unwidened(scaled_value)
    if other != x:
        raise _NoMatch(
            "form", "the inverse root of the mean of one tensor's squares is not multiplied with that tensor"
        )
    inner = (scaled, *reversed(chain.ops), squares)
    _check_types(x, squared, casts, inner)
    _check_mean(statistic, count, chain.unsqueezed, x)
    _check_exclusive(inner)
    folded = (*inner, *dict.fromkeys((*other_widening, *widening)))
    return _with_weight(Norm(x, scaled.results[0], eps, folded))


def _read_variance(variance: ir.Operation) -> None:
    if _scaling(_Chain.of(variance)) is not None:
        raise _NoMatch("mean-subtracted", "the root of a variance: the mean is subtracted before squaring")


def _read_vector_norm(norm: ir.Operation) -> None:
    """The root of the sum of squares, made that of their mean by a factor."""
    chain, x = _Chain.of(norm), stamped(norm.operands[0])
    factor = chain.step(*_FACTORS)
    size = x.dims[-1] if x is not None and x.dims else None
    if constant(norm.operands[1]) != 2 or factor is None or not isinstance(size, int):
        return
    if not math.isclose(_divisor(factor) or 0, size**0.5, rel_tol=1e-6):
        return
    outside = chain.step(*_ADDITIONS, *_CLAMPS)
    division = chain.user("aten.div.Tensor")
    if (division is None or division.operands[1] != chain.value) and chain.user("aten.reciprocal") is None:
        return
    if outside is not None:
        raise _eps_outside()
    raise _NoMatch("form", "the root is that of a vector norm; a root of the mean of squares is needed")


_READERS: dict[str, Callable[[ir.Operation], Norm | None]] = {
    "aten.mean.dim": _read_squares,
    "aten.sum.dim_IntList": _read_squares,
    "aten.var.dim": _read_variance,
    "aten.var.correction": _read_variance,
    "aten.linalg_vector_norm": _read_vector_norm,
}
#: The ops that `read_norm` starts at.
STATISTICS = tuple(_READERS)


def _before_casts(op: ir.Operation | None) -> tuple[ir.Operation | None, tuple[ir.Operation, ...]]:
    """What makes the operand of the casts that end in `op`, and these."""
    casts: list[ir.Operation] = []
    while op is not None and operator_name(op) in _CASTS:
        casts.append(op)
        op = producer(op.operands[0])
    return op, tuple(casts)


def _squared(op: ir.Operation | None) -> ir.Value | None:
    """What `op` squares, or None."""
    if op is None:
        return None
    name = operator_name(op)
    if name == "aten.pow.Tensor_Scalar" and constant(op.operands[1]) == 2:
        return op.operands[0]
    if name == "aten.mul.Tensor" and op.operands[0] == op.operands[1]:
        return op.operands[0]
    return None


def _scaling(chain: _Chain) -> tuple[ir.Operation, ir.Value, float | ir.Value] | None:
    """Goes on along `chain` to the inverse root of its value (+ eps): what scales by it, what is scaled, and eps.

    None if the value goes under no root, or under one by which nothing is divided.
    """
    addition = chain.step(*_ADDITIONS)
    clamp = chain.step(*_CLAMPS) if addition is None else None
    exponent = chain.root()
    if exponent is None:
        return None
    if exponent == 0.5:
        if chain.user(*_ADDITIONS, *_CLAMPS) is not None:
            raise _eps_outside()
        division = chain.user("aten.div.Tensor")
        if division is not None and division.operands[1] == chain.value:
            return division, division.operands[0], _eps(addition, clamp)
        if chain.step("aten.reciprocal") is None:
            return None
    eps = _eps(addition, clamp)
    one = chain.user("aten.mul.Scalar")  # `1 / root` is the reciprocal times 1
    if one is not None and constant(one.operands[1]) == 1:
        chain.step("aten.mul.Scalar")
    product = chain.user("aten.mul.Tensor")
    if product is None:
        raise _NoMatch("form", "the inverse root is not multiplied with a tensor right away")
    return product, _other(product, chain.value), eps


def _eps_outside() -> _NoMatch:
    return _NoMatch("eps-outside-root", "the root is added to, or clamped; eps belongs under it")


def _eps(addition: ir.Operation | None, clamp: ir.Operation | None) -> float | ir.Value:
    if clamp is not None:
        raise _NoMatch("eps", "the mean of squares is clamped; eps is to be added to it")
    if addition is None:
        return 0.0
    value, alpha = list(addition.operands)[1:3]
    eps, factor = constant(value), constant(alpha)
    if factor != 1:
        raise _NoMatch("eps", f"eps is multiplied with alpha = {_number(factor)}; only 1 is accepted")
    if eps is None and str(value.type) == "!torch.float":
        return value
    if eps is None:
        raise _NoMatch("eps", f"what is added to the mean of squares is {value.type}; a number is needed")
    if fault := eps_fault(eps):
        raise _NoMatch("eps", fault)
    return float(eps)


def _divisor(factor: ir.Operation) -> float | None:
    """What the division or product `factor` divides by, where that is a constant other than zero."""
    number = constant(factor.operands[1])
    if not number:
        return None
    return float(number) if operator_name(factor) == "aten.div.Scalar" else 1 / number


def _number(value: float | None) -> str:
    return "a run-time value" if value is None else str(value)


def _check_types(
    x: ir.Value, squared: ir.Value, casts: tuple[ir.Operation, ...], inner: tuple[ir.Operation, ...]
) -> None:
    given = stamped(x)
    if given is None:
        raise _NoMatch("type", f"x is {x.type}; value tensors of known rank are needed")
    if given.dtype not in DTYPES:
        raise _NoMatch("dtype", f"x is {given.dtype}; it must be one of {', '.join(DTYPES)}")
    for name, value in (("x", squared), *((_name(op), op.results[0]) for op in (*casts, *reversed(inner)))):
        if _dtype(value) != "f32":
            raise _NoMatch(
                "statistics",
                f"{name} is {_dtype(value) or value.type}; kernels compute from squares to product in f32",
            )
    if casts:
        raise _NoMatch("statistics", f"squares are cast by {_name(casts[0])} before the mean")
    if 0 in given.dims:
        raise _NoMatch("empty", f"x is {show(given.dims)}; every size must be at least 1")


def _check_mean(mean: ir.Operation, count: ir.Operation | None, unsqueezed: int, x: ir.Value) -> None:
    """`mean` may be a sum, which `count` then divides."""
    tensor = stamped(x)
    assert tensor is not None, "types are checked"
    if not tensor.dims:
        raise _NoMatch("dims", "x has no dimension to take the mean over")
    if not _is_over_last(mean, len(tensor.dims)):
        dims = int_list(mean.operands[1])
        seen = "unknown dimensions" if dims is None else f"dimensions {dims} of {len(tensor.dims)}"
        raise _NoMatch("dims", f"the mean is taken over {seen}; only the last one is accepted")
    size = tensor.dims[-1]
    if count is not None and (not isinstance(size, int) or _divisor(count) not in (size, 1 / (1 / size))):
        raise _NoMatch(
            "form", f"the sum of squares is divided by {_number(_divisor(count))}, not provably by {size}"
        )
    kept = constant(mean.operands[2]) is True
    if unsqueezed != (0 if kept else 1):
        raise _NoMatch(
            "keep-dim",
            "the mean has more than one dimension in place of the last"
            if kept or unsqueezed
            else "the mean drops its dimension; keepdim=True or unsqueeze(-1) is needed",
        )
    if _subtracts_mean(producer(x), len(tensor.dims)):
        raise _NoMatch("mean-subtracted", "the mean is subtracted before squaring: a layer norm")


def _is_over_last(mean: ir.Operation, rank: int) -> bool:
    dims = int_list(mean.operands[1])
    return dims is not None and [dim % rank for dim in dims] == [rank - 1]


def _subtracts_mean(op: ir.Operation | None, rank: int) -> bool:
    """Whether `op` takes from a tensor its own mean over the last dimension."""
    alpha = {"aten.sub.Tensor": 1, "aten.add.Tensor": -1}.get(operator_name(op)) if op is not None else None
    if op is None or alpha is None or constant(op.operands[2]) != alpha:
        return False
    minuend, subtrahend = list(op.operands)[:2]
    average = producer(subtrahend)
    return (
        average is not None
        and operator_name(average) == "aten.mean.dim"
        and average.operands[0] == minuend
        and _is_over_last(average, rank)
    )


def _check_exclusive(inner: tuple[ir.Operation, ...]) -> None:
    """All but the first, the product, may be used by each other only: a kernel does not write them."""
    for op in inner[1:]:
        for user in users(op.results[0]):
            if user not in inner:
                seen = _name(user)
                raise _NoMatch(
                    "intermediate",
                    f"{_name(op)}, an intermediate of the norm, is also used by {seen}"
                    + (" (saved for the backward pass, perhaps)" if user.name == "func.return" else ""),
                )


def _with_weight(norm: Norm) -> Norm:
    """`norm` with the weight, and the casts around it, that follow."""
    x = stamped(norm.x)
    assert x is not None, "types are checked"
    narrowing = _cast_of(norm.y)
    if narrowing is not None and x.dtype != "f32" and _dtype(narrowing.results[0]) == x.dtype:
        cast = replace(norm, y=narrowing.results[0], folded=(narrowing, *norm.folded))
        weighted = _weighted(cast, x.dims)
        if weighted is not None:
            return _with_cast(replace(weighted, cast_before_weight=True))
    return _with_cast(_weighted(norm, x.dims) or norm)


def _with_cast(norm: Norm) -> Norm:
    """`norm` with the cast of its f32 result to another type, if that is all its result is used for."""
    narrowing = _cast_of(norm.y)
    if narrowing is None or _dtype(norm.y) != "f32" or _dtype(narrowing.results[0]) not in DTYPES:
        return norm
    return replace(norm, y=narrowing.results[0], folded=(narrowing, *norm.folded))


def _weighted(norm: Norm, dims: Dims) -> Norm | None:
    """`norm` with the weight that alone multiplies its result, or None."""
    product = only_user(norm.y)
    if product is None or operator_name(product) != "aten.mul.Tensor":
        return None
    factor = _other(product, norm.y)
    vector, result = stamped(factor), stamped(product.results[0])
    if vector is None or result is None or vector.dtype not in DTYPES or result.dtype not in DTYPES:
        return None
    if len(vector.dims) != 1 or not same(vector.dims[0], dims[-1]) or not same_dims(result.dims, dims):
        return None
    weight, offset, folded = _weight(factor)
    return replace(
        norm,
        y=product.results[0],
        weight=weight,
        weight_offset=offset,
        folded=(product, *norm.folded, *folded),
    )


def _weight(factor: ir.Value) -> tuple[ir.Value, bool, tuple[ir.Operation, ...]]:
    """The weight behind `factor`, whether `factor` is 1 + weight in f32, and the ops between."""
    addition = producer(factor)
    if addition is not None and operator_name(addition) == "aten.add.Scalar" and _dtype(factor) == "f32":
        term, scale = constant(addition.operands[1]), constant(addition.operands[2])
        weight, widening = _unwidened(addition.operands[0])
        if term == 1 and scale == 1 and _dtype(weight) in DTYPES:
            return weight, True, (addition, *widening)
    weight, widening = _unwidened(factor)
    return weight, False, widening


def _unwidened(value: ir.Value) -> tuple[ir.Value, tuple[ir.Operation, ...]]:
    """`value` before a cast from bf16 or f16 to f32, and that cast if there is one."""
    op = producer(value)
    if op is None or operator_name(op) not in _CASTS or _dtype(value) != "f32":
        return value, ()
    return (op.operands[0], (op,)) if _dtype(op.operands[0]) in ("bf16", "f16") else (value, ())


def _cast_of(value: ir.Value) -> ir.Operation | None:
    """The cast that alone uses `value`, or None."""
    op = only_user(value)
    return op if op is not None and operator_name(op) in _CASTS else None


def _name(op: ir.Operation) -> str:
    return node_name(op) or operator_name(op)


def _dtype(value: ir.Value) -> str | None:
    tensor = stamped(value)
    return None if tensor is None else tensor.dtype


def _user(value: ir.Value, name: str) -> ir.Operation | None:
    """The first user of `value` that is an op called `name`, or None."""
    return next((user for user in reversed(users(value)) if operator_name(user) == name), None)


def _other(product: ir.Operation, value: ir.Value) -> ir.Value:
    left, right = list(product.operands)[:2]
    return right if left == value else left
