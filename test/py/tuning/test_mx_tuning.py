"""MX products in tables, in the search, and in `flycc tune`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flycc.cli.main import main
from flycc.contracts.scaled_gemm import ScaledGemmProblem
from flycc.kernels import mx
from flycc.kernels.gemm import GemmConfig
from flycc.tuning import choice, model
from flycc.tuning.analytic import estimate_us, lower_us
from flycc.tuning.family import FAMILIES, contiguous
from flycc.tuning.modelled import total
from flycc.tuning.search import ordered
from flycc.tuning.table import Entry, Table, read

FAMILY = FAMILIES["scaled_gemm"]
PROBLEM = ScaledGemmProblem("e2m1", "e2m1", "bf16", 512, 256, 512)
RING = mx.MxConfig(GemmConfig(64, 64, 64, 2, 2, stages_m=5, stages_n=5), packed=True)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    key = FAMILY.key(PROBLEM)
    assert key is not None
    assert FAMILY.problem(FAMILY.fields(key)) == PROBLEM
    written = Table(FAMILY)
    direct = mx.MxConfig(GemmConfig(16, 16, 128, waves_k=4, staged=False))
    few = FAMILY.key(replace(PROBLEM, m=16))
    assert few is not None
    written.add(Entry(key, RING, 12.5, "model"))
    written.add(Entry(few, direct, 5.0, "model"))
    written.write(tmp_path / "t.json")
    assert read(tmp_path / "t.json", FAMILY).entries == written.entries
    more = replace(PROBLEM, m=1024)
    assert choice.looked_up(more, FAMILY, FAMILY.key(more), [written]) == RING  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({}, "mxfp4"),
        ({"dtype": "f16", "bias": True}, "mxfp4"),
        ({"format_a": "e4m3", "format_b": "e5m2"}, "mxfp8"),
        ({"format_a": "e4m3", "format_b": "e4m3", "scale_a": "row", "scale_b": "none"}, "fp8"),
        ({"k": 32 * 6, "align_scale_a": 2}, "mxfp4"),
        ({"align_scale_a": 4}, None),
        ({"scale_a": "row", "scale_b": "row"}, None),
        ({"format_a": "e4m3"}, None),
        ({"scale_a": "row"}, None),
        ({"align_b": 8}, None),
        ({"m": "M"}, None),
        ({"dtype": "f32"}, None),
    ],
)
def test_what_tables_serve(change: dict[str, int | str], name: str | None) -> None:
    key = FAMILY.key(replace(PROBLEM, **change))
    assert (key and key.exact[0]) == name


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4", "fp8"])
def test_the_space(name: str) -> None:
    """The kernels' own choice comes first, and nothing is packed that is not there; all are valid."""
    problem = FAMILY.problem({"format": name, "m": 512, "n": 256, "k": 512})
    configs = ordered(problem, FAMILY)
    assert configs[0] == mx.choose(problem)
    assert len(configs) == len(set(configs)) > 40
    assert all(config.is_valid(problem) is None and FAMILY.admits(problem, config) for config in configs)
    assert {config.packed for config in configs} == {False, name != "fp8"}
    assert contiguous(replace(problem, k=528)).align_a == 16 // (1 + (name == "mxfp4"))


def test_a_configuration_that_is_not_in_the_space_is_not_admitted() -> None:
    odd = replace(RING, tile=replace(RING.tile, stages_m=6))
    assert odd.is_valid(PROBLEM) is None
    assert not FAMILY.admits(PROBLEM, odd)


@pytest.mark.parametrize("packed", [False, True])
def test_the_closed_form_is_near_the_model(packed: bool) -> None:
    """Its bound is one, but for what the model may be wrong by; its estimate is within the error that prunes."""
    problem = replace(PROBLEM, m=1024, n=1024, k=4096)
    config = replace(RING, packed=packed)
    modelled = total(model(problem, config)).typical
    assert lower_us(problem, config) <= modelled * 1.1
    assert modelled / 1.6 < estimate_us(problem, config) < modelled * 1.6


def test_a_problem_is_tuned_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flycc.tuning.journal.cache_root", lambda: tmp_path / "cache")
    given = ("--family", "scaled_gemm", "--format", "mxfp4", "--shape", "16,64,512", "--budget", "2")
    out, found = tmp_path / "tables", tmp_path / "found.json"
    assert main(["tune", *given, "--jobs", "1", "--out", str(out), "--json", str(found)]) == 0
    (tuned,) = json.loads(found.read_text())["tuned"]
    assert len(tuned["ranked"]) == 2
    (entry,) = read(out / "scaled_gemm.json", FAMILY).entries.values()
    assert str(entry.config) == tuned["best"]["config"]
    assert (entry.key.rows, entry.key.exact) == (16, ("mxfp4", 64, 512))


def test_a_format_says_nothing_of_other_families(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--family", "gemm", "--format", "mxfp4", "--shape", "16,48,352"]) != 0
    assert "--format: it says nothing with --family gemm" in " ".join(capsys.readouterr().err.split())
