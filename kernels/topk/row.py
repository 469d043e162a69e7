"""Rows on their way from memory to a lane's registers, and results on their way back, in FlyDSL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.kernels.common.buffers import checked
from flycc.kernels.topk.keys import KeyOrder
from flycc.kernels.topk.variant import Variant


def exact_buffer(pointer: fx.Pointer, nbytes: Any) -> Any:
    """A buffer resource of `nbytes`: a dword that is not wholly inside reads as 0."""
    return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(pointer, num_records_bytes=fx.Int64(nbytes)))


@dataclass(frozen=True)
class Row:
    """A row of `count` elements from element `base` of `buffer` on, that is read `vector` of them to a load.

    Loads of several elements may run over the end of the row. `last`, the bits of its last element, replaces
    what such a load has of it: the end of the buffer may cut a dword with a 16-bit element in two.
    """

    order: KeyOrder
    buffer: Any
    base: fx.Int32
    count: fx.Int32
    vector: int
    last: fx.Uint32 | None = None

    @classmethod
    def of(cls, order: KeyOrder, buffer: Any, base: fx.Int32, count: fx.Int32, vector: int) -> Row:
        row = cls(order, buffer, base, count, vector)
        if order.bits == 32 or vector == 1:
            return row
        return cls(order, buffer, base, count, vector, row.element(count - 1))

    def element(self, place: fx.Int32, wanted: Any = None) -> fx.Uint32:
        """The bits of one element, a 16-bit one in the upper half; no access to memory where not `wanted`."""
        offset = self._offset(place)
        if wanted is not None:
            offset = checked(wanted, offset)
        if self.order.bits == 32:
            return fx.Uint32(rocdl.raw_ptr_buffer_load(T.i32, self.buffer, offset, fx.Int32(0)))
        half = fx.Uint16(rocdl.raw_ptr_buffer_load(T.i16, self.buffer, offset, fx.Int32(0)))
        return fx.Uint32(half) << 16

    def keys(self, place: fx.Int32) -> list[fx.Uint32]:
        """Keys of the `vector` elements from `place` on, a multiple of `vector`; 0 beyond the end."""
        keys = []
        for i, word in enumerate(self._words(place)):
            if self.last is not None:
                word = (place + i == self.count - 1).select(self.last, word)
            keys.append((place + i < self.count).select(self.order.key(word), fx.Uint32(0)))
        return keys

    def _offset(self, place: fx.Int32) -> fx.Int32:
        return (self.base + place) * (self.order.bits // 8)

    def _words(self, place: fx.Int32) -> list[fx.Uint32]:
        if self.vector == 1:
            return [self.element(place, place < self.count)]
        dwords = self.vector * self.order.bits // 32
        kind = fx.Vector.make_type(dwords, fx.Int32) if dwords > 1 else T.i32
        # Beyond the end there may be another row, which this lane has no use for.
        offset = checked(place < self.count, self._offset(place))
        loaded = rocdl.raw_ptr_buffer_load(kind, self.buffer, offset, fx.Int32(0))
        words = (
            [fx.Uint32(fx.Vector(loaded)[i]) for i in range(dwords)] if dwords > 1 else [fx.Uint32(loaded)]
        )
        if self.order.bits == 32:
            return words
        return [half for word in words for half in (word << 16, word & fx.Uint32(0xFFFF_0000))]


@dataclass(frozen=True)
class Results:
    """Where the results of `row` go: from element `base` of the buffers `values` and `indices` on.

    The index of an element is `first` plus its place in the row, or what `places` has there, from the place
    of the row's first element on. `wide` says that indices are int64, not int32.
    """

    row: Row
    values: Any
    indices: Any
    base: fx.Int32
    wide: bool
    first: fx.Int32
    places: Any | None

    def store(self, rank: fx.Int32, key: fx.Uint32, place: fx.Int32, wanted: Any = None) -> None:
        """Result number `rank` is the element at `place`; nothing is stored where not `wanted`.

        Its bits follow from its key but for zeros and NaN, which are read again.
        """
        order, at = self.row.order, self.base + rank
        word = order.word(key)
        if order.dtype != "i32":
            special = order.ambiguous(key)
            again = special if wanted is None else special & wanted
            word = special.select(self.row.element(place, again), word)
        if order.bits == 32:
            self._store(self.values, fx.Int32(word), at, 4, wanted)
        else:
            self._store(self.values, fx.Int16(word >> 16), at, 2, wanted)
        index = place + self.first
        if self.places is not None:
            offset = (self.row.base + place) * 4
            offset = offset if wanted is None else checked(wanted, offset)
            index = fx.Int32(rocdl.raw_ptr_buffer_load(T.i32, self.places, offset, fx.Int32(0)))
        if self.wide:
            pair = fx.Vector.from_elements([index, fx.Int32(0)], fx.Int32)
            self._store(self.indices, pair, at, 8, wanted)
        else:
            self._store(self.indices, index, at, 4, wanted)

    def _store(self, buffer: Any, value: Any, at: fx.Int32, size: int, wanted: Any) -> None:
        offset = at * size if wanted is None else checked(wanted, at * size)
        rocdl.raw_ptr_buffer_store(value.ir_value(), buffer, offset.ir_value(), fx.Int32(0).ir_value())


def rows_and_results(
    order: KeyOrder,
    pointers: tuple[fx.Pointer, fx.Pointer, fx.Pointer, fx.Pointer],
    shape: Any,
    first_row: fx.Int32,
    own_row: fx.Int32,
    rows: fx.Int32,
    variant: Variant,
) -> Results:
    """This lane's row and results, for a workgroup with the chunk `block_idx.y` of `rows` rows from `first_row` on.

    `pointers` and `shape` are the kernel's arguments. `own_row` < `rows` counts from `first_row`.
    """
    x, places, values, indices = pointers
    part, size = fx.block_idx.y, order.bits // 8
    parts = fx.Int32(fx.Uint32(shape.n + (shape.chunk - 1)) // fx.Uint32(shape.chunk))
    first = part * shape.chunk
    count = fx.min(shape.chunk, shape.n - first)
    start = fx.Int64(first_row) * shape.ld_x + fx.Int64(first)
    extent = fx.Int64(rows - 1) * shape.ld_x + fx.Int64(count)
    out_start = (fx.Int64(first_row) * fx.Int64(parts) + fx.Int64(part)) * fx.Int64(shape.k)
    out_extent = (fx.Int64(rows - 1) * fx.Int64(parts) + 1) * fx.Int64(shape.k)
    index_size = 4 if variant.partial else 8
    row = Row.of(
        order, exact_buffer(x + start, extent * size), own_row * fx.Int32(shape.ld_x), count, variant.vector
    )
    return Results(
        row,
        exact_buffer(values + out_start, out_extent * size),
        exact_buffer(indices + out_start * (index_size // 4), out_extent * index_size),
        own_row * parts * shape.k,
        not variant.partial,
        first,
        exact_buffer(places + start, extent * 4) if variant.mapped else None,
    )
