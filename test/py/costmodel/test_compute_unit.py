"""The compute unit against documented and measured latencies and rates (clk): each test states its source.

[S] a public source, [M] measured: docs/costmodel.md lists them.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from micro import PLENTY, TABLE, run, table

from flycc.costmodel.machine import MI350

MFMA_BF16 = "v_mfma_f32_16x16x32_bf16 v[20:23], v[40:43], v[44:47], v[20:23]"
OTHER_MFMA = "v_mfma_f32_16x16x32_bf16 v[24:27], v[40:43], v[44:47], v[24:27]"
VALU = "v_add_f32 v1, v1, v1"
LOADS = ["s_load_dwordx2 s[4:5], s[0:1], 0x0", "v_lshlrev_b32 v10, 4, v0", "s_waitcnt lgkmcnt(0)"]


def gaps(issues: list[int]) -> set[int]:
    return set(np.diff(issues).tolist())


@pytest.mark.skipif(shutil.which("llvm-mc-22") is None, reason="needs llvm-mc-22")
def test_recorded_words_are_llvms() -> None:
    texts = table()
    command = ["llvm-mc-22", "--triple=amdgcn", "--mcpu=gfx950", "--show-encoding"]
    shown = subprocess.run(command, input="\n".join(texts), text=True, capture_output=True, check=True).stdout
    encodings = [
        line.split("encoding: [")[1].split("]")[0] for line in shown.splitlines() if "encoding:" in line
    ]
    assert len(encodings) == len(texts), TABLE
    assert [bytes(int(byte, 16) for byte in e.split(",")) for e in encodings] == list(texts.values())


def test_dependent_vector_instructions_issue_every_4_clk() -> None:
    """[M] a chain of dependent VALU instructions: 4 clk each."""
    assert gaps(run([VALU] * 50).issues("v_add")) == {4}


@pytest.mark.parametrize(
    ("text", "clk"), [("v_exp_f32 v6, v7", 16), ("v_mul_lo_u32 v8, v8, v9", 16), ("s_add_u32 s4, s4, s5", 4)]
)
def test_rates(text: str, clk: int) -> None:
    """[S] transcendentals and 32-bit products run at a quarter of the rate."""
    assert gaps(run([text] * 20).issues(text.split()[0])) == {clk}


@pytest.mark.parametrize(
    ("text", "clk"),
    [
        (MFMA_BF16, 16),
        ("v_mfma_f32_32x32x16_bf16 v[64:79], v[40:43], v[44:47], v[64:79]", 32),
        ("v_mfma_f32_16x16x16_bf16 v[20:23], v[40:41], v[44:45], v[20:23]", 16),
        ("v_mfma_f32_16x16x128_f8f6f4 v[20:23], v[40:47], v[48:55], v[20:23]", 32),
        ("v_mfma_f32_16x16x128_f8f6f4 v[20:23], v[40:47], v[48:51], v[20:23] blgp:4", 32),
        ("v_mfma_f32_16x16x128_f8f6f4 v[20:23], v[40:43], v[48:51], v[20:23] cbsz:4 blgp:4", 16),
        ("v_mfma_f32_32x32x64_f8f6f4 v[64:79], v[40:47], v[48:55], v[64:79]", 64),
        ("v_mfma_f32_32x32x64_f8f6f4 v[64:79], v[40:45], v[48:53], v[64:79] cbsz:2 blgp:2", 32),
        (
            "v_mfma_scale_f32_16x16x128_f8f6f4 v[20:23], v[40:43], v[48:51], v[20:23], v56, v57 "
            "op_sel_hi:[0,0,0] cbsz:4 blgp:4",
            16,
        ),
    ],
)
def test_mfma_occupancy(text: str, clk: int) -> None:
    """[S] clk of the matrix pipe by shape and formats; accumulating in place is forwarded and costs no more."""
    done = run([text] * 12)
    assert gaps(done.issues("v_mfma")) == {clk}
    assert done.timing.mfma_busy == 2 * 12 * clk  # of both workgroups


@pytest.mark.parametrize(
    ("user", "clk"),
    [
        ("v_add_f32 v5, v20, v20", 16 + 12),  # VALU reads the result
        ("v_mfma_f32_16x16x32_bf16 v[32:35], v[20:23], v[44:47], v[32:35]", 16 + 12),  # as A
        ("v_mfma_f32_16x16x32_bf16 v[28:31], v[40:43], v[44:47], v[20:23]", 16),  # as C: forwarded
        (OTHER_MFMA, 16),  # independent
        (VALU, 4),  # independent VALU
    ],
)
def test_mfma_to_user(user: str, clk: int) -> None:
    """[S] passes (16 clk) + 3 states of 4 clk from an MFMA to a user of its result other than as C."""
    matrix, use = run([MFMA_BF16, user]).timing.events[:2]
    assert use.issue - matrix.issue == clk


def test_mfma_and_valu_of_different_waves_overlap() -> None:
    """Waves 0 and 4 share SIMD 0; one multiplies matrices, all run the same code, so each does half of each unit."""
    matrix, vector = [OTHER_MFMA] * 40, [VALU] * 160
    alone = run(matrix + vector, waves=4).timing.clk
    together = run(matrix + vector, waves=8).timing.clk
    startup = MI350.wave_start_clk + MI350.wave_restart_clk
    work = 40 * 16 + 160 * 4  # clk of one wave
    assert alone - startup >= 2 * (work - 16)  # of the last MFMA only the issue is waited for
    # Wave 4's matrices overlap with wave 0's vectors: three quarters of what one after the other would take.
    assert together - startup <= 0.80 * 2 * (alone - startup)


@pytest.mark.parametrize(
    ("shift", "read", "mask", "clk"),
    [
        (4, "ds_read_b128 v[12:15], v10", None, 56),  # [S]
        (4, "ds_read_b128 v[12:15], v10", "s_mov_b64 exec, 0xffff", 32),  # [M]
        (3, "ds_read_b64 v[12:13], v10", None, 40),  # [S]
        (2, "ds_read_b32 v11, v10", None, 40),  # [S]
        (8, "ds_read_b32 v11, v10", None, 40 + 63),  # all 64 lanes want bank 0
        (7, "ds_read_b32 v11, v10", None, 40 + 31),  # 32 dwords apart: two banks
    ],
)
def test_lds_latency(shift: int, read: str, mask: str | None, clk: int) -> None:
    """From a read's issue to its use behind s_waitcnt, which itself takes a slot of 4 clk."""
    lines = [f"v_lshlrev_b32 v10, {shift}, v0", *([mask] if mask else []), "s_nop 3", read]
    lines += ["s_waitcnt lgkmcnt(0)", VALU]
    done = run(lines)
    waited = done.issues("v_add")[0] - done.issues("ds_read")[0]
    assert waited == -(-clk // 4) * 4 + 4


def test_lds_reads_at_256_bytes_a_clock() -> None:
    """[S] 64 banks of 4 bytes: four waves of four SIMDs reading 16 bytes a lane get 1024 bytes each 4 clk."""
    lines = ["v_lshlrev_b32 v10, 4, v0", *["ds_read_b128 v[12:15], v10"] * 200]
    done = run(lines, waves=4)
    reads = [e for e in done.timing.events if done.name(e).startswith("ds_read")]
    span = max(e.end for e in reads) - min(e.issue for e in reads)
    bytes_read = 4 * 200 * 64 * 16
    assert 0.95 * 256 <= bytes_read / span <= 256


def test_no_lds_instruction_in_the_slot_after_an_mfma() -> None:
    done = run(["v_lshlrev_b32 v10, 2, v0", MFMA_BF16, "ds_read_b32 v11, v10"])
    assert done.issues("ds_read")[0] - done.issues("v_mfma")[0] == 8


def test_cold_start() -> None:
    """[M] first instruction 720 clk after the wave starts, cold scalar load 768, cold global load 1,892."""
    done = run([*LOADS, "global_load_dword v11, v10, s[4:5]", "s_waitcnt vmcnt(0)", VALU], warm=False)
    assert done.timing.events[0].issue == 720
    assert 768 <= done.issues("v_lshlrev")[0] + done.issues("global")[0] - done.issues("s_load")[0] <= 768 + 8
    assert 1892 <= done.issues("v_add")[0] - done.issues("global")[0] <= 1892 + 8


def test_l1_and_beyond() -> None:
    """The first load of a line waits for L2, the next one of the same line for L1."""
    load = "global_load_dword v11, v10, s[4:5]"
    done = run([*LOADS, load, "s_waitcnt vmcnt(0)", load, "s_waitcnt vmcnt(0)", VALU])
    first, second = done.issues("global")
    use = done.issues("v_add")[0]
    # 64 lanes 16 bytes apart: 8 lines, one clk each; the link brings 8 lines at 64 bytes a clk.
    assert second - first == pytest.approx(MI350.l2_hit_clk + 8 * 128 / 64, abs=8)
    assert use - second == pytest.approx(MI350.l1_hit_clk + 8, abs=8)


def test_wait_counts_in_order() -> None:
    """vmcnt(1) waits for the older of two loads; they complete in order, one kilobyte of L1's bus apart."""
    first, second = (
        "global_load_dwordx4 v[12:15], v10, s[4:5]",
        "global_load_dwordx4 v[12:15], v10, s[4:5] offset:2048",
    )
    done = run([*LOADS, first, second, "s_waitcnt vmcnt(1)", VALU, "s_waitcnt vmcnt(0)", VALU])
    older, newer = done.issues("v_add")
    assert newer - older == 64 * 16 // MI350.l1_bytes_per_clk


def test_barrier_waits_for_the_last_wave() -> None:
    """All four waves leave together, 8 clk [S] after the one that is late, which waits for nobody."""
    late = ["s_waitcnt lgkmcnt(0)", "s_barrier", VALU]
    lines = ["v_lshlrev_b32 v10, 4, v0", *["ds_read_b128 v[12:15], v10"] * 8, *late]
    done = run(lines, waves=4)
    leave = {
        e.issue for w in range(4) for e in done.timing.events if e.wave == w and done.name(e) == "v_add_f32"
    }
    arrive = [e for e in done.timing.events if done.name(e) == "s_barrier"]
    assert len(leave) == 1
    assert leave.pop() == max(e.ready for e in arrive) + 8
    assert min(e.issue - e.ready for e in arrive) <= 4 < max(e.issue - e.ready for e in arrive)


def test_taken_branch() -> None:
    """[S] 24 clk; one that falls through less."""
    done = run(["s_branch 1", "s_nop 3", VALU, "s_cbranch_scc1 1", VALU, VALU])
    assert done.issues("v_add")[:2] == [24, 24 + 4 + MI350.branch_clk]


def test_two_waves_share_the_vector_unit_by_age() -> None:
    """Five waves on four SIMDs: the fifth shares SIMD 0, and waits for the older wave, which is not slowed down."""
    lines = [VALU] * 60
    done = run(lines, waves=5)
    assert gaps(done.issues("v_add", 0)) == {4}
    assert done.issues("v_add", 1) == done.issues("v_add", 0)
    ends = {wave: max(e.issue for e in done.timing.events if e.wave == wave) for wave in (0, 1, 4)}
    assert ends[4] - ends[0] == pytest.approx(60 * 4, abs=8)
    assert ends[0] == ends[1]


def test_priority_goes_before_age() -> None:
    """The youngest wave raises its priority while the older one computes: it is then served first."""
    lines = ["s_setprio 3", *[VALU] * 20, "s_setprio 0", *[VALU] * 40]
    done = run(lines, waves=5)
    ends = {wave: max(e.issue for e in done.timing.events if e.wave == wave) for wave in (0, 4)}
    # Once wave 0 has lowered its priority, wave 4's 20 instructions of high priority delay it by 80 clk.
    baseline = run([*[VALU] * 62], waves=5)
    first = max(e.issue for e in baseline.timing.events if e.wave == 0)
    start = next(e.issue for e in baseline.timing.events)
    start_here = next(e.issue for e in done.timing.events)
    assert (ends[0] - start_here) - (first - start) == pytest.approx(80, abs=12)


def test_stalls_and_issues_add_up_to_the_waves_time() -> None:
    """From the start of each workgroup to the end of each of its waves, clk by clk."""
    lines = [*LOADS, "global_load_dword v11, v10, s[4:5]", "s_branch 1", "s_nop 3", "s_waitcnt vmcnt(0)"]
    lines += [*[MFMA_BF16] * 9, "s_nop 3", "s_barrier", "v_exp_f32 v6, v7", VALU]
    done = run(lines, waves=6, warm=False)
    timing = done.timing
    ends = [max(e.issue for e in timing.events if e.wave == wave) + 4 for wave in range(6)]
    assert sum(timing.issued) + sum(map(sum, timing.stalls)) == sum(ends)
    assert max(ends) == timing.ends[0]
    for wave in range(6):
        mine = [e for e in timing.events if e.wave == wave]
        assert all(before.issue < after.ready <= after.issue for before, after in pairwise(mine))


def test_l2_bandwidth_of_a_supply() -> None:
    """A stream of loads beyond L1 takes what the link takes: bytes times clk per byte."""
    slow = replace(PLENTY, link=1 / 16)
    loads = [
        "global_load_dwordx4 v[12:15], v10, s[4:5]",
        "global_load_dwordx4 v[12:15], v10, s[4:5] offset:2048",
    ]
    lines = [*LOADS, *loads, "s_waitcnt vmcnt(0)", VALU]
    done = run(lines, supply=slow)
    span = done.issues("v_add")[0] - done.issues("global")[0]
    assert span == pytest.approx(2 * 1024 / 16 + MI350.l2_hit_clk, abs=8)
    assert done.timing.link_busy == 2 * 2 * 1024 / 16  # of two workgroups


def test_full_queue_of_loads() -> None:
    """[S] 16 requests wait for L1's bus; then loads issue no faster than it takes them: 1 KiB in 16 clk."""
    load = "global_load_dwordx4 v[12:15], v10, s[4:5]"
    issues = run([*LOADS, *[load] * 60]).issues("global")
    assert gaps(issues[:16]) == {4}
    assert gaps(issues[-10:]) == {64 * 16 // MI350.l1_bytes_per_clk}


def test_full_queue_of_lds_instructions() -> None:
    """[S] 16 entries; reads of one bank by 64 lanes take 64 clk each and leave the queue so slowly."""
    lines = ["v_lshlrev_b32 v10, 8, v0", *["ds_read_b32 v11, v10"] * 60]
    issues = run(lines, warm=False).issues("ds_read")  # a workgroup before would leave reads in the queue
    assert gaps(issues[:16]) == {4}
    assert gaps(issues[-10:]) == {64}


def test_stores_end_a_launch_when_memory_has_them() -> None:
    """Waves do not wait for stores, the launch does: bytes times the drain's clk per byte after the first of them."""
    slow = replace(PLENTY, drain=0.5)
    store = "global_store_dwordx4 v10, v[12:15], s[4:5]"
    done = run([*LOADS, *[store] * 4], supply=slow)
    size = 4 * 64 * 16
    assert done.timing.clk - max(done.timing.ends) > size / 4
    assert done.timing.deep_busy == 2 * size * 0.5  # of two workgroups
    waited = run([*LOADS, store, "s_waitcnt vmcnt(0)", VALU])
    bus = 64 * 16 // MI350.l1_bytes_per_clk
    first = waited.issues("global")[0]
    assert waited.issues("v_add")[0] - first == pytest.approx(bus + MI350.store_clk, abs=8)


def test_a_c_that_partly_overlaps_an_earlier_result_is_not_forwarded() -> None:
    """[S] only C that is the earlier D as it stands is: otherwise 16 clk + 3 states of 4 clk, as for other users."""
    overlapping = "v_mfma_f32_16x16x32_bf16 v[22:25], v[40:43], v[44:47], v[22:25]"
    first, second = run([MFMA_BF16, overlapping]).issues("v_mfma")
    assert second - first == 28
    assert gaps(run([overlapping] * 5).issues("v_mfma")) == {16}


def test_other_waves_wait_for_a_cold_scalar_line_too() -> None:
    """[M] 768 clk for the first scalar load of a line: no wave has its data earlier, whichever asked first."""
    done = run([*LOADS, VALU], waves=4, warm=False)
    assert {done.issues("v_add", wave)[0] // 100 for wave in range(4)} == {768 // 100}
    warm = run([*LOADS, VALU], waves=4)
    assert all(warm.issues("v_add", wave)[0] < MI350.scalar_hit_clk + 60 for wave in range(4))


@pytest.mark.parametrize(
    ("address", "clk"),
    [
        (["v_lshlrev_b32 v10, 2, v0"], 2),  # as a write: 128 bytes a clock
        (["v_mov_b32_e32 v10, 0"], 64),  # one address
        (["v_lshlrev_b32 v10, 8, v0"], 64),  # one bank
    ],
)
def test_lds_atomics_of_one_bank_come_one_after_another(address: list[str], clk: int) -> None:
    """[?] a bank performs one lane's atomic a clock."""
    done = run([*address, *["ds_add_u32 v10, v1"] * 32])
    assert done.timing.lds_busy == 2 * 32 * clk  # of both workgroups


def test_global_atomics_on_one_line_are_not_faster() -> None:
    """[?] lanes on one address save nothing: 256 bytes, four clk of L1's bus."""
    atomics = ["global_atomic_add v10, v1, s[4:5]"] * 32
    apart = run([*LOADS[:1], "v_lshlrev_b32 v10, 2, v0", LOADS[2], *atomics]).timing
    together = run([*LOADS[:1], "v_mov_b32_e32 v10, 0", LOADS[2], *atomics]).timing
    assert together.l1_busy >= apart.l1_busy == 2 * 32 * 4
    assert together.clk >= apart.clk
    assert together.deep_busy >= apart.deep_busy
