"""Attention written by hand becomes one call, whose result is that of float64 within derived bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from attention_reference import Attention
from frontend_graphs import Recorder
from torch import Tensor
from torch.nn import functional as F

from flycc.frontend import compile_graph

BATCH, HEADS, KV_HEADS, LENGTH, DIM = 2, 6, 2, 7, 16
DTYPE = torch.bfloat16
_Form = Callable[..., Tensor]


def repeated(x: Tensor) -> Tensor:
    batch, heads, length, dim = x.shape
    times = HEADS // heads
    return x[:, :, None].expand(batch, heads, times, length, dim).reshape(batch, HEADS, length, dim)


def llama(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.matmul(q, repeated(k).transpose(2, 3)) * DIM**-0.5 + mask
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, repeated(v)).transpose(1, 2).contiguous().transpose(1, 2)


def gemma(q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> Tensor:
    scores = torch.tanh((q * 0.5) @ repeated(k).mT / 3) * 3
    causal = torch.full((LENGTH, LENGTH), -torch.inf, dtype=scores.dtype).triu(1)
    return (scores + causal).float().softmax(-1).type_as(q) @ repeated(v)


def window(q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> Tensor:
    index = torch.arange(LENGTH)
    gap = index[:, None] - index[None, :]
    scores = torch.einsum("bhid,bhjd->bhij", q, repeated(k)) / DIM**0.5
    scores = scores.masked_fill(~((gap >= 0) & (gap < 3)), torch.finfo(scores.dtype).min)
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), repeated(v))


def padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The first sequence is hidden: equal weights, as the lowest number leaves them."""
    scores = (q @ repeated(k).mT) / DIM**0.5
    return scores.masked_fill(mask < -1e30, torch.finfo(scores.dtype).min).softmax(-1) @ repeated(v)


FORMS: dict[str, tuple[_Form, str, dict[str, object]]] = {
    "llama": (llama, "+mask bf16", {}),
    "gemma": (gemma, "+upper+softcap", {"scale": 0.5, "softcap": 3.0, "upper": 0, "mask": None}),
    "window": (window, "+lower+upper", {"lower": -2, "upper": 0, "mask": None}),
    "padded": (padded, "+mask f32", {}),
}


@pytest.mark.parametrize("name", FORMS)
def test_form(name: str) -> None:
    form, flags, options = FORMS[name]
    q, k, v = (torch.randn(BATCH, heads, LENGTH, DIM).to(DTYPE) for heads in (HEADS, KV_HEADS, KV_HEADS))
    mask = torch.zeros(BATCH, 1, 1, LENGTH, dtype=DTYPE)
    mask[0] = -3e38 if name == "padded" else mask[0]
    mask[1, ..., 3:] = -3e38
    seen = torch.ones(mask.shape, dtype=torch.bool)
    seen[1, ..., 3:] = False
    graphs: list[torch.fx.GraphModule] = []

    class Kept(Recorder):
        def _compile(self, gm: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
            rebuilt, report = compile_graph(gm, ())
            assert report.failure is None, report.failure
            self.reports.append(report)
            graphs.append(rebuilt)
            return rebuilt.forward

    recorder = Kept()
    with torch.no_grad():
        out = torch.compile(form, backend=recorder, fullgraph=True)(q, k, v, mask)
    [candidate] = recorder.reports[0].nodes
    problem = f"sdpa {BATCH}x{HEADS}:{KV_HEADS} heads {LENGTH}x{LENGTH}x{DIM} bf16{flags} align 16"
    assert (candidate.family, candidate.kernel, candidate.problem) == ("sdpa", "flycc::sdpa_fwd", problem)
    # Bools say exactly what the lowest numbers do; scores of 0 have the equal weights of a sequence that is hidden.
    wanted = q.clone()
    wanted[0] *= name != "padded"
    attention = replace(Attention(wanted, k, v, DIM**-0.5, mask=seen), **options)
    reference, _ = attention.forward()
    # The roundings to bf16 that the programs make of scores, masked scores and weights before they are multiplied are
    # not made but for the last, and 0.5 * q is exact: the bound is that of attention as one op.
    assert ((out.double() - reference).abs() <= attention.bound()).all()
