"""The GEMM kernel in FlyDSL.

One workgroup computes a `tile_m` x `tile_n` tile of `out`. The MFMA is fed transposed (its rows run along N,
its columns along M), so that a lane's four results are neighbours along N, where `out` is contiguous.

What lies outside an operand reads as zero (see `kernels.common.buffers`): rows are checked once, K only in
the last, partial step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import range_constexpr, rocdl
from flydsl.expr.typing import T

from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.gemm.config import FRAGMENT, LDS_PAD, MFMA_K, MFMA_MN, GemmConfig
from flycc.kernels.gemm.kernarg import KERNARG
from flycc.kernels.gemm.operand import (
    Fragment,
    Group,
    Lane,
    Operand,
    direct_groups,
    direct_width,
    load,
    multiply,
    staging_groups,
)
from flycc.kernels.gemm.order import tile_of
from flycc.kernels.gemm.pipeline import Pipeline, step_through
from flycc.kernels.gemm.result import Output, exchange, result_chunks
from flycc.kernels.gemm.variant import GemmVariant

_TYPES = {"i64": fx.Int64, "i32": fx.Int32}

if TYPE_CHECKING:
    Shape = Any
else:
    #: The arguments after the four pointers.
    Shape = fx.Struct[tuple(slice(name, _TYPES[kind]) for name, kind in KERNARG.fields if kind != "ptr")]


@dataclass(frozen=True)
class Tile:
    """An operand's tile in LDS: [2 buffers][rows][row_stride] 16-bit elements."""

    pointer: fx.Pointer
    rows: int
    row_stride: int

    def place(self, buffer: fx.Int32, row: fx.Int32, k: fx.Int32) -> fx.Pointer:
        return self.pointer + ((buffer * self.rows + row) * self.row_stride + k)


def write_tile(
    tile: Tile, buffer: fx.Int32, groups: Sequence[Group], fragments: list[list[Fragment]]
) -> None:
    for group, loaded in zip(groups, fragments, strict=True):
        for i, fragment in enumerate(loaded):
            fx.ptr_store(fragment.ir_value(), tile.place(buffer, group.row + i, group.k))


def read_tile(tile: Tile, buffer: fx.Int32, row: fx.Int32, k: fx.Int32) -> Fragment:
    kind = fx.Vector.make_type(FRAGMENT, fx.Int16)
    return fx.Vector(fx.ptr_load(tile.place(buffer, row, k), result_type=kind))


def direct_step(
    element: Any,
    a: Operand,
    b: Operand,
    slices_a: list[list[Group]],
    slices_b: list[list[Group]],
    position: fx.Int64,
    k_left: fx.Int32 | None,
    acc: list[fx.Vector],
) -> list[fx.Vector]:
    """Multiplies `tile_k` elements along K from `position` on, straight from memory."""
    loaded_a = [load(a, groups, position, k_left) for groups in slices_a]
    loaded_b = [load(b, groups, position, k_left) for groups in slices_b]
    rocdl.sched_barrier(0)  # all loads in flight before the first wait
    for fragments_a, fragments_b in zip(loaded_a, loaded_b, strict=True):
        acc = multiply(element, _flat(fragments_a), _flat(fragments_b), acc)
    return acc


def staged_step(
    element: Any,
    lane: Lane,
    a: Tile,
    b: Tile,
    buffer: fx.Int32,
    first_m: fx.Int32,
    first_n: fx.Int32,
    config: GemmConfig,
    acc: list[fx.Vector],
) -> list[fx.Vector]:
    """Multiplies the tiles that lie in `buffer` of LDS."""
    blocks_m = config.tile_m // config.waves_m // MFMA_MN
    blocks_n = config.tile_n // config.waves_n // MFMA_MN
    for step in range(0, config.tile_k, MFMA_K):
        k = lane.group * FRAGMENT + step
        fragments_a = [read_tile(a, buffer, first_m + lane.row + i * MFMA_MN, k) for i in range(blocks_m)]
        fragments_b = [read_tile(b, buffer, first_n + lane.row + i * MFMA_MN, k) for i in range(blocks_n)]
        acc = multiply(element, fragments_a, fragments_b, acc)
    return acc


def _flat(groups: list[list[Fragment]]) -> list[Fragment]:
    return [fragment for group in groups for fragment in group]


def build(variant: GemmVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    config = variant.config
    element = fx.BFloat16 if variant.dtype == "bf16" else fx.Float16
    wave_m_rows = config.tile_m // config.waves_m
    wave_n_rows = config.tile_n // config.waves_n
    blocks_m, blocks_n = wave_m_rows // MFMA_MN, wave_n_rows // MFMA_MN

    @flyc.kernel(name=variant.symbol)
    def gemm(a: fx.Pointer, b: fx.Pointer, bias: fx.Pointer, out: fx.Pointer, shape: Shape) -> None:
        m, n, k = shape.m, shape.n, shape.k
        thread = fx.thread_idx.x
        lane = Lane(thread, thread % MFMA_MN, thread % WAVE_SIZE // MFMA_MN)
        wave = fx.Int32(rocdl.readfirstlane(T.i32, thread // WAVE_SIZE))
        wave_k = wave % config.waves_k
        first_n = wave // config.waves_k % config.waves_n * wave_n_rows
        first_m = wave // (config.waves_k * config.waves_n) * wave_m_rows

        tile_m, tile_n = fx.block_idx.x, fx.block_idx.y
        if fx.const_expr(config.ring):
            tile_m, tile_n = tile_of(fx.block_idx.x, m, n, config)
        m0 = tile_m * config.tile_m
        n0 = tile_n * config.tile_n
        batch = fx.Int64(fx.block_idx.z)
        row_a = fx.Int64(m0) if variant.trans_a else fx.Int64(m0) * fx.Int64(shape.ld_a)
        row_b = fx.Int64(n0) * fx.Int64(shape.ld_b) if variant.trans_b else fx.Int64(n0)
        operand_a = Operand(
            a + (batch * shape.batch_a + row_a), shape.ld_a, m - m0, not variant.trans_a, variant.vector_a
        )
        operand_b = Operand(
            b + (batch * shape.batch_b + row_b), shape.ld_b, n - n0, variant.trans_b, variant.vector_b
        )

        steps = fx.Int32(fx.Uint32(k) // config.step_k)
        left = k - steps * config.step_k
        acc = [fx.Vector.filled(4, 0.0, fx.Float32) for _ in range_constexpr(blocks_m * blocks_n)]
        if fx.const_expr(config.ring):
            lds = fx.SharedAllocator().allocate(fx.Array[fx.Int16, config.lds_bytes // 2, 16]).peek().ptr
            pipeline = Pipeline.of(config, operand_a, operand_b, lane, wave, (first_m, first_n), lds, k)
            pipeline.start()
            fragments = pipeline.fragments(fx.Int32(0), 0)
            for step in range(fx.Int32(fx.Uint32(k + (config.tile_k - 1)) // config.tile_k)):
                fragments, acc = step_through(element, pipeline, step, fragments, acc)
            pipeline.finish()
        elif fx.const_expr(config.staged):
            lds = fx.SharedAllocator().allocate(fx.Array[fx.Int16, config.lds_bytes // 2, 16]).peek().ptr
            tile_a = Tile(lds, config.tile_m, config.tile_k + LDS_PAD)
            tile_b = Tile(lds + 2 * tile_a.rows * tile_a.row_stride, config.tile_n, config.tile_k + LDS_PAD)
            groups_a = staging_groups(operand_a, lane, config.tile_m, config.tile_k, config.threads)
            groups_b = staging_groups(operand_b, lane, config.tile_n, config.tile_k, config.threads)
            if steps > 0:
                loaded_a = load(operand_a, groups_a, fx.Int64(0))
                loaded_b = load(operand_b, groups_b, fx.Int64(0))
                for step in range(steps):
                    write_tile(tile_a, step % 2, groups_a, loaded_a)
                    write_tile(tile_b, step % 2, groups_b, loaded_b)
                    fx.gpu.barrier()
                    # The last turn loads its own step again: harmless, and shorter than a branch.
                    following = fx.Int64(fx.min(step + 1, steps - 1)) * config.step_k
                    loaded_a = load(operand_a, groups_a, following)
                    loaded_b = load(operand_b, groups_b, following)
                    rocdl.sched_barrier(0)  # the loads run while this step is multiplied
                    acc = staged_step(element, lane, tile_a, tile_b, step % 2, first_m, first_n, config, acc)
            if left > 0:
                position = fx.Int64(steps) * config.step_k
                write_tile(tile_a, steps % 2, groups_a, load(operand_a, groups_a, position, left))
                write_tile(tile_b, steps % 2, groups_b, load(operand_b, groups_b, position, left))
                fx.gpu.barrier()
                acc = staged_step(element, lane, tile_a, tile_b, steps % 2, first_m, first_n, config, acc)
        else:
            first_k = wave_k * config.tile_k
            slices_a = direct_groups(operand_a, lane, first_m, blocks_m, config.tile_k)
            slices_b = direct_groups(operand_b, lane, first_n, blocks_n, config.tile_k)
            position = fx.Int64(first_k)
            for _ in range(steps):
                acc = direct_step(element, operand_a, operand_b, slices_a, slices_b, position, None, acc)
                position = position + config.step_k
            if left > 0:
                k_left = left - first_k
                acc = direct_step(element, operand_a, operand_b, slices_a, slices_b, position, k_left, acc)

        direct = not config.staged
        width_m = direct_width(operand_a, blocks_m) if direct else 1
        width_n = direct_width(operand_b, blocks_n) if direct else 1
        chunks = result_chunks(acc, lane, first_m, first_n, blocks_m, width_m, width_n)
        if fx.const_expr(config.waves_k > 1):
            sums = fx.SharedAllocator().allocate(fx.Array[fx.Float32, config.lds_bytes // 4, 16]).peek().ptr
            chunks = exchange(sums, chunks, config, wave_k, thread)
        place = batch * shape.batch_out + fx.Int64(m0) * fx.Int64(shape.ld_out) + fx.Int64(n0)
        bias_place = batch * shape.bias_batch + fx.Int64(m0) * shape.bias_m + fx.Int64(n0) * shape.bias_n
        Output(
            pointer=out + place,
            leading=shape.ld_out,
            rows_left=m - m0,
            columns_left=n - n0,
            vector=variant.vector_out,
            element=element,
            bias=bias + bias_place if variant.bias else None,
            bias_row=fx.Int32(shape.bias_m),
            bias_column=fx.Int32(shape.bias_n),
        ).store(chunks)

    @flyc.jit
    def launch(
        a: fx.Pointer,
        b: fx.Pointer,
        bias: fx.Pointer,
        out: fx.Pointer,
        shape: Shape,
        grid_m: fx.Int32,
        grid_n: fx.Int32,
        batches: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        gemm(a, b, bias, out, shape).launch(
            grid=(grid_m, grid_n, batches), block=(config.threads, 1, 1), stream=stream
        )

    pointers = tuple(flyc.from_c_void_p(element, 0) for _ in range(4))
    grid = (fx.Int32(1), fx.Int32(1), fx.Int32(1))
    return launch, (*pointers, Shape(*[1] * (len(KERNARG.fields) - 4)), *grid)
