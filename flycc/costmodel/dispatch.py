"""Which workgroups a compute unit gets, and which of the traced ones stand for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flycc.costmodel.machine import Machine
from flycc.costmodel.reuse import Extent
from flycc.costmodel.schedule import Schedule, schedule
from flycc.costmodel.streams import Program

#: Workgroups of a grid beyond which a sample, spread evenly over their numbers, stands for them.
_LISTED = 1 << 14
#: Workgroups that are compared with all traced ones at once.
_CHUNK = 1 << 10
#: Workgroups at the end of an axis that do this many times the work of others are no edges where work is cut off.
_GROWS = 1.5


@dataclass(frozen=True, slots=True)
class Load:
    """What one compute unit gets: `count` workgroups, and indices of traced ones like them, or like an even sample of
    them, in the order in which they start."""

    count: int
    order: list[int]


class Dispatch:
    """A grid of workgroups like the traced ones, given to compute units that hold `resident` of them.

    Workgroups go to the XCDs in turns, and in each XCD to the compute unit that has room first.
    """

    def __init__(self, traced: list[Program], grid: Extent, resident: int, machine: Machine) -> None:
        self.count = math.prod(grid)
        self._resident, self._machine = resident, machine
        first = [next(j for j, q in enumerate(traced) if q.waves == p.waves) for p in traced]
        self.work = {i: _work(traced[i], machine) for i in set(first)}
        listed = min(self.count, _LISTED)
        numbers = np.arange(listed, dtype=np.int64)
        if self.count > listed:  # steps of the golden ratio meet no period of the grid
            numbers = np.sort((numbers * 0.6180339887498949 % 1 * self.count).astype(np.int64))
            numbers[-1] = self.count - 1
        like = _like(traced, [self.work[i] for i in first], grid, numbers)
        self._like = np.array(first)[like]
        kinds, counts = np.unique(self._like, return_counts=True)
        self.shares = dict(zip(kinds.tolist(), (counts / listed).tolist(), strict=True))
        self.assumed = max(0, self.count - len(traced))

    @property
    def spread(self) -> float:
        """How many times the least work of a workgroup the greatest is."""
        work = [self.work[i] for i in self.shares]
        return max(work) / min(work)

    @cached_property
    def schedule(self) -> Schedule:
        """Where workgroups go, and when compute units are done, if work alone made time and each workgroup took as long
        beside others as by itself."""
        work = [self.work[i] for i in self._like.tolist()]
        return schedule(work, self._resident, self._machine, 1 / self._resident)

    def loads(self) -> list[Load]:
        """What the compute units that may end the launch get: the one with the last workgroup, and with most work."""
        most = -(-self.count // self._machine.cus)
        if len(self.shares) == 1:
            return [Load(most, [next(iter(self.shares))])]
        if self.count > len(self._like):
            return [Load(most, self._like.tolist())]
        dealt = self.schedule
        work = np.array([self.work[i] for i in self._like.tolist()])
        fullest = np.bincount(dealt.cu, work, self._machine.cus).argmax()
        orders = [self._like[dealt.cu == cu].tolist() for cu in (dealt.ends.argmax(), fullest)]
        found = [Load(len(order), order) for order in orders]
        return found[:1] if found[0] == found[1] else found

    @property
    def tail(self) -> float:
        """Share of the time, 0 to 1, in which the mean compute unit has run out of work."""
        cus = self._machine.cus
        if self.count <= cus:
            return 0.0
        if len(self.shares) == 1 or self.count > len(self._like):
            return 1 - self.count / (cus * -(-self.count // cus))
        return self.schedule.tail


def _work(program: Program, machine: Machine) -> float:
    """Clocks of a workgroup's operations one after another, with those of its bytes: to compare workgroups by."""
    clk = sum(max(op.clk, machine.slot_clk) for ops in program.waves for op in ops)
    return clk + sum(program.level_bytes.values()) / machine.operand_bytes_per_clk


def _like(traced: list[Program], work: list[float], grid: Extent, numbers: np.ndarray) -> np.ndarray:
    """Which traced workgroup stands for each of those numbers: itself, or one at the same edges, or else near.

    At edges work is cut off. If there is more of it, it grows along an axis, and what is near counts alone.
    """
    sizes = np.array(grid)
    known = np.array([p.workgroup for p in traced])
    at_edge = ((known == sizes - 1) & (sizes > 1)).any(axis=1)
    inner = max((w for w, edge in zip(work, at_edge, strict=True) if not edge), default=math.inf)
    cut_off = max((w for w, edge in zip(work, at_edge, strict=True) if edge), default=0.0) <= _GROWS * inner
    found = np.empty(len(numbers), np.int64)
    for start in range(0, len(numbers), _CHUNK):
        some = numbers[start : start + _CHUNK]
        ids = np.stack([some % grid[0], some // grid[0] % grid[1], some // (grid[0] * grid[1])], axis=1)
        apart = (abs(ids[:, None] - known[None]) / sizes).sum(axis=2)
        if cut_off:
            edges = ((ids == sizes - 1)[:, None] != (known == sizes - 1)[None]).sum(axis=2)
            apart += np.where(apart > 0, 4 * edges, 0)
        found[start : start + _CHUNK] = np.argmin(apart, axis=1)
    return found
