"""Top-k binaries on the emulated gfx950: exactly what `torch.sort(stable=True)` gives, bit by bit."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from emulated_topk import TORCH_TYPES, bits, check, chosen, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from flycc.contracts import TopkProblem
from flycc.kernels.topk import Step, TopkConfig
from flycc.kernels.topk.variant import RegisterVariant, SelectVariant, SortVariant

seed = int(os.environ["FLYCC_TEST_SEED"])

#: Upstream's list, and the sizes between the kernels.
KS = (1, 2, 3, 4, 8, 16, 17, 32, 64, 65, 128, 129, 256, 257, 383, 384, 512, 513, 831, 832, 1024)

#: Those that are not left to the nightly run, which has them all with every type.
QUICK_KS = (1, 2, 8, 16, 17, 65, 257, 1024)

#: (columns, k) of every row of published/topk_fp32.csv.
PUBLISHED = (
    *((1024, 2), (1024, 8), (2048, 2), (4096, 8), (8192, 2), (8192, 16), (8192, 64), (16384, 257)),
    *((32768, 256), (32768, 350), (32768, 390), (32768, 833), (131072, 768), (262144, 1024)),
)


def generator(*salt: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash((seed, *salt)) % 2**63)


def mixed(shape: tuple[int, int], dtype: torch.dtype, draw: torch.Generator) -> Tensor:
    """Numbers of all magnitudes; of floats also ties, zeros of both signs, infinities and NaN of both signs."""
    numbers = torch.randn(shape, generator=draw) * torch.exp(4 * torch.randn(shape, generator=draw))
    if dtype == torch.int32:
        whole = torch.randint(-(2**31), 2**31, shape, generator=draw)
        return torch.where(torch.rand(shape, generator=draw) < 0.5, whole, numbers.clamp(-9, 9).long()).to(
            dtype
        )
    choice = torch.randint(0, 16, shape, generator=draw)
    for number, value in enumerate((0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf"), float("nan"))):
        numbers = torch.where(choice == number, torch.tensor(value), numbers)
    return torch.where(choice == 7, -torch.tensor(float("nan")), numbers).to(dtype)


@pytest.mark.parametrize(
    ("k", "dtype"),
    [
        pytest.param(k, dtype, marks=() if quick else pytest.mark.nightly)
        for k in KS
        for dtype in TORCH_TYPES
        for quick in [k in QUICK_KS if dtype == "f32" else k in (3, 65)]
    ],
)
def test_every_k(k: int, dtype: str) -> None:
    """Both directions; n is at times k itself, at times odd."""
    draw = generator(k, *map(ord, dtype))
    for largest in (True, False):
        extra = int(torch.randint(0, 1500, (), generator=draw)) * int(
            torch.randint(0, 4, (), generator=draw) > 0
        )
        check(mixed((2, k + extra), TORCH_TYPES[dtype], draw), k, largest=largest, what=f"seed {seed}")


@pytest.mark.parametrize(
    ("columns", "k"),
    # 390 runs the kernels of 350.
    [pytest.param(*shape, marks=pytest.mark.nightly if shape[1] == 390 else ()) for shape in PUBLISHED],
)
def test_published_shapes(columns: int, k: int) -> None:
    """One row, and the configuration of the whole batch, whose rows are not cut for want of workgroups."""
    x = mixed((1, columns), torch.float32, generator(columns, k))
    check(x, k, what=f"seed {seed}")
    problem = TopkProblem("f32", 4096, columns, k)
    outcome = run(x, replace(problem, rows=1), chosen(problem))
    assert torch.equal(outcome.indices, torch.sort(x, stable=True, descending=True).indices[:, :k])


@pytest.mark.parametrize(
    ("columns", "k", "dtype"),
    [
        pytest.param(
            columns, k, dtype, marks=() if dtype == "bf16" or columns == 100 else pytest.mark.nightly
        )
        for columns, k in [(1, 1), (7, 3), (100, 50), (5000, 16), (20000, 64), (9000, 2000)]
        for dtype in TORCH_TYPES
    ],
)
def test_equal_elements_come_by_index(columns: int, k: int, dtype: str) -> None:
    for x in (torch.zeros(2, columns), torch.arange(2 * columns).view(2, columns) % 3):
        x = x.to(TORCH_TYPES[dtype])
        check(x, k)
        check(x, k, largest=False)


@pytest.mark.parametrize(("columns", "k"), [(300, 4), (300, 40), (3000, 400)])
def test_rows_of_nothing_but_nan(columns: int, k: int) -> None:
    x = torch.full((2, columns), float("nan"))
    x[1, columns // 2 :] = float("-inf")
    check(x, k)
    check(x, k, largest=False)


@pytest.mark.parametrize(
    ("columns", "k", "dtype", "skip"),
    [
        pytest.param(
            columns, k, dtype, skip, marks=() if (dtype, skip) == (quick, 1) else pytest.mark.nightly
        )
        for columns, k, quick in [(65, 5, "f32"), (257, 16, "bf16"), (1001, 60, "f32"), (4097, 300, "bf16")]
        for dtype in TORCH_TYPES
        for skip in (0, 1, 2)
    ],
)
def test_rows_that_start_anywhere(columns: int, k: int, dtype: str, skip: int) -> None:
    draw = generator(skip, columns)
    for padding in (0, 1, 6):
        whole = mixed((5, columns + padding), TORCH_TYPES[dtype], draw).flatten()
        x = whole.as_strided((4, columns), (columns + padding, 1), skip)
        check(x, k, what=f"padding {padding} seed {seed}")


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_shapes(data: st.DataObject) -> None:
    columns = data.draw(st.one_of(st.integers(1, 300), st.integers(300, 6000)), "columns")
    k = data.draw(st.one_of(st.integers(1, min(columns, 20)), st.integers(1, columns)), "k")
    rows = data.draw(st.integers(1, 9 if columns < 400 else 2), "rows")
    dtype = TORCH_TYPES[data.draw(st.sampled_from(sorted(TORCH_TYPES)), "dtype")]
    largest, ordered = data.draw(st.booleans(), "largest"), data.draw(st.booleans(), "sorted")
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32), "seed"))
    check(mixed((rows, columns), dtype, draw), k, largest=largest, sorted=ordered)


#: A problem for each kernel and each way through it, as small as the way allows.
WAYS = {
    "lanes of several rows": ("f32", 37, 21, 5, True),
    "a wave a row": ("bf16", 3, 2051, 16, True),
    "lists of several parts": ("f16", 1, 4100, 3, True),
    "one wave selects": ("f32", 2, 700, 33, True),
    "four waves select": ("bf16", 2, 3001, 100, True),
    "unsorted": ("f32", 1, 4000, 200, False),
    "several parts": ("f32", 1, 16400, 40, True),
    "all in order": ("bf16", 1, 16500, 16500, True),
    "most in order": ("f32", 1, 17000, 16400, True),
}


@pytest.mark.parametrize("way", WAYS)
def test_sanitizers_are_quiet(way: str) -> None:
    dtype, rows, columns, k, ordered = WAYS[way]
    x = mixed((rows, columns), TORCH_TYPES[dtype], generator(columns))
    assert check(x, k, sorted=ordered, sanitize="all").findings == ()


@pytest.mark.parametrize(
    "order", ["reverse", *(pytest.param(order, marks=pytest.mark.nightly) for order in ("serial", 7))]
)
@pytest.mark.parametrize("way", WAYS)
def test_every_order_of_waves_gives_the_same(way: str, order: str | int) -> None:
    dtype, rows, columns, k, ordered = WAYS[way]
    x = mixed((rows, columns), TORCH_TYPES[dtype], generator(columns))
    one = check(x, k, sorted=ordered, wave_order="lockstep")
    other = check(x, k, sorted=ordered, wave_order=order)
    # Unsorted results come in one order too.
    assert torch.equal(one.indices, other.indices)
    assert (bits(one.values) == bits(other.values)).all()


@pytest.mark.parametrize(
    ("reading", "largest"),
    [
        *(("tiles", True), ("passes", False)),
        *(pytest.param(*at, marks=pytest.mark.nightly) for at in (("tiles", False), ("passes", True))),
    ],
)
def test_rows_longer_than_registers_hold(reading: Any, largest: bool) -> None:
    """Without one that is too long to emulate here: 5 tiles, the last of which has fewer than k elements."""
    columns, k = 4 * 2048 + 90, 100
    x = mixed((3, columns), torch.float32, generator(columns, largest))
    # The best ones in descending tiles, so that none of a later tile are; then rows of one key, 0 if not largest.
    x[1] = torch.arange(columns).neg() if largest else torch.arange(columns)
    x[2] = float("nan")
    variant = SelectVariant("f32", largest, 256, 8, 4, 11, reading=reading, capacity=128, sorted=True)
    config = TopkConfig((Step(variant, columns, k, columns),))
    for order in ("lockstep", 3):
        outcome = run(x, TopkProblem("f32", 3, columns, k), config, wave_order=order, sanitize="all")
        assert outcome.findings == ()
        expected = torch.sort(x, stable=True, descending=largest).indices[:, :k]
        assert torch.equal(outcome.indices, expected), f"seed {seed}"


def test_the_ways_are_what_they_say() -> None:
    def variants(way: str) -> list[object]:
        dtype, rows, columns, k, ordered = WAYS[way]
        config = chosen(TopkProblem(dtype, rows, columns, k, sorted=ordered))  # type: ignore[arg-type]
        return [step.variant for step in config.steps]

    (several,) = variants("lanes of several rows")
    assert isinstance(several, RegisterVariant)
    assert several.rows > 1
    assert [type(v) for v in variants("lists of several parts")] == [RegisterVariant, RegisterVariant]
    assert [v.threads for v in variants("one wave selects")] == [64]  # type: ignore[attr-defined]
    assert [v.threads for v in variants("four waves select")] == [256]  # type: ignore[attr-defined]
    assert [type(v) for v in variants("several parts")] == [SelectVariant, SelectVariant]
    assert [type(v) for v in variants("all in order")] == [SortVariant]
    assert [type(v) for v in variants("most in order")] == [SelectVariant, SortVariant]
