"""Operand tiles on their way through LDS without registers: rings that asynchronous loads fill.

A tile is `rows` x `tile_k` elements; LDS holds the tiles of `stages` steps along K. A load brings 16 bytes (a *chunk*)
a lane, and the lanes of a wave write them side by side, so it is the addresses that are swizzled: chunk c of a line
lies at place c ^ key(line), so that each phase of a wave's reads meets all 64 banks once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import flydsl.expr as fx
from flydsl.expr import rocdl

from flycc.kernels.common.buffers import bounded, checked
from flycc.kernels.common.machine import ACCESS_BYTES, WAVE_SIZE
from flycc.kernels.gemm.config import FRAGMENT, MFMA_K, RING_ROWS, GemmConfig
from flycc.kernels.gemm.operand import Fragment, Lane, Operand

#: Elements of one pass over all banks of LDS.
_BANKS_ELEMENTS = 128


@dataclass(frozen=True)
class Load:
    """16 bytes a lane from byte `offset` of `buffer`, for a wave's lanes side by side in LDS from `to` on."""

    buffer: Any
    offset: fx.Int32
    to: fx.Pointer

    def start(self) -> None:
        size, zero = fx.Int32(ACCESS_BYTES).ir_value(), fx.Int32(0).ir_value()
        offset = self.offset.ir_value()
        rocdl.raw_ptr_buffer_load_async_lds(self.buffer, self.to.llvm_ptr, size, offset, zero, zero)


@dataclass(frozen=True)
class Ring(ABC):
    """The tiles of one operand in LDS from `pointer` on; `wave` is uniform."""

    #: Read instructions that a fragment takes.
    reads: ClassVar[int]

    operand: Operand
    pointer: fx.Pointer
    rows: int
    stages: int
    config: GemmConfig
    lane: Lane
    wave: fx.Int32

    @property
    def loads(self) -> int:
        """Load instructions that a wave issues for a tile."""
        return self.rows * self.config.tile_k // (FRAGMENT * self.config.threads)

    def aim(self, step: fx.Int32, k: fx.Int32) -> list[Load]:
        """The loads of the tile of `step`; what lies outside the operand or from element `k` of K on is zero."""
        first = step * self.config.tile_k
        stride = fx.Int64(1) if self.operand.along_k else fx.Int64(self.operand.leading)
        buffers = [bounded(pointer + fx.Int64(first) * stride) for pointer in self.operand.pointers]
        of_half = self.loads // self.operand.halves
        to = self._tile(step) + self.wave * (WAVE_SIZE * FRAGMENT)
        found = []
        for i in range(self.loads):
            number = self.lane.thread + i % of_half * self.config.threads
            group = self.operand.group(*self._from(number), 0, 1)
            offset = checked(group.k < k - first, group.offset)
            found.append(Load(buffers[i // of_half], offset, to + i * (self.config.threads * FRAGMENT)))
        return found

    @abstractmethod
    def fragments(self, step: fx.Int32, slice_k: int, first_row: fx.Int32, blocks: int) -> list[Fragment]:
        """Those of `blocks` MFMA blocks from row `first_row` (a multiple of 16) on, in that slice of 32 along K."""

    @abstractmethod
    def _from(self, number: fx.Int32) -> tuple[fx.Int32, fx.Int32]:
        """Row and element along K where chunk `number` of a tile in LDS begins."""

    def _tile(self, step: fx.Int32) -> fx.Pointer:
        return self.pointer + fx.Int32(fx.Uint32(step) % self.stages) * (self.rows * self.config.tile_k)


class RingAlongK(Ring):
    """Tiles of an operand that is contiguous along K: [rows][tile_k]; a fragment is a chunk.

    A phase of a read, 16 lanes, has 8 rows of one chunk and 8 others of the next; keys of rows 16 apart are equal.
    """

    reads = 1

    def fragments(self, step: fx.Int32, slice_k: int, first_row: fx.Int32, blocks: int) -> list[Fragment]:
        chunk = (self.lane.group + slice_k * (MFMA_K // FRAGMENT)) ^ self._key(self.lane.row)
        row = first_row // self.operand.halves + self.lane.row
        at = self._tile(step) + (row * self.config.tile_k + chunk * FRAGMENT)
        kind = fx.Vector.make_type(FRAGMENT, fx.Int16)
        places = [at + more * self.config.tile_k for more in self.operand.block_rows(self.rows, blocks)]
        return [fx.Vector(fx.ptr_load(place, result_type=kind)) for place in places]

    def _from(self, number: fx.Int32) -> tuple[fx.Int32, fx.Int32]:
        row = number // self._chunks
        return row, (number % self._chunks ^ self._key(row)) * FRAGMENT

    @property
    def _chunks(self) -> int:
        return self.config.tile_k // FRAGMENT

    def _key(self, row: fx.Int32) -> fx.Int32:
        return row // (_BANKS_ELEMENTS // self.config.tile_k) % self._chunks


class RingAlongRows(Ring):
    """Tiles of an operand that is contiguous along its rows: [rows / 64][tile_k][64]; read transposed.

    A transposed read gives each lane 4 elements along K, of 16 rows to 16 lanes, so a fragment takes two. A phase, 32
    lanes, has 16 rows (2 chunks) of the elements k, ..., k + 3 and k + 8, ..., k + 11; keys are even.
    """

    reads = 2

    def fragments(self, step: fx.Int32, slice_k: int, first_row: fx.Int32, blocks: int) -> list[Fragment]:
        lane = self.lane.row
        k = lane // 4 + self.lane.group * FRAGMENT
        first_row = first_row // self.operand.halves
        tile = self._tile(step) + first_row // RING_ROWS * self._band + k * RING_ROWS
        found = []
        for more in self.operand.block_rows(self.rows, blocks):
            row = first_row % RING_ROWS + more
            chunk = row % RING_ROWS // FRAGMENT + lane % 4 // 2
            place = (chunk ^ self._key(k)) * FRAGMENT + lane % 2 * 4
            at = tile + (row // RING_ROWS * self._band + place) + slice_k * MFMA_K * RING_ROWS
            halves = [_read_transposed(at + half * 4 * RING_ROWS) for half in range(2)]
            found.append(fx.Vector.from_elements([half[j] for half in halves for j in range(4)], fx.Int16))
        return found

    def _from(self, number: fx.Int32) -> tuple[fx.Int32, fx.Int32]:
        chunks = RING_ROWS // FRAGMENT
        k = number // chunks % self.config.tile_k
        chunk = number % chunks ^ self._key(k)
        return number // (chunks * self.config.tile_k) * RING_ROWS + chunk * FRAGMENT, k

    @property
    def _band(self) -> int:
        return RING_ROWS * self.config.tile_k

    @staticmethod
    def _key(k: fx.Int32) -> fx.Int32:
        return k // 2 % 2 * 2 + k // 8 % 2 * 4


def _read_transposed(at: fx.Pointer) -> fx.Vector:
    return fx.Vector(rocdl.ds_read_tr16_b64_(fx.Vector.make_type(4, fx.Int16), at.llvm_ptr))
