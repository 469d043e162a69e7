"""Loops that are carried on must take what the whole trace takes, and so must those that are not."""

from __future__ import annotations

import pytest
from micro import loop, now_and_then, trace, words

from flycc.costmodel import MI350, Prediction, loop_turns, predict
from flycc.costmodel.loops import shorten
from flycc.costmodel.streams import programs
from flycc.emulator.trace import Trace

HEAD = ["s_load_dwordx2 s[4:5], s[0:1], 0x0", "v_lshlrev_b32 v10, 4, v0", "s_waitcnt lgkmcnt(0)"]
LOAD = "global_load_dwordx4 v[12:15], v10, s[4:5]"
EXP = ["v_exp_f32 v6, v7"] * 40
VALU = "v_add_f32 v1, v1, v1"
CASES = {
    "heavy every 16th turn": now_and_then(16, EXP),
    "heavy every 64th turn": now_and_then(64, EXP),
    "a line every third turn or so": [LOAD, "v_add_u32 v10, 40, v10", "s_waitcnt vmcnt(0)"],
    "20 loads outstanding": [LOAD, "v_add_u32 v10, 0x400, v10", "s_waitcnt vmcnt(20)"],
    "loads that nobody waits for": [LOAD, "v_add_u32 v10, 0x400, v10"],
    "conflicting LDS writes that nobody waits for": ["ds_write_b32 v10, v1"] * 3,
}


def both(traced: Trace) -> tuple[Prediction, Prediction]:
    """As it is, and with nothing left out."""
    few = predict(traced)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flycc.costmodel.launch.shorten", lambda *_: None)
        return few, predict(traced)


@pytest.mark.parametrize("body", CASES.values(), ids=CASES)
@pytest.mark.parametrize("waves", [1, 4])
def test_turns_left_out_do_not_matter(body: list[str], waves: int) -> None:
    """Two stretches may differ by 3 %; what is carried on from them is no further off."""
    few, whole = both(trace([*HEAD, "s_movk_i32 s20, 200", *loop(body)], waves=waves, grid=64))
    assert few.clk == pytest.approx(whole.clk, rel=0.03)
    assert few.bytes == pytest.approx(whole.bytes, rel=0.03)
    assert max(few.utilisation.values()) <= 1
    assert max(whole.utilisation.values()) <= 1


@pytest.mark.parametrize(
    ("body", "some"), [([VALU] * 8, True), (now_and_then(4, EXP), True), (now_and_then(64, EXP), False)]
)
def test_turns_are_left_out_where_they_repeat(body: list[str], some: bool) -> None:
    made = programs(trace(["s_movk_i32 s20, 100", *loop(body)]), MI350, 1)
    assert (shorten(made, MI350) is not None) == some


def test_a_trace_that_does_not_show_the_pace_says_so() -> None:
    """20 turns do not fill 20 places for loads: what 200 turns would take is a guess."""
    short = trace([*HEAD, "s_movk_i32 s20, 20", *loop(CASES["20 loads outstanding"])], waves=4, grid=64)
    assert any("not steady" in note for note in predict(short, turns=200).notes)
    steady = trace(["s_movk_i32 s20, 20", *loop([VALU] * 8)])
    assert not any("steady" in note for note in predict(steady, turns=200).notes)


def tiles(count: int, turns: int, body: list[str], between: list[str]) -> list[str]:
    """A loop of so many turns, and what stands after it, `count` times."""
    tile = [f"s_movk_i32 s20, {turns}", *loop(body), *between, "s_sub_u32 s21, s21, 1", "s_cmp_lg_u32 s21, 0"]
    return [f"s_movk_i32 s21, {count}", *tile, f"s_cbranch_scc1 {-words(tile) - 1}"]


@pytest.mark.parametrize(
    ("case", "waves"), [("20 loads outstanding", 1), ("a line every third turn or so", 4)]
)
def test_a_loop_that_is_come_to_once_for_each_tile(case: str, waves: int) -> None:
    """Turns are left out of each time, and a trace of fewer turns, 50, stands for 110: within 3 %, as do
    its bytes. The turns that loop_turns counts are those."""
    short, long = (
        trace([*HEAD, *tiles(3, turns, CASES[case], EXP)], waves=waves, grid=64) for turns in (50, 110)
    )
    made = shorten(programs(long, MI350, 1), MI350)
    assert made is not None
    assert made.long[0].ops < programs(long, MI350, 1)[0].ops / 2
    few, whole = both(long)
    assert few.clk == pytest.approx(whole.clk, rel=0.03)
    assert (loop_turns(short), loop_turns(long)) == (50, 110)
    carried_on = predict(short, turns=110)
    assert not any("steady" in note for note in carried_on.notes)
    assert carried_on.clk == pytest.approx(whole.clk, rel=0.03)
    assert carried_on.bytes["store"] == whole.bytes["store"]
    assert carried_on.bytes["l2"] == pytest.approx(whole.bytes["l2"], rel=0.03)


def test_the_loop_around_is_the_longest_where_it_turns_often_enough() -> None:
    """60 tiles of 3 turns: whole tiles are left out, unless `turns` says that the loop inside is short of some."""
    traced = trace(tiles(60, 3, [VALU] * 8, EXP))
    made = shorten(programs(traced, MI350, 1), MI350)
    assert made is not None
    assert made.left > 0
    few, whole = both(traced)
    assert few.clk == pytest.approx(whole.clk, rel=0.03)
    with pytest.raises(ValueError, match="turns: got 9"):
        predict(traced, turns=9)  # 3 turns are too few to see a pace


def test_turns_that_differ_from_tile_to_tile_are_not_counted() -> None:
    first, second = (tiles(1, turns, [VALU] * 8, EXP) for turns in (20, 30))
    assert loop_turns(trace(first)) == 20
    assert loop_turns(trace(["s_movk_i32 s22, 1", *first, *second])) in (
        20,
        30,
    )  # two loops: the longest counts
    assert loop_turns(trace(["s_movk_i32 s20, 1"])) is None
