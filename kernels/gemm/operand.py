"""Operands of the GEMM kernel on their way from memory to a lane's registers.

A *fragment* is what a lane feeds to one MFMA: 8 elements, consecutive along K, of one row of A or column of B
(both called rows here). A *group* is the `width` fragments that a lane obtains together:

- the operand is contiguous along K: one row, loaded as 16 bytes or as narrower pieces;
- it is contiguous along its rows: 8 loads of `width` neighbouring rows, transposed in registers.

A gated product has a second B. The two are one operand of twice as many rows: of a tile's blocks of 16 rows number 2 i
is the first B's block i, number 2 i + 1 the second's; in LDS all of the first come before those of the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import flydsl.expr as fx

from flycc.kernels.common.buffers import bounded, checked, load16
from flycc.kernels.gemm.config import ELEMENT_BYTES, FRAGMENT, MFMA_K, MFMA_MN
from flycc.kernels.gemm.mfma import Fragment


@dataclass(frozen=True)
class Lane:
    """A lane's place: in its workgroup, and in the 16 x 4 arrangement of MFMA operands."""

    thread: fx.Int32
    row: fx.Int32  # 0..15: row of an operand, column of a result
    group: fx.Int32  # 0..3: the 8 elements along K of an operand, the 4 rows of a result


@dataclass(frozen=True)
class Group:
    """Where `width` fragments lie: rows `row ..< row + width`, elements `k + k_static ..< + 8` of the tile.

    `offset` is the byte offset of the group's first element but for `k_static`; rows outside the operand
    already have the out-of-range one.
    """

    row: fx.Int32
    k: fx.Int32
    k_static: int
    width: int
    offset: fx.Int32


@dataclass(frozen=True)
class Operand:
    """A (rows = M) or B (rows = N) as the main loop sees it."""

    pointer: fx.Pointer  # first element of the workgroup's tile at k = 0
    leading: fx.Int32  # leading stride in elements
    rows_left: fx.Int32  # rows of the operand from the tile's first row on
    along_k: bool  # contiguous along K, else along its rows
    vector: int  # elements of a load that are known to be aligned and inside or outside together
    second: fx.Pointer | None = None  # the same of the second B, if there is one
    share: int = 1  # positions along K count so many times the elements that there are

    @property
    def pointers(self) -> tuple[fx.Pointer, ...]:
        return (self.pointer,) if self.second is None else (self.pointer, self.second)

    @property
    def halves(self) -> int:
        """Operands that this one is made of, which share out a tile's rows."""
        return len(self.pointers)

    def block_rows(self, rows: int, blocks: int) -> list[int]:
        """Where `blocks` MFMA blocks begin in a tile of `rows` in LDS, relative to the first one's row of its half."""
        return [i // self.halves * MFMA_MN + i % self.halves * (rows // self.halves) for i in range(blocks)]

    def group(self, row: fx.Int32, k: fx.Int32, k_static: int, width: int) -> Group:
        place = row * self.leading + k if self.along_k else k * self.leading + row
        offset = checked(row < self.rows_left, place * ELEMENT_BYTES)
        return Group(row, k, k_static, width, offset)


def load_group(operand: Operand, group: Group, buffer: Any, k_left: fx.Int32 | None) -> list[Fragment]:
    """The group's fragments; `k_left`, if given, is the number of elements of K that are left."""

    def offset_at(k: int) -> fx.Int32:
        if k_left is None:
            return group.offset
        return checked(group.k + (group.k_static + k) < k_left, group.offset)

    if operand.along_k:
        elements = []
        for piece in range(0, FRAGMENT, operand.vector):
            offset = offset_at(piece) + (group.k_static + piece) * ELEMENT_BYTES
            elements += load16(buffer, operand.vector, offset, fx.Int32(0))
        return [fx.Vector.from_elements(elements, fx.Int16)]
    lines = []
    for k in range(FRAGMENT):
        scalar_offset = operand.leading * ((group.k_static + k) * ELEMENT_BYTES)
        lines.append(load16(buffer, group.width, offset_at(k), scalar_offset))
    return [fx.Vector.from_elements([line[i] for line in lines], fx.Int16) for i in range(group.width)]


def load(
    operand: Operand, groups: Sequence[Group], position: fx.Int64, k_left: fx.Int32 | None = None
) -> list[list[Fragment]]:
    """The fragments of `groups`, as many of each half, for the step that starts at element `position` of K."""
    stride = fx.Int64(1) if operand.along_k else fx.Int64(operand.leading)
    if operand.share > 1:
        position = fx.Int64(fx.Uint64(position) // operand.share)
        k_left = None if k_left is None else fx.Int32(fx.max(k_left, fx.Int32(0))) // operand.share
    buffers = [bounded(pointer + position * stride) for pointer in operand.pointers]
    of_half = len(groups) // operand.halves
    return [load_group(operand, group, buffers[i // of_half], k_left) for i, group in enumerate(groups)]


def direct_width(operand: Operand, blocks: int) -> int:
    """Neighbouring rows that a lane holds when a wave loads `blocks` MFMA blocks straight from memory."""
    if operand.along_k:
        return 1
    width = operand.vector
    while blocks // operand.halves % width:
        width //= 2
    return width


def direct_groups(
    operand: Operand, lane: Lane, first_row: fx.Int32, blocks: int, tile_k: int
) -> list[list[Group]]:
    """Per 32 elements of K: the groups that cover `blocks` MFMA blocks, those of the second half last.

    In each half block `c * width + i` holds the rows `16 * width * c + width * r + i`, for the MFMA row r.
    """
    width = direct_width(operand, blocks)
    count = blocks // operand.halves // width
    rows = [first_row // operand.halves + c * MFMA_MN * width + lane.row * width for c in range(count)]
    steps = range(0, tile_k // operand.share, MFMA_K)
    first = [operand.group(row, lane.group * FRAGMENT, 0, width) for row in rows] * operand.halves
    return [[Group(g.row, g.k, step, width, g.offset) for g in first] for step in steps]


def staging_groups(operand: Operand, lane: Lane, rows: int, tile_k: int, threads: int) -> list[Group]:
    """This thread's share of a `rows` x `tile_k` tile on its way to LDS, those of the second half last."""
    of_half = _staging_groups(operand, lane, rows // operand.halves, tile_k, threads)
    return [
        replace(group, row=group.row + half * (rows // operand.halves))
        for half in range(operand.halves)
        for group in of_half
    ]


def _staging_groups(operand: Operand, lane: Lane, rows: int, tile_k: int, threads: int) -> list[Group]:
    chunks = tile_k // FRAGMENT
    if operand.along_k:
        k = lane.thread % chunks * FRAGMENT
        count = rows * chunks // threads
        return [operand.group(lane.thread // chunks + i * (threads // chunks), k, 0, 1) for i in range(count)]
    width = min(operand.vector, max(1, rows * chunks // threads))
    lines = rows // width
    row = lane.thread % lines * width
    count = rows * chunks // (width * threads)
    return [
        operand.group(row, (lane.thread // lines + i * (threads // lines)) * FRAGMENT, 0, width)
        for i in range(count)
    ]
