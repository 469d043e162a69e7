"""The script that replays counterexamples on a GPU, here on the CPU and with few blocks."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "replay_scale_counterexamples.py"


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("replay_scale_counterexamples", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "BLOCKS", 64)
    monkeypatch.setattr(module, "SIZES", (2, 8))
    monkeypatch.setattr(sys, "argv", ["replay", "cpu"])
    return module


def test_as_proved(replay: ModuleType, capsys: pytest.CaptureFixture) -> None:
    assert replay.main() == 0
    shown = capsys.readouterr().out
    assert "as proved" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("bound", ["exponent_max", "exponent_min"])
@pytest.mark.parametrize("off", [-1, 1])
def test_a_wrong_bound(
    replay: ModuleType, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, bound: str, off: int
) -> None:
    right = getattr(replay, bound)
    monkeypatch.setattr(replay, bound, lambda *args: right(*args) + off)
    assert replay.main() == 1
    assert "NOT as proved" in capsys.readouterr().out
