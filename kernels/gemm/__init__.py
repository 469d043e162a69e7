"""Matrix multiplication with bf16 or fp16 operands, float32 accumulation and an optional bias."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flycc.contracts import GemmProblem
from flycc.kernels.common.spec import KernelSpec, Launch
from flycc.kernels.gemm.config import GemmConfig, Shares, candidates, choose, others_arrived, product_columns
from flycc.kernels.gemm.kernarg import ABSENT, KERNARG
from flycc.kernels.gemm.variant import GemmVariant

__all__ = [
    "ABSENT",
    "KERNARG",
    "GemmConfig",
    "Shares",
    "candidates",
    "choose",
    "kernel",
    "launch",
    "others_arrived",
    "product_columns",
    "shares",
]

_HERE = Path(__file__).parent
_SOURCES = (
    *(
        _HERE / name
        for name in (
            "config.py",
            "epilogue.py",
            "kernarg.py",
            "mfma.py",
            "operand.py",
            "order.py",
            "parts.py",
            "pipeline.py",
            "product.py",
            "program.py",
            "result.py",
            "ring.py",
            "split.py",
            "variant.py",
        )
    ),
    *(
        _HERE.parent / "common" / name
        for name in ("arguments.py", "buffers.py", "machine.py", "vectors.py", "wave.py")
    ),
)


def kernel(problem: GemmProblem, config: GemmConfig) -> KernelSpec:
    """The binary that computes `problem`; problems that differ in sizes only, but for their divisibility by
    2, 4 and 8, share one.

    Raises ValueError if `config` does not compute `problem`.
    """
    _require_valid(problem, config)
    variant = GemmVariant.of(problem, config)

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.gemm.program import build

        return build(variant)

    return KernelSpec("gemm", variant.symbol, repr(variant), KERNARG, _SOURCES, build)


def launch(problem: GemmProblem, config: GemmConfig) -> Launch:
    """Launch geometry for `problem`, whose sizes must all be known."""
    _require_valid(problem, config)
    sizes = (problem.m, product_columns(problem), problem.k, problem.batch)
    m, n, _, batch = (size if isinstance(size, int) else 0 for size in sizes)
    if not all(isinstance(size, int) for size in sizes):
        raise ValueError(f"launch: every size must be known, got {problem}")
    tiles = config.tiles(m, n)
    grid = (*tiles, batch)
    if config.split:
        grid = (shares(problem, config).workgroups, 1, batch)
    elif config.ring:
        grid = (tiles[0] * tiles[1], 1, batch)
    return Launch(grid, (config.threads, 1, 1))


def shares(problem: GemmProblem, config: GemmConfig) -> Shares:
    """How workgroups share K, for `problem`, whose sizes must all be known: of a configuration with `split`."""
    return config.shares(problem.m, product_columns(problem), problem.k, problem.batch)  # type: ignore[arg-type]


def _require_valid(problem: GemmProblem, config: GemmConfig) -> None:
    reason = config.is_valid(problem)
    if reason is not None:
        raise ValueError(str(reason))
