"""How much of what misses L1 is in L2 and in the MALL, from the lines that a few traced workgroups touch.

Workgroups go to the XCDs in turns. A line that workgroups of one XCD share is fetched into its L2 once, so what counts
is how many different lines the workgroups of an XCD touch that run together. Two ways to know from a few:

    a grid of two or three axes   a line of the first workgroup depends on an axis unless its neighbour along that
                                  axis touches it too; so the tiles of a matrix product need (0,0), (1,0) and (0,1)
    a grid of one axis            the kernel makes tiles of its number in a way of its own: the workgroups after the
                                  first eight of an XCD add as many new lines as the latter four of those did
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from flycc.costmodel.machine import MI350, Machine
from flycc.costmodel.streams import Program

Extent = tuple[int, int, int]

#: How many different lines workgroups touch, by their numbers (x running fastest, int64 [n]).
Touched = Callable[[np.ndarray], float]

#: Workgroups of a grid that are looked at to estimate what all of them touch.
_SAMPLE = 1 << 16
#: Workgroups of one XCD that `neighbours` names in a grid of one axis.
_MATES = 8


@dataclass(frozen=True, slots=True)
class Reuse:
    """`l2` is the share, 0 to 1, of workgroups' first touches of lines that L2 serves; `mall` that of the rest that
    the MALL serves. `source` says how they are known, for the prediction's notes."""

    l2: float
    mall: float
    source: str = "given"

    def __post_init__(self) -> None:
        for name in ("l2", "mall"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"reuse: {name} = {getattr(self, name)}; a share of 0 to 1 is accepted")

    def of_fewer(self, share: float, source: str) -> Reuse:
        """The same misses of L2 where workgroups touch `share`, above 0, as many lines, or as many as they touch."""
        return Reuse(1 - min(1.0, (1 - self.l2) / share), self.mall, source)


def neighbours(grid: Extent, machine: Machine = MI350) -> list[Extent]:
    """The workgroups to trace for a prediction: they show what is shared and, the last one, what the edges cost."""
    axes = [axis for axis in range(3) if grid[axis] > 1]
    found: list[Extent] = [(0, 0, 0)]
    if len(axes) == 1:
        steps = [machine.xcds * i for i in range(1, _MATES) if machine.xcds * i < grid[axes[0]]]
        found += [_along(axes[0], step) for step in steps]
    else:
        found += [_along(axis, 1) for axis in axes]
    last = (grid[0] - 1, grid[1] - 1, grid[2] - 1)
    return found if last in found else [*found, last]


def _along(axis: int, step: int) -> Extent:
    return (step * (axis == 0), step * (axis == 1), step * (axis == 2))


def reuse_of(
    traced: list[Program], grid: Extent, resident: int, machine: Machine, *, warm: bool, growth: float = 1.0
) -> Reuse:
    """What the traced workgroups say of the whole grid, of which a compute unit holds `resident`.

    `warm`: the MALL holds what it can from an earlier launch. The launch's workgroups touch `growth` times as many
    lines as the traced ones.
    """
    lines = traced[0].lines.size
    if not lines:
        return Reuse(1.0, 1.0, "no loads")
    several = sum(extent > 1 for extent in grid) > 1
    touched, source = _by_axis(traced, grid) if several else _by_mates(traced, grid, machine)
    count, line_bytes = grid[0] * grid[1] * grid[2], machine.line_bytes * growth
    of_xcd = np.arange(0, min(count, _SAMPLE * machine.xcds), machine.xcds)
    fit_l2 = touched(of_xcd) * line_bytes <= machine.l2_bytes_per_xcd
    together = of_xcd if fit_l2 else of_xcd[: machine.cus_per_xcd * resident]
    missing = min(1.0, touched(together) / (len(together) * lines))
    sample = min(count, _SAMPLE)
    once = touched(np.arange(sample)) * count / sample
    # No more than what lies between the first and the last line: the traced workgroups are at the ends of the grid.
    span = (
        max(p.lines[-1] for p in traced if p.lines.size) - min(p.lines[0] for p in traced if p.lines.size) + 1
    )
    once = min(once, float(span))
    footprint = once * line_bytes + count * traced[0].level_bytes["store"]
    # The MALL catches what several XCDs fetch; and everything, if an earlier launch left it there.
    fits = warm and footprint <= machine.mall_bytes
    mall = 1.0 if fits else 1 - min(1.0, once / (count * lines * missing))
    return Reuse(1 - missing, mall, source)


def _by_axis(traced: list[Program], grid: Extent) -> tuple[Touched, str]:
    first = traced[0]
    shared, unknown = [], []
    for axis in range(3):
        beside = [p for p in traced if _differ_only(p.workgroup, first.workgroup, axis)]
        if grid[axis] > 1 and not beside:
            unknown.append("xyz"[axis])
        shared.append(np.isin(first.lines, beside[0].lines) if beside else np.zeros(first.lines.size, bool))
    depends = {axes: _count(shared, axes) for axes in product((False, True), repeat=3)}

    def touched(workgroups: np.ndarray) -> float:
        at = workgroups % grid[0], workgroups // grid[0] % grid[1], workgroups // (grid[0] * grid[1])
        total = 0
        for axes, lines in depends.items():
            key = np.zeros(len(workgroups), np.int64)
            for axis in range(3):
                key = key * grid[axis] + (at[axis] if axes[axis] else 0)
            total += lines * len(np.unique(key)) if lines else 0
        return float(total)

    source = f"lines of {len(traced)} traced workgroups"
    if unknown:
        source += f"; none along {', '.join(unknown)}, where nothing is taken to be shared"
    return touched, source


def _differ_only(a: Extent, b: Extent, axis: int) -> bool:
    return all((a[i] != b[i]) == (i == axis) for i in range(3))


def _count(shared: list[np.ndarray], depends: tuple[bool, ...]) -> int:
    """Lines that depend on exactly these axes."""
    chosen = np.ones(len(shared[0]), bool)
    for here, axis_depends in zip(shared, depends, strict=True):
        chosen &= here != axis_depends
    return int(np.count_nonzero(chosen))


def _by_mates(traced: list[Program], grid: Extent, machine: Machine) -> tuple[Touched, str]:
    def number(program: Program) -> int:
        x, y, z = program.workgroup
        return x + grid[0] * (y + grid[1] * z)

    first = number(traced[0])
    mates = [p for p in traced if (number(p) - first) % machine.xcds == 0][:_MATES]
    union = [
        int(np.unique(np.concatenate([p.lines for p in mates[: i + 1]])).size) for i in range(len(mates))
    ]
    later = len(union) // 2
    added = (union[-1] - union[-1 - later]) / later if later else float(union[0])

    def touched(workgroups: np.ndarray) -> float:
        few = min(len(workgroups), len(union))
        return union[few - 1] + (len(workgroups) - few) * added

    return touched, f"lines of {len(mates)} traced workgroups of one XCD"
