"""The gradient of Q on the emulated gfx950, against float64 within the bounds that `attention_reference` derives."""

from __future__ import annotations

import math
import os

import pytest
import torch
from attention_reference import Attention
from emulated_attention_backward import PHILOX, Run, backward, masked, operands_of, problem_of
from torch import Tensor

from flycc.kernels import attention

seed = int(os.environ["FLYCC_TEST_SEED"])


def check(operands: Attention, grad: Tensor, run: Run) -> Tensor:
    steps = attention.plan_backward(problem_of(operands))
    assert isinstance(steps, tuple)
    found = backward(operands, grad, run, PHILOX, [step for step in steps if step.what == "dq"])["dq"]
    assert run.findings == ()
    assert run.scratch_bytes == 0
    exact, bound = operands.backward(grad)[0], operands.backward_bounds(grad)[0]
    assert ((found.double() - exact).abs() <= bound).all()
    return found


@pytest.mark.parametrize(
    ("queries", "keys", "dims", "dtype"),
    [
        (1, 1, (32, 32), torch.bfloat16),
        (17, 64, (64, 64), torch.float16),
        (127, 128, (128, 128), torch.bfloat16),
        (33, 65, (33, 70), torch.bfloat16),
        pytest.param(128, 127, (192, 64), torch.float16, marks=pytest.mark.nightly),
        pytest.param(65, 1, (256, 200), torch.bfloat16, marks=pytest.mark.nightly),
        pytest.param(1000, 1000, (96, 96), torch.bfloat16, marks=pytest.mark.nightly),
    ],
)
def test_sizes(queries: int, keys: int, dims: tuple[int, int], dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(seed)
    operands, grad = operands_of(rng, (2, 2), queries, keys, dims, dtype)
    check(operands, grad, Run(padding=1))


_NIGHTLY = ("bottom_right", "no_key", "bf16", "documents")
_KINDS = [
    pytest.param(name, marks=pytest.mark.nightly if name in _NIGHTLY else ())
    for name in masked(torch.Generator(), 9, 9)
]


@pytest.mark.parametrize("kind", _KINDS)
def test_masks(kind: str) -> None:
    """With 9 heads to 3, by rows first."""
    rng = torch.Generator().manual_seed(seed)
    operands, grad = operands_of(rng, (9, 3), 70, 75, (64, 64), **masked(rng, 70, 75)[kind])
    check(operands, grad, Run(order="bshd"))


def test_wave_order_does_not_matter() -> None:
    rng = torch.Generator().manual_seed(seed)
    operands, grad = operands_of(rng, (1, 1), 100, 200, (64, 32), upper=50)
    found = [check(operands, grad, Run(order)) for order in ("lockstep", "serial", "reverse", seed)]
    assert all(torch.equal(each, found[0]) for each in found)


def test_nan_stays_in_its_row() -> None:
    rng = torch.Generator().manual_seed(seed)
    operands, grad = operands_of(rng, (1, 1), 40, 70, (32, 32))
    operands.query[0, 0, 3, 5] = math.nan
    steps = attention.plan_backward(problem_of(operands))
    assert isinstance(steps, tuple)
    found = backward(operands, grad, Run(), steps=[step for step in steps if step.what == "dq"])["dq"]
    rows = found.isnan().any(-1)
    assert rows.nonzero().tolist() == [[0, 0, 3]]
    assert found[0, 0, 3].isnan().all()
