"""The grouped GEMM kernel in FlyDSL: workgroups that stay, and take tile after tile of all groups' stream.

Each tile is computed as by the dense kernel (see `kernels.gemm.product`). Nothing of the offsets is known before: the
host does not read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from flycc.kernels.common.arguments import numbers, placeholders
from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.common.wave import anew
from flycc.kernels.gemm.config import GemmConfig
from flycc.kernels.gemm.mfma import DenseMfma
from flycc.kernels.gemm.operand import Operand
from flycc.kernels.gemm.order import Share
from flycc.kernels.gemm.product import Place, allocate, product
from flycc.kernels.gemm.result import Addend, Output
from flycc.kernels.gemm.split import Parts, combine
from flycc.kernels.grouped_gemm.kernarg import KERNARG
from flycc.kernels.grouped_gemm.stream import (
    GroupTile,
    Work,
    along_k,
    find,
    look_at,
    rounds_before,
    share_of,
    tile_of_round,
    total_tiles,
)
from flycc.kernels.grouped_gemm.variant import GroupedGemmVariant

if TYPE_CHECKING:
    Shape = Any
    Strides = Any
else:
    Shape, Strides = numbers(KERNARG)


def operands(
    a: fx.Pointer,
    b: fx.Pointer,
    shape: Any,
    strides: Any,
    tile: GroupTile,
    first_k: fx.Int32,
    variant: GroupedGemmVariant,
) -> tuple[Operand, Operand]:
    """A and B of a tile, from element `first_k` of K on."""
    m, n, _ = sizes(shape, tile, variant.ragged)
    group = variant.group
    row_a = fx.Int64(tile.m0) if group.trans_a else fx.Int64(tile.m0) * fx.Int64(shape.ld_a)
    row_b = fx.Int64(tile.n0) * fx.Int64(shape.ld_b) if group.trans_b else fx.Int64(tile.n0)
    place_a = row_a + fx.Int64(tile.number) * strides.group_a + fx.Int64(tile.start) * strides.ragged_a
    place_b = row_b + fx.Int64(tile.number) * strides.group_b + fx.Int64(tile.start) * strides.ragged_b
    if group.config.split:
        place_a = place_a + fx.Int64(first_k) * (fx.Int64(shape.ld_a) if group.trans_a else fx.Int64(1))
        place_b = place_b + fx.Int64(first_k) * (fx.Int64(1) if group.trans_b else fx.Int64(shape.ld_b))
    return (
        Operand(a + place_a, shape.ld_a, m - tile.m0, not group.trans_a, group.vector_a),
        Operand(b + place_b, shape.ld_b, n - tile.n0, group.trans_b, group.vector_b),
    )


def output(
    out: fx.Pointer,
    bias: fx.Pointer,
    shape: Any,
    strides: Any,
    tile: GroupTile,
    variant: GroupedGemmVariant,
    element: Any,
) -> Output:
    """Where a tile's results go."""
    m, n, _ = sizes(shape, tile, variant.ragged)
    row = fx.Int64(tile.m0) * fx.Int64(shape.ld_out) + fx.Int64(tile.n0)
    place = row + fx.Int64(tile.number) * strides.group_out + fx.Int64(tile.start) * strides.ragged_out
    bias_place = fx.Int64(tile.number) * strides.group_bias + fx.Int64(tile.n0) * fx.Int64(strides.bias_n)
    addend = Addend(bias + bias_place, fx.Int32(0), strides.bias_n, variant.group.vector_bias, element)
    return Output(
        pointer=out + place,
        leading=shape.ld_out,
        rows_left=m - tile.m0,
        columns_left=n - tile.n0,
        vector=variant.group.vector_out,
        element=element,
        bias=addend if variant.group.bias else None,
    )


def sizes(shape: Any, tile: GroupTile, ragged: str) -> tuple[fx.Int32, fx.Int32, fx.Int32]:
    """M, N and K of a tile's group."""
    m, n, k = (tile.size if name == ragged else getattr(shape, name) for name in ("m", "n", "k"))
    return m, n, k


def parts_of(share: Share, work: Work, partial: fx.Pointer, arrived: fx.Pointer, config: GemmConfig) -> Parts:
    """The parts of a shared tile: of all of the last round together no more than there are workgroups."""
    number = share.tile - work.whole
    sums = partial + fx.Int64(number * share.parts) * config.part_sums
    counters = arrived + number * config.waves
    return Parts(share, sums, counters, anew(fx.thread_idx.x), config)


@flyc.jit
def each_tile(offsets: Any, ragged: Any, shape: Any, config: Any, compute: Any) -> None:
    """Calls `compute(work, tile, share)` for each of the workgroup's tiles; LDS is free again after each.

    What is computed of a work-item's number would take registers from the main loop if it were kept from tile to tile,
    so each tile has the number anew.
    """
    looks = fx.Int32(fx.Uint32(shape.groups + (WAVE_SIZE - 1)) // WAVE_SIZE)
    total = fx.Int32(0)
    for look in range(looks):
        lane = anew(fx.thread_idx.x) % WAVE_SIZE
        first = fx.Int32(look) * WAVE_SIZE
        total = total + total_tiles(look_at(offsets, first, lane, ragged, shape, config))
    work = Work.of(fx.block_idx.x, total, ragged, shape, config)
    seen, taken = fx.Int32(0), fx.Int32(0)
    for look in range(looks):
        lane = anew(fx.thread_idx.x) % WAVE_SIZE
        groups = look_at(offsets, fx.Int32(look) * WAVE_SIZE, lane, ragged, shape, config)
        end = seen + total_tiles(groups)
        following = rounds_before(work.rounds, end)
        for number in range(taken, following):
            at = tile_of_round(work.rounds, fx.Int32(number))
            compute(work, find(groups, at - seen, ragged, shape, config), share_of(work, at))
            if fx.const_expr(config.lds_bytes):
                fx.gpu.barrier()  # before the next tile is written to LDS
        seen, taken = end, following


@flyc.jit
def finish(work: Any, share: Any, chunks: Any, store: Any, partial: Any, arrived: Any, config: Any) -> None:
    """Stores a tile's sums, all parts of them if workgroups share it."""
    if fx.const_expr(config.split):
        if share.parts > 1:
            combine(parts_of(share, work, partial, arrived, config), chunks, store)
        else:
            store(chunks)
    else:
        store(chunks)


def build(variant: GroupedGemmVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    config = variant.group.config
    element = fx.BFloat16 if variant.group.dtype == "bf16" else fx.Float16

    @flyc.kernel(name=variant.symbol)
    def grouped_gemm(
        a: fx.Pointer,
        b: fx.Pointer,
        offsets: fx.Pointer,
        shape: Shape,
        bias: fx.Pointer,
        out: fx.Pointer,
        partial: fx.Pointer,
        arrived: fx.Pointer,
        strides: Strides,
    ) -> None:
        lds = allocate(config)

        def compute(work: Work, tile: GroupTile, share: Share) -> None:
            place = Place.of(anew(fx.thread_idx.x), config)
            first_k, k = along_k(share, sizes(shape, tile, variant.ragged)[2], config)
            operand_a, operand_b = operands(a, b, shape, strides, tile, first_k, variant)
            chunks = product(DenseMfma(element), config, place, operand_a, operand_b, k, lds)
            store = output(out, bias, shape, strides, tile, variant, element).store
            finish(work, share, chunks, store, partial, arrived, config)

        each_tile(offsets, variant.ragged, shape, config, compute)

    @flyc.jit
    def launch(
        a: fx.Pointer,
        b: fx.Pointer,
        offsets: fx.Pointer,
        shape: Shape,
        bias: fx.Pointer,
        out: fx.Pointer,
        partial: fx.Pointer,
        arrived: fx.Pointer,
        strides: Strides,
        workgroups: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        grouped_gemm(a, b, offsets, shape, bias, out, partial, arrived, strides).launch(
            grid=(workgroups, 1, 1), block=(config.threads, 1, 1), stream=stream
        )

    elements = {**dict.fromkeys(("a", "b", "bias", "out"), element), "offsets": fx.Int32}
    elements |= {"partial": fx.Float32, "arrived": fx.Int32}
    return launch, (*placeholders(KERNARG, elements), fx.Int32(1))
