"""Custom ops for composites that PyTorch would decompose: attention and RMS norm, forward and backward.

As custom ops they arrive whole in ATen graphs on every device. They run PyTorch's own implementation; the
fake implementations of the forward ops are PyTorch's too, so results, strides and guards are what they would
have been. The backward ops recompute the forward pass to reach PyTorch's formula, and give row-major
gradients. RMS norm also returns the reciprocal root mean square, which a kernel of its backward pass reads and
PyTorch's formula does without. With an `out_dtype` it stands for a norm written by hand, and its gradients
have a formula here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

_SDPA = (
    "Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, float? scale, bool enable_gqa"
)
_RMS_NORM = (
    "SymInt[] normalized_shape, Tensor? weight, float? eps, bool cast_before_weight, bool weight_offset, "
    "ScalarType? out_dtype"
)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    return torch._C._nn.scaled_dot_product_attention(
        query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
    cast_before_weight: bool,
    weight_offset: bool,
    out_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    """The norm, and 1 / sqrt(mean of squares + eps) with the normalised dimensions kept or not.

    Without `out_dtype` it is PyTorch's, and the flags are false. With it, it is what models write by hand: over
    the last dimension, of bfloat16, float16 or float32, and with flags as `RmsNormProblem` has them.
    """
    if out_dtype is None:
        return torch.ops.aten._fused_rms_norm(input, normalized_shape, weight, eps)
    wide = input.float()
    rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    result = wide * rstd
    if cast_before_weight:
        result = result.to(input.dtype)
    if weight is not None:
        result = result * (1.0 + weight.float() if weight_offset else weight)
    return result.to(out_dtype), rstd


def _normalised(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None, *options: Any
) -> tuple[Tensor, Tensor]:
    """As `_norm`, with 1 / sqrt(mean of squares + eps) of each normalised part: [...], row-major."""
    result, rstd = _norm(input, normalized_shape, weight, eps, *options)
    return result, rstd.reshape(_outer(input, normalized_shape)).contiguous()


def _normalised_fake(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None, *options: Any
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(input.dtype, torch.float32)
    if options[-1] is None:
        result = torch.rms_norm(input, normalized_shape, weight, eps)
    else:
        result, _ = _norm(input, normalized_shape, weight, eps, *options)
    return result, input.new_empty(_outer(input, normalized_shape), dtype=wide)


def _outer(input: Tensor, normalized_shape: Sequence[int]) -> Sequence[int]:
    return input.shape[: input.dim() - len(normalized_shape)]


sdpa = custom_op("flycc::sdpa", _attention, mutates_args=(), schema=f"({_SDPA}) -> Tensor")
sdpa.register_fake(_attention)
rms_norm = custom_op(
    "flycc::rms_norm", _normalised, mutates_args=(), schema=f"(Tensor input, {_RMS_NORM}) -> (Tensor, Tensor)"
)
rms_norm.register_fake(_normalised_fake)


@custom_op(
    "flycc::sdpa_backward", mutates_args=(), schema=f"(Tensor grad, {_SDPA}) -> (Tensor, Tensor, Tensor)"
)
def sdpa_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value; `attn_mask` gets none."""
    dq, dk, dv = _gradients(lambda *inputs: _attention(*inputs, *options), (query, key, value), grad)
    return dq, dk, dv


@sdpa_backward.register_fake
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


@custom_op(
    "flycc::rms_norm_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor input, Tensor rstd, {_RMS_NORM}) -> (Tensor, Tensor?)",
)
def rms_norm_backward(
    grad: Tensor,
    input: Tensor,
    rstd: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    *options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of input and, where there is one, of weight."""
    *_, weight_offset, out_dtype = options
    if out_dtype is not None:
        return _written_gradients(grad, input, rstd, weight, weight_offset)

    def forward(x: Tensor, w: Tensor | None = None) -> Tensor:
        return _norm(x, normalized_shape, w, *options)[0]

    inputs = (input,) if weight is None else (input, weight)
    dx, *dw = _gradients(forward, inputs, grad)
    return dx, dw[0] if dw else None


def _written_gradients(
    grad: Tensor, input: Tensor, rstd: Tensor, weight: Tensor | None, weight_offset: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients that `RmsNormBackwardProblem` defines, in float32: autograd would round every step's."""
    scale, g = rstd.unsqueeze(-1), grad.float()
    normalised, dweight = input.float() * scale, None
    if weight is not None:
        dweight = (g * normalised).sum_to_size(weight.shape).to(weight.dtype)
        g = g * (weight.float() + weight_offset)
    dx = scale * (g - normalised * (g * normalised).mean(-1, keepdim=True))
    return dx.to(input.dtype).contiguous(), dweight


@rms_norm_backward.register_fake
def _(
    grad: Tensor,
    input: Tensor,
    rstd: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    *options: Any,
) -> tuple[Tensor, Tensor | None]:
    return input.new_empty(input.shape), None if weight is None else weight.new_empty(weight.shape)


def _gradients(forward: Callable[..., Tensor], inputs: tuple[Tensor, ...], grad: Tensor) -> list[Tensor]:
    """Row-major gradients of `inputs` for the gradient `grad` of `forward(*inputs)`."""
    # A custom op's body runs with autograd off in the dispatcher, which grad mode alone does not undo.
    autograd = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)
    include = torch._C._dispatch_tls_local_include_set()
    exclude = torch._C._dispatch_tls_local_exclude_set() - autograd
    with torch._C._ForceDispatchKeyGuard(include, exclude), torch.inference_mode(False), torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        gradients = torch.autograd.grad(forward(*leaves), leaves, grad)
    return [gradient.contiguous() for gradient in gradients]


def _save_sdpa(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, key, value, attn_mask, *ctx.options = inputs
    ctx.save_for_backward(query, key, value, attn_mask)


def _differentiate_sdpa(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *sdpa_backward(grad, *ctx.saved_tensors, *ctx.options), None, None, None, None


def _save_rms_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    input, ctx.normalized_shape, weight, *ctx.options = inputs
    _, rstd = output
    ctx.mark_non_differentiable(rstd)
    ctx.save_for_backward(input, rstd, weight)


def _differentiate_rms_norm(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
    input, rstd, weight = ctx.saved_tensors
    dx, dw = rms_norm_backward(grad, input, rstd, ctx.normalized_shape, weight, *ctx.options)
    return dx, None, dw, None, None, None, None


sdpa.register_autograd(_differentiate_sdpa, setup_context=_save_sdpa)
rms_norm.register_autograd(_differentiate_rms_norm, setup_context=_save_rms_norm)
