"""The tables of `flycc bench norm_topk`, and the times in them."""

from __future__ import annotations

import pytest

from flycc.benchmarks import modelled_times, norm_topk, rms_norm_traffic, topk_traffic


def test_the_tables_fit_and_the_figures_hang_together(monkeypatch, capsys):
    monkeypatch.setattr(rms_norm_traffic, "SHAPES", (("f16", 2048, 114688), ("bf16", 1, 576)))
    monkeypatch.setattr(topk_traffic, "SHAPES", ((2048, 32768, 256),))
    figures = norm_topk.measure()
    norm_topk.show(figures)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    for figure in (*figures["rms_norm"], *figures["topk"]):
        modelled = figure["modelled_us"]
        assert 0 < modelled["low"] <= modelled["typical"] <= modelled["high"]
        moved = figure["modelled_tb_per_s"] * 1e6 * modelled["typical"]
        assert moved == pytest.approx(figure["least_bytes"])


def test_published_times_are_those_of_the_tables():
    assert modelled_times.published("f16", (8192, 4096)) == {"aten": 26.7, "flydsl": 22.9}
    assert modelled_times.published("f16", (4096, 8192)) == {}
    topk = modelled_times.published("f32", (4096, 16384, 257))
    assert topk == {"aten": 536.5, "flydsl": 400.5, "flydsl-deterministic": 451.8}
