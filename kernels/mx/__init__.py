"""Products of MX operands, and what makes MX operands: elements of 4 and 8 bits with a scale for each 32 of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flycc.contracts.scaled_gemm import ScaledGemmProblem
from flycc.kernels.common.spec import KernelSpec, Launch
from flycc.kernels.gemm.config import others_arrived
from flycc.kernels.mx.config import (
    MxConfig,
    candidates,
    choose,
    counted,
    pairs,
    pairs_of_block,
    shares,
    widest,
)
from flycc.kernels.mx.kernarg import ABSENT, KERNARG
from flycc.kernels.mx.pack import Packing
from flycc.kernels.mx.variant import MxVariant

__all__ = [
    "ABSENT",
    "KERNARG",
    "MxConfig",
    "Packing",
    "candidates",
    "choose",
    "counted",
    "kernel",
    "launch",
    "others_arrived",
    "pairs",
    "pairs_of_block",
    "shares",
    "widest",
]

_HERE = Path(__file__).parent
#: The files that a binary depends on.
SOURCES = (
    *(_HERE / name for name in ("config.py", "kernarg.py", "mfma.py", "program.py", "rows.py", "variant.py")),
    *(
        _HERE.parent / "common" / name
        for name in ("arguments.py", "buffers.py", "machine.py", "vectors.py", "wave.py")
    ),
    *sorted((_HERE.parent / "gemm").glob("*.py")),
)


def kernel(problem: ScaledGemmProblem, config: MxConfig) -> KernelSpec:
    """The binary that computes `problem`; problems that differ in sizes only, but for what divides them, share one.

    Raises ValueError if `config` does not compute `problem`.
    """
    _require_valid(problem, config)
    variant = MxVariant.of(problem, config)

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.mx.program import build

        return build(variant)

    return KernelSpec("scaled_gemm", variant.symbol, repr(variant), KERNARG, SOURCES, build)


def launch(problem: ScaledGemmProblem, config: MxConfig) -> Launch:
    """Launch geometry for `problem`, whose sizes must all be known."""
    _require_valid(problem, config)
    if not all(isinstance(size, int) for size in (problem.m, problem.n)):
        raise ValueError(f"launch: every size must be known, got {problem}")
    rows, columns = config.tile.tiles(problem.m, problem.n)  # type: ignore[arg-type]
    grid = (rows, columns, 1)
    if config.split:
        grid = (shares(problem, config).workgroups, 1, 1)
    elif config.tile.ring:
        grid = (rows * columns, 1, 1)
    return Launch(grid, (config.tile.threads, 1, 1))


def _require_valid(problem: ScaledGemmProblem, config: MxConfig) -> None:
    reason = config.is_valid(problem)
    if reason is not None:
        raise ValueError(str(reason))
