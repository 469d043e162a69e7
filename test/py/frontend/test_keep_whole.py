"""Composites stay whole, with PyTorch's bits in results and gradients, or stay PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attention_reference import Attention, dropout_mask
from frontend_graphs import Recorder, assert_same_bits, record, targets
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import flycc
from flycc.frontend import composite_ops

sdpa = F.scaled_dot_product_attention


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype)


def qkv(dtype: torch.dtype = torch.float32, kv_heads: int = 4) -> tuple[Tensor, ...]:
    return randn(2, 4, 5, 16, dtype=dtype), *(randn(2, kv_heads, 7, 16, dtype=dtype) for _ in range(2))


def transposed_qkv() -> tuple[Tensor, ...]:
    return tuple(randn(2, 5, 4, 16).transpose(1, 2).detach() for _ in range(3))


def without_autocast(*inputs: Tensor) -> Tensor:
    """As transformers guards the parts of a model that need full precision."""
    with torch.autocast("cpu", enabled=False):
        return sdpa(*inputs)


bool_mask = torch.rand(5, 7) > 0.3
float_mask = torch.randn(2, 1, 5, 7)

#: Those that are kept every day with sizes that are known, too.
QUICK = ("sdpa", "sdpa-float-mask", "sdpa-gqa", "rms")

#: name: (function, makes its inputs, the op that must be kept)
KEPT: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]], str]] = {
    "sdpa": (sdpa, qkv, "sdpa"),
    "sdpa-bf16": (sdpa, lambda: qkv(torch.bfloat16), "sdpa"),
    "sdpa-f64": (sdpa, lambda: qkv(torch.float64), "sdpa"),
    "sdpa-transposed": (sdpa, transposed_qkv, "sdpa"),
    "sdpa-causal": (lambda *a: sdpa(*a, is_causal=True), qkv, "sdpa"),
    "sdpa-causal-positional": (lambda *a: sdpa(*a, None, 0.0, True), qkv, "sdpa"),
    "sdpa-scale": (lambda *a: sdpa(*a, scale=0.3), qkv, "sdpa"),
    "sdpa-bool-mask": (lambda *a: sdpa(*a, bool_mask), qkv, "sdpa"),
    "sdpa-float-mask": (lambda *a: sdpa(*a, attn_mask=float_mask), qkv, "sdpa"),
    "sdpa-bf16-mask": (
        lambda *a: sdpa(*a, attn_mask=float_mask.bfloat16()),
        lambda: qkv(torch.bfloat16),
        "sdpa",
    ),
    "sdpa-gqa": (lambda *a: sdpa(*a, enable_gqa=True), lambda: qkv(kv_heads=2), "sdpa"),
    "sdpa-3d": (sdpa, lambda: (randn(4, 5, 16), randn(4, 7, 16), randn(4, 7, 16)), "sdpa"),
    "sdpa-value-dim": (sdpa, lambda: (randn(1, 2, 5, 16), randn(1, 2, 7, 16), randn(1, 2, 7, 8)), "sdpa"),
    "sdpa-no-head-dim": (
        sdpa,
        lambda: (randn(1, 2, 5, 0), randn(1, 2, 7, 0), randn(1, 2, 7, 8)),
        "sdpa",
    ),
    "sdpa-checkpoint": (lambda *a: checkpoint(sdpa, *a, use_reentrant=False), qkv, "sdpa"),
    "sdpa-no-autocast": (without_autocast, qkv, "sdpa"),
    "rms": (lambda x, w: F.rms_norm(x, (8,), w), lambda: (randn(3, 8), randn(8)), "rms_norm"),
    "rms-bf16": (
        lambda x, w: F.rms_norm(x, (8,), w, 1e-5),
        lambda: (randn(3, 8, dtype=torch.bfloat16), randn(8, dtype=torch.bfloat16)),
        "rms_norm",
    ),
    "rms-no-weight": (lambda x: torch.rms_norm(x, (8,)), lambda: (randn(3, 8),), "rms_norm"),
    "rms-2d": (lambda x, w: F.rms_norm(x, (4, 8), w), lambda: (randn(3, 4, 8), randn(4, 8)), "rms_norm"),
    "rms-strided": (lambda x: F.rms_norm(x.transpose(0, 1), (8,)), lambda: (randn(3, 5, 8),), "rms_norm"),
}


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [
        # Sizes that are known are the easier case.
        pytest.param(name, dynamic, marks=() if dynamic or name in QUICK else pytest.mark.nightly)
        for name in KEPT
        for dynamic in (False, True)
    ],
)
def test_kept_whole_with_the_same_bits(name: str, dynamic: bool) -> None:
    function, make_inputs, op = KEPT[name]
    inputs = make_inputs()
    compare_with_eager(function, inputs, dynamic)
    recorder = record(function, *[x.clone().requires_grad_() for x in inputs], dynamic=dynamic, grad=True)
    assert f"flycc.{op}.default" in targets(recorder)
    assert f"flycc.{op}_backward.default" in targets(recorder)
    assert not any("scaled_dot_product" in target or "rsqrt" in target for target in targets(recorder))


def compare_with_eager(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], dynamic: bool | None = None
) -> Recorder:
    """Results and gradients, with and without autograd, against plain PyTorch."""
    recorder = Recorder()
    compiled = torch.compile(function, backend=recorder, dynamic=dynamic)
    with torch.no_grad():
        assert_same_bits(compiled(*inputs), function(*inputs))
    weight = torch.randn_like(function(*inputs))
    gradients = []
    for run in (compiled, function):
        leaves = [x.clone().requires_grad_() for x in inputs]
        result = run(*leaves)
        gradients.append([result, *torch.autograd.grad(result, leaves, weight)])
    for mine, theirs in zip(*gradients, strict=True):
        assert torch.equal(mine, theirs)
    return recorder


def ones_mask_with_gradient(q: Tensor, mask: Tensor) -> Tensor:
    return sdpa(q, q, q, attn_mask=mask)


def in_autocast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return sdpa(q, k, v).float()


def with_math_backend(q: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return sdpa(q, q, q)


#: Calls for which the custom op could not stand.
LEFT: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "mask-gradient": (ones_mask_with_gradient, (randn(1, 2, 5, 16), randn(5, 5))),
    "autocast": (in_autocast, qkv()),
    "sdpa-kernel": (with_math_backend, (randn(1, 2, 5, 16),)),
    "vmap": (lambda q: torch.vmap(lambda x: sdpa(x, x, x))(q), (randn(3, 1, 2, 5, 16),)),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", LEFT)
def test_left_as_it_is_with_the_same_bits(name: str) -> None:
    function, inputs = LEFT[name]
    recorder = compare_with_eager(function, inputs)
    training_graphs = recorder.graphs[1:]
    assert training_graphs
    kept = [n for gm in training_graphs for n in gm.graph.nodes if str(n.target).startswith("flycc.")]
    assert kept == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_of_other_types_is_left_alone_and_draws_the_same_numbers(dtype: torch.dtype) -> None:
    q = randn(1, 2, 5, 16, dtype=dtype)
    recorder = Recorder()
    compiled = torch.compile(lambda q: sdpa(q, q, q, dropout_p=0.5), backend=recorder)
    state = torch.get_rng_state()
    mine = compiled(q)
    torch.set_rng_state(state)
    assert torch.equal(mine, sdpa(q, q, q, dropout_p=0.5))
    assert not any(target.startswith("flycc.") for target in targets(recorder))


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_dropout_is_that_of_the_contract_in_both_passes(layout: str, checkpointed: bool) -> None:
    """With a seed drawn from PyTorch's generator, against float64."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q, k, v, dropout_p=0.25, enable_gqa=True)

    def function(*inputs: Tensor) -> Tensor:
        return checkpoint(attend, *inputs, use_reentrant=False) if checkpointed else attend(*inputs)

    q, k, v = qkv(torch.bfloat16, kv_heads=2)
    if layout == "bshd":
        q = q.transpose(1, 2).contiguous().transpose(1, 2)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    recorder = Recorder()
    compiled = torch.compile(function, backend=recorder)
    torch.manual_seed(3)
    out = compiled(*leaves)
    torch.manual_seed(3)
    seed, offset = torch.randint(1 << 62, (2,)).tolist()
    keep = dropout_mask(seed, offset, (2, 4, 5, 7), 0.25)
    reference = Attention(q, k, v, q.size(-1) ** -0.5, keep=keep, dropout_p=0.25)
    assert ((out - reference.forward()[0]).abs() <= reference.bound()).all()
    assert out.stride() == q.stride()
    grad = torch.randn_like(out)
    gradients = torch.autograd.grad(out, leaves, grad)
    assert {"flycc.sdpa.default", "flycc.sdpa_backward.default"} <= {*targets(recorder)}
    bounds = reference.backward_bounds(grad)
    for mine, theirs, bound in zip(gradients, reference.backward(grad), bounds, strict=True):
        assert ((mine - theirs).abs() <= bound).all()


@pytest.mark.parametrize(
    ("dropout_p", "dtype"), [(-0.1, torch.bfloat16), (1.5, torch.bfloat16), (1.5, torch.float32)]
)
def test_a_dropout_out_of_range_is_pytorchs_error(dropout_p: float, dtype: torch.dtype) -> None:
    q = randn(1, 2, 5, 16, dtype=dtype)
    with pytest.raises(RuntimeError, match=r"dropout|bernoulli"):
        torch.compile(lambda q: sdpa(q, q, q, dropout_p=dropout_p), backend=Recorder())(q)


def test_dropout_of_everything_leaves_zeros() -> None:
    q = randn(1, 2, 5, 16, dtype=torch.bfloat16).requires_grad_()
    out = torch.compile(lambda q: sdpa(q, q, q, dropout_p=1.0), backend=Recorder())(q)
    assert not out.any()
    assert not torch.autograd.grad(out.sum(), q)[0].any()


def test_lse_is_there_only_where_a_gradient_needs_it() -> None:
    q, k, v = qkv(torch.bfloat16)
    options = (bool_mask, False, 0.5, False)
    out, lse = composite_ops.sdpa(q, k, v, True, *options)
    reference = Attention(q, k, v, 0.5, mask=bool_mask)
    exact = reference.forward()[1]
    seen = exact > -torch.inf
    assert torch.equal(lse > -torch.inf, seen)
    assert ((lse - exact).abs() <= reference.lse_bound())[seen].all()
    assert_same_bits(out, composite_ops.sdpa(q, k, v, False, *options)[0])
    recorder = Recorder()
    compiled = torch.compile(sdpa, backend=recorder)
    with torch.no_grad():
        compiled(q, k, v)
    compiled(q.requires_grad_(), k, v)
    asked = [
        node.args[3]
        for gm in recorder.graphs
        for node in gm.graph.nodes
        if str(node.target) == "flycc.sdpa.default"
    ]
    assert asked == [False, True]


def test_ambient_autocast_reaches_pytorchs_own_op() -> None:
    q = randn(1, 2, 5, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mine = torch.compile(lambda q: sdpa(q, q, q), backend=Recorder())(q)
        assert_same_bits(mine, sdpa(q, q, q))


def test_one_graph_serves_every_size() -> None:
    """`mark_dynamic` raises when a size is specialised; the graph count shows that nothing recompiles."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        q = F.rms_norm(x, (x.shape[-1],), w).unflatten(-1, (2, 8)).transpose(1, 2)
        return sdpa(q, q, q, is_causal=True).transpose(1, 2).flatten(2)

    recorder = Recorder()
    compiled = torch.compile(function, backend=recorder, fullgraph=True)
    w = randn(16)
    for batch, length in ((2, 5), (3, 9), (4, 17)):
        x = randn(batch, length, 16)
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(x, 1)
        assert torch.equal(compiled(x, w), function(x, w))
    assert len(recorder.graphs) == 1


@pytest.mark.parametrize("with_weight", [False, True])
def test_rms_norm_op_obeys_the_rules_for_custom_ops(with_weight: bool) -> None:
    x = randn(3, 8).requires_grad_()
    weight = randn(8).requires_grad_() if with_weight else None
    torch.library.opcheck(composite_ops.rms_norm, (x, [8], weight, 1e-5, False, False, None))


def test_sdpa_op_obeys_the_rules_for_custom_ops() -> None:
    q, k, v = (x.requires_grad_() for x in qkv(kv_heads=2))
    for want_lse in (False, True):
        torch.library.opcheck(composite_ops.sdpa, (q, k, v, want_lse, bool_mask, False, 0.5, True))


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_sdpa_op_with_what_pytorchs_has_not_obeys_the_rules_for_custom_ops(layout: str) -> None:
    q, k, v = (x.requires_grad_() for x in qkv(kv_heads=2))
    if layout == "bshd":
        q = q.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    documents = torch.arange(10).view(2, 5) // 3, torch.arange(14).view(2, 7) // 3
    options = (0.5, torch.tensor([3, 4]), *documents, torch.rand(4), -3, 2, 4.0)
    torch.library.opcheck(composite_ops.sdpa, (q, k, v, True, bool_mask, False, None, True, *options))


def test_a_mask_that_needs_a_gradient_is_why_attention_stays() -> None:
    q, k, v = (x.requires_grad_() for x in qkv(torch.bfloat16))
    mask = randn(5, 7, dtype=torch.bfloat16).requires_grad_()

    def attend(*operands: Tensor) -> Tensor:
        return sdpa(*operands)

    def codes() -> set[str]:
        explained = flycc.explain(attend, q, k, v, mask)
        nodes = [node for graph in explained.graphs for node in graph.report.nodes if node.family == "sdpa"]
        return {"" if node.reason is None else node.reason.code for node in nodes}

    assert codes() == {"sdpa.mask"}
    compiled = torch.compile(attend, backend="flycc", options={"strict": True})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="its mask needs a gradient"):
        compiled(q, k, v, mask)
    with torch.no_grad():  # nothing needs one
        assert codes() == {""}


def test_dropout_that_kernels_do_not_take_is_why_attention_stays() -> None:
    recorder = Recorder(compare=False)
    torch.compile(lambda *x: sdpa(*x, dropout_p=0.5), backend=recorder)(*qkv())
    assert {c.reason.code for c in recorder.reports[0].nodes} == {"sdpa.dtype"}
