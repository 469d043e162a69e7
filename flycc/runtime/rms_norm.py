"""`torch.ops.flycc.rms_norm_fwd` and `rms_norm_bwd`: problem -> config -> code object -> launch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flycc.contracts import FlyccError, Reason, RmsNormBackwardProblem, RmsNormProblem
from flycc.contracts.mx import ScaleRounding
from flycc.contracts.rms_norm import MAX_EPS
from flycc.contracts.scaled_gemm import ElementFormat
from flycc.kernels import rms_norm as family
from flycc.runtime import choice, launching, plans, refusals
from flycc.runtime.device import Device
from flycc.runtime.devices import common_device, device_for
from flycc.runtime.launching import Launched
from flycc.runtime.library import LIBRARY
from flycc.runtime.loading import Loaded, load

LIBRARY.define(
    "rms_norm_fwd(Tensor x, Tensor? weight, Tensor? residual, float eps, *, bool weight_offset=False, "
    "bool cast_before_weight=False, bool want_rstd=False, ScalarType? out_dtype=None) "
    "-> (Tensor y, Tensor new_residual, Tensor rstd)"
)
LIBRARY.define(
    "rms_norm_bwd(Tensor grad, Tensor x, Tensor? weight, Tensor rstd, *, bool weight_offset=False, "
    "bool cast_before_weight=False) -> (Tensor dx, Tensor dweight)"
)


_PLANS, _BACKWARD_PLANS = plans.Plans(), plans.Plans()
_NAMES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}


def prepare(problem: RmsNormProblem, device: Device) -> tuple[family.RmsNormConfig, Loaded]:
    """The configuration and the loaded kernel for `problem`; compiled if this is its first use.

    Raises `FlyccError` with the reason where no kernel serves the problem or it cannot be built.
    """
    config = choice.choose(problem, family.choose)
    if isinstance(config, Reason):
        raise FlyccError(config)
    return config, load(family.kernel(problem, config), device)


def prepare_backward(
    problem: RmsNormBackwardProblem, device: Device
) -> list[tuple[family.BackwardStep, Loaded]]:
    """As `prepare`: each launch that `problem` takes, with its kernel."""
    steps = family.plan_backward(problem)
    if isinstance(steps, Reason):
        raise FlyccError(steps)
    return [(step, load(family.backward_kernel(problem, step.config, step.what), device)) for step in steps]


@dataclass(frozen=True, slots=True)
class Rows:
    """[..., N] as the rows that a kernel takes: `tensor` is [rows, N] with unit stride along N."""

    tensor: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> Rows:
        """Copies if the leading dimensions do not collapse, or if elements of 16 bits lie where a kernel expects none:
        it takes row r to start in the middle of a word of 4 bytes exactly if r * N is odd.
        """
        flat = tensor.reshape(-1, tensor.shape[-1])
        rows, columns = flat.shape
        size = flat.element_size()
        if columns > 1 and flat.stride(1) != 1:
            flat = flat.contiguous()
        if flat.data_ptr() % 4 or (rows > 1 and (flat.stride(0) - columns) * size % 4):
            flat = flat.clone(memory_format=torch.contiguous_format)
        return cls(flat)

    @property
    def stride(self) -> int:
        """Between rows, in elements; PyTorch leaves that of a single row undefined."""
        return self.tensor.stride(0) if self.tensor.size(0) > 1 else 0

    @property
    def bytes_apart(self) -> int:
        """What divides this divides the address of every row."""
        return math.gcd(self.tensor.data_ptr(), self.stride * self.tensor.element_size())


def launch(
    x: Tensor,
    weight: Tensor | None,
    residual: Tensor | None,
    eps: float,
    outputs: Mapping[str, Tensor],
    device: Device,
    *,
    out_dtype: torch.dtype,
    weight_offset: bool,
    cast_before_weight: bool,
    mx: ElementFormat | None = None,
    mx_rounding: ScaleRounding = "floor",
) -> Launched:
    """Compute `outputs`, those that are wanted of y, new_residual and rstd; with `mx` y is of elements of that format,
    and there are its scales.

    Raises `FlyccError` before anything ran, or `DeviceError` from the launch.
    """
    if math.isfinite(eps) and abs(eps) > MAX_EPS:
        raise FlyccError(
            Reason("rms-norm.eps", f"eps is {eps}; kernels take it in float32, at most {MAX_EPS:.9g}")
        )
    operands = {"x": Rows.of(x)}
    if residual is not None:
        operands["residual"] = Rows.of(residual)
    rows, columns = operands["x"].tensor.shape
    row_bytes = columns * math.gcd(out_dtype.itemsize, x.element_size())
    problem = RmsNormProblem(
        _element("x", x.dtype),
        rows,
        columns,
        "none" if weight is None else _element("weight", weight.dtype),
        _element("out_dtype", out_dtype),
        weight_offset,
        cast_before_weight,
        residual is not None,
        "rstd" in outputs,
        math.gcd(16, row_bytes, *(operand.bytes_apart for operand in operands.values())),
        mx,
        mx_rounding,
    )
    config, loaded = prepare(problem, device)
    strides = {f"ld_{name}": operand.stride for name, operand in operands.items()}
    if reason := config.check_strides(strides):
        raise FlyccError(reason)
    inputs = {name: operand.tensor for name, operand in operands.items()}
    if weight is not None:
        inputs["weight"] = _row(weight)
    numbers = {
        "ld_residual": 0,
        **strides,
        "rows": rows,
        "columns": columns,
        "whole": family.whole_columns(columns, problem.dtype),
        "eps": eps,
    }
    return launching.launch(device, loaded, family.launch(problem, config), inputs, outputs, numbers)


def launch_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    dx: Tensor,
    device: Device,
    *,
    weight_offset: bool,
    cast_before_weight: bool,
) -> list[Launched]:
    """Compute `dx` and, with a weight, `partial` of the last launch: float32 [n, N] whose sum over n is dweight.

    Raises `FlyccError` before anything ran, or `DeviceError` from a launch.
    """
    operands = {"grad": Rows.of(grad), "x": Rows.of(x)}
    rows, columns = operands["x"].tensor.shape
    problem = RmsNormBackwardProblem(
        _element("x", x.dtype),
        rows,
        columns,
        "none" if weight is None else _element("weight", weight.dtype),
        _element("grad", grad.dtype),
        weight_offset,
        cast_before_weight,
        math.gcd(16, columns * dx.element_size(), *(operand.bytes_apart for operand in operands.values())),
    )
    steps = prepare_backward(problem, device)
    strides = {f"ld_{name}": operand.stride for name, operand in operands.items()}
    for step, _ in steps:
        if reason := step.config.check_strides(strides):
            raise FlyccError(reason)
    inputs = {name: operand.tensor for name, operand in operands.items()} | {"rstd": rstd.contiguous()}
    outputs = {"dx": dx}
    if weight is not None:
        inputs["weight"] = _row(weight)
        outputs["partial"] = x.new_empty((steps[-1][0].partial_rows, columns), dtype=torch.float32)
    numbers = {
        **strides,
        "rows": rows,
        "columns": columns,
        "whole": family.whole_columns(columns, problem.dtype),
    }
    return [
        launching.launch(
            device,
            loaded,
            step.launch,
            inputs,
            outputs,
            numbers | {"groups": step.groups, "turns": step.turns},
        )
        for step, loaded in steps
    ]


def _row(weight: Tensor) -> Tensor:
    """A weight as one row that starts at a whole word."""
    return Rows.of(weight).tensor[0]


def _element(argument: str, dtype: torch.dtype) -> Any:
    if dtype not in _NAMES:
        raise FlyccError(
            Reason("rms-norm.dtype", f"{argument} is {dtype}: the kernel takes {', '.join(map(str, _NAMES))}")
        )
    return _NAMES[dtype]


def rms_norm_fwd(
    x: Tensor,
    weight: Tensor | None,
    residual: Tensor | None,
    eps: float,
    *,
    weight_offset: bool = False,
    cast_before_weight: bool = False,
    want_rstd: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """RMS normalisation over the last dimension, as `flycc.contracts.RmsNormProblem` defines it.

    Args:
        x: [..., N], floating point.
        weight: [N], floating point, or None; 1 is added to it with `weight_offset`.
        residual: the shape and dtype of `x`, or None; added to it first.
        eps: added to the mean of squares.
        out_dtype: of y; by default that of `x`.

    Returns contiguous y [..., N]; x + residual [..., N], or an empty tensor without `residual`; and with
    `want_rstd` the float32 1 / root mean square [...], else an empty tensor.
    """
    arguments = (eps, weight_offset, cast_before_weight, want_rstd, out_dtype)
    if made := _PLANS.repeat((x, weight, residual), arguments):
        return made[0], made[1], made[2]
    options: dict[str, Any] = {"weight_offset": weight_offset, "cast_before_weight": cast_before_weight}
    wanted: dict[str, Any] = {"want_rstd": want_rstd, "out_dtype": out_dtype}
    results = rms_norm_fwd_fake(x, weight, residual, eps, **options, **wanted)
    if not x.numel():
        return _forward_in_pytorch(x, weight, residual, eps, **options, **wanted)
    try:
        given = {"x": x, "weight": weight, "residual": residual}
        device = device_for(common_device(**given))
        names = zip(("y", "new_residual", "rstd"), results, strict=True)
        outputs = {name: result for name, result in names if result.numel()}
        launched = launch(x, weight, residual, eps, outputs, device, out_dtype=results[0].dtype, **options)
        _PLANS.keep(given, arguments, results, [launched])
    except Exception as error:  # a model never breaks because of us: see refusals.refuse
        refusals.refuse("rms-norm", error)
        return _forward_in_pytorch(x, weight, residual, eps, **options, **wanted)
    return results


def rms_norm_bwd(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    *,
    weight_offset: bool = False,
    cast_before_weight: bool = False,
) -> tuple[Tensor, Tensor]:
    """Gradients of `rms_norm_fwd`, as `flycc.contracts.RmsNormBackwardProblem` defines them.

    Args:
        grad: [..., N], the gradient of y.
        x: [..., N], what was normalised: x, or x + residual where there was one.
        weight: [N] or None.
        rstd: float32 [...], as `rms_norm_fwd` returned it.
        cast_before_weight: of the forward pass; a rounding there changes nothing here.

    Returns contiguous dx [..., N] of the dtype of `x`, which is the gradient of the residual too, and dweight
    [N] of that of `weight`, or an empty tensor without one.
    """
    arguments = (weight_offset, cast_before_weight)
    if made := _BACKWARD_PLANS.repeat((grad, x, weight, rstd), arguments):
        return made[0], _summed(made[1:], x, weight)
    dx, _ = rms_norm_bwd_fake(grad, x, weight, rstd)
    if not x.numel():
        return _backward_in_pytorch(grad, x, weight, rstd, weight_offset)
    try:
        given = {"grad": grad, "x": x, "weight": weight, "rstd": rstd}
        device = device_for(common_device(**given))
        launched = launch_backward(
            grad,
            x,
            weight,
            rstd,
            dx,
            device,
            weight_offset=weight_offset,
            cast_before_weight=cast_before_weight,
        )
        _BACKWARD_PLANS.keep(given, arguments, [dx], launched)
        partial = launched[-1].outputs.get("partial")
        return dx, _summed([] if partial is None else [partial], x, weight)
    except Exception as error:  # a model never breaks because of us: see refusals.refuse
        refusals.refuse("rms-norm", error)
        return _backward_in_pytorch(grad, x, weight, rstd, weight_offset)


def _summed(partial: Sequence[Tensor], x: Tensor, weight: Tensor | None) -> Tensor:
    """The gradient of `weight` from the kernels' sums of it, or an empty tensor without one."""
    return x.new_empty(0) if weight is None else partial[0].sum(0).to(weight.dtype)


def _forward_in_pytorch(
    x: Tensor,
    weight: Tensor | None,
    residual: Tensor | None,
    eps: float,
    *,
    weight_offset: bool,
    cast_before_weight: bool,
    want_rstd: bool,
    out_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same by PyTorch's own operators."""
    h = x if residual is None else x + residual
    wide = h.to(torch.promote_types(h.dtype, torch.float32))
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    y = wide * rstd
    if cast_before_weight:
        y = y.to(h.dtype).to(wide.dtype)
    if weight is not None:
        y = y * (weight.to(wide.dtype) + 1 if weight_offset else weight.to(wide.dtype))
    return (
        y.to(out_dtype or x.dtype).contiguous(),
        x.new_empty(0) if residual is None else h.contiguous(),
        rstd[..., 0].to(torch.float32, copy=True) if want_rstd else x.new_empty(0, dtype=torch.float32),
    )


def _backward_in_pytorch(
    grad: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, weight_offset: bool
) -> tuple[Tensor, Tensor]:
    """The same by PyTorch's own operators."""
    wide = torch.promote_types(x.dtype, torch.float32)
    h, g, scale = x.to(wide), grad.to(wide), rstd.to(wide)[..., None]
    normalised = h * scale
    dweight = x.new_empty(0)
    if weight is not None:
        dweight = (g * normalised).sum_to_size(x.shape[-1]).to(weight.dtype, copy=True)
        g = g * (weight.to(wide) + 1 if weight_offset else weight.to(wide))
    dx = scale * (g - normalised * (g * normalised).mean(-1, keepdim=True))
    return dx.to(x.dtype).contiguous(), dweight


def rms_norm_fwd_fake(
    x: Tensor,
    weight: Tensor | None,
    residual: Tensor | None,
    eps: float,
    *,
    weight_offset: bool = False,
    cast_before_weight: bool = False,
    want_rstd: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The uninitialised results of `rms_norm_fwd`, shapes checked."""
    _check_weight("rms_norm_fwd", x, weight)
    if residual is not None:
        same = residual.shape == x.shape and residual.dtype == x.dtype
        torch._check(
            same,
            lambda: (
                f"flycc::rms_norm_fwd: x is {x.dtype} {list(x.shape)}, "
                f"residual is {residual.dtype} {list(residual.shape)}; they must agree"
            ),
        )
    return (
        x.new_empty(x.shape, dtype=out_dtype or x.dtype),
        x.new_empty(0 if residual is None else x.shape),
        x.new_empty(x.shape[:-1] if want_rstd else 0, dtype=torch.float32),
    )


def rms_norm_bwd_fake(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    *,
    weight_offset: bool = False,
    cast_before_weight: bool = False,
) -> tuple[Tensor, Tensor]:
    """The uninitialised results of `rms_norm_bwd`, shapes checked."""
    _check_weight("rms_norm_bwd", x, weight)
    for name, given, wanted in (("grad", grad.shape, x.shape), ("rstd", rstd.shape, x.shape[:-1])):
        torch._check(
            given == wanted,
            lambda name=name, given=given, wanted=wanted: (
                f"flycc::rms_norm_bwd: {name} is {list(given)}, must be {list(wanted)}"
            ),
        )
    torch._check(
        rstd.dtype == torch.float32,
        lambda: f"flycc::rms_norm_bwd: rstd is {rstd.dtype}, must be torch.float32",
    )
    dweight = x.new_empty(0) if weight is None else weight.new_empty(weight.shape)
    return x.new_empty(x.shape), dweight


def _check_weight(op: str, x: Tensor, weight: Tensor | None) -> None:
    torch._check(x.dim() > 0, lambda: f"flycc::{op}: x has no dimension to normalise over")
    torch._check(x.is_floating_point(), lambda: f"flycc::{op}: x is {x.dtype}, must be floating point")
    if weight is not None:
        torch._check(
            weight.dim() == 1 and weight.shape[0] == x.shape[-1],
            lambda: f"flycc::{op}: weight is {list(weight.shape)}, must be [{x.shape[-1]}]",
        )


for _name, _function, _fake in (
    ("rms_norm_fwd", rms_norm_fwd, rms_norm_fwd_fake),
    ("rms_norm_bwd", rms_norm_bwd, rms_norm_bwd_fake),
):
    LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"flycc::{_name}", _fake, lib=LIBRARY)
