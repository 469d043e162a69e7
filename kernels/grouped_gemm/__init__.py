"""Products of groups that share out one dimension (experts and their tokens): bf16 or fp16, float32 accumulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flycc.contracts import GroupedGemmProblem
from flycc.kernels.common.machine import XCDS
from flycc.kernels.common.spec import KernelSpec, Launch
from flycc.kernels.grouped_gemm.config import GroupedGemmConfig, batch_of, choose, space
from flycc.kernels.grouped_gemm.kernarg import KERNARG
from flycc.kernels.grouped_gemm.variant import GroupedGemmVariant

__all__ = ["KERNARG", "GroupedGemmConfig", "batch_of", "choose", "kernel", "launch", "space"]

_HERE = Path(__file__).parent
#: The files that a binary depends on.
SOURCES = (
    *(_HERE / name for name in ("config.py", "kernarg.py", "program.py", "stream.py", "variant.py")),
    *(
        _HERE.parent / "common" / name
        for name in ("arguments.py", "buffers.py", "machine.py", "vectors.py", "wave.py")
    ),
    *sorted((_HERE.parent / "gemm").glob("*.py")),
)


def kernel(problem: GroupedGemmProblem, config: GroupedGemmConfig) -> KernelSpec:
    """The binary that computes `problem`; it knows no sizes but for what divides those that are not ragged.

    Raises ValueError if `config` does not compute `problem`.
    """
    _require_valid(problem, config)
    variant = GroupedGemmVariant.of(problem, config)

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.grouped_gemm.program import build

        return build(variant)

    return KernelSpec("grouped_gemm", variant.symbol, repr(variant), KERNARG, SOURCES, build)


def launch(problem: GroupedGemmProblem, config: GroupedGemmConfig) -> Launch:
    """Launch geometry for `problem`, whose sizes must all be known: a multiple of `XCDS` workgroups, no more than can
    have a tile or, if K may be shared, a part of one.
    """
    _require_valid(problem, config)
    tiles = config.max_tiles(problem)
    if tiles is None:
        raise ValueError(f"launch: every size must be known, got {problem}")
    workgroups = config.max_workgroups
    if not config.tile.split:
        workgroups = min(workgroups, -(-tiles // XCDS) * XCDS)
    return Launch((workgroups, 1, 1), (config.tile.threads, 1, 1))


def _require_valid(problem: GroupedGemmProblem, config: GroupedGemmConfig) -> None:
    reason = config.is_valid(problem)
    if reason is not None:
        raise ValueError(str(reason))
