"""`flycc bench mx`: what its figures say hangs together, and the Triton kernel that it compares with is right."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from flycc.benchmarks import mx
from flycc.benchmarks.costmodel_data import published
from flycc.cli.main import main
from flycc.contracts.scaled_gemm import BLOCK_K
from flycc.emulator import load, run

#: Of no table, with tiles for Triton.
SHAPE = (32, 128, 1024)
NUMPY = {"e4m3": ml_dtypes.float8_e4m3fn, "e2m1": ml_dtypes.float4_e2m1fn}


def test_figures_hang_together(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(mx, "SHAPES", [SHAPE])
    assert main(["bench", "mx", "--json", str(tmp_path / "out.json")]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    figures = json.loads((tmp_path / "out.json").read_text())
    assert [row["format"] for row in figures["shapes"]] == ["mxfp8", "mxfp4"]
    m, n, k = SHAPE
    for row in figures["shapes"]:
        ours, name = row["flycc"], row["format"]
        assert tuple(row["shape"]) == SHAPE
        for side in filter(None, (ours, row["triton"])):
            us, rate = side["us"], side["tflops"]
            assert 0 < us["low"] <= us["typical"] <= us["high"]
            assert us["typical"] * rate["typical"] * 1e6 == pytest.approx(2 * m * n * k)
        assert (ours["pack_us"] > 0) == ours["config"].endswith("packed")
        assert ours["scales_share"] < 1
        assert row["guard"]["share"] * ours["us"]["typical"] == pytest.approx(row["guard"]["scan_us"])
        assert row["published_us"] == {}
        assert (row["triton"] is None) == (find_spec("triton") is None)
        targets = {each["target"]: each for each in figures["targets"]}
        assert targets[f"{name}: TFLOP/s at 8192 cubed"]["met"] is None
        assert targets[f"{name}: most that a guard adds to a call"]["met"] == (row["guard"]["share"] <= 0.01)
        if row["triton"]:
            ratio = row["triton"]["us"]["typical"] / ours["us"]["typical"]
            assert figures["summary"][name]["speedup"]["triton"]["geomean"] == pytest.approx(ratio)


def test_all_published_shapes_are_there() -> None:
    """Of whose 17 some have no figures; those of 8192 cubed are 2,804 and 4,155.1 TFLOP/s."""
    assert len(mx.SHAPES) == len(set(mx.SHAPES)) == 17
    for name, tflops in (("mxfp8", 2804.0), ("mxfp4", 4155.1)):
        problem, times = published(name)[-1]  # type: ignore[arg-type]
        assert (problem.m, problem.n, problem.k) == mx.SQUARE
        assert times["flydsl"] == pytest.approx(2 * 8192**3 / tflops / 1e6)
        assert sum(bool(times) for _, times in published(name)) == 9  # type: ignore[arg-type]


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
