"""What becomes of a product's sums in a lane's registers, in float32: the contract's `Epilogue` in FlyDSL.

v_exp_f32 and v_rcp_f32 are off by at most 1 ulp and flush results below 2^-126, so that of those activations only
what is less than 2^-118 may be off by more than is said here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.contracts import Epilogue
from flycc.contracts.gemm import Activation

_LOG2_E = math.log2(math.e)
_TWICE_ROOT = 2 * math.sqrt(2 / math.pi)

#: Coefficients, the constant first, of a polynomial in t = 1 / (1 + `_TAIL_STEP` z) that is within 2^-19 of
#: e^(z^2 / 2) times the normal distribution's tail beyond z, for 0 <= z <= 13.3: a weighted least-squares fit.
_TAIL = (
    -7.977263137e-05,
    1.2127450407e-01,
    1.0670545159e-01,
    1.6476227789e-01,
    -4.8641588354e-02,
    2.4057091785e-01,
    -8.4592731335e-02,
)
_TAIL_STEP = 0.3


def finish(
    epilogue: Epilogue,
    sums: fx.Vector,
    gates: fx.Vector | None,
    scale: fx.Float32,
    bias: fx.Vector | None,
    residual: fx.Vector | None,
) -> tuple[fx.Vector, fx.Vector]:
    """Result and pre-activation of neighbouring sums; `gates` are those of the second B, if there is one."""
    if epilogue.scale:
        sums = sums * scale
        gates = None if gates is None else gates * scale
    pre = sums if bias is None else sums + bias
    result = activate(epilogue.activation, pre)
    if gates is not None:
        result = result * gates
    return result if residual is None else result + residual, pre


def activate(name: Activation, x: fx.Vector) -> fx.Vector:
    """The activation `name` of each x.

    Off by at most 2^-15 of the value. NaN stays NaN; silu, gelu and gelu_tanh of -inf are NaN (-inf * 0), as PyTorch's
    are, of +inf +inf.
    """
    return x if name == "none" else _FUNCTIONS[name](x)


def _relu(x: fx.Vector) -> fx.Vector:
    """v_max_f32 would make a NaN 0."""
    return _each(lambda value: (value < 0.0).select(fx.Float32(0.0), value), x)


def _silu(x: fx.Vector) -> fx.Vector:
    """x / (1 + e^-x). Rounding the exponent x log2(e), of up to 127, leaves 2^-17 of e^-x."""
    return x * _inverse(_exp2(x * -_LOG2_E) + 1.0)


def _gelu_tanh(x: fx.Vector) -> fx.Vector:
    """x (1 + tanh u) / 2 = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3): five roundings of the exponent."""
    cubic, linear = (-_TWICE_ROOT * _LOG2_E * factor for factor in (0.044715, 1.0))
    return x * _inverse(_exp2(x * (x * x * cubic + linear)) + 1.0)


def _gelu(x: fx.Vector) -> fx.Vector:
    """x times the normal distribution's share below x, of which the smaller tail is computed (`_TAIL`)."""
    t = _inverse(_each(lambda value: abs(value), x) * _TAIL_STEP + 1.0)
    tail = _splat(_TAIL[-1], x)
    for coefficient in reversed(_TAIL[:-1]):
        tail = fx.math.fma(tail, t, _splat(coefficient, x))
    tail = tail * _exp2(x * x * (-_LOG2_E / 2))
    below = [(x[i] < 0.0).select(tail[i], 1.0 - tail[i]) for i in range(x.numel)]
    return x * fx.Vector.from_elements(below, fx.Float32)


_FUNCTIONS: dict[Activation, Callable[[fx.Vector], fx.Vector]] = {
    "relu": _relu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
}


def _each(function: Callable[[fx.Float32], fx.Float32], x: fx.Vector) -> fx.Vector:
    return fx.Vector.from_elements([function(x[i]) for i in range(x.numel)], fx.Float32)


def _splat(value: float, like: fx.Vector) -> fx.Vector:
    return fx.Vector.filled(like.numel, value, fx.Float32)


def _exp2(x: fx.Vector) -> fx.Vector:
    return _each(lambda value: fx.Float32(rocdl.exp2(T.f32, value.ir_value())), x)


def _inverse(x: fx.Vector) -> fx.Vector:
    return _each(lambda value: fx.Float32(rocdl.rcp(T.f32, value.ir_value())), x)
