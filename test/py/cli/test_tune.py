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


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ((), "tune.subject"),
        (("m.py:f", "--shipped"), "tune.subject"),
        (("--shape", "1,2,3"), "tune.family"),
        (("--family", "conv", "--shape", "1,2,3"), "tune.family"),
        (("--family", "gemm", "--shape", "1,2"), "tune.shape"),
        (("--family", "gemm", "--shape", "1,0,3"), "tune.shape"),
        (("--family", "gemm", "--shape", "1,2,3", "--budget", "soon"), "tune.budget"),
        (("--family", "gemm", "--shape", "1,2,3", "--jobs", "0"), "tune.jobs"),
        (("nowhere.py:f",), "explain.subject"),
        (("--family", "gemm", "--shape", "16,48,352", "--dtype", "f32"), "gemm.dtype"),
    ],
    ids=str,
)
def test_arguments_that_are_none_are_refused(
    args: tuple[str, ...], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *args]) == 1
    captured = capsys.readouterr()
    assert code in captured.out + captured.err
    assert captured.out.count(code) + captured.err.count(code) == 1
