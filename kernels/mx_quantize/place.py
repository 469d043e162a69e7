"""Where a work-item's chunks are, and how they are accessed, in FlyDSL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.kernels.common.buffers import bounded, checked
from flycc.kernels.mx_quantize.config import CHUNK, THREADS, RowsConfig


@dataclass(frozen=True)
class Place:
    """The chunk of row `row` (of those of its workgroup) at `column`. `exists` says whether its first element does,
    `beyond` where the row ends, `in_rows` whether the row does."""

    row: fx.Int32
    column: fx.Int32
    beyond: fx.Int32
    in_rows: Any

    @property
    def exists(self) -> Any:
        return self.in_rows & (self.column < self.beyond)

    def has(self, element: int) -> Any:
        """Whether the chunk's element of that number exists."""
        return self.in_rows & (self.column + element < self.beyond)


def places(first: fx.Int32, thread: fx.Int32, strip: fx.Int32, shape: Any, config: RowsConfig) -> list[Place]:
    """The chunks of work-item `thread` in strip `strip` of the workgroup's rows, which are those from `first` on."""
    column = (strip * config.threads + thread % config.threads) * CHUNK
    step = THREADS // config.threads
    rows = [thread // config.threads + i * step for i in range(config.vectors)]
    return [Place(row, column, shape.columns, row < shape.rows - first) for row in rows]


@dataclass(frozen=True)
class Operand:
    """Rows in memory from that of `pointer` on, `leading` bytes apart."""

    buffer: Any
    leading: fx.Int32

    @classmethod
    def of(cls, pointer: fx.Pointer, first: fx.Int32, leading: fx.Int64, size: int = 1) -> Operand:
        """From row `first` of the matrix at `pointer` on, of elements of `size` bytes, `leading` elements apart."""
        return cls(bounded(pointer + fx.Int64(first) * leading), fx.Int32(leading) * size)

    def load_words(self, place: Place, byte: fx.Int32, words: int) -> list[fx.Int32]:
        """The words from byte `byte` of the place's row on; zeros where there is no chunk."""
        offset = checked(place.exists, place.row * self.leading + byte)
        loaded = []
        for start in range(0, words, 4):
            count = min(4, words - start)
            kind = fx.Vector.make_type(count, fx.Int32) if count > 1 else T.i32
            value = rocdl.raw_ptr_buffer_load(kind, self.buffer, offset, fx.Int32(4 * start))
            loaded += [fx.Int32(value)] if count == 1 else [fx.Vector(value)[i] for i in range(count)]
        return loaded

    def load_element(self, exists: Any, place: Place, byte: fx.Int32, size: int) -> fx.Int32:
        """The bits of an element of `size` bytes; zero if it does not exist."""
        offset = checked(exists, place.row * self.leading + byte)
        if size == 4:
            return fx.Int32(rocdl.raw_ptr_buffer_load(T.i32, self.buffer, offset, fx.Int32(0)))
        kind, unsigned = (T.i8, fx.Uint8) if size == 1 else (T.i16, fx.Uint16)
        return fx.Int32(
            fx.Uint32(unsigned(rocdl.raw_ptr_buffer_load(kind, self.buffer, offset, fx.Int32(0))))
        )

    def store_words(self, exists: Any, place: Place, byte: fx.Int32, words: Sequence[fx.Int32]) -> None:
        """Stores words from byte `byte` of the place's row on, if they exist."""
        offset = checked(exists, place.row * self.leading + byte)
        for start in range(0, len(words), 4):
            part = list(words[start : start + 4])
            # A vector of one word would make LLVM's instruction selection abort.
            data = part[0] if len(part) == 1 else fx.Vector.from_elements(part, fx.Int32)
            at = fx.Int32(4 * start).ir_value()
            rocdl.raw_ptr_buffer_store(data.ir_value(), self.buffer, offset.ir_value(), at)

    def store_element(self, exists: Any, place: Place, byte: fx.Int32, bits: fx.Int32, size: int) -> None:
        """Stores the low `size` bytes of `bits`, if they exist."""
        integer = {1: fx.Int8, 2: fx.Int16, 4: fx.Int32}[size]
        offset = checked(exists, place.row * self.leading + byte)
        value = bits.to(integer) if size < 4 else bits
        zero = fx.Int32(0).ir_value()
        rocdl.raw_ptr_buffer_store(value.ir_value(), self.buffer, offset.ir_value(), zero)
