"""What the binaries are specialised on: everything but sizes and strides."""

from __future__ import annotations

from dataclasses import dataclass

from flycc.contracts.mx import MxDequantizeProblem, MxQuantizeProblem, ScaleRounding
from flycc.contracts.scaled_gemm import BLOCK_K, ElementFormat
from flycc.contracts.sizes import Size
from flycc.kernels.mx_quantize.config import CHUNK, RowsConfig

#: Work-items whose blocks' bytes are stored as one word, and the elements of those.
_WORD = 4 * BLOCK_K


@dataclass(frozen=True, slots=True)
class QuantizeVariant:
    """`wide_loads` and `wide_stores` say that chunks are accessed whole, `wide_scales` that bytes are stored four at a
    time; else each element and each byte is by itself.
    """

    dtype: str
    format: ElementFormat
    rounding: ScaleRounding
    wide_loads: bool
    wide_stores: bool
    wide_scales: bool
    config: RowsConfig

    @classmethod
    def of(cls, problem: MxQuantizeProblem, config: RowsConfig) -> QuantizeVariant:
        whole = divides(CHUNK, problem.columns)
        return cls(
            problem.dtype,
            problem.format,
            problem.rounding,
            whole and problem.align >= 4,
            whole,
            divides(_WORD, problem.columns) and config.columns % _WORD == 0,
            config,
        )

    @property
    def symbol(self) -> str:
        options = "".join(
            f"_{name}" for name in ("wide_loads", "wide_stores", "wide_scales") if getattr(self, name)
        )
        return f"mx_quantize_{self.dtype}_{self.format}_{self.rounding}{options}_{self.config}"


@dataclass(frozen=True, slots=True)
class DequantizeVariant:
    """`wide_loads` and `wide_stores` as in `QuantizeVariant`."""

    format: ElementFormat
    dtype: str
    wide_loads: bool
    wide_stores: bool
    config: RowsConfig

    @classmethod
    def of(cls, problem: MxDequantizeProblem, config: RowsConfig) -> DequantizeVariant:
        whole = divides(CHUNK, problem.columns)
        return cls(problem.format, problem.dtype, whole and problem.align >= 4, whole, config)

    @property
    def symbol(self) -> str:
        options = "".join(f"_{name}" for name in ("wide_loads", "wide_stores") if getattr(self, name))
        return f"mx_dequantize_{self.format}_{self.dtype}{options}_{self.config}"


def divides(divisor: int, size: Size) -> bool:
    """Whether a size is known to be a multiple of `divisor`."""
    return isinstance(size, int) and size % divisor == 0
