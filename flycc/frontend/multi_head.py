"""PyTorch's multi-head attention and its fused encoder layer, with their attention kept whole.

Dynamo leaves both in one piece. AOTAutograd would find PyTorch's attention in the first, and nothing in the second,
which is one op for a whole layer. What stands for them computes the same, and is traced like any function.
"""

from __future__ import annotations

import inspect
import operator
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node
from torch.fx.traceback import annotate

from flycc.frontend import composite_ops
from flycc.frontend.written_attention import refusal_note

_KERNELS = (torch.bfloat16, torch.float16)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> Tensor:
    """`F.scaled_dot_product_attention` by flycc's op, or as it is where that cannot stand for it: see `keep_whole`."""
    for_kernels = all(x.dtype in _KERNELS for x in (query, key, value))
    learns = torch.is_grad_enabled() and attn_mask is not None and attn_mask.requires_grad
    reason = composite_ops.why_pytorchs(learns, dropout_p, for_kernels)
    if reason is not None:
        with annotate(refusal_note(reason)):
            return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal)
    seed = torch.randint(1 << 62, (2,), dtype=torch.int64, device=query.device) if dropout_p else None
    needs_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    options = (attn_mask, is_causal, None, False, float(dropout_p), seed)
    out, _ = composite_ops.sdpa(query, key, value, for_kernels and needs_gradient, *options)
    return out


def _with_attention_kept() -> Callable[..., tuple[Tensor, Tensor | None]]:
    """PyTorch's own function, but for the attention that it calls."""
    theirs = F.multi_head_attention_forward
    names = {**theirs.__globals__, "scaled_dot_product_attention": _attend}
    ours = types.FunctionType(theirs.__code__, names, theirs.__name__, theirs.__defaults__)
    ours.__kwdefaults__ = theirs.__kwdefaults__
    names[theirs.__name__] = ours  # what a mode of torch functions that is active is told to call
    # FX writes a function of torch's by its name, which would be theirs.
    ours.__module__, ours.__qualname__ = __name__, "multi_head_attention"
    return ours


multi_head_attention = _with_attention_kept()


def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """`torch._transformer_encoder_layer_fwd`, by whose names these are, of [batch, length, embed_dim] `src`.

    `mask` hides where it is not 0: [length, length] keys of a query with `mask_type` 0, [batch, length] keys with 1,
    [batch, num_heads, length, length] with 2.
    """
    seen = None if mask is None else mask == 0
    if seen is not None and mask_type == 1:
        seen = seen[:, None, None]

    def attend(x: Tensor) -> Tensor:
        heads = F.linear(x, qkv_weight, qkv_bias).unflatten(-1, (3, num_heads, -1))
        query, key, value = (part.transpose(1, 2) for part in heads.unbind(2))
        out = _attend(query, key, value, seen)
        return F.linear(out.transpose(1, 2).flatten(2), proj_weight, proj_bias)

    def feed_forward(x: Tensor) -> Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    def norm_1(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        src = src + attend(norm_1(src))
        return src + feed_forward(norm_2(src))
    src = norm_1(src + attend(src))
    return norm_2(src + feed_forward(src))


#: What stands for a function that a Dynamo graph calls.
_STANDS_FOR: dict[Callable[..., Any], Callable[..., Any]] = {
    F.multi_head_attention_forward: multi_head_attention,
    torch._transformer_encoder_layer_fwd: encoder_layer,
}


def open_attention(node: Node) -> None:
    """Makes `node`, if it calls one of the two, call what stands for it; weights that nothing reads are not made."""
    theirs = node.target
    ours = _STANDS_FOR.get(theirs) if callable(theirs) else None
    if ours is None:
        return
    if theirs is F.multi_head_attention_forward and not _reads_weights(node):
        given = inspect.signature(F.multi_head_attention_forward).bind(*node.args, **node.kwargs)
        if given.arguments.get("need_weights", True):
            # With weights, `is_causal` says nothing that the mask does not; without, it would take the mask's place.
            given.arguments |= {"need_weights": False, "is_causal": False}
            node.args, node.kwargs = given.args, given.kwargs
    node.target = ours


def _reads_weights(node: Node) -> bool:
    """Whether anything reads more than the first of the results of multi-head attention."""
    return any(
        user.target is not operator.getitem or (user.args[1] != 0 and user.users) for user in node.users
    )
