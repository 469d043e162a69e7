"""The tiles of all groups as one stream, group by group, in FlyDSL.

A wave looks at 64 groups at a time, a group a lane: from the offsets it knows how many tiles each has, and a sum over
the lanes says where in the stream each ends. The group of a tile is the number of groups that end before it.

Workgroups take the stream in rounds, a tile each. In each round, the last one too, which has fewer, every XCD gets as
many tiles as any other, and neighbours: these share operands, and meet in its L2.

Where the last round has so few tiles that workgroups would be idle, K of each may be divided into parts: a workgroup
has one of them at most, and those that have the first parts come first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.kernels.common.buffers import bounded, checked
from flycc.kernels.common.wave import ones, uniform, wave_scan
from flycc.kernels.gemm.config import LEAST_STEPS, MAX_SPLITS, GemmConfig
from flycc.kernels.gemm.order import Share, on_xcd, place_of, tiles_of
from flycc.kernels.grouped_gemm.config import MAX_TILES


@dataclass(frozen=True)
class Groups:
    """A lane's group among 64, of which `first` is the number of the first: its first index and size along the ragged
    dimension, and the number of tiles of this group and those of lower lanes (`end`). These are registers that are
    taken from the main loop, so there are no more.
    """

    first: fx.Int32
    start: fx.Int32
    size: fx.Int32
    end: fx.Int32


@dataclass(frozen=True)
class GroupTile:
    """A tile, all of it uniform: its group's number, first index and size, and its first row and column there."""

    number: fx.Int32
    start: fx.Int32
    size: fx.Int32
    m0: fx.Int32
    n0: fx.Int32


@dataclass(frozen=True)
class Rounds:
    """What a workgroup takes of a stream: in each of the `full` rounds its tile number `mine` of as many as there are
    `workgroups`, and then the tile `last` of the stream, which is `MAX_TILES` if it has none.
    """

    workgroups: fx.Int32
    full: fx.Int32
    mine: fx.Int32
    last: fx.Int32

    @classmethod
    def of(cls, workgroup: fx.Int32, workgroups: fx.Int32, total: fx.Int32) -> Rounds:
        full = fx.Int32(fx.Uint32(total) // fx.Uint32(workgroups))
        before = full * workgroups
        last = before + fx.Int32(on_xcd(workgroup, total - before))
        last = (workgroup < total - before).select(last, fx.Int32(MAX_TILES))
        return cls(workgroups, full, fx.Int32(on_xcd(workgroup, workgroups)), last)


@dataclass(frozen=True)
class Work:
    """A workgroup's `rounds`. Tiles of the stream from number `whole` on, of which it has one at most, are in `parts`
    parts, and it computes number `part`.
    """

    rounds: Rounds
    whole: fx.Int32
    part: fx.Int32
    parts: fx.Int32

    @classmethod
    def of(cls, workgroup: fx.Int32, total: fx.Int32, ragged: str, shape: Any, config: GemmConfig) -> Work:
        """That of a stream of `total` tiles."""
        rounds = Rounds.of(workgroup, shape.workgroups, total)
        whole = rounds.full * rounds.workgroups
        if not config.split:
            return cls(rounds, whole, fx.Int32(0), fx.Int32(1))
        rest = total - whole
        tiles = fx.max(rest, fx.Int32(1))
        parts = _parts(tiles, ragged, shape, config)
        number = fx.Int32(on_xcd(workgroup, rest * parts))
        part = _over(number, tiles)
        last = (workgroup < rest * parts).select(whole + number - part * tiles, fx.Int32(MAX_TILES))
        return cls(replace(rounds, last=last), whole, part, parts)


def share_of(work: Work, tile: fx.Int32) -> Share:
    """What the workgroup computes of the tile at place `tile` of the stream."""
    shared = tile >= work.whole
    part, parts = shared.select(work.part, fx.Int32(0)), shared.select(work.parts, fx.Int32(1))
    return Share(tile, tile, part, parts)


def along_k(share: Share, k: fx.Int32, config: GemmConfig) -> tuple[fx.Int32, fx.Int32]:
    """The first of the elements of a tile's `k` that the workgroup takes, and how many it does."""
    if not config.split:
        return fx.Int32(0), k
    each = _rounded_up(_rounded_up(k, config.step_k), share.parts) * config.step_k
    first = share.part * each
    return first, fx.max(fx.min(k - first, each), fx.Int32(0))


def _parts(tiles: fx.Int32, ragged: str, shape: Any, config: GemmConfig) -> fx.Int32:
    """As `GroupedGemmConfig.parts`."""
    steps = _rounded_up(_over(shape.k, shape.groups) if ragged == "k" else shape.k, config.step_k)
    most = fx.min(fx.min(_over(shape.workgroups, tiles), steps // LEAST_STEPS), fx.Int32(MAX_SPLITS))
    each = _rounded_up(steps, fx.max(most, fx.Int32(1)))
    return fx.max(_rounded_up(steps, fx.max(each, fx.Int32(1))), fx.Int32(1))


def look_at(
    offsets: fx.Pointer, first: fx.Int32, lane: fx.Int32, ragged: str, shape: Any, config: GemmConfig
) -> Groups:
    """The groups from number `first` on, this lane's being `first + lane`; one that does not exist has no tiles.

    Offsets that do not ascend, or leave the ragged dimension, give wrong groups but never one that leaves it.
    """
    number = first + lane
    exists = number < shape.groups
    total = getattr(shape, ragged)
    buffer = bounded(offsets)
    start = _within(_offset(buffer, number - 1, exists & (number > 0)), total)
    size = fx.max(_within(_offset(buffer, number, exists), total) - start, fx.Int32(0))
    m, n = (size if ragged == name else getattr(shape, name) for name in ("m", "n"))
    tiles = exists.select(tiles_of(m, n, config), fx.Int32(0))
    return Groups(first, start, size, wave_scan(tiles, lane))


def total_tiles(groups: Groups) -> fx.Int32:
    """The tiles of these 64 groups."""
    return _of_lane(groups.end, fx.Int32(63))


def tile_of_round(rounds: Rounds, number: fx.Int32) -> fx.Int32:
    """The workgroup's tile in round `number`."""
    return (number < rounds.full).select(number * rounds.workgroups + rounds.mine, rounds.last)


def rounds_before(rounds: Rounds, end: fx.Int32) -> fx.Int32:
    """In how many rounds the workgroup's tile lies before tile `end` of the stream."""
    left = fx.max(end - rounds.mine + (rounds.workgroups - 1), fx.Int32(0))
    whole = fx.Int32(fx.Uint32(left) // fx.Uint32(rounds.workgroups))
    return (rounds.last < end).select(rounds.full + 1, fx.min(whole, rounds.full))


def find(groups: Groups, tile: fx.Int32, ragged: str, shape: Any, config: GemmConfig) -> GroupTile:
    """The tile at place `tile` of the stream of these 64 groups; a group has its tiles in bands, as a product has."""
    owner = uniform(ones(rocdl.ballot(T.i64, (groups.end <= tile).ir_value())))
    start, size = _of_lane(groups.start, owner), _of_lane(groups.size, owner)
    before = _of_lane(groups.end, fx.max(owner - 1, fx.Int32(0)))
    inside = tile - (owner > 0).select(before, fx.Int32(0))
    m, n = (size if ragged == name else getattr(shape, name) for name in ("m", "n"))
    row, column = place_of(inside, m, n, config)
    return GroupTile(groups.first + owner, start, size, row * config.tile_m, column * config.tile_n)


def _offset(buffer: Any, number: fx.Int32, exists: Any) -> fx.Int32:
    return fx.Int32(rocdl.raw_ptr_buffer_load(T.i32, buffer, checked(exists, number * 4), fx.Int32(0)))


def _over(a: fx.Int32, b: Any) -> fx.Int32:
    """a / b of numbers that are not negative."""
    return fx.Int32(fx.Uint32(a) // fx.Uint32(b))


def _rounded_up(a: fx.Int32, b: Any) -> fx.Int32:
    return _over(a + (b - 1), b)


def _within(offset: fx.Int32, total: fx.Int32) -> fx.Int32:
    return fx.max(fx.min(offset, total), fx.Int32(0))


def _of_lane(value: fx.Int32, lane: fx.Int32) -> fx.Int32:
    return fx.Int32(rocdl.readlane(T.i32, value.ir_value(), lane.ir_value()))
