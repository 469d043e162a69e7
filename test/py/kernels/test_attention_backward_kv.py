"""The gradients of K and V on the emulated gfx950, against float64 within bounds that `attention_reference` derives."""

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


def run_dkv(operands: Attention, grad: Tensor, run: Run, align_out: int = 16) -> tuple[Tensor, Tensor]:
    steps = attention.plan_backward(problem_of(operands, align_out))
    assert isinstance(steps, tuple)
    found = backward(operands, grad, run, PHILOX, [step for step in steps if step.what == "dkv"])
    return found["dk"], found["dv"]


def check(operands: Attention, grad: Tensor, run: Run) -> tuple[Tensor, Tensor]:
    found = run_dkv(operands, grad, run)
    assert run.findings == ()
    assert run.scratch_bytes == 0
    exact, bounds = operands.backward(grad)[1:], operands.backward_bounds(grad)[1:]
    for each, right, bound in zip(found, exact, bounds, strict=True):
        assert ((each.double() - right).abs() <= bound).all()
    return found


@pytest.mark.parametrize(
    ("queries", "keys", "dims", "dtype"),
    [
        (1, 1, (32, 32), torch.bfloat16),
        (64, 17, (64, 64), torch.float16),
        (127, 128, (128, 128), torch.bfloat16),
        (65, 33, (33, 70), torch.bfloat16),
        pytest.param(127, 128, (192, 64), torch.float16, marks=pytest.mark.nightly),
        pytest.param(1, 65, (256, 200), torch.bfloat16, marks=pytest.mark.nightly),
        pytest.param(300, 300, (96, 96), torch.bfloat16, marks=pytest.mark.nightly),
    ],
)
def test_sizes(queries: int, keys: int, dims: tuple[int, int], dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(seed)
    operands, grad = operands_of(rng, (2, 2), queries, keys, dims, dtype)
    check(operands, grad, Run(padding=1))


_NIGHTLY = ("bottom_right", "no_key", "bf16", "documents", "f32", "alibi")
_KINDS = [
    pytest.param(name, marks=pytest.mark.nightly if name in _NIGHTLY else ())
    for name in masked(torch.Generator(), 9, 9)
]


@pytest.mark.parametrize("kind", _KINDS)
def test_masks(kind: str) -> None:
    """With 9 heads to 3, by rows first."""
    rng = torch.Generator().manual_seed(seed)
    operands, grad = operands_of(rng, (9, 3), 40, 75, (64, 64), **masked(rng, 40, 75)[kind])
    check(operands, grad, Run(order="bshd"))


def test_wave_order_does_not_matter() -> None:
    """Nor does anything else from run to run. Two tiles of keys, of which no query sees the last ones."""
    rng = torch.Generator().manual_seed(seed)
    operands, grad = operands_of(rng, (2, 1), 100, 200, (64, 32), upper=50)
    found = [check(operands, grad, Run(order)) for order in ("lockstep", "serial", seed)]
    for each in found:
        assert all(torch.equal(*pair) for pair in zip(each, found[0], strict=True))


def test_nan_in_a_column_of_the_gradient_stays_there() -> None:
    """In dV: its columns have nothing in common but p."""
    rng = torch.Generator().manual_seed(seed)
    operands, grad = operands_of(rng, (1, 1), 40, 70, (32, 32))
    _, clean = run_dkv(operands, grad, Run())
    grad[0, 0, 3, 5] = math.nan
    _, dv = run_dkv(operands, grad, Run())
    others = torch.arange(32) != 5
    assert dv[0, 0, :, 5].isnan().all()
    assert torch.equal(dv[..., others], clean[..., others])


def test_rows_that_are_aligned_to_elements_only() -> None:
    rng = torch.Generator().manual_seed(seed)
    operands, grad = operands_of(rng, (1, 1), 33, 40, (32, 32))
    wide = run_dkv(operands, grad, Run())
    for narrow in (2, 4):
        assert all(
            torch.equal(*pair) for pair in zip(run_dkv(operands, grad, Run(), narrow), wide, strict=True)
        )
