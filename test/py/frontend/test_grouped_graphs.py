"""Grouped products in compiled models: what is matched, with eager's results and gradients.

Inputs are small integers, so that products' sums are exact in float32 and, where nothing is rounded twice, eager's
result is the only right one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import flycc

COUNTS = [0, 1, 67, 0, 130, 3]
TOTAL = sum(COUNTS)
OFFSETS = torch.tensor(COUNTS).cumsum(0).int()
STRICT = {"strict": True}


def integers(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randint(-2, 3, shape).to(dtype)


def products(record: flycc.Record) -> list[str]:
    """The problems that kernels serve, each once, and no candidate is left to PyTorch."""
    nodes = [node for graph in record.graphs for node in graph.report.nodes]
    assert all(node.kernel == "flycc::grouped_gemm" for node in nodes)
    return [node.problem.split(" align")[0] for node in nodes]


FORMS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], str]] = {
    "experts": (
        lambda x, w: F.grouped_mm(x, w.mT, offs=OFFSETS) * 2,
        (integers(TOTAL, 32), integers(6, 24, 32)),
        "grouped_gemm 6: *201x24x32 bf16 NT",
    ),
    "columns": (
        lambda a, b: F.grouped_mm(a, b.mT, offs=OFFSETS) + 1,
        (integers(6, 16, 32), integers(TOTAL, 32)),
        "grouped_gemm 6: 16x*201x32 bf16 NT",
    ),
    "weight-gradient": (
        lambda g, x: F.grouped_mm(g.mT, x, offs=OFFSETS).relu(),
        (integers(TOTAL, 24), integers(TOTAL, 32)),
        "grouped_gemm 6: 24x32x*201 bf16 TN",
    ),
    "batch": (
        lambda a, b: F.grouped_mm(a, b).relu(),
        (integers(3, 16, 32), integers(3, 32, 24)),
        "gemm 3x16x24x32 bf16 NN",
    ),
    "odd-columns": (
        lambda x, w: F.grouped_mm(x, w[:, :, :21], offs=OFFSETS).relu(),
        (integers(TOTAL, 32), integers(6, 32, 24)),
        "grouped_gemm 6: *201x21x32 bf16 NN",
    ),
    "odd-batch": (
        lambda a, b: F.grouped_mm(a, b[:, :, :21]),
        (integers(3, 16, 32), integers(3, 32, 24)),
        "gemm 3x16x21x32 bf16 NN",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    function, inputs, expected = FORMS[name]
    record = flycc.explain(function, *inputs)
    assert products(record) == [expected]
    assert not record.launch_refusals
    result = torch.compile(function, backend="flycc", options=STRICT)(*inputs)
    assert torch.equal(result, function(*inputs))
    assert result.is_contiguous()


def experts(x: Tensor, up: Tensor, down: Tensor, offsets: Tensor) -> Tensor:
    """Two layers of experts, in both layouts of their weights."""
    hidden = F.grouped_mm(x, up.mT, offs=offsets).relu()
    return F.grouped_mm(hidden, down, offs=offsets)


def test_gradients_are_grouped_products_too() -> None:
    """Forward and backward: six products. Sums of small integers are exact until they are rounded to bfloat16, and
    from there on both ways round the same numbers.
    """

    def run(function: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
        result = function(*leaves, OFFSETS)
        result.backward(gradient)
        return [result.detach(), *(leaf.grad for leaf in leaves)]  # type: ignore[misc]

    inputs = integers(TOTAL, 16), integers(6, 8, 16), integers(6, 8, 16)
    gradient = integers(TOTAL, 16)
    compiled = torch.compile(experts, backend="flycc", options=STRICT)
    for ours, theirs in zip(run(compiled), run(experts), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    record = flycc.explain(experts, *leaves, OFFSETS)
    assert [graph.kind for graph in record.graphs] == ["forward"]
    assert len(products(record)) == 2


def test_any_number_of_tokens_and_any_offsets_run_without_compiling_again() -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("flycc")
    compiled = torch.compile(experts, backend=counter, dynamic=True)
    up, down = integers(6, 8, 16), integers(6, 8, 16)
    for counts in (COUNTS, [9, 9, 0, 1, 0, 2], [0, 0, 0, 0, 0, 77]):
        x, offsets = integers(sum(counts), 16), torch.tensor(counts).cumsum(0).int()
        torch._dynamo.mark_dynamic(x, 0)
        assert torch.equal(compiled(x, up, down, offsets), experts(x, up, down, offsets))
    assert counter.frame_count == 1
