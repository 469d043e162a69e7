"""`flycc bench grouped`: what its figures say hangs together, and the Triton kernel that it compares with is right."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from flycc.benchmarks import grouped, products
from flycc.cli.main import main
from flycc.contracts import GroupedGemmProblem
from flycc.emulator import load, run
from flycc.tuning.choice import tuned_config
from flycc.tuning.family import FAMILIES
from flycc.tuning.table import read, shipped_path

#: Two tiles of rows and an empty group.
SHAPE = ((0, 70, 33), 256, 512)


def test_figures_hang_together(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(grouped, "SHAPES", [SHAPE])
    assert main(["bench", "grouped", "--json", str(tmp_path / "out.json")]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    figures = json.loads((tmp_path / "out.json").read_text())
    (row,) = figures["shapes"]
    assert (tuple(row["rows_per_group"]), row["n"], row["k"]) == SHAPE
    flops = 2 * 103 * 256 * 512
    for side in filter(None, (row["flycc"], row["triton"])):
        assert 0 < side["us"]["low"] <= side["us"]["typical"] <= side["us"]["high"]
        assert side["us"]["typical"] * side["tflops"]["typical"] * 1e6 == pytest.approx(flops)
    assert (row["triton"] is None) == (find_spec("triton") is None)
    if row["triton"]:
        ratio = row["triton"]["us"]["typical"] / row["flycc"]["us"]["typical"]
        assert row["speedup"] == {"triton": pytest.approx(ratio)}
        assert figures["targets"][0]["met"] == (ratio >= 1.3)
    assert figures["targets"][1]["met"] is None


def test_configurations_are_those_of_run_time() -> None:
    family = FAMILIES["grouped_gemm"]
    tuned = [family.problem(family.fields(key)) for key in read(shipped_path(family.name), family).entries]
    published = [GroupedGemmProblem("bf16", "m", len(rows), sum(rows), n, k) for rows, n, k in grouped.SHAPES]
    assert tuned
    for problem in (*published, *tuned):
        config, way = products.chosen(problem)
        assert config == (tuned_config(problem) or family.choose(problem))
        assert way == "table" or problem not in tuned


def test_all_published_shapes_are_there() -> None:
    assert len(grouped.SHAPES) == 24
    assert (1, 3, 7, 15, 31, 63, 127, 255) in [rows for rows, _, _ in grouped.SHAPES]


def test_the_triton_kernel_is_right() -> None:
    """Small whole numbers: sums of 128 products of up to 4 in size, rounded to bf16, by 2**-8 of them at most."""
    pytest.importorskip("triton")
    from flycc.benchmarks.triton_kernels import compile_kernel, grouped_product

    types = dict.fromkeys("abc", "*bf16") | {"offsets": "*i32", "groups": "i32", "n": "i32", "k": "i32"}
    made = compile_kernel(
        grouped_product,
        types,
        {"BM": 32, "BN": 32, "BK": 64, "PROGRAMS": 3},
        aligned=types.keys() - {"groups"},
        num_stages=2,
    )
    rng, rows, n, k = np.random.default_rng(), (0, 1, 40, 0, 33), 64, 128
    a = rng.integers(-2, 3, (sum(rows), k)).astype(ml_dtypes.bfloat16)
    b = rng.integers(-2, 3, (len(rows), k, n)).astype(ml_dtypes.bfloat16)
    out, ends = np.zeros((sum(rows), n), np.uint16), np.cumsum(rows, dtype=np.int32)
    sizes = map(np.int32, (len(rows), n, k))
    args = [a.view(np.uint16), b.view(np.uint16), out, ends, *sizes, np.uint64(0), np.uint64(0)]
    run(load(made.elf), made.name, (3, 1, 1), (made.threads, 1, 1), args, dynamic_lds=made.lds)
    groups = np.repeat(np.arange(len(rows)), rows)
    exact = np.einsum("mk,mkn->mn", a.astype(np.float64), b.astype(np.float64)[groups])
    assert (abs(out.view(ml_dtypes.bfloat16).astype(np.float64) - exact) <= 2**-8 * abs(exact)).all()


def test_every_shape_has_tiles_to_compare_with() -> None:
    pytest.importorskip("triton")
    from flycc.benchmarks.triton_grouped import SWEEP

    assert all(any(config.suits(*shape) for config in SWEEP) for shape in grouped.SHAPES)
