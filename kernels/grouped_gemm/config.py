"""Configurations of the grouped GEMM family and the rules that choose among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flycc.contracts import GemmProblem, GroupedGemmProblem, Reason
from flycc.kernels.common.machine import COMPUTE_UNITS, LDS_BYTES
from flycc.kernels.gemm.config import ELEMENT_BYTES, LEAST_STEPS, MAX_SPLITS, GemmConfig, candidates

#: A launch has so many workgroups a compute unit at most: more hide no further latency.
MAX_PER_COMPUTE_UNIT = 2
#: Tiles of all groups are counted in 32 bits, as are groups and their offsets.
MAX_TILES = (1 << 31) - 1
MAX_GROUPS = 1 << 24


@dataclass(frozen=True, slots=True)
class GroupedGemmConfig:
    """How the tiles of all groups, one stream, are computed: `tile` says how a workgroup computes one.

    As many workgroups are launched as the GPU holds; each takes every so-manieth tile of the stream. If the tile is
    `split`, and the last round has so few that each can have several workgroups, these share its K. How many there are
    depends on the offsets, so the kernel counts them; `tile.splits` is 2, whatever it finds.
    """

    tile: GemmConfig

    @property
    def max_workgroups(self) -> int:
        """The workgroups of a launch that has tiles enough."""
        resident = LDS_BYTES // self.tile.lds_bytes if self.tile.lds_bytes else MAX_PER_COMPUTE_UNIT
        return COMPUTE_UNITS * min(MAX_PER_COMPUTE_UNIT, resident)

    def parts(self, problem: GroupedGemmProblem, tiles: int, workgroups: int) -> int:
        """In how many parts the kernel computes each tile of the last round, if it has so many in all: as many as there
        are workgroups for, of a few steps along K. Groups that share out K are taken to be equal.
        """
        k = problem.k // problem.groups if problem.ragged == "k" else problem.k  # type: ignore[operator]
        steps = -(-k // self.tile.step_k)  # type: ignore[operator]
        rest = tiles % workgroups
        if not self.tile.split or not rest:
            return 1
        most = min(workgroups // rest, steps // LEAST_STEPS, MAX_SPLITS)
        return max(1, -(-steps // max(1, -(-steps // max(1, most)))))

    def sums(self, workgroups: int) -> int:
        """float32 sums of parts of tiles for which a launch has room in memory."""
        return workgroups * self.tile.part_sums if self.tile.split else 0

    def counters(self, workgroups: int) -> int:
        """int32 counters that a launch takes, zero before it and after it."""
        return workgroups * self.tile.waves if self.tile.split else 0

    def max_tiles(self, problem: GroupedGemmProblem) -> int | None:
        """The most tiles that offsets can make of a problem; None where sizes are unknown.

        Each group has a partial tile at most.
        """
        sizes = (problem.m, problem.n, problem.groups)
        m, n, groups = (size if isinstance(size, int) else 0 for size in sizes)
        if not all(isinstance(size, int) for size in sizes):
            return None
        rows, columns = -(-m // self.tile.tile_m), -(-n // self.tile.tile_n)
        if problem.ragged == "m":
            return (m // self.tile.tile_m + groups) * columns
        if problem.ragged == "n":
            return rows * (n // self.tile.tile_n + groups)
        return rows * columns * groups

    def check_strides(self, strides: Mapping[str, int]) -> Reason | None:
        """None if the kernel reaches everything with these strides inside a matrix (elements, by name)."""
        reason = self.tile.check_strides(strides)
        return None if reason is None else Reason("grouped-gemm.stride", reason.sentence)

    def is_valid(self, problem: GroupedGemmProblem) -> Reason | None:
        """None if this configuration computes `problem`, else why it does not."""
        if problem.ragged not in ("m", "n", "k"):
            return Reason("grouped-gemm.ragged", f"ragged = {problem.ragged!r}: must be 'm', 'n' or 'k'")
        if isinstance(problem.groups, int) and not 1 <= problem.groups <= MAX_GROUPS:
            return Reason("grouped-gemm.groups", f"groups = {problem.groups}: 1 to {MAX_GROUPS} are possible")
        if problem.bias and problem.ragged == "n":
            sentence = "a bias has a row for each group: there is none where the groups share out N"
            return Reason("grouped-gemm.bias", sentence)
        size = getattr(problem, problem.ragged)
        if isinstance(size, int) and not 1 <= size <= MAX_TILES // ELEMENT_BYTES:
            limit = MAX_TILES // ELEMENT_BYTES
            return Reason("grouped-gemm.size", f"{problem.ragged} = {size}: 1 to {limit} are possible")
        if self.tile.tail or self.tile.splits > 2:
            sentence = f"{self}: the kernel says which tiles are shared by how many, so splits are 1 or 2"
            return Reason("grouped-gemm.config", sentence)
        reason = self.tile.is_valid(problem.group)
        if reason is not None:
            return Reason(reason.code.replace("gemm.", "grouped-gemm.", 1), reason.sentence)
        tiles = self.max_tiles(problem)
        if tiles is not None and tiles > MAX_TILES - self.max_workgroups:
            return Reason("grouped-gemm.size", f"{problem}: {tiles} tiles, fewer than 2^31 are possible")
        return None

    def __str__(self) -> str:
        return str(self.tile)


_SMALL = GroupedGemmConfig(GemmConfig(64, 64, 64, waves_m=2, waves_n=2))
#: Results of the largest tile that leaves registers for what a workgroup keeps of groups.
_MOST_RESULTS = 1 << 16
#: Results of the smallest tile that workgroups may share if groups differ: with smaller ones memory is the limit.
_LEAST_SHARED = 1 << 15


def space(problem: GroupedGemmProblem) -> Iterator[GroupedGemmConfig]:
    """Every shipped configuration that computes `problem`, the likeliest first: as for a batch of products, but that
    tiles of twice a group's size, which waste MFMAs, come last.

    The host does not know how groups share out the ragged dimension, so they are taken to be equal.
    """
    equal = batch_of(problem)

    def wasteful(tile: GemmConfig) -> bool:
        side, size = (tile.tile_n, equal.n) if problem.ragged == "n" else (tile.tile_m, equal.m)
        return problem.ragged != "k" and isinstance(size, int) and side >= 2 * size

    def shared(tile: GemmConfig) -> bool:
        return tile.split or (tile.ring and tile.tile_m * tile.tile_n >= _LEAST_SHARED)

    tiles = sorted(candidates(equal), key=wasteful)
    for tile in dict.fromkeys(replace(tile, splits=2) if shared(tile) else tile for tile in tiles):
        config = GroupedGemmConfig(tile)
        if tile.tile_m * tile.tile_n <= _MOST_RESULTS and config.is_valid(problem) is None:
            yield config


def batch_of(problem: GroupedGemmProblem) -> GemmProblem:
    """The batch of products that equal groups are; if sizes are unknown, one group's product."""
    size, groups = getattr(problem, problem.ragged, None), problem.groups
    if not isinstance(size, int) or not isinstance(groups, int):
        return problem.group
    sizes: dict[str, Any] = {problem.ragged: -(-size // max(1, groups)), "batch": groups}
    return replace(problem.group, **sizes)


def choose(problem: GroupedGemmProblem) -> GroupedGemmConfig | Reason:
    """The configuration to run `problem` with, or why none does."""
    found = next(space(problem), None)
    if found is not None:
        return found
    reason = _SMALL.is_valid(problem)
    assert reason is not None, "space() offers this configuration for every problem"
    return reason
