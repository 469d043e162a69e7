"""The kernel of an MX product in FlyDSL: one workgroup computes one tile of `out`, or a part of it along K.

Accumulation: the sums begin at +0, and take 128 elements of K at a time, in rising order, by one MFMA, whose own order
of additions is the hardware's; where waves share K (`waves_k`), and where workgroups do (`splits`), each adds up what
it takes in this way (waves every `waves_k`-th step of `tile_k`), and these sums are added in float32 in the order of
waves, then in that of parts. Row scales multiply the finished sum, A's first; then comes the epilogue, and one
rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from flycc.kernels.common.arguments import numbers, placeholders
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.gemm.config import MFMA_K, MFMA_MN
from flycc.kernels.gemm.operand import Operand
from flycc.kernels.gemm.order import place_of, share_of, tile_of
from flycc.kernels.gemm.product import Place, allocate, blocks, product
from flycc.kernels.gemm.program import addend
from flycc.kernels.gemm.result import Chunk, Output
from flycc.kernels.gemm.split import Parts, combine
from flycc.kernels.mx.config import GROUP_ROWS, PACKED_K
from flycc.kernels.mx.kernarg import KERNARG
from flycc.kernels.mx.mfma import BlockScales, PackedScales, ScaledMfma, Scales
from flycc.kernels.mx.rows import RowScales, scale_rows
from flycc.kernels.mx.variant import MxVariant, Scaling

if TYPE_CHECKING:
    Sizes = Any
    Others = Any
else:
    #: The numbers among the arguments: `Sizes` follow the pointers to operands and scales, `Others` all other pointers.
    Sizes, Others = numbers(KERNARG)


@dataclass(frozen=True)
class _Side:
    """One operand as a workgroup sees it: from row `first` of its own on, of which `rows_left` are left. A wave has
    `blocks` MFMA blocks of the tile's rows from number `part` on."""

    scaling: Scaling
    pointer: fx.Pointer
    leading: fx.Int32
    scale: fx.Pointer
    first: fx.Int32
    rows_left: fx.Int32
    part: fx.Int32
    blocks: int

    def operand(self, first_k: fx.Int32, most_pieces: int, vector: int) -> Operand:
        """From element `first_k` along K on."""
        share = most_pieces // self.scaling.pieces
        along_k = fx.Int64(fx.Uint32(first_k) // share) if share > 1 else fx.Int64(first_k)
        start = fx.Int64(self.first) * fx.Int64(self.leading) + along_k
        return Operand(self.pointer + start, self.leading, self.rows_left, True, vector, share=share)

    def block_scales(
        self, first_k: fx.Int32, k: fx.Int32, slices: int, variant: MxVariant, place: Place
    ) -> Scales | None:
        """Its block scales, if it has any, from element `first_k` along K on; K has `k` in all."""
        if self.scaling.kind != "block":
            return None
        config, block = variant.gemm.config, variant.block
        if variant.packed:
            of_step = GROUP_ROWS * PACKED_K // block
            stride = fx.Int32(fx.Uint32(k + (PACKED_K - 1)) // PACKED_K) * of_step
            row = self.first + self.part
            group = fx.Uint32(row) // GROUP_ROWS
            start = fx.Int64(group) * fx.Int64(stride) + fx.Int64(fx.Uint32(first_k) // PACKED_K) * of_step
            return PackedScales(
                pointer=self.scale + start,
                stride=stride,
                groups_left=fx.Int32(
                    fx.Uint32(self.first + self.rows_left + (GROUP_ROWS - 1)) // GROUP_ROWS - group
                ),
                part=fx.Int32(fx.Uint32(row) % GROUP_ROWS // MFMA_MN),
                blocks=self.blocks,
                slices=slices * PACKED_K // config.tile_k,
                steps=config.tile_k // PACKED_K,
                lane=place.lane,
            )
        # A row's block scales, of which the last may be of a short block.
        of_row = fx.Int32(fx.Uint32(k + (block - 1)) // block)
        start = fx.Int64(self.first) * fx.Int64(of_row) + fx.Int64(fx.Uint32(first_k) // block)
        return BlockScales(
            pointer=self.scale + start,
            stride=of_row,
            rows_left=self.rows_left,
            first=self.part,
            blocks=self.blocks,
            slices=slices,
            vector=self.scaling.vector,
            block_k=block,
            lane=place.lane,
        )

    def row_scales(self, stride: fx.Int32) -> RowScales | None:
        """Its row scales, if it has any."""
        if self.scaling.kind not in ("row", "row_f32"):
            return None
        start = fx.Int64(self.first) * fx.Int64(stride)
        return RowScales(self.scale + start, stride, self.rows_left, self.scaling.kind == "row_f32")


def build(variant: MxVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    config, epilogue = variant.gemm.config, variant.gemm.epilogue
    element = ELEMENTS[variant.dtype]
    out_element = ELEMENTS[epilogue.out_dtype or variant.dtype]
    pieces = variant.a.pieces, variant.b.pieces
    slices = config.tile_k // (MFMA_K * max(pieces))

    @flyc.kernel(name=variant.symbol)
    def mx_gemm(
        a: fx.Pointer,
        b: fx.Pointer,
        scale_a: fx.Pointer,
        scale_b: fx.Pointer,
        sizes: Sizes,
        bias: fx.Pointer,
        out: fx.Pointer,
        residual: fx.Pointer,
        pre: fx.Pointer,
        partial: fx.Pointer,
        arrived: fx.Pointer,
        others: Others,
    ) -> None:
        m, n, k = sizes.m, sizes.n, sizes.k
        place = Place.of(fx.thread_idx.x, config)
        tile_m, tile_n = fx.block_idx.x, fx.block_idx.y
        first_k = fx.Int32(0)
        whole_k = k
        if fx.const_expr(config.split):
            share = share_of(fx.block_idx.x, m, n, config, sizes.parts, sizes.whole)
            tile_m, tile_n = place_of(share.tile, m, n, config)
            first_k = share.part * sizes.part_k
            k = fx.max((share.parts > 1).select(fx.min(sizes.part_k, k - first_k), k), fx.Int32(0))
        elif fx.const_expr(config.ring):
            tile_m, tile_n = tile_of(fx.block_idx.x, m, n, config)
        m0, n0 = tile_m * config.tile_m, tile_n * config.tile_n
        of_a, of_b = (
            _Side(scaling, pointer, leading, scale, first, size - first, part, count)
            for scaling, pointer, leading, scale, first, size, part, count in (
                (variant.a, a, sizes.ld_a, scale_a, m0, m, place.first_m, blocks(config)[0]),
                (variant.b, b, sizes.ld_b, scale_b, n0, n, place.first_n, blocks(config)[1]),
            )
        )
        mfma = ScaledMfma(
            (variant.a.element, variant.b.element),
            pieces,
            (
                of_a.block_scales(first_k, whole_k, slices, variant, place),
                of_b.block_scales(first_k, whole_k, slices, variant, place),
            ),
        )
        # One in each line of memory of the arguments that no wave has in registers.
        later = others.bias_n, others.ld_out
        chunks = product(
            mfma,
            config,
            place,
            of_a.operand(first_k, max(pieces), variant.gemm.vector_a),
            of_b.operand(first_k, max(pieces), variant.gemm.vector_b),
            k,
            allocate(config),
            later,
        )
        first_out = fx.Int64(m0) * fx.Int64(others.ld_out) + fx.Int64(n0)
        first = fx.Int64(m0), fx.Int64(n0)
        of_bias = others.bias_m, others.bias_n
        of_residual = others.residual_m, others.residual_n
        output = Output(
            pointer=out + first_out,
            leading=others.ld_out,
            rows_left=m - m0,
            columns_left=n - n0,
            vector=variant.gemm.vector_out,
            element=out_element,
            bias=addend(bias, first, of_bias, variant.gemm.vector_bias, element)
            if variant.gemm.bias
            else None,
            epilogue=epilogue,
            scale=others.scale,
            residual=addend(residual, first, of_residual, variant.gemm.vector_residual, element)
            if epilogue.residual
            else None,
            pre=pre + first_out if epilogue.preactivation else None,
        )
        rows_a, rows_b = of_a.row_scales(others.row_a), of_b.row_scales(others.row_b)

        def store(sums: list[Chunk]) -> None:
            output.store(scale_rows(sums, rows_a, rows_b))

        if fx.const_expr(config.split):
            parts = Parts.of(share, fx.Int32(0), sizes, partial, arrived, fx.thread_idx.x, config)
            combine(parts, chunks, store)
        else:
            store(chunks)

    @flyc.jit
    def launch(
        a: fx.Pointer,
        b: fx.Pointer,
        scale_a: fx.Pointer,
        scale_b: fx.Pointer,
        sizes: Sizes,
        bias: fx.Pointer,
        out: fx.Pointer,
        residual: fx.Pointer,
        pre: fx.Pointer,
        partial: fx.Pointer,
        arrived: fx.Pointer,
        others: Others,
        grid_m: fx.Int32,
        grid_n: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        mx_gemm(a, b, scale_a, scale_b, sizes, bias, out, residual, pre, partial, arrived, others).launch(
            grid=(grid_m, grid_n, 1), block=(config.threads, 1, 1), stream=stream
        )

    elements = {"a": fx.Int16, "b": fx.Int16, "bias": element, "residual": element}
    elements |= {
        name: fx.Float32 if scaling.kind == "row_f32" else fx.Int8
        for name, scaling in (("scale_a", variant.a), ("scale_b", variant.b))
    }
    elements |= {"out": out_element, "pre": out_element, "partial": fx.Float32, "arrived": fx.Int32}
    return launch, (*placeholders(KERNARG, elements), fx.Int32(1), fx.Int32(1))
