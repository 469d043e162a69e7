"""What the binary of an MX product is specialised on: everything but the sizes and strides."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flycc.contracts.gemm import GemmDtype
from flycc.contracts.scaled_gemm import BLOCK_K, ElementFormat, ScaledGemmProblem, ScaleKind
from flycc.kernels.gemm.variant import GemmVariant
from flycc.kernels.mx.config import MxConfig, counted, pairs, pairs_of_block, pieces


@dataclass(frozen=True, slots=True)
class Scaling:
    """One operand's elements and scales. `vector` bytes (1, 4, 8 or 16) of a row's block scales are loaded at a time,
    and lie inside the row or outside."""

    element: ElementFormat
    kind: ScaleKind
    vector: int
    pieces: int

    def __str__(self) -> str:
        return f"{self.element}_{self.kind}{self.vector if self.kind == 'block' else ''}"


@dataclass(frozen=True, slots=True)
class MxVariant:
    """`gemm` is how the product of as many bytes would be computed, `dtype` the type of bias, residual and, if the
    epilogue names no other, results. `block` are the pairs of bytes along K that share a block scale."""

    a: Scaling
    b: Scaling
    dtype: GemmDtype
    block: int
    packed: bool
    gemm: GemmVariant

    @classmethod
    def of(cls, problem: ScaledGemmProblem, config: MxConfig) -> MxVariant:
        assert isinstance(problem.k, int), "is_valid"
        blocks = -(-problem.k // BLOCK_K)
        of_a, of_b = pieces(problem)
        return cls(
            Scaling(problem.format_a, problem.scale_a, _vector(problem.align_scale_a, blocks), of_a),
            Scaling(problem.format_b, problem.scale_b, _vector(problem.align_scale_b, blocks), of_b),
            problem.dtype,
            pairs_of_block(problem),
            config.packed,
            _of_own_pairs(GemmVariant.of(counted(problem), config.tile), problem),
        )

    @property
    def symbol(self) -> str:
        return f"mx_{self.a}_{self.b}{'_packed' * self.packed}_{self.dtype}_{self.gemm.symbol}"


def _of_own_pairs(variant: GemmVariant, problem: ScaledGemmProblem) -> GemmVariant:
    """`variant` with accesses that lie inside a row or outside of the operand of fewer bytes, too."""
    vector_a, vector_b = (
        math.gcd(vector, pairs(element, problem.k))  # type: ignore[arg-type]
        for vector, element in ((variant.vector_a, problem.format_a), (variant.vector_b, problem.format_b))
    )
    return replace(variant, vector_a=vector_a, vector_b=vector_b)


def _vector(align: int, blocks: int) -> int:
    """Bytes of scales per access; those of fewer than a dword are loaded one by one."""
    found = math.gcd(align, blocks)
    return found if found >= 4 else 1
