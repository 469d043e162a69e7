"""Modelled times of grouped products: workgroups that stay, and their stream of tiles."""

from __future__ import annotations

import pytest

from flycc.contracts import GemmProblem, GroupedGemmProblem
from flycc.kernels import gemm
from flycc.kernels.gemm import GemmConfig
from flycc.kernels.grouped_gemm import GroupedGemmConfig
from flycc.tuning import model
from flycc.tuning import modelled as room

RING = GroupedGemmConfig(GemmConfig(64, 64, 64, 2, 2, stages_m=5, stages_n=5))
DIRECT = GroupedGemmConfig(GemmConfig(16, 64, 64, waves_k=4, staged=False))


def us(problem: GroupedGemmProblem, config: GroupedGemmConfig, offsets: list[int] | None = None) -> float:
    (found,) = model(problem, config, offsets=offsets)
    return found.time.typical


@pytest.mark.parametrize("ragged", ["m", "k"])
@pytest.mark.parametrize("config", [RING, DIRECT], ids=str)
def test_a_shortened_loop_stands_for_the_whole(
    ragged: str, config: GroupedGemmConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 3 %, as the model takes for steady, of a binary that takes tile after tile."""
    k = 40 * config.tile.step_k
    if ragged == "m":
        problem = GroupedGemmProblem("bf16", "m", 4, 4 * config.tile.tile_m, 64 * 80, k, trans_b=True)
    else:
        problem = GroupedGemmProblem("bf16", "k", 4, config.tile.tile_m, 64 * 80, 4 * k, trans_a=True)
    short = us(problem, config)
    monkeypatch.setattr(room, "_TURNS", 10**6)
    room._grouped_product.cache_clear()
    assert short == pytest.approx(us(problem, config), rel=0.03)


def test_one_group_takes_what_a_product_takes() -> None:
    """One tile for each compute unit, though more workgroups may be launched: what these add, the offsets, and what
    the group of a tile is, cost little beside K = 8,192."""
    grouped = us(GroupedGemmProblem("bf16", "m", 1, 1024, 1024, 8192, trans_b=True), RING)
    (dense,) = model(GemmProblem("bf16", 1024, 1024, 8192, trans_b=True), RING.tile)
    assert grouped == pytest.approx(dense.time.typical, rel=0.1)


def test_offsets_say_how_much_there_is_to_do() -> None:
    problem = GroupedGemmProblem("bf16", "m", 4, 4096, 2048, 1024, trans_b=True)
    whole = us(problem, RING)
    assert us(problem, RING, [1024, 2048, 3072, 4096]) == whole
    assert us(problem, RING, [0, 0, 512, 512]) < whole / 2
    assert us(problem, RING, [0, 4096, 4096, 4096]) == pytest.approx(whole, rel=0.15)


@pytest.mark.parametrize("offsets", [[1024], [0, 0, 0, 4097], [5, 4, 6, 7], [-1, 0, 1, 2]])
def test_offsets_that_are_none_are_refused(offsets: list[int]) -> None:
    problem = GroupedGemmProblem("bf16", "m", 4, 4096, 512, 512, trans_b=True)
    with pytest.raises(ValueError, match="offsets: got"):
        model(problem, RING, offsets=offsets)
    product = GemmProblem("bf16", 256, 512, 512)
    with pytest.raises(ValueError, match="no groups"):
        model(product, gemm.choose(product), offsets=offsets)


def test_unknown_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="size must be known"):
        model(GroupedGemmProblem("bf16", "m", 4, "M", 512, 512), RING)
