"""The GEMM kernel in FlyDSL: one workgroup computes one tile of `out` (see `kernels.gemm.product`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from flycc.kernels.common.arguments import numbers, placeholders
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.gemm.kernarg import KERNARG
from flycc.kernels.gemm.mfma import DenseMfma
from flycc.kernels.gemm.operand import Operand
from flycc.kernels.gemm.order import place_of, share_of, tile_of
from flycc.kernels.gemm.product import Place, allocate, product
from flycc.kernels.gemm.result import Addend, Output
from flycc.kernels.gemm.split import Parts, combine
from flycc.kernels.gemm.variant import GemmVariant

if TYPE_CHECKING:
    Sizes = Any
    Others = Any
else:
    #: The numbers among the arguments: `Sizes` follow the pointers to the operands, `Others` all other pointers.
    Sizes, Others = numbers(KERNARG)


def build(variant: GemmVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    config = variant.config
    epilogue = variant.epilogue
    element = ELEMENTS[variant.dtype]
    out_element = ELEMENTS[epilogue.out_dtype or variant.dtype]
    #: Columns of products that make one of results.
    halves = 2 if epilogue.gated else 1

    @flyc.kernel(name=variant.symbol)
    def gemm(
        a: fx.Pointer,
        b: fx.Pointer,
        b2: fx.Pointer,
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
        if fx.const_expr(config.split):
            share = share_of(fx.block_idx.x, m, n * halves, config, sizes.parts, sizes.whole)
            tile_m, tile_n = place_of(share.tile, m, n * halves, config)
            first_k = share.part * sizes.part_k
            k = fx.max((share.parts > 1).select(fx.min(sizes.part_k, k - first_k), k), fx.Int32(0))
        elif fx.const_expr(config.ring):
            tile_m, tile_n = tile_of(fx.block_idx.x, m, n * halves, config)
        m0 = tile_m * config.tile_m
        n0 = tile_n * (config.tile_n // halves)
        number = fx.Int32(fx.block_idx.z) if variant.batched else fx.Int32(0)
        batch = fx.Int64(number)
        row_a = fx.Int64(m0) if variant.trans_a else fx.Int64(m0) * fx.Int64(sizes.ld_a)
        row_b = fx.Int64(n0) * fx.Int64(sizes.ld_b) if variant.trans_b else fx.Int64(n0)
        if fx.const_expr(config.split):
            row_a = row_a + fx.Int64(first_k) * (fx.Int64(sizes.ld_a) if variant.trans_a else fx.Int64(1))
            row_b = row_b + fx.Int64(first_k) * (fx.Int64(1) if variant.trans_b else fx.Int64(sizes.ld_b))
        operand_a = Operand(
            a + (batch * others.batch_a + row_a), sizes.ld_a, m - m0, not variant.trans_a, variant.vector_a
        )
        place_b = batch * others.batch_b + row_b
        second = b2 + place_b if epilogue.gated else None
        operand_b = Operand(b + place_b, sizes.ld_b, n - n0, variant.trans_b, variant.vector_b, second)

        # One in each line of memory of the arguments that no wave has in registers.
        later = others.batch_out, others.ld_out
        chunks = product(DenseMfma(element), config, place, operand_a, operand_b, k, allocate(config), later)
        first_out = batch * others.batch_out + fx.Int64(m0) * fx.Int64(others.ld_out) + fx.Int64(n0)
        first = batch, fx.Int64(m0), fx.Int64(n0)
        of_bias = others.bias_batch, others.bias_m, others.bias_n
        of_residual = others.residual_batch, others.residual_m, others.residual_n
        output = Output(
            pointer=out + first_out,
            leading=others.ld_out,
            rows_left=m - m0,
            columns_left=n - n0,
            vector=variant.vector_out,
            element=out_element,
            bias=addend(bias, first, of_bias, variant.vector_bias, element) if variant.bias else None,
            epilogue=epilogue,
            scale=others.scale,
            residual=addend(residual, first, of_residual, variant.vector_residual, element)
            if epilogue.residual
            else None,
            pre=pre + first_out if epilogue.preactivation else None,
        )
        if fx.const_expr(config.split):
            parts = Parts.of(share, number, sizes, partial, arrived, fx.thread_idx.x, config)
            combine(parts, chunks, output.store)
        else:
            output.store(chunks)

    @flyc.jit
    def launch(
        a: fx.Pointer,
        b: fx.Pointer,
        b2: fx.Pointer,
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
        batches: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        gemm(a, b, b2, sizes, bias, out, residual, pre, partial, arrived, others).launch(
            grid=(grid_m, grid_n, batches), block=(config.threads, 1, 1), stream=stream
        )

    operands = dict.fromkeys(("a", "b", "b2", "bias", "residual"), element)
    results = dict.fromkeys(("out", "pre"), out_element)
    workspace = {"partial": fx.Float32, "arrived": fx.Int32}
    grid = (fx.Int32(1), fx.Int32(1), fx.Int32(1))
    return launch, (*placeholders(KERNARG, operands | results | workspace), *grid)


def addend(
    pointer: fx.Pointer, first: tuple[Any, ...], strides: tuple[Any, ...], vector: int, element: Any
) -> Addend:
    """What is added to the tile that begins at matrix, row and column `first`; `strides` are those between each."""
    place = sum((index * stride for index, stride in zip(first, strides, strict=True)), fx.Int64(0))
    return Addend(pointer + place, fx.Int32(strides[-2]), fx.Int32(strides[-1]), vector, element)
