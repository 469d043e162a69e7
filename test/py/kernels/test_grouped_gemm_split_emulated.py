"""Grouped GEMM binaries whose workgroups share K where tiles are few, on the emulated gfx950 against float64."""

from __future__ import annotations

import os

import numpy as np
import pytest
from emulated_grouped_gemm import bound, reference
from test_grouped_gemm_emulated import FORMS, RING_FORMS, check_exact, grouped_of, normal

from flycc.contracts.grouped_gemm import Ragged
from flycc.kernels.gemm import GemmConfig
from flycc.kernels.grouped_gemm import GroupedGemmConfig

CONFIGS = {
    "ring": GroupedGemmConfig(GemmConfig(64, 64, 64, 2, 2, stages_m=3, stages_n=3, splits=2)),
    "direct": GroupedGemmConfig(GemmConfig(16, 64, 64, waves_k=2, staged=False, splits=2)),
    "staged": GroupedGemmConfig(GemmConfig(64, 64, 64, 2, 2, splits=2)),
}
#: Forms and layouts that configurations are tried on.
SERVED = {
    "ring": RING_FORMS,
    "direct": tuple(zip(FORMS, ("TN", "NT", "NN"), strict=True)),
    "staged": (("m", "TT"),),
}

seed = int(os.environ["FLYCC_TEST_SEED"])


def few(form: Ragged) -> tuple[list[int], tuple[int, int]]:
    """Groups and the two other sizes of three to six tiles, with enough steps along K for several parts each."""
    return ([300, 0, 5, 520], (40, 72)) if form == "k" else ([9, 0, 33, 16], (40, 648))


@pytest.mark.parametrize(
    ("name", "form", "layout"), [(name, *served) for name, found in SERVED.items() for served in found]
)
def test_few_tiles(name: str, form: Ragged, layout: str) -> None:
    """Tiles in several parts, some of which may be empty; in one part each, as many more workgroups do not fit; and
    with fewer workgroups than tiles."""
    rng = np.random.default_rng([seed, *map(ord, name + form + layout)])
    case = grouped_of(rng, form, layout, *few(form), padding=8)
    for workgroups in (8, 24):
        check_exact(case, CONFIGS[name], workgroups=workgroups)


@pytest.mark.parametrize("name", ["ring", "direct"])
def test_the_last_round(name: str) -> None:
    """Of 12 or 36 tiles, 8 workgroups share the last four: the same bits whichever wave comes last, within the bound of
    a product in one part, and sanitizers are quiet.
    """
    rng = np.random.default_rng([seed, *map(ord, name)])
    counts, others = [70, 0, 130, 64], (72, 520)
    check_exact(grouped_of(rng, "m", "NT", counts, others), CONFIGS[name])
    case = grouped_of(rng, "m", "NT", counts, others, values=normal, bias=True)
    first = case.run(CONFIGS[name])
    assert (abs(first.out - reference(case)[0]) <= bound(case)).all(), f"seed {seed}"
    for order in ("reverse", seed):
        again = case.run(CONFIGS[name], order, sanitize="all" if order == seed else ())
        assert not again.findings, "\n".join(map(str, again.findings))
        np.testing.assert_array_equal(again.memory, first.memory, err_msg=str(order))
