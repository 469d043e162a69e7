"""`flycc bench`: the benchmarks run, and their figures follow from what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flycc.benchmarks import compile_time, emulator
from flycc.cli.bench import BENCHMARKS
from flycc.cli.main import main


def test_emulator_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(emulator, "LAUNCHES", 2)
    monkeypatch.setattr(emulator, "SECONDS", 0.0)
    assert main(["bench", "emulator", "--json", str(tmp_path / "out.json")]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    result = json.loads((tmp_path / "out.json").read_text())
    kernels = {figure["kernel"] for figure in result["figures"]}
    assert len(result["figures"]) == len(kernels) * len(emulator.MODES)
    assert kernels.isdisjoint(result["left_out"])
    assert kernels | result["left_out"].keys() >= emulator.TRITON_CASES.keys()
    for figure in result["figures"]:
        rate = figure["wave_instructions"] / figure["seconds"]
        assert figure["wave_instructions_per_s"] == pytest.approx(rate)
        assert figure["matmuls"] == pytest.approx(figure["seconds"] / result["matmul_512_s"])
    counts = {(figure["kernel"], figure["wave_instructions"]) for figure in result["figures"]}
    assert len(counts) == len(kernels)  # watching a kernel does not change what it executes


def test_every_benchmark_has_the_two_functions() -> None:
    for module, _ in BENCHMARKS.values():
        loaded = __import__(f"flycc.benchmarks.{module}", fromlist=["measure"])
        assert callable(loaded.measure)
        assert callable(loaded.show)


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "nonesuch"])
    assert "invalid choice: 'nonesuch'" in capsys.readouterr().err


@pytest.mark.nightly
def test_compile_time_figures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(compile_time, "ROUNDS", 1)
    figures = compile_time.measure()
    compile_time.show(figures)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    for kind in ("cold", "warm"):
        assert 0 < sum(figures["phases_s"][kind].values()) <= figures["seconds"][kind]
    assert figures["phases_s"]["warm"]["compile kernels"] < figures["phases_s"]["cold"]["compile kernels"]
