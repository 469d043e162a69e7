"""Vectors of floating-point elements between memory and registers, in FlyDSL.

An access of more than 16 bytes is made of several. The hardware takes accesses of 4 bytes and more at any
multiple of 4 bytes, and 2 bytes at any multiple of 2.
"""

from __future__ import annotations

import itertools
from typing import Any

import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.kernels.common.machine import ACCESS_BYTES

#: FlyDSL's types by their MLIR names, and the size of an element in bytes.
ELEMENTS: dict[str, Any] = {"bf16": fx.BFloat16, "f16": fx.Float16, "f32": fx.Float32}


def element_bytes(element: Any) -> int:
    """Size of an element of a FlyDSL type."""
    return element.width // 8


def load(buffer: Any, element: Any, count: int, offset: fx.Int32, scalar_offset: int = 0) -> fx.Vector:
    """`count` (a power of two) neighbouring elements at byte `offset + scalar_offset`."""
    size = element_bytes(element)
    if count == 1:
        kind, integer = (T.i16, fx.Int16) if size == 2 else (T.i32, fx.Int32)
        value = integer(rocdl.raw_ptr_buffer_load(kind, buffer, offset, fx.Int32(scalar_offset)))
        return fx.Vector.from_elements([value.bitcast(element)], element)
    words = _load_words(buffer, count * size // 4, offset, scalar_offset)
    return fx.Vector.from_elements(words, fx.Int32).bitcast(element)


def load_shifted(
    buffer: Any, element: Any, count: int, offset: fx.Int32, scalar_offset: int, shifted: Any, last: fx.Int32
) -> fx.Vector:
    """`count` elements of 16 bits at byte `offset + scalar_offset`, or 2 bytes further where `shifted`.

    `offset` is a multiple of 4 either way. `last` is where the last element lies if `shifted`; else nothing
    is loaded from there if it is out of range.
    """
    words = _load_words(buffer, count // 2, offset, scalar_offset)
    beyond = rocdl.raw_ptr_buffer_load(T.i16, buffer, last, fx.Int32(scalar_offset))
    words.append(fx.Int32(fx.Uint32(fx.Uint16(beyond))))
    moved = [
        shifted.select(fx.Int32(fx.Uint32(low) >> 16) | (high << 16), low)
        for low, high in itertools.pairwise(words)
    ]
    return fx.Vector.from_elements(moved, fx.Int32).bitcast(element)


def _load_words(buffer: Any, count: int, offset: fx.Int32, scalar_offset: int) -> list[fx.Int32]:
    words: list[fx.Int32] = []
    for start in range(0, count, ACCESS_BYTES // 4):
        n = min(ACCESS_BYTES // 4, count - start)
        kind = fx.Vector.make_type(n, fx.Int32) if n > 1 else T.i32
        loaded = rocdl.raw_ptr_buffer_load(kind, buffer, offset, fx.Int32(scalar_offset + 4 * start))
        words += [fx.Vector(loaded)[i] for i in range(n)] if n > 1 else [fx.Int32(loaded)]
    return words


def store(buffer: Any, values: fx.Vector, offset: fx.Int32, scalar_offset: int = 0) -> None:
    """Stores `values`, of any floating-point type, at byte `offset + scalar_offset`."""
    size = element_bytes(values.element_type)
    count = values.numel
    if count == 1:
        integer = fx.Int16 if size == 2 else fx.Int32
        place = fx.Int32(scalar_offset).ir_value()
        rocdl.raw_ptr_buffer_store(values[0].bitcast(integer).ir_value(), buffer, offset.ir_value(), place)
        return
    words = values.bitcast(fx.Int32)
    for start in range(0, words.numel, ACCESS_BYTES // 4):
        part = [words[i] for i in range(start, min(start + ACCESS_BYTES // 4, words.numel))]
        # A vector of one word would make LLVM's instruction selection abort.
        data = part[0].ir_value() if len(part) == 1 else fx.Vector.from_elements(part, fx.Int32).ir_value()
        place = fx.Int32(scalar_offset + 4 * start).ir_value()
        rocdl.raw_ptr_buffer_store(data, buffer, offset.ir_value(), place)


def rounded(values: fx.Vector, element: Any) -> fx.Vector:
    """float32 `values` as the type `element`; 16-bit types in pairs, which one instruction converts."""
    if element is fx.Float32:
        return values
    if values.numel == 1:
        return values.to(element)
    words = []
    for i in range(0, values.numel, 2):
        pair = fx.Vector.from_elements([values[i], values[i + 1]], fx.Float32)
        words.append(pair.to(element).bitcast(fx.Int32)[0])
    return fx.Vector.from_elements(words, fx.Int32).bitcast(element)
