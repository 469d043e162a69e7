"""The device around the compute unit, from a trace to a Prediction: dispatch, rounds, clocks, launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from flycc.costmodel.attribution import by_instruction, by_loop, device_shares, loops_of
from flycc.costmodel.compute_unit import Event
from flycc.costmodel.launch import Launch, evenly, lds_conflicts
from flycc.costmodel.machine import MI350, Machine
from flycc.costmodel.memory import supply
from flycc.costmodel.prediction import Interval, Prediction
from flycc.costmodel.reuse import Extent, Reuse
from flycc.costmodel.uneven import UnevenLaunch, check_lengths
from flycc.emulator.trace import Trace

Floor = Literal["graph", "compile", "eager"]


def predict(
    trace: Trace,
    grid: Extent | None = None,
    *,
    machine: Machine = MI350,
    reuse: Reuse | None = None,
    turns: int | None = None,
    lengths: Sequence[int] | np.ndarray | None = None,
    warm: bool = False,
    floor: Floor = "graph",
) -> Prediction:
    """The modelled time of a launch from a trace of some of its workgroups.

    `grid` are its workgroups, by default those of the traced launch. Trace at least `neighbours(grid)`: each other
    workgroup is taken to be like a traced one at the same edges or, where those have more to do, near it; `notes` say
    how much the traced ones differ. `turns` is how often the waves go round
    their longest loop (as `Prediction.by_loop` counts), where the trace was made of a smaller problem: of a matrix
    product with a shorter K. `lengths`, in launch order (x fastest), say how much work each workgroup does where they
    differ in that alone, as tiles walked through: trace `representative(lengths)`, and give `reuse` or trace
    `neighbours` as well. `reuse` replaces what the trace says of caches; `warm` says that earlier launches left in
    the MALL what fits: not so in benchmarks that flush caches between runs, nor in models with their many weights.
    `floor` is how it is launched: replayed from a graph, by compiled code, or by an eager operator, whose host time
    hides shorter kernels.

    Raises ValueError for a trace without waves, for a grid that is not three positive numbers, for workgroups that fit
    no compute unit, for `turns` or `lengths` that do not apply and for an unknown `floor`.
    """
    if floor not in ("graph", "compile", "eager"):
        raise ValueError(f"floor: got {floor!r}; graph, compile and eager are accepted")
    launch = _launch(
        trace, machine, _extent(trace.info["grid"] if grid is None else grid), turns, lengths, reuse, warm
    )
    runs = [launch.run(clock) for clock in machine.hypotheses]
    device = [run.us for run in runs]
    typical = math.exp(sum(map(math.log, device)) / len(device))
    error = machine.model_error + launch.uncertain
    on_device = Interval(min(device) * (1 - error), typical, max(device) * (1 + error))
    time = _with_floor(on_device, machine, floor)
    slowest = max(runs, key=lambda run: run.us)
    timing, occupied = slowest.timing, launch.occupancy
    floored = max(0.0, 1 - typical / time.typical)
    shares = device_shares(trace, timing, launch.tail)
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
        reuse=launch.reuse,
        bytes=launch.bytes(),
        lds_conflicts=lds_conflicts(trace),
        flops=2.0 * launch.macs(),
        notes=launch.notes(trace),
    )


def timeline(trace: Trace, *, machine: Machine = MI350, reuse: Reuse | None = None) -> list[Event]:
    """Every instruction of one compute unit in the launch's first round, under the first hypothesis, in clk."""
    launch = Launch(trace, machine, _extent(trace.info["grid"]), reuse=reuse)
    clock = machine.hypotheses[0]
    share = supply(machine, clock, clock.peak_ghz, launch.active, launch.reuse)
    load = launch.loads[0]
    order = evenly(load.order, min(load.count, launch.resident))
    return launch.simulate(order, share, log=True).events


def _launch(
    trace: Trace,
    machine: Machine,
    grid: Extent,
    turns: int | None,
    lengths: Sequence[int] | np.ndarray | None,
    reuse: Reuse | None,
    warm: bool,
) -> Launch:
    """Workgroups of one length are equal ones."""
    if lengths is None:
        return Launch(trace, machine, grid, turns, reuse, warm)
    if turns is not None:
        raise ValueError("lengths, turns: one of the two is accepted")
    checked = check_lengths(lengths, grid)
    if checked.min() == checked.max():
        return Launch(trace, machine, grid, None, reuse, warm)
    return UnevenLaunch(trace, machine, grid, checked, reuse, warm)


def _extent(grid: Sequence[int]) -> Extent:
    """Raises ValueError for anything but three numbers from 1 on whose product is below 2^31."""
    sizes = tuple(grid) if isinstance(grid, Sequence) else ()
    if len(sizes) != 3 or not all(isinstance(n, int) and n > 0 for n in sizes) or math.prod(sizes) >= 1 << 31:
        raise ValueError(
            f"grid: got {grid!r}; three whole numbers from 1 on are accepted, of no more than 2147483647 workgroups"
        )
    return sizes


def _with_floor(device: Interval, machine: Machine, floor: Floor) -> Interval:
    """What the caller sees: launches take a while, and the host may take longer than the kernel."""
    low, typical, high = machine.launch_us
    host = {"graph": 0.0, "compile": machine.compile_us, "eager": machine.eager_us}[floor]
    return Interval(
        max(host * (1 - machine.model_error), device.low + low),
        max(host, device.typical + typical),
        max(host * (1 + machine.model_error), device.high + high),
    )
