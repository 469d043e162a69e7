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


#: The function, and how many batches and lone products its graph has after all.
FORMS: dict[Callable[[Layer, Tensor], Tensor], tuple[int, int]] = {
    swiglu: (3, 0),
    packed_halves: (2, 0),
    biased: (2, 0),
    biased_linear: (2, 0),
    own_ways: (1, 0),
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
    assert torch.equal(compiled(layer, layer.x), function(layer, layer.x))
    assert stacking.counts == FORMS[function]
    written = function in (written_in_between, own_output)
    assert stacking.reasons == (["grouped-gemm.loop-write"] if written else [])


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
