"""What the binary of an MX product by group is specialised on: everything but sizes, strides and offsets."""

from __future__ import annotations

from dataclasses import dataclass

from flycc.contracts import ScaledGroupedGemmProblem
from flycc.kernels.mx.config import MxConfig
from flycc.kernels.mx.variant import MxVariant
from flycc.kernels.mx_grouped.config import MxGroupedConfig


@dataclass(frozen=True, slots=True)
class MxGroupedVariant:
    """`group` is how one group's product is computed."""

    group: MxVariant

    @classmethod
    def of(cls, problem: ScaledGroupedGemmProblem, config: MxGroupedConfig) -> MxGroupedVariant:
        return cls(MxVariant.of(problem.group, MxConfig(config.tile)))

    @property
    def symbol(self) -> str:
        return f"grouped_{self.group.symbol}"
