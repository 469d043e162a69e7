"""What caches hold, estimated from a few workgroups, against counting the lines of all of them."""

from __future__ import annotations

import os

import numpy as np
import pytest

from flycc.costmodel.machine import MI350
from flycc.costmodel.reuse import Extent, Reuse, neighbours, reuse_of
from flycc.costmodel.streams import END, Op, Program

SEED = int(os.environ["FLYCC_TEST_SEED"])
TILE = 1 << 12  # lines of one operand tile


def workgroup(at: Extent, tiles: list[tuple[str, int]]) -> Program:
    """One that loads tiles, (operand, number)."""
    bases = {"a": 0, "b": 1 << 24, "c": 1 << 25}
    lines = [
        np.arange(TILE, dtype=np.uint64) + np.uint64(bases[name] + number * TILE) for name, number in tiles
    ]
    return Program(at, [[Op(END, 0)]], [0], [0], np.sort(np.concatenate(lines)))


def missing(all_of_it: list[Program]) -> float:
    """Lines that the L2 of the first XCD fetches, by what its first 32 workgroups touch."""
    mine = all_of_it[:: MI350.xcds][: MI350.cus_per_xcd]
    return np.unique(np.concatenate([p.lines for p in mine])).size / sum(p.lines.size for p in mine)


def traced(grid: Extent, tiles_of) -> tuple[list[Program], list[Program]]:
    """(the workgroups to trace, all)."""
    ids = [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]
    everything = [workgroup(at, tiles_of(*at)) for at in ids]
    return [everything[ids.index(at)] for at in neighbours(grid)], everything


@pytest.mark.parametrize("case", range(6))
def test_tiles_of_two_and_three_axes_exactly(case: int) -> None:
    rng = np.random.default_rng([SEED, case])
    grid = tuple(int(n) for n in rng.integers(2, 12, 3))
    few, everything = traced(grid, lambda x, y, z: [("a", x + 12 * z), ("b", y + 12 * z), ("c", x)])  # type: ignore[arg-type]
    found = reuse_of(few, grid, 1, MI350, warm=True)  # type: ignore[arg-type]
    assert found.l2 == pytest.approx(1 - missing(everything)), grid


@pytest.mark.parametrize(
    ("name", "tiles_of"),
    [
        ("row after row", lambda x, y, z: [("a", x // 32), ("b", x % 32)]),
        ("groups of 8 rows", lambda x, y, z: [("a", x // 256 * 8 + x % 8), ("b", x % 256 // 8)]),
        ("nothing shared", lambda x, y, z: [("a", x)]),
    ],
)
def test_numbered_tiles(name: str, tiles_of) -> None:
    grid = (1024, 1, 1)
    few, everything = traced(grid, tiles_of)
    found = reuse_of(few, grid, 1, MI350, warm=True)
    assert found.l2 == pytest.approx(1 - missing(everything), abs=0.02)


def test_mall_holds_what_fits_and_is_warm() -> None:
    """1,024 tiles of 512 KiB are twice what the MALL holds, 256 are half."""

    def of(count: int, warm: bool) -> Reuse:
        few, _ = traced((count, 1, 1), lambda x, y, z: [("a", x)])
        return reuse_of(few, (count, 1, 1), 1, MI350, warm=warm)

    assert TILE * MI350.line_bytes == 512 << 10
    assert of(256, warm=True).mall == 1
    assert of(256, warm=False).mall == pytest.approx(0, abs=0.01)
    assert of(1024, warm=True).mall == pytest.approx(0, abs=0.01)


def test_mall_catches_what_eight_xcds_fetch() -> None:
    """All workgroups load the same tile: each XCD once, HBM once."""
    grid = (1024, 1, 1)
    few, _ = traced(grid, lambda x, y, z: [("a", x % 8), ("b", 0)])
    found = reuse_of(few, grid, 1, MI350, warm=False)
    # Each XCD fetches its own tile of a and all fetch that of b: 16 tiles of which 9 are different.
    assert found.l2 == pytest.approx(1 - 2 / 256, abs=1e-6)


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        ((1, 1, 1), [(0, 0, 0)]),
        ((3, 1, 1), [(0, 0, 0), (2, 0, 0)]),
        ((20, 1, 1), [(0, 0, 0), (8, 0, 0), (16, 0, 0), (19, 0, 0)]),
        ((4, 4, 1), [(0, 0, 0), (1, 0, 0), (0, 1, 0), (3, 3, 0)]),
        ((2, 1, 2), [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1)]),
    ],
)
def test_neighbours(grid: Extent, expected: list[Extent]) -> None:
    assert neighbours(grid) == expected


@pytest.mark.parametrize("shares", [(-0.1, 0.5), (0.5, 1.5)])
def test_shares_are_shares(shares: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="a share of 0 to 1 is accepted"):
        Reuse(*shares)


def test_the_same_misses_of_fewer_lines() -> None:
    assert Reuse(0.75, 0.5).of_fewer(0.5, "half") == Reuse(0.5, 0.5, "half")
    assert Reuse(0.25, 0.5).of_fewer(0.5, "half") == Reuse(0.0, 0.5, "half")  # all that there are
