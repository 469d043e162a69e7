"""One compute unit executing workgroups: issue, matrix and vector pipes, counters and barriers, in clocks.

Every SIMD issues in slots of 4 clk, at most one instruction for each unit in a slot, the waves in the order of their
priority and age. A wave issues in order, at most one instruction in a slot, and goes on while pipes and memory work.
What makes it wait is a busy unit or full queue, an MFMA's result, an s_waitcnt or a barrier.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from flycc.costmodel.machine import Machine
from flycc.costmodel.paths import GlobalPath, LdsPath, Supply
from flycc.costmodel.streams import (
    BARRIER,
    BRANCH,
    END,
    IDLE,
    ISSUE,
    LDS,
    MFMA,
    PRIORITY,
    SMEM,
    VALU,
    VMEM,
    WAIT,
    Op,
    Program,
)

#: Why a wave waited: for a free unit by its name, for an MFMA's result, at an s_waitcnt, at a barrier, to be started.
STALLS = ("issue", "mfma", "valu", "lds", "global", "dependency", "wait-vm", "wait-lgkm", "barrier", "start")
_ISSUE, _MFMA, _VALU, _LDS, _GLOBAL, _DEPENDENCY, _WAIT_VM, _WAIT_LGKM, _BARRIER, _START = range(len(STALLS))

#: Units that are busy for more than a slot, or have a queue, by kind of operation; the stall of waiting for it.
_UNIT_STALL = {MFMA: _MFMA, VALU: _VALU, LDS: _LDS, VMEM: _GLOBAL}


@dataclass(frozen=True, slots=True)
class Event:
    """One executed instruction on the timeline, in clk: waits from `ready` to `issue`, for a cause out of STALLS, and
    is done, or its result there, at `end`. `group` counts the workgroups, `wave` the waves of each."""

    group: int
    wave: int
    simd: int
    instruction: int
    ready: int
    issue: int
    end: int
    stall: str


@dataclass(frozen=True, slots=True)
class Timing:
    """What a simulation took, in clk.

    `ends` of the workgroups in the order given; `clk` when the last one and all that they asked for are done. By
    instruction, summed over waves: `counts`, `issued` while it was the wave's turn and `stalls` (by STALLS) before; the
    latter two make up the time of all waves. `mfma_busy` and `valu_busy` of the four pipes together, the others
    of the LDS pipe, of L1's bus, of the link to L2 and of what lies beyond. `in_flight` is how long operations of LDS
    and memory take, summed.
    """

    clk: int
    ends: list[int]
    counts: list[int]
    issued: list[int]
    stalls: list[list[int]]
    mfma_busy: int
    valu_busy: int
    lds_busy: int
    l1_busy: int
    link_busy: float
    deep_busy: float
    in_flight: int
    events: list[Event] = field(default_factory=list)

    def utilisation(self, machine: Machine) -> dict[str, float]:
        """Share of the time that each unit and path of the compute unit is busy."""
        simds = machine.simds_per_cu
        busy = {
            "mfma": self.mfma_busy / simds,
            "valu": self.valu_busy / simds,
            "lds": self.lds_busy,
            "l1": self.l1_busy,
            "l2": self.link_busy,
            "memory": self.deep_busy,
        }
        return {name: clk / self.clk for name, clk in busy.items()}


class _Group:
    """A resident workgroup: how many of its waves run, those that wait at a barrier, and the SIMDs they are on.
    `scalars` is when a line of its scalar loads arrives, the first time."""

    __slots__ = ("cold", "number", "running", "scalars", "simds", "waiting")

    def __init__(self, number: int, running: int, simds: list[int], cold: bool) -> None:
        self.number, self.running, self.simds, self.cold = number, running, simds, cold
        self.waiting: list[_Wave] = []
        self.scalars: dict[int, int] = {}


class _Wave:
    """`ready` is when it could issue the next operation if nothing were in the way; `stall` what was, so far."""

    __slots__ = (
        "accumulators", "age", "cold", "group", "lds_slot", "lgkm", "ops", "position", "priority", "ready", "simd",
        "slot", "stall", "vm",
    )  # fmt: skip

    def __init__(self, age: int, ops: list[Op], simd: int, group: _Group, slot: int, ready: int) -> None:
        self.age, self.ops, self.simd, self.group, self.slot, self.ready = age, ops, simd, group, slot, ready
        self.position = self.priority = 0
        self.stall = _ISSUE
        self.lds_slot = 0  # before which no LDS instruction issues
        self.vm: list[int] = []  # when its operations complete, rising, for they complete in order
        self.lgkm: list[int] = []
        self.accumulators: dict[int, int] = {}  # when the results of MFMAs can be read
        self.cold = group.cold  # until its first load


class _ComputeUnit:
    """The state of a simulation. `free` has by kind of operation and SIMD when the unit takes another instruction."""

    def __init__(
        self,
        groups: Sequence[Program],
        resident: int,
        supply: Supply,
        machine: Machine,
        instructions: int,
        log: bool,
    ) -> None:
        self.groups, self.resident, self.machine = groups, resident, machine
        self.lds, self.memory = LdsPath(machine), GlobalPath(machine, supply)
        self.free = [[0] * machine.simds_per_cu for _ in range(END + 1)]
        self.free[SMEM] = self.free[ISSUE]  # one scalar instruction in a slot, loads included
        self.counts, self.issued = [0] * instructions, [0] * instructions
        self.stalls = [[0] * len(STALLS) for _ in range(instructions)]
        self.ends = [0] * len(groups)
        self.busy = [0] * (END + 1)
        self.in_flight = 0
        self.events: list[Event] | None = [] if log else None
        self.started = self.age = self.last = self.next_simd = 0
        self.heap: list[tuple[int, int, int, _Wave]] = []
        # The workgroups of a round reach one compute unit when its shader engine's others have got theirs.
        apart = machine.dispatch_clk * machine.cus_per_xcd // machine.shader_engines_per_xcd
        for i in range(min(resident, len(groups))):
            self._start(i * apart, None)

    def run(self) -> Timing:
        heap, free, slot_clk = self.heap, self.free, self.machine.slot_clk
        lds, memory = self.lds, self.memory
        while heap:
            time, _, _, wave = heapq.heappop(heap)
            op = wave.ops[wave.position]
            kind, simd = op.kind, wave.simd
            at, stall = time, wave.stall
            for accumulator in op.reads:
                until = wave.accumulators.get(accumulator, 0)
                if until > at:
                    at, stall = until, _DEPENDENCY
            until = free[kind][simd]
            if kind == LDS:
                until = max(until, wave.lds_slot, lds.room)
            elif kind == VMEM:
                until = max(until, memory.room(simd))
            if until > at:
                at, stall = until, _UNIT_STALL.get(kind, _ISSUE)
            if kind == WAIT:
                if len(wave.vm) > op.vm and wave.vm[-1 - op.vm] > at:
                    at, stall = wave.vm[-1 - op.vm], _WAIT_VM
                if len(wave.lgkm) > op.lgkm and wave.lgkm[-1 - op.lgkm] > at:
                    at, stall = wave.lgkm[-1 - op.lgkm], _WAIT_LGKM
            elif kind == BARRIER:
                self._arrive(wave, at)
                continue
            if at > time:
                at = -(-at // slot_clk) * slot_clk
                wave.stall = stall
                if kind != WAIT:  # by then another wave may have taken the unit
                    heapq.heappush(heap, (at, -wave.priority, wave.age, wave))
                    continue
            end = self._execute(wave, op, at)
            if kind in (LDS, VMEM):
                self.in_flight += end - at
            after = end if kind in (BRANCH, IDLE) else at + slot_clk
            self._count(wave, op.instruction, at, after, end, stall)
            wave.position += 1
            if kind == END or wave.position == len(wave.ops):
                self._end(wave, after)
                continue
            wave.ready = after
            wave.stall = _ISSUE
            heapq.heappush(heap, (after, -wave.priority, wave.age, wave))
        return Timing(
            clk=max(self.last, lds.drained, memory.drained, *free[MFMA], *free[VALU]),
            ends=self.ends,
            counts=self.counts,
            issued=self.issued,
            stalls=self.stalls,
            mfma_busy=self.busy[MFMA],
            valu_busy=self.busy[VALU],
            lds_busy=lds.busy,
            l1_busy=memory.l1_busy,
            link_busy=memory.link_busy,
            deep_busy=memory.deep_busy,
            in_flight=self.in_flight,
            events=self.events or [],
        )

    def _execute(self, wave: _Wave, op: Op, at: int) -> int:
        """The operation issues at `at`; when it is done or its result there."""
        kind = op.kind
        slot = at + self.machine.slot_clk
        if kind in (MFMA, VALU):
            end = self.free[kind][wave.simd] = at + op.clk
            self.busy[kind] += op.clk
            if kind == MFMA:
                wave.lds_slot = at + self.machine.mfma_to_lds_clk
                for accumulator in op.writes:
                    wave.accumulators[accumulator] = at + op.latency
            return end
        if kind in (WAIT, PRIORITY, IDLE, END):  # without a unit
            if kind == PRIORITY:
                wave.priority = op.latency
            return at + op.clk
        self.free[kind][wave.simd] = slot
        if kind == LDS:
            return _append(wave.lgkm, self.lds.access(at, op))
        if kind == VMEM:
            if op.lds_clk:
                self.lds.occupy(at, op.lds_clk)
            done = self.memory.access(at, wave.simd, op, cold=wave.cold and not op.store)
            wave.cold &= bool(op.store)
            return _append(wave.vm, done)
        if kind == SMEM:
            done = at + op.latency
            if wave.group.cold and op.line >= 0:
                arrived = wave.group.scalars.setdefault(op.line, at + self.machine.scalar_cold_clk)
                done = max(done, arrived)
            return _append(wave.lgkm, done)
        return at + op.clk

    def _count(self, wave: _Wave, instruction: int, at: int, after: int, end: int, stall: int) -> None:
        """An instruction issued at `at`, after which the wave goes on at `after`; its result is there at `end`."""
        self.counts[instruction] += 1
        self.issued[instruction] += after - at
        if at > wave.ready:
            self.stalls[instruction][stall] += at - wave.ready
        if self.events is not None:
            self.events.append(
                Event(
                    wave.group.number, wave.slot, wave.simd, instruction, wave.ready, at, end, STALLS[stall]
                )
            )

    def _start(self, at: int, simds: list[int] | None) -> None:
        """The next workgroup, on the SIMDs of the one that it replaces or, in the first round, on the next ones."""
        program = self.groups[self.started]
        cold = self.started < self.resident
        if simds is None:
            simds = [(self.next_simd + i) % self.machine.simds_per_cu for i in range(len(program.waves))]
            self.next_simd = (self.next_simd + len(simds)) % self.machine.simds_per_cu
        group = _Group(self.started, len(program.waves), simds, cold)
        wait = self.machine.wave_start_clk if cold else self.machine.wave_restart_clk
        ready = -(-(at + wait) // self.machine.slot_clk) * self.machine.slot_clk
        for slot, ops in enumerate(program.waves):
            wave = _Wave(self.age, ops, simds[slot], group, slot, ready)
            self.stalls[ops[0].instruction][_START] += ready - at
            heapq.heappush(self.heap, (ready, 0, self.age, wave))
            self.age += 1
        self.started += 1

    def _arrive(self, wave: _Wave, at: int) -> None:
        """At a barrier: the last wave releases all."""
        group = wave.group
        group.waiting.append(wave)
        if len(group.waiting) == group.running:
            self._release(group, at)

    def _release(self, group: _Group, at: int) -> None:
        after = at + self.machine.barrier_clk
        for wave in group.waiting:
            issue = after - self.machine.slot_clk
            self._count(wave, wave.ops[wave.position].instruction, issue, after, after, _BARRIER)
            wave.position += 1
            wave.ready = after
            wave.stall = _ISSUE
            heapq.heappush(self.heap, (after, -wave.priority, wave.age, wave))
        group.waiting.clear()

    def _end(self, wave: _Wave, at: int) -> None:
        group = wave.group
        group.running -= 1
        self.last = max(self.last, at)
        if group.running == 0:
            self.ends[group.number] = at
            if self.started < len(self.groups):
                self._start(at + self.machine.dispatch_clk, group.simds)
        elif len(group.waiting) == group.running:
            self._release(group, at)


def _append(completions: list[int], end: int) -> int:
    """In order: no operation completes before the one before it."""
    if completions and completions[-1] > end:
        end = completions[-1]
    completions.append(end)
    return end


def simulate(
    groups: Sequence[Program],
    resident: int,
    supply: Supply,
    machine: Machine,
    instructions: int,
    *,
    log: bool = False,
) -> Timing:
    """Run workgroups, `resident` of them at a time, the next one as soon as one ends.

    `instructions` is how many the kernel has; with `log` the timing holds an Event for each executed one.
    """
    return _ComputeUnit(groups, resident, supply, machine, instructions, log).run()
