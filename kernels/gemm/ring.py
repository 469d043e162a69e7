"""Operand tiles on their way through LDS without registers: rings that asynchronous loads fill.

A tile is `rows` x `tile_k` elements; LDS holds the tiles of `stages` steps along K. A load brings 16 bytes (a *chunk*)
a lane, and the lanes of a wave write them side by side, so it is the addresses that are swizzled: chunk c of a line
lies at place c ^ key(line), so that each phase of a wave's reads meets all 64 banks once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import flydsl.expr as fx
from flydsl.expr import rocdl

from flycc.kernels.common.buffers import bounded, checked
from flycc.kernels.common.machine import ACCESS_BYTES, WAVE_SIZE
from flycc.kernels.common.wave import anew_uniform
from flycc.kernels.gemm.config import ELEMENT_BYTES, FRAGMENT, MFMA_K, RING_ROWS, GemmConfig
from flycc.kernels.gemm.operand import Fragment, Lane, Operand

#: Elements of one pass over all banks of LDS.
_BANKS_ELEMENTS = 128
#: Lines after which keys repeat: with four waves or more, all loads of a lane have the same.
_KEYS_REPEAT = 16


@dataclass(frozen=True)
class Load:
    """16 bytes a lane from byte `offset` + `same` of `buffer`, for a wave's lanes side by side in LDS from `to` on.

    `same` is so for all lanes.
    """

    buffer: Any
    offset: fx.Int32
    same: fx.Int32
    to: fx.Pointer

    def start(self) -> None:
        size, zero = fx.Int32(ACCESS_BYTES).ir_value(), fx.Int32(0).ir_value()
        offsets = self.offset.ir_value(), self.same.ir_value()
        rocdl.raw_ptr_buffer_load_async_lds(self.buffer, self.to.llvm_ptr, size, *offsets, zero)


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

    def first_row(self, load: int) -> int:
        """The first row of the tile that load number `load` of all waves brings a piece of."""
        rows = load * self.config.threads * FRAGMENT // self.config.tile_k
        return rows if self.operand.along_k else rows // RING_ROWS * RING_ROWS

    def aim(self, step: fx.Int32, k: fx.Int32, chosen: Sequence[int] | None = None) -> list[Load]:
        """The loads of the tile of `step`, or those of the numbers `chosen`.

        What lies from element `k` of K on is zero. Rows outside the operand are zero or any others of its rows.
        """
        to = self.pointer + self._first(step) + self.wave * (WAVE_SIZE * FRAGMENT)
        numbers = list(range(self.loads)) if chosen is None else list(chosen)
        of_half = self.loads // self.operand.halves
        found = []
        for half, pointer in enumerate(self.operand.pointers):
            of_this = [i for i in numbers if i // of_half == half]
            sources = self._sources(pointer, [i % of_half for i in of_this], step * self.config.tile_k, k)
            places = [to + i * (self.config.threads * FRAGMENT) for i in of_this]
            found += [Load(*source, place) for source, place in zip(sources, places, strict=True)]
        return found

    @abstractmethod
    def _sources(
        self, pointer: fx.Pointer, numbers: list[int], first: fx.Int32, k: fx.Int32
    ) -> list[tuple[Any, fx.Int32, fx.Int32]]:
        """Buffer and offsets of those loads, counted from the first row of a half of the operand, at `pointer`, of the
        tile whose elements along K are those from `first` on."""

    @abstractmethod
    def fragments(self, step: fx.Int32, slice_k: int, first_row: fx.Int32, blocks: int) -> list[Fragment]:
        """Those of `blocks` MFMA blocks from row `first_row` (a multiple of 16) on, in that slice of 32 along K."""

    def _first(self, step: fx.Int32) -> fx.Int32:
        """Elements from `pointer` to the tile of `step`."""
        return fx.Int32(fx.Uint32(step) % self.stages) * (self.rows * self.config.tile_k)


class RingAlongK(Ring):
    """Tiles of an operand that is contiguous along K: [rows][tile_k]; a fragment is a chunk.

    A phase of a read, 16 lanes, has 8 rows of one chunk and 8 others of the next; keys of rows 16 apart are equal.
    """

    reads = 1

    def fragments(self, step: fx.Int32, slice_k: int, first_row: fx.Int32, blocks: int) -> list[Fragment]:
        # What a lane adds is the same for both operands, and, since lines begin at multiples of tile_k, for all slices:
        # it takes one register if nothing is added to it before the loop.
        chunk = self.lane.group ^ self._key(self.lane.row)
        of_lane = self.lane.row * self.config.tile_k + chunk * FRAGMENT
        first = self._first(step) + first_row // self.operand.halves * self.config.tile_k
        at = self.pointer + ((anew_uniform(first) + of_lane) ^ slice_k * MFMA_K)
        kind = fx.Vector.make_type(FRAGMENT, fx.Int16)
        places = [at + more * self.config.tile_k for more in self.operand.block_rows(self.rows, blocks)]
        return [fx.Vector(fx.ptr_load(place, result_type=kind)) for place in places]

    def _sources(
        self, pointer: fx.Pointer, numbers: list[int], first: fx.Int32, k: fx.Int32
    ) -> list[tuple[Any, fx.Int32, fx.Int32]]:
        """A load brings whole rows, the next one those below, so that lanes need one offset for all loads.

        The buffer ends with the tile's last row. A load that begins below that begins there.
        """
        operand, chunks = self.operand, self.config.tile_k // FRAGMENT
        lane_row = self.lane.thread // chunks
        left = k - first
        last = fx.min(operand.rows_left, fx.Int32(self.rows // operand.halves)) - 1
        end = last * operand.leading + fx.min(left, fx.Int32(self.config.tile_k))
        buffer = bounded(pointer + fx.Int64(first), fx.max(end, fx.Int32(0)) * ELEMENT_BYTES)
        found = []
        for i in numbers:
            top = i * (self.config.threads // chunks)
            lane_k = (self.lane.thread % chunks ^ self._key(lane_row + top % _KEYS_REPEAT)) * FRAGMENT
            offset = checked(lane_k < left, (lane_row * operand.leading + lane_k) * ELEMENT_BYTES)
            same = fx.min(last, fx.Int32(top)) * operand.leading * ELEMENT_BYTES
            found.append((buffer, offset, same))
        return found

    def _key(self, row: fx.Int32) -> fx.Int32:
        return row // (_BANKS_ELEMENTS // self.config.tile_k) % (self.config.tile_k // FRAGMENT)


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
        first_band, in_band = first_row // RING_ROWS * self._band, first_row % RING_ROWS
        # What a lane adds, and the tile, are multiples of 64 but for the chunk, so that one register serves all blocks.
        chunk = (in_band // FRAGMENT + lane % 4 // 2) ^ self._key(k)
        at = self._first(step) + first_band + k * RING_ROWS + (chunk * FRAGMENT + lane % 2 * 4)
        found = []
        for more in self.operand.block_rows(self.rows, blocks):
            band, row = divmod(more, RING_ROWS)
            place = self.pointer + (at ^ row) + (band * self._band + slice_k * MFMA_K * RING_ROWS)
            halves = [_read_transposed(place + half * 4 * RING_ROWS) for half in range(2)]
            found.append(fx.Vector.from_elements([half[j] for half in halves for j in range(4)], fx.Int16))
        return found

    def _sources(
        self, pointer: fx.Pointer, numbers: list[int], first: fx.Int32, k: fx.Int32
    ) -> list[tuple[Any, fx.Int32, fx.Int32]]:
        """A load brings 64 rows of some elements along K, so that lanes need one offset for all loads.

        Rows beyond the operand's are those that lie there in memory, or zero beyond the last element.
        """
        operand, chunks = self.operand, RING_ROWS // FRAGMENT
        lane_k = self.lane.thread // chunks
        left = k - first
        rows = fx.min(operand.rows_left, fx.Int32(self.rows // operand.halves))
        end = (fx.min(left, fx.Int32(self.config.tile_k)) - 1) * operand.leading + rows
        size = fx.max(end, fx.Int32(0)) * ELEMENT_BYTES
        buffer = bounded(pointer + fx.Int64(first) * fx.Int64(operand.leading), size)
        found = []
        for i in numbers:
            band, top = divmod(i * (self.config.threads // chunks), self.config.tile_k)
            row = (self.lane.thread % chunks ^ self._key(lane_k + top % _KEYS_REPEAT)) * FRAGMENT
            offset = checked(lane_k < left - top, (lane_k * operand.leading + row) * ELEMENT_BYTES)
            same = (operand.leading * top + band * RING_ROWS) * ELEMENT_BYTES
            found.append((buffer, offset, fx.min(same, size)))
        return found

    @property
    def _band(self) -> int:
        return RING_ROWS * self.config.tile_k

    @staticmethod
    def _key(k: fx.Int32) -> fx.Int32:
        return k // 2 % 2 * 2 + k // 8 % 2 * 4


def _read_transposed(at: fx.Pointer) -> fx.Vector:
    return fx.Vector(rocdl.ds_read_tr16_b64_(fx.Vector.make_type(4, fx.Int16), at.llvm_ptr))
