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
from torch.fx import Graph, GraphModule

from flycc.backend import run_rest
from flycc.cli.output import console, table
from flycc.contracts import RmsNormProblem, TopkProblem
from flycc.options import Options
from flycc.runtime import devices, gemm, hip_standin, plans, refusals, rms_norm, topk
from flycc.runtime.hip import HipDevice
from flycc.runtime.operands import GemmOperands

ROUNDS, CALLS = 301, 20
#: From a compiled graph's call to the device's launch.
TARGET_US = 10.0


def microseconds(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median over rounds and calls; the rounds of all calls take turns.

    Each call is timed alone: most then see no other process, which a mean over many of them would.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()  # the others' data are in the caches
            samples[name] += (mean_microseconds(call, 1) for _ in range(CALLS))
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


def graph_of(op: Callable[..., Tensor]) -> Callable[[list[Tensor]], object]:
    """What the backend returns for a graph that calls `op` of its two inputs."""
    graph = Graph()
    inputs = [graph.placeholder(name) for name in ("a", "b")]
    graph.output((graph.call_function(op, tuple(inputs)),))
    return run_rest(GraphModule(torch.nn.Module(), graph), Options())


def measure() -> dict[str, dict[str, float]]:
    """{"microseconds": ..., "ratio": ..., "target_us": ...}.

    "graph" is a rebuilt graph of one product that is repeated, "op" its call of the product, "gemm" the same without
    PyTorch's dispatcher, and "plan", "results", "ready launch" are parts of that. "norm" and "topk" are repeated calls
    of other ops. "analysed" is what the first product of its kind takes instead, and "launch" a launch whose arguments
    are not prepared.
    """
    with hip_standin.installed() as standin:
        device = HipDevice(0, stream=lambda: 0)
        a, b, out = on_device(device, 64, 64), on_device(device, 64, 64), on_device(device, 1, 64, 64)
        place, op, x = a.device, torch.ops.flycc.gemm.default, torch.zeros(8)
        graph, row = graph_of(op), b[0]
        first = gemm.launch(GemmOperands.of(a, b, None, out), device)
        ready, pointers = first.ready(), range(len(first.pointers))
        assert ready is not None
        rms_norm.prepare(RmsNormProblem("bf16", 64, 64, "bf16"), device)
        topk.prepare(TopkProblem("bf16", 64, 64, 4), device)
        norm, select = torch.ops.flycc.rms_norm_fwd.default, torch.ops.flycc.topk.default
        with (
            standin.ignoring(),
            patch.dict(devices.GPUS, {place: device}),
            patch.object(gemm, "_PLANS", plans.Plans()) as kept,
            patch.object(rms_norm, "_PLANS", plans.Plans()),
            patch.object(topk, "_PLANS", plans.Plans()),
            refusals.strict(),
        ):
            gemm.gemm(a, b)
            key, tensors = (False, False, False), (a, b, None)
            times = microseconds(
                {
                    "torch.add": lambda: torch.add(x, x),
                    "graph": lambda: graph([a, b]),
                    "op": lambda: op(a, b),
                    "gemm": lambda: gemm.gemm(a, b),
                    "plan": lambda: kept.find(tensors, key),
                    "results": lambda: torch.empty(64, 64, dtype=a.dtype, device=place),
                    "ready launch": lambda: ready(*pointers),
                    "norm": lambda: norm(a, row, None, 1e-5),
                    "topk": lambda: select(a, 4),
                    "analysed": lambda: gemm.launch(GemmOperands.of(a, b, None, out), device),
                    "launch": lambda: device.launch(
                        first.kernel.handle, first.geometry.grid, first.geometry.block, first.kernarg
                    ),
                }
            )
    ratios = {name: value / times["torch.add"] for name, value in times.items()}
    return {"microseconds": times, "ratio": ratios, "target_us": {"graph": TARGET_US}}


def show(figures: dict[str, dict[str, float]]) -> None:
    """The table a person reads."""
    rows = [
        (name, f"{value:.1f}", f"{figures['ratio'][name]:.2f}")
        for name, value in figures["microseconds"].items()
    ]
    table("What a launch costs the host", ("call", "us", "x torch.add"), rows)
    target = figures["target_us"]["graph"]
    met = "met" if figures["microseconds"]["graph"] <= target else "NOT met"
    console.print(f"target: graph <= {target:g} us, {met}")
