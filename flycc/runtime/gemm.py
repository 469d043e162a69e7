"""`torch.ops.flycc.gemm`: problem -> config -> code object -> launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args

import torch
from torch import Tensor

from flycc.contracts import FlyccError, GemmProblem, Reason
from flycc.contracts.gemm import Activation
from flycc.kernels import gemm as family
from flycc.runtime import choice, launching, plans, refusals, workspace
from flycc.runtime.device import Device
from flycc.runtime.devices import common_device, device_for
from flycc.runtime.launching import Launched
from flycc.runtime.library import LIBRARY
from flycc.runtime.loading import Loaded, load
from flycc.runtime.operands import GemmOperands

_ARGUMENTS = (
    "Tensor a, Tensor b, Tensor? bias=None, *, bool trans_a=False, bool trans_b=False, Tensor? b2=None, "
    'Tensor? residual=None, float scale=1.0, str activation="none", ScalarType? out_dtype=None'
)
_MAX_SCALE = torch.finfo(torch.float32).max
_PLANS = plans.Plans()
LIBRARY.define(f"gemm({_ARGUMENTS}) -> Tensor")
LIBRARY.define(f"gemm_with_preactivation({_ARGUMENTS}) -> (Tensor out, Tensor preactivation)")


@dataclass(frozen=True, slots=True)
class Tail:
    """What becomes of a product's sums: `activation(scale * A @ B + bias) + residual`, see `contracts.gemm.Epilogue`.

    Args:
        b2: as `b`, of its shape, or None: a gated product, `activation(scale * A @ B) * (scale * A @ B2) + residual`.
        residual: broadcastable to the result, or None; the dtype of `a`.
        activation: one of `contracts.gemm.Activation`.
        out_dtype: float32, or that of `a` (also if None).
    """

    b2: Tensor | None = None
    residual: Tensor | None = None
    scale: float = 1.0
    activation: Activation = "none"
    out_dtype: torch.dtype | None = None


def prepare(
    problem: GemmProblem, device: Device, strides: Mapping[str, int] = MappingProxyType({})
) -> tuple[family.GemmConfig, Loaded]:
    """The configuration and the loaded kernel for `problem`; compiled if this is its first use.

    `strides` are those inside a matrix, in elements, by the names of the kernel's arguments. Raises `FlyccError`
    with the reason where no kernel serves the problem or it cannot be built.
    """
    config = choice.choose(problem, family.choose)
    if isinstance(config, Reason):
        raise FlyccError(config)
    if reason := config.check_strides(strides):
        # Smaller tiles reach farther.
        reaching = (other for other in family.candidates(problem) if not other.check_strides(strides))
        config = next(reaching, None)
        if config is None:
            raise FlyccError(reason)
    return config, load(family.kernel(problem, config), device)


def launch(operands: GemmOperands, device: Device) -> Launched:
    """Compute `operands.out`. Raises `FlyccError` before anything ran, or `DeviceError` from the launch."""
    if math.isfinite(operands.scale) and abs(operands.scale) > _MAX_SCALE:
        sentence = f"scale is {operands.scale}; kernels take it in float32, at most {_MAX_SCALE:.9g}"
        raise FlyccError(Reason("gemm.scale", sentence))
    problem = operands.problem()
    strides = operands.strides()
    # Those between matrices are only ever multiplied in 64 bits.
    within = {name: stride for name, stride in strides.items() if "batch" not in name}
    config, loaded = prepare(problem, device, within)
    outputs = operands.outputs()
    numbers = {**family.ABSENT, **strides, "scale": operands.scale, **operands.sizes()}
    with ExitStack() as stack:
        if config.split:
            shares = family.shares(problem, config)
            place = operands.out.device
            outputs["partial"] = workspace.sums(max(1, shares.sums), place)
            outputs["arrived"] = stack.enter_context(workspace.counters(shares.counters, device, place))
            numbers |= {"parts": shares.parts, "part_k": shares.part_k, "whole": shares.whole}
        return launching.launch(
            device, loaded, family.launch(problem, config), operands.inputs(), outputs, numbers
        )


def gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    **tail: Any,
) -> Tensor:
    """`torch.matmul(a, b) + bias` and then what `tail`, the fields of a `Tail`, says: in float32 and rounded once.

    Args:
        a: [..., M, K], or [..., K, M] with `trans_a`; bfloat16 or float16.
        b: [..., K, N], or [..., N, K] with `trans_b`; the dtype of `a`. Batches broadcast as in `torch.matmul`.
        bias: broadcastable to the result, or None; the dtype of `a`. A gated product takes none.

    Returns a contiguous [..., M, N]. Where no kernel computes it PyTorch does: a product of PyTorch's, rounded to the
    dtype of `a` but for a wider result, then the rest in float32 and a second rounding.
    """
    return _gemm(a, b, bias, trans_a, trans_b, tail, preactivation=False)[0]


def gemm_with_preactivation(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    **tail: Any,
) -> tuple[Tensor, Tensor]:
    """As `gemm`, and the argument of the activation, rounded as the result is; not of a gated product."""
    out, preactivation, *_ = _gemm(a, b, bias, trans_a, trans_b, tail, preactivation=True)
    return out, preactivation


def _gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    trans_a: bool,
    trans_b: bool,
    tail: Mapping[str, Any],
    *,
    preactivation: bool,
) -> list[Tensor]:
    """The result, the argument of the activation, if wanted, and what else. `tail` are fields of a `Tail`."""
    tensors: tuple[Tensor | None, ...] = (a, b, bias)
    arguments: plans.Key = (trans_a, trans_b, preactivation)
    if tail:
        tensors += tail.get("b2"), tail.get("residual")
        # As text: zeros that differ in their signs are equal.
        arguments += str(tail.get("scale", 1.0)), tail.get("activation"), tail.get("out_dtype")
    return _PLANS.repeat(tensors, arguments) or _analysed(
        a, b, bias, trans_a, trans_b, Tail(**tail), preactivation, tensors, arguments
    )


def _analysed(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    trans_a: bool,
    trans_b: bool,
    tail: Tail,
    preactivation: bool,
    tensors: tuple[Tensor | None, ...],
    arguments: plans.Key,
) -> list[Tensor]:
    """A call whose operands have to be looked at; it will be repeated for `tensors` and `arguments` like these."""
    results = _results(a, b, bias, trans_a, trans_b, tail, preactivation)
    if not results[0].numel():
        return results
    left, right, right2 = _factors(a, b, tail.b2, trans_a, trans_b)
    if left.shape[-1]:  # else an empty sum; there is nothing to launch
        given = dict(zip(("a", "b", "bias", "b2", "residual"), tensors, strict=False))
        try:
            device = device_for(common_device(**given))
            operands = GemmOperands.of(
                left,
                right,
                bias,
                results[0],
                b2=right2,
                residual=tail.residual,
                pre=results[1] if preactivation else None,
                scale=tail.scale,
                activation=tail.activation,
            )
            _PLANS.keep(given, arguments, results, [launch(operands, device)])
            return results
        except Exception as error:  # a model never breaks because of us: see refusals.refuse
            refusals.refuse("gemm", error)
    return _pytorch(left, right, right2, bias, tail, results)


def _factors(
    a: Tensor, b: Tensor, b2: Tensor | None, trans_a: bool, trans_b: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The logical [..., M, K], [..., K, N] and [..., K, N]."""
    left = a.transpose(-1, -2) if trans_a else a
    if not trans_b:
        return left, b, b2
    return left, b.transpose(-1, -2), None if b2 is None else b2.transpose(-1, -2)


def _pytorch(
    left: Tensor, right: Tensor, right2: Tensor | None, bias: Tensor | None, tail: Tail, results: list[Tensor]
) -> list[Tensor]:
    """The same by PyTorch's own operators."""
    dtype = results[0].dtype
    if len(results) == 1 and tail in (Tail(), Tail(out_dtype=left.dtype)):
        return [_product(left, right, bias)]
    wide = torch.promote_types(dtype, torch.float32)

    def product(b: Tensor) -> Tensor:
        factors = (left, b) if dtype == left.dtype else (left.to(wide), b.to(wide))
        return torch.matmul(*factors).to(wide) * tail.scale

    p = product(right)
    if bias is not None:
        p = p + bias
    y = ACTIVATIONS[tail.activation](p)
    if right2 is not None:
        y = y * product(right2)
    if tail.residual is not None:
        y = y + tail.residual
    for result, value in zip(results, (y, p), strict=False):
        result.copy_(value)
    return results


def _product(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    """A product with nothing behind it, with PyTorch's rounding."""
    if bias is None:
        result = torch.matmul(left, right)
    elif left.dim() == right.dim() == 2:
        result = torch.addmm(bias, left, right)
    elif left.dim() == right.dim() == 3 and left.shape[0] == right.shape[0]:
        result = torch.baddbmm(bias, left, right)
    else:
        result = torch.matmul(left, right).add_(bias)
    return result.contiguous()


#: What each does, by PyTorch's own operators.
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


def _results(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    trans_a: bool,
    trans_b: bool,
    tail: Tail,
    preactivation: bool,
) -> list[Tensor]:
    """The uninitialised results; all arguments are checked."""
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dim() < 2:
            _fail(f"{name} must have at least 2 dimensions, got {list(tensor.shape)}")
    m, inner = (a.shape[-1], a.shape[-2]) if trans_a else (a.shape[-2], a.shape[-1])
    n, k = (b.shape[-2], b.shape[-1]) if trans_b else (b.shape[-1], b.shape[-2])
    torch._check(inner == k, lambda: f"flycc::gemm: a has K = {inner}, b has K = {k}")
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, m, n)
    given = {"b": b, "b2": tail.b2, "bias": bias, "residual": tail.residual}
    for name, tensor in given.items():
        if tensor is None:
            continue
        if tensor.dtype != a.dtype:
            _fail(f"{name} is {tensor.dtype}; it must be that of a, {a.dtype}")
        if name in ("bias", "residual") and not broadcasts(tensor.shape, shape):
            _fail(f"{name} {list(tensor.shape)} does not broadcast to the result {list(shape)}")
    if tail.b2 is not None:
        if tail.b2.dim() != b.dim() or any(map(differ, tail.b2.shape, b.shape)):
            _fail(f"b2 must have the shape of b, {list(b.shape)}, got {list(tail.b2.shape)}")
        if bias is not None or preactivation:
            _fail("a gated product (b2) takes no bias and has no preactivation")
    if tail.activation not in ACTIVATIONS:
        _fail(f"activation must be one of {', '.join(get_args(Activation))}, got {tail.activation!r}")
    if tail.out_dtype not in (None, a.dtype, torch.float32):
        _fail(f"out_dtype must be {a.dtype} or torch.float32, got {tail.out_dtype}")
    return [a.new_empty(shape, dtype=tail.out_dtype) for _ in range(1 + preactivation)]


def _fail(sentence: str) -> None:
    raise RuntimeError(f"flycc::gemm: {sentence}")


def differ(x: Any, y: Any) -> bool:
    """Whether two sizes are different numbers; symbols are not compared, which would guard them."""
    return isinstance(x, int) and isinstance(y, int) and x != y


def broadcasts(shape: torch.Size, to: tuple[Any, ...]) -> bool:
    """Whether a shape does to another, as far as numbers say."""
    return len(shape) <= len(to) and not any(
        differ(size, wanted) and size != 1
        for size, wanted in zip(reversed(shape), reversed(to), strict=False)
    )


def _gemm_fake(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    **tail: Any,
) -> Tensor:
    return _results(a, b, bias, trans_a, trans_b, Tail(**tail), False)[0]


def _gemm_with_preactivation_fake(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    **tail: Any,
) -> tuple[Tensor, Tensor]:
    out, preactivation = _results(a, b, bias, trans_a, trans_b, Tail(**tail), True)
    return out, preactivation


for _name, _op, _fake in (
    ("gemm", gemm, _gemm_fake),
    ("gemm_with_preactivation", gemm_with_preactivation, _gemm_with_preactivation_fake),
):
    LIBRARY.impl(_name, _op, "CompositeExplicitAutograd")
    torch.library.register_fake(f"flycc::{_name}", _fake, lib=LIBRARY)
