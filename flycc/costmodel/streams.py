"""A trace's waves as programs for the compute unit's simulator: what each instruction costs, with its addresses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from flycc.costmodel.machine import Machine
from flycc.costmodel.mfma import mfma
from flycc.emulator.isa.registers import UNITS
from flycc.emulator.trace import FILES, KINDS, OFF, SPACES, Trace

#: What an operation does in the simulator.
ISSUE, VALU, MFMA, LDS, VMEM, SMEM, BRANCH, WAIT, BARRIER, IDLE, PRIORITY, END = range(12)
#: What its execution counts as in a breakdown.
CAUSES = (
    "salu",
    "valu",
    "mfma",
    "lds",
    "global",
    "scalar",
    "branch",
    "wait",
    "barrier",
    "idle",
    "salu",
    "salu",
)

#: Register file, first register, number of registers.
_Range = tuple[str, int, int]

_QUARTER_RATE = re.compile(r"v_(mul_lo_u32|mul_hi_[iu]32|mad_[iu]64_[iu]32)")
_SIMM = re.compile(r"\w+ (0x[0-9a-f]+|\d+)")
NEVER = 1 << 30


class Op(NamedTuple):
    """One executed instruction. Those of equal cost are one object within what `programs` returns.

    `clk` is what it keeps its unit busy (VALU, MFMA, LDS pipe, L1 bus; idle time of s_nop), `latency` until its
    result. `reads` are the results of MFMAs (see `_Accumulators`) that it must wait for, `writes` is the one that an
    MFMA writes. `fresh` and `again` are bytes of lines that miss L1, not touched before by the workgroup or touched
    long ago. `line` counts the lines of scalar loads of the workgroup. `vm` and `lgkm` are what an s_waitcnt waits for.
    """

    kind: int
    instruction: int
    clk: int = 4
    latency: int = 0
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    fresh: int = 0
    again: int = 0
    store: int = 0
    lds_clk: int = 0
    line: int = -1
    vm: int = NEVER
    lgkm: int = NEVER


@dataclass(frozen=True, eq=False)
class Program:
    """A workgroup: for each wave its operations, and the addresses and multiply-adds of the kernel's instructions.

    `lines` are those of global memory that it loads, in rising order.
    """

    workgroup: tuple[int, int, int]
    waves: list[list[Op]]
    addresses: list[int]
    instruction_macs: list[int]
    lines: np.ndarray

    @property
    def ops(self) -> int:
        return sum(map(len, self.waves))

    @cached_property
    def macs(self) -> int:
        """Multiply-adds of its MFMAs."""
        return sum(self.instruction_macs[op.instruction] for ops in self.waves for op in ops)

    @cached_property
    def level_bytes(self) -> dict[str, int]:
        """Bytes of lines that miss L1, `fresh` and `again` as in Op, and bytes that it stores."""
        total = dict.fromkeys(("fresh", "again", "store"), 0)
        for ops in self.waves:
            for op in ops:
                if op.kind == VMEM:
                    total["fresh"] += op.fresh
                    total["again"] += op.again
                    total["store"] += op.store
        return total


def programs(trace: Trace, machine: Machine, resident: int) -> list[Program]:
    """The traced workgroups, in the order of their numbers (x fastest), as `resident` of them share a compute unit.

    Raises ValueError for a trace without waves.
    """
    if not len(trace.waves):
        raise ValueError("trace: it holds no waves; trace at least one workgroup of the launch")
    static = _static(trace, machine)
    accesses = _Accesses(trace, machine, resident)
    addresses = trace.instructions["address"].tolist()
    macs = [
        mfma(str(row["name"]), str(row["text"])).macs if op.kind == MFMA else 0
        for op, row in zip(static, trace.instructions, strict=True)
    ]
    steps_of = _steps_of_waves(trace)
    ids = trace.waves[["x", "y", "z"]].tolist()
    groups: dict[tuple[int, int, int], list[int]] = {}
    for wave in np.lexsort([trace.waves[name] for name in ("slot", "x", "y", "z")]).tolist():
        groups.setdefault(ids[wave], []).append(wave)
    shared: dict[tuple[Op, tuple[tuple[int, ...], ...]], Op] = {}
    taken = [op._replace(clk=machine.branch_taken_clk) for op in static]
    found = []
    for group, waves in groups.items():
        streams = []
        for wave in waves:
            executed = trace.steps["instruction"][steps_of[wave]]
            streams.append(
                _stream(trace, machine, (static, taken), executed, accesses.of(wave, steps_of[wave]), shared)
            )
        found.append(Program(group, streams, addresses, macs, accesses.lines_of(waves)))
    return found


def _steps_of_waves(trace: Trace) -> list[np.ndarray]:
    """`Trace.steps_of` of every wave, in one pass over the steps of each set."""
    per_set: list[np.ndarray] = []
    order = np.argsort(trace.steps["set"], kind="stable")
    bounds = np.searchsorted(trace.steps["set"][order], np.arange(len(trace.set_starts)))
    per_set = [order[bounds[i] : bounds[i + 1]] for i in range(len(trace.set_starts) - 1)]
    mine: list[list[np.ndarray]] = [[] for _ in range(len(trace.waves))]
    for i, steps in enumerate(per_set):
        for wave in trace.set_of(i).tolist():
            mine[wave].append(steps)
    return [np.sort(np.concatenate(steps)) if steps else np.zeros(0, np.int64) for steps in mine]


def _static(trace: Trace, machine: Machine) -> list[Op]:
    """The operation of each instruction, as far as it does not depend on addresses or on where a branch goes."""
    accumulators = _Accumulators(trace)
    found = []
    for i, row in enumerate(trace.instructions):
        name, text, unit = str(row["name"]), str(row["text"]), UNITS[row["unit"]]
        reads = accumulators.touched(i)
        if unit == "MFMA":
            cost = mfma(name, text)
            latency = cost.clk + machine.slot_clk * machine.mfma_result_states
            op = Op(MFMA, i, cost.clk, latency, accumulators.sources(i), accumulators.written(i))
        elif unit == "TRANS":
            op = Op(VALU, i, machine.trans_clk, reads=reads)
        elif unit == "VALU":
            slow = _QUARTER_RATE.match(name)
            op = Op(VALU, i, machine.quarter_rate_clk if slow else machine.slot_clk, reads=reads)
        elif unit in ("LDS", "VMEM"):
            op = Op(LDS if unit == "LDS" else VMEM, i, 1, reads=reads)
        elif unit == "SMEM":
            op = Op(SMEM, i, latency=machine.scalar_hit_clk)
        elif unit == "BRANCH":
            op = Op(END if name == "s_endpgm" else BRANCH, i, machine.branch_clk)
        elif unit == "SYNC":
            op = _sync(name, text, row, i, machine)
        else:
            op = Op(ISSUE, i)
        found.append(op)
    return found


def _sync(name: str, text: str, row: np.void, index: int, machine: Machine) -> Op:
    if name == "s_barrier":
        return Op(BARRIER, index, machine.barrier_clk)
    if name == "s_waitcnt":
        vm, lgkm = int(row["vmcnt"]), int(row["lgkmcnt"])
        return Op(WAIT, index, vm=NEVER if vm == 63 else vm, lgkm=NEVER if lgkm == 15 else lgkm)
    matched = _SIMM.match(text)
    value = int(matched[1], 0) if matched else 0
    if name == "s_nop":
        return Op(IDLE, index, machine.slot_clk * (1 + value % 16))
    if name == "s_sleep":
        return Op(IDLE, index, machine.slot_clk + machine.sleep_clk * (value % 128))
    if name == "s_setprio":
        return Op(PRIORITY, index, latency=value % 4)
    return Op(ISSUE, index)


class _Accumulators:
    """The register ranges that MFMAs write, numbered: an instruction waits for those that overlap its registers."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._number: dict[_Range, int] = {}
        self._at: dict[tuple[str, int], set[int]] = {}  # the results that a register is part of
        for i, row in enumerate(trace.instructions):
            if UNITS[row["unit"]] != "MFMA":
                continue
            for found in self._ranges(i, written=True):
                number = self._number.setdefault(found, len(self._number))
                file, first, size = found
                for register in range(first, first + size):
                    self._at.setdefault((file, register), set()).add(number)

    def _ranges(self, instruction: int, *, written: bool) -> list[_Range]:
        row = self._trace.instructions[instruction]
        first = int(row["first_register"])
        named = self._trace.registers[first : first + int(row["register_count"])]
        return [
            (FILES[r["file"]], int(r["first"]), int(r["count"]))
            for r in named
            if bool(r["written"]) == written
        ]

    def _overlapping(self, ranges: list[_Range]) -> set[int]:
        empty: set[int] = set()
        return empty.union(
            *(self._at.get((file, first + i), empty) for file, first, size in ranges for i in range(size))
        )

    def written(self, instruction: int) -> tuple[int, ...]:
        return tuple(self._number[found] for found in self._ranges(instruction, written=True))

    def touched(self, instruction: int) -> tuple[int, ...]:
        """Results an instruction other than an MFMA must wait for: to read, or to overwrite."""
        ranges = self._ranges(instruction, written=False) + self._ranges(instruction, written=True)
        return tuple(sorted(self._overlapping(ranges)))

    def sources(self, instruction: int) -> tuple[int, ...]:
        """Results an MFMA must wait for: not that which is its C as it stands, for the pipe forwards it."""
        written, read = self._ranges(instruction, written=True), self._ranges(instruction, written=False)
        # A, B, C, and the scales; or for a sparse one A, B, index, and the result that it adds to.
        c_at = 2 if len(read) > 2 and read[2][2] == written[0][2] else 3
        factors, addend = read[:c_at] + read[c_at + 1 :], read[c_at : c_at + 1]
        forwarded = {self._number[found] for found in addend if found in self._number}
        return tuple(sorted(self._overlapping(factors) | (self._overlapping(addend) - forwarded)))


class _Accesses:
    """The trace's accesses by wave, with what each costs in LDS and which of its lines are in L1."""

    def __init__(self, trace: Trace, machine: Machine, resident: int) -> None:
        self._trace, self._machine = trace, machine
        rows = trace.accesses
        count = rows["line_count"].astype(np.int64)
        self._is_global = rows["space"] == SPACES.index("global")
        self._is_load = rows["kind"] == KINDS.index("load")
        asked = rows["lanes"].astype(np.int64) * rows["size"]
        # Lanes of an atomic on one address are performed one by one: they save nothing.
        atomic = rows["kind"] == KINDS.index("atomic")
        self._useful = np.where(atomic, asked, np.minimum(count * machine.line_bytes, asked))
        reads = np.flatnonzero((self._is_global | (rows["space"] == SPACES.index("scalar"))) & self._is_load)
        ids = np.stack([trace.waves[axis] for axis in "xyz"], axis=1)
        self._group = np.unique(ids, axis=0, return_inverse=True)[1].ravel()  # a wave's workgroup
        self._fresh, self._again = self._misses(reads, count, resident)
        order = np.argsort(rows["wave"], kind="stable")
        bounds = np.searchsorted(rows["wave"][order], np.arange(len(trace.waves) + 1))
        self._of_wave = [order[bounds[i] : bounds[i + 1]] for i in range(len(trace.waves))]
        columns = [rows[name] for name in ("space", "kind", "size", "lanes", "phases", "line_count")]
        made = (self._lds_clocks(atomic), self._useful, self._fresh, self._again, self._scalar_lines())
        plain = [column.tolist() for column in (*columns, *made)]
        self._rows: list[tuple[int, ...]] = list(zip(*plain, strict=True))

    def _misses(self, reads: np.ndarray, count: np.ndarray, resident: int) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of each access's lines that its workgroup touches for the first time, and that L1 lost since.

        A line is taken to be in L1 if fewer line touches of its workgroup lie between than the workgroup's share of
        L1 has lines.
        """
        trace, line_bytes = self._trace, self._machine.line_bytes
        fresh, again = np.zeros(len(count), np.int64), np.zeros(len(count), np.int64)
        share = self._machine.l1_bytes_per_cu // line_bytes // resident
        group = self._group[trace.accesses["wave"][reads]]
        for number in np.unique(group):
            mine = reads[group == number]
            owner = np.repeat(mine, count[mine])
            touched = trace.lines[_ranges(trace.accesses["first_line"][mine], count[mine])]
            order = np.argsort(touched, kind="stable")
            distance = np.full(len(order), -1, np.int64)
            distance[order[1:]] = np.diff(order)
            first = np.ones(len(order), bool)
            first[1:] = touched[order][1:] != touched[order][:-1]
            distance[order[first]] = -1
            fresh += np.bincount(owner[distance < 0], minlength=len(count)) * line_bytes
            again += np.bincount(owner[distance > share], minlength=len(count)) * line_bytes
        return fresh, again

    def _lds_clocks(self, atomic: np.ndarray) -> np.ndarray:
        """The trace's clocks; of atomics no fewer than lanes meet in one bank, for a bank performs one at a time."""
        rows, banks = self._trace.accesses, self._machine.lds_banks
        clocks = rows["clocks"].astype(np.int64)
        mine = np.flatnonzero(atomic & (rows["space"] == SPACES.index("lds")) & (rows["pattern"] >= 0))
        patterns, which = np.unique(rows["pattern"][mine], return_inverse=True)
        met = np.zeros((len(patterns), banks), np.int64)
        offsets = self._trace.patterns[patterns]
        pattern, lane = np.nonzero(offsets != OFF)
        np.add.at(met, (pattern, offsets[pattern, lane] // 4 % banks), 1)
        clocks[mine] = np.maximum(clocks[mine], met.max(axis=1, initial=0)[which])
        return clocks

    def _scalar_lines(self) -> np.ndarray:
        """The first line of each scalar load, by its rank among those of its workgroup; -1 of other accesses."""
        rows = self._trace.accesses
        found = np.full(len(rows), -1, np.int64)
        mine = np.flatnonzero((rows["space"] == SPACES.index("scalar")) & (rows["line_count"] > 0))
        lines = self._trace.lines[rows["first_line"][mine]]
        for number in np.unique(self._group[rows["wave"][mine]]):
            here = self._group[rows["wave"][mine]] == number
            found[mine[here]] = np.unique(lines[here], return_inverse=True)[1]
        return found

    def of(self, wave: int, steps: np.ndarray) -> dict[int, tuple[tuple[int, ...], ...]]:
        """The accesses of a wave by the position of their step in its stream."""
        mine = self._of_wave[wave]
        found: dict[int, tuple[tuple[int, ...], ...]] = {}
        positions = np.searchsorted(steps, self._trace.accesses["step"][mine])
        for position, access in zip(positions.tolist(), mine.tolist(), strict=True):
            found[position] = (*found.get(position, ()), self._rows[access])
        return found

    def lines_of(self, waves: list[int]) -> np.ndarray:
        """Numbers of the lines that waves load from global memory, in rising order, each once."""
        mine = np.concatenate([self._of_wave[w] for w in waves])
        rows = self._trace.accesses[mine[(self._is_global & self._is_load)[mine]]]
        return np.unique(self._trace.lines[_ranges(rows["first_line"], rows["line_count"])])


def _ranges(first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """first[i], first[i] + 1, ... of count[i] numbers, for all i one after another, int64."""
    count = count.astype(np.int64)
    ends = np.cumsum(count)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(first.astype(np.int64) - (ends - count), count)


def _stream(
    trace: Trace,
    machine: Machine,
    static: tuple[list[Op], list[Op]],
    executed: np.ndarray,
    accesses: dict[int, tuple[tuple[int, ...], ...]],
    shared: dict[tuple[Op, tuple[tuple[int, ...], ...]], Op],
) -> list[Op]:
    """The operations of one wave from those of each instruction, which is followed by the next one or jumps; `shared`
    keeps those of equal cost one object."""
    address = trace.instructions["address"][executed].astype(np.int64)
    size = trace.instructions["size"][executed]
    jumps = np.zeros(len(executed), bool)
    jumps[:-1] = address[1:] != address[:-1] + size[:-1]
    following, taken = static
    found = [following[i] for i in executed.tolist()]
    for position in np.flatnonzero(jumps).tolist():
        found[position] = taken[executed[position]]
    for position, rows in accesses.items():
        key = found[position], rows
        op = shared.get(key)
        if op is None:
            op = shared[key] = _cost(machine, *key)
        found[position] = op
    return found


_GLOBAL, _SCALAR, _LDS, _SCRATCH, _LANES = map(SPACES.index, ("global", "scalar", "lds", "scratch", "lanes"))
_LOAD, _STORE = map(KINDS.index, ("load", "store"))


def _cost(machine: Machine, op: Op, accesses: tuple[tuple[int, ...], ...]) -> Op:
    """An LDS, VMEM or SMEM operation with what its accesses cost."""
    bus = lds_clk = latency = fresh = again = stored = 0
    for space, kind, size, lanes, phases, lines, clocks, useful, first_touched, lost, _ in accesses:
        if space == _LDS:
            lds_clk += clocks
            if op.kind == LDS:
                latency = max(latency, _lds_latency(machine, kind, size, phases) + clocks - phases)
        elif space == _LANES:
            lds_clk += machine.lanes_clk
        elif space == _SCRATCH:
            bus += -(-lanes * size // machine.l1_bytes_per_clk)
        else:
            bus += max(lines, -(-useful // machine.l1_bytes_per_clk))
            fresh, again = fresh + first_touched, again + lost
            if space == _GLOBAL and kind != _LOAD:
                stored += useful
                latency = machine.store_clk if kind == _STORE else machine.atomic_clk
    if op.kind == LDS:
        return op._replace(clk=max(lds_clk, 1), latency=latency or machine.lds_latency_clk)
    if op.kind == SMEM:
        return op._replace(fresh=fresh, line=accesses[0][-1])
    return op._replace(
        clk=max(bus, 1), latency=latency, fresh=fresh, again=again, store=stored, lds_clk=lds_clk
    )


def _lds_latency(machine: Machine, kind: int, size: int, phases: int) -> int:
    if kind == _LOAD and size > 8:
        return machine.lds_wide_latency_clk + machine.lds_phase_latency_clk * phases
    return machine.lds_latency_clk
