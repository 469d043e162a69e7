"""A traced launch and what it takes under one hypothesis after another: rounds of equal workgroups, clocks, bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from flycc.costmodel.compute_unit import Timing, simulate
from flycc.costmodel.dispatch import Dispatch, Load
from flycc.costmodel.loops import extrapolate, shorten, steady
from flycc.costmodel.machine import Clock, Machine
from flycc.costmodel.memory import active_cus, least_us, supply
from flycc.costmodel.occupancy import occupancy
from flycc.costmodel.paths import Supply
from flycc.costmodel.reuse import Extent, Reuse, reuse_of
from flycc.costmodel.streams import Program, programs
from flycc.emulator.trace import SPACES, Trace

#: Executed operations that one simulation may take; more workgroups than that are extrapolated.
_OPS = 400_000
#: Share of time that memory must be busy for its clocks a byte to matter.
_BUSY = 0.3
#: Times by which the work of workgroups differs that is worth a note.
_UNEVEN = 1.2


@dataclass(frozen=True, slots=True)
class Run:
    """A launch under one hypothesis: what it takes, at the clock that its MFMA activity leaves. `timing` is of the
    workgroups of one compute unit that were simulated, `clk` of all that it gets."""

    clock: Clock
    us: float
    ghz: float
    clk: float
    timing: Timing


class Launch:
    """A traced launch, ready to be simulated under one hypothesis after another.

    `traced` are the workgroups of the trace that stand for those of the grid, by default all of them.
    """

    #: Share of the time that this launch is less certain than others.
    uncertain = 0.0

    def __init__(
        self,
        trace: Trace,
        machine: Machine,
        grid: Extent,
        turns: int | None = None,
        reuse: Reuse | None = None,
        warm: bool = False,
        traced: list[Program] | None = None,
    ) -> None:
        self.machine, self.count = machine, math.prod(grid)
        self.instructions = len(trace.instructions)
        self.occupancy = occupancy(trace.info, machine, self.count)
        self.resident = self.occupancy.workgroups_per_cu
        self.traced = programs(trace, machine, self.resident) if traced is None else traced
        self.shortened = shorten(self.traced, machine, turns)
        self.dispatch = Dispatch(self.traced, grid, self.resident, machine)
        self.unsteady = False
        self._done: dict[Supply, tuple[float, Timing]] = {}  # hypotheses often agree
        grown = self._level_bytes(0)["fresh"] / max(1, self.traced[0].level_bytes["fresh"])
        self.reuse = reuse or reuse_of(
            self.traced, grid, self.resident, machine, warm=warm, growth=grown or 1.0
        )

    @property
    def simulated(self) -> list[Program]:
        """The traced workgroups, or what is simulated in their stead."""
        return self.shortened.long if self.shortened else self.traced

    @property
    def active(self) -> float:
        """The mean number of compute units at work."""
        return active_cus(self.machine, self.count)

    @property
    def tail(self) -> float:
        """Share of the time, 0 to 1, in which the mean compute unit has run out of work."""
        return self.dispatch.tail

    def run(self, clock: Clock) -> Run:
        """The clock falls with MFMA activity, and with it what a byte of memory costs in clocks."""
        share = supply(self.machine, clock, clock.peak_ghz, self.active, self.reuse)
        clk, timing = self._simulate(share)
        busy = timing.mfma_busy / (self.machine.simds_per_cu * timing.clk)
        ghz = clock.ghz(busy * self.active / self.machine.cus)
        if timing.deep_busy > _BUSY * timing.clk and ghz < clock.peak_ghz:
            clk, timing = self._simulate(supply(self.machine, clock, ghz, self.active, self.reuse))
        clk = max(clk, least_us(self.bytes(), clock, self.machine) * ghz * 1e3)
        return Run(clock, clk / ghz / 1e3, ghz, clk, timing)

    def _simulate(self, share: Supply) -> tuple[float, Timing]:
        """Clocks of the compute unit that ends the launch, of whose workgroups only some are simulated."""
        if share not in self._done:
            self._done[share] = self._ending(share)
        return self._done[share]

    @cached_property
    def loads(self) -> list[Load]:
        """What the compute units get that may end the launch."""
        return self.dispatch.loads()

    def _ending(self, share: Supply) -> tuple[float, Timing]:
        return max((self._of_load(load, share) for load in self.loads), key=lambda found: found[0])

    def _of_load(self, load: Load, share: Supply) -> tuple[float, Timing]:
        order = evenly(load.order, min(load.count, self.most(load.order)))
        timing = self.simulate(order, share)
        clk, left = float(timing.clk), load.count - len(order)
        if left:
            clk += left * self.pace(timing)
        return clk, timing

    def most(self, order: list[int]) -> int:
        """Workgroups of a compute unit that are simulated at most, of those like the traced ones of these indices."""
        per_group = max(1, sum(self.traced[i].ops for i in order) // len(order))
        return max(2 * self.resident, min(4 * self.resident, _OPS // per_group))

    def pace(self, timing: Timing) -> float:
        """Clocks that each workgroup adds, once as many as fit are resident."""
        ends = sorted(timing.ends)
        pace = (ends[-1] - ends[self.resident - 1]) / (len(ends) - self.resident)
        # What nobody waits for takes its time all the same.
        busiest = max(timing.utilisation(self.machine).values()) * timing.clk / len(ends)
        return max(pace, busiest)

    def simulate(self, order: list[int], share: Supply, *, log: bool = False) -> Timing:
        """Workgroups like those traced of these indices on one compute unit."""

        def of(traced: list[Program]) -> Timing:
            groups = [traced[i] for i in order]
            return simulate(groups, self.resident, share, self.machine, self.instructions, log=log)

        pieces = self.shortened
        if pieces is None or log:
            return of(self.traced)
        short, middle, long = of(pieces.short), of(pieces.middle), of(pieces.long)
        found = extrapolate(short, long, pieces.left)
        busiest = max(found.utilisation(self.machine).values())
        if pieces.alike and busiest <= 1 and steady(short, middle, long):
            return found
        if pieces.traced:
            return of(self.traced)
        self.unsteady = True
        return replace(found, clk=math.ceil(found.clk * max(1, busiest)))

    def _level_bytes(self, index: int) -> dict[str, float]:
        if self.shortened is not None:
            return self.shortened.level_bytes(index)
        return {name: float(count) for name, count in self.traced[index].level_bytes.items()}

    def _mean(self, of_traced: dict[int, float]) -> float:
        return sum(of_traced[i] * share for i, share in self.dispatch.shares.items())

    def each(self) -> dict[str, float]:
        """`Program.level_bytes` and the multiply-adds ("macs") of the mean workgroup."""
        found = {i: self._level_bytes(i) for i in self.dispatch.shares}
        for i, of_workgroup in found.items():
            of_workgroup["macs"] = self.shortened.macs(i) if self.shortened else float(self.traced[i].macs)
        return {
            name: self._mean({i: of_workgroup[name] for i, of_workgroup in found.items()})
            for name in ("fresh", "again", "store", "macs")
        }

    def bytes(self) -> dict[str, float]:
        """Bytes of the whole grid by level."""
        each = self.each()
        fresh, again, store = (self.count * each[name] for name in ("fresh", "again", "store"))
        beyond = fresh * (1 - self.reuse.l2)
        return {
            "l2": fresh + again, "mall": beyond, "hbm": beyond * (1 - self.reuse.mall), "store": store
        }  # fmt: skip

    def macs(self) -> float:
        """Multiply-adds of the whole grid."""
        return self.count * self.each()["macs"]

    def notes(self, trace: Trace) -> list[str]:
        """What a reader should know of this prediction."""
        reuse = self.reuse
        found = [
            f"caches: {reuse.l2:.0%} of first touches from L2, {reuse.mall:.0%} of the rest from MALL ({reuse.source})"
        ]
        in_lds = trace.accesses[trace.accesses["space"] == SPACES.index("lds")]
        if in_lds["clocks"].any():
            found.append(f"LDS: {lds_conflicts(trace):.0%} of its clocks are bank conflicts")
        if len(in_lds) and not in_lds["lanes"].any():
            found.append(
                f"LDS: no access lies within the {trace.info['lds_bytes']} bytes given; was dynamic LDS left out?"
            )
        found += self._of_workgroups()
        if self.unsteady:
            found.append(
                "loop: its turns are not steady in the trace; more of them are taken to go on like the latest"
            )
        return found

    def _of_workgroups(self) -> list[str]:
        spread = self.dispatch.spread
        if spread <= _UNEVEN:
            return []
        return [
            f"workgroups: the work of traced ones differs {spread:.1f} times; {self.dispatch.assumed} untraced "
            "ones are taken to be like those near them or at the same edges"
        ]


def lds_conflicts(trace: Trace) -> float:
    """The share of the clocks of LDS accesses that lanes of one phase wait for a bank that another has."""
    in_lds = trace.accesses[trace.accesses["space"] == SPACES.index("lds")]
    clocks = int(in_lds["clocks"].sum())
    return 1 - int(in_lds["phases"].sum()) / clocks if clocks else 0.0


def evenly(order: list[int], wanted: int) -> list[int]:
    """As many of those, or repetitions of them, from the first one to the last one."""
    if wanted == 1:
        return order[:1]
    return [order[i * (len(order) - 1) // (wanted - 1)] for i in range(wanted)]
