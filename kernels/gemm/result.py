"""Results of the GEMM kernel on their way from a lane's accumulators to memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flydsl.expr as fx

from flycc.kernels.common.buffers import bounded, checked, load16, store16
from flycc.kernels.gemm.config import ELEMENT_BYTES, MFMA_MN, SUM_PAD, GemmConfig
from flycc.kernels.gemm.operand import Lane


@dataclass(frozen=True)
class Chunk:
    """Neighbouring results of one row: `values[i]` is out[row, column + i], relative to the tile."""

    row: fx.Int32
    column: fx.Int32
    values: list[fx.Float32]


def result_chunks(
    acc: list[fx.Vector],
    lane: Lane,
    first_row: fx.Int32,
    first_column: fx.Int32,
    blocks_m: int,
    width_m: int,
    width_n: int,
) -> list[Chunk]:
    """The results a lane holds, in runs along N as long as the rows' order in `direct_groups` allows."""
    chunks = []
    for m in range(blocks_m):
        row = first_row + m // width_m * width_m * MFMA_MN + lane.row * width_m + m % width_m
        for n in range(0, len(acc) // blocks_m, width_n):
            column = first_column + n * MFMA_MN + lane.group * (4 * width_n)
            values = [acc[(n + i) * blocks_m + m][r] for r in range(4) for i in range(width_n)]
            chunks.append(Chunk(row, column, values))
    return chunks


def exchange(
    pointer: fx.Pointer, chunks: list[Chunk], config: GemmConfig, wave_k: fx.Int32, thread: fx.Int32
) -> list[Chunk]:
    """Adds up the `waves_k` partial tiles through LDS ([waves_k][tile_m][tile_n + SUM_PAD] float32).

    Every thread of the workgroup gets one chunk of the sum. The order of additions is fixed.
    """
    row_stride = config.tile_n + SUM_PAD
    slab = config.tile_m * row_stride
    for chunk in chunks:
        place = wave_k * slab + chunk.row * row_stride + chunk.column
        for i in range(0, len(chunk.values), 4):
            values = fx.Vector.from_elements(chunk.values[i : i + 4], fx.Float32)
            fx.ptr_store(values.ir_value(), pointer + (place + i))
    fx.gpu.barrier()
    count = config.tile_m * config.tile_n // config.threads
    row = thread * count // config.tile_n
    column = thread * count % config.tile_n
    kind = fx.Vector.make_type(4, fx.Float32)
    sums: list[fx.Float32] = []
    for i in range(0, count, 4):
        place = row * row_stride + column + i
        parts = [
            fx.Vector(fx.ptr_load(pointer + (place + w * slab), result_type=kind))
            for w in range(config.waves_k)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        sums += [total[j] for j in range(4)]
    return [Chunk(row, column, sums)]


@dataclass(frozen=True)
class Output:
    """Where results go; pointers are at the tile's first element, strides count elements."""

    pointer: fx.Pointer
    leading: fx.Int32
    rows_left: fx.Int32
    columns_left: fx.Int32
    vector: int
    element: Any
    bias: fx.Pointer | None
    bias_row: fx.Int32
    bias_column: fx.Int32

    def store(self, chunks: list[Chunk]) -> None:
        """Adds the bias in float32, rounds once, and stores what lies inside `out`."""
        pieces = [piece for chunk in chunks for piece in self._pieces(chunk)]
        out = bounded(self.pointer)
        for offset, values in pieces:
            store16(out, values, self.element, offset)

    def _pieces(self, chunk: Chunk) -> list[tuple[fx.Int32, list[fx.Float32]]]:
        """Byte offset and values, bias included, of each store that `chunk` takes."""
        bias = None if self.bias is None else bounded(self.bias)
        size = min(self.vector, len(chunk.values))
        pieces = []
        for start in range(0, len(chunk.values), size):
            column = chunk.column + start
            inside = (chunk.row < self.rows_left) & (column < self.columns_left)
            values = chunk.values[start : start + size]
            if bias is not None:
                addends = [self._bias(bias, chunk.row, column + i, inside) for i in range(size)]
                values = [value + addend for value, addend in zip(values, addends, strict=True)]
            offset = (chunk.row * self.leading + column) * ELEMENT_BYTES
            pieces.append((checked(inside, offset), values))
        return pieces

    def _bias(self, buffer: Any, row: fx.Int32, column: fx.Int32, inside: Any) -> fx.Float32:
        place = row * self.bias_row + column * self.bias_column
        (value,) = load16(buffer, 1, checked(inside, place * ELEMENT_BYTES), fx.Int32(0))
        return value.bitcast(self.element).to(fx.Float32)
