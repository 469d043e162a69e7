"""Rows of operands from memory to registers, and of results back, in FlyDSL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flydsl.expr as fx
from flydsl.expr import rocdl

from flycc.kernels.attention.mfma import BLOCK, RESULTS, SLICE
from flycc.kernels.attention.tiles import CHUNK, ELEMENT_BYTES, Rows
from flycc.kernels.common.buffers import bounded, checked, store16


def valid(fragment: fx.Vector, chunk: fx.Int32, dim: fx.Int32) -> fx.Vector:
    """Chunk number `chunk` of a row, with zeros from element `dim` of the row on."""
    words = fragment.bitcast(fx.Int32)
    left = dim - chunk * CHUNK
    masks = [
        (left > 2 * i + 1).select(fx.Int32(-1), (left > 2 * i).select(fx.Int32(0xFFFF), fx.Int32(0)))
        for i in range(CHUNK // 2)
    ]
    kept = [words[i] & mask for i, mask in enumerate(masks)]
    return fx.Vector.from_elements(kept, fx.Int32).bitcast(fx.Int16)


def resident(rows: Rows, lane: fx.Int32, dim: int) -> list[fx.Vector]:
    """Operands of products over a row's elements, a row in each lane; zeros beyond the rows and their elements."""
    buffer = rows.buffer(BLOCK)
    found = []
    for number in range(dim // SLICE):
        chunk = 2 * number + lane // BLOCK
        place = (lane % BLOCK * rows.stride + chunk * CHUNK) * ELEMENT_BYTES
        offset = checked((chunk * CHUNK < rows.dim) & (lane % BLOCK < rows.count), place)
        words = rocdl.raw_ptr_buffer_load(fx.Vector.make_type(4, fx.Int32), buffer, offset, fx.Int32(0))
        found.append(valid(fx.Vector(words).bitcast(fx.Int16), chunk, rows.dim))
    return found


def store(
    rows: Rows, lane: fx.Int32, acc: Sequence[fx.Vector], scale: fx.Float32, element: Any, width: int
) -> None:
    """Rounds `scale` times acc, blocks of 32 columns of a result transposed, to `element` and stores it: a lane has
    4 neighbours of its row at a time, of which `width` lie together."""
    buffer = bounded(rows.pointer)
    first = lane % BLOCK * rows.stride
    for block, sums in enumerate(acc):
        for start in range(0, RESULTS, width):
            column = BLOCK * block + 8 * (start // 4) + start % 4 + 4 * (lane // BLOCK)
            exists = (lane % BLOCK < rows.count) & (column < rows.dim)
            values = [sums[start + i] * scale for i in range(width)]
            store16(buffer, values, element, checked(exists, (first + column) * ELEMENT_BYTES))
