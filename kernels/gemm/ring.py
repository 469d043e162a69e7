"""Operand tiles on their way through LDS without registers: a ring that asynchronous loads fill.

A tile is `rows` x `tile_k` elements; LDS holds the tiles of `stages` steps along K, [stages][rows][tile_k]. A load
brings 16 bytes (a *chunk*) a lane, and the lanes of a wave write them side by side, so it is the addresses that are
swizzled: chunk c of a row lies at place c ^ key(row). The key is such that each phase of a wave's 16-byte reads (16
lanes: 8 rows of one chunk and 8 others of the next) meets all 64 banks once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flydsl.expr as fx
from flydsl.expr import rocdl

from flycc.kernels.common.buffers import bounded, checked
from flycc.kernels.common.machine import ACCESS_BYTES, WAVE_SIZE
from flycc.kernels.gemm.config import ELEMENT_BYTES, FRAGMENT, MFMA_K, MFMA_MN, GemmConfig
from flycc.kernels.gemm.operand import Fragment, Lane, Operand

#: Elements of one pass over all banks of LDS: so many lie between rows that meet the same banks.
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
class Ring:
    """The tiles of one operand, contiguous along K, in LDS from `pointer` on; `wave` is uniform."""

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
        return self.rows * self._chunks // self.config.threads

    def aim(self, step: fx.Int32, k: fx.Int32) -> list[Load]:
        """The loads of the tile of `step`; what lies outside the operand or from element `k` of K on is zero."""
        first = step * self.config.tile_k
        buffer = bounded(self.operand.pointer + fx.Int64(first))
        k_left = k - first
        to = self.pointer + (self._place(step) + self.wave * (WAVE_SIZE * FRAGMENT))
        found = []
        for i in range(self.loads):
            row = self.lane.thread // self._chunks + i * (self.config.threads // self._chunks)
            chunk = self.lane.thread % self._chunks ^ self._key(row)
            offset = (row * self.operand.leading + chunk * FRAGMENT) * ELEMENT_BYTES
            # The same for all steps first: it stays in a register.
            offset = checked(chunk * FRAGMENT < k_left, checked(row < self.operand.rows_left, offset))
            found.append(Load(buffer, offset, to + i * (self.config.threads * FRAGMENT)))
        return found

    def fragments(self, step: fx.Int32, slice_k: int, first_row: fx.Int32, blocks: int) -> list[Fragment]:
        """Those of `blocks` MFMA blocks from row `first_row` (a multiple of 16) on, in that slice of 32 along K."""
        chunk = (self.lane.group + slice_k * (MFMA_K // FRAGMENT)) ^ self._key(self.lane.row)
        row = (first_row + self.lane.row) * self.config.tile_k
        at = self.pointer + (self._place(step) + row + chunk * FRAGMENT)
        return [_read(at + i * (MFMA_MN * self.config.tile_k)) for i in range(blocks)]

    @property
    def _chunks(self) -> int:
        return self.config.tile_k // FRAGMENT

    def _place(self, step: fx.Int32) -> fx.Int32:
        return fx.Int32(fx.Uint32(step) % self.stages) * (self.rows * self.config.tile_k)

    def _key(self, row: fx.Int32) -> fx.Int32:
        """Rows 16 apart have the same one."""
        return row // (_BANKS_ELEMENTS // self.config.tile_k) % self._chunks


def _read(at: fx.Pointer) -> Fragment:
    return fx.Vector(fx.ptr_load(at, result_type=fx.Vector.make_type(FRAGMENT, fx.Int16)))
