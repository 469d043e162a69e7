"""Matrix multiplication with bf16 or fp16 operands, float32 accumulation and an optional bias."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flycc.contracts import GemmProblem
from flycc.kernels.common.spec import KernargLayout, KernelSpec, Launch
from flycc.kernels.gemm.config import GemmConfig, candidates, choose
from flycc.kernels.gemm.variant import GemmVariant

__all__ = ["KERNARG", "GemmConfig", "candidates", "choose", "kernel", "launch"]

#: Strides count elements. `ld_*` is the stride between rows of the stored operand, `batch_*` the one between
#: matrices (0 broadcasts), `bias_*` those of the bias (0 broadcasts; all 0 and a null pointer without bias).
KERNARG = KernargLayout(
    (
        ("a", "ptr"),
        ("b", "ptr"),
        ("bias", "ptr"),
        ("out", "ptr"),
        ("batch_a", "i64"),
        ("batch_b", "i64"),
        ("batch_out", "i64"),
        ("bias_batch", "i64"),
        ("bias_m", "i64"),
        ("bias_n", "i64"),
        ("m", "i32"),
        ("n", "i32"),
        ("k", "i32"),
        ("ld_a", "i32"),
        ("ld_b", "i32"),
        ("ld_out", "i32"),
    )
)

_HERE = Path(__file__).parent
_SOURCES = tuple(_HERE / name for name in ("config.py", "kernel.py", "variant.py"))


def kernel(problem: GemmProblem, config: GemmConfig) -> KernelSpec:
    """The binary that computes `problem`; problems that differ in sizes only, but for their divisibility by
    2, 4 and 8, share one.

    Raises ValueError if `config` does not compute `problem`.
    """
    _require_valid(problem, config)
    variant = GemmVariant.of(problem, config)

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.gemm.kernel import build

        return build(variant)

    return KernelSpec("gemm", variant.symbol, repr(variant), KERNARG, _SOURCES, build)


def launch(problem: GemmProblem, config: GemmConfig) -> Launch:
    """Launch geometry for `problem`, whose sizes must all be known."""
    _require_valid(problem, config)
    sizes = (problem.m, problem.n, problem.k, problem.batch)
    m, n, _, batch = (size if isinstance(size, int) else 0 for size in sizes)
    if not all(isinstance(size, int) for size in sizes):
        raise ValueError(f"launch: every size must be known, got {problem}")
    return Launch((-(-m // config.tile_m), -(-n // config.tile_n), batch), (config.threads, 1, 1))


def _require_valid(problem: GemmProblem, config: GemmConfig) -> None:
    reason = config.is_valid(problem)
    if reason is not None:
        raise ValueError(str(reason))
