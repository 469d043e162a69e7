"""RMS normalisation with float32 statistics, of bf16, fp16 and float32 rows of any length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flycc.contracts import RmsNormProblem
from flycc.kernels.common.spec import KernelSpec, Launch
from flycc.kernels.rms_norm.config import RmsNormConfig, choose, whole_columns
from flycc.kernels.rms_norm.kernarg import FORWARD
from flycc.kernels.rms_norm.variant import ForwardVariant

__all__ = ["FORWARD", "RmsNormConfig", "choose", "kernel", "launch", "whole_columns"]

_HERE = Path(__file__).parent
_SOURCES = (
    *(_HERE / name for name in ("config.py", "forward.py", "kernarg.py", "row.py", "variant.py")),
    *(
        _HERE.parent / "common" / name
        for name in ("arguments.py", "buffers.py", "machine.py", "reduce.py", "vectors.py")
    ),
)


def kernel(problem: RmsNormProblem, config: RmsNormConfig) -> KernelSpec:
    """The binary that computes `problem`; problems that differ in sizes only, but for whether rows are whole
    16-byte vectors, share one.

    Raises ValueError if `config` does not compute `problem`.
    """
    _require_valid(problem, config)
    variant = ForwardVariant.of(problem, config)

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.rms_norm.forward import build

        return build(variant)

    return KernelSpec("rms_norm", variant.symbol, repr(variant), FORWARD, _SOURCES, build)


def launch(problem: RmsNormProblem, config: RmsNormConfig) -> Launch:
    """Launch geometry for `problem`, whose sizes must all be known."""
    _require_valid(problem, config)
    if not isinstance(problem.rows, int):
        raise ValueError(f"launch: every size must be known, got {problem}")
    return Launch((-(-problem.rows // config.rows), 1, 1), (config.block, 1, 1))


def _require_valid(problem: RmsNormProblem, config: RmsNormConfig) -> None:
    reason = config.is_valid(problem)
    if reason is not None:
        raise ValueError(str(reason))
