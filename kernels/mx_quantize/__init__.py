"""MX quantisation and back, and the range of E8M0 scales."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flycc.contracts.mx import MxDequantizeProblem, MxQuantizeProblem, ScaleRangeProblem
from flycc.kernels.common.spec import KernelSpec
from flycc.kernels.mx_quantize.config import Rows, RowsConfig, Shares, choose, flat, range_shares, shares
from flycc.kernels.mx_quantize.kernarg import DEQUANTIZE, QUANTIZE, RANGE
from flycc.kernels.mx_quantize.variant import DequantizeVariant, QuantizeVariant

__all__ = [
    "DEQUANTIZE",
    "QUANTIZE",
    "RANGE",
    "RowsConfig",
    "Shares",
    "choose",
    "dequantize_kernel",
    "flat",
    "quantize_kernel",
    "range_kernel",
    "range_shares",
    "shares",
]

_HERE = Path(__file__).parent
_SHARED = (
    *(_HERE / name for name in ("config.py", "kernarg.py", "variant.py")),
    *(
        _HERE.parent / "common" / name
        for name in ("arguments.py", "buffers.py", "machine.py", "vectors.py", "wave.py")
    ),
)
_ROWS, _EXTENT, _BLOCK = (_HERE / name for name in ("place.py", "extent.py", "block.py"))


def quantize_kernel(problem: MxQuantizeProblem, config: RowsConfig) -> KernelSpec:
    """The binary that computes `problem`. Raises ValueError if `config` does not compute it."""
    _require_valid(problem, config)
    variant = QuantizeVariant.of(problem, config)

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.mx_quantize.quantize import build

        return build(variant)

    sources = (*_SHARED, _ROWS, _EXTENT, _BLOCK, _HERE / "quantize.py")
    return KernelSpec("mx_quantize", variant.symbol, repr(variant), QUANTIZE, sources, build)


def dequantize_kernel(problem: MxDequantizeProblem, config: RowsConfig) -> KernelSpec:
    """The binary that computes `problem`. Raises ValueError if `config` does not compute it."""
    _require_valid(problem, config)
    variant = DequantizeVariant.of(problem, config)

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.mx_quantize.dequantize import build

        return build(variant)

    sources = (*_SHARED, _ROWS, _HERE / "dequantize.py")
    return KernelSpec("mx_quantize", variant.symbol, repr(variant), DEQUANTIZE, sources, build)


def range_kernel(problem: ScaleRangeProblem) -> KernelSpec:
    """The binary that finds the range of any number of bytes."""

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.mx_quantize.range import build

        return build()

    sources = (*_SHARED, _EXTENT, _HERE / "range.py")
    return KernelSpec("mx_quantize", "scale_range", "", RANGE, sources, build)


def _require_valid(problem: Rows, config: RowsConfig) -> None:
    reason = config.is_valid(problem)
    if reason is not None:
        raise ValueError(str(reason))
