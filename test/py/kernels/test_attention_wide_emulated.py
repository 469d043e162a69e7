"""Attention with heads wider than 256, against float64."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_reference import Attention, dropout_mask
from emulated_attention_backward import Run
from emulated_attention_wide import forward
from torch import Tensor

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.contracts.sdpa import SdpaProblem
from flycc.kernels.attention.wide_host import wide_kernel, wide_refusal


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, salt: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(int(os.environ["FLYCC_TEST_SEED"]) + salt)
    return torch.randn(shape, generator=generator).to(dtype)


def attention(
    queries: int,
    keys: int,
    dims: tuple[int, int] = (512, 512),
    heads: tuple[int, int] = (1, 1),
    dtype: torch.dtype = torch.bfloat16,
    batch: int = 1,
) -> Attention:
    """Random operands."""
    shapes = (
        (batch, heads[0], queries, dims[0]),
        (batch, heads[1], keys, dims[0]),
        (batch, heads[1], keys, dims[1]),
    )
    q, k, v = (random(*shape, dtype=dtype, salt=i) for i, shape in enumerate(shapes))
    return Attention(q, k, v, dims[0] ** -0.5)


def check(
    operands: Attention, run: Run | None = None, seed: tuple[int, int] = (0, 0), align_out: int = 16
) -> None:
    """out and lse within the reference's bounds; no sanitizer has found anything."""
    run = run or Run()
    out, lse = forward(operands, run, seed, align_out)
    assert run.findings == ()
    expected, expected_lse = operands.forward()
    assert ((out.double() - expected).abs() <= operands.bound()).all()
    none = expected_lse == -torch.inf
    assert (lse[none] == -torch.inf).all()
    assert (out[none] == 0).all()
    assert ((lse - expected_lse).abs() <= operands.lse_bound())[~none].all()


@pytest.mark.parametrize("upper", [None, 0, 3])
def test_edges_of_tiles(upper: int | None) -> None:
    check(replace(attention(130, 133), upper=upper))


@pytest.mark.parametrize("dims", [(512, 128), (72, 400), (300, 259)])
def test_dims(dims: tuple[int, int]) -> None:
    check(attention(20, 40, dims))


@pytest.mark.parametrize("order", ["lockstep", "serial", "reverse", 1])
def test_wave_orders_give_the_same(order: str | int) -> None:
    operands = replace(attention(70, 100, (384, 384), (3, 1)), lower=-60, upper=20)
    run = Run(wave_order=order, order="bshd", padding=1)
    check(operands, run)
    out, _ = forward(operands, run)
    same, _ = forward(operands, Run(order="bhsd"))
    assert torch.equal(out, same)


def test_all_features() -> None:
    operands = attention(40, 70, heads=(2, 1), dtype=torch.float16)
    mask = random(2, 40, 70, salt=9).half().unsqueeze(0)
    mask[0, 0, 7] = -torch.inf
    ids = torch.arange(40)[None] // 25, torch.arange(70)[None] // 50
    seed = (-(2**40) - 5, 77)
    operands = replace(
        operands,
        mask=mask,
        lower=-30,
        upper=31,
        documents=ids,
        slopes=torch.tensor([0.25, 0.1]),
        softcap=3.0,
        keep=dropout_mask(*seed, (1, 2, 40, 70), 0.25),
        dropout_p=0.25,
    )
    check(operands, seed=seed)
    check(replace(operands, mask=mask[:, :1] > 0), seed=seed)


@pytest.mark.parametrize(
    "features", [{}, {"upper": True}, {"mask": "bf16"}, {"mask": "bool"}, {"dropout": True}]
)
@pytest.mark.parametrize("dim", [384, 512])
def test_nothing_is_spilled(dim: int, features: dict[str, Any]) -> None:
    problem = SdpaProblem("bf16", 1, 1, 1, 256, 256, dim, dim, lse=True, **features)
    compiled = compile_kernel(wide_kernel(problem))
    descriptor = emulator.load(compiled.elf).kernels[compiled.symbol].descriptor
    assert (descriptor.scratch_bytes, descriptor.spilled_vgprs) == (0, 0)


def test_heads_that_are_too_wide_are_refused() -> None:
    problem = SdpaProblem("bf16", 1, 1, 1, 1, 1, 512, 513)
    reason = wide_refusal(problem)
    assert reason is not None
    assert "value_dim is 513" in reason.sentence
    with pytest.raises(ValueError, match="value_dim is 513"):
        wide_kernel(problem)
