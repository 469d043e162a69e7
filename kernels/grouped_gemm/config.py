"""Configurations of the grouped GEMM family and the rules that choose among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from flycc.contracts import GroupedGemmProblem, Reason
from flycc.kernels.common.machine import COMPUTE_UNITS, LDS_BYTES
from flycc.kernels.gemm.config import ELEMENT_BYTES, RINGS, GemmConfig

#: A launch has so many workgroups a compute unit at most: more hide no further latency.
MAX_PER_COMPUTE_UNIT = 2
#: Tiles of all groups are counted in 32 bits, as are groups and their offsets.
MAX_TILES = (1 << 31) - 1
MAX_GROUPS = 1 << 24


@dataclass(frozen=True, slots=True)
class GroupedGemmConfig:
    """How the tiles of all groups, one stream, are computed: `tile` says how a workgroup computes one.

    As many workgroups are launched as the GPU holds; each takes every so-manieth tile of the stream.
    """

    tile: GemmConfig

    @property
    def max_workgroups(self) -> int:
        """The workgroups of a launch that has tiles enough."""
        resident = LDS_BYTES // self.tile.lds_bytes if self.tile.lds_bytes else MAX_PER_COMPUTE_UNIT
        return COMPUTE_UNITS * min(MAX_PER_COMPUTE_UNIT, resident)

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
        if self.tile.split:
            return Reason("grouped-gemm.config", f"{self}: workgroups share no tile of a grouped product")
        reason = self.tile.is_valid(problem.group)
        if reason is not None:
            return Reason(reason.code.replace("gemm.", "grouped-gemm.", 1), reason.sentence)
        tiles = self.max_tiles(problem)
        if tiles is not None and tiles > MAX_TILES - self.max_workgroups:
            return Reason("grouped-gemm.size", f"{problem}: {tiles} tiles, fewer than 2^31 are possible")
        return None

    def __str__(self) -> str:
        return str(self.tile)


_DECODE = GroupedGemmConfig(GemmConfig(16, 64, 64, waves_k=4, staged=False))
_SMALL = GroupedGemmConfig(GemmConfig(64, 64, 64, waves_m=2, waves_n=2))
_LARGE = GroupedGemmConfig(GemmConfig(128, 128, 64, waves_m=2, waves_n=2))
#: The largest tile leaves no registers for what a workgroup keeps of groups.
_RINGS = tuple(GroupedGemmConfig(ring) for ring in RINGS if ring.tile_m * ring.tile_n <= 1 << 16)


def space(problem: GroupedGemmProblem) -> Iterator[GroupedGemmConfig]:
    """Every shipped configuration that computes `problem`, the likeliest first.

    The host does not know how groups share out the ragged dimension, so they are taken to be equal.
    """
    sizes = {"m": problem.m, "n": problem.n}
    groups = problem.groups
    if isinstance(groups, int) and isinstance(size := sizes.get(problem.ragged), int):
        sizes[problem.ragged] = -(-size // max(1, groups))
    m, n = sizes["m"], sizes["n"]
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(groups, int)):
        order: tuple[GroupedGemmConfig, ...] = (_SMALL, _LARGE, _DECODE, *_RINGS)
    else:
        fewest = partial(_longest, m, n, groups)
        tiled = (*sorted(_RINGS, key=fewest), *sorted((_LARGE, _SMALL), key=fewest))
        order = (_DECODE, *tiled) if m <= _DECODE.tile.tile_m else (*tiled, _DECODE)
    return (config for config in order if config.is_valid(problem) is None)


def _longest(m: int, n: int, groups: int, config: GroupedGemmConfig) -> tuple[int, int]:
    """What the compute unit with most tiles does: rows of operands fetched, which take longer; results computed."""
    rows, columns = config.tile.tiles(m, n)
    most = -(-groups * rows * columns // COMPUTE_UNITS)
    return most * (config.tile.tile_m + config.tile.tile_n), most * config.tile.tile_m * config.tile.tile_n


def choose(problem: GroupedGemmProblem) -> GroupedGemmConfig | Reason:
    """The configuration to run `problem` with, or why none does."""
    found = next(space(problem), None)
    if found is not None:
        return found
    reason = _SMALL.is_valid(problem)
    assert reason is not None, "space() offers this configuration for every problem"
    return reason
