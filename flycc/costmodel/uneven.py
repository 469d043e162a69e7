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
    64 or else of the three shortest lengths, and one of a length between."""
    kinds, numbers = np.unique(np.asarray(lengths), return_index=True)
    upper = max(int((kinds <= _LONGEST).sum()) - 1, min(2, len(kinds) - 1))
    between = kinds[1:upper]
    middle = [1 + int(abs(between - (3 * kinds[0] + kinds[upper]) / 4).argmin())] if len(between) else []
    return [int(numbers[i]) for i in sorted({0, *middle, upper})]


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
class _Line:
    """Clocks that a workgroup of a `length` adds, at two lengths, and on the line through these at others; `start` is
    what the launch takes beside. `timings` are of as many equal workgroups of the two."""

    lengths: tuple[int, int]
    paces: tuple[float, float]
    timings: tuple[Timing, Timing]
    start: float

    def at(self, length: np.ndarray) -> np.ndarray:
        """Clocks of workgroups of these lengths."""
        (least, most), (first, last) = self.lengths, self.paces
        return np.asarray(first + (length - least) * (last - first) / (most - least))

    def bend(self, length: int, pace: float, lengths: np.ndarray) -> float:
        """By how much workgroups of `lengths` differ, as a share of all their clocks, from a parabola through the two
        and a third length that adds `pace`."""
        least, most = self.lengths
        off = (pace - float(self.at(np.array(length)))) / ((length - least) * (length - most))
        return abs(off) * float(abs((lengths - least) * (lengths - most)).sum() / self.at(lengths).sum())


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
        self.equal = {
            length: Launch(trace, machine, grid, reuse=self.reuse, traced=[by_length[length]])
            for length in self.known
        }
        self.dealt = schedule(lengths.tolist(), self.resident, machine)
        self._mean_length = float(lengths.mean())
        self._checked = False

    @property
    def simulated(self) -> list[Program]:
        return [program for launch in self.equal.values() for program in launch.simulated]

    @property
    def active(self) -> float:
        return self.dealt.active

    @property
    def tail(self) -> float:
        return self.dealt.tail

    def _ending(self, share: Supply) -> tuple[float, Timing]:
        """The `Timing` is that of workgroups of the mean length."""
        line = self._line(share)
        if not self._checked:  # what a supply changes, it changes at all lengths
            between = self.known[1:-1]
            bends = [line.bend(length, self._pace(length, share)[0], self.lengths) for length in between]
            self.uncertain, self._checked = max(bends, default=0.0), True
        self.unsteady = any(launch.unsteady for launch in self.equal.values())
        self.dealt = self._deal(line, share)
        least, most = line.lengths
        beyond = (self._mean_length - most) / (most - least)
        timing = extrapolate(*line.timings, beyond)
        return line.start + self.dealt.end, replace(timing, events=[])

    def _line(self, share: Supply) -> _Line:
        least, most = self.known[0], self.known[-1]
        (first, before), (last, after) = self._pace(least, share), self._pace(most, share)
        start = after.clk - len(after.ends) * last
        return _Line((least, most), (first, last), (before, after), start)

    def _pace(self, length: int, share: Supply) -> tuple[float, Timing]:
        """Clocks that another workgroup of a traced length adds, and the timing of some."""
        count = min(launch.most([0]) for launch in self.equal.values())
        timing = self.equal[length].simulate([0] * count, share)
        return self.equal[length].pace(timing), timing

    def _deal(self, line: _Line, share: Supply) -> Schedule:
        alone = 1.0
        if self.resident > 1:
            by_itself = self.equal[line.lengths[1]].simulate([0], share).clk - line.start
            alone = min(1.0, max(1 / self.resident, line.paces[1] / max(1.0, by_itself)))
        return schedule(line.at(self.lengths).tolist(), self.resident, self.machine, alone)

    def each(self) -> dict[str, float]:
        least, most = self.known[0], self.known[-1]
        first, last = self.equal[least].each(), self.equal[most].each()
        share = (self._mean_length - least) / (most - least)
        return {name: first[name] + (last[name] - first[name]) * share for name in first}

    def _of_workgroups(self) -> list[str]:
        known = ", ".join(map(str, self.known))
        return [
            f"workgroups: lengths {self.lengths.min()} to {self.lengths.max()}, by a line through those of {known}, "
            f"within {self.uncertain:.1%}; compute units idle {self.dealt.tail:.0%} of the time at the end"
        ]
