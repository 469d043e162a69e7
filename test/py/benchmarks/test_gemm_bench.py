"""`flycc bench gemm`: what its figures say hangs together, and its tables fit."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from flycc.benchmarks import gemm, products
from flycc.benchmarks.costmodel_data import published
from flycc.cli.main import main
from flycc.contracts import GemmProblem
from flycc.costmodel import Interval
from flycc.kernels.gemm import GemmConfig
from flycc.tuning.modelled import model

#: Published, with a full and a partial tile of 128 columns; and one that no table has.
SHAPES = [(8, 4096, 4096), (48, 256, 512)]


def test_figures_hang_together(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(gemm, "SHAPES", SHAPES)
    if find_spec("triton"):
        from flycc.benchmarks import triton_products

        monkeypatch.setattr(triton_products, "SWEEP", triton_products.SWEEP[:2])
    assert main(["bench", "gemm", "--json", str(tmp_path / "out.json")]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    figures = json.loads((tmp_path / "out.json").read_text())
    assert [tuple(row["shape"]) for row in figures["shapes"]] == SHAPES
    for row in figures["shapes"]:
        m, n, k = row["shape"]
        for side in filter(None, (row["flycc"], row["triton"])):
            us, rate = side["us"], side["tflops"]
            assert 0 < us["low"] <= us["typical"] <= us["high"]
            assert us["typical"] * rate["typical"] * 1e6 == pytest.approx(2 * m * n * k)
            assert us["low"] * rate["high"] * 1e6 == pytest.approx(2 * m * n * k)
        for launch in row["flycc"]["launches"]:
            assert 0 < launch["mfma_utilisation"] <= 1
            assert 0 <= launch["mfma_steady"] <= 1
            assert launch["compile_s"] > 0
            assert 0 < launch["vgprs"] <= 512
        assert 0 < row["flycc"]["hbm_roof"]["launch"] < row["flycc"]["hbm_roof"]["device"] <= 1
        assert (row["triton"] is None) == (find_spec("triton") is None)
    first = figures["shapes"][0]
    # The table has 22.8, 20.6 and 22.9 TFLOP/s for it.
    assert first["published_us"]["aten"] == pytest.approx(2 * 8 * 4096**2 / 22.8e6)
    assert first["speedup"]["published flydsl"] == pytest.approx(
        2 * 8 * 4096**2 / 22.9e6 / first["flycc"]["us"]["typical"]
    )
    assert figures["shapes"][1]["published_us"] == {}
    known = {each["target"]: each for each in figures["targets"]}
    assert known["TFLOP/s at 8192 cubed"]["met"] is None
    least = known["least of speedup over published flydsl"]
    assert least["met"] == (first["speedup"]["published flydsl"] >= 0.98)


def test_all_published_shapes_are_there() -> None:
    assert len(gemm.SHAPES) == len(set(gemm.SHAPES)) == 15
    grouped = published("grouped_gemm")
    assert len(grouped) == 24
    assert grouped[0][1].keys() == {"aten", "triton", "flydsl"}


def test_summary_counts_only_shapes_that_a_peer_has() -> None:
    def row(us: float, triton: float | None, known: dict[str, float]) -> dict:
        sides = [time and products.timed(Interval(time, time, time), 1e6) for time in (us, triton)]
        return products.with_speedups({"flycc": sides[0], "triton": sides[1]}, known)

    found = products.summary(
        [row(1.0, 2.0, {"triton": 4.0}), row(2.0, 16.0, {}), row(3.0, None, {"flydsl": 1.5})]
    )
    assert found["speedup"]["triton"] == {"geomean": pytest.approx(4.0), "least": 2.0, "shapes": 2}
    assert found["speedup"]["published triton"] == {"geomean": pytest.approx(4.0), "least": 4.0, "shapes": 1}
    assert found["speedup"]["published flydsl"] == {"geomean": 0.5, "least": 0.5, "shapes": 1}
    assert "published aten" not in found["speedup"]
    assert found["triton_modelled_over_published"]["least"] == 0.5


@pytest.mark.parametrize(
    ("config", "mfmas"),
    [
        (GemmConfig(256, 256, 64, 2, 4, stages_m=3, stages_n=2), 64),
        (GemmConfig(384, 256, 64, 2, 4, stages_m=2, stages_n=2, schedule="staggered"), 96),
    ],
    ids=str,
)
def test_the_matrix_pipe_of_a_full_ring_is_as_busy_as_its_loop_says(config: GemmConfig, mfmas: int) -> None:
    """A wave's part of a step of 64 along K is so many MFMAs of 16 clk, and a SIMD has two waves."""
    (prediction,) = model(GemmProblem("bf16", 8192, 8192, 1280, trans_b=True), config)
    loop = max(prediction.by_loop, key=lambda loop: loop.share)
    assert products.steady_mfma(prediction) == pytest.approx(2 * 16 * mfmas / loop.clk_per_iteration)


def test_spilled_registers_are_those_of_the_code_object() -> None:
    """A Triton tile too large for its waves: what spills is said by the metadata, and has scratch memory."""
    pytest.importorskip("triton")
    from flycc.benchmarks.triton_kernels import compile_kernel, product
    from flycc.emulator import load

    types = dict.fromkeys("abc", "*bf16") | dict.fromkeys("mnk", "i32")
    for size, spills in ((64, False), (128, True)):
        made = compile_kernel(
            product, types, {"BM": size, "BN": 256, "BK": 16, "GROUP": 8}, warps=1 if spills else 4
        )
        kernel = load(made.elf).kernels[made.name].descriptor
        assert (kernel.spilled_vgprs > 0) == (kernel.scratch_bytes > 0) == spills
