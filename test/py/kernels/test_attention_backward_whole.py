"""All gradients by all launches of a plan on the emulated gfx950, delta among them, against float64."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from attention_reference import Attention
from emulated_attention_backward import PHILOX, Run, backward, masked, operands_of
from torch import Tensor

seed = int(os.environ["FLYCC_TEST_SEED"])


def check(operands: Attention, grad: Tensor, run: Run) -> None:
    found = backward(operands, grad, run, PHILOX)
    assert run.findings == ()
    assert run.scratch_bytes == 0
    exact, bounds = operands.backward(grad), operands.backward_bounds(grad)
    for name, right, bound in zip(("dq", "dk", "dv"), exact, bounds, strict=True):
        assert ((found[name].double() - right).abs() <= bound).all(), name


def test_gradients() -> None:
    """Of 9 heads to 3, some of whose queries see no key, by rows first."""
    rng = torch.Generator().manual_seed(seed)
    operands, grad = operands_of(rng, (9, 3), 40, 33, (64, 32), upper=-3)
    check(operands, grad, Run(order="bshd"))


def test_heads_that_are_taken_together() -> None:
    """16 of two tiles of queries, and of keys."""
    rng = torch.Generator().manual_seed(seed)
    operands, grad = operands_of(rng, (16, 16), 140, 150, (64, 32), upper=-3)
    check(operands, grad, Run(order="bshd"))


@pytest.mark.nightly
@pytest.mark.parametrize("length", [1, 17, 64, 127, 128, 1000])
@pytest.mark.parametrize("dim", [32, 72, 100, 128, 256])
def test_lengths(length: int, dim: int) -> None:
    if length == 1000 and dim not in (32, 128):
        pytest.skip("no path that the others do not take")
    rng = torch.Generator().manual_seed(seed)
    operands, grad = operands_of(rng, (1, 1), length, length, (dim, dim), upper=0)
    check(operands, grad, Run(padding=1))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", list(masked(torch.Generator(), 9, 9)))
@pytest.mark.parametrize("dims", [(33, 70), (128, 96)])
def test_masks(kind: str, dims: tuple[int, int]) -> None:
    rng = torch.Generator().manual_seed(seed)
    more: dict[str, Any] = masked(rng, 70, 75)[kind]
    operands, grad = operands_of(rng, (9, 3), 70, 75, dims, torch.float16, **more)
    check(operands, grad, Run(order="bshd"))
