"""MX products by group on the emulated gfx950 against float64.

In most tests every sum is exact in float32 (elements are halves of whole numbers, and scales differ little), so the
result must be the exact sum rounded once: any misplaced, missing or doubled term, or scale, shows.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from emulated_mx_gemm import Side, relative_rms
from emulated_mx_grouped import BEFORE, WORKGROUPS, MxGrouped, reference

from flycc.contracts.scaled_gemm import ElementFormat
from flycc.kernels.gemm import GemmConfig
from flycc.kernels.mx_grouped import MxGroupedConfig, choose

CONFIGS = {
    "decode": MxGroupedConfig(GemmConfig(16, 64, 64, waves_k=4, staged=False)),
    "small": MxGroupedConfig(GemmConfig(64, 64, 64, waves_m=2, waves_n=2)),
    "ring64": MxGroupedConfig(GemmConfig(64, 64, 64, 2, 2, stages_m=5, stages_n=5)),
    "ring256": MxGroupedConfig(GemmConfig(256, 256, 64, 2, 4, stages_m=3, stages_n=2)),
}
FORMATS: tuple[ElementFormat, ...] = ("e4m3", "e5m2", "e2m1")
COUNTS = [0, 70, 1, 133, 0, 9]

seed = int(os.environ["FLYCC_TEST_SEED"])


def codes(rng: np.random.Generator, element: ElementFormat, *shape: int, wide: bool = False) -> np.ndarray:
    """Codes of all numbers of e2m1, of e4m3 and e5m2 whole numbers up to 4 in size, or `wide`, up to 1 in size."""
    if element == "e2m1":
        return rng.integers(0, 16, shape, dtype=np.uint8)
    one = {"e4m3": 7 << 3, "e5m2": 15 << 2}[element]
    if wide:
        return (
            rng.integers(0, one + 1, shape, dtype=np.uint8) | rng.integers(0, 2, shape, dtype=np.uint8) << 7
        )
    of_e4m3, of_e5m2 = [0, 0x38, 0x40, 0x44, 0x48], [0, 0x3C, 0x40, 0x42, 0x44]
    whole = np.array(of_e4m3 if element == "e4m3" else of_e5m2, np.uint8)
    return whole[rng.integers(0, 5, shape)] | rng.integers(0, 2, shape, dtype=np.uint8) << 7


def case_of(
    rng: np.random.Generator,
    formats: tuple[ElementFormat, ElementFormat] = ("e4m3", "e4m3"),
    counts: list[int] = COUNTS,
    n: int = 40,
    k: int = 192,
    *,
    beyond: int = 0,
    padding: int = 0,
    misalign: int = 0,
    bias: bool = False,
    dtype: str = "bf16",
    wide: bool = False,
) -> MxGrouped:
    """A problem whose groups have `counts` rows, which `beyond` more follow."""
    offsets = np.cumsum(counts).astype(np.int32)
    blocks = -(-k // 32)
    sides = []
    for element, rows in zip(formats, (max(1, int(offsets[-1]) + beyond), len(counts) * n), strict=True):
        scales = rng.integers(110 if wide else 126, 129, (rows, blocks), dtype=np.uint8)
        data = codes(rng, element, rows, k, wide=wide)
        sides.append(Side(element, data, "block", scales, padding, misalign))
    addends = rng.integers(-9, 10, (len(counts), n)).astype(np.float64) if bias else None
    return MxGrouped(sides[0], sides[1], offsets, n, dtype, addends, padding, misalign // 4 * 4)


def check_exact(case: MxGrouped, config: MxGroupedConfig, workgroups: int = WORKGROUPS) -> None:
    """Results are the exact ones rounded once; what belongs to no group, and memory between rows, is untouched."""
    exact, magnitude = reference(case)
    # Terms are multiples of 2^-4: halves times halves times scales from 1/2 each.
    assert np.nanmax(magnitude, initial=0) < 2**20, "the test's inputs are too large to be summed exactly"
    result = case.run(config, workgroups=workgroups)
    what = f"{config} {case.sizes} offsets {case.offsets} seed {seed}"
    np.testing.assert_array_equal(result.stored.buffer, case.clean(exact).buffer, err_msg=what)


@pytest.mark.parametrize(
    ("name", "format_a", "format_b"),
    [
        ("decode", "e4m3", "e4m3"),
        ("decode", "e2m1", "e4m3"),
        ("ring64", "e2m1", "e2m1"),
        ("ring256", "e4m3", "e4m3"),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (
                ("decode", "e2m1", "e2m1"),
                ("decode", "e5m2", "e2m1"),
                ("small", "e4m3", "e4m3"),
                ("small", "e2m1", "e2m1"),
                ("ring64", "e4m3", "e4m3"),
                ("ring64", "e5m2", "e4m3"),
                ("ring256", "e2m1", "e2m1"),
            )
        ),
    ],
)
def test_formats(name: str, format_a: ElementFormat, format_b: ElementFormat) -> None:
    """Whole tiles and K of 128, and odd sizes with a last block that is short."""
    rng = np.random.default_rng([seed, *map(ord, name + format_a + format_b)])
    formats = format_a, format_b
    for n, k in ((64, 256), (21, 200 if name.startswith("ring") else 76)):
        if name.startswith("ring") and k % 32:
            k, n = 224, 24  # rings take aligned rows of whole pieces of 16 bytes
        check_exact(case_of(rng, formats, n=n, k=k, padding=0 if n == 64 else 16), CONFIGS[name])


@pytest.mark.parametrize("dtype", ["bf16", pytest.param("f16", marks=pytest.mark.nightly), "f32"])
def test_bias_and_types_of_results(dtype: str) -> None:
    check_exact(case_of(np.random.default_rng(seed), bias=True, dtype=dtype), CONFIGS["small"])


@pytest.mark.parametrize(
    ("padding", "misalign"),
    [(6, 2), *(pytest.param(*x, marks=pytest.mark.nightly) for x in ((2, 0), (4, 8)))],
)
@pytest.mark.parametrize("element", ["e4m3", "e2m1"])
def test_alignments(element: ElementFormat, padding: int, misalign: int) -> None:
    case = case_of(
        np.random.default_rng(seed), (element, element), n=24, k=72, padding=padding, misalign=misalign
    )
    check_exact(case, CONFIGS["small"])


def test_what_belongs_to_no_group_is_left_alone() -> None:
    """Groups end before A does, by less and by more than a tile."""
    for beyond in (1, 70):
        case = case_of(np.random.default_rng(seed), counts=[5, 0, 66], beyond=beyond)
        check_exact(case, CONFIGS["small"])
        assert (case.run(CONFIGS["small"]).out[71:] == BEFORE).all()


@pytest.mark.parametrize("counts", [[0], [0, 0, 65], [65, 0, 0]])
def test_empty_groups(counts: list[int]) -> None:
    check_exact(case_of(np.random.default_rng(seed), counts=counts), CONFIGS["small"])


def test_more_groups_than_lanes() -> None:
    """A wave looks at 64 groups at a time; the stream of tiles goes on across that."""
    rng = np.random.default_rng(seed)
    check_exact(
        case_of(rng, counts=[int(x) for x in rng.integers(0, 9, 130)], n=16, k=128), CONFIGS["decode"]
    )


def test_nan_stays_in_its_group() -> None:
    """Every scale of the middle group and of what belongs to none is NaN; no other group sees it."""
    case = case_of(np.random.default_rng(seed), counts=[21, 19, 23], n=24, beyond=9)
    expected = case.clean(reference(case)[0]).read()[0]
    blocks = case.a.scales.shape[1]
    bytes_a, bytes_b = (
        side.scale_buffer[: side.scales.size].reshape(-1, blocks) for side in (case.a, case.b)
    )
    bytes_a[21:40], bytes_a[63:], bytes_b[24:48] = 255, 255, 255
    for name in ("small", "ring64"):
        out = case.run(CONFIGS[name]).out
        assert np.isnan(out[21:40]).all()
        out[21:40] = expected[21:40]
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("name", "element"),
    [
        ("ring64", "e4m3"),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (("ring64", "e2m1"), ("decode", "e4m3"), ("decode", "e2m1"))
        ),
    ],
)
def test_orders_workgroups_and_sanitizers(name: str, element: ElementFormat) -> None:
    """The same bits in every order of waves, and however many workgroups share the tiles; sanitizers are quiet."""
    rng = np.random.default_rng(seed)
    case = case_of(rng, (element, element), n=72, k=320, wide=True, padding=16)
    first = case.run(CONFIGS[name])
    exact, magnitude = reference(case)
    rows = magnitude > 0
    assert relative_rms(first.out[rows], exact[rows]) <= 0.002
    runs: tuple[dict[str, Any], ...] = (
        {"wave_order": "reverse"},
        {"wave_order": seed, "sanitize": "all"},
        {"workgroups": 16},
    )
    for run in runs:
        again = case.run(CONFIGS[name], **run)
        assert not again.findings, "\n".join(map(str, again.findings))
        np.testing.assert_array_equal(again.stored.buffer, first.stored.buffer, err_msg=str(run))


@pytest.mark.parametrize("name", [pytest.param("decode", marks=pytest.mark.nightly), "ring64"])
def test_shares_of_k(name: str) -> None:
    """So few tiles that several workgroups compute parts of each, or of those of the last round."""
    tile = GemmConfig(64, 64, 64, 2, 2, stages_m=3, stages_n=3, splits=2)
    config = MxGroupedConfig(
        GemmConfig(16, 64, 64, waves_k=2, staged=False, splits=2) if name == "decode" else tile
    )
    rng = np.random.default_rng([seed, *map(ord, name)])
    case = case_of(rng, counts=[9, 0, 33, 16], n=40, k=1312)
    for workgroups in (8, 24):
        check_exact(case, config, workgroups)
    first, again = case.run(config), case.run(config, seed, sanitize="all")
    assert not again.findings, "\n".join(map(str, again.findings))
    np.testing.assert_array_equal(again.stored.buffer, first.stored.buffer)


@pytest.mark.parametrize("offsets", [[40, 10, 63], [-5, 20, 63], [20, 64, 900], [2**31 - 1, -(2**31), 30]])
def test_bad_offsets_never_leave_the_operands(offsets: list[int]) -> None:
    """Operands' memory ends where they do: an access beyond raises an error of the emulator."""
    case = case_of(np.random.default_rng(seed), counts=[21, 21, 21], n=24)
    case.offsets = np.array(offsets, np.int32)
    case.run(CONFIGS["small"])


@pytest.mark.parametrize(
    ("counts", "element"),
    [
        ([512, 300, 700, 1000], "e2m1"),
        ([0, 1024, 0, 512, 2048, 128, 0, 896], "e4m3"),
        ([1, 3, 7, 15, 31, 63, 127, 255], "e2m1"),
    ],
)
@pytest.mark.parametrize("reduction", [8, pytest.param(1, marks=pytest.mark.nightly)])
def test_shapes_that_upstream_tests(counts: list[int], element: ElementFormat, reduction: int) -> None:
    """With the configuration that is chosen for the whole sizes, within the tolerance of 0.002; sizes reduced."""
    rng, n, k = np.random.default_rng(seed), 1408, 2048
    case = case_of(
        rng,
        (element, element),
        [-(-x // reduction) for x in counts],
        n // reduction // 16 * 16,
        k // reduction,
        wide=True,
    )
    whole = case_of(rng, (element, element), [16] * len(counts), 16, k).problem(
        case.clean(reference(case)[0])
    )
    config = choose(whole)
    assert isinstance(config, MxGroupedConfig)
    exact, magnitude = reference(case)
    rows = magnitude > 0
    assert relative_rms(case.run(config).out[rows], exact[rows]) <= 0.002
