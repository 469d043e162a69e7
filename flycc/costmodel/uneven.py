"""Launches whose workgroups do unequal amounts of the same work, known in number: attention behind a causal mask.

A workgroup's length is how many tiles it walks through, or any number in which its time is linear. Some of two or more
lengths are traced, and launches of equal workgroups like each of them are simulated. A line through the clocks that one
of the shortest and one of the longest adds gives those of all others; all are then given out to compute units, and the
last one ends the launch. How far one of a length between is off the line makes the prediction less certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flycc.costmodel.compute_unit import Timing
from flycc.costmodel.launch import Launch
from flycc.costmodel.loops import extrapolate
from flycc.costmodel.machine import Machine
from flycc.costmodel.paths import Supply
from flycc.costmodel.reuse import Extent, Reuse
from flycc.costmodel.schedule import Schedule, schedule
from flycc.costmodel.streams import Program
from flycc.emulator.trace import Trace

#: The longest workgroup that is worth tracing: a line goes on beyond.
_LONGEST = 64


def representative(lengths: Sequence[int] | np.ndarray) -> list[int]:
    """Numbers of the workgroups to trace, given the lengths of all: one of the shortest, one of the longest of up to
    64 or else of the three shortest lengths, and one of a length in the middle."""
    kinds, numbers = np.unique(np.asarray(lengths), return_index=True)
    upper = max(int((kinds <= _LONGEST).sum()) - 1, min(2, len(kinds) - 1))
    middle = int(abs(kinds[: upper + 1] - (kinds[0] + kinds[upper]) / 2).argmin())
    return [int(numbers[i]) for i in sorted({0, middle, upper})]


def check_lengths(lengths: Sequence[int] | np.ndarray, grid: Extent) -> np.ndarray:
    """The lengths of a grid's workgroups as int64. Raises ValueError for other than one from 0 on for each."""
    found = np.asarray(lengths)
    count = grid[0] * grid[1] * grid[2]
    if found.shape != (count,) or found.dtype.kind not in "iu" or found.min() < 0:
        raise ValueError(
            f"lengths: got {found.dtype} {list(found.shape)}; a whole number from 0 on is needed for each of the "
            f"{count} workgroups"
        )
    return found.astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Paces:
    """By length: `timings` of as many equal workgroups, clocks that each adds, and `start`, that all take beside."""

    lengths: list[int]
    timings: list[Timing]
    paces: list[float]
    start: float

    def of(self, length: np.ndarray) -> np.ndarray:
        """Clocks that workgroups of these lengths add: on the line through the shortest and the longest."""
        first, last = self.paces[0], self.paces[-1]
        slope = (last - first) / (self.lengths[-1] - self.lengths[0])
        return np.asarray(first + (length - self.lengths[0]) * slope)

    def doubt(self, lengths: np.ndarray) -> float:
        """What a parabola through all three differs from the line, as a share of all clocks; 0 of two."""
        least, *between, most = self.lengths
        if not between:
            return 0.0
        middle = np.array(between)
        off = (np.array(self.paces[1:-1]) - self.of(middle)) / ((middle - least) * (middle - most))
        apart = abs((lengths - least) * (lengths - most)).sum()
        return float(abs(off).max() * apart / self.of(lengths).sum())


class UnevenLaunch(Launch):
    """A launch of workgroups of `lengths`, in launch order, of which some of two or more lengths are traced.

    Raises ValueError for a trace of only one length.
    """

    def __init__(
        self,
        trace: Trace,
        machine: Machine,
        grid: Extent,
        lengths: np.ndarray,
        reuse: Reuse | None = None,
        warm: bool = False,
    ) -> None:
        super().__init__(trace, machine, grid, None, reuse, warm)
        number = [p.workgroup[0] + grid[0] * (p.workgroup[1] + grid[1] * p.workgroup[2]) for p in self.traced]
        by_length = {int(lengths[n]): p for n, p in reversed(list(zip(number, self.traced, strict=True)))}
        self.lengths, self.known = lengths, sorted(by_length)
        if len(self.known) < 2:
            raise ValueError(
                f"lengths: those of the launch differ, but the traced workgroups are all of length {self.known[0]}"
            )
        self.equal = [
            Launch(trace, machine, grid, reuse=self.reuse, traced=[by_length[length]])
            for length in self.known
        ]
        self.dealt = schedule(lengths.tolist(), self.resident, machine)
        self._mean_length = float(lengths.mean())

    @property
    def simulated(self) -> list[Program]:
        return [program for launch in self.equal for program in launch.simulated]

    @property
    def active(self) -> float:
        return self.dealt.active

    @property
    def tail(self) -> float:
        return self.dealt.tail

    def _ending(self, share: Supply) -> tuple[float, Timing]:
        """The `Timing` is that of workgroups of the mean length."""
        paces = self._paces(share)
        self.uncertain = max(self.uncertain, paces.doubt(self.lengths))
        self.dealt = self._deal(paces, share)
        least, most = self.known[0], self.known[-1]
        beyond = (self._mean_length - most) / (most - least)
        timing = extrapolate(paces.timings[0], paces.timings[-1], beyond)
        return paces.start + self.dealt.end, replace(timing, events=[])

    def _paces(self, share: Supply) -> _Paces:
        count = min(launch.most([0]) for launch in self.equal)
        timings = [launch.simulate([0] * count, share) for launch in self.equal]
        self.unsteady = any(launch.unsteady for launch in self.equal)
        paces = [launch.pace(timing) for launch, timing in zip(self.equal, timings, strict=True)]
        starts = [timing.clk - count * pace for timing, pace in zip(timings, paces, strict=True)]
        return _Paces(self.known, timings, paces, max(starts))

    def _deal(self, paces: _Paces, share: Supply) -> Schedule:
        alone = 1.0
        if self.resident > 1:
            by_itself = self.equal[-1].simulate([0], share).clk - paces.start
            alone = min(1.0, max(1 / self.resident, paces.paces[-1] / max(1.0, by_itself)))
        return schedule(paces.of(self.lengths).tolist(), self.resident, self.machine, alone)

    def each(self) -> dict[str, float]:
        first, last = self.equal[0].each(), self.equal[-1].each()
        share = (self._mean_length - self.known[0]) / (self.known[-1] - self.known[0])
        return {name: first[name] + (last[name] - first[name]) * share for name in first}

    def _of_workgroups(self) -> list[str]:
        known = ", ".join(map(str, self.known))
        return [
            f"workgroups: lengths {self.lengths.min()} to {self.lengths.max()}, by a line through those of {known}, "
            f"within {self.uncertain:.1%}; compute units idle {self.dealt.tail:.0%} of the time at the end"
        ]
