"""What a GEMM binary is specialised on: everything but the sizes and strides."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flycc.contracts import Epilogue, GemmProblem
from flycc.contracts.sizes import Size
from flycc.kernels.gemm.config import ELEMENT_BYTES, GemmConfig, out_bytes


@dataclass(frozen=True, slots=True)
class GemmVariant:
    """`vector_a`, `vector_b` and `vector_out` are elements (1, 2, 4 or 8) per memory access.

    An access of that many elements along the unit-stride dimension is aligned to its size and lies wholly
    inside or wholly outside the operand.
    """

    dtype: str
    trans_a: bool
    trans_b: bool
    bias: bool
    vector_a: int
    vector_b: int
    vector_out: int
    vector_bias: int
    vector_residual: int
    epilogue: Epilogue
    batched: bool
    config: GemmConfig

    @classmethod
    def of(cls, problem: GemmProblem, config: GemmConfig) -> GemmVariant:
        return cls(
            dtype=problem.dtype,
            trans_a=problem.trans_a,
            trans_b=problem.trans_b,
            bias=problem.bias,
            vector_a=_vector(problem.align_a, problem.m if problem.trans_a else problem.k),
            vector_b=_vector(problem.align_b, problem.k if problem.trans_b else problem.n),
            vector_out=_vector(problem.align_out, problem.n, out_bytes(problem)),
            vector_bias=_vector(problem.align_bias, problem.n) if problem.bias else 1,
            vector_residual=_vector(problem.align_residual, problem.n) if problem.epilogue.residual else 1,
            epilogue=problem.epilogue,
            # One matrix has no use for strides between matrices, which not all waves find in registers.
            batched=problem.batch != 1,
            # How many parts there are is known at run time only.
            config=replace(config, splits=2, tail=False) if config.split else config,
        )

    @property
    def symbol(self) -> str:
        layout = ("t" if self.trans_a else "n") + ("t" if self.trans_b else "n")
        bias = f"_bias{self.vector_bias}" if self.bias else ""
        names = (
            "_scale" * self.epilogue.scale,
            bias,
            f"_{self.epilogue.activation}" * (self.epilogue.activation != "none"),
            "_gated" * self.epilogue.gated,
            f"_residual{self.vector_residual}" * self.epilogue.residual,
            "_pre" * self.epilogue.preactivation,
            f"_{self.epilogue.out_dtype}out" * (self.epilogue.out_dtype is not None),
        )
        batched = "_batched" * self.batched
        vectors = f"v{self.vector_a}{self.vector_b}{self.vector_out}"
        return f"gemm_{self.dtype}_{layout}{''.join(names)}{batched}_{vectors}_{self.config}"


def _vector(align: int, unit_stride_size: Size, element_bytes: int = ELEMENT_BYTES) -> int:
    """Elements per access: limited by the rows' alignment and by what divides the unit-stride dimension."""
    size = unit_stride_size if isinstance(unit_stride_size, int) else 1
    return math.gcd(max(1, align // element_bytes), size)
