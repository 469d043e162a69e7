"""`flycc tune`: one problem, a model's problems, and arguments that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flycc.cli.main import main
from flycc.tuning.family import FAMILIES
from flycc.tuning.table import read

MODEL = """
import torch

def subject():
    layer = torch.nn.Linear(352, 48, dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()

    def fn(x):
        pair = torch.stack([layer(x), layer(x)])
        return pair @ pair.transpose(1, 2)

    return torch.no_grad()(fn), (torch.zeros(16, 352, dtype=torch.bfloat16),)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flycc.tuning.table.cache_root", lambda: tmp_path / "cache")
    monkeypatch.setattr("flycc.tuning.journal.cache_root", lambda: tmp_path / "cache")


def run(tmp_path: Path, *args: str) -> tuple[int, dict]:
    out = tmp_path / "found.json"
    status = main(["tune", *args, "--budget", "2", "--jobs", "1", "--json", str(out)])
    return status, json.loads(out.read_text()) if out.exists() else {}


def test_one_problem_is_tuned_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = run(tmp_path, "--family", "gemm", "--shape", "16,48,352", "--out", str(tmp_path / "t"))
    assert status == 0
    (tuned,) = found["tuned"]
    assert len(tuned["ranked"]) == 2
    assert tuned["best"]["time_us"]["low"] < tuned["best"]["time_us"]["typical"]
    (entry,) = read(tmp_path / "t" / "gemm.json", FAMILIES["gemm"]).entries.values()
    assert str(entry.config) == tuned["best"]["config"]
    assert (entry.key.rows, entry.key.exact) == (16, ("bf16", "NT", 48, 352))
    shown = capsys.readouterr().out
    assert "modelled" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_models_problems_are_tuned_and_the_others_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    status, found = run(tmp_path, f"{tmp_path / 'model.py'}:subject")
    assert status == 0
    assert [tuned["problem"].split(" ")[:2] for tuned in found["tuned"]] == [["gemm", "16x48x352"]]
    assert list(found["untuned"].values()) == [1]  # the batched product
    assert read(tmp_path / "cache" / "tuning" / "gemm.json", FAMILIES["gemm"]).entries


def test_the_json_alone_on_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--family", "topk", "--shape", "4,2048,8", "--dtype", "f32", "--json", "-"]) == 0
    (tuned,) = json.loads(capsys.readouterr().out)["tuned"]
    assert tuned["space"] == 1


TOPK = """
import torch
import flycc.backend

def subject():
    return torch.no_grad()(lambda x: torch.topk(x, 8)), (torch.randn(4, 2048),)

def nothing():
    return torch.no_grad()(lambda x: x + 1), (torch.zeros(3),)
"""


def test_a_model_of_a_family_without_tables_is_told(tmp_path: Path) -> None:
    (tmp_path / "topk.py").write_text(TOPK)
    status, found = run(tmp_path, f"{tmp_path / 'topk.py'}:subject")
    assert status == 0
    assert not found["tuned"]
    ((sentence, count),) = found["untuned"].items()
    assert sentence.startswith("topk 4x2048")
    assert count == 1


def test_a_model_without_a_problem_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "topk.py").write_text(TOPK)
    status, found = run(tmp_path, f"{tmp_path / 'topk.py'}:nothing")
    assert (status, found) == (1, {})
    assert "launches no kernel that can be tuned" in capsys.readouterr().err


def test_what_a_table_has_is_recorded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables answer for this product the second time, and it is listed all the same."""
    (tmp_path / "model.py").write_text(MODEL)
    for _ in range(2):
        _, found = run(tmp_path, f"{tmp_path / 'model.py'}:subject")
        assert [tuned["problem"].split(" ")[:2] for tuned in found["tuned"]] == [["gemm", "16x48x352"]]


def test_a_shape_has_the_alignment_of_contiguous_operands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of 346 elements of 2 bytes lie 4 bytes beyond a multiple of 16, rows of 50 the same."""
    status, found = run(tmp_path, "--family", "gemm", "--shape", "16,50,346", "--out", str(tmp_path / "t"))
    assert status == 0
    (tuned,) = found["tuned"]
    assert tuned["problem"].endswith("align 4/4/4")
    assert len(found["unkept"]) == 1
    assert "Kept in no table" in capsys.readouterr().out
    assert not (tmp_path / "t").exists()


def test_a_table_that_would_not_be_written_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "gemm.json"
    table.write_text('{"version": 2, "family": "gemm", "entries": []}')
    status, found = run(tmp_path, "--family", "gemm", "--shape", "16,48,352", "--out", str(tmp_path))
    assert (status, found) == (1, {})
    assert "tune.table" in capsys.readouterr().err
    assert "2" in table.read_text()


def test_an_interrupted_run_says_that_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flycc.tuning.search.tune", interrupted)
    status, found = run(tmp_path, "--family", "gemm", "--shape", "16,48,352")
    assert (status, found) == (130, {})
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ((), "tune.subject"),
        (("",), "explain.subject"),
        (("--shape", ""), "tune.family"),
        (("m.py:f", "--shape", "1,2,3"), "tune.option"),
        (("m.py:f", "--family", "gemm"), "tune.option"),
        (("m.py:f", "--dtype", "f16"), "tune.option"),
        (("m.py:f", "--layout", "NN"), "tune.option"),
        (("--shipped", "--layout", "NN"), "tune.option"),
        (("--shipped", "--family", "conv"), "tune.family"),
        (("--shipped", "--family", "topk"), "tune.family"),
        (("--family", "rms_norm", "--shape", "1,2", "--layout", "NN"), "tune.option"),
        (("--family", "gemm", "--shape", "9" * 5000 + ",1,1"), "tune.shape"),
        (("--family", "gemm", "--shape", "1,2,3", "--budget", "9" * 5000), "tune.budget"),
        (("--family", "gemm", "--shape", "1,2,3", "--budget", ""), "tune.budget"),
        (("--family", "gemm", "--shape", "1,2,3", "--out", ""), "tune.out"),
        (("--family", "gemm", "--shape", "1,2,3", "--out", __file__), "tune.out"),
        (("--family", "rms_norm", "--shape", "1,2", "--dtype", "f64"), "rms-norm.dtype"),
        (("m.py:f", "--shipped"), "tune.subject"),
        (("--shipped", "--shape", "1,2,3", "--family", "gemm"), "tune.option"),
        (("--shape", "1,2,3"), "tune.family"),
        (("--family", "conv", "--shape", "1,2,3"), "tune.family"),
        (("--family", "gemm", "--shape", "1,2"), "tune.shape"),
        (("--family", "gemm", "--shape", "1,0,3"), "tune.shape"),
        (("--family", "gemm", "--shape", "1,2,3", "--budget", "soon"), "tune.budget"),
        (("--family", "gemm", "--shape", "1,2,3", "--jobs", "0"), "tune.jobs"),
        (("nowhere.py:f",), "explain.subject"),
        (("--family", "gemm", "--shape", "16,48,352", "--dtype", "f32"), "gemm.dtype"),
    ],
    ids=lambda value: str(value)[:70],
)
def test_arguments_that_are_none_are_refused(
    args: tuple[str, ...], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *args]) == 1
    captured = capsys.readouterr()
    assert code in captured.out + captured.err
    assert captured.out.count(code) + captured.err.count(code) == 1
