"""Products of one matrix with every slice of a tensor become a batch, with the loop's results.

Inputs are small integers, so that every sum is exact in float32 and both ways round the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from flycc.frontend import stack_products
from flycc.record import collect

EXPERTS, TOKENS, WIDTH, INNER = 3, 12, 16, 8


def ints(*shape: int) -> Tensor:
    return torch.randint(-1, 2, shape).to(torch.bfloat16)


class Layer:
    def __init__(self) -> None:
        self.gate, self.up = ints(EXPERTS, INNER, WIDTH), ints(EXPERTS, INNER, WIDTH)
        self.both, self.down = ints(EXPERTS, 2 * INNER, WIDTH), ints(EXPERTS, WIDTH, INNER)
        self.up_bias, self.down_bias = ints(EXPERTS, INNER), ints(EXPERTS, WIDTH)
        self.up_t, self.down_t = self.up.mT.contiguous(), self.down.mT.contiguous()
        self.x, self.scores = ints(TOKENS, WIDTH), ints(TOKENS, EXPERTS)
        self.frozen: int | None = None
        self.factors = torch.tensor([0.5, 1.0, -2.0])


def swiglu(layer: Layer, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(EXPERTS):
        state = F.relu(F.linear(x, layer.gate[e])) * F.linear(x, layer.up[e])
        out += layer.scores[:, e, None] * F.linear(state, layer.down[e])
    return out


def packed_halves(layer: Layer, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(EXPERTS):
        gate, up = F.linear(x, layer.both[e]).chunk(2, dim=1)
        out = out + layer.scores[:, e, None] * F.linear(gate.relu() * up, layer.down[e])
    return out


def biased(layer: Layer, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(EXPERTS):
        state = (x @ layer.up_t[e] + layer.up_bias[e]).clamp(min=0)
        state = torch.mm(state, layer.down_t[e]) + layer.down_bias[e]
        out = torch.where(layer.scores[:, e, None] > 0, out + state, out)
    return out


def biased_linear(layer: Layer, x: Tensor) -> Tensor:
    parts = []
    for e in range(EXPERTS):
        state = F.linear(x, layer.up[e], layer.up_bias[e]).relu()
        parts.append(F.linear(state, layer.down[e], layer.down_bias[e]))
    return torch.stack(parts)


def own_ways(layer: Layer, x: Tensor) -> Tensor:
    """Nothing but the first products is alike."""
    hidden = [F.linear(x, layer.up[e]) for e in range(EXPERTS)]
    return torch.cat([hidden[0].relu(), hidden[1].cumsum(0), hidden[2]])


def written_in_between(layer: Layer, x: Tensor) -> Tensor:
    out, y = torch.zeros_like(x), x.clone()
    for e in range(EXPERTS):
        out = out + F.linear(F.linear(y, layer.up[e]), layer.down[e])
        y.add_(1)
    return out


def own_output(layer: Layer, x: Tensor) -> Tensor:
    """The tensor written to is one that products read."""
    out = torch.zeros(TOKENS, WIDTH, dtype=x.dtype)
    view = out.view(-1, WIDTH)
    for e in range(EXPERTS):
        out += 1 + F.linear(F.linear(view, layer.up[e]), layer.down[e])
    return out


def part_of_the_experts(layer: Layer, x: Tensor) -> Tensor:
    return torch.cat([F.linear(x, layer.up[e]) for e in range(EXPERTS - 1)])


def backwards(layer: Layer, x: Tensor) -> Tensor:
    out = torch.zeros(TOKENS, INNER, dtype=x.dtype)
    for e in reversed(range(EXPERTS)):
        out = out + F.linear(x, layer.up[e]).relu()
    return out


def activated_in_another_order(layer: Layer, x: Tensor) -> Tensor:
    hidden = [F.linear(x, layer.up[e]) for e in range(EXPERTS)]
    return sum(hidden[e].relu() for e in (2, 0, 1))


def one_twice(layer: Layer, x: Tensor) -> Tensor:
    return sum(F.linear(x, layer.up[e]).relu() * (i + 1) for i, e in enumerate((1, 0, 2, 1)))


def scaled_by_numbers(layer: Layer, x: Tensor) -> Tensor:
    """A tensor of no dimensions does not make the product float32; one of three would."""
    return torch.stack([F.linear(x, layer.up[e]) * layer.factors[e] for e in range(EXPERTS)])


def keywords_differ(layer: Layer, x: Tensor) -> Tensor:
    hidden = [F.linear(x, layer.up[e]) for e in range(EXPERTS)]
    limits = [{"min": 0}, {"min": 0}, {"min": 0, "max": 1}]
    return torch.stack([torch.clamp(h, **limit) for h, limit in zip(hidden, limits, strict=True)])


#: The function, and how many batches and lone products its graph has after all.
FORMS: dict[Callable[[Layer, Tensor], Tensor], tuple[int, int]] = {
    swiglu: (3, 0),
    packed_halves: (2, 0),
    biased: (2, 0),
    biased_linear: (2, 0),
    own_ways: (1, 0),
    backwards: (1, 0),
    activated_in_another_order: (1, 0),
    one_twice: (1, 1),
    scaled_by_numbers: (1, 0),
    keywords_differ: (1, 0),
    written_in_between: (0, 2 * EXPERTS),
    own_output: (0, 2 * EXPERTS),
    part_of_the_experts: (0, EXPERTS - 1),
}


class Stacking:
    """A Dynamo backend that runs the edited graph by PyTorch."""

    def __call__(self, gm: GraphModule, _: list[Any]) -> Callable[..., Any]:
        self.reasons = [reason.code for reason in stack_products(gm)]
        gm.graph.lint()
        targets = [node.target for node in gm.graph.nodes]
        lone = (torch._C._nn.linear, torch.matmul, torch.mm)
        self.counts = targets.count(torch.bmm), sum(target in lone for target in targets)
        return gm.forward


@pytest.mark.parametrize("function", FORMS, ids=lambda f: f.__name__)
def test_forms(function: Callable[[Layer, Tensor], Tensor]) -> None:
    layer, stacking = Layer(), Stacking()
    compiled = torch.compile(function, backend=stacking, fullgraph=True)
    ours, theirs = compiled(layer, layer.x), function(layer, layer.x)
    assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
    assert torch.equal(ours, theirs)
    assert stacking.counts == FORMS[function]
    written = function in (written_in_between, own_output)
    assert stacking.reasons == (["grouped-gemm.loop-write"] if written else [])


@pytest.mark.parametrize("written", [False, True])
def test_products_that_are_returned_or_written_to_have_memory_of_their_own(written: bool) -> None:
    def parts(layer: Layer, x: Tensor) -> list[Tensor]:
        made = [F.linear(x, layer.up[e]) for e in range(EXPERTS)]
        if written:
            made[1].add_(1)
            return [part * 2 for part in made]
        return [made[0], made[1].view(-1), made[2] * 2]

    layer, stacking = Layer(), Stacking()
    ours = torch.compile(parts, backend=stacking, fullgraph=True)(layer, layer.x)
    assert all(map(torch.equal, ours, parts(layer, layer.x)))
    assert len({part.untyped_storage().data_ptr() for part in ours}) == EXPERTS
    assert (stacking.reasons, stacking.counts) == (["grouped-gemm.loop-shared"], (0, EXPERTS))


def frozen_product(layer: Layer, x: Tensor, e: int) -> Tensor:
    with torch.set_grad_enabled(e != layer.frozen):
        return F.linear(x, layer.up[e])


def frozen_slice(layer: Layer, x: Tensor, e: int) -> Tensor:
    with torch.set_grad_enabled(False):
        weights = [layer.up[i] for i in range(EXPERTS)]
    return F.linear(x, weights[e])


@pytest.mark.parametrize("frozen", [0, EXPERTS - 1])
@pytest.mark.parametrize("body", [frozen_product, frozen_slice], ids=lambda f: f.__name__)
def test_grad_modes_stay(body: Callable[[Layer, Tensor, int], Tensor], frozen: int) -> None:
    def function(layer: Layer, x: Tensor) -> Tensor:
        return sum(body(layer, x, e) for e in range(EXPERTS))

    def gradients(function: Callable[[Layer, Tensor], Tensor]) -> list[Tensor | None]:
        x, layer.up = (t.detach().clone().requires_grad_() for t in (layer.x, layer.up))
        function(layer, x).backward(seed)
        return [x.grad, layer.up.grad]

    layer, stacking, seed = Layer(), Stacking(), ints(TOKENS, INNER)
    layer.frozen = frozen
    ours = gradients(torch.compile(function, backend=stacking, fullgraph=True))
    for mine, theirs in zip(ours, gradients(function), strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.equal(mine, theirs)
    assert stacking.reasons == ["grouped-gemm.loop-mode"]


def test_a_fault_leaves_the_graph_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def half_done(self: Any, *_: Any) -> None:
        self.graph.find_nodes(op="output")[0].args = (None,)
        raise ValueError("planted")

    monkeypatch.setattr("flycc.frontend.stacked_products._Stack._hand_out", half_done)
    layer, stacking = Layer(), Stacking()
    compiled = torch.compile(swiglu, backend=stacking, fullgraph=True)
    assert torch.equal(compiled(layer, layer.x), swiglu(layer, layer.x))
    assert (stacking.reasons, stacking.counts) == (["grouped-gemm.loop-internal"], (0, 3 * EXPERTS))


def test_the_backend_runs_kernels_forward_and_backward() -> None:
    def gradients(function: Callable[[Layer, Tensor], Tensor]) -> list[Tensor]:
        leaves = [t.detach().clone().requires_grad_() for t in weights]
        layer.gate, layer.up, layer.down = leaves
        result = function(layer, layer.x)
        result.backward(seed)
        return [result.detach(), *(leaf.grad for leaf in leaves)]  # type: ignore[misc]

    layer, seed = Layer(), ints(TOKENS, WIDTH)
    weights = layer.gate, layer.up, layer.down
    with collect() as record:
        ours = gradients(torch.compile(swiglu, backend="flycc", options={"strict": True}))
    for mine, theirs in zip(ours, gradients(swiglu), strict=True):
        assert torch.equal(mine, theirs)
    nodes = [node for graph in record.graphs for node in graph.report.nodes]
    assert [node.kernel for node in nodes if node.family == "gemm"] == ["flycc::gemm"] * 7
    assert all(node.problem.startswith(f"gemm {EXPERTS}x") for node in nodes if node.family == "gemm")
    assert not record.launch_refusals
