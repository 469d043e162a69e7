"""flycc::scale_guard: its verdict against the bounds spelled out, who hears of it, and what it refuses."""

from __future__ import annotations

from dataclasses import astuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import flycc.runtime.ops  # noqa: F401  defines the operator
from flycc.runtime import scale_guard
from flycc.scales.guards import Bounds
from flycc.scales.ranges import Range, scan

BYTES = st.integers(0, 254)


def guard(
    a: torch.Tensor | None,
    b: torch.Tensor | None,
    bounds: Bounds,
    product: str = "mm",
    blocks: tuple[int, int] = (0, 0),
) -> bool:
    return bool(torch.ops.flycc.scale_guard(a, b, list(astuple(bounds)), list(blocks), product))


def span(*bytes_: int) -> torch.Tensor:
    return torch.ops.flycc.scale_range(torch.tensor(bytes_, dtype=torch.uint8).view(torch.float8_e8m0fnu))


@settings(deadline=None, max_examples=100)
@given(
    st.lists(BYTES, min_size=1, max_size=4),
    st.lists(BYTES, min_size=1, max_size=4),
    st.lists(st.sampled_from([0, 0, 0, 1]), min_size=7, max_size=7),
)
def test_verdict_is_that_of_every_pair_of_bytes(a: list[int], b: list[int], closer: list[int]) -> None:
    """Each bound is just met, or missed by one."""
    sums = [x + y for x in a for y in b]
    ends = (min(a), -max(a), min(b), -max(b), min(sums), -max(sums), min(sums) - max(sums))
    limits = [abs(end + step) for end, step in zip(ends, closer, strict=True)]
    bounds = Bounds(*limits)
    low_a, high_a, low_b, high_b, low, high, spread = limits
    each = all(low_a <= x <= high_a and low_b <= y <= high_b and low <= x + y <= high for x in a for y in b)
    assert guard(span(*a), span(*b), bounds) == (each and max(sums) - min(sums) <= spread)


def test_bytes_of_nan_do_not_count() -> None:
    bounds = Bounds(a_min=100, a_max=130, b_min=100, b_max=130, spread=2)
    assert guard(span(120, 255, 122), span(127), bounds)
    assert not guard(span(120, 255, 123), span(127), bounds)


def test_an_operand_without_scales_counts_as_ones() -> None:
    assert guard(None, span(100, 101), Bounds(a_min=127, a_max=127, sum_min=227, sum_max=228))
    assert not guard(None, span(100, 101), Bounds(sum_max=227))


def test_listeners_hear_of_verdicts_while_they_listen() -> None:
    seen: list[scale_guard.Verdict] = []
    with scale_guard.listening(seen.append):
        guard(span(1, 255), span(3, 5), Bounds(a_max=0), "mm_1")
    guard(span(1), span(3), Bounds())
    assert seen == [scale_guard.Verdict("mm_1", Range(1, 1, True), Range(3, 5), 2, ("a <= 0",))]
    assert not seen[0].holds


def test_range_is_that_of_the_theory() -> None:
    bytes_ = torch.randint(0, 256, (5, 7), dtype=torch.uint8)
    low, high, nan = torch.ops.flycc.scale_range(bytes_.view(torch.float8_e8m0fnu)).tolist()
    assert Range(low, high, bool(nan)) == scan(bytes(bytes_.numpy().tobytes()))


def test_spread_is_that_of_rows_where_they_are_known() -> None:
    """Rows far apart from one another, each of near scales: no result meets scales that are far apart."""
    rows = torch.tensor([[120, 121, 255], [140, 138, 139], [255, 255, 255]], dtype=torch.uint8)
    weight = rows.view(torch.float8_e8m0fnu)
    assert guard(weight, span(127, 128), Bounds(spread=3), blocks=(3, 0))
    assert not guard(weight, span(127, 128), Bounds(spread=2), blocks=(3, 0))
    assert not guard(weight, span(127, 128), Bounds(spread=3))
    assert guard(weight, span(127, 128), Bounds(spread=1), blocks=(1, 0))
    assert guard(weight, span(127, 128), Bounds(spread=0), blocks=(1, 1))


def test_range_of_a_weight_is_read_once_and_after_each_write(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Range] = []
    numbers = scale_guard._numbers
    monkeypatch.setattr(scale_guard, "_numbers", lambda range_: read.append(numbers(range_)) or read[-1])
    bytes_ = torch.tensor([120, 122], dtype=torch.uint8)
    weight = bytes_.view(torch.float8_e8m0fnu)
    bounds = Bounds(a_max=125)
    assert [guard(weight, None, bounds) for _ in range(3)] == [True] * 3
    bytes_[0] = 130
    assert not guard(weight, None, bounds)
    assert read == [Range(120, 122), Range(122, 130)]


@pytest.mark.parametrize(
    ("a", "bounds", "message"),
    [
        (torch.zeros(3), [0] * 7, r"a is torch.float32 \[3\]; a range, int32 \[3\], or scales of float8"),
        (torch.zeros(2, dtype=torch.int32), [0] * 7, r"a is torch.int32 \[2\]; a range"),
        (None, [0] * 6, "bounds are 6 numbers; 7 are accepted"),
    ],
)
def test_bad_arguments_are_named(a: torch.Tensor | None, bounds: list[int], message: str) -> None:
    with pytest.raises(RuntimeError, match=f"flycc::scale_guard: {message}"):
        torch.ops.flycc.scale_guard(a, None, bounds, [0, 0], "mm")


def test_operator_is_sound_for_tracing() -> None:
    torch.library.opcheck(
        torch.ops.flycc.scale_guard.default, (span(1, 2), None, list(astuple(Bounds())), [0, 0], "mm")
    )
