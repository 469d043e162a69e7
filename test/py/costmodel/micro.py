"""Micro-kernels: a list of instructions as assembly text, run on the emulator and timed by the simulator.

`instructions.txt` has the machine code of every instruction that tests use, so that they run without LLVM:

    0a020301 | v_add_f32 v1, v1, v1

Instructions with a number that tests choose are put together here: see `NUMBERED`.

A kernel gets a pointer to `SIZE` bytes in its kernel arguments, s[0:1]; it ends without being told to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from flycc import emulator
from flycc.costmodel.compute_unit import Event, Timing, simulate
from flycc.costmodel.machine import MI350, Machine
from flycc.costmodel.paths import Supply
from flycc.costmodel.streams import programs
from flycc.emulator import Kernel
from flycc.emulator.elf import CodeObject, KernelArg, Segment, UserSgpr
from flycc.emulator.elf import Kernel as Descriptor
from flycc.emulator.trace import Trace
from flycc.emulator.trace_recorder import Recorder

TABLE = Path(__file__).parent / "instructions.txt"
ENTRY = 0x1000
SIZE = 1 << 20

#: What memory beyond L1 supplies in tests that are about something else: everything at the rate of L1.
PLENTY = Supply(link=1 / 64, deep=0.0, store=1 / 64, drain=0.0, fresh_latency=MI350.l2_hit_clk)


@cache
def table() -> dict[str, bytes]:
    """Machine code by assembly text."""
    rows = [line.split(" | ") for line in TABLE.read_text().splitlines()]
    return {text: np.array([int(w, 16) for w in words.split()], "<u4").tobytes() for words, text in rows}


#: "s_movk_i32 s20, 7" and its like: the word without the number in its lower half.
NUMBERED = {
    "s_movk_i32 s20": 0xB0140000,
    "s_movk_i32 s21": 0xB0150000,
    "s_movk_i32 s22": 0xB0160000,
    "s_movk_i32 s23": 0xB0170000,
    "s_movk_i32 s25": 0xB0190000,
    "s_cbranch_scc0": 0xBF840000,  # words to skip
    "s_cbranch_scc1": 0xBF850000,
}


def encode(line: str) -> bytes:
    """Machine code of an instruction out of the table or of NUMBERED."""
    name, _, number = line.replace(",", "").rpartition(" ")
    if line in (known := table()):
        return known[line]
    return np.array([NUMBERED[name] | int(number) & 0xFFFF], "<u4").tobytes()


def words(lines: Sequence[str]) -> int:
    return sum(len(encode(line)) for line in lines) // 4


def loop(body: Sequence[str]) -> list[str]:
    """As many turns as s20 says, at least one."""
    turn = [*body, "s_sub_u32 s20, s20, 1", "s_cmp_lg_u32 s20, 0"]
    return [*turn, f"s_cbranch_scc1 {-words(turn) - 1}"]


def now_and_then(period: int, rare: Sequence[str]) -> list[str]:
    """Part of a loop's body that every `period`-th turn executes; `period` is a power of two."""
    chosen = [f"s_movk_i32 s25, {period - 1}", "s_and_b32 s24, s20, s25", "s_cmp_eq_u32 s24, 1"]
    return [*chosen, f"s_cbranch_scc0 {words(rare)}", *rare]


def kernel(lines: Sequence[str], *, vgprs: int = 128, lds: int = 0) -> Kernel:
    code = CodeObject((Segment(ENTRY, b"".join(map(encode, (*lines, "s_endpgm"))), False, True),), {}, {})
    described = Descriptor(
        name="micro", entry=ENTRY, code_size=0, kernarg_size=8, kernarg_align=8, lds_bytes=lds, scratch_bytes=0,
        vgpr_count=vgprs, accum_offset=vgprs, sgpr_count=96, user_sgprs=(UserSgpr("kernarg_segment_ptr", 0, 2),),
        enable_workgroup_id_x=True, enable_workgroup_id_y=False, enable_workgroup_id_z=False, workitem_dims=1,
        round_mode_32=0, round_mode_16_64=0, denorm_mode_32=3, denorm_mode_16_64=3, dx10_clamp=True,
        ieee_mode=True, fp16_overflow=False, kernarg_preload=(0, 0),
        args=(KernelArg("data", 0, 8, "global_buffer"),), max_workgroup_size=1024,
    )  # fmt: skip
    return Kernel(described, code)


def trace(
    lines: Sequence[str],
    *,
    waves: int = 1,
    grid: int = 1,
    vgprs: int = 128,
    lds: int = 32768,
    workgroups: Sequence[int] | None = None,
) -> Trace:
    """Of all workgroups, or of those of these numbers."""
    made = kernel(lines, vgprs=vgprs, lds=lds)
    recorder = Recorder()
    module = emulator.Module(made.code, {made.name: made})
    data = np.zeros(SIZE, np.uint8)
    chosen = {} if workgroups is None else {"workgroups": [(number, 0, 0) for number in workgroups]}
    emulator.run(module, made.name, (grid, 1, 1), (64 * waves, 1, 1), [data], observers=(recorder,), **chosen)
    return recorder.trace()


@dataclass(frozen=True)
class Run:
    """A simulated micro-kernel: its timing, and its events by wave."""

    trace: Trace
    timing: Timing

    def issues(self, name: str, wave: int = 0) -> list[int]:
        """When the instructions whose mnemonic begins with `name` issue, in clk from the wave's first instruction."""
        mine = [e for e in self.timing.events if e.wave == wave]
        return [e.issue - mine[0].issue for e in mine if self.name(e).startswith(name)]

    def name(self, event: Event) -> str:
        return str(self.trace.instructions["name"][event.instruction])


def run(
    lines: Sequence[str],
    *,
    waves: int = 1,
    machine: Machine = MI350,
    supply: Supply = PLENTY,
    warm: bool = True,
) -> Run:
    """One workgroup on a compute unit, whose caches of instructions and scalars are `warm`."""
    traced = trace(lines, waves=waves)
    made = programs(traced, machine, 1)
    # A workgroup of the launch's second round finds them warm.
    groups = made * 2 if warm else made
    timing = simulate(groups, 1, supply, machine, len(traced.instructions), log=True)
    last = len(groups) - 1
    mine = [event for event in timing.events if event.group == last]
    return Run(traced, replace(timing, events=mine))
