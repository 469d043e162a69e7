"""The forward kernel of attention, emulated, against float64."""

from __future__ import annotations

import os

import pytest
import torch
from attention_reference import Attention
from emulated_attention import forward
from emulated_attention_backward import Run

SEED = int(os.environ["FLYCC_TEST_SEED"])


def operands(dtype: torch.dtype, heads: tuple[int, int], sizes: tuple[int, ...], **what: object) -> Attention:
    """Of random numbers, two batches; `sizes` are queries, keys, head_dim, value_dim."""
    queries, keys, head_dim, value_dim = sizes
    random = torch.Generator().manual_seed(SEED)
    shapes = ((heads[0], queries, head_dim), (heads[1], keys, head_dim), (heads[1], keys, value_dim))
    q, k, v = (torch.randn(2, *shape, generator=random).to(dtype) for shape in shapes)
    return Attention(q, k, v, head_dim**-0.5, **what)  # type: ignore[arg-type]


def check(attention: Attention, run: Run) -> None:
    out, lse = forward(attention, run)
    expected, expected_lse = attention.forward()
    assert ((out.double() - expected).abs() <= attention.bound()).all()
    off = torch.where(lse == expected_lse, 0.0, (lse.double() - expected_lse).abs())
    assert (off <= attention.lse_bound()).all()
    assert not run.findings
    assert run.scratch_bytes == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("heads", "sizes"),
    [
        ((1, 1), (1, 1, 16, 16)),
        ((3, 1), (17, 64, 33, 40)),
        ((2, 2), (64, 127, 64, 64)),
        ((2, 1), (100, 128, 128, 72)),
    ],
)
def test_sizes(dtype: torch.dtype, heads: tuple[int, int], sizes: tuple[int, ...]) -> None:
    check(operands(dtype, heads, sizes), Run(order="bshd", padding=1))
