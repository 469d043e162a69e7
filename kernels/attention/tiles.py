"""Tiles of rows that asynchronous loads bring to LDS, read both ways: as rows and, transposed, as columns.

A tile is `rows` rows of 16-bit elements, padded to `dim`. A row is a line of chunks of 16 bytes; chunk c of row r lies
at place c ^ key(r). With g the largest power of two, up to 16, that divides a row's chunks, a row begins at one of
16 / g places of a pass over all banks, by the row's lower bits; keys below g make up for the rest:

    rows        a phase of a wave's reads has one chunk of 16 rows, which differ in r % 4 or r / 4 % 4
    columns     a phase of transposed reads has four neighbouring chunks of rows that differ in r % 4

so key(r) = r / 4 % 4 + 4 (r % 4 / (16 / g)), modulo g: each phase meets all 64 banks once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import flydsl.expr as fx
from flydsl.expr import rocdl

from flycc.kernels.attention.mfma import BLOCK
from flycc.kernels.common.buffers import bounded, checked
from flycc.kernels.common.machine import ACCESS_BYTES, WAVE_SIZE
from flycc.kernels.common.wave import anew_uniform

ELEMENT_BYTES = 2
#: Elements of a chunk.
CHUNK = 8


@dataclass(frozen=True)
class Rows:
    """Rows of an operand in memory, from `pointer` on: `count` of them, `stride` elements apart, of `dim` elements."""

    pointer: fx.Pointer
    stride: fx.Int32
    count: fx.Int32
    dim: fx.Int32

    def buffer(self, most: int) -> Any:
        """Up to `most` rows from the first on; what lies beyond reads as zero."""
        # Rows begin at multiples of 16 bytes, if there is more than one: rounded down, the gap leaves whole words.
        gap = ((self.stride - self.dim) * ELEMENT_BYTES) & -4
        size = fx.min(self.count, fx.Int32(most)) * (self.stride * ELEMENT_BYTES) - gap
        return bounded(self.pointer, (self.count > 0).select(size, fx.Int32(0)))


@dataclass(frozen=True)
class Ring:
    """`stages` tiles in LDS from `pointer` on, filled by a workgroup of `threads`."""

    pointer: fx.Pointer
    rows: int
    dim: int
    stages: int
    threads: int
    thread: fx.Int32
    wave: fx.Int32

    @property
    def chunks(self) -> int:
        """Of a row."""
        return self.dim // CHUNK

    @property
    def loads(self) -> int:
        """Load instructions of a wave for a tile."""
        return loads_of_tile(self.rows, self.dim, self.threads)

    @property
    def stage_elements(self) -> int:
        return self.loads * self.threads * CHUNK

    def aim(self, stride: fx.Int32, dim: fx.Int32) -> list[fx.Int32]:
        """Byte offsets of a lane's loads from a tile's first row; chunks beyond `dim` are out of range."""
        offsets = []
        for load in range(self.loads):
            number = self.thread + load * self.threads
            row = number // self.chunks
            first = (number % self.chunks ^ self._key(row)) * CHUNK
            offsets.append(checked(first < dim, (row * stride + first) * ELEMENT_BYTES))
        return offsets

    def fill(self, stage: fx.Int32, rows: Rows, offsets: Sequence[fx.Int32]) -> None:
        """Starts the loads of a tile; `offsets` are those of `aim`."""
        for step in self.filling(stage, rows, offsets):
            step()

    def filling(self, stage: fx.Int32, rows: Rows, offsets: Sequence[fx.Int32]) -> list[Callable[[], None]]:
        """What `fill` does, one step for each load, to be done in this order."""
        found: list[Any] = []

        def start(load: int, offset: fx.Int32) -> None:
            if load == 0:
                to = self.pointer + (stage * self.stage_elements + self.wave * (WAVE_SIZE * CHUNK))
                found.extend((rows.buffer(self.rows), to))
            buffer, to = found
            size, zero = fx.Int32(ACCESS_BYTES).ir_value(), fx.Int32(0).ir_value()
            place = (to + load * self.threads * CHUNK).llvm_ptr
            rocdl.raw_ptr_buffer_load_async_lds(buffer, place, size, offset.ir_value(), zero, zero)

        return [partial(start, load, offset) for load, offset in enumerate(offsets)]

    def row_slices(self, stage: fx.Int32, block: int) -> RowSlices:
        """Operands with a row of a block of 32 in each lane, lane % 32."""
        lane = self.thread % WAVE_SIZE
        row = lane % BLOCK
        own = row * self.dim + (lane // BLOCK ^ self._key(row)) * CHUNK
        return RowSlices(self, own, self._tile(stage), block * BLOCK * self.dim)

    def columns(self, stage: fx.Int32, block: int) -> Columns:
        """Operands with a column of 32 rows in each lane."""
        lane = self.thread % WAVE_SIZE
        row = lane // BLOCK * 4 + lane % 16 // 4
        chunk = lane // 16 % 2 * 2 + lane % 4 // 2
        own = row * self.dim + (chunk ^ self._key(row)) * CHUNK + lane % 2 * 4
        return Columns(self, own, self._tile(stage), block * BLOCK * self.dim)

    def place(self, own: fx.Int32, tile: fx.Int32, more: int) -> fx.Pointer:
        """What a lane adds is the same in all tiles, so that it takes one register outside of loops, and in them one
        addition; the rest is part of the instruction."""
        return ((self.pointer + own) + tile) + more

    def _tile(self, stage: fx.Int32) -> fx.Int32:
        return anew_uniform(stage * self.stage_elements)

    @property
    def _group(self) -> int:
        return min(self.chunks & -self.chunks, 16)

    def _key(self, row: fx.Int32) -> fx.Int32:
        upper = row % 4 // (16 // self._group) * 4
        return row // 4 % 4 ^ upper

    def split(self, chunk: int) -> tuple[int, int]:
        """What of the elements before a chunk is to be xored to an address, and what to be added."""
        return chunk % self._group * CHUNK, chunk // self._group * self._group * CHUNK


@dataclass(frozen=True)
class RowSlices:
    """Operands with a row in each lane: `own` is its place in a tile, from `block` on, `tile` the place of the tile."""

    ring: Ring
    own: fx.Int32
    tile: fx.Int32
    block: int

    def load(self, number: int) -> fx.Vector:
        """Elements 16 number + 8 (lane / 32) and on of the lane's row: the A or B operand of a product over them."""
        flip, more = self.ring.split(2 * number)
        place = self.ring.place(self.own ^ flip, self.tile, more + self.block)
        return fx.Vector(fx.ptr_load(place, result_type=fx.Vector.make_type(CHUNK, fx.Int16)))


@dataclass(frozen=True)
class Columns:
    """Operands with a column in each lane, as `RowSlices`."""

    ring: Ring
    own: fx.Int32
    tile: fx.Int32
    block: int

    def load(self, column: int, half: int) -> fx.Vector:
        """Column 32 column + lane % 32 of rows 16 half + 4 (lane / 32) + {0..3, 8..11}: the A operand of a product over
        rows, whose B operand is results 8 half to 8 half + 7 of an MFMA as they are."""
        elements = []
        for j in range(2):
            flip, more = self.ring.split(4 * column)
            rows = self.block + (16 * half + 8 * j) * self.ring.dim
            place = self.ring.place(self.own ^ (flip ^ 2 * j * CHUNK), self.tile, more + rows)
            kind = fx.Vector.make_type(4, fx.Int16)
            read = fx.Vector(rocdl.ds_read_tr16_b64_(kind, place.llvm_ptr))
            elements += [read[i] for i in range(4)]
        return fx.Vector.from_elements(elements, fx.Int16)


def loads_of_tile(rows: int, dim: int, threads: int) -> int:
    """Load instructions of a wave for a tile; those of the last lanes may bring what nobody needs."""
    return -(-rows * dim // (threads * CHUNK))
