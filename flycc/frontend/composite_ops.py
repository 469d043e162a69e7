"""Custom ops for composites that PyTorch would decompose: attention and RMS norm, forward and backward.

As custom ops they arrive whole in ATen graphs on every device. They run PyTorch's own implementation; the
fake implementations of the forward ops are PyTorch's too, so results, strides and guards are what they would
have been. The backward ops recompute the forward pass to reach PyTorch's formula. Attention also returns lse, which has
a gradient, too, and RMS norm the reciprocal root mean square, which kernels of their backward passes read and
PyTorch's formulas do without. What PyTorch's ops do not have is computed by formulas of our own: attention with
dropout whose numbers its two passes share or with scores of another form, in `flycc.attention`, and, with an
`out_dtype`, a norm written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op

from flycc import attention
from flycc.contracts import Reason

_SDPA = (
    "Tensor? attn_mask, bool is_causal, float? scale, bool enable_gqa, float dropout_p=0.0, Tensor? seed=None, "
    "Tensor? query_documents=None, Tensor? key_documents=None, Tensor? slopes=None, SymInt? lower=None, "
    "SymInt? upper=None, float softcap=0.0"
)
_RMS_NORM = (
    "SymInt[] normalized_shape, Tensor? weight, float? eps, bool cast_before_weight, bool weight_offset, "
    "ScalarType? out_dtype"
)


def why_pytorchs(mask_learns: bool, dropout_p: float, for_kernels: bool) -> Reason | None:
    """Why `sdpa` cannot stand for a call of PyTorch's attention, which itself refuses a `dropout_p` that is none.

    `mask_learns`: its mask needs a gradient; `for_kernels`: its operands are of types that kernels take.
    """
    if mask_learns:
        return Reason("sdpa.mask", "its mask needs a gradient, which no kernel makes")
    if dropout_p and not for_kernels:
        return Reason("sdpa.dtype", "its dropout is of operands that are not all bfloat16 or float16")
    if not 0 <= dropout_p <= 1:
        return Reason("sdpa.dropout", f"it drops with a probability of {dropout_p}")
    return None


class _Options(NamedTuple):
    """How to attend, `_SDPA`: first as PyTorch's op has it, then as `flycc.attention.Scoring` has it."""

    attn_mask: Tensor | None
    is_causal: bool
    scale: float | None
    enable_gqa: bool
    dropout_p: float = 0.0
    seed: Tensor | None = None
    query_documents: Tensor | None = None
    key_documents: Tensor | None = None
    slopes: Tensor | None = None
    lower: int | None = None
    upper: int | None = None
    softcap: float = 0.0

    @property
    def are_pytorchs(self) -> bool:
        """Whether PyTorch's op has them all."""
        others = (self.query_documents, self.slopes, self.lower, self.upper)
        return not self.dropout_p and not self.softcap and all(other is None for other in others)

    def pytorchs(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """PyTorch's attention, where it has them all."""
        return torch._C._nn.scaled_dot_product_attention(
            query,
            key,
            value,
            self.attn_mask,
            0.0,
            self.is_causal,
            scale=self.scale,
            enable_gqa=self.enable_gqa,
        )

    def scoring(self, query: Tensor) -> attention.Scoring:
        """The same for `flycc.attention`, whose operands have four dimensions."""
        upper = self.upper
        if self.is_causal:
            upper = 0 if upper is None else min(upper, 0)
        return attention.Scoring(
            max(query.size(-1), 1) ** -0.5 if self.scale is None else self.scale,
            attention.mask_in_four_dimensions(self.attn_mask, query),
            self.lower,
            upper,
            self.query_documents,
            self.key_documents,
            self.slopes,
            self.softcap,
            self.dropout_p,
            self.seed,
        )


def _attention(
    query: Tensor, key: Tensor, value: Tensor, want_lse: bool, *given: Any
) -> tuple[Tensor, Tensor]:
    """Attention and, with `want_lse`, its lse of each query: float32 [..., queries], else an empty tensor.

    Operands are [batch, heads, length, dim]; as PyTorch's op has it, sizes in front of the length may also be fewer
    or more.
    """
    options = _Options(*given)
    scoring = options.scoring(query)
    if options.are_pytorchs and not want_lse:
        return options.pytorchs(query, key, value), _nothing(query)
    q, k, v = map(attention.in_four_dimensions, (query, key, value))
    if options.are_pytorchs:
        out, lse = options.pytorchs(query, key, value), attention.log_sums(q, k, scoring)
    else:
        out, lse = attention.forward(q, k, v, scoring)
        out = _as_laid_out(out.reshape(*query.shape[:-1], value.size(-1)), query)
    return out, lse.float().reshape(query.shape[:-1]) if want_lse else _nothing(query)


def _attention_fake(
    query: Tensor, key: Tensor, value: Tensor, want_lse: bool, *given: Any
) -> tuple[Tensor, Tensor]:
    options = _Options(*given)
    if options.are_pytorchs:
        out = options.pytorchs(query, key, value)
    else:
        out = _as_laid_out(query.new_empty((*query.shape[:-1], value.shape[-1])), query)
    return out, query.new_empty(query.shape[:-1], dtype=torch.float32) if want_lse else _nothing(query)


def _as_laid_out(x: Tensor, like: Tensor) -> Tensor:
    """Row-major `x`, or a copy whose second and third dimensions are swapped in memory, as those of `like` are."""
    if like.dim() == 4 and like.stride(1) < like.stride(2):
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    return x


def _nothing(like: Tensor) -> Tensor:
    return like.new_empty(0, dtype=torch.float32)


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


sdpa = custom_op(
    "flycc::sdpa",
    _attention,
    mutates_args=(),
    schema=f"(Tensor query, Tensor key, Tensor value, bool want_lse, {_SDPA}) -> (Tensor, Tensor)",
)
sdpa.register_fake(_attention_fake)
rms_norm = custom_op(
    "flycc::rms_norm", _normalised, mutates_args=(), schema=f"(Tensor input, {_RMS_NORM}) -> (Tensor, Tensor)"
)
rms_norm.register_fake(_normalised_fake)


@custom_op(
    "flycc::sdpa_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, {_SDPA}) "
    "-> (Tensor, Tensor, Tensor)",
)
def sdpa_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, *given: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, laid out as they are; `attn_mask` gets none.

    `out` and `lse` are those of `sdpa`, which need not have been asked for lse.
    """
    options = _Options(*given)
    if options.are_pytorchs:
        gradients = _gradients(options.pytorchs, (query, key, value), grad)
    else:
        scoring = options.scoring(query)
        dy, q, k, v, y = map(attention.in_four_dimensions, (grad, query, key, value, out))
        sums = lse.reshape(q.shape[:-1]) if lse.numel() else attention.log_sums(q, k, scoring)
        gradients = [
            gradient.reshape(like.shape)
            for gradient, like in zip(
                attention.backward(dy, q, k, v, y, sums, scoring), (query, key, value), strict=True
            )
        ]
    dq, dk, dv = (_as_empty_like(x, dx) for x, dx in zip((query, key, value), gradients, strict=True))
    return dq, dk, dv


def _as_empty_like(like: Tensor, x: Tensor) -> Tensor:
    """`x` with the strides of `torch.empty_like(like)`."""
    empty = torch.empty_like(like)
    return x if x.stride() == empty.stride() else empty.copy_(x)


@sdpa_backward.register_fake
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


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
    dx, *dw = (gradient.contiguous() for gradient in _gradients(forward, inputs, grad))
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
    """Gradients of `inputs` for the gradient `grad` of `forward(*inputs)`."""
    # A custom op's body runs with autograd off in the dispatcher, which grad mode alone does not undo.
    autograd = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)
    include = torch._C._dispatch_tls_local_include_set()
    exclude = torch._C._dispatch_tls_local_exclude_set() - autograd
    with torch._C._ForceDispatchKeyGuard(include, exclude), torch.inference_mode(False), torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        return list(torch.autograd.grad(forward(*leaves), leaves, grad))


def _save_sdpa(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, want_lse, *ctx.options = inputs
    out, lse = output
    ctx.set_materialize_grads(False)
    if not want_lse:
        ctx.mark_non_differentiable(lse)
    ctx.tensors = [index for index, option in enumerate(ctx.options) if isinstance(option, Tensor)]
    ctx.save_for_backward(query, key, value, out, lse, *(ctx.options[index] for index in ctx.tensors))
    for index in ctx.tensors:
        ctx.options[index] = None


def _differentiate_sdpa(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    query, key, value, out, lse, *tensors = ctx.saved_tensors
    options = list(ctx.options)
    for index, tensor in zip(ctx.tensors, tensors, strict=True):
        options[index] = tensor
    if grad is None:
        grad = torch.zeros_like(out)
    if grad_lse is None:
        dq, dk, dv = sdpa_backward(grad, query, key, value, out, lse, *options)
    else:
        chosen = _Options(*options)
        # PyTorch's formula makes an out of its own, flycc's does not: a bound that hides nothing asks for that.
        options = list(chosen._replace(upper=key.size(2)) if chosen.are_pytorchs else chosen)
        more = _with_lse(grad, grad_lse, value, out)
        dq, dk, dv = sdpa_backward(more[0], query, key, *more[1:], lse, *options)
        dv = dv[..., : value.size(-1)]
    return dq, dk, dv, *[None] * (len(options) + 1)


#: Columns beside a head's, as many as keep rows of 16-bit numbers at multiples of 16 bytes.
_MORE_COLUMNS = 8
#: What makes numbers that are sums of those of a row small enough for float16.
_SMALLER = 256.0


def _with_lse(grad: Tensor, grad_lse: Tensor, value: Tensor, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`grad`, `value` and `out` with columns that add the gradient of lse to those of scores, without dropout.

    dS = p * (dO V^T - delta + grad_lse) with delta = rowsum(dO * out): grad_lse is what columns of V that are the same
    for all keys give, whose out is taken for 0. Two numbers of 16 bits hold it as closely as sums of products need.
    """
    high = (grad_lse / _SMALLER).to(grad.dtype)
    low = (grad_lse - high.float() * _SMALLER).to(grad.dtype)
    columns = torch.stack([high, low], -1)
    grad = torch.cat([grad, torch.nn.functional.pad(columns, (0, _MORE_COLUMNS - 2))], -1)
    value = torch.nn.functional.pad(value, (0, 1), value=_SMALLER)
    value = torch.nn.functional.pad(value, (0, _MORE_COLUMNS - 1), value=1.0)
    return grad, value, torch.nn.functional.pad(out, (0, _MORE_COLUMNS))


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
