"""flex_attention that stays PyTorch's: why, with PyTorch's results, and said once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_hop
from torch._higher_order_ops.flex_attention import math_attention
from torch.fx import GraphModule
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from flycc import frontend, record

BATCH, HEADS, LENGTH, DIM = 1, 2, 6, 16

slopes = torch.tensor([0.5, 0.25])
allowed = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return score + slopes[h] * (kv - q)


def causal(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return q >= kv


def capped_late(score: Tensor, *indices: Tensor) -> Tensor:
    return 2 * torch.tanh(alibi(score, *indices) / 2)


def added_in_place(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    doubled = score * 2
    doubled += kv - q
    return doubled


#: Bodies outside of what is read: score_mod, mask_mod, the reason's code, and what its sentence says.
BODIES: dict[str, tuple[Callable[..., Tensor] | None, Callable[..., Tensor] | None, str, str]] = {
    "sine": (lambda s, *_: s + torch.sin(s), None, "score-mod", "sin (sin) is outside"),
    "capped late": (capped_late, None, "score-mod", "scales a score that is biased or masked already"),
    "capped twice": (
        lambda s, *_: torch.tanh(torch.tanh(s)),
        None,
        "score-mod",
        "caps a score that is capped, biased",
    ),
    "temperature": (lambda s, b, h, q, kv: s * slopes[h], None, "score-mod", "by what is no constant"),
    "finite fill": (
        lambda s, b, h, q, kv: torch.where(q >= kv, s, -1e4),
        None,
        "score-mod",
        "where (where)",
    ),
    "of the score": (lambda s, b, h, q, kv: torch.where(s > 0, s, -math.inf), None, "score-mod", "gt ("),
    "in place": (added_in_place, None, "score-mod", "iadd ("),
    "without the score": (lambda s, b, h, q, kv: (q - kv) * 1.0, None, "score-mod", "does not depend"),
    "sum of a row": (None, lambda b, h, q, kv: allowed[q].sum() > kv, "mask-mod", "sum (sum_1) is outside"),
    "no bool": (None, lambda b, h, q, kv: (q >= kv).to(torch.uint8), "mask-mod", "is not a bool"),
    "scale": (lambda s, *_: s * -1.0, None, "scale", "-0.25"),
}


@pytest.fixture(autouse=True)
def training_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch refuses gradients of CPU tensors in flex_attention, not in the operator below it."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)


def operands(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    return tuple(torch.randn(BATCH, HEADS, LENGTH, DIM, dtype=dtype) for _ in range(3))


def reasons(function: Callable[..., Any], *inputs: Any) -> tuple[list[str], Any]:
    """Why calls in `function` stay, and what it gives as Dynamo's graph, in which they are."""
    found: list[str] = []

    def backend(gm: GraphModule, _: list[Any]) -> Callable[..., Any]:
        found.extend(map(str, frontend.keep_flex_attention(gm)))
        calls = [n for m in gm.modules() for n in m.graph.nodes if n.target is flex_attention_hop]
        assert len(calls) == len(found)
        gm.graph.lint()
        return gm.forward

    return found, torch.compile(function, backend=backend, fullgraph=True)(*inputs)


def identity(score: Tensor, *_: Tensor) -> Tensor:
    return score


def all_seen(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return b.new_ones((), dtype=torch.bool)


def block_mask(mask_mod: Callable[..., Tensor]) -> BlockMask:
    """Whose blocks are those of another mask, which decides nothing."""
    mask = create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu")
    mask.mask_mod = mask_mod
    return mask


@pytest.mark.filterwarnings("ignore:where received a uint8")
def test_bodies_outside_of_the_set() -> None:
    inputs = operands()
    masks = {name: block_mask(mask_mod or all_seen) for name, (_, mask_mod, *_) in BODIES.items()}

    def attend(*inputs: Tensor) -> list[Tensor]:
        return [flex_attention(*inputs, score_mod, masks[name]) for name, (score_mod, *_) in BODIES.items()]

    found, outs = reasons(attend, *inputs)
    for (name, (score_mod, mask_mod, code, what)), reason, out in zip(
        BODIES.items(), found, outs, strict=True
    ):
        assert reason.startswith(f"flex.{code}: "), (name, reason)
        assert what in reason, (name, reason)
        exact, *_ = math_attention(*inputs, score_mod or identity, (mask_mod or all_seen,), DIM**-0.5, {})
        torch.testing.assert_close(out, exact)


def test_results_and_gradients_that_kernels_do_not_give() -> None:
    learned = torch.nn.Parameter(slopes.clone())
    query, *others = operands(torch.bfloat16)
    query.requires_grad_()
    wide = operands(torch.float64)

    def attend(query: Tensor, *others: Tensor) -> Any:
        biased = flex_attention(query, *others, lambda s, b, h, q, kv: s + learned[h] * (kv - q))
        mask = (None,) * 16 + (all_seen,)
        _, _, highest = flex_attention_hop(others[0], *others, identity, mask, 0.25, {})
        return biased, flex_attention(*wide), highest

    found, _ = reasons(attend, query, *others)
    codes = [reason.partition(":")[0] for reason in found]
    assert codes == ["flex.gradient", "flex.max-scores", "flex.dtype"]


def test_it_runs_in_pytorch_and_is_explained() -> None:
    """Once in each graph, forward and backward, with one warning."""
    inputs = [x.requires_grad_() for x in operands(torch.bfloat16)]
    mask = create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu")
    function = torch.compile(lambda *a: flex_attention(*a, capped_late, mask), backend="flycc")
    with warnings.catch_warnings(record=True) as seen, record.collect() as recorded:
        warnings.simplefilter("always")
        out = function(*inputs)
        gradients = torch.autograd.grad(out, inputs, torch.ones_like(out))
    assert len([w for w in seen if "flycc leaves flex_attention to PyTorch" in str(w.message)]) == 1
    leaves = [x.detach().requires_grad_() for x in inputs]
    exact, *_ = math_attention(*leaves, capped_late, (causal,), DIM**-0.5, {})
    torch.testing.assert_close(out, exact)
    for mine, theirs in zip(gradients, torch.autograd.grad(exact, leaves, torch.ones_like(out)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2**-5, atol=2**-6)
    refused = [
        (graph.kind, c.target, c.family, c.reason.code)
        for graph in recorded.graphs
        for c in graph.report.nodes
        if c.reason is not None
    ]
    assert refused == [
        ("forward", "higher_order.flex_attention", "sdpa", "flex.score-mod"),
        ("backward", "higher_order.flex_attention_backward", "sdpa_backward", "flex.score-mod"),
    ]


def test_strict_refuses() -> None:
    function = torch.compile(
        lambda *a: flex_attention(*a, capped_late), backend="flycc", options={"strict": True}
    )
    with pytest.raises(Exception, match="Refused: score_mod: truediv"):
        function(*operands(torch.bfloat16))
