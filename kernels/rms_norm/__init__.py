"""RMS normalisation with float32 statistics and its gradients, of bf16, fp16 and float32 rows of any length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flycc.contracts import RmsNormBackwardProblem, RmsNormProblem
from flycc.kernels.common.spec import KernelSpec, Launch
from flycc.kernels.rms_norm.config import (
    BackwardStep,
    RmsNormConfig,
    What,
    choose,
    plan_backward,
    whole_columns,
)
from flycc.kernels.rms_norm.kernarg import BACKWARD, FORWARD
from flycc.kernels.rms_norm.variant import BackwardVariant, ForwardVariant

__all__ = [
    "BACKWARD",
    "FORWARD",
    "BackwardStep",
    "RmsNormConfig",
    "backward_kernel",
    "choose",
    "kernel",
    "launch",
    "plan_backward",
    "whole_columns",
]

_HERE = Path(__file__).parent
_SHARED = (
    *(_HERE / name for name in ("config.py", "kernarg.py", "row.py", "variant.py")),
    *(
        _HERE.parent / "common" / name
        for name in ("arguments.py", "buffers.py", "machine.py", "reduce.py", "vectors.py")
    ),
)
_FORWARD_SOURCES = (
    *_SHARED,
    _HERE / "forward.py",
    *(_HERE.parent / "mx_quantize" / name for name in ("block.py", "config.py", "extent.py")),
)
_BACKWARD_SOURCES = (*_SHARED, _HERE / "backward.py", _HERE / "backward_long.py", _HERE / "gradient.py")


def kernel(problem: RmsNormProblem, config: RmsNormConfig) -> KernelSpec:
    """The binary that computes `problem`; problems that differ in sizes only, but for whether rows are whole
    16-byte vectors or odd, share one.

    Raises ValueError if `config` does not compute `problem`.
    """
    _require_valid(problem, config)
    variant = ForwardVariant.of(problem, config)

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.rms_norm.forward import build

        return build(variant)

    return KernelSpec("rms_norm", variant.symbol, repr(variant), FORWARD, _FORWARD_SOURCES, build)


def launch(problem: RmsNormProblem, config: RmsNormConfig) -> Launch:
    """Launch geometry for `problem`, whose sizes must all be known."""
    _require_valid(problem, config)
    if not isinstance(problem.rows, int):
        raise ValueError(f"launch: every size must be known, got {problem}")
    return Launch((-(-problem.rows // config.rows), 1, 1), (config.block, 1, 1))


def backward_kernel(problem: RmsNormBackwardProblem, config: RmsNormConfig, what: What) -> KernelSpec:
    """The binary of a step of `plan_backward(problem)`."""
    _require_valid(problem, config)
    variant = BackwardVariant.of(problem, config, what)

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.rms_norm import backward, backward_long

        builders = {
            "both": backward.build,
            "dx": backward_long.build_dx,
            "dweight": backward_long.build_dweight,
        }
        return builders[what](variant)

    return KernelSpec("rms_norm", variant.symbol, repr(variant), BACKWARD, _BACKWARD_SOURCES, build)


def _require_valid(problem: RmsNormProblem | RmsNormBackwardProblem, config: RmsNormConfig) -> None:
    reason = config.is_valid(problem)
    if reason is not None:
        raise ValueError(str(reason))
