"""The table of `flycc bench mx_quantize`, and the times in it."""

from __future__ import annotations

from flycc.benchmarks import mx_quantize
from flycc.contracts import MxDequantizeProblem, MxQuantizeProblem, ScaleRangeProblem


def test_the_table_fits_and_the_figures_hang_together(monkeypatch, capsys):
    problems = (
        MxQuantizeProblem("bf16", "e2m1", 8192, 8192),
        MxQuantizeProblem("bf16", "e4m3", 64, 8200),
        MxDequantizeProblem("e2m1", "bf16", 64, 8192),
        ScaleRangeProblem(1 << 20),
    )
    monkeypatch.setattr(mx_quantize, "PROBLEMS", problems)
    figures = mx_quantize.measure()
    mx_quantize.show(figures)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    large, padded, back, bytes_ = figures["problems"]
    # Elements of 2 bytes, those of half a byte, and a byte for 32.
    assert large["least_bytes"] == 8192 * 8192 * (2 + 1 / 2 + 1 / 32)
    assert padded["least_bytes"] == 64 * (8200 * 3 + 257)
    assert back["least_bytes"] == 64 * 8192 * (2 + 1 / 2 + 1 / 32)
    assert bytes_["least_bytes"] == 1 << 20
    for figure in figures["problems"]:
        modelled = figure["modelled_us"]
        assert figure["least_us"] < modelled["typical"]
        assert 0 < modelled["low"] <= modelled["typical"] <= modelled["high"]
    assert large["share_of_roof"] > 0.85
