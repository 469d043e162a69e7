"""Workgroups that differ: a launch ends with the slowest one, wherever it stands in the grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from micro import loop, trace

from flycc.costmodel import MI350, Prediction, neighbours, predict, representative
from flycc.costmodel.dispatch import Dispatch
from flycc.costmodel.streams import programs
from flycc.emulator.trace import Trace

EXP = "v_exp_f32 v6, v7"  # 16 clk of the VALU
BODY = [EXP] * 10
TURN = (
    9 * 16 + 4 + 2 * 4 + MI350.branch_taken_clk
)  # clk of a turn of one wave: of the last EXP the issue only
TURNS = 300
START = MI350.wave_start_clk + MI350.dispatch_clk * MI350.cus_per_xcd


def split(first_slow: int) -> list[str]:
    """Workgroups from that one on make TURNS turns, those before make 1."""
    turns = [f"s_movk_i32 s21, {TURNS}", "s_movk_i32 s22, 1", f"s_movk_i32 s23, {first_slow}"]
    return [*turns, "s_cmp_ge_u32 s2, s23", "s_cselect_b32 s20, s21, s22", *loop(BODY)]


def growing() -> list[str]:
    """Workgroup n makes n + 1 turns, as in a causal mask."""
    return ["s_add_u32 s20, s2, 1", *loop(BODY)]


def traced(lines: list[str], grid: int) -> Trace:
    return trace(lines, grid=grid, workgroups=[x for x, _, _ in neighbours((grid, 1, 1))])


@pytest.mark.parametrize(("grid", "first_slow"), [(100, 99), (200, 100), (200, 0)])
def test_one_round_lasts_as_long_as_its_slowest(grid: int, first_slow: int) -> None:
    found = predict(traced(split(first_slow), grid))
    assert found.clk == pytest.approx(TURNS * TURN + MI350.wave_start_clk, rel=0.01)


def test_half_of_many_slow() -> None:
    """4,096 workgroups, 16 on each compute unit: its vector units execute the instructions of 8 slow ones, two on each
    SIMD if they are spread well and four if not. The traced ones tell where the slow half begins within 2 %."""
    found = predict(traced(split(2048), 4096))
    vector = TURNS * 10 * 16
    assert 2 * vector * 0.98 <= found.clk <= 4 * TURNS * TURN * 1.02 + START
    assert any("differs" in note and "4087 untraced" in note for note in found.notes)


def test_work_that_grows_with_the_number() -> None:
    few, every = predict(traced(growing(), 256)), predict(trace(growing(), grid=256))
    assert every.clk == pytest.approx(256 * TURN + MI350.wave_start_clk, rel=0.01)
    assert few.clk == pytest.approx(every.clk, rel=0.01)


def test_work_that_grows_over_several_rounds() -> None:
    """What is not traced is taken from both ends: 1,024 workgroups of 1 to 1,024 turns, 512.5 on average, and all of
    them traced agree within 25 %. No launch is shorter than its slowest workgroup."""
    few, every = predict(traced(growing(), 1024)), predict(trace(growing(), grid=1024))
    assert few.clk == pytest.approx(every.clk, rel=0.25)
    assert min(few.clk, every.clk) >= 1024 * TURN


def test_the_order_of_the_trace_does_not_matter() -> None:
    """The same launch with its waves in another order gives the same prediction."""
    rng = np.random.default_rng(seed := np.random.SeedSequence().entropy)
    whole = traced(growing(), 300)
    order = rng.permutation(len(whole.waves))  # new place -> old place
    place = np.argsort(order)
    accesses = whole.accesses.copy()
    accesses["wave"] = place[accesses["wave"]]
    mixed = replace(
        whole, waves=whole.waves[order], set_waves=place[whole.set_waves].astype("<u4"), accesses=accesses
    )
    assert predict(mixed) == predict(whole), f"seed {seed}"


def test_every_workgroup_goes_to_a_compute_unit() -> None:
    """1,000 workgroups, some slow, are given out once each. In an XCD, where each goes to who has room first, nobody
    ends later than the mean and one workgroup more."""
    lines = split(1)
    made = programs(trace(lines, grid=2), MI350, 4)
    dispatch = Dispatch(made, (1000, 1, 1), 1, MI350)
    dealt = dispatch.schedule
    assert np.bincount(dealt.cu, minlength=MI350.cus).sum() == 1000
    per_xcd = dealt.ends.reshape(MI350.xcds, -1)
    each = [dispatch.work[min(number, 1)] for number in range(1000)]
    work = np.bincount(dealt.cu, each, MI350.cus).reshape(MI350.xcds, -1)
    assert per_xcd == pytest.approx(work)  # one at a time
    assert np.all(per_xcd.max(axis=1) <= work.mean(axis=1) + max(dispatch.work.values()))


@pytest.mark.parametrize(
    "grid", [(0, 1, 1), (-1, 1, 1), (5,), (1, 1), (2.5, 1, 1), (1 << 31, 1, 1), (1 << 30, 2, 1), 7]
)
def test_grids_that_are_none(grid: object) -> None:
    with pytest.raises(ValueError, match=r"grid: got .*; three whole numbers from 1 on"):
        predict(trace(["s_nop 3"]), grid)  # type: ignore[arg-type]


def test_the_largest_grid() -> None:
    """2^31 - 1 workgroups of nothing, 100 clk and 14 of dispatch after one another in 16 places."""
    found: Prediction = predict(trace(["s_nop 3"]), ((1 << 31) - 1, 1, 1))
    assert found.workgroups == (1 << 31) - 1
    assert found.clk > (1 << 31) / MI350.cus / 32 * MI350.wave_restart_clk


def known(lines: list[str], lengths: list[int], lds: int = 32768) -> Prediction:
    """From a few traced workgroups and the lengths of all."""
    some = trace(lines, grid=len(lengths), workgroups=representative(lengths), lds=lds)
    return predict(some, lengths=lengths)


@pytest.mark.parametrize(
    ("grid", "lds", "within"), [(256, 32768, 0.0), (512, 160 * 1024, 0.0), (1024, 32768, 0.03)]
)
def test_lengths_give_what_all_workgroups_traced_give(grid: int, lds: int, within: float) -> None:
    """To the clock where a compute unit has one workgroup at a time; within 3 % where four share it unequally."""
    few, every = (
        known(growing(), list(range(1, grid + 1)), lds),
        predict(trace(growing(), grid=grid, lds=lds)),
    )
    assert few.clk == pytest.approx(every.clk, rel=within)
    assert any("within 0.0%" in note for note in few.notes)


def test_equal_lengths_are_no_lengths() -> None:
    lines = ["s_movk_i32 s20, 30", *loop(BODY)]
    whole = traced(lines, 700)
    assert predict(whole, lengths=[30] * 700) == predict(whole)


@pytest.mark.parametrize(("of_fourth", "straight"), [(4, True), (6, False)])
def test_what_a_line_misses_is_added_to_the_interval(of_fourth: int, straight: bool) -> None:
    """1, 4 and 8 turns are linear in lengths 1, 4 and 8, and not in 1, 6 and 8."""
    lengths = [1, 2, 3, of_fourth, 7, 7, 8, 8]
    found = predict(trace(growing(), grid=8, workgroups=[0, 3, 7]), lengths=lengths)
    below = 1 - found.device_us.low / min(found.by_hypothesis.values())
    above = found.device_us.high / max(found.by_hypothesis.values()) - 1
    assert below == pytest.approx(above)
    assert above == pytest.approx(0.1) if straight else above > 0.15


@pytest.mark.parametrize("lengths", [[1, 2], [1, 2, 3, -1], [1.0, 2.0, 3.0, 4.0], [[1, 2], [3, 4]]])
def test_lengths_that_are_none(lengths: list) -> None:
    with pytest.raises(ValueError, match=r"lengths: got .* for each of the 4 workgroups"):
        predict(trace(growing(), grid=4), lengths=lengths)


def test_lengths_that_do_not_apply() -> None:
    with pytest.raises(ValueError, match="all of length 3"):
        predict(trace(growing(), grid=4, workgroups=[2]), lengths=[1, 2, 3, 4])
    with pytest.raises(ValueError, match="one of the two"):
        predict(trace(growing(), grid=4), lengths=[1, 2, 3, 4], turns=5)


@pytest.mark.parametrize(
    ("lengths", "chosen"),
    [
        ([7, 7, 7], [7]),
        ([2, 4], [2, 4]),
        (range(128, 0, -4), [4, 20, 64]),
        (range(1, 11), [1, 3, 10]),
        ([100, 90, 80, 110], [80, 90, 100]),
        ([3, 200], [3, 200]),
        ([2, 60, 62], [2, 60, 62]),
    ],
)
def test_those_to_trace(lengths: Sequence[int], chosen: list[int]) -> None:
    assert [lengths[number] for number in representative(list(lengths))] == chosen
