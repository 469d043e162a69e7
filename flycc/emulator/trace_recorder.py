"""Records a launch as a `flycc.emulator.trace.Trace`."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np

from flycc.emulator.isa import registers
from flycc.emulator.isa.format import format_instruction
from flycc.emulator.isa.instruction import Instruction
from flycc.emulator.lds_banks import clocks
from flycc.emulator.memory import Memory
from flycc.emulator.observe import Access, Observer
from flycc.emulator.program import Kernel
from flycc.emulator.semantics.waits import COUNTER_LIMITS, wait_counts
from flycc.emulator.state import LANES, Batch
from flycc.emulator.trace import (
    ACCESS,
    FILES,
    INSTRUCTION,
    KINDS,
    LINE_BYTES,
    OFF,
    REGISTERS,
    SPACES,
    STEP,
    VERSION,
    WAVE,
    Trace,
)


class Recorder(Observer):
    """Records a launch, of all workgroups or of the given ids; `trace()` afterwards."""

    def __init__(self, workgroups: Iterable[tuple[int, int, int]] | None = None) -> None:
        self._chosen = None if workgroups is None else {tuple(int(i) for i in w) for w in workgroups}
        self._info: dict[str, Any] = {"version": VERSION}
        self._instructions: dict[int, int] = {}
        self._decoded: list[Instruction] = []
        self._waves: list[tuple[int, int, int, int]] = []
        self._ids = np.zeros(0, np.int64)  # the traced wave of a wave of the batch, -1 for none
        self._sets: dict[bytes, int] = {}
        self._set_starts, self._set_waves = array("I", [0]), array("I")
        self._steps = array("I")
        self._set = -1  # of the latest step; -1 if none of its waves is traced
        self._accesses: list[np.ndarray] = []
        self._patterns: dict[bytes, int] = {}
        self._lines: list[np.ndarray] = []
        self._line_count = 0
        self._clocks: dict[tuple[int, int, bool], tuple[int, int]] = {}

    def launch_begins(
        self, kernel: Kernel, grid: tuple[int, int, int], block: tuple[int, int, int], memory: Memory
    ) -> None:
        self._info |= {
            "kernel": kernel.name,
            "grid": list(grid),
            "block": list(block),
            "vgprs": kernel.descriptor.vgpr_count,
            "accum_offset": kernel.descriptor.accum_offset,
            "sgprs": kernel.descriptor.sgpr_count,
            "scratch_bytes": kernel.descriptor.scratch_bytes,
        }

    def batch_begins(self, batch: Batch, groups: np.ndarray) -> None:
        slots = batch.waves_per_group
        self._info |= {"waves_per_workgroup": slots, "lds_bytes": batch.lds_size}
        self._ids = np.full(len(groups) * slots, -1, np.int64)
        self._sets.clear()  # its keys are indices into this batch
        for number, group in enumerate(groups.tolist()):
            if self._chosen is None or tuple(group) in self._chosen:
                first = len(self._waves)
                self._waves += [(*group, slot) for slot in range(slots)]
                self._ids[number * slots : (number + 1) * slots] = np.arange(first, first + slots)

    def instruction(self, batch: Batch, waves: np.ndarray, inst: Instruction) -> None:
        key = waves.tobytes()
        number = self._sets.get(key)
        if number is None:
            number = self._sets[key] = self._new_set(self._ids[waves])
        self._set = number
        if number < 0:
            return
        index = self._instructions.get(inst.address)
        if index is None:
            index = self._instructions[inst.address] = len(self._decoded)
            self._decoded.append(inst)
        self._steps.append(index)
        self._steps.append(number)

    def _new_set(self, ids: np.ndarray) -> int:
        traced = ids[ids >= 0]
        if not traced.size:
            return -1
        self._set_waves.extend(traced.tolist())
        self._set_starts.append(len(self._set_waves))
        return len(self._set_starts) - 2

    def access(self, batch: Batch, access: Access) -> None:
        if self._set < 0:
            return
        ids = self._ids[access.waves]
        traced = ids >= 0
        addresses, mask = access.addresses[traced], access.mask[traced]
        rows = np.zeros(len(addresses), ACCESS)
        rows["step"] = len(self._steps) // 2 - 1
        rows["wave"] = ids[traced]
        rows["space"], rows["kind"] = SPACES.index(access.space), KINDS.index(access.kind)
        rows["size"] = access.size
        rows["lanes"] = np.count_nonzero(mask, axis=1)
        rows["pattern"] = -1
        if access.space == "lds":
            self._record_lds(rows, addresses, mask, access)
        elif access.space in ("global", "scalar"):
            self._record_lines(rows, addresses, mask, access.size)
        self._accesses.append(rows)

    def _record_lds(self, rows: np.ndarray, addresses: np.ndarray, mask: np.ndarray, access: Access) -> None:
        shown = np.where(mask, addresses, OFF).astype(np.uint32)
        different, which = _unique_rows(shown)
        found = np.zeros(len(different), ACCESS)
        writes = access.kind != "load"
        for row, lanes in zip(found, different, strict=True):
            number = self._patterns.setdefault(lanes.tobytes(), len(self._patterns))
            case = (number, access.size, writes)
            cost = self._clocks.get(case)
            if cost is None:
                cost = self._clocks[case] = clocks(lanes, lanes != OFF, access.size, writes=writes)
            row["pattern"], (row["phases"], row["clocks"]) = number, cost
        for name in ("pattern", "phases", "clocks"):
            rows[name] = found[name][which]

    def _record_lines(self, rows: np.ndarray, addresses: np.ndarray, mask: np.ndarray, size: int) -> None:
        first, last = addresses // LINE_BYTES, (addresses + np.uint64(size - 1)) // LINE_BYTES
        touched = first if (first == last).all() else np.concatenate([first, last], axis=1)
        within = np.concatenate([mask] * (touched.shape[1] // mask.shape[1]), axis=1)
        nothing = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
        ordered = np.sort(np.where(within, touched, nothing), axis=1)
        new = ordered != nothing
        new[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
        counts = np.count_nonzero(new, axis=1)
        rows["line_count"] = counts
        rows["first_line"] = self._line_count + np.cumsum(counts) - counts
        self._lines.append(ordered[new])
        self._line_count += int(counts.sum())

    def trace(self) -> Trace:
        """What was recorded."""
        ranges: list[tuple[int, bool, int, int]] = []
        static = np.zeros(len(self._decoded), INSTRUCTION)
        for row, inst in zip(static, self._decoded, strict=True):
            first = len(ranges)
            for is_written, named in ((False, registers.read(inst)), (True, registers.written(inst))):
                ranges += [(FILES.index(r.file), is_written, r.first, r.count) for r in named]
            counts = wait_counts(inst) if inst.name == "s_waitcnt" else COUNTER_LIMITS
            row["address"], row["size"] = inst.address, inst.size
            row["unit"] = registers.UNITS.index(registers.unit(inst))
            row["vmcnt"], row["lgkmcnt"] = counts["vmcnt"], counts["lgkmcnt"]
            row["first_register"], row["register_count"] = first, len(ranges) - first
            row["name"], row["text"] = inst.name, format_instruction(inst)
        patterns = np.frombuffer(b"".join(self._patterns), np.uint32).reshape(-1, LANES)
        return Trace(
            instructions=static,
            registers=np.array(ranges, REGISTERS),
            waves=np.array(self._waves, WAVE),
            set_starts=np.array(self._set_starts, np.uint32),
            set_waves=np.array(self._set_waves, np.uint32),
            steps=np.frombuffer(self._steps.tobytes(), STEP),
            accesses=np.concatenate([np.zeros(0, ACCESS), *self._accesses]),
            patterns=patterns,
            lines=np.concatenate([np.zeros(0, np.uint64), *self._lines]),
            info=self._info,
        )


#: Odd 64-bit multipliers that tell rows of lanes apart.
_MULTIPLIERS = np.random.default_rng(0).integers(0, 1 << 63, LANES, np.uint64) * np.uint64(2) + np.uint64(1)


def _unique_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the different rows of uint32 [n, 64], for each row which of them it is), by hashes that are then checked."""
    hashes = (rows * _MULTIPLIERS).sum(axis=1, dtype=np.uint64)
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    if np.array_equal(rows[first[which]], rows):
        return rows[first], which
    return rows, np.arange(len(rows))
