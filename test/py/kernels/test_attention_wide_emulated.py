"""Attention with heads wider than 256, against float64."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_reference import Attention, dropout_mask
from emulated_attention import forward
from emulated_attention_backward import Run
from loaded_kernels import loaded
from torch import Tensor

from flycc.codegen import compile_kernel
from flycc.contracts.sdpa import SdpaProblem
from flycc.kernels import attention as family


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
) -> Tensor:
    """out, which like lse is within the reference's bounds; no sanitizer has found anything."""
    run = run or Run()
    out, lse = forward(operands, run, None, seed, align_out)
    assert run.findings == ()
    expected, expected_lse = operands.forward()
    assert ((out.double() - expected).abs() <= operands.bound()).all()
    none = expected_lse == -torch.inf
    assert (lse[none] == -torch.inf).all()
    assert (out[none] == 0).all()
    assert ((lse - expected_lse).abs() <= operands.lse_bound())[~none].all()
    return out


@pytest.mark.parametrize("upper", [None, 0])
def test_edges_of_tiles(upper: int | None) -> None:
    check(replace(attention(130, 133), upper=upper))


@pytest.mark.parametrize("dims", [(512, 128), (72, 400), (300, 259)])
def test_dims(dims: tuple[int, int]) -> None:
    check(attention(20, 40, dims))


def test_wave_orders_give_the_same() -> None:
    operands = replace(attention(70, 100, (128, 300), (2, 1)), lower=-60, upper=20)
    same = check(operands)
    for order in ("serial", "reverse", 1):
        assert torch.equal(check(operands, Run(wave_order=order, order="bshd", padding=1)), same)


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
    ("dim", "features"),
    [
        (512, {}),
        (512, {"upper": True}),
        (384, {"mask": "bf16"}),
        (384, {"mask": "bool"}),
        (384, {"dropout": True}),
    ],
)
def test_nothing_is_spilled(dim: int, features: dict[str, Any]) -> None:
    problem = SdpaProblem("bf16", 1, 1, 1, 256, 256, dim, dim, lse=True, **features)
    config = family.choose(problem)
    assert config == family.WideConfig(dim, dim)
    compiled = compile_kernel(family.kernel(problem, config))
    descriptor = loaded(compiled).descriptor
    assert (descriptor.scratch_bytes, descriptor.spilled_vgprs) == (0, 0)


def test_which_heads_are_wide() -> None:
    def chosen(head_dim: int, value_dim: int) -> Any:
        return family.choose(SdpaProblem("bf16", 1, 1, 1, 1, 1, head_dim, value_dim))

    assert isinstance(chosen(256, 256), family.SdpaConfig)
    assert chosen(257, 64) == family.WideConfig(384, 128)
    assert chosen(64, 512) == family.WideConfig(128, 512)
    assert "value_dim = 513" in chosen(512, 513).sentence


def test_other_problems_are_refused() -> None:
    problem = SdpaProblem("bf16", 1, 1, 1, 1, 1, 300, 300)
    for config in (family.WideConfig(256, 384), family.WideConfig(320, 384), family.WideConfig(640, 384)):
        with pytest.raises(ValueError, match="head_dim"):
            family.kernel(problem, config)
