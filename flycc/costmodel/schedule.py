"""Workgroups given out to compute units, as the device does it, if each takes a known amount of their work.

Workgroups go to the XCDs in turns, and in each XCD, in their order, to the compute unit that has room first. Those that
are resident share it equally.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from flycc.costmodel.machine import Machine

#: Times that differ by less than this factor are the same but for rounding.
_AT_ONCE = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Schedule:
    """`cu` that each workgroup goes to, int64 [workgroups], and `ends`, float64 [machine.cus], when the last of each
    compute unit is done, in the unit of the work, of which a full compute unit does 1 at a time."""

    cu: np.ndarray
    ends: np.ndarray

    @property
    def end(self) -> float:
        """When all is done."""
        return float(self.ends.max())

    @property
    def active(self) -> float:
        """The mean number of compute units that are not done yet."""
        return min(float(len(self.ends)), float(self.ends.sum()) / self.end)

    @property
    def tail(self) -> float:
        """Share of the time, 0 to 1, in which the mean compute unit has run out of work."""
        return 1 - self.active / len(self.ends)


def schedule(work: Sequence[float], resident: int, machine: Machine, alone: float = 1.0) -> Schedule:
    """Give out workgroups, `resident` of which fit a compute unit, of so much `work` each, above 0, in launch order.

    `alone` is what a workgroup by itself does at a time, 1 / `resident` to 1: k resident ones do min(1, k * `alone`).
    """
    cu = np.empty(len(work), np.int64)
    ends = np.zeros(machine.cus)
    for xcd in range(machine.xcds):
        mine = slice(xcd, None, machine.xcds)
        first = xcd * machine.cus_per_xcd
        units = [_Unit(resident, alone) for _ in range(machine.cus_per_xcd)]
        cu[mine] = np.array(_give_out(list(work[mine]), units), np.int64) + first
        ends[first : first + len(units)] = [unit.time for unit in units]
    return Schedule(cu, ends)


@dataclass(slots=True)
class _Unit:
    """A compute unit at `time`: each of its workgroups has had `done` since the beginning, or would have had if it had
    been there; `until` are values of `done` at which they end."""

    resident: int
    alone: float
    time: float = 0.0
    done: float = 0.0
    until: list[float] = field(default_factory=list)

    @property
    def next(self) -> float:
        """When the next workgroup ends."""
        return self.time + (self.until[0] - self.done) / self._rate

    @property
    def _rate(self) -> float:
        """What each workgroup gets at a time."""
        count = len(self.until)
        return min(1.0, count * self.alone) / count

    def add(self, work: float) -> None:
        heapq.heappush(self.until, self.done + work)

    def advance(self, time: float) -> None:
        """To when the next workgroup ends; all that end then leave."""
        self.time, self.done = time, self.until[0]
        while self.until and self.until[0] <= self.done * _AT_ONCE:
            heapq.heappop(self.until)


def _give_out(work: list[float], units: list[_Unit]) -> list[int]:
    """Number of the unit that each workgroup of an XCD goes to; the units end at their `time`."""
    chosen: list[int] = []
    events: list[tuple[float, int]] = []

    def fill(free: list[int], time: float) -> None:
        """The next workgroups go to units that have room, to those with fewest first."""
        open_ = [(len(units[i].until), i) for i in free]
        heapq.heapify(open_)
        while open_ and len(chosen) < len(work):
            count, i = open_[0]
            units[i].time = time
            units[i].add(work[len(chosen)])
            chosen.append(i)
            if count + 1 < units[i].resident:
                heapq.heapreplace(open_, (count + 1, i))
            else:
                heapq.heappop(open_)
        for i in free:
            if units[i].until:
                heapq.heappush(events, (units[i].next, i))

    fill(list(range(len(units))), 0.0)
    while events:
        time = events[0][0]
        free = []
        while events and events[0][0] <= time * _AT_ONCE:
            free.append(heapq.heappop(events)[1])
            units[free[-1]].advance(time)
        fill(free, time)
    return chosen
