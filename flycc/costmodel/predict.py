"""From a trace to a Prediction: the device around the compute unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flycc.costmodel.attribution import by_instruction, by_loop, device_shares
from flycc.costmodel.compute_unit import Event, Timing, simulate
from flycc.costmodel.machine import MI350, Clock, Machine
from flycc.costmodel.memory import Extent, Reuse, reuse_of, supply
from flycc.costmodel.occupancy import occupancy
from flycc.costmodel.prediction import Interval, Prediction
from flycc.costmodel.streams import Program, programs
from flycc.emulator.trace import Trace

Floor = Literal["graph", "compile", "eager"]

#: Executed operations that one simulation may take; more workgroups than that are extrapolated.
_OPS = 400_000


def predict(
    trace: Trace,
    grid: Extent | None = None,
    *,
    machine: Machine = MI350,
    reuse: Reuse | None = None,
    warm: bool = True,
    floor: Floor = "graph",
) -> Prediction:
    """The modelled time of a launch from a trace of some of its workgroups.

    `grid` are its workgroups, by default those of the traced launch. Trace at least `memory.neighbours(grid)`: each
    workgroup of the grid is taken to be like the traced one that lies at the same edges. `reuse` replaces what the
    trace says of caches; `warm` says that earlier launches left in the MALL what fits. `floor` is how it is launched:
    replayed from a graph, by compiled code, or by an eager operator, whose host time hides shorter kernels.

    Raises ValueError for a trace without waves and for unknown `floor`.
    """
    if floor not in ("graph", "compile", "eager"):
        raise ValueError(f"floor: got {floor!r}; graph, compile and eager are accepted")
    extent: Extent = tuple(grid or trace.info["grid"])  # type: ignore[assignment]
    count = math.prod(extent)
    traced, resident, occupied = _occupied(trace, machine, count)
    known = reuse or reuse_of(traced, extent, resident, machine, warm=warm)
    order = _like(traced, extent, machine)
    runs = [
        _Run(trace, machine, clock, traced, order, resident, known, count) for clock in machine.hypotheses
    ]
    device = [run.us for run in runs]
    typical = math.exp(sum(map(math.log, device)) / len(device))
    error = machine.model_error
    on_device = Interval(min(device) * (1 - error), typical, max(device) * (1 + error))
    time = _with_floor(on_device, machine, floor)
    slowest = max(runs, key=lambda run: run.us)
    timing = slowest.timing
    shares = device_shares(trace, timing, machine, slowest.tail)
    launch = max(0.0, 1 - typical / time.typical)
    instructions = by_instruction(trace, timing, machine)
    per_workgroup = sum(p.macs for p in order) / len(order)
    levels = {
        name: count * sum(p.level_bytes[name] for p in order) / len(order)
        for name in ("l1", "fresh", "again", "store")
    }
    beyond = levels["fresh"] * (1 - known.l2)
    return Prediction(
        kernel=str(trace.info["kernel"]),
        time=time,
        device_us=on_device,
        occupancy=occupied,
        workgroups=count,
        rounds=-(-count // (machine.cus * resident)),
        clk=timing.clk,
        by_hypothesis={run.clock.name: run.us for run in runs},
        breakdown={**{cause: share * (1 - launch) for cause, share in shares.items()}, "launch": launch},
        by_instruction=instructions,
        by_loop=by_loop(trace, instructions, timing, machine),
        utilisation=slowest.utilisation(),
        bytes={
            "l1": levels["l1"],
            "l2": levels["fresh"] + levels["again"],
            "mall": beyond,
            "hbm": beyond * (1 - known.mall),
            "store": levels["store"],
        },
        flops=2.0 * per_workgroup * count,
        notes=[
            f"caches: {known.l2:.0%} of first touches from L2, {known.mall:.0%} of the rest from MALL ({known.source})"
        ],
    )


def timeline(trace: Trace, *, machine: Machine = MI350, reuse: Reuse | None = None) -> list[Event]:
    """Every instruction of one compute unit in the launch's first round, under the first hypothesis, in clk."""
    count = math.prod(trace.info["grid"])
    traced, resident, _ = _occupied(trace, machine, count)
    known = reuse or reuse_of(traced, tuple(trace.info["grid"]), resident, machine, warm=True)
    clock = machine.hypotheses[0]
    share = supply(machine, clock, clock.peak_ghz, count, known)
    groups = [traced[i % len(traced)] for i in range(resident)]
    return simulate(groups, resident, share, machine, len(trace.instructions), log=True).events


def _occupied(trace: Trace, machine: Machine, count: int):
    occupied = occupancy(trace.info, machine, count)
    resident = occupied.workgroups_per_cu
    return programs(trace, machine, resident), resident, occupied


def _with_floor(device: Interval, machine: Machine, floor: Floor) -> Interval:
    """What the caller sees: launches take a while, and the host may take longer than the kernel."""
    low, typical, high = machine.launch_us
    host = {"graph": 0.0, "compile": machine.compile_us, "eager": machine.eager_us}[floor]
    return Interval(
        max(host * (1 - machine.model_error), device.low + low),
        max(host, device.typical + typical),
        max(host * (1 + machine.model_error), device.high + high),
    )


def _like(traced: list[Program], grid: Extent, machine: Machine) -> list[Program]:
    """The traced workgroups that stand for those which one compute unit gets, in the order it gets them."""
    numbers = np.arange(0, math.prod(grid), machine.cus)
    ids = np.stack([numbers % grid[0], numbers // grid[0] % grid[1], numbers // (grid[0] * grid[1])], axis=1)
    sizes = np.array(grid)
    known = np.array([p.workgroup for p in traced])
    # At the same edges first (there work is cut off), then near (some work grows along an axis).
    edges = ((ids == sizes - 1)[:, None] != (known == sizes - 1)[None]).sum(axis=2)
    apart = (abs(ids[:, None] - known[None]) / sizes).sum(axis=2)
    return [traced[i] for i in np.argmin(edges * 4 + apart, axis=1).tolist()]


@dataclass(slots=True)
class _Run:
    """One hypothesis: the clock that its MFMA activity leaves, and the time that it gives."""

    trace: Trace
    machine: Machine
    clock: Clock
    us: float
    ghz: float
    timing: Timing
    tail: float

    def __init__(
        self,
        trace: Trace,
        machine: Machine,
        clock: Clock,
        traced: list[Program],
        order: list[Program],
        resident: int,
        reuse: Reuse,
        count: int,
    ) -> None:
        self.trace, self.machine, self.clock = trace, machine, clock
        self.ghz = clock.peak_ghz
        for _ in range(2 if clock.fall_ghz else 1):
            share = supply(machine, clock, self.ghz, count, reuse)
            clk = self._run(order, resident, share)
            busy = self.timing.mfma_busy / (machine.simds_per_cu * max(self.timing.clk, 1))
            active = min(1.0, count / machine.cus)
            ghz = clock.peak_ghz - clock.fall_ghz * busy * active
            if abs(ghz / self.ghz - 1) < 0.02:
                break
            self.ghz = ghz
        self.us = clk / self.ghz / 1e3
        full = count / machine.cus
        self.tail = 1 - full / math.ceil(full) if count > machine.cus else 0.0

    def _run(self, order: list[Program], resident: int, share) -> float:
        """Clocks of the compute unit with most workgroups, of which only some are simulated."""
        per_group = max(1, sum(p.ops for p in order[:resident]) // min(resident, len(order)))
        most = max(2 * resident, min(4 * resident, _OPS // per_group))
        simulated = order[:most]
        self.timing = simulate(simulated, resident, share, self.machine, len(self.trace.instructions))
        left = len(order) - len(simulated)
        if not left:
            return self.timing.clk
        ends = sorted(self.timing.ends)
        period = (ends[-1] - ends[resident - 1]) / (len(ends) - resident)
        return self.timing.clk + left * period

    def utilisation(self) -> dict[str, float]:
        """Share of the simulated time that each unit and path of the compute unit is busy."""
        timing, simds = self.timing, self.machine.simds_per_cu
        busy = {
            "mfma": timing.mfma_busy / simds,
            "valu": timing.valu_busy / simds,
            "lds": timing.lds_busy,
            "l1": timing.l1_busy,
            "l2": timing.link_busy,
            "memory": timing.deep_busy,
        }
        return {name: clk / timing.clk for name, clk in busy.items()}
