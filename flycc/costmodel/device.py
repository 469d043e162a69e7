"""The device around the compute unit, from a trace to a Prediction: dispatch, rounds, clocks, launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from flycc.costmodel.attribution import by_instruction, by_loop, device_shares, loops_of
from flycc.costmodel.compute_unit import Event, Timing, simulate
from flycc.costmodel.dispatch import Dispatch, Load
from flycc.costmodel.loops import extrapolate, shorten, steady
from flycc.costmodel.machine import MI350, Clock, Machine
from flycc.costmodel.memory import active_cus, least_us, supply
from flycc.costmodel.occupancy import occupancy
from flycc.costmodel.paths import Supply
from flycc.costmodel.prediction import Interval, Prediction
from flycc.costmodel.reuse import Extent, Reuse, reuse_of
from flycc.costmodel.streams import Program, programs
from flycc.emulator.trace import SPACES, Trace

Floor = Literal["graph", "compile", "eager"]

#: Executed operations that one simulation may take; more workgroups than that are extrapolated.
_OPS = 400_000
#: Share of time that memory must be busy for its clocks a byte to matter.
_BUSY = 0.3
#: Times by which the work of workgroups differs that is worth a note.
_UNEVEN = 1.2


def predict(
    trace: Trace,
    grid: Extent | None = None,
    *,
    machine: Machine = MI350,
    reuse: Reuse | None = None,
    turns: int | None = None,
    warm: bool = False,
    floor: Floor = "graph",
) -> Prediction:
    """The modelled time of a launch from a trace of some of its workgroups.

    `grid` are its workgroups, by default those of the traced launch. Trace at least `neighbours(grid)`: each other
    workgroup is taken to be like a traced one at the same edges or, where those have more to do, near it; `notes` say
    how much the traced ones differ. `turns` is how often the waves go round
    their longest loop (as `Prediction.by_loop` counts), where the trace was made of a smaller problem: of a matrix
    product with a shorter K. `reuse` replaces what the trace says of caches; `warm` says that earlier launches left in
    the MALL what fits: not so in benchmarks that flush caches between runs, nor in models with their many weights.
    `floor` is how it is launched: replayed from a graph, by compiled code, or by an eager operator, whose host time
    hides shorter kernels.

    Raises ValueError for a trace without waves, for a grid that is not three positive numbers, for workgroups that fit
    no compute unit, for `turns` that do not apply and for an unknown `floor`.
    """
    if floor not in ("graph", "compile", "eager"):
        raise ValueError(f"floor: got {floor!r}; graph, compile and eager are accepted")
    launch = _Launch(
        trace, machine, _extent(trace.info["grid"] if grid is None else grid), turns, reuse, warm
    )
    runs = [launch.run(clock) for clock in machine.hypotheses]
    device = [run.us for run in runs]
    typical = math.exp(sum(map(math.log, device)) / len(device))
    error = machine.model_error
    on_device = Interval(min(device) * (1 - error), typical, max(device) * (1 + error))
    time = _with_floor(on_device, machine, floor)
    slowest = max(runs, key=lambda run: run.us)
    timing, occupied = slowest.timing, launch.occupancy
    floored = max(0.0, 1 - typical / time.typical)
    shares = device_shares(trace, timing, launch.dispatch.tail)
    loops = loops_of(launch.simulated)
    instructions = by_instruction(trace, timing, loops)
    return Prediction(
        kernel=str(trace.info["kernel"]),
        time=time,
        device_us=on_device,
        occupancy=occupied,
        workgroups=launch.count,
        rounds=-(-launch.count // (machine.cus * occupied.workgroups_per_cu)),
        clk=slowest.clk,
        by_hypothesis={run.clock.name: run.us for run in runs},
        clock_ghz={run.clock.name: run.ghz for run in runs},
        breakdown={**{cause: share * (1 - floored) for cause, share in shares.items()}, "launch": floored},
        by_instruction=instructions,
        by_loop=by_loop(trace, instructions, timing, loops),
        utilisation=timing.utilisation(machine),
        bytes=launch.bytes(),
        lds_conflicts=_lds_conflicts(trace),
        flops=2.0 * launch.macs(),
        notes=launch.notes(trace),
    )


def timeline(trace: Trace, *, machine: Machine = MI350, reuse: Reuse | None = None) -> list[Event]:
    """Every instruction of one compute unit in the launch's first round, under the first hypothesis, in clk."""
    launch = _Launch(trace, machine, _extent(trace.info["grid"]), reuse=reuse)
    clock = machine.hypotheses[0]
    share = supply(machine, clock, clock.peak_ghz, launch.count, launch.reuse)
    load = launch.loads[0]
    order = _evenly(load.order, min(load.count, launch.resident))
    return launch.simulate(order, share, log=True).events


def _lds_conflicts(trace: Trace) -> float:
    """The share of the clocks of LDS accesses that lanes of one phase wait for a bank that another has."""
    in_lds = trace.accesses[trace.accesses["space"] == SPACES.index("lds")]
    clocks = int(in_lds["clocks"].sum())
    return 1 - int(in_lds["phases"].sum()) / clocks if clocks else 0.0


def _extent(grid: Sequence[int]) -> Extent:
    """Raises ValueError for anything but three numbers from 1 on whose product is below 2^31."""
    sizes = tuple(grid) if isinstance(grid, Sequence) else ()
    if len(sizes) != 3 or not all(isinstance(n, int) and n > 0 for n in sizes) or math.prod(sizes) >= 1 << 31:
        raise ValueError(
            f"grid: got {grid!r}; three whole numbers from 1 on are accepted, of no more than 2147483647 workgroups"
        )
    return sizes


def _evenly(order: list[int], wanted: int) -> list[int]:
    """As many of those, or repetitions of them, from the first one to the last one."""
    if wanted == 1:
        return order[:1]
    return [order[i * (len(order) - 1) // (wanted - 1)] for i in range(wanted)]


def _with_floor(device: Interval, machine: Machine, floor: Floor) -> Interval:
    """What the caller sees: launches take a while, and the host may take longer than the kernel."""
    low, typical, high = machine.launch_us
    host = {"graph": 0.0, "compile": machine.compile_us, "eager": machine.eager_us}[floor]
    return Interval(
        max(host * (1 - machine.model_error), device.low + low),
        max(host, device.typical + typical),
        max(host * (1 + machine.model_error), device.high + high),
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """A launch under one hypothesis: what it takes, at the clock that its MFMA activity leaves. `timing` is of the
    workgroups of one compute unit that were simulated, `clk` of all that it gets."""

    clock: Clock
    us: float
    ghz: float
    clk: float
    timing: Timing


class _Launch:
    """A traced launch, ready to be simulated under one hypothesis after another."""

    def __init__(
        self,
        trace: Trace,
        machine: Machine,
        grid: Extent,
        turns: int | None = None,
        reuse: Reuse | None = None,
        warm: bool = False,
    ) -> None:
        self.machine, self.count = machine, math.prod(grid)
        self.instructions = len(trace.instructions)
        self.occupancy = occupancy(trace.info, machine, self.count)
        self.resident = self.occupancy.workgroups_per_cu
        self.traced = programs(trace, machine, self.resident)
        self.shortened = shorten(self.traced, machine, turns)
        self.dispatch = Dispatch(self.traced, grid, self.resident, machine)
        self.loads = self.dispatch.loads()
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

    def run(self, clock: Clock) -> _Run:
        """The clock falls with MFMA activity, and with it what a byte of memory costs in clocks."""
        share = supply(self.machine, clock, clock.peak_ghz, self.count, self.reuse)
        clk, timing = self._simulate(share)
        busy = timing.mfma_busy / (self.machine.simds_per_cu * timing.clk)
        ghz = clock.ghz(busy * active_cus(self.machine, self.count) / self.machine.cus)
        if timing.deep_busy > _BUSY * timing.clk and ghz < clock.peak_ghz:
            clk, timing = self._simulate(supply(self.machine, clock, ghz, self.count, self.reuse))
        clk = max(clk, least_us(self.bytes(), clock, self.machine) * ghz * 1e3)
        return _Run(clock, clk / ghz / 1e3, ghz, clk, timing)

    def _simulate(self, share: Supply) -> tuple[float, Timing]:
        """Clocks of the compute unit that ends the launch, of whose workgroups only some are simulated."""
        if share not in self._done:
            self._done[share] = max(
                (self._of_load(load, share) for load in self.loads), key=lambda found: found[0]
            )
        return self._done[share]

    def _of_load(self, load: Load, share: Supply) -> tuple[float, Timing]:
        per_group = max(1, sum(self.traced[i].ops for i in load.order) // len(load.order))
        most = max(2 * self.resident, min(4 * self.resident, _OPS // per_group))
        order = _evenly(load.order, min(load.count, most))
        timing = self.simulate(order, share)
        clk, left = float(timing.clk), load.count - len(order)
        if left:
            ends = sorted(timing.ends)
            pace = (ends[-1] - ends[self.resident - 1]) / (len(ends) - self.resident)
            # What nobody waits for takes its time all the same.
            busiest = max(timing.utilisation(self.machine).values()) * timing.clk / len(order)
            clk += left * max(pace, busiest)
        return clk, timing

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

    def bytes(self) -> dict[str, float]:
        """Bytes of the whole grid by level."""
        each = {i: self._level_bytes(i) for i in self.dispatch.shares}
        fresh, again, store = (
            self.count * self._mean({i: found[name] for i, found in each.items()})
            for name in ("fresh", "again", "store")
        )
        beyond = fresh * (1 - self.reuse.l2)
        return {
            "l2": fresh + again, "mall": beyond, "hbm": beyond * (1 - self.reuse.mall), "store": store
        }  # fmt: skip

    def macs(self) -> float:
        """Multiply-adds of the whole grid."""
        shortened = self.shortened
        return self.count * self._mean(
            {i: shortened.macs(i) if shortened else float(self.traced[i].macs) for i in self.dispatch.shares}
        )

    def notes(self, trace: Trace) -> list[str]:
        """What a reader should know of this prediction."""
        reuse, spread = self.reuse, self.dispatch.spread
        found = [
            f"caches: {reuse.l2:.0%} of first touches from L2, {reuse.mall:.0%} of the rest from MALL ({reuse.source})"
        ]
        in_lds = trace.accesses[trace.accesses["space"] == SPACES.index("lds")]
        if in_lds["clocks"].any():
            found.append(f"LDS: {_lds_conflicts(trace):.0%} of its clocks are bank conflicts")
        if len(in_lds) and not in_lds["lanes"].any():
            found.append(
                f"LDS: no access lies within the {trace.info['lds_bytes']} bytes given; was dynamic LDS left out?"
            )
        if spread > _UNEVEN:
            found.append(
                f"workgroups: the work of traced ones differs {spread:.1f} times; {self.dispatch.assumed} untraced "
                "ones are taken to be like those near them or at the same edges"
            )
        if self.unsteady:
            found.append(
                "loop: its turns are not steady in the trace; more of them are taken to go on like the latest"
            )
        return found
