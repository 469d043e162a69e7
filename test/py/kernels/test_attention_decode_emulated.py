"""Kernels that share out keys on the emulated gfx950 against float64, within the bounds of `attention_reference`."""

from __future__ import annotations

import math
import os
import random
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch
from attention_reference import Attention
from emulated_decode import Run, place
from torch import Tensor

from flycc.contracts import Reason
from flycc.contracts.sdpa import SdpaBackwardProblem, SdpaProblem
from flycc.kernels import attention
from flycc.kernels.attention.decode_config import DecodeConfig, choose_decode, share_out

SEED = int(os.environ["FLYCC_TEST_SEED"])
ORDERS: tuple[Any, ...] = ("lockstep", "serial", "reverse", SEED)


@dataclass(frozen=True)
class Shape:
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int
    dtype: torch.dtype = torch.bfloat16

    def attention(self, seed: int = 0, **more: Any) -> Attention:
        """Random operands: rows of K and V are in a cache of some more, V is [batch, keys, heads, value_dim]."""
        generator = torch.Generator().manual_seed(SEED + seed)

        def random(heads: int, rows: int, columns: int) -> Tensor:
            return torch.randn(self.batch, heads, rows, columns, generator=generator).to(self.dtype)

        query = place(random(self.heads, self.queries, self.head_dim), order=(0, 2, 1, 3))
        key = place(random(self.kv_heads, self.keys, self.head_dim), 5)
        value = place(random(self.kv_heads, self.keys, self.value_dim), 1, (0, 2, 1, 3))
        return Attention(query, key, value, self.head_dim**-0.5, **more)


def check(run: Run) -> tuple[Tensor, Tensor]:
    """Runs, and compares with float64."""
    out, lse = run.results()
    expected, expected_lse = run.attention.forward()
    assert run.findings == ()
    assert run.spilled == 0
    assert torch.equal(out.isnan(), expected.isnan())
    off = (out.double() - expected).abs()
    assert (off <= run.attention.bound()).logical_or(expected.isnan()).all()
    if run.lse:
        same = lse.double() == expected_lse
        off = (lse.double() - expected_lse).abs()
        assert (same | (off <= run.attention.lse_bound()) | (lse.isnan() & expected_lse.isnan())).all()
    return out, lse


SHAPES = (
    Shape(1, 9, 3, 1, 300, 128, 128),
    Shape(2, 9, 3, 5, 127, 64, 64, torch.float16),
    Shape(1, 8, 1, 7, 65, 128, 128),
    Shape(1, 8, 1, 16, 600, 64, 64),
    Shape(1, 10, 2, 13, 40, 64, 256),
    Shape(1, 4, 1, 3, 200, 20, 40),
    Shape(1, 2, 2, 2, 70, 77, 33),
    Shape(1, 4, 2, 3, 100, 192, 128),
    Shape(1, 2, 1, 1, 140, 256, 256),
    Shape(1, 1, 1, 2, 64, 512, 512),
    Shape(1, 8, 1, 7, 65, 512, 64),
)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape: Shape) -> None:
    run = Run(shape.attention())
    out, _ = check(run)
    assert out.isfinite().all()


def test_every_number_of_splits_and_wave_order() -> None:
    """The same kernel for all; of each number of splits the same bits in every order."""
    shape = Shape(1, 4, 2, 2, 1000, 64, 64)
    attention = shape.attention()
    for splits in (1, 2, 3, 4):
        found = [
            check(Run(attention, splits=splits, wave_order=order))
            for order in (ORDERS if splits == 3 else ORDERS[:1])
        ]
        assert all(torch.equal(a, b) for some in found for a, b in zip(some, found[0], strict=True))


@pytest.mark.parametrize("keys", [0, 1, 2, 16, 17, 31, 32, 33, 255, 256, 257, 513])
def test_keys(keys: int) -> None:
    """All of one binary; without keys out is 0 and lse -inf."""
    out, lse = check(Run(Shape(2, 2, 1, 3, keys, 64, 64).attention(keys)))
    assert keys or ((out == 0).all() and (lse == -math.inf).all())


def test_features() -> None:
    """Each kind of mask and everything that changes scores, with heads, queries and batches that see different keys."""
    shape = Shape(2, 4, 2, 3, 200, 64, 64)
    generator = torch.Generator().manual_seed(SEED)
    documents = tuple(torch.randint(0, 3, (2, size), generator=generator).int() for size in (3, 200))
    slopes = torch.rand(4, generator=generator)
    added = torch.randn(2, 1, 3, 200, generator=generator)
    bools = torch.rand(1, 4, 3, 200, generator=generator) > 0.4
    for features in (
        {"upper": 200 - 3, "lower": 100},
        {"upper": -2},
        {"documents": documents, "slopes": slopes, "softcap": 2.0, "mask": added.bfloat16(), "upper": 190},
        {"mask": bools},
    ):
        check(Run(shape.attention(**features)))


def test_rows_that_see_nothing_and_numbers_that_are_none() -> None:
    shape = Shape(1, 4, 1, 2, 70, 64, 64)
    bools = torch.rand(1, 4, 2, 70, generator=torch.Generator().manual_seed(SEED)) > 0.5
    bools[0, 1, 0] = False
    out, lse = check(Run(shape.attention(mask=bools)))
    assert (out[0, 1, 0] == 0).all()
    assert lse[0, 1, 0] == -math.inf
    attention = shape.attention()
    attention.query[0, 2, 1, 3] = math.nan
    out, _ = check(Run(attention))
    assert out.isnan().any(-1).sum() == 1
    attention = shape.attention()
    attention.value[0, 0, 69, 5] = math.nan
    check(Run(attention))
    attention.key[0, 0, 2, 5] = math.inf
    out, _ = Run(attention).results()
    assert torch.equal(out.isnan(), attention.forward()[0].isnan())


def test_heads_inside_of_rows_of_out() -> None:
    check(Run(Shape(2, 6, 2, 3, 90, 64, 64).attention(), bshd=True, lse=False))


def test_one_workgroup_has_all_keys() -> None:
    """Where there are heads enough, nothing is put together."""
    shape = Shape(256, 4, 2, 1, 70, 64, 64)
    config = choose_decode(Run(shape.attention()).problem())
    assert isinstance(config, DecodeConfig)
    assert not config.split
    check(Run(shape.attention(), replace(config, waves=2)))


def test_one_wave_puts_shares_together() -> None:
    """Where there are rows enough."""
    attention = Shape(16, 8, 8, 16, 200, 32, 32).attention()
    check(Run(attention, DecodeConfig(32, 32, 16, 32), splits=2))


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(40))
def test_any_shape(number: int) -> None:
    """Any heads, dims, lengths, bands and numbers of splits, in any order of waves."""
    rng = random.Random(SEED + number)
    kv_heads, group = rng.choice((1, 2, 3)), rng.choice((1, 2, 3, 4, 8))
    dims = (rng.choice((16, 64, 80, 96, 128, 160, 256, 512, rng.randint(1, 512))) for _ in range(2))
    queries, keys = rng.randint(1, 16), rng.randint(1, 1000)
    dtype = rng.choice((torch.bfloat16, torch.float16))
    shape = Shape(rng.choice((1, 2)), kv_heads * group, kv_heads, queries, keys, *dims, dtype)
    band = {}
    if rng.random() < 0.6:
        band["upper"] = keys - queries + rng.choice((0, 0, -3))
    if rng.random() < 0.3:
        band["lower"] = keys - queries - rng.randint(0, 300)
    attention = shape.attention(number, **band)
    splits = rng.choice((None, 1, 2, 5))
    check(Run(attention, splits=splits, wave_order=rng.choice(ORDERS), bshd=rng.random() < 0.5))


def problem(batch: int, keys: int, queries: int = 1) -> SdpaProblem:
    return SdpaProblem("bf16", batch, 32, 8, queries, keys, 128, 128, upper=True)


def test_keys_are_shared_out() -> None:
    """Shares are disjoint, in order, and have every key that is seen; a cache that grows keeps its configuration."""
    for batch, keys in ((1, 1), (1, 8192), (4, 100_000), (16, 1000)):
        config = choose_decode(problem(batch, keys))
        assert isinstance(config, DecodeConfig)
        assert config == choose_decode(problem(batch, keys + 1 if keys > 256 else "s0")) or keys == 1
        shares = share_out(problem(batch, keys), config, None, keys - 1)
        assert shares.first == 0
        assert shares.end == keys
        assert (shares.splits - 1) * shares.share < keys <= shares.splits * shares.share
        assert shares.share % config.turn == 0
    config = choose_decode(problem(2, 100_000))
    assert isinstance(config, DecodeConfig)
    seen = share_out(problem(2, 100_000), config, 99_000, 99_999)
    assert 99_000 - 32 < seen.first <= 99_000
    assert seen.end == 100_000
    assert seen.splits <= 4


def test_plan() -> None:
    """Few queries share out keys, in binaries that a growing cache does not change; others do not."""
    for queries, keys, whats in (
        (1, 64, ["decode"]),
        (1, 5000, ["decode", "combine"]),
        (16, 5000, ["decode", "combine"]),
        (100, 5000, ["decode", "combine"]),
        (100, 500, ["forward"]),
        (300, 5000, ["forward"]),
    ):
        some, more = (problem(1, size, queries) for size in (keys, keys + 1))
        steps, following = (attention.plan(one, None, one.keys - queries) for one in (some, more))
        assert [step.what for step in steps] == whats
        keys_of = [[attention.step_kernel(some, step).key for step in plan] for plan in (steps, following)]
        assert keys_of[0] == keys_of[1]
    dropped = attention.plan(replace(problem(1, 5000), dropout=True))
    assert [step.what for step in dropped] == ["forward"]


def test_plans_where_only_the_run_knows_sizes() -> None:
    """Whichever they are, there are binaries; a query that is known to be one shares out keys of any number."""
    names = ("batch", "heads", "kv_heads", "queries", "keys")
    for known in product((True, False), repeat=len(names)):
        sizes = {name: f"s{i}" for i, name in enumerate(names) if not known[i]}
        posed = replace(problem(1, 5000), **sizes)
        plan = attention.plan(posed)
        assert isinstance(plan, tuple), plan
        decode = not sizes.keys() & {"heads", "kv_heads", "queries"}
        assert [step.what for step in plan] == (["decode", "combine"] if decode else ["forward"])
        assert all(attention.step_kernel(posed, step).symbol for step in plan)
        backward = SdpaBackwardProblem(posed)
        gradients = attention.plan_backward(backward)
        assert isinstance(gradients, tuple), gradients
        assert all(attention.backward_kernel(backward, step.config).symbol for step in gradients)


def test_more_heads_than_a_decode_launch_takes() -> None:
    """Its grid has K's heads along y and batches along z; its offsets are 32 bits."""
    for sizes in (
        {"batch": 70_000},
        {"heads": 70_000, "kv_heads": 70_000},
        {"heads": 1 << 18, "kv_heads": 1},
    ):
        posed = replace(problem(1, 5000, 16), **sizes)
        assert isinstance(choose_decode(posed), Reason)
        assert [step.what for step in attention.plan(posed)] == ["forward"]


def test_more_workgroups_than_a_launch_takes() -> None:
    refused = attention.plan(SdpaProblem("bf16", 1 << 23, 1, 1, 300, 300, 64, 64))
    assert isinstance(refused, Reason)
    assert refused.code == "sdpa.size"


def test_refusals() -> None:
    assert choose_decode(problem(1, 100, 17)).tiled
    assert isinstance(choose_decode(replace(problem(1, 100), head_dim=513)), Reason)
    assert isinstance(choose_decode(replace(problem(1, 100), dropout=True)), Reason)
    assert isinstance(choose_decode(replace(problem(1, 100), queries="s0")), Reason)
