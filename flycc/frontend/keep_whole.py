"""Swaps composite calls of a Dynamo graph for custom ops, so that AOTAutograd leaves them in one piece."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.fx import GraphModule, Node

from flycc.contracts import Reason
from flycc.frontend import composite_ops
from flycc.frontend.model_numbers import known_number, specialise_numbers
from flycc.frontend.multi_head import open_attention
from flycc.frontend.nodes import changes_dispatch
from flycc.frontend.shared_heads import unrepeated
from flycc.frontend.written_attention import keep_written_attention, note_refusal
from flycc.frontend.written_norms import MEANS, WrittenNorm, read_written_norm


def keep_whole(gm: GraphModule) -> GraphModule:
    """Makes attention and RMS norm in `gm`, and in the graphs it holds, `flycc::sdpa` and `flycc::rms_norm`.

    `gm` is the graph that Dynamo hands to a backend; it is edited and returned. Results and gradients keep
    their bits, but for roundings of attention and RMS norms written by hand. Those become one op where they need
    gradients; elsewhere a pass finds them in the ATen graph. Dropout of attention draws a seed from PyTorch's
    generator instead of a number for each weight. A call stays as it is where the custom op could not stand for
    it: attention with a mask that needs a gradient or with dropout in types that no kernel takes, tensor
    subclasses, and every call of a graph that uses autocast, chooses attention backends or applies functorch
    transforms, because those act on PyTorch's own ops only; `written_refusals` tells of attention that stays. The
    eps of a norm, scale and softcap of attention written by hand, and the scale, dropout and head dims of attention
    become constants. Attention takes heads of K and V before they are repeated. What `nn.MultiheadAttention` and
    `nn.TransformerEncoderLayer` call is opened for that.
    """
    modules = [module for module in gm.modules() if isinstance(module, GraphModule)]
    nodes = [node for module in modules for node in module.graph.nodes]
    calls = [node for node in nodes if node.op == "call_function"]
    if changes_dispatch(gm):
        return gm
    for node in calls:
        if all(map(_is_plain, node.all_input_nodes)):
            if node.target is torch._C._nn.scaled_dot_product_attention:
                _keep_sdpa(node, *node.args, **node.kwargs)
            elif node.target is torch.rms_norm:
                _keep_rms_norm(node, *node.args, **node.kwargs)
            else:
                open_attention(node)
    for node in nodes:
        specialise_numbers(node)
    keep_written_attention(gm)
    for node in [node for node in nodes if node.target in MEANS]:
        norm = read_written_norm(node)
        if norm is not None and all(map(_is_plain, filter(None, (norm.x, norm.weight)))):
            _keep_written_norm(norm)
    for module in modules:
        module.recompile()
    return gm


def _is_plain(node: Node) -> bool:
    """Whether the value of `node` is a dense tensor of no subclass, or a number."""
    value = node.meta.get("example_value")
    return isinstance(value, torch.SymInt | torch.SymFloat) or (
        type(value) is FakeTensor and value.layout is torch.strided
    )


def _is_constant(*options: Any) -> bool:
    return all(option is None or isinstance(option, bool | int | float) for option in options)


# The parameters of the next two functions are those of the PyTorch functions they stand for.


def _keep_sdpa(
    node: Node,
    query: Node,
    key: Node,
    value: Node,
    attn_mask: Node | None = None,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    scale: Any = None,
    enable_gqa: Any = False,
) -> None:
    tensors = [x.meta["example_value"] for x in (query, key, value)]
    dropout_p, scale = known_number(dropout_p), known_number(scale)
    if not _is_constant(dropout_p, is_causal, scale, enable_gqa):
        note_refusal(node, Reason("sdpa.option", "an option is known only when it runs"))
        return
    for_kernels = all(x.dtype in (torch.bfloat16, torch.float16) for x in tensors)
    mask_learns = attn_mask is not None and attn_mask.meta["example_value"].requires_grad
    mask_learns = mask_learns and node.meta["example_value"].requires_grad
    reason = composite_ops.why_pytorchs(mask_learns, dropout_p, for_kernels)
    if reason is not None:
        note_refusal(node, reason)
        return
    for x in tensors:
        int(x.shape[-1])  # a guard: heads are as wide as the model has them, and kernels are made for them
    seed = _seed(node, tensors[0]) if dropout_p else None
    want_lse = for_kernels and node.meta["example_value"].requires_grad
    options = (want_lse, attn_mask, is_causal, scale)
    if for_kernels:
        key, value, enable_gqa = _shared(node, (query, key, value), options, enable_gqa)
    inputs = (query, key, value, *options, enable_gqa, float(dropout_p), seed)
    _become_first_of(node, composite_ops.sdpa._opoverload, *inputs)


def _shared(
    node: Node, operands: tuple[Node, Node, Node], options: tuple[Any, ...], enable_gqa: bool
) -> tuple[Node, Node, bool]:
    """Key and value of attention before their heads are repeated, and whether it takes them so.

    PyTorch may choose another implementation then: what it gives must be laid out in memory as it was.
    """
    query, key, value = operands
    before = unrepeated(key), unrepeated(value)
    if enable_gqa or key in before or value in before or not all(map(_is_plain, before)):
        return key, value, enable_gqa
    if len({x.meta["example_value"].shape[1] for x in before}) > 1:
        return key, value, enable_gqa
    given = [x.meta["example_value"] if isinstance(x, Node) else x for x in (query, *before, *options)]
    result = node.meta["example_value"]
    with result.fake_mode:
        out, _ = composite_ops.sdpa(*given, True)
    if out.stride() != result.stride():
        return key, value, enable_gqa
    return *before, True


def _seed(node: Node, like: FakeTensor) -> Node:
    """What dropout's numbers come from, drawn in front of `node` from the generator of the device of `like`."""
    with node.graph.inserting_before(node):
        options = {"dtype": torch.int64, "device": like.device}
        seed = node.graph.call_function(torch.randint, (1 << 62, (2,)), options)
    seed.meta["example_value"] = like.new_empty(2, dtype=torch.int64)
    return seed


def _keep_rms_norm(
    node: Node, input: Node, normalized_shape: Any, weight: Node | None = None, eps: Any = None
) -> None:
    if not _is_constant(eps) or not isinstance(normalized_shape, list | tuple):
        return
    _become_first_of(
        node, composite_ops.rms_norm._opoverload, input, normalized_shape, weight, eps, False, False, None
    )


def _become_first_of(node: Node, op: OpOverload, *arguments: Any) -> None:
    """Makes `node` the first result of `op`."""
    with node.graph.inserting_before(node):
        whole = node.graph.call_function(op, arguments)
    node.op, node.target, node.args, node.kwargs = "call_function", operator.getitem, (whole, 0), {}


def _keep_written_norm(norm: WrittenNorm) -> None:
    """Makes a norm written by hand one op; autograd would keep its intermediates for the backward pass."""
    size = norm.x.meta["example_value"].shape[-1]
    if not isinstance(size, int):
        with norm.y.graph.inserting_before(norm.y):
            size = norm.y.graph.call_method("size", (norm.x, -1))
    dtype = norm.y.meta["example_value"].dtype
    flags = (norm.cast_before_weight, norm.weight_offset)
    _become_first_of(
        norm.y, composite_ops.rms_norm._opoverload, norm.x, [size], norm.weight, norm.eps, *flags, dtype
    )
    for node in norm.inner:
        if not node.users:
            node.graph.erase_node(node)
