"""The forward kernel of attention, emulated, against float64."""

from __future__ import annotations

import itertools
import math
import os
from typing import Any

import pytest
import torch
from attention_reference import Attention, dropout_mask
from emulated_attention import forward
from emulated_attention_backward import Run

from flycc.contracts.sdpa import SdpaProblem
from flycc.kernels import attention
from flycc.kernels.attention import SdpaConfig

SEED = int(os.environ["FLYCC_TEST_SEED"])
ORDERS = ("serial", SEED, pytest.param("reverse", marks=pytest.mark.nightly))
#: Eight waves in two groups, with less to emulate than `choose` gives them.
STAGGERED = SdpaConfig(64, 64, 8)


def operands(
    sizes: tuple[int, ...],
    heads: tuple[int, int] = (2, 1),
    dtype: torch.dtype = torch.bfloat16,
    batch: int = 1,
    **what: Any,
) -> Attention:
    """Of random numbers; `sizes` are queries, keys, head_dim, value_dim."""
    queries, keys, head_dim, value_dim = sizes
    random = torch.Generator().manual_seed(SEED)
    shapes = ((heads[0], queries, head_dim), (heads[1], keys, head_dim), (heads[1], keys, value_dim))
    q, k, v = (torch.randn(batch, *shape, generator=random).to(dtype) for shape in shapes)
    return Attention(q, k, v, head_dim**-0.5, **what)


def check(of: Attention, run: Run, config: SdpaConfig | None = None, seed: tuple[int, int] = (0, 0)) -> None:
    out, lse = forward(of, run, config, seed)
    expected, expected_lse = of.forward()
    assert ((out.double() - expected).abs() <= of.bound()).all()
    off = torch.where(lse == expected_lse, 0.0, (lse.double() - expected_lse).abs())
    assert (off <= of.lse_bound()).all()
    assert not run.findings
    assert run.scratch_bytes == 0


def seen(of: Attention) -> Attention:
    """With a dropout that leaves out what `kept` says, for (SEED, 5)."""
    shape = (*of.query.shape[:3], of.key.size(2))
    keep = dropout_mask(SEED, 5, shape, 0.25)
    return Attention(of.query, of.key, of.value, of.scale, keep=keep, dropout_p=0.25)


@pytest.mark.parametrize(
    ("sizes", "heads", "dtype"),
    [
        ((1, 1, 16, 16), (1, 1), torch.float16),
        ((17, 64, 33, 40), (9, 3), torch.bfloat16),
        ((64, 127, 64, 64), (2, 2), torch.float16),
        ((100, 128, 128, 72), (2, 1), torch.bfloat16),
        pytest.param((33, 40, 160, 192), (1, 1), torch.bfloat16, marks=pytest.mark.nightly),
        ((33, 70, 256, 256), (1, 1), torch.float16),
        ((5, 0, 32, 32), (2, 1), torch.bfloat16),
    ],
)
def test_sizes(sizes: tuple[int, ...], heads: tuple[int, int], dtype: torch.dtype) -> None:
    check(operands(sizes, heads, dtype, batch=2), Run(order="bshd", padding=1))


@pytest.mark.nightly
@pytest.mark.parametrize("length", [1, 17, 64, 127, 128, 1000])
@pytest.mark.parametrize("dim", [16, 32, 33, 64, 72, 96, 100, 128, 192, 250, 256])
def test_every_length_and_dim(length: int, dim: int) -> None:
    check(operands((length, length, dim, dim), upper=0), Run())


@pytest.mark.parametrize(
    ("lower", "upper"),
    [(None, 0), (-90, 3), (10, None), (None, -150)]
    + [pytest.param(*band, marks=pytest.mark.nightly) for band in ((-20, 0), (None, 60), (None, -5))],
)
def test_bands(lower: int | None, upper: int | None) -> None:
    """Some queries, or all, see nothing in the last two."""
    check(operands((140, 200, 64, 64), (1, 1), lower=lower, upper=upper), Run())


def test_heads_that_are_taken_together() -> None:
    """16 heads of two tiles of queries."""
    check(operands((140, 150, 64, 64), (4, 2), batch=4, upper=0), Run())


@pytest.mark.parametrize("kind", ["bool", "same", "f32", "-inf", "documents", "slopes", "softcap", "dropout"])
def test_features(kind: str) -> None:
    sizes = 40, 90, 64, 64
    random = torch.Generator().manual_seed(SEED)
    numbers = torch.randn(1, 2, 40, 90, generator=random)
    what: dict[str, Any] = {
        "bool": {"mask": numbers > 0.5},
        "same": {"mask": numbers[:, :1].bfloat16()},
        "f32": {"mask": numbers[:, :, :1].contiguous()},
        "-inf": {"mask": torch.where(numbers > 1, numbers, -math.inf)},
        "documents": {"documents": (torch.arange(40)[None] // 7, torch.arange(90)[None] // 11)},
        "slopes": {"slopes": torch.tensor([0.25, 0.5])},
        "softcap": {"softcap": 2.0},
        "dropout": {},
    }[kind]
    of = operands(sizes, **what)
    check(seen(of) if kind == "dropout" else of, Run(), seed=(SEED, 5))


@pytest.mark.parametrize("order", ORDERS)
def test_every_wave_order(order: str | int) -> None:
    run = Run(wave_order=order)
    of = operands((250, 200, 64, 64), (1, 1), upper=0)
    check(of, run, STAGGERED)
    assert torch.equal(forward(of, Run(), STAGGERED)[0], forward(of, run, STAGGERED)[0])


def test_numbers_at_the_ends() -> None:
    """NaN in a query stays in its row, an infinite value in its column; scores far beyond 2^127 do not overflow."""
    of = operands((40, 70, 32, 32), (1, 1))
    of.query[0, 0, 3, 5] = math.nan
    of.key[0, 0, 8] *= 1e18
    of.value[0, 0, 8, 7] = math.inf
    out, _ = forward(of, Run())
    assert out[0, 0, 3].isnan().all()
    others = torch.arange(40) != 3
    assert not out[0, 0, others][:, torch.arange(32) != 7].isnan().any()
    # A score of 1e18 leaves the others nothing, though it is rounded by far more than 1.
    alone = (of.query[0, 0] @ of.key[0, 0, 8]) > 0
    assert alone.sum() > 5
    assert torch.equal(out[0, 0, alone & others], of.value[0, 0, 8].expand(40, 32)[alone & others])


@pytest.mark.parametrize(("head_dim", "value_dim"), list(itertools.product((64, 128, 192, 256), repeat=2)))
@pytest.mark.nightly
def test_no_spills(head_dim: int, value_dim: int) -> None:
    run = Run()
    check(operands((33, 70, head_dim, value_dim), (1, 1), upper=0), run)


def test_configurations_say_why_not() -> None:
    problem = SdpaProblem("bf16", 1, 4, 3, 8, 8, 64, 64)
    reason = attention.choose(problem)
    assert reason == attention.chosen(problem)
    assert str(reason) == "sdpa.heads: heads = 4: must be a multiple of kv_heads = 3"
    small = SdpaConfig(64, 64).is_valid(SdpaProblem("bf16", 1, 1, 1, 8, 8, 72, 64))
    assert str(small) == "sdpa.config: head_dim = 72: configuration d64_64_w8t64 takes 1 to 64"
