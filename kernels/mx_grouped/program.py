"""The kernel of an MX product by group in FlyDSL: the tiles of all groups as `kernels.grouped_gemm` takes them, each
computed as by `kernels.mx`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from flycc.kernels.common.arguments import numbers, placeholders
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.common.wave import anew
from flycc.kernels.gemm.config import MFMA_K
from flycc.kernels.gemm.operand import Operand
from flycc.kernels.gemm.order import Share
from flycc.kernels.gemm.product import Place, allocate, blocks, product
from flycc.kernels.gemm.result import Addend, Output
from flycc.kernels.grouped_gemm.program import each_tile, finish
from flycc.kernels.grouped_gemm.stream import GroupTile, Work, along_k
from flycc.kernels.mx.mfma import BlockScales, ScaledMfma
from flycc.kernels.mx.variant import Scaling
from flycc.kernels.mx_grouped.kernarg import KERNARG
from flycc.kernels.mx_grouped.variant import MxGroupedVariant

if TYPE_CHECKING:
    Shape = Any
    Strides = Any
else:
    Shape, Strides = numbers(KERNARG)


@dataclass(frozen=True)
class _Rows:
    """The rows of a tile's A or B: `rows_left` from the first on, at which the pointers are. A wave has `blocks` MFMA
    blocks of them, from row `part` on."""

    scaling: Scaling
    pointer: fx.Pointer
    leading: fx.Int32
    scale: fx.Pointer
    rows_left: fx.Int32
    part: fx.Int32
    blocks: int

    def operand(self, first_k: fx.Int32, most_pieces: int, vector: int) -> Operand:
        """From `first_k` along K on, of which `most_pieces // pieces` are one pair of its bytes."""
        share = most_pieces // self.scaling.pieces
        pointer = self.pointer + fx.Int64(fx.Uint32(first_k) // share)
        return Operand(pointer, self.leading, self.rows_left, True, vector, share=share)

    def block_scales(
        self, first_k: fx.Int32, of_row: fx.Int32, slices: int, block: int, place: Place
    ) -> BlockScales:
        """Its block scales, `of_row` bytes of each row, from `first_k` along K on."""
        return BlockScales(
            pointer=self.scale + fx.Int64(fx.Uint32(first_k) // block),
            stride=of_row,
            rows_left=self.rows_left,
            first=self.part,
            blocks=self.blocks,
            slices=slices,
            vector=self.scaling.vector,
            block_k=block,
            lane=place.lane,
        )


def build(variant: MxGroupedVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    group = variant.group
    gemm = group.gemm
    config = gemm.config
    element = ELEMENTS[group.dtype]
    pieces = group.a.pieces, group.b.pieces
    slices = config.tile_k // (MFMA_K * max(pieces))

    @flyc.kernel(name=variant.symbol)
    def mx_grouped_gemm(
        a: fx.Pointer,
        b: fx.Pointer,
        offsets: fx.Pointer,
        shape: Shape,
        scale_a: fx.Pointer,
        scale_b: fx.Pointer,
        bias: fx.Pointer,
        out: fx.Pointer,
        partial: fx.Pointer,
        arrived: fx.Pointer,
        strides: Strides,
    ) -> None:
        lds = allocate(config)
        # A row's block scales, of which the last may be of a short block.
        of_row = fx.Int32(fx.Uint32(shape.k + (group.block - 1)) // group.block)

        def compute(work: Work, tile: GroupTile, share: Share) -> None:
            place = Place.of(anew(fx.thread_idx.x), config)
            first_k, k = along_k(share, shape.k, config)
            number, row = fx.Int64(tile.number), fx.Int64(tile.start) + fx.Int64(tile.m0)
            rows_left, columns_left = tile.size - tile.m0, shape.n - tile.n0
            column = number * fx.Int64(shape.n) + fx.Int64(tile.n0)
            rows = _Rows(
                group.a,
                a + row * fx.Int64(shape.ld_a),
                shape.ld_a,
                scale_a + row * fx.Int64(of_row),
                rows_left,
                place.first_m,
                blocks(config)[0],
            )
            columns = _Rows(
                group.b,
                b + number * strides.group_b + fx.Int64(tile.n0) * fx.Int64(shape.ld_b),
                shape.ld_b,
                scale_b + column * fx.Int64(of_row),
                columns_left,
                place.first_n,
                blocks(config)[1],
            )
            scales_a, scales_b = (
                side.block_scales(first_k, of_row, slices, group.block, place) for side in (rows, columns)
            )
            mfma = ScaledMfma((group.a.element, group.b.element), pieces, (scales_a, scales_b))
            operand_a = rows.operand(first_k, max(pieces), gemm.vector_a)
            operand_b = columns.operand(first_k, max(pieces), gemm.vector_b)
            chunks = product(mfma, config, place, operand_a, operand_b, k, lds)
            first_bias = number * strides.group_bias + fx.Int64(tile.n0) * fx.Int64(strides.bias_n)
            addend = Addend(bias + first_bias, fx.Int32(0), strides.bias_n, gemm.vector_bias, element)
            output = Output(
                pointer=out + (row * fx.Int64(shape.ld_out) + fx.Int64(tile.n0)),
                leading=shape.ld_out,
                rows_left=rows_left,
                columns_left=columns_left,
                vector=gemm.vector_out,
                element=element,
                bias=addend if gemm.bias else None,
            )
            finish(work, share, chunks, output.store, partial, arrived, config)

        each_tile(offsets, "m", shape, config, compute)

    @flyc.jit
    def launch(
        a: fx.Pointer,
        b: fx.Pointer,
        offsets: fx.Pointer,
        shape: Shape,
        scale_a: fx.Pointer,
        scale_b: fx.Pointer,
        bias: fx.Pointer,
        out: fx.Pointer,
        partial: fx.Pointer,
        arrived: fx.Pointer,
        strides: Strides,
        workgroups: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        mx_grouped_gemm(a, b, offsets, shape, scale_a, scale_b, bias, out, partial, arrived, strides).launch(
            grid=(workgroups, 1, 1), block=(config.threads, 1, 1), stream=stream
        )

    elements = {"a": fx.Int16, "b": fx.Int16, "scale_a": fx.Int8, "scale_b": fx.Int8, "offsets": fx.Int32}
    elements |= {"bias": element, "out": element, "partial": fx.Float32, "arrived": fx.Int32}
    return launch, (*placeholders(KERNARG, elements), fx.Int32(1))
