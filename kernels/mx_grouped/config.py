"""Configurations of MX products by group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flycc.contracts import GroupedGemmProblem, Reason, ScaledGroupedGemmProblem
from flycc.kernels import mx
from flycc.kernels.gemm.config import GemmConfig
from flycc.kernels.grouped_gemm import GroupedGemmConfig
from flycc.kernels.grouped_gemm import space as dense_space


@dataclass(frozen=True, slots=True)
class MxGroupedConfig(GroupedGemmConfig):
    """As `GroupedGemmConfig`; `tile.tile_k` counts pairs of bytes, as `counted` does."""

    def is_valid(self, problem: ScaledGroupedGemmProblem) -> Reason | None:  # type: ignore[override]
        """None if this configuration computes `problem`, else why it does not."""
        reason = mx.MxConfig(self.tile).is_valid(problem.group)
        if reason is None:
            reason = GroupedGemmConfig(self.tile).is_valid(counted(problem))
        return None if reason is None else _of_family(reason)


def counted(problem: ScaledGroupedGemmProblem) -> GroupedGemmProblem:
    """The grouped product of 16-bit elements whose operands have as many bytes, as `mx.counted`."""
    group = mx.counted(problem.group)
    return GroupedGemmProblem(
        group.dtype,
        "m",
        problem.groups,
        problem.m,
        problem.n,
        group.k,
        trans_b=True,
        align_a=problem.align_a,
        align_b=problem.align_b,
        align_out=problem.align_out,
        bias=problem.bias,
        align_bias=problem.align_bias,
    )


#: Serves whatever any configuration serves.
_ANY = MxGroupedConfig(GemmConfig(32, 64, 64, waves_k=4, staged=False))


def space(problem: ScaledGroupedGemmProblem) -> Iterator[MxGroupedConfig]:
    """Every shipped configuration that computes `problem`, the likeliest first."""
    if _ANY.is_valid(problem) is not None:
        return
    configs = (MxGroupedConfig(config.tile) for config in dense_space(counted(problem)))
    yield from (config for config in configs if config.is_valid(problem) is None)


def choose(problem: ScaledGroupedGemmProblem) -> MxGroupedConfig | Reason:
    """The configuration to run `problem` with, or why none does."""
    return next(space(problem), None) or _ANY.is_valid(problem) or _ANY


def _of_family(reason: Reason) -> Reason:
    return Reason(f"scaled-grouped-gemm.{reason.code.partition('.')[2]}", reason.sentence)
