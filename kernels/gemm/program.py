"""The GEMM kernel in FlyDSL: one workgroup computes one tile of `out` (see `kernels.gemm.product`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from flycc.kernels.common.arguments import numbers
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.gemm.kernarg import KERNARG
from flycc.kernels.gemm.operand import Operand
from flycc.kernels.gemm.order import place_of, share_of, tile_of
from flycc.kernels.gemm.product import Place, allocate, product
from flycc.kernels.gemm.result import Addend, Output
from flycc.kernels.gemm.split import Parts, combine
from flycc.kernels.gemm.variant import GemmVariant

if TYPE_CHECKING:
    Shape = Any
else:
    #: The arguments after the pointers.
    Shape = numbers(KERNARG)

_POINTERS = sum(kind == "ptr" for _, kind in KERNARG.fields)


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
        bias: fx.Pointer,
        out: fx.Pointer,
        b2: fx.Pointer,
        residual: fx.Pointer,
        pre: fx.Pointer,
        partial: fx.Pointer,
        arrived: fx.Pointer,
        shape: Shape,
    ) -> None:
        m, n, k = shape.m, shape.n, shape.k
        place = Place.of(fx.thread_idx.x, config)
        tile_m, tile_n = fx.block_idx.x, fx.block_idx.y
        first_k = fx.Int32(0)
        if fx.const_expr(config.split):
            share = share_of(fx.block_idx.x, m, n * halves, config, shape.parts, shape.whole)
            tile_m, tile_n = place_of(share.tile, m, n * halves, config)
            first_k = share.part * shape.part_k
            k = fx.max((share.parts > 1).select(fx.min(shape.part_k, k - first_k), k), fx.Int32(0))
        elif fx.const_expr(config.ring):
            tile_m, tile_n = tile_of(fx.block_idx.x, m, n * halves, config)
        m0 = tile_m * config.tile_m
        n0 = tile_n * (config.tile_n // halves)
        batch = fx.Int64(fx.block_idx.z)
        row_a = fx.Int64(m0) if variant.trans_a else fx.Int64(m0) * fx.Int64(shape.ld_a)
        row_b = fx.Int64(n0) * fx.Int64(shape.ld_b) if variant.trans_b else fx.Int64(n0)
        if fx.const_expr(config.split):
            row_a = row_a + fx.Int64(first_k) * (fx.Int64(shape.ld_a) if variant.trans_a else fx.Int64(1))
            row_b = row_b + fx.Int64(first_k) * (fx.Int64(1) if variant.trans_b else fx.Int64(shape.ld_b))
        operand_a = Operand(
            a + (batch * shape.batch_a + row_a), shape.ld_a, m - m0, not variant.trans_a, variant.vector_a
        )
        place_b = batch * shape.batch_b + row_b
        second = b2 + place_b if epilogue.gated else None
        operand_b = Operand(b + place_b, shape.ld_b, n - n0, variant.trans_b, variant.vector_b, second)

        chunks = product(element, config, place, operand_a, operand_b, k, allocate(config))
        first_out = batch * shape.batch_out + fx.Int64(m0) * fx.Int64(shape.ld_out) + fx.Int64(n0)
        first = batch, fx.Int64(m0), fx.Int64(n0)
        of_bias = shape.bias_batch, shape.bias_m, shape.bias_n
        of_residual = shape.residual_batch, shape.residual_m, shape.residual_n
        output = Output(
            pointer=out + first_out,
            leading=shape.ld_out,
            rows_left=m - m0,
            columns_left=n - n0,
            vector=variant.vector_out,
            element=out_element,
            bias=_addend(bias, first, of_bias, variant.vector_bias, element) if variant.bias else None,
            epilogue=epilogue,
            scale=shape.scale,
            residual=_addend(residual, first, of_residual, variant.vector_residual, element)
            if epilogue.residual
            else None,
            pre=pre + first_out if epilogue.preactivation else None,
        )
        if fx.const_expr(config.split):
            parts = Parts.of(
                share, fx.Int32(fx.block_idx.z), shape, partial, arrived, fx.thread_idx.x, config
            )
            combine(parts, chunks, output.store)
        else:
            output.store(chunks)

    @flyc.jit
    def launch(
        a: fx.Pointer,
        b: fx.Pointer,
        bias: fx.Pointer,
        out: fx.Pointer,
        b2: fx.Pointer,
        residual: fx.Pointer,
        pre: fx.Pointer,
        partial: fx.Pointer,
        arrived: fx.Pointer,
        shape: Shape,
        grid_m: fx.Int32,
        grid_n: fx.Int32,
        batches: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        gemm(a, b, bias, out, b2, residual, pre, partial, arrived, shape).launch(
            grid=(grid_m, grid_n, batches), block=(config.threads, 1, 1), stream=stream
        )

    types = {"partial": fx.Float32, "arrived": fx.Int32, "out": out_element, "pre": out_element}
    names = KERNARG.names[:_POINTERS]
    pointers = tuple(flyc.from_c_void_p(types.get(name, element), 0) for name in names)
    grid = (fx.Int32(1), fx.Int32(1), fx.Int32(1))
    return launch, (*pointers, Shape(*[1] * (len(KERNARG.fields) - _POINTERS)), *grid)


def _addend(
    pointer: fx.Pointer, first: tuple[Any, ...], strides: tuple[Any, ...], vector: int, element: Any
) -> Addend:
    """What is added to the tile that begins at matrix, row and column `first`; `strides` are those between each."""
    place = sum((index * stride for index, stride in zip(first, strides, strict=True)), fx.Int64(0))
    return Addend(pointer + place, fx.Int32(strides[1]), fx.Int32(strides[2]), vector, element)
