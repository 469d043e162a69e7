"""`flycc bench`: the benchmarks run, and their figures follow from what was measured."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from flycc.benchmarks import compile_time, emulator
from flycc.cli.bench import BENCHMARKS
from flycc.cli.main import main


def test_emulator_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(emulator, "LAUNCHES", 2)
    monkeypatch.setattr(emulator, "SECONDS", 0.0)
    gemm = emulator.gemm_case
    monkeypatch.setattr(emulator, "gemm_case", lambda m, n, k: gemm(-(-m // 8), n // 8, k // 8))
    smaller = {
        "RMSNorm": partial(emulator.rms_norm_case, 8, 256),
        "attention": partial(emulator.attention_case, 1, 128),
    }
    for name in emulator.TRITON_CASES:
        monkeypatch.setitem(emulator.TRITON_CASES, name, smaller[name.split()[0]])
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
        assert figure["matmuls"] == pytest.approx(figure["cpu_seconds"] / result["matmul_512_cpu_s"])
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


def values(bits: np.ndarray) -> np.ndarray:
    return bits.view(ml_dtypes.bfloat16).astype(np.float64)


def test_triton_rms_norm_is_right() -> None:
    """Rounding to bf16 moves the result by 2**-8 of it at most; 2048 float32 additions and v_rsq by 2**-12."""
    pytest.importorskip("triton")
    launch = emulator.rms_norm_case(rows=8)
    launch()
    x, weight, out = map(values, launch.args[4][:3])
    exact = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6) * weight
    assert (abs(out - exact) <= (2**-8 + 2**-12) * abs(exact)).all()


def test_triton_attention_is_right() -> None:
    """Weights are rounded to bf16 before they meet V, and the result is: 2**-8 each, of the sum of magnitudes and
    of the result. Scores are sums of 64 products in float32, |q k| scale < 32, so that exp2 of their errors, and the
    other float32 sums, are below 2**-12 of the magnitudes.
    """
    pytest.importorskip("triton")
    heads, length, features = 2, 128, 64
    launch = emulator.attention_case(heads, length, features)
    launch()
    q, k, v, out = (values(t).reshape(heads, length, features) for t in launch.args[4][:4])
    scores = q @ k.swapaxes(1, 2) * features**-0.5
    assert abs(q @ k.swapaxes(1, 2)).max() * features**-0.5 < 32
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    exact, magnitude = weights @ v, weights @ abs(v)
    assert (abs(out - exact) <= (2**-8 + 2**-12) * (abs(exact) + magnitude)).all()
