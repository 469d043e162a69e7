"""The k largest or smallest of every row, with their indices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flycc.kernels.common.spec import KernelSpec, Launch
from flycc.kernels.topk.config import Step, TopkConfig, choose
from flycc.kernels.topk.kernarg import KERNARG
from flycc.kernels.topk.variant import RegisterVariant, SortVariant, Variant

__all__ = ["KERNARG", "Step", "TopkConfig", "choose", "kernel", "launch"]

_HERE = Path(__file__).parent
_SOURCES = (
    *(
        _HERE / name
        for name in (
            "host.py",
            "kernarg.py",
            "keys.py",
            "register.py",
            "row.py",
            "select.py",
            "sort.py",
            "variant.py",
            "workgroup.py",
        )
    ),
    *(_HERE.parent / "common" / name for name in ("arguments.py", "buffers.py", "machine.py", "wave.py")),
)


def kernel(variant: Variant) -> KernelSpec:
    """The binary of `variant`, for any sizes."""

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.topk import register, select, sort

        if isinstance(variant, RegisterVariant):
            return register.build(variant)
        return sort.build(variant) if isinstance(variant, SortVariant) else select.build(variant)

    return KernelSpec("topk", variant.symbol, repr(variant), KERNARG, _SOURCES, build)


def launch(step: Step, rows: int) -> Launch:
    """Launch geometry of `step` for `rows` rows."""
    groups = -(-rows // step.variant.rows)
    return Launch((groups, step.parts, 1), (step.variant.threads, 1, 1))
