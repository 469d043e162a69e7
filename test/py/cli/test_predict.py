"""`flycc predict`: an answer for each class, one clear error for bad input."""

from __future__ import annotations

import json

import pytest

from flycc.cli.main import main
from flycc.tuning import model

QUERIES = {
    "gemm": (
        ["--shape", "64,128,256"],
        {"flycc", "aten", "triton", "flydsl"}
        | {"aiter-asm", "aiter-asm-splitk", "aiter-flydsl", "aiter-aten", "aiter-triton"},
    ),
    "grouped_gemm": (["--shape", "128,256", "--groups", "3,0,64"], {"aten", "triton", "flydsl"}),
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
        (["--family", "topk", "--shape", "1,2,3", "--dtype", "fp8"], "--dtype: got fp8; topk takes f32"),
        (["--family", "grouped_gemm", "--shape", "1,2"], "--groups: rows of each group"),
        (["--family", "grouped_gemm", "--shape", "1,2", "--groups", "0,0"], "--groups: got 0,0"),
        (["--family", "scaled_gemm", "--shape", "1,2,3"], "--format: mxfp8 or mxfp4"),
        (["--family", "gemm", "--shape", "1,2,3", "--format", "mxfp8"], "--format: mxfp8 or mxfp4, for scaled_gemm"),
        (["--family", "gemm", "--shape", "1,2,3", "--kernel", "foo"], "--kernel: got foo; flycc, flydsl"),
        (["--family", "gemm", "--shape", "1,2,3", "--splitk", "-1"], "--splitk: got -1"),
        (["--family", "gemm", "--shape", "1,2,3", "--splitk", "2"], "--splitk: needs a tile"),
        (["--family", "gemm", "--shape", "1,2,3", "--tile", "16x64x64"], "--tile: needs --kernel"),
        (["--family", "gemm", "--shape", "1,2,3", "--kernel", "aten", "--tile", "16x64"], "--tile: got 16,64; MxNxK"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(options: list[str], says: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["predict", *options]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_ours_is_the_model_of_its_binary(capsys: pytest.CaptureFixture) -> None:
    from flycc.contracts import RmsNormProblem
    from flycc.kernels import rms_norm

    (answer,) = predictions(capsys, "--family", "rms_norm", "--shape", "8,256", "--kernel", "flycc")
    problem = RmsNormProblem("bf16", 8, 256, weight="bf16")
    (prediction,) = model(problem, rms_norm.choose(problem))
    assert answer["time_us"]["typical"] == prediction.time.typical
