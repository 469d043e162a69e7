"""What a grouped GEMM binary is specialised on: everything but sizes, strides and offsets."""

from __future__ import annotations

from dataclasses import dataclass

from flycc.contracts import GroupedGemmProblem
from flycc.contracts.grouped_gemm import Ragged
from flycc.kernels.gemm.variant import GemmVariant
from flycc.kernels.grouped_gemm.config import GroupedGemmConfig


@dataclass(frozen=True, slots=True)
class GroupedGemmVariant:
    """`group` is how one group's product is computed.

    Where the groups share out a unit-stride dimension, a group may start at any element: accesses along it are of one.
    """

    ragged: Ragged
    group: GemmVariant

    @classmethod
    def of(cls, problem: GroupedGemmProblem, config: GroupedGemmConfig) -> GroupedGemmVariant:
        return cls(problem.ragged, GemmVariant.of(problem.group, config.tile))

    @property
    def symbol(self) -> str:
        return f"grouped_{self.ragged}_{self.group.symbol}"
