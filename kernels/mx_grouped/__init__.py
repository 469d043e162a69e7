"""MX products of rows by group (experts and their tokens): block scales, float32 accumulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flycc.contracts import ScaledGroupedGemmProblem
from flycc.kernels import grouped_gemm, mx
from flycc.kernels.common.spec import KernelSpec, Launch
from flycc.kernels.mx_grouped.config import MxGroupedConfig, choose, counted, space
from flycc.kernels.mx_grouped.kernarg import KERNARG
from flycc.kernels.mx_grouped.variant import MxGroupedVariant

__all__ = ["KERNARG", "MxGroupedConfig", "choose", "counted", "kernel", "launch", "space"]

_HERE = Path(__file__).parent
_SOURCES = (
    *(_HERE / name for name in ("config.py", "kernarg.py", "program.py", "variant.py")),
    *mx.SOURCES,
    *(source for source in grouped_gemm.SOURCES if source not in mx.SOURCES),
)


def kernel(problem: ScaledGroupedGemmProblem, config: MxGroupedConfig) -> KernelSpec:
    """The binary that computes `problem`; it knows no sizes but for what divides N and K.

    Raises ValueError if `config` does not compute `problem`.
    """
    if reason := config.is_valid(problem):
        raise ValueError(str(reason))
    variant = MxGroupedVariant.of(problem, config)

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.mx_grouped.program import build

        return build(variant)

    return KernelSpec("scaled_grouped_gemm", variant.symbol, repr(variant), KERNARG, _SOURCES, build)


def launch(problem: ScaledGroupedGemmProblem, config: MxGroupedConfig) -> Launch:
    """Launch geometry for `problem`, whose sizes must all be known: that of 16-bit elements of as many bytes."""
    return grouped_gemm.launch(counted(problem), grouped_gemm.GroupedGemmConfig(config.tile))
