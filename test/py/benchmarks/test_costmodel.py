"""`flycc bench costmodel`: its figures follow from the rows, and its tables fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flycc.benchmarks import costmodel
from flycc.benchmarks.costmodel_data import ProductRow
from flycc.cli.main import main
from flycc.costmodel.peers import NamedKernel, Product


def row(us: float, peer: str = "aten", m: int = 1024, kernel: NamedKernel | None = None) -> ProductRow:
    return ProductRow(f"gemm/{peer}/bf16", Product((m,), 4096, 4096), us, kernel)


def test_errors_by_class_and_size() -> None:
    predicted = [(row(10.0), 11.0), (row(10.0), 7.0), (row(10.0, "triton", m=16), 10.5)]
    errors = {entry["class"]: entry for entry in costmodel.kernels(predicted, predicted)}
    assert errors["gemm/aten/bf16"]["error"] == pytest.approx((0.1 + 0.3) / 2)
    assert errors["gemm/aten/bf16"]["worst"] == pytest.approx(0.3)
    predicted.append((costmodel.RowwiseRow("rms_norm/aten", (8, 8), 6.0), 9.0))
    large, small, norms = costmodel.targets(predicted, predicted)
    assert (large["rows"], small["rows"], norms["rows"]) == (2, 1, 1)
    assert (small["error"], norms["error"]) == (pytest.approx(0.05), pytest.approx(0.5))


def test_orders() -> None:
    first, second = NamedKernel("aten", (64, 64, 64, 1, 2)), NamedKernel("aten", (128, 128, 64, 1, 2))
    predicted = [
        (row(10.0), 10.0),
        (row(10.9, "flydsl"), 1.0),  # within 10% of the first: says nothing beside it
        (row(20.0, "triton"), 9.0),  # wrong beside the first, right beside the second
        (row(10.0, "a", m=1, kernel=first), 1.0),
        (row(15.0, "a", m=2, kernel=second), 2.0),
        (row(40.0, "a", m=3, kernel=second), 1.5),
    ]
    implementations, kernels, near = costmodel.rankings(predicted)
    assert (implementations["count"], implementations["right"]) == (2, 0.5)
    assert (kernels["count"], kernels["right"]) == (3, pytest.approx(2 / 3))
    assert (near["count"], near["right"]) == (1, 1.0)


@pytest.mark.parametrize("origami", [None, [{"class": "gemm/aiter-asm/bf16", "rows": 9, "answered": 5}]])
def test_tables(
    origami: list[dict] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """With predictions by the shipped constants in the place of cross-validation, which takes half a minute."""
    compared = origami and [{**entry, "error": 0.1, "origami_error": 0.2} for entry in origami]
    monkeypatch.setattr(costmodel, "fit_all", lambda: ({}, costmodel.fitted_predictions()))
    monkeypatch.setattr(costmodel, "LIKE_SHAPES", 1)
    monkeypatch.setattr(costmodel.costmodel_origami, "compare", lambda _: compared)
    path = tmp_path / "out.json"
    assert main(["bench", "costmodel", "--json", str(path)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert ("not installed" in text) == (origami is None)
    figures = json.loads(path.read_text())
    assert figures["modelled"] is True
    assert all(entry["published_clk"] == entry["modelled_clk"] for entry in figures["instructions"])
    # The published step is a fit of others, with an error of its own; the peer's is fitted to whole kernels.
    assert all(
        entry["modelled_us"] == pytest.approx(entry["published_us"], rel=0.1) for entry in figures["loops"]
    )
    assert all(entry["ours_modelled_us"][1] > 0 for entry in figures["ours"])
