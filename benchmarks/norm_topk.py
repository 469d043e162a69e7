"""What the memory-bound kernels move, from traces of emulated launches, and how long the cost model gives them, beside
published times of the same shapes: each family's figures are in its own module.
"""

from __future__ import annotations

from typing import Any

from flycc.benchmarks import rms_norm_traffic, topk_traffic
from flycc.cli.output import console

FAMILIES = {"rms_norm": rms_norm_traffic, "topk": topk_traffic}


def measure() -> dict[str, Any]:
    """Each family's figures, by its name."""
    return {name: family.measure() for name, family in FAMILIES.items()}


def show(figures: dict[str, Any]) -> None:
    """The tables a person reads."""
    for name, family in FAMILIES.items():
        family.show(figures[name])
        console.print()
