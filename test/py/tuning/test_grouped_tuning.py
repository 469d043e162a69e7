"""Grouped products in tables, in the search, and at the runtime's choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flycc.contracts import GroupedGemmProblem
from flycc.kernels import grouped_gemm as kernels
from flycc.kernels.gemm import GemmConfig
from flycc.kernels.grouped_gemm import GroupedGemmConfig
from flycc.runtime import choice, devices, grouped_gemm
from flycc.tuning import model
from flycc.tuning.analytic import estimate_us, lower_us
from flycc.tuning.family import FAMILIES, contiguous
from flycc.tuning.search import ordered
from flycc.tuning.table import Entry, Table, read

FAMILY = FAMILIES["grouped_gemm"]
PROBLEM = GroupedGemmProblem("bf16", "m", 8, 512, 256, 512, trans_b=True)
RING = GroupedGemmConfig(GemmConfig(64, 64, 64, 2, 2, stages_m=5, stages_n=5))


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    key = FAMILY.key(PROBLEM)
    assert key is not None
    assert FAMILY.problem(FAMILY.fields(key)) == PROBLEM
    written = Table(FAMILY)
    written.add(Entry(key, RING, 12.5, "model"))
    written.write(tmp_path / "t.json")
    found = read(tmp_path / "t.json", FAMILY)
    assert found.entries == written.entries
    more = FAMILY.key(replace(PROBLEM, m=1024))
    assert more is not None
    assert found.nearest(more) == written.entries[key]


@pytest.mark.parametrize(
    "change",
    [{"ragged": "n"}, {"ragged": "k"}, {"align_a": 8}, {"m": "M"}, {"groups": "G"}, {"dtype": "f32"}],
)
def test_what_tables_do_not_serve_has_no_key(change: dict[str, int | str]) -> None:
    assert FAMILY.key(replace(PROBLEM, **change)) is None


def test_the_space() -> None:
    """The kernels' own choice comes first; tiles are shared by workgroups or not, and all are valid."""
    configs = ordered(PROBLEM, FAMILY)
    assert configs[0] == kernels.choose(PROBLEM)
    assert len(configs) > 40
    assert all(config.is_valid(PROBLEM) is None for config in configs)
    assert {config.tile.split for config in configs} == {False, True}
    assert all(FAMILY.admits(PROBLEM, config) for config in configs)
    assert contiguous(replace(PROBLEM, k=516)).align_a == 8


def test_the_closed_form_is_near_the_model() -> None:
    """Its bound is one, but for what the model may be wrong by; its estimate is within the error that prunes."""
    problem = GroupedGemmProblem("bf16", "m", 8, 4096, 1024, 2048, trans_b=True)
    (modelled,) = model(problem, RING)
    assert lower_us(problem, RING) <= modelled.time.typical * 1.1
    assert modelled.time.typical / 1.6 < estimate_us(problem, RING) < modelled.time.typical * 1.6


def test_the_runtime_asks_who_chooses() -> None:
    own = kernels.choose(PROBLEM)
    other = next(config for config in kernels.space(PROBLEM) if config != own)

    def provider(problem: object) -> GroupedGemmConfig | None:
        return other if problem == PROBLEM else None

    choice.install(provider)
    try:
        assert grouped_gemm.prepare(PROBLEM, devices.emulated_device())[0] == other
    finally:
        choice.remove(provider)
