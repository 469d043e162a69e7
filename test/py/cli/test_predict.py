"""`flycc predict`: an answer for each class, one clear error for bad input."""

from __future__ import annotations

import json

import pytest

from flycc.cli.main import main
from flycc.costmodel.peers import PEERS
from flycc.tuning import model

QUERIES = {
    "gemm": (
        ["--shape", "64,128,256"],
        {"flycc", "aten", "triton", "flydsl"}
        | {"aiter-asm", "aiter-asm-splitk", "aiter-flydsl", "aiter-aten", "aiter-triton"},
    ),
    "grouped_gemm": (["--shape", "128,256", "--groups", "3,0,64"], {"flycc", "aten", "triton", "flydsl"}),
    "scaled_gemm": (
        ["--shape", "64,128,256", "--format", "mxfp4"],
        {"aten", "flydsl", "aiter-asm-mxfp4", "aiter-ck-mxfp4"},
    ),
    "rms_norm": (["--shape", "8,256", "--dtype", "fp16"], {"flycc", "aten", "flydsl"}),
    "topk": (["--shape", "256,1024,8"], {"flycc", "aten", "flydsl", "flydsl-deterministic"}),
}  # fmt: skip


@pytest.mark.parametrize("family", QUERIES)
def test_every_class_answers(family: str, tmp_path, capsys: pytest.CaptureFixture) -> None:
    options, classes = QUERIES[family]
    assert main(["predict", "--family", family, *options, "--json", str(tmp_path / "out.json")]) == 0
    text = capsys.readouterr().out
    assert "modelled" in text
    assert max(map(len, text.splitlines())) <= 80
    result = json.loads((tmp_path / "out.json").read_text())
    assert {answer["class"] for answer in result["predictions"]} == classes
    for answer in result["predictions"]:
        assert answer["modelled"] is True
        time = answer["time_us"]
        assert 0 < time["low"] <= time["typical"] <= time["high"]
        assert sum(answer["breakdown"].values()) == pytest.approx(1)
        assert ("tb_s" if family in ("rms_norm", "topk") else "tflops") in answer


def predictions(capsys: pytest.CaptureFixture, *options: str) -> list[dict]:
    assert main(["predict", *options, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)["predictions"]


def test_one_kernel(capsys: pytest.CaptureFixture) -> None:
    shape = ["--family", "gemm", "--shape", "64,7168,8192"]
    name = "_ZN5aiter39bf16gemm_fp32bf16_tn_64x64_splitk_cleanE"
    (by_name,) = predictions(capsys, *shape, "--kernel", name, "--splitk", "2")
    (by_tile,) = predictions(
        capsys, *shape, "--kernel", "aiter-asm-splitk", "--tile", "64x64x64", "--splitk", "2"
    )
    assert by_name == by_tile
    assert by_name["kernel"] == "64x64x64 split-K 2"
    assert by_name["tflops"] == pytest.approx(2 * 64 * 7168 * 8192 / by_name["time_us"]["typical"] / 1e6)
    (best,) = predictions(capsys, *shape, "--kernel", "aiter-asm-splitk")
    assert best["time_us"]["typical"] <= by_name["time_us"]["typical"]


def test_a_gemm_of_fp4_is_a_scaled_product(capsys: pytest.CaptureFixture) -> None:
    scaled = predictions(capsys, "--family", "scaled_gemm", "--shape", "64,128,256", "--format", "mxfp4")
    assert predictions(capsys, "--family", "gemm", "--shape", "64,128,256", "--dtype", "fp4") == scaled


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--family", "gemm", "--shape", "1,2"], "--shape: got 1,2; M,N,K is accepted"),
        (["--family", "gemm", "--shape", "1,0,2"], "--shape: got 1,0,2"),
        (["--family", "gemm", "--shape", "1,2,x"], "--shape: got 1,2,x"),
        (["--family", "gemm", "--shape", "-1,2,3"], "--shape: got -1,2,3; M,N,K is accepted"),
        (["--family", "gemm", "--shape", "\u0663,2,3"], "--shape: got \u0663,2,3"),
        (["--family", "gemm", "--shape", f"{10**20},2,3"], "whole numbers from 1 to 2147483647"),
        (["--family", "gemm", "--shape", "1,2,,3"], "--shape: got 1,2,,3"),
        (["--family", "topk", "--shape", "1,2,3"], "--shape: got 1,2,3; K of a topk is at most N"),
        (["--family", "gemm", "--shape", "1,2,3", "--dtype", "fp4", "--format", "mxfp8"], "--format: got mxfp8 beside"),
        (["--family", "gemm", "--shape", "1,2,3", "--dtype", "fp8", "--layout", "NN"], "--layout: got NN; it is for"),
        (["--family", "topk", "--shape", "1,8,3", "--layout", "NN"], "--layout: got NN; it is for"),
        (["--family", "gemm", "--shape", "1,2,3", "--kernel", "aten", "--layout", "NN"], "--layout: got NN; it is for"),
        (["--family", "gemm", "--shape", "1,2,3", "--kernel", "_bf16gemm_bf16_tn_0x256E"], "--kernel: got _bf16gemm"),
        (["--family", "gemm", "--shape", "1,2,3", "--kernel", "_bf16gemm_bf16_tn_9999x256E"], "9999x256x64 is no tile"),
        (
            ["--family", "gemm", "--shape", "1,2,3", "--kernel", "_bf16gemm_bf16_tn_256x256E", "--tile", "64x64x64"],
            "--tile: got 64x64x64 beside a kernel's full name",
        ),
        (["--family", "gemm", "--shape", "1,2,3", "--kernel", "aten", "--tile", "4096x64x64"], "must fit the 160 KB"),
        (["--family", "gemm", "--shape", "1,2,3", "--splitk", "5000"], "--splitk: got 5000; 0 (not split) to 64"),
        (
            [*("--family", "gemm", "--shape", "1,2,128", "--kernel", "aten", "--tile", "64x64x64", "--splitk", "3")],
            "--splitk: 3 K-splits of K 128 in steps of 64",
        ),
        (["--family", "gemm", "--shape", "1,2,3", "--kernel", "native", "--splitk", "2"], "native is a library"),
        (["--family", "topk", "--shape", "1,2,3", "--dtype", "fp8"], "--dtype: got fp8; topk takes f32"),
        (["--family", "grouped_gemm", "--shape", "1,2"], "--groups: rows of each group"),
        (["--family", "grouped_gemm", "--shape", "1,2", "--groups", "0,0"], "--groups: got 0,0"),
        (["--family", "scaled_gemm", "--shape", "1,2,3"], "--format: mxfp8 or mxfp4"),
        (["--family", "gemm", "--shape", "1,2,3", "--format", "mxfp8"], "--format: mxfp8 or mxfp4, for scaled_gemm"),
        (["--family", "gemm", "--shape", "1,2,3", "--kernel", "foo"], "--kernel: got foo; flycc, flydsl"),
        (["--family", "gemm", "--shape", "1,2,3", "--splitk", "-1"], "--splitk: got -1"),
        (["--family", "gemm", "--shape", "1,2,3", "--splitk", "2"], "--splitk: needs a tile"),
        (["--family", "gemm", "--shape", "1,2,3", "--tile", "16x64x64"], "--tile: needs --kernel"),
        (["--family", "gemm", "--shape", "1,2,3", "--kernel", "aten", "--tile", "16x64"], "--tile: got 16x64; MxNxK"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(options: list[str], says: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["predict", *options]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_sizes_that_the_published_tiles_have_are_accepted(capsys: pytest.CaptureFixture) -> None:
    """Every tile of every class, and of every published name, is one that --tile would take."""
    from flycc.benchmarks.costmodel_data import products
    from flycc.cli.predict import Query
    from flycc.costmodel.peers import NamedKernel

    kernels = {(row.key, row.kernel.tile) for row in products() if row.kernel}
    for peer in PEERS:
        kernels |= {(peer.key, tile) for tile in peer.tiles}
    assert len(kernels) > 500
    for key, tile in kernels:
        family, name, fmt = key.split("/")
        query = Query(family, (1 << 14,) * 3, fmt, fmt, "NT")
        query._fits("--kernel", NamedKernel(name, tile))


def test_rates_are_of_the_type_asked_for(capsys: pytest.CaptureFixture) -> None:
    """A top-k of bf16 moves half the bytes; its peers were timed on float32, which is said."""
    for dtype, size in (("bf16", 2), ("f32", 4)):
        (answer,) = predictions(
            capsys, "--family", "topk", "--shape", "256,8192,64", "--dtype", dtype, "--kernel", "aten"
        )
        assert answer["tb_s"] == pytest.approx(256 * 8192 * size / answer["time_us"]["typical"] / 1e6)
        assert answer["notes"] == (["fitted to f32, asked for bf16"] if dtype == "bf16" else [])
    (half,) = predictions(
        capsys, "--family", "gemm", "--shape", "512,4096,4096", "--dtype", "f16", "--kernel", "aten"
    )
    assert half["notes"] == ["fitted to bf16, asked for f16"]


def test_notes_are_shown(capsys: pytest.CaptureFixture) -> None:
    assert main(["predict", "--family", "gemm", "--shape", "1,64,64", "--kernel", "flydsl"]) == 0
    shown = capsys.readouterr().out
    assert "flydsl*" in shown
    assert "* flydsl: outside the rows fitted: M 1 (fitted 8 to 4,096)" in " ".join(shown.split("\n"))
    assert "A tie" not in shown  # there is one row


@pytest.mark.parametrize("error", [MemoryError("no room"), ValueError("odd\nlines"), RuntimeError()])
def test_peers_answer_where_ours_fails(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("flycc.cli.predict.ours", fails)
    ours, *peers = predictions(capsys, "--family", "rms_norm", "--shape", "8,256")
    assert ours["refused"]["code"] == "predict.ours"
    assert type(error).__name__ in ours["refused"]["sentence"]
    assert [peer["class"] for peer in peers] == ["aten", "flydsl"]


def test_ours_is_the_model_of_its_binary(capsys: pytest.CaptureFixture) -> None:
    from flycc.contracts import RmsNormProblem
    from flycc.kernels import rms_norm

    (answer,) = predictions(capsys, "--family", "rms_norm", "--shape", "8,256", "--kernel", "flycc")
    problem = RmsNormProblem("bf16", 8, 256, weight="bf16")
    (prediction,) = model(problem, rms_norm.choose(problem))
    assert answer["time_us"]["typical"] == prediction.time.typical
