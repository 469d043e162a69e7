"""One compute unit executing workgroups: issue, pipes, counters, barriers, in clocks.

Every SIMD issues in slots of 4 clk, at most one instruction for each unit in a slot, the waves in the order of their
priority and age. A wave issues in order, at most one instruction in a slot, and goes on while pipes and memory work;
what makes it wait is a busy unit, an MFMA's result, an s_waitcnt or a barrier. LDS pipe, L1 bus and all that lies
beyond are shared by the four SIMDs; a bus or level serves requests one after another, at its bytes a clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from flycc.costmodel.machine import Machine
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

#: Why a wave waited.
STALLS = ("issue", "mfma", "valu", "lds", "global", "dependency", "wait-vm", "wait-lgkm", "barrier", "start")
_ISSUE, _MFMA, _VALU, _LDS, _GLOBAL, _DEPENDENCY, _WAIT_VM, _WAIT_LGKM, _BARRIER, _START = range(len(STALLS))


@dataclass(frozen=True, slots=True)
class Supply:
    """What one compute unit gets from beyond L1: clocks a byte of each path, and latencies in clk.

    `link` from L2, `deep` for a byte of a workgroup's fresh lines from MALL and HBM (less than a byte's cost where L2
    holds a share of them), `store` to L2, `drain` of stores to memory.
    """

    link: float
    deep: float
    store: float
    drain: float
    fresh_latency: int


@dataclass(slots=True)
class Event:
    """One executed instruction on the timeline, in clk: waits from `ready` to `issue`, in its unit until `end`."""

    group: int
    wave: int
    simd: int
    instruction: int
    ready: int
    issue: int
    end: int
    stall: str


@dataclass(slots=True)
class Timing:
    """`ends` of the workgroups in the order given, and `clk` when the last one and its stores are done.

    `counts` and `stalls` by instruction (clk summed over waves, by STALLS); `mfma_busy` clk of the four pipes together,
    `lds_busy`, `l1_busy`, `link_busy` and `deep_busy` of the paths.
    """

    clk: int
    ends: list[int]
    counts: list[int]
    stalls: list[list[int]]
    mfma_busy: int
    valu_busy: int
    lds_busy: int
    l1_busy: int
    link_busy: float
    deep_busy: float
    events: list[Event] = field(default_factory=list)


class _Group:
    """A resident workgroup: its waves still running, those at the barrier with the time they came, its SIMDs."""

    __slots__ = ("cold", "number", "running", "simds", "waiting")

    def __init__(self, number: int, running: int, simds: list[int], cold: bool) -> None:
        self.number, self.running, self.simds, self.cold = number, running, simds, cold
        self.waiting: list[_Wave] = []


class _Wave:
    __slots__ = (
        "accumulators", "age", "cold_global", "group", "lgkm", "mfma_slot", "ops", "position", "priority", "ready",
        "simd", "slot", "stall", "vm",
    )  # fmt: skip

    def __init__(self, age: int, ops: list[Op], simd: int, group: _Group, slot: int, ready: int) -> None:
        self.age, self.ops, self.simd, self.group, self.slot, self.ready = age, ops, simd, group, slot, ready
        self.position = self.priority = 0
        self.stall = _ISSUE
        self.mfma_slot = 0  # before which no LDS instruction issues
        self.vm: list[int] = []  # times when its operations complete, rising: they complete in order
        self.lgkm: list[int] = []
        self.accumulators: dict[int, int] = {}  # when the results of MFMAs can be read
        self.cold_global = group.cold


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
    slot_clk, simds = machine.slot_clk, machine.simds_per_cu
    heap: list[tuple[int, int, int, _Wave]] = []
    counts = [0] * instructions
    stalls = [[0] * len(STALLS) for _ in range(instructions)]
    ends = [0] * len(groups)
    events: list[Event] = []
    scalar_free, branch_free = [0] * simds, [0] * simds
    valu_free, mfma_free, lds_issue, vmem_issue = [0] * simds, [0] * simds, [0] * simds, [0] * simds
    lds_free = l1_free = 0
    link_free = deep_free = store_free = 0.0
    lds_queue = [0] * machine.lds_queue  # when the latest so many instructions left the queue
    l1_queues = [[0] * machine.l1_queue for _ in range(simds)]
    lds_at = 0
    l1_at = [0] * simds
    mfma_busy = valu_busy = lds_busy = l1_busy = 0
    link_busy = deep_busy = 0.0
    age = next_group = last = 0
    next_simd = 0

    def start(at: int, on: list[int] | None) -> None:
        nonlocal age, next_group, next_simd
        program = groups[next_group]
        cold = next_group < resident
        if on is None:
            on = [(next_simd + i) % simds for i in range(len(program.waves))]
            next_simd = (next_simd + len(on)) % simds
        group = _Group(next_group, len(program.waves), on, cold)
        wait = machine.wave_start_clk if cold else machine.wave_restart_clk
        for slot, ops in enumerate(program.waves):
            ready = -(-(at + wait) // slot_clk) * slot_clk
            wave = _Wave(age, ops, on[slot], group, slot, ready)
            stalls[ops[0].instruction][_START] += ready - at
            heapq.heappush(heap, (ready, 0, age, wave))
            age += 1
        next_group += 1

    def release(group: _Group, at: int) -> None:
        for wave in group.waiting:
            op = wave.ops[wave.position]
            stalls[op.instruction][_BARRIER] += at - slot_clk - wave.ready
            if log:
                events.append(
                    Event(
                        group.number,
                        wave.slot,
                        wave.simd,
                        op.instruction,
                        wave.ready,
                        at - slot_clk,
                        at,
                        "barrier",
                    )
                )
            counts[op.instruction] += 1
            wave.position += 1
            wave.ready = at
            wave.stall = _ISSUE
            heapq.heappush(heap, (at, -wave.priority, wave.age, wave))
        group.waiting.clear()

    # The workgroups of a round reach one compute unit when its shader engine's others have got theirs.
    apart = machine.dispatch_clk * machine.cus_per_xcd // machine.shader_engines_per_xcd
    for i in range(min(resident, len(groups))):
        start(i * apart, None)

    while heap:
        time, _, _, wave = heapq.heappop(heap)
        simd = wave.simd
        op = wave.ops[wave.position]
        kind, instruction, clk, latency, reads, writes, fresh, again, store, lds_clk, vm, lgkm = op
        at = time
        stall = wave.stall
        if reads:
            accumulators = wave.accumulators
            for group_number in reads:
                until = accumulators.get(group_number, 0)
                if until > at:
                    at, stall = until, _DEPENDENCY
        if kind == MFMA:
            if mfma_free[simd] > at:
                at, stall = mfma_free[simd], _MFMA
        elif kind == VALU:
            if valu_free[simd] > at:
                at, stall = valu_free[simd], _VALU
        elif kind == LDS:
            if wave.mfma_slot > at:
                at, stall = wave.mfma_slot, _LDS
            if lds_issue[simd] > at:
                at, stall = lds_issue[simd], _LDS
            if lds_queue[lds_at] > at:
                at, stall = lds_queue[lds_at], _LDS
        elif kind == VMEM:
            if vmem_issue[simd] > at:
                at, stall = vmem_issue[simd], _GLOBAL
            if l1_queues[simd][l1_at[simd]] > at:
                at, stall = l1_queues[simd][l1_at[simd]], _GLOBAL
        elif kind == WAIT:
            done = wave.vm
            if len(done) > vm and done[-1 - vm] > at:
                at, stall = done[-1 - vm], _WAIT_VM
            done = wave.lgkm
            if len(done) > lgkm and done[-1 - lgkm] > at:
                at, stall = done[-1 - lgkm], _WAIT_LGKM
        elif kind == BRANCH:
            if branch_free[simd] > at:
                at = branch_free[simd]
        elif kind in (ISSUE, SMEM):
            if scalar_free[simd] > at:
                at = scalar_free[simd]
        elif kind == BARRIER:
            group = wave.group
            group.waiting.append(wave)
            if len(group.waiting) == group.running:
                release(group, at + machine.barrier_clk)
            continue

        if at > time:
            wave.stall = stall
            at = -(-at // slot_clk) * slot_clk
            if kind != WAIT:  # others may have taken the unit by then
                heapq.heappush(heap, (at, -wave.priority, wave.age, wave))
                continue

        counts[instruction] += 1
        if at > wave.ready:
            stalls[instruction][stall] += at - wave.ready
        after = end = at + slot_clk
        if kind == MFMA:
            end = mfma_free[simd] = at + clk
            mfma_busy += clk
            wave.mfma_slot = at + machine.mfma_to_lds_clk
            for group_number in writes:
                wave.accumulators[group_number] = at + latency
        elif kind == VALU:
            end = valu_free[simd] = at + clk
            valu_busy += clk
        elif kind == LDS:
            lds_issue[simd] = after
            begin = max(at, lds_free)
            lds_free = begin + clk
            lds_busy += clk
            lds_queue[lds_at] = begin
            lds_at = (lds_at + 1) % len(lds_queue)
            end = max(begin + latency, wave.lgkm[-1] if wave.lgkm else 0)
            wave.lgkm.append(end)
        elif kind == VMEM:
            vmem_issue[simd] = after
            begin = max(at, l1_free)
            done_at: float
            done_at = l1_free = begin + clk
            l1_busy += clk
            queue = l1_queues[simd]
            queue[l1_at[simd]] = begin
            l1_at[simd] = (l1_at[simd] + 1) % len(queue)
            if store:
                store_free = max(store_free, begin) + store * supply.store
                done_at = max(done_at, store_free)
                deep_free = max(deep_free, begin) + store * supply.drain
                deep_busy += store * supply.drain
            else:
                latency = latency or machine.l1_hit_clk
                if fresh or again:
                    latency = machine.l2_hit_clk
                    cost = (fresh + again) * supply.link
                    link_free = max(link_free, begin) + cost
                    link_busy += cost
                    done_at = max(done_at, link_free)
                    if fresh:
                        latency = supply.fresh_latency
                        cost = fresh * supply.deep
                        deep_free = max(deep_free, begin) + cost
                        deep_busy += cost
                        done_at = max(done_at, deep_free)
                if wave.cold_global:
                    wave.cold_global = False
                    done_at = max(done_at, at + machine.global_cold_clk - latency)
            lds_free = max(lds_free, begin) + lds_clk if lds_clk else lds_free
            end = max(int(done_at) + latency, wave.vm[-1] if wave.vm else 0)
            wave.vm.append(end)
        elif kind == SMEM:
            scalar_free[simd] = after
            end = at + (machine.scalar_cold_clk if fresh and wave.group.cold else latency)
            wave.lgkm.append(max(end, wave.lgkm[-1] if wave.lgkm else 0))
        elif kind == ISSUE:
            scalar_free[simd] = after
        elif kind == BRANCH:
            branch_free[simd] = after
            after = end = at + clk
        elif kind == IDLE:
            after = end = at + clk
        elif kind == PRIORITY:
            wave.priority = latency
        if log:
            events.append(
                Event(wave.group.number, wave.slot, simd, instruction, wave.ready, at, end, STALLS[stall])
            )
        if kind == END or wave.position + 1 == len(wave.ops):
            group = wave.group
            group.running -= 1
            last = max(last, at)
            if group.running == 0:
                ends[group.number] = at
                if next_group < len(groups):
                    start(at + machine.dispatch_clk, group.simds)
            elif group.waiting and len(group.waiting) == group.running:
                release(group, at + machine.barrier_clk)
            continue
        wave.position += 1
        wave.ready = after
        wave.stall = _ISSUE
        heapq.heappush(heap, (after, -wave.priority, wave.age, wave))
    last = max(last, int(store_free), int(deep_free))
    return Timing(
        clk=last,
        ends=ends,
        counts=counts,
        stalls=stalls,
        mfma_busy=mfma_busy,
        valu_busy=valu_busy,
        lds_busy=lds_busy,
        l1_busy=l1_busy,
        link_busy=link_busy,
        deep_busy=deep_busy,
        events=events,
    )
