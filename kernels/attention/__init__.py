"""Attention, forward and backward, of bf16 and fp16 heads up to 512 wide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flycc.contracts.sdpa import SdpaBackwardProblem, SdpaProblem
from flycc.kernels.attention.backward_config import BackwardConfig, BackwardStep, plan_backward
from flycc.kernels.attention.backward_kernarg import BACKWARD
from flycc.kernels.attention.backward_variant import BackwardVariant
from flycc.kernels.attention.config import SdpaConfig, WideConfig, choose, launch
from flycc.kernels.attention.decode_config import DecodeConfig
from flycc.kernels.attention.decode_host import combine_kernel, decode_kernel
from flycc.kernels.attention.decode_kernarg import COMBINE, DECODE
from flycc.kernels.attention.kernarg import FORWARD
from flycc.kernels.attention.plan import ForwardStep, chosen, plan, steps
from flycc.kernels.attention.variant import SdpaVariant
from flycc.kernels.attention.walked import Step, walked, walks
from flycc.kernels.common.spec import KernelSpec

__all__ = [
    "BACKWARD",
    "COMBINE",
    "DECODE",
    "FORWARD",
    "BackwardConfig",
    "BackwardStep",
    "DecodeConfig",
    "ForwardStep",
    "SdpaConfig",
    "Step",
    "WideConfig",
    "backward_kernel",
    "choose",
    "chosen",
    "kernel",
    "launch",
    "plan",
    "plan_backward",
    "step_kernel",
    "steps",
    "walked",
    "walks",
]

_HERE = Path(__file__).parent
_COMMON = tuple(
    _HERE.parent / "common" / name
    for name in ("arguments.py", "buffers.py", "machine.py", "reduce.py", "vectors.py", "wave.py")
)
_FORWARD_SOURCES = (
    *_COMMON,
    _HERE.parent / "gemm" / "order.py",
    *(
        _HERE / name
        for name in (
            "config.py",
            "dropout.py",
            "exchange.py",
            "features.py",
            "forward.py",
            "kernarg.py",
            "mfma.py",
            "operands.py",
            "order.py",
            "scores.py",
            "softmax.py",
            "tiles.py",
            "variant.py",
            "wide.py",
        )
    ),
)
_BACKWARD_SOURCES = (
    *_COMMON,
    *(_HERE.parent / "gemm" / name for name in ("order.py", "pipeline.py")),
    *(
        _HERE / name
        for name in (
            "backward_arguments.py",
            "backward_common.py",
            "backward_config.py",
            "backward_kernarg.py",
            "backward_kv.py",
            "backward_q.py",
            "backward_variant.py",
            "config.py",
            "delta.py",
            "dropout.py",
            "exchange.py",
            "features.py",
            "mfma.py",
            "operands.py",
            "order.py",
            "scores.py",
            "tiles.py",
            "wide_backward.py",
            "wide_backward_kv.py",
            "wide_backward_q.py",
        )
    ),
)


def kernel(problem: SdpaProblem, config: SdpaConfig | WideConfig) -> KernelSpec:
    """The binary that computes `problem`; problems that differ in sizes other than head dims share it.

    Raises ValueError if `config` does not compute `problem`.
    """
    if reason := config.is_valid(problem):
        raise ValueError(str(reason))
    variant = SdpaVariant.of(problem, config)

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.attention import forward, wide

        return (wide if isinstance(config, WideConfig) else forward).build(variant)

    return KernelSpec("sdpa", variant.symbol, repr(variant), FORWARD, _FORWARD_SOURCES, build)


def step_kernel(problem: SdpaProblem, step: ForwardStep) -> KernelSpec:
    """The binary of a step of `plan(problem)`."""
    if isinstance(step.config, SdpaConfig | WideConfig):
        return kernel(problem, step.config)
    return (decode_kernel if step.what == "decode" else combine_kernel)(problem, step.config)


def backward_kernel(problem: SdpaBackwardProblem, config: BackwardConfig) -> KernelSpec:
    """The binary of a step of `plan_backward(problem)`; problems that differ in sizes other than head dims share it."""
    variant = BackwardVariant.of(problem, config)

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.attention import backward_kv, backward_q, delta, wide_backward_kv, wide_backward_q

        builders = {"delta": delta.build, "dkv": backward_kv.build, "dq": backward_q.build}
        if config.wide:
            builders = {"dkv": wide_backward_kv.build, "dq": wide_backward_q.build}
        return builders[variant.config.what](variant)

    return KernelSpec("sdpa_backward", variant.symbol, repr(variant), BACKWARD, _BACKWARD_SOURCES, build)
