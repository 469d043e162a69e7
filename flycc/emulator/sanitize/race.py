"""Sanitizer of data races, on LDS and on device memory, by happens-before.

Every wave has a vector clock over the waves of its workgroup, which barriers join. Atomics, and loads
and stores that bypass the caches (sc1), synchronise too, also between workgroups: each releases what its
wave knows to its buffer (or to the workgroup's LDS), and those that return a value acquire what was
released there. One synchronisation variable a buffer is coarse: it may hide a race, and invents none.

An LDS write, and a load to LDS, is complete only when it is waited for: until then it is ordered before
nothing that other waves do, whatever barriers they pass. Two stores of the same value are no race:
compilers let waves that hold the same data store it without taking turns. Loads, and stores to device memory, count as
done when they are issued. Of the last writer and two readers of every cell all is known; older readers
are forgotten.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flycc.emulator.isa.instruction import Instruction
from flycc.emulator.memory import Memory, Region, load_elements
from flycc.emulator.observe import Access, Observer
from flycc.emulator.program import Kernel
from flycc.emulator.sanitize.finding import Findings, Site
from flycc.emulator.sanitize.places import site
from flycc.emulator.sanitize.shadow import WIDEST, Shadow
from flycc.emulator.state import Batch

#: The clock of a write that is not complete: later than any.
PENDING = np.iinfo(np.int32).max

#: What a cell of shadow memory holds: the events of its last writer and of two readers, 0 for none.
_CELL = ("writer", "reader", "other")


class _Events:
    """What waves did, a number from 1 up for every access of every wave: its wave in the launch, the wave's
    clock, the number of the instruction, and whether it is atomic."""

    def __init__(self) -> None:
        self.count = 1
        self.wave, self.clock, self.inst = (np.zeros(1024, np.int32) for _ in range(3))
        self.wave[0] = -1
        self.atomic = np.zeros(1024, bool)

    def add(self, waves: np.ndarray, clocks: np.ndarray, inst: int, atomic: bool) -> int:
        """The number of the first of as many events as there are waves."""
        first, self.count = self.count, self.count + len(waves)
        if self.count > len(self.wave):
            for name in ("wave", "clock", "inst", "atomic"):
                array = getattr(self, name)
                setattr(
                    self, name, np.concatenate([array, np.zeros(max(len(array), self.count), array.dtype)])
                )
        new = slice(first, self.count)
        self.wave[new], self.clock[new], self.inst[new], self.atomic[new] = waves, clocks, inst, atomic
        return first


class _Touch(NamedTuple):
    """What an access touches of one memory.

    `cells`, `lanes` and `of_wave`, int64 [m]: cells of `shadow`, and which lane of which of the access's
    waves touches them. `variable` is what atomics on this memory synchronise by.
    """

    access: Access
    variable: tuple[str, int]
    shadow: Shadow
    cells: np.ndarray
    of_wave: np.ndarray
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
        self._events = _Events()
        self._instructions: list[Instruction] = []
        self._numbers: dict[int, int] = {}
        #: What was released to a buffer or to a workgroup's LDS: clocks of all waves of the launch.
        self._released: dict[tuple[str, int], np.ndarray] = {}
        self._first_group = 0
        self._next_group = 0

    def batch_begins(self, batch: Batch, groups: np.ndarray) -> None:
        self._first_group, self._next_group = self._next_group, self._next_group + len(groups)
        per_group = self._per_group = batch.waves_per_group
        self._total = int(np.prod(self._grid)) * per_group
        self._one = np.eye(per_group, dtype=np.int32)
        #: What waves know of the clocks of those of their workgroup, [groups, wave, of wave].
        self._known = np.tile(self._one, (len(groups), 1, 1))
        #: What waves know of other workgroups, for those that do: clocks of all waves of the launch.
        self._foreign: dict[int, np.ndarray] = {}
        self._lds = Shadow(batch.lds.size, *_CELL)
        #: Of writes that are not complete: the event of the access's first wave, and the waves left.
        self._incomplete: dict[Access, tuple[int, int]] = {}

    def barrier(self, batch: Batch, groups: np.ndarray) -> None:
        self._known[groups] = self._known[groups].max(axis=1, keepdims=True) + self._one
        for group in groups if self._foreign else ():
            waves = range(group * self._per_group, (group + 1) * self._per_group)
            foreign = [self._foreign[w] for w in waves if w in self._foreign]
            if foreign:
                both = np.maximum.reduce(foreign)
                self._foreign.update((w, both) for w in waves)

    def access(self, batch: Batch, access: Access) -> None:
        touches = self._touches(batch, access)
        if not touches:
            return
        atomic = touches[0].atomic
        if atomic:
            for touch in touches:
                self._synchronise(touch)
        is_late = access.space == "lds" and access.kind in ("store", "load-to-lds")
        clocks = np.full(len(access.waves), PENDING) if is_late else self._clocks(access.waves)
        first = self._events.add(
            access.waves + self._first_group * self._per_group, clocks, self._number(access.inst), atomic
        )
        if is_late:
            self._incomplete[access] = first, len(access.waves)
        for touch in touches:
            events = (touch.of_wave + first).astype(np.int32)
            if access.kind == "load":
                self._check(batch, touch, "writer", events)
                self._record_read(touch, events)
            else:
                for role in _CELL:
                    self._check(batch, touch, role, events)
                self._record_write(batch, touch, events)
        if atomic and access.kind != "load":
            slots = access.waves % self._per_group
            self._known[access.waves // self._per_group, slots, slots] += 1

    def landed(self, batch: Batch, waves: np.ndarray, access: Access) -> None:
        if access not in self._incomplete:
            return
        first, left = self._incomplete.pop(access)
        self._events.clock[first + np.flatnonzero(np.isin(access.waves, waves))] = self._clocks(waves)
        if left > len(waves):
            self._incomplete[access] = first, left - len(waves)

    def _clocks(self, waves: np.ndarray) -> np.ndarray:
        slots = waves % self._per_group
        return self._known[waves // self._per_group, slots, slots]

    def _number(self, inst: Instruction) -> int:
        number = self._numbers.get(inst.address)
        if number is None:
            number = self._numbers[inst.address] = len(self._instructions)
            self._instructions.append(inst)
        return number

    def _touches(self, batch: Batch, access: Access) -> list[_Touch]:
        """What an access touches, by memory; nothing where no wave can write."""
        if access.space in ("lanes", "scratch"):
            return []
        index, lanes = np.nonzero(access.mask)
        addresses = access.addresses[access.mask]
        atomic = access.kind == "atomic" or bool(access.inst.mods.get("sc1", 0))
        parts: list[tuple[tuple[str, int], Shadow, np.ndarray, np.ndarray | slice]] = []
        if access.space == "lds":
            offsets = addresses.astype(np.int64) + batch.lds_base[access.waves[index], 0]
            parts.append((("lds", 0), self._lds, offsets, slice(None)))
        else:
            for region, part in _by_region(self._memory, addresses):
                if region.writable:
                    base = region.start & -WIDEST
                    shadow = self._shadows.get(region.start)
                    if shadow is None:
                        shadow = self._shadows[region.start] = Shadow(region.end - base, *_CELL)
                    offsets = (addresses[part] - np.uint64(base)).astype(np.int64)
                    parts.append((("global", region.start), shadow, offsets, part))
        touches = []
        for variable, shadow, offsets, part in parts:
            cells = shadow.cells(offsets, access.size)
            each = cells.shape[1]
            of_wave, of_lane = np.repeat(index[part], each), np.repeat(lanes[part], each)
            touches.append(_Touch(access, variable, shadow, cells.reshape(-1), of_wave, of_lane, atomic))
        return touches

    def _check(self, batch: Batch, touch: _Touch, role: str, events: np.ndarray) -> None:
        past, happened = touch.shadow[role][touch.cells], self._events
        if not past.any():
            return
        suspect = (past > 0) & (happened.wave[past] != happened.wave[events])
        if touch.atomic:
            suspect &= ~happened.atomic[past]
        at = np.flatnonzero(suspect)
        if at.size:
            at = at[~self._ordered(past[at], touch.access.waves[touch.of_wave[at]])]
        if at.size and role == "writer" and touch.access.values is not None:
            at = at[~self._unchanged(batch, touch, at)]
        if at.size:
            self._report(batch, touch, role, past, at)

    def _unchanged(self, batch: Batch, touch: _Touch, at: np.ndarray) -> np.ndarray:
        """Whether a store to the touched cells `at` writes what memory holds already."""
        access, index, lanes = touch.access, touch.of_wave[at], touch.lanes[at]
        assert access.values is not None
        offsets = access.addresses[index, lanes].astype(np.int64)
        if access.space == "lds":
            memory, offsets = batch.lds, offsets + batch.lds_base[access.waves[index], 0]
        else:
            region = self._memory.region_at(touch.variable[1])
            assert region is not None
            memory, offsets = region.data, offsets - region.start
        return _same(load_elements(memory, offsets, access.size), access.values[index, lanes])

    def _ordered(self, past: np.ndarray, waves: np.ndarray) -> np.ndarray:
        """Whether the events `past` happened before what `waves` (of the batch) do now."""
        happened, per_group = self._events, self._per_group
        groups = waves // per_group
        clocks, slots = happened.clock[past], happened.wave[past] - (groups + self._first_group) * per_group
        near = (slots >= 0) & (slots < per_group)
        known = self._known.reshape(-1)[np.where(near, waves * per_group + slots, 0)]
        ordered = near & (known >= clocks)
        if self._foreign:
            for wave in np.unique(waves[~near]):
                if wave in self._foreign:
                    far = ~near & (waves == wave)
                    ordered[far] = self._foreign[wave][happened.wave[past[far]]] >= clocks[far]
        return ordered

    def _record_read(self, touch: _Touch, events: np.ndarray) -> None:
        """Keep the reader where it replaces one that it follows; else as the other reader."""
        happened, cells, reader = self._events, touch.cells, touch.shadow["reader"]
        past = reader[cells]
        follows = (past == 0) | (happened.wave[past] == happened.wave[events])
        at = np.flatnonzero(~follows)
        if at.size:
            follows[at] = self._ordered(past[at], touch.access.waves[touch.of_wave[at]])
        if follows.all():
            reader[cells] = events
        else:
            reader[cells[follows]] = events[follows]
        rest = reader[cells] != events
        if rest.any():
            touch.shadow["other"][cells[rest]] = events[rest]

    def _record_write(self, batch: Batch, touch: _Touch, events: np.ndarray) -> None:
        shadow, cells = touch.shadow, touch.cells
        shadow["writer"][cells] = events
        shadow["reader"][cells] = 0
        shadow["other"][cells] = 0
        written = shadow["writer"][cells]
        clash = np.flatnonzero(written != events)  # other waves in the same instruction
        if clash.size and touch.access.values is not None:
            clash = clash[~_agree(touch, clash)]
        if clash.size and not touch.atomic:
            self._report(batch, touch, "writer", written, clash)

    def _synchronise(self, touch: _Touch) -> None:
        """Acquire (if a value is returned) and release (if memory is written), one wave after another."""
        acquires, releases = bool(touch.access.inst.dst), touch.access.kind != "load"
        for wave in map(int, touch.access.waves[np.unique(touch.of_wave)]):
            group, slot = divmod(wave, self._per_group)
            first = (self._first_group + group) * self._per_group
            of_group = slice(first, first + self._per_group)
            known = self._known[group, slot]
            memory, which = touch.variable
            variable = (memory, self._first_group + group if memory == "lds" else which)
            released = self._released.get(variable)
            if acquires and released is not None:
                foreign = self._foreign.get(wave)
                self._foreign[wave] = released.copy() if foreign is None else np.maximum(foreign, released)
                np.maximum(known, released[of_group], out=known)
            if releases:
                if released is None:
                    released = self._released[variable] = np.zeros(self._total, np.int32)
                if wave in self._foreign:
                    np.maximum(released, self._foreign[wave], out=released)
                np.maximum(released[of_group], known, out=released[of_group])

    def _report(self, batch: Batch, touch: _Touch, role: str, past: np.ndarray, at: np.ndarray) -> None:
        """Findings about the touched cells `at`, whose earlier events are `past`: one for each earlier instruction."""
        access, happened = touch.access, self._events
        numbers = happened.inst[past[at]]
        for number in np.unique(numbers):
            hits = at[numbers == number]
            first, event = int(hits[0]), int(past[hits[0]])
            index, lane = int(touch.of_wave[first]), int(touch.lanes[first])
            group, slot = divmod(int(happened.wave[event]), self._per_group)
            did = "written" if role == "writer" else "read"
            late = ", a write that has not been waited for" if happened.clock[event] == PENDING else ""
            self._findings.add(
                "race",
                f"{access.kind} of {access.size} bytes of {access.space} memory that another wave has "
                f"{did} with no order between them{late}",
                site(batch, access, index),
                lane=lane,
                memory_address=int(access.addresses[index, lane]),
                earlier=Site.of(
                    self._instructions[number], np.unravel_index(group, self._grid[::-1])[::-1], slot
                ),
                count=len(hits),
            )


def _same(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Whether elements, [m] or for 12 bytes [m, 3], are the same bit for bit."""
    as_bytes = [np.ascontiguousarray(x).view(np.uint8).reshape(len(x), -1) for x in (some, others)]
    return (as_bytes[0] == as_bytes[1]).all(axis=1)


def _agree(touch: _Touch, at: np.ndarray) -> np.ndarray:
    """Whether the touched cells `at` get the same from this lane as from the last of the instruction to write them."""
    access = touch.access
    assert access.values is not None
    unique, which = np.unique(touch.cells, return_inverse=True)
    last = np.empty(len(unique), np.int64)
    last[which] = np.arange(len(which))
    final = last[which[at]]
    mine, others = ((touch.of_wave[i], touch.lanes[i]) for i in (at, final))
    agree = _same(access.values[mine], access.values[others])
    return agree & (access.addresses[mine] == access.addresses[others])


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
