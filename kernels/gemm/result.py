"""Results of the GEMM kernel on their way from a lane's accumulators to memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl._mlir.dialects import llvm
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.contracts import Epilogue
from flycc.kernels.common import vectors
from flycc.kernels.common.buffers import bounded, checked
from flycc.kernels.gemm.config import MFMA_MN, SUM_PAD, GemmConfig
from flycc.kernels.gemm.epilogue import finish
from flycc.kernels.gemm.operand import Lane

#: A row that no tile has.
_NOWHERE = 1 << 30


@dataclass(frozen=True)
class Chunk:
    """Neighbouring sums of one row: `values[i]` is that of out[row, column + i], relative to the tile.

    `gates`, if there are any, are the sums with the second B at the same place.
    """

    row: fx.Int32
    column: fx.Int32
    values: list[fx.Float32]
    gates: list[fx.Float32] | None = None


def result_chunks(
    acc: list[fx.Vector],
    lane: Lane,
    first_row: fx.Int32,
    first_column: fx.Int32,
    blocks_m: int,
    width_m: int,
    width_n: int,
) -> list[Chunk]:
    """The sums a lane holds, in runs along N as long as the rows' order in `direct_groups` allows, or of 8."""
    chunks = []
    blocks_n = len(acc) // blocks_m
    pairs = width_n == 1 and blocks_n % 2 == 0
    for m in range(blocks_m):
        row = first_row + m // width_m * width_m * MFMA_MN + lane.row * width_m + m % width_m
        of_row = [acc[n * blocks_m + m] for n in range(blocks_n)]
        for n in range(0, blocks_n, 2 if pairs else width_n):
            if pairs:
                column = lane.group % 2 * MFMA_MN + lane.group // 2 * 8
                values = _side_by_side(of_row[n], of_row[n + 1])
            else:
                column = lane.group * (4 * width_n)
                values = [of_row[n + i][r] for r in range(4) for i in range(width_n)]
            chunks.append(Chunk(row, first_column + n * MFMA_MN + column, values))
    return chunks


def _side_by_side(first: fx.Vector, second: fx.Vector) -> list[fx.Float32]:
    """8 neighbours along N to each lane, out of two blocks of which each lane holds 4.

    v_permlane16_swap exchanges lanes 16..31 of one register with lanes 0..15 of another, and 48..63 with 32..47: lanes
    of groups 0 and 2 get what is the first block's, 1 and 3 the second's.
    """
    pair = ir.Type.parse("!llvm.struct<(i32, i32)>")
    swapped = [
        rocdl.permlane16_swap(
            pair, *(half[r].bitcast(fx.Int32).ir_value() for half in (first, second)), False, False
        )
        for r in range(4)
    ]
    return [
        fx.Int32(llvm.extractvalue(T.i32, both, [i])).bitcast(fx.Float32)
        for i in range(2)
        for both in swapped
    ]


def exchange(
    pointer: fx.Pointer, chunks: list[Chunk], config: GemmConfig, wave_k: fx.Int32, thread: fx.Int32
) -> list[Chunk]:
    """Adds up the `waves_k` partial tiles through LDS ([waves_k][tile_m][tile_n + SUM_PAD] float32).

    Every thread of the workgroup gets one chunk of 4 sums at least; one for which there is none gets one outside of any
    result. The order of additions is fixed. Gates have the second half of the columns.
    """
    gated = chunks[0].gates is not None
    columns = config.tile_n // (1 + gated)
    row_stride = config.tile_n + SUM_PAD
    slab = config.tile_m * row_stride
    for chunk in chunks:
        place = wave_k * slab + chunk.row * row_stride + chunk.column
        for half, values in enumerate([chunk.values] if chunk.gates is None else [chunk.values, chunk.gates]):
            for i in range(0, len(values), 4):
                piece = fx.Vector.from_elements(values[i : i + 4], fx.Float32)
                fx.ptr_store(piece.ir_value(), pointer + (place + half * columns + i))
    fx.gpu.barrier()
    results = config.tile_m * columns
    count = max(4 // (1 + gated), results // config.threads)
    spare = count * config.threads > results
    exists = thread * count < results
    row = thread * count // columns
    if spare:
        row = exists.select(row, fx.Int32(0))
    column = thread * count % columns
    width = math.gcd(count, 4)
    kind = fx.Vector.make_type(width, fx.Float32)
    halves: list[list[fx.Float32]] = [[] for _ in range(1 + gated)]
    for half, sums in enumerate(halves):
        for i in range(0, count, width):
            place = row * row_stride + column + half * columns + i
            parts = [
                fx.Vector(fx.ptr_load(pointer + (place + w * slab), result_type=kind))
                for w in range(config.waves_k)
            ]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            sums += [total[j] for j in range(width)]
    if spare:
        row = exists.select(row, fx.Int32(_NOWHERE))
    return [Chunk(row, column, *halves)]


_NOTHING = Epilogue()
#: Chunks of a lane that are finished together, and registers that what is added to them may take.
_AT_A_TIME, _LOADED = 4, 32


@dataclass(frozen=True)
class Addend:
    """What is added to results, of type `element`. `pointer` is at that of the tile's first; strides count elements.

    `vector` of them along a row are aligned and lie wholly inside or outside; they are neighbours if it is above 1.
    """

    pointer: fx.Pointer
    row: fx.Int32
    column: fx.Int32
    vector: int
    element: Any


@dataclass(frozen=True)
class Output:
    """Where results go; pointers are at the tile's first element, strides count elements.

    `element` is the type of results. `pre` is where the pre-activation goes.
    """

    pointer: fx.Pointer
    leading: fx.Int32
    rows_left: fx.Int32
    columns_left: fx.Int32
    vector: int
    element: Any
    bias: Addend | None = None
    epilogue: Epilogue = _NOTHING
    scale: fx.Float32 | None = None
    residual: Addend | None = None
    pre: fx.Pointer | None = None

    def store(self, chunks: list[Chunk]) -> None:
        """Finishes the sums in float32, rounds once, and stores what lies inside `out`.

        What is added to some chunks is loaded before those before them are finished: all of it at once would take more
        registers than a lane has.
        """
        out = bounded(self.pointer)
        pre_out = None if self.pre is None else bounded(self.pre)
        size = self._at_a_time(len(chunks[0].values))
        groups = [chunks[i : i + size] for i in range(0, len(chunks), size)]
        addends = self._addends(groups[0])
        for group, following in zip(groups, [*groups[1:], []], strict=True):
            ahead = self._addends(following)
            rocdl.sched_barrier(0)
            for chunk, loaded in zip(group, addends, strict=True):
                bias, residual = (_in_float32(pieces) for pieces in loaded)
                sums = _vector(chunk.values)
                gates = None if chunk.gates is None else _vector(chunk.gates)
                result, pre = finish(self.epilogue, sums, gates, self.scale, bias, residual)
                self._store(out, chunk, result)
                if pre_out is not None:
                    self._store(pre_out, chunk, pre)
            addends = ahead

    def _at_a_time(self, values: int) -> int:
        """Chunks of so many values that are finished together: elements that are loaded singly take a register each."""
        addends = [addend for addend in (self.bias, self.residual) if addend is not None]
        registers = sum(values // min(2, addend.vector) for addend in addends)
        return max(1, min(_AT_A_TIME, _LOADED // max(1, registers)))

    def _addends(self, chunks: list[Chunk]) -> list[tuple[list[fx.Vector], list[fx.Vector]]]:
        """Of each chunk, what the bias and what the residual adds."""
        return [(self._load(self.bias, chunk), self._load(self.residual, chunk)) for chunk in chunks]

    def _store(self, out: Any, chunk: Chunk, values: fx.Vector) -> None:
        size = math.gcd(self.vector, values.numel)
        for start in range(0, values.numel, size):
            column = chunk.column + start
            place = (chunk.row * self.leading + column) * vectors.element_bytes(self.element)
            piece = vectors.rounded(_vector([values[start + i] for i in range(size)]), self.element)
            vectors.store(out, piece, checked(self._inside(chunk.row, column), place))

    def _load(self, addend: Addend | None, chunk: Chunk) -> list[fx.Vector]:
        """What is to be added to a chunk's results, in the pieces that it is loaded in."""
        if addend is None:
            return []
        buffer = bounded(addend.pointer)
        size = math.gcd(addend.vector, len(chunk.values))
        found = []
        for start in range(0, len(chunk.values), size):
            column = chunk.column + start
            place = chunk.row * addend.row + (column if size > 1 else column * addend.column)
            offset = checked(self._inside(chunk.row, column), place * vectors.element_bytes(addend.element))
            found.append(vectors.load(buffer, addend.element, size, offset))
        return found

    def _inside(self, row: fx.Int32, column: fx.Int32) -> Any:
        return (row < self.rows_left) & (column < self.columns_left)


def _in_float32(pieces: list[fx.Vector]) -> fx.Vector | None:
    """One vector of all pieces, if there are any."""
    values = [piece[i].to(fx.Float32) for piece in pieces for i in range(piece.numel)]
    return _vector(values) if values else None


def _vector(values: list[fx.Float32]) -> fx.Vector:
    return fx.Vector.from_elements(values, fx.Float32)
