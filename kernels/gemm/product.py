"""A tile of a product in FlyDSL, as one workgroup computes it.

The MFMA is fed transposed (its rows run along N, its columns along M), so that a lane's four results are
neighbours along N, where `out` is contiguous.

What lies outside an operand reads as zero (see `kernels.common.buffers`): rows are checked once, K only in
the last, partial step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl._mlir.dialects import llvm
from flydsl.expr import range_constexpr, rocdl
from flydsl.expr.typing import T

from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.common.wave import need
from flycc.kernels.gemm.config import FRAGMENT, LDS_PAD, MFMA_K, MFMA_MN, GemmConfig
from flycc.kernels.gemm.mfma import Fragment, Mfma
from flycc.kernels.gemm.operand import (
    Group,
    Lane,
    Operand,
    direct_groups,
    direct_width,
    load,
    staging_groups,
)
from flycc.kernels.gemm.parts import Parts, ahead_step, staggered_step
from flycc.kernels.gemm.pipeline import Pipeline, step_through
from flycc.kernels.gemm.result import Chunk, exchange, result_chunks


@dataclass(frozen=True)
class Place:
    """A lane's place in its workgroup, and its wave's in the tile: first row and column, and share of K."""

    lane: Lane
    wave: fx.Int32
    first_m: fx.Int32
    first_n: fx.Int32
    wave_k: fx.Int32

    @classmethod
    def of(cls, thread: fx.Int32, config: GemmConfig) -> Place:
        """The place of work-item `thread`."""
        wave = fx.Int32(rocdl.readfirstlane(T.i32, thread // WAVE_SIZE))
        return cls(
            lane=Lane(thread, thread % MFMA_MN, thread % WAVE_SIZE // MFMA_MN),
            wave=wave,
            first_m=wave // (config.waves_k * config.waves_n) * (config.tile_m // config.waves_m),
            first_n=wave // config.waves_k % config.waves_n * (config.tile_n // config.waves_n),
            wave_k=wave % config.waves_k,
        )


@dataclass(frozen=True)
class Tile:
    """An operand's tile in LDS: [2 buffers][rows][row_stride] 16-bit elements."""

    operand: Operand
    pointer: fx.Pointer
    rows: int
    row_stride: int

    def place(self, buffer: fx.Int32, row: fx.Int32, k: fx.Int32) -> fx.Pointer:
        return self.pointer + ((buffer * self.rows + row) * self.row_stride + k)


def load_tiles(
    mfma: Mfma,
    tiles: Sequence[Tile],
    groups: Sequence[list[Group]],
    position: fx.Int64,
    k_left: fx.Int32 | None,
) -> list[Any]:
    """A work-item's share of both tiles of the step at `position`, and what multiplying them takes beside."""
    loaded = [load(tile.operand, some, position, k_left) for tile, some in zip(tiles, groups, strict=True)]
    return [*loaded, mfma.beside(fx.Int32(position), k_left)]


def write_tiles(
    tiles: Sequence[Tile], buffer: fx.Int32, groups: Sequence[list[Group]], loaded: list[Any]
) -> list[fx.Int32]:
    """Puts what `load_tiles` has brought into LDS, but for what comes beside the tiles, which is returned."""
    *fragments, beside = loaded
    for tile, some, of_tile in zip(tiles, groups, fragments, strict=True):
        for group, of_group in zip(some, of_tile, strict=True):
            for i, fragment in enumerate(of_group):
                fx.ptr_store(fragment.ir_value(), tile.place(buffer, group.row + i, group.k))
    return beside  # type: ignore[no-any-return]


def read_tile(tile: Tile, buffer: fx.Int32, row: fx.Int32, k: fx.Int32, blocks: int) -> list[Fragment]:
    """The fragments of `blocks` MFMA blocks, of which the first has this lane's at `row`."""
    kind = fx.Vector.make_type(FRAGMENT, fx.Int16)
    rows = [row + more for more in tile.operand.block_rows(tile.rows, blocks)]
    return [fx.Vector(fx.ptr_load(tile.place(buffer, row, k), result_type=kind)) for row in rows]


def load_direct(
    mfma: Mfma,
    a: Operand,
    b: Operand,
    slices_a: list[list[Group]],
    slices_b: list[list[Group]],
    position: fx.Int64,
    k_left: fx.Int32 | None,
) -> list[Any]:
    """The fragments of A, then those of B, in `tile_k` elements along K from `position` on, piece by piece, and what
    multiplying them takes beside."""
    pieces = [
        [_blocks(load(operand, groups, position, k_left), operand.halves) for groups in slices]
        for operand, slices in ((a, slices_a), (b, slices_b))
    ]
    return [*pieces, mfma.beside(fx.Int32(position), k_left)]


def multiply_direct(
    mfma: Mfma, loaded: list[Any], config: GemmConfig, acc: list[fx.Vector]
) -> list[fx.Vector]:
    *operands, beside = loaded
    for number in range(config.tile_k // mfma.slice_k):
        a, b = (mfma.slice_of(i, number, pieces.__getitem__) for i, pieces in enumerate(operands))
        acc = mfma.multiply(a, b, acc, beside, number)
    return acc


def staged_step(
    mfma: Mfma,
    lane: Lane,
    tiles: tuple[Tile, Tile],
    buffer: fx.Int32,
    first: tuple[fx.Int32, fx.Int32],
    beside: list[fx.Int32],
    config: GemmConfig,
    acc: list[fx.Vector],
) -> list[fx.Vector]:
    """Multiplies the tiles that lie in `buffer` of LDS, from the wave's `first` rows on."""

    def read(operand: int, piece: int) -> list[Fragment]:
        tile = tiles[operand]
        row = first[operand] // tile.operand.halves + lane.row
        return read_tile(tile, buffer, row, lane.group * FRAGMENT + piece * MFMA_K, blocks(config)[operand])

    for number in range(config.tile_k // mfma.slice_k):
        a, b = (mfma.slice_of(i, number, partial(read, i)) for i in range(2))
        acc = mfma.multiply(a, b, acc, beside, number)
    return acc


def _blocks(groups: list[list[Fragment]], halves: int) -> list[Fragment]:
    """The fragments of an operand's blocks in their order, which takes the halves in turns."""
    fragments = [fragment for group in groups for fragment in group]
    of_half = len(fragments) // halves
    return [fragments[half * of_half + i] for i in range(of_half) for half in range(halves)]


def allocate(config: GemmConfig) -> fx.Pointer | None:
    """The LDS that `product` needs, if any: of operands, or of sums over the waves that share K."""
    if not config.lds_bytes:
        return None
    element, size = (fx.Int16, 2) if config.staged else (fx.Float32, 4)
    return fx.SharedAllocator().allocate(fx.Array[element, config.lds_bytes // size, 16]).peek().ptr


def product(
    mfma: Mfma,
    config: GemmConfig,
    place: Place,
    a: Operand,
    b: Operand,
    k: fx.Int32,
    lds: fx.Pointer | None,
    later: tuple[Any, ...] = (),
) -> list[Chunk]:
    """The sums of the workgroup's tile of which a lane is to store the results, each with its gate if `b` has a second.

    `later` are numbers that are used afterwards; while the first loads are under way they come from memory. Before LDS
    is used again all waves must meet.
    """
    acc = sums(mfma, config, place, a, b, k, lds, later)
    blocks_m, blocks_n = blocks(config)
    width_m = 1 if config.staged else direct_width(a, blocks_m)
    width_n = 1 if config.staged else direct_width(b, blocks_n)
    lane = _counted_again(place.wave) if config.ring else place.lane
    first_n = place.first_n // b.halves
    chunks, *gates = (
        result_chunks(half, lane, place.first_m, first_n, blocks_m, width_m, width_n)
        for half in _halves(acc, blocks_m, b.halves)
    )
    if gates:
        chunks = [replace(chunk, gates=gate.values) for chunk, gate in zip(chunks, *gates, strict=True)]
    if config.waves_k == 1:
        return chunks
    assert lds is not None, "waves that share K add up through LDS"
    return exchange(lds, chunks, config, place.wave_k, place.lane.thread)


def _halves(acc: list[fx.Vector], blocks_m: int, halves: int) -> list[list[fx.Vector]]:
    """acc[n][m] of the blocks along N of each half of B."""
    rows = [acc[i : i + blocks_m] for i in range(0, len(acc), blocks_m)]
    return [[block for row in rows[half::halves] for block in row] for half in range(halves)]


def _counted_again(wave: fx.Int32) -> Lane:
    """This lane's place, from what no register has kept during the main loop: that needs them all."""
    count = "v_mbcnt_lo_u32_b32 $0, -1, 0\nv_mbcnt_hi_u32_b32 $0, -1, $0"
    lane = fx.Int32(llvm.inline_asm(T.i32, [], count, "=&v", has_side_effects=True))
    return Lane(wave * WAVE_SIZE + lane, lane % MFMA_MN, lane // MFMA_MN)


def blocks(config: GemmConfig) -> tuple[int, int]:
    """MFMA blocks of a wave along M and N."""
    return config.tile_m // config.waves_m // MFMA_MN, config.tile_n // config.waves_n // MFMA_MN


@flyc.jit
def sums(mfma: Any, config: Any, place: Any, a: Any, b: Any, k: Any, lds: Any, later: Any) -> Any:
    """The sums that a lane's wave has of the tile, acc[n][m] of its blocks: over its share of K."""
    lane, first_m, first_n = place.lane, place.first_m, place.first_n
    blocks_m, blocks_n = blocks(config)
    acc = [fx.Vector.filled(4, 0.0, fx.Float32) for _ in range_constexpr(blocks_m * blocks_n)]
    steps = fx.Int32(fx.Uint32(k) // config.step_k)
    left = k - steps * config.step_k
    if fx.const_expr(config.schedule == "staggered"):
        pipeline = Pipeline.of(mfma, config, a, b, lane, place.wave, (first_m, first_n), lds, k)
        parts = Parts.of(pipeline, config)
        beside = parts.start()
        need(later)
        late = place.wave >= config.waves // 2
        if late:
            rocdl.s_barrier()
        for step in range(fx.Int32(fx.Uint32(k + (config.tile_k - 1)) // config.tile_k)):
            beside, acc = staggered_step(parts, step, beside, acc)
        if place.wave < config.waves // 2:
            rocdl.s_barrier()
        pipeline.finish()
    elif fx.const_expr(config.schedule == "ahead"):
        pipeline = Pipeline.of(mfma, config, a, b, lane, place.wave, (first_m, first_n), lds, k)
        parts = Parts.of(pipeline, config)
        beside = parts.start()
        need(later)
        fragments = parts.first()
        for step in range(fx.Int32(fx.Uint32(k + (config.tile_k - 1)) // config.tile_k)):
            fragments, beside, acc = ahead_step(parts, step, fragments, beside, acc)
        pipeline.finish()
    elif fx.const_expr(config.ring):
        pipeline = Pipeline.of(mfma, config, a, b, lane, place.wave, (first_m, first_n), lds, k)
        beside = pipeline.beside(fx.Int32(0))
        pipeline.start()
        need(later)
        fragments = pipeline.fragments(fx.Int32(0), 0)
        for step in range(fx.Int32(fx.Uint32(k + (config.tile_k - 1)) // config.tile_k)):
            fragments, beside, acc = step_through(pipeline, step, fragments, beside, acc)
        pipeline.finish()
    elif fx.const_expr(config.staged):
        tile_a = Tile(a, lds, config.tile_m, config.tile_k + LDS_PAD)
        tile_b = Tile(b, lds + 2 * tile_a.rows * tile_a.row_stride, config.tile_n, config.tile_k + LDS_PAD)
        groups_a = staging_groups(a, lane, config.tile_m, config.tile_k, config.threads)
        groups_b = staging_groups(b, lane, config.tile_n, config.tile_k, config.threads)
        tiles, groups, first = (tile_a, tile_b), (groups_a, groups_b), (first_m, first_n)
        if steps > 0:
            staged = load_tiles(mfma, tiles, groups, fx.Int64(0), None)
            for step in range(steps):
                with_tiles = write_tiles(tiles, step % 2, groups, staged)
                fx.gpu.barrier()
                # The last turn loads its own step again: harmless, and shorter than a branch.
                position = fx.Int64(fx.min(step + 1, steps - 1)) * config.step_k
                staged = load_tiles(mfma, tiles, groups, position, None)
                rocdl.sched_barrier(0)  # the loads run while this step is multiplied
                acc = staged_step(mfma, lane, tiles, step % 2, first, with_tiles, config, acc)
        if left > 0:
            position = fx.Int64(steps) * config.step_k
            with_tiles = write_tiles(
                tiles, steps % 2, groups, load_tiles(mfma, tiles, groups, position, left)
            )
            fx.gpu.barrier()
            acc = staged_step(mfma, lane, tiles, steps % 2, first, with_tiles, config, acc)
    else:
        first_k = place.wave_k * config.tile_k
        slices_a = direct_groups(a, lane, first_m, blocks_m, config.tile_k)
        slices_b = direct_groups(b, lane, first_n, blocks_n, config.tile_k)
        position = fx.Int64(first_k)
        if steps > 0:
            loaded = load_direct(mfma, a, b, slices_a, slices_b, position, None)
            rocdl.sched_barrier(0)
            need(later)
            for _ in range(steps - 1):
                position = position + config.step_k
                following = load_direct(mfma, a, b, slices_a, slices_b, position, None)
                rocdl.sched_barrier(0)  # they are on their way while this step is multiplied
                acc = multiply_direct(mfma, loaded, config, acc)
                loaded = following
            acc = multiply_direct(mfma, loaded, config, acc)
            position = position + config.step_k
        if left > 0:
            loaded = load_direct(mfma, a, b, slices_a, slices_b, position, left - first_k)
            rocdl.sched_barrier(0)  # all loads in flight before the first wait
            acc = multiply_direct(mfma, loaded, config, acc)
    return acc
