"""`flycc bench costmodel`: its figures follow from the rows, and its tables fit."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from flycc.benchmarks import costmodel
from flycc.benchmarks.costmodel_data import ProductRow, RowwiseRow
from flycc.benchmarks.costmodel_fit import LeftOut, fold_across_classes
from flycc.cli.main import main
from flycc.costmodel.peers import NamedKernel, Product


def row(us: float, peer: str = "aten", m: int = 1024, kernel: NamedKernel | None = None) -> ProductRow:
    return ProductRow(f"gemm/{peer}/bf16", Product((m,), 4096, 4096), us, kernel)


def by_class(pairs: list[tuple[ProductRow | RowwiseRow, float]]) -> dict[str, list[LeftOut]]:
    found: dict[str, list[LeftOut]] = defaultdict(list)
    for each, modelled in pairs:
        found[each.key].append(LeftOut(each, modelled, modelled))
    return found


def test_errors_by_class_and_size() -> None:
    pairs = [(row(10.0), 11.0), (row(10.0), 7.0), (row(10.0, "triton", m=16), 10.5)]
    predicted, left = by_class(pairs), by_class([(r, 2 * us) for r, us in pairs])
    errors = {entry["class"]: entry for entry in costmodel.kernels(predicted, left, predicted)}
    aten = errors["gemm/aten/bf16"]
    assert aten["error"] == aten["error_across"] == pytest.approx((0.1 + 0.3) / 2)
    assert aten["error_left_out"] == pytest.approx((1.2 + 0.4) / 2)
    assert (aten["worst"], aten["worst_left_out"]) == (pytest.approx(0.3), pytest.approx(1.2))
    assert (aten["rows"], aten["constants"]) == (2, 10)
    predicted = by_class([*pairs, (RowwiseRow("rms_norm/aten", (8, 8), 6.0), 9.0)])
    large, small, norms = costmodel.targets(predicted, predicted)
    assert (large["rows"], small["rows"], norms["rows"]) == (2, 1, 1)
    assert (small["error"], norms["error"]) == (pytest.approx(0.05), pytest.approx(0.5))


def test_orders() -> None:
    """Pairs of different M count only where the larger is the faster: the rest needs no model."""
    first, second = NamedKernel("aten", (64, 64, 64, 1, 2)), NamedKernel("aten", (128, 128, 64, 1, 2))
    predicted = by_class(
        [
            (row(10.0), 10.0),
            (row(10.9, "flydsl"), 1.0),  # within 10% of the first: says nothing beside it
            (row(20.0, "triton"), 9.0),  # wrong beside the first, right beside the second
            (row(10.0, "a", m=1, kernel=first), 1.0),
            (row(15.0, "a", m=1, kernel=second), 2.0),
            (
                row(8.0, "a", m=3, kernel=second),
                1.5,
            ),  # faster than both with more rows: right beside the second
        ]
    )
    implementations, kernels, against = costmodel.rankings(predicted)
    assert (implementations["count"], implementations["right"]) == (3, pytest.approx(2 / 3))
    assert (kernels["count"], kernels["right"]) == (1, 1.0)
    assert (against["count"], against["right"]) == (2, 0.5)


def test_no_pairs_are_no_evidence() -> None:
    assert all(entry["right"] is None for entry in costmodel.rankings(by_class([(row(10.0), 10.0)])))


def test_folds_across_classes_leave_out_every_class_of_an_operand_shape() -> None:
    a, b = row(10.0), row(10.0, "triton", m=16)
    assert fold_across_classes(a) == fold_across_classes(b)


@pytest.mark.parametrize("installed", [False, True])
def test_tables(
    installed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """With predictions by the shipped constants in the place of cross-validation, which takes half a minute."""
    row = {"class": "gemm/aiter-asm/bf16", "rows": 9, "answered": 5, "error": 0.1, "origami_error": 0.2}
    compared = [row] if installed else None
    time = {"low": 9.0, "typical": 10.0, "high": 11.0}
    product = {
        "m": 8192,
        "n": 8192,
        "k": 8192,
        "published_us": 9.5,
        "modelled_us": time,
        "config": "256x256x64",
    }
    triton = {"rows": [product], "mean_absolute_error": {"M >= 256": 0.05}}
    monkeypatch.setattr(costmodel, "left_out", lambda *_: costmodel.fitted_predictions())
    monkeypatch.setattr(costmodel, "triton", lambda: triton if installed else None)
    monkeypatch.setattr(costmodel, "LIKE_SHAPES", 1)
    monkeypatch.setattr(costmodel.costmodel_origami, "compare", lambda _: compared)
    path = tmp_path / "out.json"
    assert main(["bench", "costmodel", "--json", str(path)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("not installed") == (0 if installed else 2)
    figures = json.loads(path.read_text())
    assert figures["modelled"] is True
    assert all(entry["published_clk"] == entry["modelled_clk"] for entry in figures["instructions"])
    # The published step is a fit of others, with an error of its own; the peer's is fitted to whole kernels.
    assert all(
        entry["modelled_us"] == pytest.approx(entry["published_us"], rel=0.1) for entry in figures["loops"]
    )
    assert all(entry["ours_modelled_us"][1] > 0 for entry in figures["ours"])
