"""What eager mode adds to a call that it leaves to PyTorch, once the refusal is known.

Microseconds of a call by PyTorch alone, under an override that does nothing but call PyTorch, which is the least that
any override in Python costs, and under flycc's. They take turns in the same run, in rounds shorter than a time slice,
of which the fastest count: whatever else the machine does can only make one slower. Nothing is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from flycc import eager
from flycc.benchmarks.launch_overhead import mean_microseconds
from flycc.cli.output import table
from flycc.eager.overrides import Overrides

ROUNDS, CALLS = 40, 50


@dataclass(frozen=True)
class Case:
    """A call that no kernel serves, and the ATen operator and dispatch key that its override stands at."""

    call: Callable[[], object]
    operator: str
    key: str


def cases() -> dict[str, Case]:
    """Calls whose operands are float64."""
    x = torch.randn(4, 64, dtype=torch.float64)
    weight = torch.randn(64, dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    out = torch.topk(x, 4)

    def in_inference_mode() -> None:
        with torch.inference_mode():
            F.rms_norm(x, (64,), weight)

    norm = "_fused_rms_norm"
    return {
        "topk": Case(lambda: torch.topk(x, 4), "topk", "CPU"),
        "topk, out=": Case(lambda: torch.topk(x, 4, out=out), "topk.values", "CPU"),
        "rms_norm": Case(lambda: F.rms_norm(x, (64,), weight), norm, "AutogradCPU"),
        "rms_norm, with gradient": Case(lambda: F.rms_norm(leaf, (64,), weight), norm, "AutogradCPU"),
        "rms_norm, inference mode": Case(in_inference_mode, norm, "BackendSelect"),
    }


@contextmanager
def nothing_but_pytorch(case: Case) -> Iterator[None]:
    """The override that does nothing, in place of flycc's."""
    overrides = Overrides("CPU")
    original = overrides.original(case.operator, "CPU" if case.key == "BackendSelect" else case.key)

    def kernel(keyset: torch.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        return original.call_boxed(keyset, *args, **kwargs)

    overrides.put(case.operator, kernel, case.key)
    try:
        yield
    finally:
        overrides.remove()


def measure() -> dict[str, dict[str, dict[str, float]]]:
    """{"microseconds": {call: {"pytorch", "bare", "flycc", "added"}}}; what flycc's override adds to PyTorch."""
    fastest: dict[str, dict[str, float]] = {name: {} for name in cases()}
    for _ in range(ROUNDS):
        for name, case in cases().items():
            overrides: dict[str, AbstractContextManager[None]] = {
                "pytorch": nullcontext(),
                "bare": nothing_but_pytorch(case),
                "flycc": eager.enabled(device="cpu"),
            }
            for kind, override in overrides.items():
                with override:
                    case.call()  # the refusal is found out
                    time = mean_microseconds(case.call, CALLS)
                fastest[name][kind] = min(time, fastest[name].get(kind, time))
    return {
        "microseconds": {
            name: {**times, "added": times["flycc"] - times["pytorch"]} for name, times in fastest.items()
        }
    }


def show(figures: dict[str, dict[str, dict[str, float]]]) -> None:
    """The table a person reads."""
    rows = [
        (name, *(f"{value:.1f}" for value in row.values())) for name, row in figures["microseconds"].items()
    ]
    table(
        "What eager mode adds to a refused call, in us",
        ("call", "PyTorch", "bare override", "flycc", "added"),
        rows,
    )
