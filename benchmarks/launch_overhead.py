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

import torch
from torch import Tensor

from flycc.cli.output import table
from flycc.runtime import gemm, hip_standin
from flycc.runtime.hip import HipDevice
from flycc.runtime.operands import GemmOperands

ROUNDS, CALLS = 15, 1000


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
    """{"microseconds": ..., "ratio": ...} of a bare launch, and of a whole GEMM call from its tensors on."""
    with hip_standin.installed() as standin:
        device = HipDevice(0, stream=lambda: 0)
        a, b, out = on_device(device, 64, 64), on_device(device, 64, 64), on_device(device, 1, 64, 64)
        operands = GemmOperands.of(a, b, None, out)
        _, loaded = gemm.prepare(operands.problem(), device)
        kernarg = bytes(128)
        x = torch.zeros(8)
        with standin.ignoring():
            times = microseconds(
                {
                    "torch.add": lambda: torch.add(x, x),
                    "launch": lambda: device.launch(loaded.handle, (1, 1, 1), (256, 1, 1), kernarg),
                    "gemm": lambda: gemm.launch(GemmOperands.of(a, b, None, out), device),
                }
            )
    ratios = {name: value / times["torch.add"] for name, value in times.items()}
    return {"microseconds": times, "ratio": ratios}


def show(figures: dict[str, dict[str, float]]) -> None:
    """The table a person reads."""
    rows = [
        (name, f"{value:.1f}", f"{figures['ratio'][name]:.2f}")
        for name, value in figures["microseconds"].items()
    ]
    table("What a launch costs the host", ("call", "us", "x torch.add"), rows)
