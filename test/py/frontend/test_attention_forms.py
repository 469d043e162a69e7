"""Attention written by hand becomes one call, whose result is that of float64 within derived bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_reference import Attention
from frontend_graphs import Recorder, record
from torch import Tensor
from torch.fx import GraphModule
from torch.nn import functional as F

from flycc.contracts import Problem, Reason, SdpaProblem
from flycc.frontend import compile_graph
from flycc.frontend.report import Candidate

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


def twice_filled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """As `padded`, and causal by a second fill: what both hide is hidden no more than the rest."""
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    scores = ((q @ repeated(k).mT) / DIM**0.5).masked_fill(later, -1e9)
    return scores.masked_fill(mask < -1e30, -1e9).softmax(-1) @ repeated(v)


def sdpa_with_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Masks of bools: one that is known to be causal but for what is padded."""
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() & (mask > -1e30)
    return F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)


def sdpa_of_repeated_heads(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, repeated(k), v.repeat_interleave(HEADS // KV_HEADS, dim=1), mask)


FORMS: dict[str, tuple[_Form, str, dict[str, object]]] = {
    "llama": (llama, "+mask bf16", {}),
    "gemma": (gemma, "+upper+softcap", {"scale": 0.5, "softcap": 3.0, "upper": 0, "mask": None}),
    "window": (window, "+lower+upper", {"lower": -2, "upper": 0, "mask": None}),
    "padded": (padded, "+mask f32", {}),
    "twice-filled": (twice_filled, "+mask f32", {}),
    "sdpa-with-mask": (sdpa_with_mask, "+mask bool+upper", {"upper": 0}),
    "sdpa-of-repeated-heads": (sdpa_of_repeated_heads, "+mask bf16", {}),
}


def compiled(
    form: _Form, *inputs: Any, dynamic: bool | None = None
) -> tuple[Tensor, list[Candidate], GraphModule]:
    """What the rebuilt graph of `form` computes, with the composites' own formulas, and the graph."""
    recorder = Recorder(compare=False)
    with torch.no_grad():
        out = torch.compile(form, backend=recorder, fullgraph=True, dynamic=dynamic)(*inputs)
    [report], [rebuilt] = recorder.reports, recorder.rebuilt
    return out, report.nodes, rebuilt


#: What reports say of some of them.
DETAILS = {
    "llama": "GQA 6:2, mask bf16 loaded",
    "gemma": "causal, GQA 6:2, softcap 3",
    "window": "causal, window 3, GQA 6:2",
    "sdpa-with-mask": "causal, GQA 6:2, mask bool loaded",
}


@pytest.mark.parametrize("name", FORMS)
def test_form(name: str) -> None:
    form, flags, options = FORMS[name]
    q, k, v = (torch.randn(BATCH, heads, LENGTH, DIM).to(DTYPE) for heads in (HEADS, KV_HEADS, KV_HEADS))
    mask = torch.zeros(BATCH, 1, 1, LENGTH, dtype=DTYPE)
    hidden = name in ("padded", "twice-filled")
    mask[0] = -3e38 if hidden else mask[0]
    mask[1, ..., 3:] = -3e38
    seen = torch.ones(mask.shape, dtype=torch.bool)
    seen[1, ..., 3:] = False
    if name == "twice-filled":
        earlier = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        seen = torch.stack([seen[0].expand(1, LENGTH, LENGTH), seen[1] & earlier])
    out, [candidate], _ = compiled(form, q, k, v, mask)
    problem = f"sdpa {BATCH}x{HEADS}:{KV_HEADS} heads {LENGTH}x{LENGTH}x{DIM} bf16{flags} align 16"
    assert (candidate.family, candidate.kernel, candidate.problem) == ("sdpa", "flycc::sdpa_fwd", problem)
    assert candidate.detail == DETAILS.get(name, candidate.detail)
    # Bools say exactly what the lowest numbers do; scores of 0 have the equal weights of a sequence that is hidden.
    wanted = q.clone()
    wanted[0] *= not hidden
    attention = replace(Attention(wanted, k, v, DIM**-0.5, mask=seen), **options)
    reference, _ = attention.forward()
    # The roundings to bf16 that the programs make of scores, masked scores and weights before they are multiplied are
    # not made but for the last, and 0.5 * q is exact: the bound is that of attention as one op.
    assert ((out.double() - reference).abs() <= attention.bound()).all()


def test_bottom_right_causal_of_lengths_that_only_the_run_knows() -> None:
    """A piece of a prompt behind a cache: `upper` is the length of the cache, and no mask is loaded."""

    def attend(q: Tensor, k: Tensor, v: Tensor, past: Tensor) -> Tensor:
        keys = torch.cat([past, k], 2)
        i = torch.arange(past.shape[2], keys.shape[2])
        seen = torch.arange(keys.shape[2]) <= i[:, None]
        return F.scaled_dot_product_attention(q, keys, torch.cat([past, v], 2), seen)

    q, k, v = (torch.randn(1, 2, LENGTH, DIM).to(DTYPE) for _ in range(3))
    past = torch.randn(1, 2, 5, DIM).to(DTYPE)
    out, [candidate], graph = compiled(attend, q, k, v, past, dynamic=True)
    assert candidate.kernel == "flycc::sdpa_fwd"
    assert "mask" not in candidate.problem
    assert "+upper" in candidate.problem
    [call] = graph.graph.find_nodes(op="call_function", target=torch.ops.flycc.sdpa_fwd.default)
    query, key = (argument.meta["val"] for argument in call.args[:2])
    assert str(call.kwargs["upper"].meta["val"]) == str(key.shape[2] - query.shape[2])
    keys, values = torch.cat([past, k], 2), torch.cat([past, v], 2)
    attention = Attention(q, keys, values, DIM**-0.5, upper=5)
    assert ((out.double() - attention.forward()[0]).abs() <= attention.bound()).all()


@pytest.mark.parametrize(
    ("attend", "kv_heads", "reason"),
    [
        (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=-0.5),
            (2, 2),
            "sdpa.scale: sdpa: it is -0.5; kernels take 2^-100 to 2^100",
        ),
        (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
            (2, 1),
            "sdpa.broadcast: sdpa: key and value have different heads; kernels do not broadcast them",
        ),
    ],
)
def test_reasons(attend: Callable[..., Tensor], kv_heads: tuple[int, int], reason: str) -> None:
    q, k, v = (torch.randn(2, heads, 5, 16).bfloat16() for heads in (2, *kv_heads))
    recorder = record(attend, q, k, v)
    reasons = [c.reason for report in recorder.reports for c in report.nodes if c.reason]
    assert reason in [f"{one.code}: {one.sentence}" for one in reasons]


def test_fills_with_different_numbers_are_refused() -> None:
    """Which of them a query that sees nothing has equal weights of, no mask of one number says."""

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = (q @ k.mT).masked_fill(mask, -1e9)
        return scores.masked_fill(torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), -1e8).softmax(-1) @ v

    q, k, v = (torch.randn(1, 2, LENGTH, DIM).to(DTYPE) for _ in range(3))
    _, candidates, _ = compiled(attend, q, k, v, torch.arange(LENGTH) > 3)
    reasons = [c.reason for c in candidates if c.reason is not None]
    assert [reason.code for reason in reasons] == ["sdpa.mask"]
    assert "-1e+09, -1e+08" in reasons[0].sentence


class Scaled(torch.nn.Module):
    """Its scale and softcap are floats that Dynamo makes inputs where shapes are dynamic."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.cap, self.temperature = 0.3, 2.5, torch.nn.Parameter(torch.ones(()))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, learned: bool) -> Tensor:
        scores = torch.tanh(q @ k.mT * self.scale / self.cap) * self.cap
        if learned:
            scores = scores * self.temperature.to(q.dtype)
        return scores.softmax(-1) @ v


def test_floats_of_a_module_with_dynamic_shapes() -> None:
    q, k, v = (torch.randn(BATCH, HEADS, length, DIM).to(DTYPE) for length in (LENGTH, 9, 9))
    out, [candidate], _ = compiled(Scaled(), q, k, v, False, dynamic=True)
    assert candidate.kernel == "flycc::sdpa_fwd"
    attention = Attention(q, k, v, 0.3, softcap=2.5)
    assert ((out.double() - attention.forward()[0]).abs() <= attention.bound()).all()


def test_a_factor_that_only_the_run_knows_has_a_reason() -> None:
    q, k, v = (torch.randn(BATCH, HEADS, LENGTH, DIM).to(DTYPE) for _ in range(3))
    _, candidates, _ = compiled(Scaled(), q, k, v, True)
    assert [str(c.reason) for c in candidates if c.reason is not None] == [
        "sdpa.form: written as products and a softmax: mul_2 stands between its scores and the softmax"
    ]
    assert [c.kernel for c in candidates if c.family == "gemm"] == ["flycc::gemm"] * 2


def test_gradients_of_transposed_heads_at_every_length() -> None:
    """Those of queries that are [batch, length, heads, dim] in memory are so, too, in one graph for all lengths."""

    def forward(x: Tensor, kv: Tensor) -> Tensor:
        query = x.unflatten(2, (3, 16)).transpose(1, 2)
        return F.scaled_dot_product_attention(query, kv, kv, is_causal=True, enable_gqa=True)

    recorder = Recorder()
    compiled = torch.compile(forward, backend=recorder)
    for length in (5, 9):
        x, kv = torch.randn(2, length, 48).bfloat16(), torch.randn(2, 1, length, 16).bfloat16()
        for tensor, dim in ((x, 1), (kv, 2)):
            torch._dynamo.mark_dynamic(tensor.requires_grad_(), dim)
        found, wanted = (torch.autograd.grad(run(x, kv).sum(), (x, kv)) for run in (compiled, forward))
        for gradient, expected in zip(found, wanted, strict=True):
            assert (gradient - expected).abs().max() <= 2.0**-5 * expected.abs().max()
    assert len(recorder.graphs) == 2
    assert recorder.families()["sdpa"] == recorder.families()["sdpa_backward"] == (1, 0)


def of_rank_3(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q3, k3, v3 = (x.flatten(0, 1) for x in (q, k, v))
    return F.scaled_dot_product_attention(q3, k3, v3, mask[0], scale=0.25).view(q.shape)


def of_rank_2(q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> Tensor:
    heads = [F.scaled_dot_product_attention(q[0, h], k[0, h], v[0, h], is_causal=True) for h in range(2)]
    return torch.stack(heads)[None]


def of_rank_5(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Batches of two times three heads, with masks for each of the two; K and V have a head for each three."""
    q5, k5, v5 = (x.unflatten(1, (2, -1)) for x in (q, k, v))
    return F.scaled_dot_product_attention(q5, k5, v5, mask[:, None, None], enable_gqa=True).flatten(1, 2)


def written_in_rank_3(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """As older models write it; heads are told apart only where the mask is added, and behind."""
    batch, heads, length, dim = q.shape
    q3, k3, v3 = (x.reshape(batch * heads, -1, dim) for x in (q, k, v))
    scores = torch.bmm(q3 * dim**-0.5, k3.transpose(1, 2)).view(batch, heads, length, -1) + mask[:, None]
    weights = scores.view(batch * heads, length, -1).softmax(-1)
    return torch.bmm(weights, v3).view(batch, heads, length, dim)


def written_with_groups(q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> Tensor:
    """The queries that share a head of K and V in a dimension of their own."""
    q5 = q.unflatten(1, (k.shape[1], -1))
    scores = torch.einsum("bgrsd,bgtd->bgrst", q5, k) / DIM**0.5
    return torch.einsum("bgrst,bgtd->bgrsd", scores.softmax(-1), v).flatten(1, 2)


def written_in_rank_2(q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> Tensor:
    return ((q[0, 0] @ k[0, 0].T * 0.25).softmax(-1) @ v[0, 0])[None, None]


#: The program, batch, heads of Q and of K and V, and the problems.
RANKS: dict[str, tuple[_Form, tuple[int, int, int], list[str]]] = {
    "2": (of_rank_2, (1, 2, 2), ["1x1 heads 7x9x16 bf16+upper"] * 2),
    "3": (of_rank_3, (2, 3, 3), ["1x6 heads 7x9x16 bf16+mask bf16"]),
    "5": (of_rank_5, (2, 6, 2), ["4x3:1 heads 7x9x16 bf16+mask bf16"]),
    "written-2": (written_in_rank_2, (1, 1, 1), ["1x1 heads 7x9x16 bf16"]),
    "written-3": (written_in_rank_3, (2, 3, 3), ["2x3 heads 7x9x16 bf16+mask bf16"]),
    "written-5": (written_with_groups, (2, 6, 2), ["4x3:1 heads 7x9x16 bf16"]),
}


@pytest.mark.parametrize("name", RANKS)
def test_other_ranks(name: str) -> None:
    form, (batch, heads, kv_heads), problems = RANKS[name]
    q = torch.randn(batch, LENGTH, heads, DIM).to(DTYPE).transpose(1, 2)
    k, v = (torch.randn(batch, kv_heads, 9, DIM).to(DTYPE) for _ in range(2))
    mask = torch.randn(batch, LENGTH, 9).to(DTYPE)
    out, candidates, graph = compiled(form, q, k, v, mask)
    assert [(c.family, c.problem) for c in candidates] == [("sdpa", f"sdpa {p} align 16") for p in problems]
    if name != "3":  # whose mask is of the first sequence, and whose program copies the transposed queries
        copies = {torch.ops.aten.clone.default, torch.ops.aten.copy.default}
        assert not any(node.target in copies for node in graph.graph.nodes)
    given = (mask[:1] if name == "3" else mask)[:, None] if "mask" in problems[0] else None
    upper = 0 if "upper" in problems[0] else None
    attention = Attention(q, k, v, DIM**-0.5, mask=given, upper=upper)
    assert ((out.double() - attention.forward()[0]).abs() <= attention.bound()).all()


@pytest.mark.parametrize("rank", [2, 3, 5])
def test_gradients_of_other_ranks(rank: int) -> None:
    outer = {2: (), 3: (6,), 5: (2, 2, 3)}[rank]
    shared = {2: (), 3: (2,), 5: (2, 2, 1)}[rank]
    q = torch.randn(*outer, LENGTH, DIM).to(DTYPE)
    k, v = (torch.randn(*shared, 9, DIM).to(DTYPE) for _ in range(2))
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=rank > 2)

    recorder = Recorder(compare=False)
    out = torch.compile(attend, backend=recorder, fullgraph=True)(*leaves)
    grad = torch.randn(out.shape).to(DTYPE)
    out.backward(grad)
    assert [c.kernel for report in recorder.reports for c in report.nodes] == [
        "flycc::sdpa_fwd",
        "flycc::sdpa_bwd",
    ]
    four = [x.detach().reshape(-1, x.shape[-3] if rank > 2 else 1, *x.shape[-2:]) for x in (q, k, v)]
    if rank == 3:
        four = [x.reshape(1, -1, *x.shape[-2:]) for x in four]
    attention, dy = Attention(*four, DIM**-0.5), grad.reshape(four[0].shape)
    for leaf, exact, bound in zip(leaves, attention.backward(dy), attention.backward_bounds(dy), strict=True):
        assert leaf.grad is not None
        assert ((leaf.grad.reshape(exact.shape).double() - exact).abs() <= bound).all()


def rows_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[batch, length, heads, dim], as what linear layers give is told apart."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * DIM**-0.5
    causal = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(causal, -torch.inf).float().softmax(-1).type_as(q)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).reshape(*q.shape[:2], -1)


def heads_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * DIM**-0.5
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)


def rows_behind(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * DIM**-0.5
    return torch.einsum("bhqk,bhkd->bqhd", scores.softmax(-1), v).reshape(q.shape[0], q.shape[2], -1)


def batch_second(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("qbhd,kbhd->bhqk", q, k) * DIM**-0.5
    return torch.einsum("bhqk,kbhd->qbhd", scores.softmax(-1), v).flatten(2)


def rows_of_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What einsum gives lies in memory as its products make it, and is seen by the caller."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * DIM**-0.5
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


#: The orders of batch, heads, length (s) and dim in what they are given, and in what they give.
EINSUMS: dict[str, tuple[_Form, str, str]] = {
    "rows-first": (rows_first, "bshd", "bshd"),
    "heads-first": (heads_first, "bhsd", "bhsd"),
    "rows-behind": (rows_behind, "bhsd", "bshd"),
    "batch-second": (batch_second, "sbhd", "sbhd"),
    "rows-of-heads": (rows_of_heads, "bshd", "bshd"),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", EINSUMS)
def test_einsum(name: str, dynamic: bool) -> None:
    """In a graph without a backward pass, and in one with it."""
    form, given, made = EINSUMS[name]
    heads = LENGTH if name == "rows-behind" else HEADS  # as many as queries: sizes do not tell them apart
    four = [torch.randn(BATCH, heads, length, DIM).to(DTYPE) for length in (LENGTH, 9, 9)]
    inputs = [x.permute(["bhsd".index(axis) for axis in given]).contiguous() for x in four]
    attention = Attention(*four, DIM**-0.5, upper=0 if name == "rows-first" else None)
    dy = torch.randn(four[0].shape).to(DTYPE)

    def in_four(x: Tensor) -> Tensor:
        sizes = {"b": BATCH, "h": heads, "s": LENGTH, "d": DIM}
        return x.reshape([sizes[axis] for axis in made]).permute([made.index(axis) for axis in "bhsd"])

    out, candidates, _ = compiled(form, *inputs, dynamic=dynamic)
    assert [c.kernel for c in candidates] == ["flycc::sdpa_fwd"]
    assert ((in_four(out).double() - attention.forward()[0]).abs() <= attention.bound()).all()

    recorder = Recorder(compare=False)
    leaves = [x.requires_grad_() for x in inputs]
    trained = torch.compile(form, backend=recorder, fullgraph=True, dynamic=dynamic)(*leaves)
    in_four(trained).backward(dy)
    kernels = [c.kernel for report in recorder.reports for c in report.nodes]
    assert kernels == ["flycc::sdpa_fwd", "flycc::sdpa_bwd"]
    assert trained.stride() == form(*inputs).stride()
    assert ((in_four(trained.detach()).double() - attention.forward()[0]).abs() <= attention.bound()).all()
    for leaf, exact, bound in zip(leaves, attention.backward(dy), attention.backward_bounds(dy), strict=True):
        assert leaf.grad is not None
        gradient = leaf.grad.permute([given.index(axis) for axis in "bhsd"])
        assert ((gradient.double() - exact).abs() <= bound).all()


def test_products_of_attention_that_no_kernel_serves_are_served() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1) @ v

    q, k, v = (torch.randn(BATCH, HEADS, LENGTH, DIM).to(DTYPE) for _ in range(3))
    refusal = Reason("sdpa.size", "too many heads")

    def serve(problem: Problem, _: torch.device) -> Reason | None:
        return refusal if isinstance(problem, SdpaProblem) else None

    recorder = Recorder(compare=False)
    with torch.no_grad():
        torch.compile(attend, backend=recorder)(q, k, v)
    _, report = compile_graph(recorder.graphs[0], (), serve=serve)
    outcomes = [(c.family, c.kernel, c.reason) for c in report.nodes]
    assert outcomes == [("gemm", "flycc::gemm", None), ("sdpa", None, refusal), ("gemm", "flycc::gemm", None)]
