"""FlyDSL kernels with their launchers, for tests. Imports FlyDSL: with a target in the environment only."""

from __future__ import annotations

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import rocdl

ADD_BLOCK = 128
COPY_TILE = (16, 32)
TILE, DEPTH = 32, 16


@flyc.kernel
def add_arrays(a: fx.Tensor, b: fx.Tensor, out: fx.Tensor, n: fx.Int32) -> None:
    """out[i] = a[i] + b[i] for i < n; float32."""
    i = fx.block_idx.x * ADD_BLOCK + fx.thread_idx.x
    if i < n:
        left = fx.Float32(fx.ptr_load(fx.get_iter(a) + i))
        right = fx.Float32(fx.ptr_load(fx.get_iter(b) + i))
        fx.ptr_store((left + right).ir_value(), fx.get_iter(out) + i)


@flyc.jit
def add(
    a: fx.Tensor,
    b: fx.Tensor,
    out: fx.Tensor,
    n: fx.Int32,
    stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
) -> None:
    groups = (n + (ADD_BLOCK - 1)) // ADD_BLOCK
    add_arrays(a, b, out, n).launch(grid=(groups, 1, 1), block=(ADD_BLOCK, 1, 1), stream=stream)


@flyc.kernel
def copy_tiles(source: fx.Tensor, out: fx.Tensor, tiled: fx.TiledCopy) -> None:
    """Each workgroup copies one tile through registers, 16 bytes a lane; sizes are multiples of the tile."""
    tile = (None, None, fx.block_idx.x, fx.block_idx.y)
    mine = tiled.get_slice(fx.thread_idx.x)
    read = mine.partition_S(fx.flat_divide(source, tiled.tile_mn)[tile])
    write = mine.partition_D(fx.flat_divide(out, tiled.tile_mn)[tile])
    held = fx.make_fragment_like(read)
    atom = fx.make_copy_atom(fx.UniversalCopy128b(), fx.BFloat16)
    fx.copy(atom, read, held)
    fx.copy(atom, held, write)


@flyc.jit
def copy(source: fx.Tensor, out: fx.Tensor) -> None:
    rows, columns = COPY_TILE
    atom = fx.make_copy_atom(fx.UniversalCopy128b(), fx.BFloat16)
    lanes = fx.make_ordered_layout((rows, columns // 8), order=(1, 0))
    tiled = fx.make_tiled_copy_tv(atom, lanes, fx.make_ordered_layout((1, 8), order=(1, 0)))
    height, width = source.shape.unpack()
    copy_tiles(source, out, tiled).launch(
        grid=(height // rows, width // columns, 1), block=(rows * columns // 8, 1, 1)
    )


@flyc.kernel
def multiply_tile(a: fx.Tensor, b: fx.Tensor, out: fx.Tensor) -> None:
    """out = a b^T with one MFMA: a, b float16 [32, 16], out float32 [32, 32]; one wave."""
    lane = fx.thread_idx.x
    place = lane % TILE * DEPTH + lane // TILE * 8
    kind = fx.Vector.make_type(8, fx.Float16)
    rows = fx.ptr_load(fx.get_iter(a) + place, result_type=kind)
    columns = fx.ptr_load(fx.get_iter(b) + place, result_type=kind)
    zero = fx.Vector.filled(16, 0.0, fx.Float32)
    result = fx.Vector(
        rocdl.mfma_f32_32x32x16_f16(fx.Vector.make_type(16, fx.Float32), [rows, columns, zero.ir_value()])
    )
    for i in fx.range_constexpr(16):
        row = i // 4 * 8 + lane // TILE * 4 + i % 4
        fx.ptr_store(result[i].ir_value(), fx.get_iter(out) + (row * TILE + lane % TILE))


@flyc.jit
def multiply(a: fx.Tensor, b: fx.Tensor, out: fx.Tensor) -> None:
    multiply_tile(a, b, out).launch(grid=(1, 1, 1), block=(64, 1, 1))
