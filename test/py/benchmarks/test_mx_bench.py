"""`flycc bench mx`: what its figures say hangs together, and the Triton kernel that it compares with is right."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from flycc.benchmarks.costmodel_data import published
from flycc.contracts.scaled_gemm import BLOCK_K
from flycc.emulator import load, run

NUMPY = {"e4m3": ml_dtypes.float8_e4m3fn, "e2m1": ml_dtypes.float4_e2m1fn}


@pytest.mark.parametrize("element", NUMPY)
def test_the_triton_kernel_is_right(element: str) -> None:
    """Random elements and scales. The float32 sum of k products is off by at most k * 2**-23 of the sum of their sizes,
    should each addition be cut off; bf16 then rounds by 2**-8 of it at most."""
    pytest.importorskip("triton")
    from flycc.benchmarks.triton_products import Config
    from flycc.benchmarks.triton_scaled import compiled

    seed = np.random.SeedSequence().entropy
    print("seed", seed)
    rng, m, n, k = np.random.default_rng(seed), 64, 32, 512
    codes = [rng.integers(0, 16 if element == "e2m1" else 127, (rows, k), dtype=np.uint8) for rows in (m, n)]
    if element == "e4m3":
        codes = [code | rng.choice(np.array([0, 128], np.uint8), code.shape) for code in codes]
    scales = [rng.integers(110, 140, (rows, k // BLOCK_K), dtype=np.uint8) for rows in (m, n)]
    data = [code[:, ::2] | code[:, 1::2] << 4 for code in codes] if element == "e2m1" else codes
    out, made = np.zeros((m, n), np.uint16), compiled(element, Config(32, 32, 256, 4, 2))
    args = [*data, *scales, out, *map(np.int32, (m, n, k)), np.uint64(0), np.uint64(0)]
    run(load(made.elf), made.name, (2, 1, 1), (made.threads, 1, 1), args, dynamic_lds=made.lds)
    a, b = (
        code.view(NUMPY[element]).astype(np.float64) * np.repeat(2.0 ** (scale - 127.0), BLOCK_K, axis=1)
        for code, scale in zip(codes, scales, strict=True)
    )
    exact, off = a @ b.T, k * 2.0**-23 * (abs(a) @ abs(b).T)
    found = out.view(ml_dtypes.bfloat16).astype(np.float64)
    assert (abs(found - exact) <= 2**-8 * (abs(exact) + off) + off).all()


def test_every_shape_has_tiles_to_compare_with() -> None:
    pytest.importorskip("triton")
    from flycc.benchmarks.triton_scaled import SWEEP, suits

    for problem, _ in published("mxfp4"):
        for sweep in SWEEP.values():
            suited = [config for config in sweep if suits(config, problem.m, problem.n, problem.k)]
            assert 1 <= len(suited) <= 5
