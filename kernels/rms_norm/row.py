"""A workgroup's rows as one work-item sees them, in FlyDSL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flydsl.expr as fx

from flycc.kernels.common import vectors
from flycc.kernels.common.buffers import bounded, checked


@dataclass(frozen=True)
class Place:
    """`count` elements of a row from `column + static` on; `exists` says whether they do (None: they do).

    `odd`, if given, says whether `column` is odd.
    """

    column: fx.Int32
    static: int
    count: int
    exists: Any
    odd: Any = None


@dataclass(frozen=True)
class Row:
    """A work-item's row in its workgroup. `exists` is None where every row of a workgroup does.

    Where rows of 16-bit elements have an odd length, every other one starts in the middle of a word of 4
    bytes. `head` is then 1, and its vectors start at column 1; else it is 0, or None where it always is.
    """

    index: fx.Int32
    columns: fx.Int32
    thread: fx.Int32  # of those that share the row
    threads: int
    width: int  # elements of a vector
    whole: fx.Int32  # elements of the row in vectors
    head: fx.Int32 | None
    exists: Any

    def vectors(self, count: int, first: fx.Int32 | int = 0, checked_from: int = 0) -> list[Place]:
        """The work-item's next `count` vectors after the row's `first`; those before `checked_from` exist."""
        column = (self.thread + first) * self.width
        odd = None
        if self.head is not None:
            column, odd = column + self.head, self.head > 0
        places = []
        for i in range(count):
            static = i * self.threads * self.width
            inside = self.exists
            if i >= checked_from:
                inside = self.and_exists(column + (static + self.width) <= self.columns)
            places.append(Place(column, static, self.width, inside, odd))
        return places

    def edge(self) -> Place:
        """The work-item's element before or beyond the row's vectors."""
        column = self.whole + self.thread
        if self.head is not None:
            column = (self.thread < self.head).select(self.thread, column)
        return Place(column, 0, 1, self.and_exists(column < self.columns))

    def and_exists(self, condition: Any) -> Any:
        """Whether the row exists and `condition` holds."""
        return condition if self.exists is None else condition & self.exists


@dataclass(frozen=True)
class Operand:
    """Rows in memory, of which `pointer` is at the workgroup's first, or (`shared`) a single row for all of them."""

    buffer: Any
    element: Any
    row_offset: fx.Int32  # in bytes
    shared: bool

    @classmethod
    def of(cls, pointer: fx.Pointer, element: Any, row: Row, leading: fx.Int64 | None) -> Operand:
        """`leading` is the stride between rows in elements; None for a shared row."""
        offset = fx.Int32(0) if leading is None else row.index * fx.Int32(leading)
        return cls(bounded(pointer), element, offset * vectors.element_bytes(element), leading is None)

    def load(self, place: Place) -> fx.Vector:
        """The elements at `place`; zeros where they do not exist."""
        size = vectors.element_bytes(self.element)
        if self.shared and place.odd is not None and size == 2:
            # The row itself starts at a whole word, so the vector does not.
            even = place.column - place.odd.select(fx.Int32(1), fx.Int32(0))
            last = place.odd if place.exists is None else place.odd & place.exists
            return vectors.load_shifted(
                self.buffer,
                self.element,
                place.count,
                even * size if place.exists is None else checked(place.exists, even * size),
                place.static * size,
                place.odd,
                checked(last, (place.column + (place.count - 1)) * size),
            )
        return vectors.load(self.buffer, self.element, place.count, self._offset(place), place.static * size)

    def store(self, place: Place, values: fx.Vector) -> None:
        """Rounds float32 `values`, or takes those that are of the element type, and stores what exists."""
        if values.element_type is not self.element:
            values = vectors.rounded(values, self.element)
        size = vectors.element_bytes(self.element)
        vectors.store(self.buffer, values, self._offset(place), place.static * size)

    def _offset(self, place: Place) -> fx.Int32:
        offset = self.row_offset + place.column * vectors.element_bytes(self.element)
        return offset if place.exists is None else checked(place.exists, offset)
