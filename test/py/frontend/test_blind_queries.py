"""Attention written by hand whose finite masks hide all keys of a query trains as the program does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from attention_reference import Attention
from torch import Tensor

from flycc import record
from flycc.frontend.blind_queries import with_moderate_scores
from flycc.frontend.composite_ops import sdpa
from flycc.frontend.keep_whole import keep_whole

HEADS, KV_HEADS, LENGTH, DIM = 4, 2, 9, 16
LOWEST = torch.finfo(torch.bfloat16).min
BLIND = (3, 8)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def hidden() -> Tensor:
    """Keys that queries do not see; those of BLIND see none."""
    mask = torch.rand(1, 1, LENGTH, LENGTH) < 0.5
    mask |= ~torch.eye(LENGTH, dtype=torch.bool)
    mask[..., 0], mask[..., BLIND, :] = False, True
    return mask


def repeated(x: Tensor) -> Tensor:
    expanded = x[:, :, None].expand(1, KV_HEADS, HEADS // KV_HEADS, LENGTH, DIM)
    return expanded.reshape(1, HEADS, LENGTH, DIM)


def filled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return ((q @ repeated(k).mT) * 0.25).masked_fill(mask, -1e9).softmax(-1) @ repeated(v)


def added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return ((q @ repeated(k).mT) * 0.25 + mask).softmax(-1).to(v.dtype) @ repeated(v)


@pytest.mark.parametrize("form", [filled, added])
def test_gradients_on_kernels(form: Callable[..., Tensor]) -> None:
    """dO of queries that see nothing is not 0. Their scores, lost in sums with a mask, have no gradient."""
    q, k, v = (torch.randn(1, heads, LENGTH, DIM).bfloat16() for heads in (HEADS, KV_HEADS, KV_HEADS))
    grad, hides = torch.randn(1, HEADS, LENGTH, DIM).bfloat16(), hidden()
    numbers = torch.zeros(hides.shape).masked_fill(hides, LOWEST)
    mask = hides if form is filled else numbers
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    with record.collect() as recorded:
        out = torch.compile(form, backend="flycc", options={"strict": True})(*leaves, mask)
        found = torch.autograd.grad(out, leaves, grad)
    assert not recorded.launch_refusals
    assert recorded.families()["sdpa_backward"]["kernel"] == 1

    blind = hides.all(-1, keepdim=True)
    bounds = Attention(q.masked_fill(blind, 0), k, v, 0.25, mask=~hides | blind)
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    heard = wide[0].masked_fill(blind, 0)
    exact = form(heard, *wide[1:], mask)
    assert ((out.double() - exact).abs() <= bounds.bound()).all()
    gradients = torch.autograd.grad(exact, wide, grad.double())
    for mine, right, bound in zip(found, gradients, bounds.backward_bounds(grad), strict=True):
        assert ((mine.double() - right).abs() <= bound).all()
    assert not found[0][:, :, BLIND].any()


def weights(q: Tensor, k: Tensor, mask: Tensor, lower: int | None = None, upper: int | None = None) -> Tensor:
    """Those of scores in float32, 0 where a query sees nothing."""
    return scores(q, k, mask, lower, upper).softmax(-1).nan_to_num(0)


def scores(q: Tensor, k: Tensor, mask: Tensor, lower: int | None, upper: int | None) -> Tensor:
    seen = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool)
    seen = seen if lower is None else seen.triu(lower)
    seen = seen if upper is None else seen.tril(upper)
    return (q @ k.mT + mask).masked_fill(~seen, -torch.inf)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("lower", "upper"), [(None, None), (-2, 0), (None, -4), (1, None)])
def test_weights_stay_and_scores_become_moderate(
    dtype: torch.dtype, lower: int | None, upper: int | None
) -> None:
    q, k = torch.randn(2, 3, 7, 8), torch.randn(2, 3, 9, 8)
    mask = torch.randn(2, 1, 7, 9).to(dtype)
    lowest = -65504.0 if dtype == torch.float16 else -1e9
    mask[0, :, 1:5] = lowest
    mask[0, :, 2, 4:] = -torch.inf
    mask[0, :, 3, :4], mask[0, :, 4, 2] = -torch.inf, 0.0
    mask[1, :, 5] = -torch.inf
    q_, mask_ = with_moderate_scores(q, k, mask, lower, upper)
    before, after = (weights(*x, lower, upper) for x in ((q, k, mask), (q_, k, mask_)))
    # lowest of float16 leaves scores a spacing of 2^-7
    torch.testing.assert_close(after, before, atol=2.0**-6 if dtype == torch.float16 else 1e-6, rtol=0)
    highest = scores(q_, k, mask_, lower, upper).amax(-1)
    assert (highest.isneginf() | (highest.abs() < 100)).all()
    assert torch.equal(highest.isneginf(), before.sum(-1) == 0)


def test_other_queries_keep_their_bits() -> None:
    q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 6, 8)
    for mask in (torch.randn(1, 2, 5, 6), torch.randn(1, 1, 1, 6), torch.randn(5, 1)):
        mask[..., 0] = torch.nan
        mask[..., 1:3] = LOWEST
        q_, mask_ = with_moderate_scores(q, k, mask, None, None)
        assert torch.equal(q, q_)
        assert torch.equal(mask.nan_to_num(7), mask_.nan_to_num(7))


def test_a_band_and_a_loaded_mask_hide_all_keys_together() -> None:
    """Neither does alone: the first query sees the first key alone, by -inf, and the mask hides that one."""
    q, k, v = (torch.randn(1, 2, 5, DIM).bfloat16().requires_grad_() for _ in range(3))
    padding = torch.zeros(1, 1, 1, 5, dtype=torch.bool)
    padding[..., :2] = True

    def form(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        later = torch.full((5, 5), float("-inf")).triu(1).to(q.dtype)
        return (((q @ k.mT) * 0.25).masked_fill(padding, LOWEST) + later).softmax(-1) @ v

    graphs = []

    def backend(gm: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
        graphs.append(keep_whole(gm))
        return gm.forward

    out = torch.compile(form, backend=backend, fullgraph=True)(q, k, v)
    [call] = graphs[0].graph.find_nodes(op="call_function", target=sdpa._opoverload)
    assert call.args[13:15] == (None, 0)
    both = call.args[0].args[0]
    assert (both.target, both.args[3:]) == (with_moderate_scores, (None, 0))
    grad = torch.randn_like(out)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    exact = form(*wide)
    gradients = torch.autograd.grad(exact, wide, grad.double())
    blind = torch.arange(5)[:, None] < 2
    no_scores = q.detach().masked_fill(blind, 0)
    bounds = Attention(no_scores, k.detach(), v.detach(), 0.25, mask=~padding | blind, upper=0)
    assert ((out.double() - exact).abs() <= bounds.bound()).all()
    for mine, right, bound in zip(
        torch.autograd.grad(out, (q, k, v), grad), gradients, bounds.backward_bounds(grad), strict=True
    ):
        assert ((mine.double() - right).abs() <= bound).all()
