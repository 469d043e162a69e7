"""What is around a call of flex_attention: layouts, autocast, logsumexp, sizes that only the run knows, layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_reference import ROUNDOFF, Attention
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_hop
from torch.fx import GraphModule, Node
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import AuxRequest, and_masks, create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from flycc import frontend
from flycc.frontend.nodes import is_of_functorch

BATCH, HEADS, LENGTH, DIM = 2, 4, 7, 16
DTYPE = torch.bfloat16


def causal(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return q >= kv


def prefix(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return (q >= kv) | (kv < 3)


@pytest.fixture(autouse=True)
def training_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch refuses gradients of CPU tensors in flex_attention, not in the operator below it."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)


def block_mask(mask_mod: Callable[..., Tensor], batch: int = 1) -> flex.BlockMask:
    return create_block_mask(mask_mod, batch, None, LENGTH, LENGTH, device="cpu")


def operand(*order: int, batch: int = BATCH, dtype: torch.dtype = DTYPE) -> Tensor:
    """[batch, heads, length, dim], whose dimensions are in memory in this order."""
    sizes = (batch, HEADS, LENGTH, DIM)
    order = order or (0, 1, 2, 3)
    return torch.randn([sizes[dim] for dim in order]).to(dtype).permute([order.index(d) for d in range(4)])


class Graphs:
    """A backend that keeps calls as one op, and ATen graphs."""

    def __init__(self) -> None:
        self.aten: list[GraphModule] = []
        self.reasons: list[str] = []
        self.vmapped: list[Node] = []

    def __call__(self, gm: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.reasons += map(str, frontend.keep_flex_attention(gm))
        gm.graph.lint()
        self.vmapped += filter(is_of_functorch, gm.graph.nodes)
        return aot_autograd(fw_compiler=self._keep)(frontend.keep_whole(gm), inputs)

    def _keep(self, gm: GraphModule, _: list[Any]) -> Callable[..., Any]:
        self.aten.append(gm)
        return make_boxed_func(gm.forward)

    def calls(self, target: Any = torch.ops.flycc.sdpa.default) -> int:
        return sum(len(gm.graph.find_nodes(op="call_function", target=target)) for gm in self.aten)


def check(out: Tensor, *operands: Tensor, **options: Any) -> None:
    exact = Attention(*(x.detach() for x in operands), **{"scale": DIM**-0.5, **options})
    assert ((out.double() - exact.forward()[0]).abs() <= exact.bound()).all()


def test_layouts_types_and_results() -> None:
    """Views of results work only with the layout that flex_attention gives; graphs are traced with it."""
    orders = [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (1, 0, 2, 3), (0, 1, 3, 2)]
    laid_out = [[operand(*order) for _ in range(3)] for order in orders]
    wide = [operand(dtype=torch.float32) for _ in range(3)]
    query, *shared = operand(), operand(batch=1), operand(batch=1)
    learned = torch.nn.Parameter(torch.tensor([0.5, 0.25, 0.125, 0.0625]))
    masks = {mask_mod: block_mask(mask_mod, BATCH) for mask_mod in (causal, prefix)}
    late = block_mask(lambda b, h, q, kv: kv > q + 3)
    # Its blocks say something else, which neither PyTorch's implementation nor flycc reads.
    whole = block_mask(causal)
    whole.mask_mod = flex.noop_mask

    def attend(laid_out: list[list[Tensor]], wide: list[Tensor], query: Tensor, shared: list[Tensor]) -> Any:
        outs = [[flex_attention(*x, None, whole), flex_attention(*x, None, masks[causal])] for x in laid_out]
        by_rows = (
            flex_attention(*laid_out[2], None, whole).permute(2, 0, 1, 3).view(LENGTH, BATCH, HEADS * DIM)
        )
        with torch.autocast("cpu", dtype=DTYPE):
            cast = flex_attention(*wide, None, masks[causal])
        hidden, aux = flex_attention(query, query, query, block_mask=late, return_aux=AuxRequest(lse=True))
        broadcast = flex_attention(query, *shared, None, masks[prefix])
        sloped = flex_attention(query, query, query, lambda s, b, h, q, kv: s + learned[h] * (kv - q), whole)
        groups = [query[:, :2][:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2) for _ in range(2)]
        repeated = flex_attention(query, *groups, None, masks[causal])
        _, natural = flex_attention(
            query, query, query, block_mask=late, return_lse=True, kernel_options={"BACKEND": "FLASH"}
        )
        return outs, by_rows, cast, hidden, (aux.lse, natural), broadcast, sloped, repeated

    graphs = Graphs()
    with torch.no_grad():
        outs, by_rows, cast, hidden, sums, broadcast, sloped, repeated = torch.compile(
            attend, backend=graphs, fullgraph=True
        )(laid_out, wide, query, shared)
    assert (graphs.reasons, graphs.calls()) == ([], 2 * len(orders) + 7)
    check(flex_attention_hop(*laid_out[0], lambda s, *_: s, whole.as_tuple(), DIM**-0.5, {})[0], *laid_out[0])
    for given, (all_seen, part), order in zip(laid_out, outs, orders, strict=True):
        check(all_seen, *given)
        check(part, *given, upper=0)
        kept = order if order[-1] == 3 else (0, 1, 2, 3)
        assert all_seen.permute(kept).is_contiguous()
        assert part.permute(kept).is_contiguous()
    assert torch.equal(by_rows, outs[2][0].permute(2, 0, 1, 3).flatten(2))
    assert cast.dtype == DTYPE
    check(cast, *(x.to(DTYPE) for x in wide), upper=0)
    exact = Attention(query, query, query, DIM**-0.5, lower=4)
    check(hidden, query, query, query, lower=4)
    assert (hidden[:, :, 3:] == 0).all()
    wanted = exact.forward()[1]
    for lse in sums:
        assert torch.equal(lse == -math.inf, wanted == -math.inf)
        off, bound = (lse.double() - wanted).abs().nan_to_num(), exact.lse_bound() + 2**-22 * wanted.abs()
        assert (off <= bound).all()
    i, j = torch.arange(LENGTH).view(-1, 1), torch.arange(LENGTH)
    check(broadcast, query, *(x.expand(BATCH, -1, -1, -1) for x in shared), mask=(i >= j) | (j < 3))
    check(sloped, query, query, query, slopes=learned.detach())
    check(repeated, query, query[:, :2], query[:, :2], upper=0)
    *_, call, _ = graphs.aten[0].graph.find_nodes(op="call_function", target=torch.ops.flycc.sdpa.default)
    assert [x.meta["val"].shape[1] for x in call.args[:3]] == [HEADS, 2, 2]


def test_layers_share_what_is_loaded_until_something_is_written() -> None:
    documents = torch.tensor([0, 0, 1, 1, 1, 2, 2])

    def attend(x: Tensor, documents: Tensor) -> list[Tensor]:
        mask = create_block_mask(
            lambda b, h, q, kv: (documents[q] == documents[kv]) | (kv == 0), None, None, LENGTH, LENGTH, "cpu"
        )
        first = flex_attention(x, x, x, block_mask=mask)
        second = flex_attention(first, x, x, block_mask=mask)
        documents.zero_()
        third, fourth = (flex_attention(x, x, x, block_mask=mask) for _ in range(2))
        return [first, second, third, fourth.mul_(2)]

    graphs, x = Graphs(), operand()
    given = documents.clone()
    first, second, third, fourth = torch.compile(attend, backend=graphs, fullgraph=True)(x, given)
    assert not given.any()
    seen = (documents.view(-1, 1) == documents) | (torch.arange(LENGTH) == 0)
    check(first, x, x, x, mask=seen)
    check(second, first, x, x, mask=seen)
    check(third, x, x, x)
    assert torch.equal(fourth, 2 * third)  # results are nobody else's
    assert (graphs.calls(), graphs.calls(torch.ops.aten.bitwise_or.Tensor)) == (4, 2)


def normed(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


@pytest.mark.parametrize("read", ["nowhere", "returned", "by a call that stays"])
def test_blocks_that_nothing_reads_leave_the_graph(read: str) -> None:
    """Then nothing is left of vmap, and other rewrites look at the graph."""

    def attend(x: Tensor, documents: Tensor) -> tuple[Tensor, ...]:
        mask = create_block_mask(
            lambda b, h, q, kv: documents[q] == documents[kv], None, None, LENGTH, LENGTH, "cpu"
        )
        out = flex_attention(normed(x), x, x, block_mask=mask)
        if read == "returned":
            return out, mask.kv_num_blocks
        if read == "by a call that stays":
            return out, flex_attention(x, x, x, lambda s, *_: s + s, mask)
        return out, flex_attention(x, x, x)

    x, documents, graphs = operand().requires_grad_(), torch.tensor([0, 0, 1, 1, 1, 2, 2]), Graphs()
    out, other = torch.compile(attend, backend=graphs, fullgraph=True)(x, documents)
    whole = read == "nowhere"
    check(out, normed(x), x, x, documents=(documents.expand(BATCH, -1),) * 2)
    assert whole == (graphs.vmapped == [])
    assert whole == bool(graphs.calls(torch.ops.flycc.rms_norm.default))
    if read == "returned":
        assert torch.equal(other, torch.ones(1, 1, 1))
    elif read == "by a call that stays":
        assert [reason.partition(" ")[0] for reason in graphs.reasons] == ["flex.score-mod:"]
        check(other, x, x, x, scale=2 * DIM**-0.5, documents=(documents.expand(BATCH, -1),) * 2)
    else:
        check(other, x, x, x)


def test_captured_numbers_on_the_host() -> None:
    """Here the device is one without memory, so that nothing but PyTorch's rules for devices is asked."""
    ahead = torch.tensor(2)
    x, graphs = operand().to("meta"), Graphs()
    compiled = torch.compile(
        lambda x: flex_attention(x, x, x, lambda s, b, h, q, kv: torch.where(q + ahead >= kv, s, -math.inf)),
        backend=graphs,
        fullgraph=True,
    )
    assert compiled(x).shape == x.shape
    assert (graphs.reasons, graphs.calls()) == ([], 1)


def test_training_with_a_logsumexp_that_nothing_uses_and_a_checkpoint() -> None:
    """As transformers asks for it on a GPU."""
    inputs = [operand().requires_grad_() for _ in range(3)]
    mask = block_mask(causal)

    def inner(*inputs: Tensor) -> Tensor:
        out, lse = flex_attention(*inputs, block_mask=mask, return_lse=True)
        weights = lse.to(out.dtype).transpose(1, 2)  # noqa: F841
        return out

    graphs = Graphs()
    compiled = torch.compile(
        lambda *x: inner(*x) + checkpoint(inner, *x, use_reentrant=False), backend=graphs, fullgraph=True
    )
    out = compiled(*inputs)
    weight = torch.randn_like(out)
    gradients = torch.autograd.grad(out, inputs, weight)
    assert graphs.reasons == []
    assert graphs.calls(torch.ops.flycc.sdpa_backward.default) == 2
    exact = Attention(*(x.detach() for x in inputs), DIM**-0.5, upper=0)
    for mine, wanted, bound in zip(
        gradients, exact.backward(weight), exact.backward_bounds(weight), strict=True
    ):
        # Two equal gradients of half the sum's bound each, and the rounding of their sum.
        assert ((mine.double() - 2 * wanted).abs() <= 2 * bound + 2**-8 * 2 * wanted.abs()).all()


@pytest.mark.parametrize("dtype", [torch.float32, DTYPE, torch.float16])
@pytest.mark.parametrize("mask_mod", [None, causal])
def test_gradients_through_the_logsumexp(mask_mod: Callable[..., Tensor] | None, dtype: torch.dtype) -> None:
    """As attention sinks have them. Two gradients are linear in those of out and of lse, g: dS = p (dP - delta + g), of
    which p g has the error of p and is rounded with the rest; what is added by dV is nothing.
    """
    inputs = [(operand(dtype=dtype) * (0.0625 if dtype is torch.float16 else 1)) for _ in range(3)]
    inputs = [x.requires_grad_() for x in inputs]
    mask = None if mask_mod is None else block_mask(mask_mod)
    graphs = Graphs()
    compiled = torch.compile(
        lambda *x: flex_attention(*x, None, mask, return_lse=True), backend=graphs, fullgraph=True
    )
    results = compiled(*inputs)
    weights = [torch.randn_like(x) for x in results]
    weights[1] *= 1e5 if dtype is torch.float16 else 1
    gradients = torch.autograd.grad(results, inputs, weights)
    assert graphs.reasons == []
    exact = Attention(*(x.detach() for x in inputs), DIM**-0.5, upper=None if mask_mod is None else 0)
    leaves = [x.detach().double().requires_grad_() for x in inputs]
    out, lse, p, _ = exact._forward(*leaves)
    wanted = torch.autograd.grad([out, lse], leaves, [x.double() for x in weights])
    if dtype is torch.float32:
        for mine, each in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(mine.double(), each, rtol=0, atol=2**-18)
        return
    u, (query, key, _) = ROUNDOFF[dtype], (x.detach() for x in leaves)
    off = p.detach() * weights[1].double().abs()[..., None] * (2 * u + 2 * exact._relative(query, key))
    more = [DIM**-0.5 * off @ key.abs(), DIM**-0.5 * off.mT @ query.abs(), torch.zeros_like(key)]
    bounds = exact.backward_bounds(weights[0])
    for mine, each, bound, by_lse in zip(gradients, wanted, bounds, more, strict=True):
        # The rounding of the whole is of another number than that of either part.
        assert ((mine.double() - each).abs() <= bound + by_lse + u * each.abs()).all()


def test_sizes_offsets_and_constants_that_only_the_run_knows() -> None:
    """A window and an offset of the keys in front, as a cache has them; a softcap becomes a constant."""

    def attend(query: Tensor, key: Tensor, window: int, cap: float) -> Tensor:
        queries, keys = query.size(2), key.size(2)

        def recent(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            return q + (keys - queries) - kv < window

        def seen(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            return kv <= q + (keys - queries)

        def capped(score: Tensor, *_: Tensor) -> Tensor:
            # What decides leaves a comparison in the body, on which nothing depends.
            return cap * torch.tanh(score / cap) if cap > 1 else score

        # As flex_attention calls it: making blocks takes Dynamo long where sizes are symbols.
        mask = (None,) * 16 + (and_masks(seen, recent),)
        return flex_attention_hop(query, key, key, capped, mask, DIM**-0.5, {})[0]

    graphs = Graphs()
    compiled = torch.compile(attend, backend=graphs, fullgraph=True, dynamic=True)
    for queries, keys, window in ((5, 7, 3), (4, 9, 4), (6, 8, 5)):
        query, key = (torch.randn(BATCH, HEADS, n, DIM).to(DTYPE) for n in (queries, keys))
        out = compiled(query, key, window, 2.5)
        upper = keys - queries
        check(out, query, key, key, upper=upper, lower=upper - window + 1, softcap=2.5)
    assert (graphs.reasons, graphs.calls()) == ([], 1)
