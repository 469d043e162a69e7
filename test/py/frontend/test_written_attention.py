"""Attention written by hand that needs gradients becomes `flycc::sdpa` in Dynamo's graph, or has a reason not to.

The graphs run as they are then, with the composites' own formulas; gradients are compared with those of float64 within
derived bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_reference import Attention, dropout_mask
from frontend_graphs import Recorder
from torch import Tensor
from torch.fx import GraphModule
from torch.nn import functional as F

from flycc.frontend import composite_ops, keep_whole

BATCH, HEADS, KV_HEADS, LENGTH, DIM = 2, 4, 2, 5, 16
DTYPE = torch.bfloat16


def operands(kv_heads: int = HEADS) -> list[Tensor]:
    return [
        torch.randn(BATCH, heads, LENGTH, DIM).to(DTYPE).requires_grad_()
        for heads in (HEADS, kv_heads, kv_heads)
    ]


def run(form: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> tuple[Any, GraphModule]:
    """What `form` gives with attention kept whole, and Dynamo's graph."""
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(keep_whole(gm))
        return gm.forward

    out = torch.compile(form, backend=backend, fullgraph=True, dynamic=dynamic)(*inputs)
    [graph] = graphs
    return out, graph


def composites(graph: GraphModule) -> list[torch.fx.Node]:
    return graph.graph.find_nodes(op="call_function", target=composite_ops.sdpa._opoverload)


def check(out: Tensor, leaves: list[Tensor], attention: Attention) -> None:
    """Out and gradients are those of `attention`, for a gradient of out in the order of bytes that the form gives."""
    grad = torch.randn(out.shape).to(DTYPE)
    assert ((out.double() - attention.forward()[0]).abs() <= attention.bound()).all()
    out.backward(grad)
    for leaf, exact, bound in zip(
        leaves, attention.backward(grad), attention.backward_bounds(grad), strict=True
    ):
        assert leaf.grad is not None
        assert ((leaf.grad.double() - exact).abs() <= bound).all()


def nanogpt(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1)) * (1.0 / DIM**0.5)
    seen = torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH)
    weights = F.softmax(scores.masked_fill(seen == 0, float("-inf")), dim=-1)
    y = F.dropout(weights, 0.0) @ v
    return (
        y.transpose(1, 2).contiguous().view(BATCH, LENGTH, -1).view(BATCH, LENGTH, HEADS, DIM).transpose(1, 2)
    )


def llama(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Heads repeated, scores changed in place, a softmax in float32."""

    def repeated(x: Tensor) -> Tensor:
        expanded = x[:, :, None].expand(BATCH, KV_HEADS, HEADS // KV_HEADS, LENGTH, DIM)
        return expanded.reshape(BATCH, HEADS, LENGTH, DIM)

    scores = torch.matmul(q, repeated(k).transpose(2, 3))
    scores /= DIM**0.5
    scores += mask
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), repeated(v))


def gemma(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A softcap and a window of three keys, which no query sees none of."""
    gap = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    scores = torch.tanh(torch.einsum("bhid,bhjd->bhij", q, k) / 3) * 3
    scores = torch.where((gap >= 0) & (gap < 3), scores, torch.finfo(DTYPE).min)
    return torch.einsum("bhij,bhjd->bhid", scores.float().softmax(-1).type_as(v), v)


def test_causal() -> None:
    leaves = operands()
    out, graph = run(nanogpt, *leaves)
    [call] = composites(graph)
    assert (call.args[4], call.args[5], call.args[13:15]) == (
        None,
        True,
        (None, None),
    )  # causal as PyTorch has it
    assert not any(node.target is torch.ops.aten.clone.default for node in graph.graph.nodes)
    check(out, leaves, Attention(*leaves, DIM**-0.5, upper=0))


def test_repeated_heads_and_a_mask() -> None:
    leaves, mask = operands(KV_HEADS), torch.randn(BATCH, 1, LENGTH, LENGTH).to(DTYPE)
    out, graph = run(llama, *leaves, mask)
    [call] = composites(graph)
    assert [x.op for x in call.args[1:3]] == ["placeholder"] * 2
    check(out, leaves, Attention(*leaves, DIM**-0.5, mask=mask))


def test_softcap_and_window() -> None:
    leaves = operands()
    out, graph = run(gemma, *leaves)
    [call] = composites(graph)
    assert (call.args[4], call.args[13:15]) == (None, (-2, 0))
    check(out, leaves, Attention(*leaves, 1.0, lower=-2, upper=0, softcap=3.0))


def test_products_whose_heads_are_told_apart_behind() -> None:
    leaves, mask = operands(), torch.randn(BATCH, 1, 1, LENGTH).to(DTYPE)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q3, k3, v3 = (x.reshape(BATCH * HEADS, LENGTH, DIM) for x in (q, k, v))
        scores = torch.bmm(q3, k3.mT).view(BATCH, HEADS, LENGTH, LENGTH) + mask
        weights = F.dropout(scores.softmax(-1), 0.0, True).view(BATCH * HEADS, LENGTH, LENGTH)
        return torch.bmm(weights, v3).view(BATCH, HEADS, LENGTH, DIM)

    out, graph = run(attend, *leaves)
    assert len(composites(graph)) == 1
    check(out, leaves, Attention(*leaves, 1.0, mask=mask))


def test_dropout_of_weights() -> None:
    leaves = operands()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout((q @ k.mT).softmax(-1), 0.25, training=True) @ v

    torch.manual_seed(5)
    out, _ = run(attend, *leaves)
    torch.manual_seed(5)
    seed, offset = torch.randint(1 << 62, (2,)).tolist()
    keep = dropout_mask(seed, offset, (BATCH, HEADS, LENGTH, LENGTH), 0.25)
    check(out, leaves, Attention(*leaves, 1.0, keep=keep, dropout_p=0.25))


def test_lengths_and_scales_that_are_dynamic() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 0.3

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            scores = torch.matmul(q, k.transpose(2, 3)) * self.scale
            later = torch.full((q.shape[2], k.shape[2]), float("-inf"), dtype=q.dtype).triu(1)
            return torch.matmul((scores + later).softmax(-1), v)

    leaves = operands()
    out, graph = run(Model(), *leaves, dynamic=True)
    assert len(composites(graph)) == 1
    check(out, leaves, Attention(*leaves, 0.3, upper=0))


def mask_that_learns(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT) + q.sum((1, 3))[:, None, None]).softmax(-1) @ v


def weights_too(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights


def mask_written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = q.detach().sum((1, 3))[:, None, None] * 1
    scores = q @ k.mT + mask
    mask.mul_(2)
    return scores.softmax(-1) @ v


def something_between(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT) * q[..., :1]).softmax(-1) @ v


def keys_not_recorded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        turned = k.mT
    return (q @ turned).softmax(-1) @ v + k.sum()


def in_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q.float() @ k.float().mT).softmax(-1) @ v.float()


NEAR_MISSES: dict[str, tuple[Callable[..., Any], str, str]] = {
    "mask": (mask_that_learns, "sdpa.mask", "needs a gradient"),
    "weights": (weights_too, "sdpa.weights", "used more than once"),
    "mutation": (mask_written, "sdpa.mutation", "mul_ may write to memory that attention reads"),
    "mode": (keys_not_recorded, "sdpa.mode", "may change what autograd records"),
    "dtype": (in_float32, "sdpa.dtype", "it gives f32 where query is bf16"),
    "form": (something_between, "sdpa.form", "stands between its scores and the softmax"),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_say_why_and_keep_their_bits(name: str) -> None:
    form, code, words = NEAR_MISSES[name]
    leaves, recorder = operands(), Recorder(compare=False)
    torch.compile(form, backend=recorder, fullgraph=True)(*leaves)
    [reason] = [c.reason for c in recorder.reports[0].nodes if c.family == "sdpa"]
    assert reason is not None
    assert reason.code == code
    assert words in reason.sentence
    torch._dynamo.reset()
    gradients = []
    for out in (run(form, *leaves)[0], form(*leaves)):
        total = sum(x.float().sum() for x in (out if isinstance(out, tuple) else (out,)))
        gradients.append(torch.autograd.grad(total, leaves))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*gradients, strict=True))
