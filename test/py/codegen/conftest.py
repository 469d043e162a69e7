from __future__ import annotations

from pathlib import Path

import pytest

from flycc.codegen import CodeObjectCache
from flycc.contracts import GemmProblem
from flycc.kernels import gemm
from flycc.kernels.common.spec import KernelSpec


@pytest.fixture
def cache(tmp_path: Path) -> CodeObjectCache:
    return CodeObjectCache(tmp_path / "cache")


@pytest.fixture(scope="session")
def spec() -> KernelSpec:
    problem = GemmProblem("bf16", 1, 64, 256, trans_b=True)
    return gemm.kernel(problem, gemm.choose(problem))
