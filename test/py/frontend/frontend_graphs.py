"""Helpers: ATen graphs of a function, and a backend that runs each graph both as it was and rebuilt."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.fx import GraphModule, Node
from torch.nn import functional as F
from torch.utils._pytree import tree_map
from torch_mlir.ir import Context, Module, Operation

import flycc.runtime.ops  # noqa: F401  defines torch.ops.flycc.gemm
from flycc import dialects
from flycc.frontend import Report, compile_graph, composite_ops, keep_whole
from flycc.frontend.importer import import_graph


def ints(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Values -1, 0 and 1. Sums of up to 256 of their products are exact in bf16 in any order."""
    return torch.randint(-1, 2, shape).to(dtype)


def distinct(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Integers from 0 in random order: no two are equal, so there is one order to sort them in."""
    return torch.randperm(torch.Size(shape).numel()).view(shape).to(dtype)


def reference_gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    **tail: Any,
) -> Tensor:
    """`flycc::gemm` by PyTorch on the CPU, rounded after every step, as the graph it stands for is."""
    return reference_gemm_with_preactivation(a, b, bias, trans_a=trans_a, trans_b=trans_b, **tail)[0]


def reference_gemm_with_preactivation(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    b2: Tensor | None = None,
    residual: Tensor | None = None,
    scale: float = 1.0,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """`flycc::gemm_with_preactivation` likewise."""
    p, t = (
        None
        if right is None
        else torch.matmul(a.mT if trans_a else a, right.mT if trans_b else right) * scale
        for right in (b, b2)
    )
    assert p is not None
    p = p if bias is None else p + bias
    y = {
        "none": lambda x: x,
        "relu": torch.relu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
    }[activation](p)
    y = y if t is None else y * t
    y = y if residual is None else y + residual
    return y.to(out_dtype or a.dtype).contiguous(), p.to(out_dtype or a.dtype).clone()


def reference_rms_norm(
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
    """`flycc::rms_norm_fwd` in float32, with its operations in the order of PyTorch's own norm."""
    h = x if residual is None else x + residual
    rstd = torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + eps)
    y = h.float() * rstd
    if cast_before_weight:
        y = y.to(x.dtype).float()
    if weight is not None:
        y = y * (1 + weight.float() if weight_offset else weight.float())
    empty = x.new_empty(0)
    return (
        y.to(out_dtype or x.dtype).contiguous(),
        empty if residual is None else h.contiguous(),
        rstd[..., 0].contiguous() if want_rstd else empty.float(),
    )


def reference_rms_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    *,
    weight_offset: bool = False,
    cast_before_weight: bool = False,
) -> tuple[Tensor, Tensor]:
    """`flycc::rms_norm_bwd` in float64."""
    normalised = x.double() * rstd.double()[..., None]
    g = grad.double()
    dweight = x.new_empty(0)
    if weight is not None:
        dweight = (g * normalised).flatten(0, -2).sum(0).to(weight.dtype)
        g = g * (weight.double() + weight_offset)
    dx = rstd.double()[..., None] * (g - normalised * (g * normalised).mean(-1, keepdim=True))
    return dx.to(x.dtype).contiguous(), dweight


def reference_topk(x: Tensor, k: int, *, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """`flycc::topk` by a stable sort."""
    values, indices = torch.sort(x, dim=-1, descending=largest, stable=True)
    copies = (result[..., :k].clone(memory_format=torch.contiguous_format) for result in (values, indices))
    return next(copies), next(copies)


def reference_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *tensors: Tensor | None,
    want_lse: bool = False,
    layout: str = "bhsd",
    **numbers: Any,
) -> tuple[Tensor, Tensor]:
    """`flycc::sdpa_fwd` by the composite that it stands for."""
    out, lse = composite_ops.sdpa(query, key, value, want_lse, *_attending(query, key, *tensors, **numbers))
    order = ["bhsd".index(dim) for dim in layout]
    return out.permute(order).contiguous().permute([*map(order.index, range(4))]), lse


def reference_sdpa_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    *tensors: Tensor | None,
    **numbers: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """`flycc::sdpa_bwd` likewise."""
    options = _attending(query, key, *tensors, **numbers)
    return composite_ops.sdpa_backward(grad, query, key, value, out, lse, *options)


def _attending(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    query_documents: Tensor | None = None,
    key_documents: Tensor | None = None,
    slopes: Tensor | None = None,
    seed: Tensor | None = None,
    *,
    scale: float,
    lower: int | None = None,
    upper: int | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
) -> tuple[Any, ...]:
    """The composites' options. PyTorch decides who computes: what it calls causal is that there, and a band that is all
    else that it lacks is a mask."""
    grouped = query.size(1) != key.size(1)
    tensors = query_documents, key_documents, slopes
    causal = upper == 0 and mask is None and lower is None
    pytorchs = not softcap and not dropout_p and all(tensor is None for tensor in tensors)
    if causal or (pytorchs and (lower, upper) != (None, None)):
        if not causal:
            mask = _within(mask, query.size(2), key.size(2), lower, upper)
        lower = upper = None
    return mask, causal, scale, grouped, dropout_p, seed, *tensors, lower, upper, softcap


def _within(mask: Tensor | None, queries: int, keys: int, lower: int | None, upper: int | None) -> Tensor:
    """`mask` with nothing seen outside of a band."""
    gap = torch.arange(keys) - torch.arange(queries)[:, None]
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if lower is not None:
        seen &= gap >= lower
    if upper is not None:
        seen &= gap <= upper
    if mask is None or mask.dtype == torch.bool:
        return seen if mask is None else mask & seen
    return mask.masked_fill(~seen, -torch.inf)


REFERENCES: dict[Any, Callable[..., Any]] = {
    torch.ops.flycc.gemm.default: reference_gemm,
    torch.ops.flycc.gemm_with_preactivation.default: reference_gemm_with_preactivation,
    torch.ops.flycc.rms_norm_fwd.default: reference_rms_norm,
    torch.ops.flycc.rms_norm_bwd.default: reference_rms_norm_backward,
    torch.ops.flycc.sdpa_fwd.default: reference_sdpa,
    torch.ops.flycc.sdpa_bwd.default: reference_sdpa_backward,
    torch.ops.flycc.topk.default: reference_topk,
}


@dataclass
class Recorder:
    """A Dynamo backend that keeps the ATen graphs, their rebuilt forms and reports.

    Each graph runs in its original form and rebuilt, with `REFERENCES` for flycc's ops, on separate copies of
    the inputs; the results, and what happened to the inputs, must agree bit for bit, or by `assert_close` where
    `exact` is false or a graph holds the backward pass of a norm, of which PyTorch has its own formula. Without
    `compare` it runs rebuilt alone, for results that tests compare with others.
    """

    transform: Callable[[GraphModule], GraphModule] = keep_whole
    exact: bool = True
    compare: bool = True
    graphs: list[GraphModule] = field(default_factory=list)
    rebuilt: list[GraphModule] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    def __call__(self, gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        aot = aot_autograd(fw_compiler=self._compile, decompositions={}, keep_inference_input_mutations=True)
        return aot(self.transform(gm), example_inputs)

    def _compile(self, gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        rebuilt, report = compile_graph(gm, example_inputs)
        assert report.failure is None, report.failure
        self.graphs.append(gm)
        self.rebuilt.append(rebuilt)
        self.reports.append(report)
        stand_in = GraphModule(rebuilt, copy.deepcopy(rebuilt.graph))
        for node in stand_in.graph.nodes:
            node.target = REFERENCES.get(node.target, node.target)
        stand_in.recompile()
        if not self.compare:
            return make_boxed_func(stand_in.forward)
        backward = rebuilt.graph.find_nodes(op="call_function", target=torch.ops.flycc.rms_norm_bwd.default)
        agree = assert_close if backward or not self.exact else assert_same_bits

        def run(*inputs: Any) -> Any:
            copies = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, inputs)
            state = torch.get_rng_state()
            rebuilt_outputs = stand_in(*copies)
            torch.set_rng_state(state)
            outputs = gm(*inputs)
            agree(rebuilt_outputs, outputs)
            assert_same_bits(copies, inputs)
            return outputs

        return make_boxed_func(run)

    def families(self) -> dict[str, tuple[int, int]]:
        """How many candidates of each family got a kernel, and how many did not."""
        candidates = [candidate for report in self.reports for candidate in report.nodes]
        return {
            family: (
                sum(c.family == family and c.kernel is not None for c in candidates),
                sum(c.family == family and c.kernel is None for c in candidates),
            )
            for family in sorted({c.family for c in candidates})
        }


def record(
    fn: Callable[..., Any],
    *inputs: Any,
    dynamic: bool | None = None,
    grad: bool = False,
    exact: bool = True,
) -> Recorder:
    """Runs `fn` once, and with `grad` its backward pass for the sum of its first result."""
    recorder = Recorder(exact=exact)
    compiled = torch.compile(fn, backend=recorder, dynamic=dynamic, fullgraph=True)
    with torch.set_grad_enabled(grad):
        result = compiled(*inputs)
    if grad:
        (result[0] if isinstance(result, tuple) else result).float().sum().backward()
    return recorder


def import_fresh(gm: GraphModule) -> Module:
    """`gm` imported into a context of its own."""
    return import_graph(gm, dialects.load(Context()))


def entry_ops(module: Module) -> list[Operation]:
    return [op.operation for op in module.body.operations[0].regions[0].blocks[0].operations]


def targets(recorder: Recorder) -> list[str]:
    """The targets of all calls in the graphs before matching."""
    return [
        str(node.target) for gm in recorder.graphs for node in gm.graph.nodes if node.op == "call_function"
    ]


def is_result_of_tuple(node: Node) -> bool:
    return node.target is operator.getitem


def assert_same_bits(actual: Any, expected: Any) -> None:
    """Equal structure, dtypes, strides and bits; NaNs of the same bits are equal."""
    if isinstance(expected, tuple | list):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_same_bits(a, e)
    elif isinstance(expected, Tensor):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        assert actual.stride() == expected.stride()
        assert torch.equal(_bytes(actual), _bytes(expected))
    else:
        assert actual == expected


def assert_close(actual: Any, expected: Any) -> None:
    """As `assert_same_bits`, but values within 2 ulps of their dtype, or of what cancelled in them.

    For results of float32 computations in another order: they differ by some 2**-24 of the terms of a sum
    before each is rounded to the dtype. The largest value stands for the terms; 2**-18 of it covers sums of
    64 terms.
    """
    if isinstance(expected, tuple | list):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_close(a, e)
    elif isinstance(expected, Tensor) and expected.is_floating_point():
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        assert actual.stride() == expected.stride()
        wide = expected.double()
        bound = 2 * torch.finfo(expected.dtype).eps * wide.abs() + 2**-18 * wide.abs().max()
        assert ((actual.double() - wide).abs() <= bound).all()
    else:
        assert_same_bits(actual, expected)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
