"""Predictions: against closed forms, bounds that hold whatever the details, and their own bookkeeping."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from gemm_traces import gemm_trace
from micro import trace

from flycc.costmodel import MI350, Reuse, predict, timeline
from flycc.costmodel.loops import shorten
from flycc.costmodel.streams import programs
from flycc.emulator.isa.registers import UNITS
from flycc.emulator.trace import Trace
from flycc.kernels.gemm.config import GemmConfig

SMALL = GemmConfig(64, 64, 64, waves_m=2, waves_n=2)
MFMA = "v_mfma_f32_16x16x32_bf16 v[24:27], v[40:43], v[44:47], v[24:27]"


@pytest.fixture(scope="module")
def product() -> Trace:
    """512 workgroups of 24 turns."""
    return gemm_trace(1024, 2048, 1536, SMALL)


def test_matrix_instructions_alone() -> None:
    """n MFMAs of 16 clk on every SIMD, after 720 clk, at 2.4 GHz less what their activity costs."""
    n = 400
    found = predict(trace([MFMA] * n, waves=4, grid=256))
    clk = 720 + n * 16
    busy = n * 16 / clk
    power = 2.4 * (0.37 / busy) ** (1 / 3)
    expected = {"power-limited": clk / power / 1e3, "operand-limited": clk / 2.4 / 1e3}
    assert found.by_hypothesis == pytest.approx(expected, rel=0.01)
    assert found.flops == 2 * 16 * 16 * 32 * n * 4 * 256
    assert found.utilisation["mfma"] == pytest.approx(busy, rel=0.01)
    assert found.device_us.low == pytest.approx(0.9 * min(found.by_hypothesis.values()))
    assert found.device_us.high == pytest.approx(1.1 * max(found.by_hypothesis.values()))


def test_rounds_and_tail() -> None:
    """257 workgroups that fill a compute unit's LDS take as long as 512, and half of that is tail."""
    lines = [MFMA] * 400
    times = {
        grid: predict(trace(lines, waves=4, grid=1, lds=160 * 1024), (grid, 1, 1)) for grid in (256, 257, 512)
    }
    assert times[257].rounds == times[512].rounds == 2
    assert times[257].device_us.typical == pytest.approx(times[512].device_us.typical, rel=0.25)
    assert times[512].clk - times[256].clk == pytest.approx(400 * 16 + MI350.wave_restart_clk, rel=0.01)
    assert times[257].breakdown["tail"] == pytest.approx(
        (1 - 257 / 512) * (1 - times[257].breakdown["launch"])
    )
    assert times[512].breakdown["tail"] == 0


def test_breakdown_and_instructions_account_for_everything(product: Trace) -> None:
    found = predict(product)
    assert sum(found.breakdown.values()) == pytest.approx(1)
    assert min(found.breakdown.values()) >= 0
    assert {cost.unit for cost in found.by_instruction} <= set(UNITS)
    loop = max(found.by_loop, key=lambda loop: loop.share)
    assert loop.iterations == pytest.approx(1536 / 64)
    inside = [c for c in found.by_instruction if loop.first <= c.address <= loop.last]
    total = sum(c.issue_clk + c.stall_clk for c in found.by_instruction)
    assert sum(c.issue_clk + c.stall_clk for c in inside) == pytest.approx(loop.share * total)
    assert found.flops == 2 * 1024 * 2048 * 1536
    assert json.loads(json.dumps(found.to_json()))["time"]["typical"] == found.time.typical
    assert str(found.time).startswith("modelled ")


def test_bounds_that_always_hold(product: Trace) -> None:
    found = predict(product)
    peak = (
        512 * 2 * MI350.simds_per_cu * MI350.cus * 2.4 / 1e3
    )  # TFLOP/s of bf16 at 512 multiply-adds a clk and SIMD
    for us in found.by_hypothesis.values():
        assert found.flops / us / 1e6 <= peak
        assert found.bytes["hbm"] / us / 1e6 <= MI350.hbm_tb_s
        assert found.bytes["mall"] / us / 1e6 <= MI350.mall_tb_s
    operand = next(h for h in MI350.hypotheses if h.name == "operand-limited")
    assert found.bytes["l2"] / found.by_hypothesis[operand.name] / 1e6 <= operand.operand_tb_s


@pytest.mark.parametrize("grid", [1024, 4096, 16384])
@pytest.mark.parametrize("waits", [False, True])
def test_stores_and_loads_never_outrun_memory(grid: int, waits: bool) -> None:
    """However many rounds: loads that nobody waits for and stores move no faster than HBM, nor 20 % slower beyond a
    compute unit's start and the 1,892 clk of its first load."""
    head = ["s_load_dwordx2 s[4:5], s[0:1], 0x0", "v_lshlrev_b32 v10, 4, v0", "s_waitcnt lgkmcnt(0)"]
    store, load = "global_store_dwordx4 v10, v[12:15], s[4:5]", "global_load_dwordx4 v[12:15], v10, s[4:5]"
    wait = ["s_waitcnt vmcnt(0)"] if waits else []
    fresh = Reuse(0, 0)  # all of it from HBM
    for body in ([store] * 4, [load], [load, store]):
        found = predict(trace([*head, *body, *wait], waves=4), (grid, 1, 1), reuse=fresh)
        least = (found.bytes["hbm"] + found.bytes["store"]) / MI350.hbm_tb_s / 1e6
        assert min(found.by_hypothesis.values()) >= least
        assert max(found.utilisation.values()) <= 1
        if not waits:
            assert max(found.by_hypothesis.values()) <= 1.2 * least + (1892 + 720 + 32 * 14) / 2.4e3


def test_turns_left_out_do_not_matter() -> None:
    """A few turns carried on against all of them. The pace differs between turns by what bursts of the two resident
    workgroups meet, a few clk of some thousand: 2 % is well beyond that and well below the model's own error."""
    product = gemm_trace(1024, 2048, 6144, SMALL)
    few = predict(product)
    made = programs(product, MI350, 2)
    assert shorten(made, MI350) is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flycc.costmodel.launch.shorten", lambda *_: None)
        everything = predict(product)
    assert few.by_hypothesis == pytest.approx(everything.by_hypothesis, rel=0.02)
    assert few.bytes == pytest.approx(everything.bytes)
    assert few.flops == everything.flops


def test_a_trace_of_a_smaller_problem() -> None:
    """K = 1,024 with as many turns as K = 4,096 has."""
    small, large = gemm_trace(512, 512, 1024, SMALL), gemm_trace(512, 512, 4096, SMALL)
    stands_for, itself = predict(small, turns=64), predict(large)
    assert stands_for.by_hypothesis == pytest.approx(itself.by_hypothesis, rel=0.02)
    assert stands_for.flops == itself.flops
    assert stands_for.bytes == pytest.approx(itself.bytes, rel=0.01)
    assert stands_for.by_loop[0].iterations == pytest.approx(itself.by_loop[0].iterations)


def test_slower_memory_and_smaller_shares_take_longer(product: Trace) -> None:
    shares = [Reuse(1, 1), Reuse(0.8, 1), Reuse(0.8, 0), Reuse(0, 0)]
    times = [predict(product, reuse=share).device_us.typical for share in shares]
    assert times == sorted(times)
    assert times[-1] > 1.2 * times[0]
    slow = replace(MI350, mall_tb_s=1.0)
    assert predict(product, machine=slow).device_us.typical > predict(product).device_us.typical


def test_floors(product: Trace) -> None:
    short = trace(["s_nop 3"])
    times = {floor: predict(short, floor=floor).time for floor in ("graph", "compile", "eager")}
    # [S] the shortest kernels take 1.9 to 3.5 us, an eager operator about 18.
    assert times["graph"].low <= 1.9 <= times["graph"].typical <= 3.5 <= times["graph"].high
    assert times["graph"].typical < times["compile"].typical < times["eager"].typical == 18
    assert times["eager"].low < 18 < times["eager"].high
    long = (64, 64, 1)  # hides the host's time
    assert predict(product, long, floor="eager").time == predict(product, long, floor="graph").time


def test_timeline_obeys_the_machine(product: Trace) -> None:
    """Waves in order; no unit of a SIMD taken twice in a slot; MFMAs of a SIMD one after another."""
    events = timeline(product)
    slots, matrix, waves = defaultdict(list), defaultdict(list), defaultdict(list)
    for event in events:
        unit = UNITS[product.instructions["unit"][event.instruction]]
        assert event.ready <= event.issue < event.end or unit == "SYNC"
        waves[event.group, event.wave].append(event)
        if unit != "SYNC":
            slots[event.simd, unit, event.issue // 4].append(event)
        if unit == "MFMA":
            matrix[event.simd].append((event.issue, event.end))
    assert all(len(taken) == 1 for taken in slots.values())
    for spans in matrix.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    stream = [len(product.stream(w)) for w in range(4)]
    for (_, wave), mine in waves.items():
        issues = [e.issue for e in mine]
        assert issues == sorted(issues)
        assert len(mine) == stream[wave]


def test_edges_cost_what_their_workgroups_do() -> None:
    """The last workgroup of a grid whose sizes do not divide stands for the edges only."""
    even, odd = gemm_trace(512, 512, 512, SMALL), gemm_trace(449, 449, 512, SMALL)
    assert even.info["grid"] == odd.info["grid"]
    assert predict(odd).device_us.typical == pytest.approx(predict(even).device_us.typical, rel=0.2)


def test_refusals(product: Trace) -> None:
    with pytest.raises(ValueError, match="floor: got 'host'; graph, compile and eager are accepted"):
        predict(product, floor="host")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"turns: got 7; .* these make different ones, or none"):
        predict(trace(["s_nop 3"]), turns=7)
    with pytest.raises(ValueError, match=r"turns: got 7; .* these make 24"):
        predict(product, turns=7)
    empty = replace(product, waves=product.waves[:0])
    with pytest.raises(ValueError, match="holds no waves"):
        predict(empty)


def test_deterministic(product: Trace) -> None:
    assert predict(product) == predict(product)


def test_lines_are_counted_once_each_by_program(product: Trace) -> None:
    """A 64x64 tile over K = 1,536: 128 rows of 3 KiB, all of it fresh once."""
    made = programs(product, MI350, 2)[0]
    assert made.level_bytes["fresh"] == 128 * 1536 * 2 == made.lines.size * 128
    assert made.level_bytes["store"] == 64 * 64 * 2
    assert np.all(np.diff(made.lines.astype(np.int64)) > 0)


def test_lds_that_was_left_out_is_noted() -> None:
    """Reads at 4,096 to 4,352 bytes reach nothing in a workgroup with 256."""
    lines = ["v_lshlrev_b32 v10, 2, v0", "ds_read_b32 v11, v10 offset:4096"]
    assert any("within the 256 bytes given" in note for note in predict(trace(lines, lds=256)).notes)
    assert not any("bytes given" in note for note in predict(trace(lines, lds=8192)).notes)
