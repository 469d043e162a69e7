"""Gradients of heads wider than 256 on the emulated gfx950, against float64 within bounds that `attention_reference`
derives."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch
from attention_reference import Attention, dropout_mask
from emulated_attention_backward import PHILOX, Run, backward, masked, operands_of
from loaded_kernels import loaded
from torch import Tensor

from flycc.codegen import compile_kernel
from flycc.contracts import SdpaBackwardProblem, SdpaProblem
from flycc.kernels import attention

seed = int(os.environ["FLYCC_TEST_SEED"])


def check(operands: Attention, grad: Tensor, run: Run) -> list[Tensor]:
    """All three gradients, by all launches of the plan."""
    found = backward(operands, grad, run, PHILOX)
    gradients = [found[name] for name in ("dq", "dk", "dv")]
    assert run.findings == ()
    assert run.scratch_bytes == 0
    exact, bounds = operands.backward(grad), operands.backward_bounds(grad)
    for each, right, bound in zip(gradients, exact, bounds, strict=True):
        assert ((each.double() - right).abs() <= bound).all()
    return gradients


@pytest.mark.parametrize(
    ("queries", "keys", "dims", "dtype"),
    [
        (1, 1, (512, 512), torch.bfloat16),
        (40, 70, (300, 259), torch.float16),
        pytest.param(127, 128, (384, 384), torch.bfloat16, marks=pytest.mark.nightly),
        pytest.param(65, 33, (64, 512), torch.bfloat16, marks=pytest.mark.nightly),
        pytest.param(33, 65, (509, 40), torch.float16, marks=pytest.mark.nightly),
        pytest.param(130, 133, (512, 512), torch.bfloat16, marks=pytest.mark.nightly),
    ],
)
def test_sizes(queries: int, keys: int, dims: tuple[int, int], dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(seed)
    operands, grad = operands_of(rng, (2, 1), queries, keys, dims, dtype)
    check(operands, grad, Run(padding=1))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", masked(torch.Generator(), 9, 9))
def test_masks(kind: str) -> None:
    """With 9 heads to 3, by rows first."""
    rng = torch.Generator().manual_seed(seed)
    operands, grad = operands_of(rng, (9, 3), 40, 75, (512, 320), **masked(rng, 40, 75)[kind])
    check(operands, grad, Run(order="bshd"))


def test_all_features() -> None:
    rng = torch.Generator().manual_seed(seed)
    mask = torch.randn((1, 2, 40, 70), generator=rng).half()
    mask[0, 0, 7] = -math.inf
    operands, grad = operands_of(
        rng,
        (2, 1),
        40,
        70,
        (512, 512),
        torch.float16,
        mask=mask,
        lower=-30,
        upper=31,
        documents=(torch.arange(40).expand(2, -1) // 25, torch.arange(70).expand(2, -1) // 50),
        slopes=torch.tensor([0.25, 0.1]),
        softcap=3.0,
        keep=dropout_mask(*PHILOX, (2, 2, 40, 70), 0.25),
        dropout_p=0.25,
    )
    check(operands, grad, Run())


@pytest.mark.nightly
def test_wave_order_does_not_matter() -> None:
    """Nor does anything else from run to run. Several tiles of queries and keys, of which no query sees the last."""
    rng = torch.Generator().manual_seed(seed)
    operands, grad = operands_of(rng, (2, 1), 70, 150, (320, 300), lower=-50, upper=20)
    found = [check(operands, grad, Run(order)) for order in ("lockstep", "serial", "reverse", seed)]
    for each in found:
        assert all(torch.equal(*pair) for pair in zip(each, found[0], strict=True))


@pytest.mark.nightly
@pytest.mark.parametrize("dim", [384, 512])
@pytest.mark.parametrize(
    "features",
    [
        {},
        {"upper": True},
        {"lower": True, "upper": True},
        *({"mask": kind} for kind in ("bool", "bf16", "f32")),
        *({name: True} for name in ("documents", "alibi", "softcap", "dropout")),
    ],
    ids=lambda features: "_".join(features) or "none",
)
def test_nothing_is_spilled(dim: int, features: dict[str, Any]) -> None:
    """Of rows of whole vectors."""
    problem = SdpaBackwardProblem(SdpaProblem("bf16", 1, 1, 1, 256, 256, dim, dim, lse=True, **features))
    steps = attention.plan_backward(problem)
    assert isinstance(steps, tuple)
    for step in steps:
        compiled = compile_kernel(attention.backward_kernel(problem, step.config))
        descriptor = loaded(compiled).descriptor
        assert (descriptor.scratch_bytes, descriptor.spilled_vgprs) == (0, 0), step.config


def test_which_heads_are_wide() -> None:
    def steps(head_dim: int, value_dim: int) -> Any:
        problem = SdpaProblem("bf16", 1, 1, 1, 1, 1, head_dim, value_dim)
        return attention.plan_backward(SdpaBackwardProblem(problem))

    assert [step.config.wide for step in steps(256, 256)] == [False] * 3
    assert [step.config.wide for step in steps(64, 257)] == [False, True, True]
    assert steps(64, 257)[1].config.head_dim == 384
    assert "value_dim = 513" in steps(512, 513).sentence
