"""flex_attention becomes one call of attention, whose results and gradients are those of float64 within derived bounds.

All forms are compiled together: each compilation by Dynamo and AOTAutograd takes a second or more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from attention_reference import Attention
from frontend_graphs import Recorder
from torch import Tensor
from torch._functorch.aot_autograd import make_boxed_func
from torch.fx import GraphModule
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import and_masks, create_block_mask, flex_attention, or_masks

from flycc import attention, frontend, record

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, DIM = 2, 4, 2, 7, 10, 16
DTYPE = torch.bfloat16

Body = Callable[..., Tensor]

slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
narrow_slopes = slopes.bfloat16()
of_queries = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [5, 4, 4, 4, 3, 3, 3]], dtype=torch.int32)
of_keys = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2, 2], [5, 4, 4, 4, 4, 4, 4, 4, 4, 7]], dtype=torch.int32)
wide_keys = torch.tensor([0, 0, 0, 1 << 32, 1 << 32, 1, 1, 1, 2, 2])
lengths = torch.tensor([4, 10])
allowed = torch.tensor([[(3 * i + j) % 4 > 0 for j in range(KEYS)] for i in range(QUERIES)])
relative = torch.linspace(-1, 1, HEADS * (QUERIES + KEYS)).view(HEADS, QUERIES + KEYS).bfloat16()
offset = torch.tensor(2)


def causal(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return q >= kv


def window(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return (q - kv).abs() <= 2


def documents(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return of_queries[b, q] == of_keys[b][kv]


def softcap(score: Tensor, *_: Tensor) -> Tensor:
    return 3.0 * torch.tanh(score / 3.0)


def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return score + slopes[h] * (kv - q)


def everything(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return torch.where(q >= kv, softcap(score) - (q - kv) * narrow_slopes[h], -float("inf"))


def computed_slopes(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return score + (kv - q) * torch.exp2(-((h + 1) * 4.0 / HEADS))


def relative_bias(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return score + relative[h, kv - q + QUERIES]


@dataclass(frozen=True)
class Form:
    """Bodies, and what they are to become: flags of the problem, and what `Attention` takes for the same."""

    flags: str = ""
    score_mod: Body | None = None
    mask_mod: Body | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def problem(self) -> str:
        sizes = f"{BATCH}x{HEADS}:{KV_HEADS} heads {QUERIES}x{KEYS}x{DIM}"
        return f"sdpa {sizes} bf16{self.flags}+lse align 16"


i, j = torch.arange(QUERIES).view(-1, 1), torch.arange(KEYS).view(1, -1)
pair = (of_queries, of_keys)
FORMS = {
    "none": Form(),
    "scaled": Form(score_mod=lambda s, *_: s * 0.5, options={"scale": 0.125}),
    "causal": Form("+upper", None, causal, {"upper": 0}),
    "not later": Form("+upper", None, lambda b, h, q, kv: ~(kv > q), {"upper": 0}),
    "offset": Form("+upper", None, lambda b, h, q, kv: q + 3 >= kv, {"upper": 3}),
    "window": Form("+lower+upper", None, window, {"lower": -2, "upper": 2}),
    "sliding": Form(
        "+lower+upper", None, lambda b, h, q, kv: (q - kv < 3) & (kv <= q), {"lower": -2, "upper": 0}
    ),
    "and": Form("+lower+upper", None, and_masks(causal, window), {"lower": -2, "upper": 0}),
    "documents": Form("+documents", None, documents, {"documents": pair}),
    "causal documents": Form(
        "+upper+documents", None, and_masks(documents, causal), {"documents": pair, "upper": 0}
    ),
    "documents of 64 bits": Form(
        "+documents",
        None,
        lambda b, h, q, kv: wide_keys[q] == wide_keys[kv],
        {"documents": tuple(wide_keys[:n].expand(BATCH, n) for n in (QUERIES, KEYS))},
    ),
    "chunks": Form(
        "+upper+documents",
        None,
        lambda b, h, q, kv: (q // 3 == kv // 3) & (q >= kv),
        {"documents": tuple((torch.arange(n) // 3).expand(BATCH, n) for n in (QUERIES, KEYS)), "upper": 0},
    ),
    "nothing seen": Form("+lower", None, lambda b, h, q, kv: kv > q + 5, {"lower": 6}),
    "alibi": Form("+alibi", alibi, None, {"slopes": slopes}),
    "alibi, computed": Form("+alibi", computed_slopes, None, {"slopes": 2.0 ** -torch.arange(1.0, 5.0)}),
    "alibi of keys": Form("+alibi", lambda s, b, h, q, kv: s + slopes[h] * kv, None, {"slopes": slopes}),
    "alibi of distances": Form(
        "+upper+alibi",
        lambda s, b, h, q, kv: s - slopes[h] * (q - kv).abs(),
        causal,
        {"slopes": slopes, "upper": 0},
    ),
    "alibi without slopes": Form(
        "+alibi", lambda s, b, h, q, kv: s - (q - kv) / 4, None, {"slopes": torch.full((HEADS,), 0.25)}
    ),
    "softcap": Form("+softcap", softcap, None, {"softcap": 3.0}),
    "everything": Form(
        "+lower+upper+documents+alibi+softcap",
        everything,
        and_masks(documents, window),
        {"softcap": 3.0, "slopes": slopes, "documents": pair, "lower": -2, "upper": 0},
    ),
    "hidden by a score": Form(
        "+upper", lambda s, b, h, q, kv: s.masked_fill(q < kv, -float("inf")), None, {"upper": 0}
    ),
    "hidden by a bias": Form(
        "+upper",
        lambda s, b, h, q, kv: s + torch.where(q < kv, -float("inf"), 0.0),
        None,
        {"upper": 0},
    ),
    "or": Form(
        "+mask bool", None, or_masks(causal, lambda b, h, q, kv: kv < 3), {"mask": (i >= j) | (j < 3)}
    ),
    "padding": Form(
        "+mask bool+upper",
        None,
        lambda b, h, q, kv: (kv < lengths[b]) & (q >= kv),
        {"mask": j < lengths.view(-1, 1, 1, 1), "upper": 0},
    ),
    "captured mask": Form("+mask bool", None, lambda b, h, q, kv: allowed[q, kv], {"mask": allowed}),
    "captured offset": Form("+mask bool", None, lambda b, h, q, kv: q + offset >= kv, {"mask": i + 2 >= j}),
    "captured bias": Form("+mask bf16", relative_bias, None, {"mask": relative[:, j - i + QUERIES]}),
    "bias and mask": Form(
        "+mask bf16",
        relative_bias,
        lambda b, h, q, kv: allowed[q, kv],
        {"mask": relative[:, j - i + QUERIES].masked_fill(~allowed, -torch.inf)},
    ),
}


@pytest.fixture(autouse=True)
def training_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch refuses gradients of CPU tensors in flex_attention, not in the operator below it."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)


def operands(keys: int = KEYS, dtype: torch.dtype = DTYPE) -> tuple[Tensor, ...]:
    sizes = ((HEADS, QUERIES), (KV_HEADS, keys), (KV_HEADS, keys))
    return tuple(torch.randn(BATCH, heads, n, DIM).to(dtype).requires_grad_() for heads, n in sizes)


def kept(gm: GraphModule) -> GraphModule:
    assert frontend.keep_flex_attention(gm) == []
    return frontend.keep_whole(gm)


def scoring(*tensors: Tensor | None, **numbers: Any) -> attention.Scoring:
    """What kernels' operators are told of scores."""
    mask, query_documents, key_documents, slopes, *_ = (*tensors, None, None, None, None)
    given = (numbers["scale"], mask, numbers.get("lower"), numbers.get("upper"))
    return attention.Scoring(*given, query_documents, key_documents, slopes, numbers.get("softcap", 0.0))


def forward(
    q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor | None, **numbers: Any
) -> tuple[Tensor, Tensor]:
    out, lse = attention.forward(q, k, v, scoring(*tensors, **numbers))
    assert numbers.get("layout", "bhsd") == "bhsd"
    return out, lse


def backward(*operands: Tensor, **numbers: Any) -> tuple[Tensor, Tensor, Tensor]:
    return attention.backward(*operands[:6], scoring(*operands[6:], **numbers))


KERNELS = {torch.ops.flycc.sdpa_fwd.default: forward, torch.ops.flycc.sdpa_bwd.default: backward}


class Rebuilt(Recorder):
    """Runs what was rebuilt, with the formulas of kernels in their place."""

    def _compile(self, gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        rebuilt, report = frontend.compile_graph(gm, example_inputs)
        assert report.failure is None, report.failure
        self.reports.append(report)
        for node in rebuilt.graph.nodes:
            node.target = KERNELS.get(node.target, node.target)
        rebuilt.recompile()
        return make_boxed_func(rebuilt)


def block_mask(mask_mod: Body | None) -> flex.BlockMask:
    """For all forms, since without one flex_attention makes one, which takes Dynamo longer than the rest."""
    return create_block_mask(mask_mod or flex.noop_mask, BATCH, HEADS, QUERIES, KEYS, device="cpu")


@functools.cache
def results_of_forms() -> tuple[Recorder, dict[str, tuple[Tensor, ...]]]:
    """What was compiled, and for each form query, key, value, out, a gradient of that, and gradients."""
    given = {name: operands() for name in FORMS}
    masks = {name: block_mask(form.mask_mod) for name, form in FORMS.items()}

    def attend(given: dict[str, tuple[Tensor, ...]]) -> list[Tensor]:
        return [
            flex_attention(*given[name], form.score_mod, masks[name], enable_gqa=True)
            for name, form in FORMS.items()
        ]

    recorder = Rebuilt(transform=kept)
    outs = torch.compile(attend, backend=recorder, fullgraph=True)(given)
    weights = [torch.randn_like(out) for out in outs]
    gradients = torch.autograd.grad(outs, [x for qkv in given.values() for x in qkv], weights)
    found = {}
    for index, (name, qkv) in enumerate(given.items()):
        found[name] = (*qkv, outs[index], weights[index], *gradients[3 * index : 3 * index + 3])
    return recorder, {name: tuple(x.detach() for x in tensors) for name, tensors in found.items()}


@pytest.mark.parametrize("name", FORMS)
def test_form(name: str) -> None:
    recorder, results = results_of_forms()
    form, place = FORMS[name], list(FORMS).index(name)
    candidate = [c for c in recorder.reports[0].nodes if c.family == "sdpa"][place]
    assert (candidate.kernel, candidate.problem) == ("flycc::sdpa_fwd", form.problem)
    query, key, value, out, weight, *gradients = results[name]
    exact = Attention(query, key, value, **{"scale": DIM**-0.5, **form.options})
    assert ((out.double() - exact.forward()[0]).abs() <= exact.bound()).all()
    for mine, wanted, bound in zip(
        gradients, exact.backward(weight), exact.backward_bounds(weight), strict=True
    ):
        assert ((mine.double() - wanted).abs() <= bound).all()


def test_all_gradients_are_of_kernels() -> None:
    recorder, _ = results_of_forms()
    backward = [c for c in recorder.reports[1].nodes if c.family == "sdpa_backward"]
    assert [c.kernel for c in backward] == ["flycc::sdpa_bwd"] * len(FORMS)


@pytest.mark.parametrize("compute", ["emulated kernels", "fallback"])
def test_mask_made_inside_runs_on_kernels(compute: str) -> None:
    """`create_block_mask` leaves nothing in the graph; float32, which no kernel takes, gives the same."""
    dtype = DTYPE if compute == "emulated kernels" else torch.float32
    query, key, value = operands(dtype=dtype)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = create_block_mask(and_masks(documents, window), BATCH, None, QUERIES, KEYS, device="cpu")
        return flex_attention(query, key, value, everything, mask, enable_gqa=True)

    with record.collect() as recorded:
        out = torch.compile(attend, backend="flycc", fullgraph=True)(query, key, value)
        weight = torch.randn_like(out)
        gradients = torch.autograd.grad(out, (query, key, value), weight)
    assert not recorded.launch_refusals
    reports = [graph.report for graph in recorded.graphs]
    kernels = [(c.kernel, c.reason and c.reason.code) for report in reports for c in report.nodes]
    if compute == "fallback":
        assert kernels == [(None, "sdpa.dtype")] * 2
    else:
        assert kernels == [("flycc::sdpa_fwd", None), ("flycc::sdpa_bwd", None)]
    assert not any("sort" in target or "index_put" in target for r in reports for target in r.others)
    query, key, value = (
        x.detach().bfloat16() if compute == "emulated kernels" else x.detach() for x in (query, key, value)
    )
    exact = Attention(query, key, value, DIM**-0.5, **FORMS["everything"].options)
    if compute == "fallback":
        torch.testing.assert_close(out.double(), exact.forward()[0], rtol=0, atol=2**-18)
        for mine, wanted in zip(gradients, exact.backward(weight), strict=True):
            torch.testing.assert_close(mine.double(), wanted, rtol=0, atol=2**-16)
        return
    assert ((out.double() - exact.forward()[0]).abs() <= exact.bound()).all()
    bounds = exact.backward_bounds(weight)
    for mine, wanted, bound in zip(gradients, exact.backward(weight), bounds, strict=True):
        assert ((mine.double() - wanted).abs() <= bound).all()
