"""Who serves what misses L1: how much of it L2 and MALL hold, from the lines of a few traced workgroups.

A line that workgroups of one XCD share is fetched once into that XCD's L2. Which lines those are is read off the
trace: a line of the first traced workgroup does not depend on an axis of the grid if its traced neighbour along that
axis touches it too. So the 2-D tiles of a matrix product need three workgroups: (0,0), (1,0) and (0,1).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from flycc.costmodel.machine import Clock, Machine
from flycc.costmodel.paths import Supply
from flycc.costmodel.streams import Program

Extent = tuple[int, int, int]

#: Below this share a level's latency is not what waves wait for.
_RARE = 0.02
#: Workgroups of a grid that are looked at to estimate what all of them touch.
_SAMPLE = 1 << 16


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


def neighbours(grid: Extent) -> list[Extent]:
    """The workgroups to trace for a prediction: the first, its neighbour along each axis, and the last.

    They show what is shared, and what the edges of a grid cost.
    """
    found = [(0, 0, 0)]
    found += [tuple(int(i == axis) for i in range(3)) for axis in range(3) if grid[axis] > 1]  # type: ignore[misc]
    last = (grid[0] - 1, grid[1] - 1, grid[2] - 1)
    return found if last in found else [*found, last]


def reuse_of(
    traced: list[Program], grid: Extent, resident: int, machine: Machine, *, warm: bool, growth: float = 1.0
) -> Reuse:
    """What the traced workgroups say of the whole grid.

    `warm`: the MALL holds what it can from an earlier launch. The launch's workgroups touch `growth` times as many
    lines as the traced ones.
    """
    first = traced[0]
    lines = first.lines
    if not lines.size:
        return Reuse(1.0, 1.0, "no loads")
    shared, unknown = [], []
    for axis in range(3):
        beside = [p for p in traced if _differ_only(p.workgroup, first.workgroup, axis)]
        if grid[axis] > 1 and not beside:
            unknown.append("xyz"[axis])
        shared.append(np.isin(lines, beside[0].lines) if beside else np.zeros(lines.size, bool))
    depends = [(tuple(axes), _count(shared, axes)) for axes in product((False, True), repeat=3)]
    count = grid[0] * grid[1] * grid[2]
    line_bytes = machine.line_bytes * growth

    def touched(workgroups: np.ndarray) -> float:
        """Distinct lines of these workgroups (linear numbers)."""
        at = workgroups % grid[0], workgroups // grid[0] % grid[1], workgroups // (grid[0] * grid[1])
        total = 0.0
        for axes, of_this_kind in depends:
            key = np.zeros(len(workgroups), np.int64)
            for axis in range(3):
                key = key * grid[axis] + (at[axis] if axes[axis] else 0)
            total += of_this_kind * len(np.unique(key)) if of_this_kind else 0.0
        return total

    of_xcd = np.arange(0, count, machine.xcds)[:_SAMPLE]
    together = (
        of_xcd
        if touched(of_xcd) * line_bytes <= machine.l2_bytes_per_xcd
        else of_xcd[: machine.cus_per_xcd * resident]
    )
    missing = touched(together) / (len(together) * lines.size)
    scale = count / min(count, _SAMPLE)
    once = touched(np.arange(min(count, _SAMPLE))) * scale
    footprint = once * line_bytes + count * first.level_bytes["store"]
    fits = footprint <= machine.mall_bytes
    beyond_l2 = count * lines.size * missing
    # The MALL catches what several XCDs fetch; and everything, if an earlier launch left it there.
    mall = 1.0 if warm and fits else 1 - min(1.0, once / beyond_l2)
    source = f"lines of {len(traced)} traced workgroups"
    if unknown:
        source += f"; none along {', '.join(unknown)}, where nothing is taken to be shared"
    return Reuse(1 - min(1.0, missing), mall, source)


def _differ_only(a: Extent, b: Extent, axis: int) -> bool:
    return all((a[i] != b[i]) == (i == axis) for i in range(3))


def _count(shared: list[np.ndarray], depends: tuple[bool, ...]) -> int:
    """Lines that depend on exactly these axes."""
    chosen = np.ones(len(shared[0]), bool)
    for here, axis_depends in zip(shared, depends, strict=True):
        chosen &= here != axis_depends
    return int(np.count_nonzero(chosen))


def supply(machine: Machine, clock: Clock, ghz: float, workgroups: int, reuse: Reuse) -> Supply:
    """A compute unit's share when `workgroups` are spread over the device, at a core clock of `ghz`.

    Compute units work on them in turns, in the last of which some are idle: `active` is their mean number, so that all
    workgroups' bytes together take what the device's bandwidth allows.
    """
    active = workgroups / -(-workgroups // machine.cus)
    on_xcd = max(1.0, active / machine.xcds)
    link = max(1 / min(machine.l1_bytes_per_clk, clock.operand_bytes_per_clk * clock.peak_ghz / ghz),
               on_xcd / machine.l2_read_bytes_per_clk_per_xcd)  # fmt: skip
    clk_per_byte = active * ghz * 1e9 / 1e12  # of one compute unit's share of 1 TB/s
    mall, hbm = clk_per_byte / machine.mall_tb_s, clk_per_byte / machine.hbm_tb_s
    beyond = 1 - reuse.l2
    from_hbm = beyond * (1 - reuse.mall)
    if from_hbm > _RARE:
        latency = machine.hbm_clk
    elif beyond > _RARE:
        latency = machine.mall_clk
    else:
        latency = machine.l2_hit_clk
    return Supply(
        link=link,
        deep=max(beyond * mall, from_hbm * hbm),
        store=max(1 / machine.l1_bytes_per_clk, on_xcd / machine.l2_write_bytes_per_clk_per_xcd),
        drain=(1 - reuse.mall) * hbm + reuse.mall * mall,
        fresh_latency=latency,
    )
