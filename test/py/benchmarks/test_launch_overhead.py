"""`flycc bench launch`: it measures what it says, in the unit it says."""

from __future__ import annotations

import time

import pytest

from flycc.benchmarks import launch_overhead


def test_microseconds_are_those_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_overhead, "ROUNDS", 3)
    monkeypatch.setattr(launch_overhead, "CALLS", 2)
    found = launch_overhead.microseconds({"sleep": lambda: time.sleep(0.01), "nothing": lambda: None})
    # A sleep is never shorter than asked for; on a busy machine it may be much longer.
    assert found["sleep"] >= 10_000 > found["nothing"]


def test_figures_and_ratios_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_overhead, "ROUNDS", 5)
    monkeypatch.setattr(launch_overhead, "CALLS", 50)
    figures = launch_overhead.measure()
    times, ratios = figures["microseconds"], figures["ratio"]
    parts = {"plan", "results", "ready launch"}
    calls = {"torch.add", "graph", "op", "gemm", "norm", "topk", "analysed", "launch"}
    assert times.keys() == ratios.keys() == calls | parts
    for name, value in times.items():
        assert value > 0
        assert ratios[name] == value / times["torch.add"]
    # A call contains a launch, and one that is analysed the choice of its kernel.
    assert times["analysed"] > times["launch"]
    assert times["analysed"] > times["gemm"] > max(times[part] for part in parts)
