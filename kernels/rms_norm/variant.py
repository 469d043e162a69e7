"""What an RMS norm binary is specialised on: everything but the sizes and strides."""

from __future__ import annotations

from dataclasses import dataclass

from flycc.contracts import RmsNormBackwardProblem, RmsNormProblem
from flycc.contracts.mx import ScaleRounding
from flycc.contracts.scaled_gemm import BLOCK_K, ElementFormat
from flycc.contracts.sizes import Size
from flycc.kernels.common.machine import ACCESS_BYTES
from flycc.kernels.rms_norm.config import BYTES, RmsNormConfig, What


@dataclass(frozen=True, slots=True)
class MxVariant:
    """The format that y is quantised to; `wide_scales` says that four blocks' bytes are stored as a word."""

    format: ElementFormat
    rounding: ScaleRounding
    wide_scales: bool

    @classmethod
    def of(cls, problem: RmsNormProblem, config: RmsNormConfig) -> MxVariant:
        assert problem.mx is not None
        width = ACCESS_BYTES // BYTES[problem.dtype]
        wide = divides(4 * BLOCK_K, problem.columns) and config.threads * width % (4 * BLOCK_K) == 0
        return cls(problem.mx, problem.mx_rounding, wide)

    def __str__(self) -> str:
        return f"{self.format}_{self.rounding}" + ("_wide_scales" if self.wide_scales else "")


@dataclass(frozen=True, slots=True)
class ForwardVariant:
    """`edges` says that rows may have elements beyond their 16-byte vectors, `odd` that rows of 16-bit elements may
    start in the middle of a word of 4 bytes.
    """

    dtype: str
    out: str
    weight: str
    weight_offset: bool
    cast_before_weight: bool
    residual: bool
    rstd: bool
    edges: bool
    odd: bool
    mx: MxVariant | None
    config: RmsNormConfig

    @classmethod
    def of(cls, problem: RmsNormProblem, config: RmsNormConfig) -> ForwardVariant:
        return cls(
            dtype=problem.dtype,
            out=problem.out_dtype,
            weight=problem.weight,
            weight_offset=problem.weight_offset and problem.weight != "none",
            # Rounding to float32 is nothing to do.
            cast_before_weight=problem.cast_before_weight and problem.dtype != "f32",
            residual=problem.residual,
            rstd=problem.rstd,
            edges=not divides(ACCESS_BYTES // BYTES[problem.dtype], problem.columns),
            odd=2 in (BYTES[problem.dtype], BYTES[problem.out_dtype]) and not divides(2, problem.columns),
            mx=None if problem.mx is None else MxVariant.of(problem, config),
            config=config,
        )

    @property
    def symbol(self) -> str:
        options = ("weight_offset", "cast_before_weight", "residual", "rstd", "edges", "odd")
        chosen = "".join(f"_{name}" for name in options if getattr(self, name))
        chosen += "" if self.mx is None else f"_{self.mx}"
        return f"rms_norm_{self.dtype}_{self.out}_w{self.weight}{chosen}_{self.config}"


@dataclass(frozen=True, slots=True)
class BackwardVariant:
    """`edges` and `odd` as in `ForwardVariant`."""

    what: What
    dtype: str
    out: str
    weight: str
    weight_offset: bool
    edges: bool
    odd: bool
    config: RmsNormConfig

    @classmethod
    def of(
        cls,
        problem: RmsNormBackwardProblem,
        config: RmsNormConfig,
        what: What,
    ) -> BackwardVariant:
        return cls(
            what=what,
            dtype=problem.dtype,
            out=problem.out_dtype,
            weight=problem.weight,
            weight_offset=problem.weight_offset and problem.weight != "none",
            edges=not divides(ACCESS_BYTES // BYTES[problem.dtype], problem.columns),
            odd=2 in (BYTES[problem.dtype], BYTES[problem.out_dtype]) and not divides(2, problem.columns),
            config=config,
        )

    @property
    def symbol(self) -> str:
        chosen = "".join(f"_{name}" for name in ("weight_offset", "edges", "odd") if getattr(self, name))
        return f"rms_norm_{self.what}_{self.dtype}_{self.out}_w{self.weight}{chosen}_{self.config}"


def divides(divisor: int, size: Size) -> bool:
    """Whether a size is known to be a multiple of `divisor`."""
    return isinstance(size, int) and size % divisor == 0
