"""delta = sum of dO * out on the emulated gfx950, against float64.

Products of 16-bit numbers are exact in float32; a tree over 8 elements and 64 lanes at most adds 9 roundings.
"""

from __future__ import annotations

import os

import pytest
import torch
from attention_reference import Attention
from emulated_attention_backward import Run, backward, problem_of

from flycc.kernels import attention

seed = int(os.environ["FLYCC_TEST_SEED"])


@pytest.mark.parametrize(
    ("queries", "value_dim", "order"),
    [(1, 1, "bhsd"), (67, 33, "bshd"), (130, 64, "bhsd"), (65, 128, "bshd"), (17, 200, "bhsd")],
)
def test_delta(queries: int, value_dim: int, order: str) -> None:
    rng = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng).to(torch.bfloat16)

    operands = Attention(random(2, 3, queries, 8), random(2, 3, 5, 8), random(2, 3, 5, value_dim), 0.3)
    grad = random(2, 3, queries, value_dim)
    steps = attention.plan_backward(problem_of(operands))
    assert isinstance(steps, tuple)
    run = Run(order=order, padding=1)  # type: ignore[arg-type]
    found = backward(operands, grad, run, steps=steps[:1])["delta"].double()
    assert run.findings == ()
    assert run.scratch_bytes == 0
    terms = grad.double() * operands.forward()[0].to(torch.bfloat16).double()
    assert ((found - terms.sum(-1)).abs() <= 9 * 2**-24 * terms.abs().sum(-1)).all()
