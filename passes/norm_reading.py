"""The ways to write an RMS norm in primitive ops, read from its statistic (the mean of squares) on.

What makes a norm is `x * rsqrt(mean(x**2) + eps)`, with the inverse root spelled as rsqrt, as pow(-0.5), as the
reciprocal of sqrt, or as a division by sqrt. Around it may stand a widening cast of x, a cast back, the
product with a weight (or 1 + weight) on either side of that cast, and a cast of the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch_mlir import ir

from flycc.contracts import Reason
from flycc.dialects.rms_norm import DTYPES
from flycc.dialects.tensor import Dims, same, same_dims, show, stamped
from flycc.passes.torch_ir import constant, int_list, node_name, only_user, operator_name, producer, users

_CASTS = ("aten._to_copy", "prims.convert_element_type")


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
    """The norm that `statistic` (an `aten.mean.dim` or `aten.var`) is part of.

    A Reason where it makes a norm that `flycc.rms_norm` is not, and None where it makes no norm at all.
    """
    try:
        return _read(statistic)
    except _NoMatch as no_match:
        return no_match.reason


def _read(statistic: ir.Operation) -> Norm | None:
    is_mean = operator_name(statistic) == "aten.mean.dim"
    squares = producer(statistic.operands[0])
    squared = _squared(squares) if is_mean else statistic.operands[0]
    if squared is None:
        return None
    scaling = _scaling(statistic.results[0])
    if scaling is None:
        return None
    if not is_mean:
        raise _NoMatch("mean-subtracted", "the root of a variance: the mean is subtracted before squaring")
    scaled, scaled_value, eps, between = scaling
    assert squares is not None, "it is what was squared"
    x, widening = _unwidened(squared)
    other, other_widening = _unwidened(scaled_value)
    if other != x:
        raise _NoMatch(
            "form", "the inverse root of the mean of one tensor's squares is not multiplied with that tensor"
        )
    inner = (scaled, *between, statistic, squares)
    _check_types(x, squared, scaled)
    _check_mean(statistic, x)
    _check_exclusive(inner)
    folded = (*inner, *dict.fromkeys((*other_widening, *widening)))
    return _with_weight(Norm(x, scaled.results[0], eps, folded))


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


def _scaling(
    mean: ir.Value,
) -> tuple[ir.Operation, ir.Value, float | ir.Value, tuple[ir.Operation, ...]] | None:
    """The op that scales by the inverse root of `mean` (+ eps), what it scales, eps, and the ops between.

    The ops between come users first. None if `mean` goes under no root, or under one by which nothing is divided.
    """
    value = mean
    between: tuple[ir.Operation, ...] = ()
    addition = _user(mean, "aten.add.Scalar") or _user(mean, "aten.add.Tensor")
    if addition is not None:
        value, between = addition.results[0], (addition,)
    root = _power(value, "aten.sqrt", 0.5)
    inverse = _power(value, "aten.rsqrt", -0.5)
    if root is not None:
        if _user(root.results[0], "aten.add.Scalar") is not None:
            raise _NoMatch("eps-outside-root", "a number is added to the root; eps belongs under it")
        between = (root, *between)
        value = root.results[0]
        division = _user(value, "aten.div.Tensor")
        if division is not None and division.operands[1] == value:
            return division, division.operands[0], _eps(addition), between
        inverse = _user(value, "aten.reciprocal")
    if inverse is None:
        return None
    eps = _eps(addition)
    value, between = inverse.results[0], (inverse, *between)
    one = _user(value, "aten.mul.Scalar")  # `1 / root` is the reciprocal times 1
    if one is not None and constant(one.operands[1]) == 1:
        value, between = one.results[0], (one, *between)
    product = _user(value, "aten.mul.Tensor")
    if product is None:
        raise _NoMatch("form", "the inverse root is not multiplied with a tensor right away")
    return product, _other(product, value), eps, between


def _power(value: ir.Value, name: str, exponent: float) -> ir.Operation | None:
    """The user of `value` that raises it to `exponent`, for which `name` is another name."""
    power = _user(value, "aten.pow.Tensor_Scalar")
    if power is not None and constant(power.operands[1]) == exponent:
        return power
    return _user(value, name)


def _eps(addition: ir.Operation | None) -> float | ir.Value:
    if addition is None:
        return 0.0
    eps = constant(addition.operands[1])
    if constant(addition.operands[2]) == 1:
        if eps is None and str(addition.operands[1].type) == "!torch.float":
            return addition.operands[1]
        if eps is not None and eps >= 0:
            return float(eps)
    raise _NoMatch("eps", "what is added to the mean of squares must be a number that is not negative")


def _check_types(x: ir.Value, squared: ir.Value, scaled: ir.Operation) -> None:
    tensors = [stamped(value) for value in (x, squared, scaled.results[0])]
    if None in tensors:
        raise _NoMatch("type", f"x is {x.type}; value tensors of known rank are needed")
    given, wide, product = (tensor for tensor in tensors if tensor is not None)
    if given.dtype not in DTYPES:
        raise _NoMatch("dtype", f"x is {given.dtype}; it must be one of {', '.join(DTYPES)}")
    if wide.dtype != "f32" or product.dtype != "f32":
        raise _NoMatch(
            "statistics", f"squares are {wide.dtype} and the product {product.dtype}; kernels compute in f32"
        )
    if 0 in given.dims:
        raise _NoMatch("empty", f"x is {show(given.dims)}; every size must be at least 1")


def _check_mean(mean: ir.Operation, x: ir.Value) -> None:
    tensor = stamped(x)
    assert tensor is not None, "types are checked"
    dims, rank = int_list(mean.operands[1]), len(tensor.dims)
    if dims is None or [dim % rank for dim in dims] != [rank - 1]:
        seen = "unknown dimensions" if dims is None else f"dimensions {dims} of {rank}"
        raise _NoMatch("dims", f"the mean is taken over {seen}; only the last one is accepted")
    if constant(mean.operands[2]) is not True:
        raise _NoMatch("keep-dim", "the mean drops its dimension; keepdim=True is needed")
    source = producer(x)
    if source is not None and operator_name(source) == "aten.sub.Tensor":
        minuend, subtrahend = list(source.operands)[:2]
        average = producer(subtrahend)
        if (
            average is not None
            and operator_name(average) == "aten.mean.dim"
            and average.operands[0] == minuend
        ):
            raise _NoMatch("mean-subtracted", "the mean is subtracted before squaring: a layer norm")


def _check_exclusive(inner: tuple[ir.Operation, ...]) -> None:
    """All but the first, the product, may be used by each other only: a kernel does not write them."""
    for op in inner[1:]:
        for user in users(op.results[0]):
            if user not in inner:
                seen = node_name(user) or operator_name(user)
                raise _NoMatch(
                    "intermediate",
                    f"{node_name(op) or operator_name(op)}, an intermediate of the norm, is also used by {seen}"
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
        if term == 1 and scale == 1:
            weight, widening = _unwidened(addition.operands[0])
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


def _dtype(value: ir.Value) -> str | None:
    tensor = stamped(value)
    return None if tensor is None else tensor.dtype


def _user(value: ir.Value, name: str) -> ir.Operation | None:
    """The first user of `value` that is an op called `name`, or None."""
    return next((user for user in reversed(users(value)) if operator_name(user) == name), None)


def _other(product: ir.Operation, value: ir.Value) -> ir.Value:
    left, right = list(product.operands)[:2]
    return right if left == value else left
