"""Grouped GEMM binaries on the emulated gfx950 against float64.

Most tests use small integers, whose sums float32 holds exactly: the result must be the exact sum rounded
once, so that any misplaced, missing or doubled term shows.
"""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from emulated_gemm import Result, Stored
from emulated_grouped_gemm import BEFORE, WORKGROUPS, Grouped, bound, reference, rounded
from pairs import pairwise

from flycc.contracts import GroupedGemmProblem
from flycc.contracts.grouped_gemm import Ragged
from flycc.kernels.gemm import GemmConfig
from flycc.kernels.grouped_gemm import GroupedGemmConfig

CONFIGS = {
    "decode": GroupedGemmConfig(GemmConfig(16, 64, 64, waves_k=4, staged=False)),
    "small": GroupedGemmConfig(GemmConfig(64, 64, 64, waves_m=2, waves_n=2)),
    "large": GroupedGemmConfig(GemmConfig(128, 128, 64, waves_m=2, waves_n=2)),
}
#: Rings of tiles in LDS, and the forms and layouts that they take.
RINGS = {
    "ring64": GroupedGemmConfig(GemmConfig(64, 64, 64, 2, 2, stages_m=5, stages_n=5)),
    "ring256": GroupedGemmConfig(GemmConfig(256, 256, 64, 2, 4, stages_m=3, stages_n=2)),
}
RING_FORMS: tuple[tuple[Ragged, str], ...] = (("m", "NN"), ("m", "NT"), ("n", "NT"), ("n", "TT"), ("k", "TN"))
FORMS: tuple[Ragged, ...] = ("m", "n", "k")
LAYOUTS = ("NN", "NT", "TN", "TT")
PUBLISHED = Path(__file__).parents[3] / "benchmarks/data/published/grouped_bf16.csv"

seed = int(os.environ["FLYCC_TEST_SEED"])


def integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Whole numbers of magnitude at most 4: exact in both types, their sums exact in float32 below 2^24."""
    return rng.integers(-4, 5, shape).astype(np.float64)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape)


def grouped_of(
    rng: np.random.Generator,
    form: Ragged,
    layout: str,
    counts: list[int],
    others: tuple[int, int],
    *,
    dtype: str = "bf16",
    beyond: int = 0,
    padding: int = 0,
    misalign: int = 0,
    values: Callable[..., np.ndarray] = integers,
    bias: bool = False,
) -> Grouped:
    """A problem whose groups have `counts` of the ragged dimension, which `beyond` more follow; the `others` are the
    two sizes that are not ragged, in the order M, N, K.
    """
    offsets = np.cumsum(counts).astype(np.int32)
    total = max(1, int(offsets[-1]) + beyond)
    rest = iter(others)
    m, n, k = (total if name == form else next(rest) for name in "mnk")
    a = values(rng, len(counts) if form == "n" else 1, m, k)
    b = values(rng, len(counts) if form == "m" else 1, k, n)
    stored = [
        Stored(x.swapaxes(1, 2).copy() if letter == "T" else x, dtype, padding, misalign)
        for x, letter in zip((a, b), layout, strict=True)
    ]
    trans_a, trans_b = layout[0] == "T", layout[1] == "T"
    addends = Stored(values(rng, 1, len(counts), n), dtype, padding, misalign) if bias else None
    return Grouped(dtype, form, *stored, offsets, trans_a, trans_b, padding, misalign, addends)


def check_exact(case: Grouped, config: GroupedGemmConfig, workgroups: int = WORKGROUPS) -> Result:
    """Results are the exact ones rounded once; what belongs to no group, and memory between rows, is untouched."""
    exact, magnitude, _ = reference(case)
    assert magnitude.max(initial=0) < 2**24, "the test's inputs are too large to be summed exactly"
    expected = rounded(exact, case.dtype)
    result = case.run(config, workgroups=workgroups)
    what = f"{config} {case.ragged} {case.sizes} offsets {case.offsets} seed {seed}"
    np.testing.assert_array_equal(result.out, expected, err_msg=what)
    clean = Stored(expected, case.dtype, case.out_padding, case.out_misalign)
    np.testing.assert_array_equal(result.memory, clean.buffer, err_msg=what)
    return result


def uneven(rng: np.random.Generator, count: int = 6, most: int = 150) -> list[int]:
    """Sizes of groups, some empty, some of one, the others anything up to `most`."""
    kinds = rng.integers(0, 4, count)
    return [int(rng.integers(0, most + 1)) if kind > 1 else int(kind) for kind in kinds]


@pytest.mark.parametrize(("name", "form", "layout"), pairwise(CONFIGS, FORMS, LAYOUTS))
def test_forms_and_layouts(name: str, form: Ragged, layout: str) -> None:
    """Odd sizes, and sizes whose accesses are as wide as can be."""
    rng = np.random.default_rng([seed, *map(ord, name + form + layout)])
    for others, padding in (((21, 75), 0), ((24, 136), 8)):
        dtype = ("bf16", "f16")[padding // 8]
        case = grouped_of(rng, form, layout, uneven(rng), others, dtype=dtype, padding=padding)
        check_exact(case, CONFIGS[name])


@pytest.mark.parametrize(("form", "layout"), RING_FORMS)
@pytest.mark.parametrize("name", RINGS)
def test_rings(name: str, form: Ragged, layout: str) -> None:
    """Tiles in rings, from group to group: exact, in any order of waves, and sanitizers are quiet."""
    rng = np.random.default_rng([seed, *map(ord, name + form + layout)])
    case = grouped_of(rng, form, layout, [0, 70, 1, 133, 0, 9], (136, 200), padding=8)
    first = check_exact(case, RINGS[name])
    again = case.run(RINGS[name], seed, sanitize="all")
    assert not again.findings, "\n".join(map(str, again.findings))
    np.testing.assert_array_equal(again.memory, first.memory)


@pytest.mark.parametrize("form", ["m", "k"])
@pytest.mark.parametrize("name", ["decode", "small", "ring64"])
def test_bias(name: str, form: Ragged) -> None:
    """A row for each group, which an empty group of a ragged K has alone; of any alignment, and nothing beyond it."""
    rng = np.random.default_rng([seed, *map(ord, name + form)])
    layout, config = ("NT" if form == "m" else "TN"), CONFIGS.get(name) or RINGS[name]
    for others, padding, misalign in (
        ((40, 72), 8, 0),
        ((24, 45) if form == "m" else (40, 72), 0, 0),
        ((40, 72), 1, 6),
    ):
        if name == "ring64" and (misalign or others[-1] % 8):
            continue  # rings take aligned operands
        case = grouped_of(
            rng, form, layout, [9, 0, 70, 1, 133, 0], others, padding=padding, misalign=misalign, bias=True
        )
        first = check_exact(case, config)
    again = case.run(config, seed, sanitize="all")
    assert not again.findings, "\n".join(map(str, again.findings))
    np.testing.assert_array_equal(again.memory, first.memory)
    case = grouped_of(rng, form, layout, [9, 0, 70, 1, 133, 0], (40, 72), values=normal, bias=True)
    assert (abs(case.run(config).out - reference(case)[0]) <= bound(case)).all(), f"seed {seed}"


@pytest.mark.parametrize("form", ["m", "k"])
def test_nan_and_infinity_stay_in_their_group_with_rings(form: Ragged) -> None:
    """The last tile along a ragged K, and the rows of a ragged M, end where the group does."""
    layout = {"m": "NT", "k": "TN"}[form]
    case = grouped_of(np.random.default_rng(seed), form, layout, [21, 19, 23], (24, 40), beyond=1)
    expected = rounded(reference(case)[0], case.dtype)
    case.a.view[0, 21:40] = 0x7FC0
    out = case.run(RINGS["ring64"]).out
    middle = np.s_[:, 21:40] if form == "m" else np.s_[1:2]
    assert np.isnan(out[middle]).all()
    out[middle] = expected[middle]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(("form", "layout", "placed"), pairwise(FORMS, LAYOUTS, [(0, 8), (2, 0), (7, 6)]))
def test_alignments(form: Ragged, layout: str, placed: tuple[int, int]) -> None:
    padding, misalign = placed
    rng = np.random.default_rng([seed, padding, misalign])
    case = grouped_of(rng, form, layout, uneven(rng), (40, 72), padding=padding, misalign=misalign)
    check_exact(case, CONFIGS["small"])


@pytest.mark.parametrize("form", FORMS)
def test_what_belongs_to_no_group_is_left_alone(form: Ragged) -> None:
    """Groups end before the dimension does, by less and by more than a tile."""
    rng = np.random.default_rng(seed)
    for beyond in (1, 70):
        case = grouped_of(rng, form, "NT", [5, 0, 66], (33, 40), beyond=beyond)
        check_exact(case, CONFIGS["small"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("counts", [[0], [1], [0, 0, 0], [0, 0, 65], [65, 0, 0]])
def test_empty_groups(form: Ragged, counts: list[int]) -> None:
    """The sum over an empty group is zero; rows and columns of an empty group are none."""
    check_exact(grouped_of(np.random.default_rng(seed), form, "NN", counts, (17, 40)), CONFIGS["small"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("groups", [63, 64, 65, 130])
def test_more_groups_than_lanes(form: Ragged, groups: int) -> None:
    """A wave looks at 64 groups at a time; the stream of tiles goes on across that."""
    rng = np.random.default_rng([seed, groups])
    counts = [int(x) for x in rng.integers(0, 20, groups)]
    check_exact(grouped_of(rng, form, "NT", counts, (16, 40)), CONFIGS["decode"])


@pytest.mark.parametrize(
    ("counts", "n", "k"),
    [
        ([0, 1, 640, 0, 130, 3], 128, 128),
        ([0, 1, 67, 0, 130, 3], 128, 96),
        pytest.param([2048, 2048], 1024, 128, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("layout", ["NN", "NT"])
def test_shapes_that_upstream_tests(counts: list[int], n: int, k: int, layout: str) -> None:
    check_exact(grouped_of(np.random.default_rng(seed), "m", layout, counts, (n, k)), CONFIGS["large"])


def published(reduction: int) -> list[tuple[list[int], int, int]]:
    """Rows of each group, N and K of every published shape, all divided by `reduction`, rounded up."""
    with PUBLISHED.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24
    return [
        (
            [-(-int(count) // reduction) for count in row["rows_per_group"].split()],
            -(-int(row["N"]) // reduction),
            -(-int(row["K"]) // reduction),
        )
        for row in rows
    ]


@pytest.mark.parametrize("reduction", [64, pytest.param(16, marks=pytest.mark.nightly)])
def test_published_shapes(reduction: int) -> None:
    rng = np.random.default_rng(seed)
    for number, (counts, n, k) in enumerate(published(reduction)):
        config = list(CONFIGS.values())[number % len(CONFIGS)]
        check_exact(grouped_of(rng, "m", ("NN", "NT")[number % 2], counts, (n, k)), config)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CONFIGS)
def test_rounding_error_is_within_the_bound(name: str, form: Ragged, dtype: str) -> None:
    rng = np.random.default_rng([seed, *map(ord, name + form)])
    case = grouped_of(rng, form, "NT", [1, 0, 130, 37], (33, 200), dtype=dtype, values=normal)
    error = abs(case.run(CONFIGS[name]).out - reference(case)[0])
    assert (error <= bound(case)).all(), f"seed {seed}: {(error / bound(case)).max()} times the bound"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CONFIGS)
def test_nan_and_infinity_stay_in_their_group(name: str, form: Ragged, layout: str) -> None:
    """Every value of the middle group is NaN or infinite, as is what belongs to no group; no other group sees it."""
    rng = np.random.default_rng(seed)
    case = grouped_of(rng, form, layout, [21, 19, 23], (24, 40), beyond=9)
    expected = rounded(reference(case)[0], case.dtype)
    nan, infinity = 0x7FC0, 0x7F80
    along_rows = {"a": (form == "m") != case.trans_a, "b": (form == "k") != case.trans_b}
    for letter, operand in (("a", case.a), ("b", case.b)):
        if operand.view.shape[0] > 1:
            operand.view[1] = nan
            continue
        view = operand.view[0] if along_rows[letter] else operand.view[0].T
        view[21:40] = nan
        view[63:] = infinity
    out = case.run(CONFIGS[name]).out
    middle = {"m": np.s_[:, 21:40], "n": np.s_[:, :, 21:40], "k": np.s_[1:2]}[form]
    assert np.isnan(out[middle]).all()
    out[middle] = expected[middle]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CONFIGS)
def test_order_and_number_of_workgroups_do_not_matter(name: str, form: Ragged) -> None:
    """The same bits in every order of waves, and however many workgroups share the tiles."""
    rng = np.random.default_rng(seed)
    case = grouped_of(rng, form, "NT", [0, 70, 1, 133, 0, 9], (72, 200), values=normal)
    first = case.run(CONFIGS[name]).memory
    for order in ("serial", "reverse", seed):
        np.testing.assert_array_equal(case.run(CONFIGS[name], order).memory, first, err_msg=str(order))
    for workgroups in (16, 64):  # rounds of all, with a last one of some
        np.testing.assert_array_equal(case.run(CONFIGS[name], workgroups=workgroups).memory, first)


@pytest.mark.parametrize(
    "layout", ["NT", *(pytest.param(x, marks=pytest.mark.nightly) for x in ("NN", "TN", "TT"))]
)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CONFIGS)
def test_sanitizers_are_quiet(name: str, form: Ragged, layout: str) -> None:
    """Nothing races, is used too early or undefined, or touches what is not its own, from tile to tile too."""
    rng = np.random.default_rng(seed)
    case = grouped_of(rng, form, layout, [0, 70, 1, 133, 0, 9], (72, 136))
    expected = case.run(CONFIGS[name]).memory
    for order in ("lockstep", seed):
        result = case.run(CONFIGS[name], order, sanitize="all")
        assert not result.findings, "\n".join(map(str, result.findings))
        np.testing.assert_array_equal(result.memory, expected, err_msg=str(order))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("offsets", [[40, 10, 63], [-5, 20, 63], [20, 64, 900], [2**31 - 1, -(2**31), 30]])
def test_bad_offsets_never_leave_the_operands(form: Ragged, offsets: list[int]) -> None:
    """Operands' memory ends where they do: an access beyond raises an error of the emulator."""
    case = grouped_of(np.random.default_rng(seed), form, "NT", [21, 21, 21], (24, 40))
    case.offsets = np.array(offsets, np.int32)
    case.run(CONFIGS["small"])


def any_configuration(draw: random.Random) -> GroupedGemmConfig:
    """A valid configuration, shipped or not, that leaves at most 128 results to a work-item."""
    while True:
        tile = GemmConfig(
            draw.choice([16, 32, 48, 64, 128]),
            draw.choice([16, 32, 64, 96, 128]),
            draw.choice([32, 64, 96]),
            draw.choice([1, 2, 3, 4]),
            draw.choice([1, 2, 3, 4]),
            draw.choice([1, 1, 2, 3, 4, 8]),
            draw.choice([True, False]),
        )
        config = GroupedGemmConfig(tile)
        fits = tile.tile_m * tile.tile_n <= 128 * tile.threads
        if fits and config.is_valid(GroupedGemmProblem("bf16", "m", 4, 64, 64, 64)) is None:
            return config


@pytest.mark.parametrize("count", [4, pytest.param(100, marks=pytest.mark.nightly)])
def test_every_valid_configuration_computes(count: int) -> None:
    """What is_valid accepts is right, not only what is shipped."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    for _ in range(count):
        config, form, layout = any_configuration(draw), draw.choice(FORMS), draw.choice(LAYOUTS)
        others = (draw.randint(1, 150), draw.choice([draw.randint(1, 200), 8 * draw.randint(1, 25)]))
        case = grouped_of(rng, form, layout, uneven(rng), others, padding=draw.choice([0, 1, 2, 8]))
        check_exact(case, config)


def test_a_value_that_no_group_has_is_told_from_a_result() -> None:
    """The mark that the tests above look for is none that a result can have been rounded to by accident."""
    case = grouped_of(np.random.default_rng(seed), "m", "NN", [3], (8, 8), beyond=2)
    out = case.run(CONFIGS["small"]).out
    assert (out[0, 3:] == BEFORE).all()
    assert not (out[0, :3] == BEFORE).all()
