"""What a launch costs the host, through flycc's HIP device, with a HIP library that does nothing.

The stand-in library answers every call at once, in C; so this is flycc's own time, in Python and ctypes, that comes
on top of HIP's. Microseconds, and the ratio to a small PyTorch operator in the same run: the ratio is what to compare
between machines.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from unittest.mock import patch

import torch
from torch import Tensor

from flycc.cli.output import console, table
from flycc.runtime import gemm, hip_standin, plans, refusals
from flycc.runtime.hip import HipDevice
from flycc.runtime.operands import GemmOperands

#: Rounds short enough that most see no other process.
ROUNDS, CALLS = 151, 100
#: From a compiled graph's call to the device's launch.
TARGET_US = 10.0


def microseconds(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median over rounds of the mean time of a call; the rounds of all calls take turns."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            samples[name].append(mean_microseconds(call, CALLS))
    return {name: statistics.median(values) for name, values in samples.items()}


def mean_microseconds(call: Callable[[], object], calls: int) -> float:
    """Mean time of one of `calls` calls in a row."""
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls * 1e6


def on_device(device: HipDevice, *shape: int) -> Tensor:
    """A bfloat16 tensor of zeros in memory of `device`."""
    nbytes = 2 * torch.Size(shape).numel()
    memory = (ctypes.c_char * nbytes).from_address(device.allocate(nbytes))
    return torch.frombuffer(memory, dtype=torch.bfloat16).view(shape)


def measure() -> dict[str, dict[str, float]]:
    """{"microseconds": ..., "ratio": ..., "target_us": ...}.

    "op" is a repeated product as a compiled graph calls it, "gemm" the same without PyTorch's dispatcher, and "key",
    "results", "ready launch" are parts of that. "analysed" is what the first call of its kind takes instead, and
    "launch" a launch whose arguments are not prepared.
    """
    with hip_standin.installed() as standin:
        device = HipDevice(0, stream=lambda: 0)
        a, b, out = on_device(device, 64, 64), on_device(device, 64, 64), on_device(device, 1, 64, 64)
        _, loaded = gemm.prepare(GemmOperands.of(a, b, None, out).problem(), device)
        grid, block, kernarg = (1, 1, 1), (256, 1, 1), bytes(256)
        offsets = [loaded.spec.kernarg.offset(name) for name in gemm.POINTERS]
        ready = device.ready(loaded.handle, grid, block, kernarg, offsets)
        plan = plans.Plan(((torch.Size((64, 64)), torch.bfloat16),), plans.Repeat(ready))
        tensors = (a, b, None, None, None)
        op, x = torch.ops.flycc.gemm.default, torch.zeros(8)
        with standin.ignoring(), patch.object(gemm, "device_for", lambda _: device), refusals.strict():
            times = microseconds(
                {
                    "torch.add": lambda: torch.add(x, x),
                    "op": lambda: op(a, b),
                    "gemm": lambda: gemm.gemm(a, b),
                    "key": lambda: plans.key(device, tensors, (False,) * 6),
                    "results": lambda: plan.empty(a.device),
                    "ready launch": lambda: ready(*offsets),
                    "analysed": lambda: gemm.launch(GemmOperands.of(a, b, None, out), device),
                    "launch": lambda: device.launch(loaded.handle, grid, block, kernarg),
                }
            )
    ratios = {name: value / times["torch.add"] for name, value in times.items()}
    return {"microseconds": times, "ratio": ratios, "target_us": {"op": TARGET_US}}


def show(figures: dict[str, dict[str, float]]) -> None:
    """The table a person reads."""
    rows = [
        (name, f"{value:.1f}", f"{figures['ratio'][name]:.2f}")
        for name, value in figures["microseconds"].items()
    ]
    table("What a launch costs the host", ("call", "us", "x torch.add"), rows)
    target = figures["target_us"]["op"]
    met = "met" if figures["microseconds"]["op"] <= target else "NOT met"
    console.print(f"target: op <= {target:g} us, {met}")
