"""Sanitizer of data races, on LDS and on device memory, by happens-before.

Every wave has a vector clock over the waves of its workgroup, which barriers join. Atomics, and loads
and stores that bypass the caches (sc1), synchronise too, also between workgroups: each releases what its
wave knows to its buffer (or to the workgroup's LDS), and those that return a value acquire what was
released there. One synchronisation variable a buffer is coarse: it may hide a race, and invents none.

An LDS write, and a load to LDS, is complete only when it is waited for: until then it is ordered before
nothing that other waves do, whatever barriers they pass. Loads, and stores to device memory, count as
done when they are issued. Of the last writer and two readers of every cell all is known; older readers
are forgotten.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flycc.emulator.isa.instruction import Instruction
from flycc.emulator.memory import Memory, Region
from flycc.emulator.observe import Access, Observer
from flycc.emulator.program import Kernel
from flycc.emulator.sanitize.finding import Findings, Site
from flycc.emulator.sanitize.shadow import WIDEST, Shadow
from flycc.emulator.state import Batch

#: The clock of a write that is not complete: later than any.
PENDING = np.iinfo(np.int32).max

_ROLES = ("writer", "reader", "other")
_FIELDS = {
    f"{role}_{name}": kind
    for role in _ROLES
    for name, kind in (
        ("wave", (np.int32, -1)),
        ("clock", (np.int32, 0)),
        ("inst", (np.int32, 0)),
        ("atomic", (np.bool_, 0)),
    )
}


class _Touch(NamedTuple):
    """Cells that an access touches: `cells`, `waves` (of the batch) and `lanes`, all int64 [m]."""

    access: Access
    cells: np.ndarray
    waves: np.ndarray
    lanes: np.ndarray
    atomic: bool


class Races(Observer):
    """Two accesses of different waves to the same bytes, one a write, not both atomic, that nothing orders."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def launch_begins(
        self, kernel: Kernel, grid: tuple[int, int, int], block: tuple[int, int, int], memory: Memory
    ) -> None:
        self._grid, self._memory = grid, memory
        self._shadows: dict[int, Shadow] = {}
        self._instructions: list[Instruction] = []
        self._numbers: dict[int, int] = {}
        #: What was released to a buffer or to a workgroup's LDS: clocks of all waves of the launch.
        self._released: dict[tuple[str, int], np.ndarray] = {}
        self._first_group = 0
        self._next_group = 0

    def batch_begins(self, batch: Batch, groups: np.ndarray) -> None:
        self._first_group, self._next_group = self._next_group, self._next_group + len(groups)
        per_group = batch.waves_per_group
        self._per_group = per_group
        self._total = int(np.prod(self._grid)) * per_group
        #: What waves know of the clocks of those of their workgroup, [groups, wave, of wave].
        self._known = np.zeros((len(groups), per_group, per_group), np.int32)
        self._known[:] = np.eye(per_group, dtype=np.int32)
        #: What waves know of other workgroups, for those that do: clocks of all waves of the launch.
        self._foreign: dict[int, np.ndarray] = {}
        self._lds = Shadow(batch.lds.size, **_FIELDS)

    def barrier(self, batch: Batch, groups: np.ndarray) -> None:
        joined = self._known[groups].max(axis=1, keepdims=True)
        self._known[groups] = joined + np.eye(self._per_group, dtype=np.int32)
        for group in groups if self._foreign else ():
            waves = range(group * self._per_group, (group + 1) * self._per_group)
            foreign = [self._foreign[w] for w in waves if w in self._foreign]
            if foreign:
                both = np.maximum.reduce(foreign)
                self._foreign.update((w, both) for w in waves)

    def access(self, batch: Batch, access: Access) -> None:
        for key, shadow, touch in self._touches(batch, access):
            if touch.atomic:
                self._synchronise(key, touch)
            self._check(batch, shadow, touch)
            if access.kind == "load":
                self._record_read(shadow, touch)
            else:
                self._record_write(batch, shadow, touch)
            if touch.atomic and access.kind != "load":
                waves = np.unique(touch.waves)
                slots = waves % self._per_group
                self._known[waves // self._per_group, slots, slots] += 1

    def landed(self, batch: Batch, waves: np.ndarray, access: Access) -> None:
        if access.space != "lds" or access.kind not in ("store", "load-to-lds"):
            return
        for _, shadow, touch in self._touches(batch, access, np.isin(access.waves, waves)):
            cells, me = touch.cells, self._global(touch.waves)
            still = (shadow["writer_wave"][cells] == me) & (shadow["writer_clock"][cells] == PENDING)
            still &= shadow["writer_inst"][cells] == self._number(access.inst)
            shadow["writer_clock"][cells[still]] = self._clocks(touch.waves[still])

    def _touches(
        self, batch: Batch, access: Access, which: np.ndarray | slice = slice(None)
    ) -> list[tuple[tuple[str, int], Shadow, _Touch]]:
        """What an access touches, by memory, with the memory's synchronisation variable."""
        if access.space in ("lanes", "scratch"):
            return []
        mask = access.mask[which]
        index, lanes = np.nonzero(mask)
        waves, addresses = access.waves[which][index], access.addresses[which][mask]
        atomic = access.kind == "atomic" or bool(access.inst.mods.get("sc1", 0))
        if access.space == "lds":
            offsets = addresses.astype(np.int64) + batch.lds_base[waves, 0]
            parts = [(("lds", -1), self._lds, offsets, slice(None))]
        else:
            parts = []
            for region, part in _by_region(self._memory, addresses):
                if region.writable:
                    base = region.start & -WIDEST
                    shadow = self._shadows.get(region.start)
                    if shadow is None:
                        shadow = self._shadows[region.start] = Shadow(region.end - base, **_FIELDS)
                    offsets = (addresses[part] - np.uint64(base)).astype(np.int64)
                    parts.append((("global", region.start), shadow, offsets, part))
        touches = []
        for key, shadow, offsets, part in parts:
            cells = shadow.cells(offsets, access.size)
            each = cells.shape[1]
            touch = _Touch(
                access,
                cells.reshape(-1),
                np.repeat(waves[part], each),
                np.repeat(lanes[part], each),
                atomic,
            )
            touches.append((key, shadow, touch))
        return touches

    def _global(self, waves: np.ndarray) -> np.ndarray:
        """Numbers of waves in the launch."""
        return waves + self._first_group * self._per_group

    def _clocks(self, waves: np.ndarray) -> np.ndarray:
        slots = waves % self._per_group
        return self._known[waves // self._per_group, slots, slots]

    def _number(self, inst: Instruction) -> int:
        number = self._numbers.get(inst.address)
        if number is None:
            number = self._numbers[inst.address] = len(self._instructions)
            self._instructions.append(inst)
        return number

    def _check(self, batch: Batch, shadow: Shadow, touch: _Touch) -> None:
        me = self._global(touch.waves)
        for role in _ROLES if touch.access.kind != "load" else _ROLES[:1]:
            past = shadow[f"{role}_wave"][touch.cells]
            suspect = (past >= 0) & (past != me)
            if touch.atomic:
                suspect &= ~shadow[f"{role}_atomic"][touch.cells]
            at = np.flatnonzero(suspect)
            if at.size:
                clocks = shadow[f"{role}_clock"][touch.cells[at]]
                at = at[~self._happened_before(past[at], clocks, touch.waves[at])]
            if at.size:
                self._report(batch, shadow, touch, role, at)

    def _happened_before(self, past: np.ndarray, clocks: np.ndarray, waves: np.ndarray) -> np.ndarray:
        """Whether what waves `past` (of the launch) did at `clocks` is ordered before `waves` now."""
        per_group = self._per_group
        groups = waves // per_group
        near = past // per_group == groups + self._first_group
        known = self._known[groups, waves % per_group, past % per_group]
        ordered = near & (known >= clocks)
        if self._foreign:
            for wave in np.unique(waves[~near]):
                if wave in self._foreign:
                    far = ~near & (waves == wave)
                    ordered[far] = self._foreign[wave][past[far]] >= clocks[far]
        return ordered

    def _record_read(self, shadow: Shadow, touch: _Touch) -> None:
        """Keep the reader where it replaces one that it follows; else as the other reader."""
        cells, me = touch.cells, self._global(touch.waves)
        past = shadow["reader_wave"][cells]
        follows = (past < 0) | (past == me)
        at = np.flatnonzero(~follows)
        if at.size:
            follows[at] = self._happened_before(past[at], shadow["reader_clock"][cells[at]], touch.waves[at])
        self._put(shadow, "reader", touch, follows)
        rest = shadow["reader_wave"][cells] != me
        if rest.any():
            self._put(shadow, "other", touch, rest)

    def _record_write(self, batch: Batch, shadow: Shadow, touch: _Touch) -> None:
        everywhere = np.ones(touch.cells.size, bool)
        self._put(shadow, "writer", touch, everywhere)
        if touch.access.space == "lds" and touch.access.kind != "atomic":
            shadow["writer_clock"][touch.cells] = PENDING
        for role in _ROLES[1:]:
            shadow[f"{role}_wave"][touch.cells] = -1
        clash = shadow["writer_wave"][touch.cells] != self._global(touch.waves)
        if not touch.atomic and clash.any():
            self._report(batch, shadow, touch, "writer", np.flatnonzero(clash))

    def _put(self, shadow: Shadow, role: str, touch: _Touch, which: np.ndarray) -> None:
        cells, waves = touch.cells, touch.waves
        if not which.all():
            cells, waves = cells[which], waves[which]
        shadow[f"{role}_wave"][cells] = self._global(waves)
        shadow[f"{role}_clock"][cells] = self._clocks(waves)
        shadow[f"{role}_inst"][cells] = self._number(touch.access.inst)
        shadow[f"{role}_atomic"][cells] = touch.atomic

    def _synchronise(self, key: tuple[str, int], touch: _Touch) -> None:
        """Acquire (if a value is returned) and release (if memory is written), one wave after another."""
        acquires, releases = bool(touch.access.inst.dst), touch.access.kind != "load"
        for wave in map(int, np.unique(touch.waves)):
            group, slot = divmod(wave, self._per_group)
            first = (self._first_group + group) * self._per_group
            of_group = slice(first, first + self._per_group)
            variable, known = self._variable(key, group), self._known[group, slot]
            released = self._released.get(variable)
            if acquires and released is not None:
                foreign = self._foreign.setdefault(wave, np.zeros(self._total, np.int32))
                self._foreign[wave] = np.maximum(foreign, released)
                np.maximum(known, released[of_group], out=known)
            if releases:
                if released is None:
                    released = self._released[variable] = np.zeros(self._total, np.int32)
                if wave in self._foreign:
                    np.maximum(released, self._foreign[wave], out=released)
                np.maximum(released[of_group], known, out=released[of_group])

    def _variable(self, key: tuple[str, int], group: int) -> tuple[str, int]:
        return ("lds", self._first_group + group) if key[0] == "lds" else key

    def _report(self, batch: Batch, shadow: Shadow, touch: _Touch, role: str, at: np.ndarray) -> None:
        """Findings about the touched cells `at`, one for each earlier instruction."""
        access = touch.access
        numbers = shadow[f"{role}_inst"][touch.cells[at]]
        for number in np.unique(numbers):
            hits = at[numbers == number]
            first = int(hits[0])
            group, slot = divmod(int(touch.waves[first]), self._per_group)
            index = int(np.searchsorted(access.waves, touch.waves[first]))
            past_group, past_slot = divmod(int(shadow[f"{role}_wave"][touch.cells[first]]), self._per_group)
            did = "written" if role == "writer" else "read"
            pending = role == "writer" and int(shadow["writer_clock"][touch.cells[first]]) == PENDING
            late = ", a write that has not been waited for" if pending else ""
            self._findings.add(
                "race",
                f"{access.kind} of {access.size} bytes of {access.space} memory that another wave has "
                f"{did} with no order between them{late}",
                Site.of(access.inst, batch.workgroups[group], slot),
                lane=int(touch.lanes[first]),
                memory_address=int(access.addresses[index, touch.lanes[first]]),
                earlier=Site.of(
                    self._instructions[number],
                    tuple(int(i) for i in np.unravel_index(past_group, self._grid[::-1])[::-1]),
                    past_slot,
                ),
                count=len(hits),
            )


def _by_region(memory: Memory, addresses: np.ndarray) -> list[tuple[Region, np.ndarray | slice]]:
    """The buffers that addresses, uint64 [m], lie in, with the part of them that does."""
    parts: list[tuple[Region, np.ndarray | slice]] = []
    left = np.ones(addresses.shape, bool)
    while left.any():
        region = memory.region_at(int(addresses[left.argmax()]))
        if region is None:  # the access faults when it is performed
            left[left.argmax()] = False
            continue
        part = (addresses >= np.uint64(region.start)) & (addresses < np.uint64(region.end))
        if part.all():
            return [(region, slice(None))]
        parts.append((region, part))
        left &= ~part
    return parts
