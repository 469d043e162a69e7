"""Every configuration of the MX family that is worth trying on a problem."""

from __future__ import annotations

from collections.abc import Iterator

from flycc.contracts.scaled_gemm import ScaledGemmProblem
from flycc.kernels.gemm.space import space as dense_space
from flycc.kernels.mx.config import MxConfig, counted


def space(problem: ScaledGemmProblem) -> Iterator[MxConfig]:
    """Every tile of the dense product of as many bytes, with scales as they are and packed, always in the same order:
    those that compute `problem`."""
    ways = (False, True) if "block" in (problem.scale_a, problem.scale_b) else (False,)
    for tile in dense_space(counted(problem)):
        for packed in ways:
            config = MxConfig(tile, packed)
            if config.is_valid(problem) is None:
                yield config
