"""Memory accesses with 16-bit elements that cannot leave their operand, in FlyDSL.

An access goes to a base (a 64-bit scalar address) plus a 32-bit byte offset per lane. An element that does
not exist gets the offset `OFFSET_LIMIT`: there the hardware returns zero for a load and drops a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.kernels.common.machine import OFFSET_LIMIT


def bounded(pointer: fx.Pointer, size: fx.Int32 | None = None) -> Any:
    """A buffer resource of `size` bytes, at most and by default `OFFSET_LIMIT`, that starts at `pointer`."""
    records = fx.Int64(OFFSET_LIMIT if size is None else size)
    return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(pointer, num_records_bytes=records))


def checked(exists: Any, offset: fx.Int32) -> fx.Int32:
    """`offset` where `exists`, else the offset at which accesses have no effect."""
    return exists.select(offset, fx.Int32(OFFSET_LIMIT - (1 << 32)))


def load16(buffer: Any, count: int, offset: fx.Int32, scalar_offset: Any) -> list[fx.Int16]:
    """`count` (1, 2, 4 or 8) neighbouring 16-bit elements at byte `offset + scalar_offset`."""
    if count == 1:
        return [fx.Int16(rocdl.raw_ptr_buffer_load(T.i16, buffer, offset, scalar_offset))]
    kind = fx.Vector.make_type(count, fx.Int16)
    vector = fx.Vector(rocdl.raw_ptr_buffer_load(kind, buffer, offset, scalar_offset))
    return [vector[i] for i in range(count)]


def store16(buffer: Any, values: Sequence[fx.Float32], element: Any, offset: fx.Int32) -> None:
    """Rounds 1, 2, 4 or 8 `values` to the 16-bit type `element` and stores them at byte `offset`."""
    rocdl.raw_ptr_buffer_store(_rounded(values, element), buffer, offset.ir_value(), fx.Int32(0).ir_value())


def _rounded(values: Sequence[fx.Float32], element: Any) -> Any:
    """One element, one word that holds two, or a vector of words: pairs convert in one instruction.

    A vector of one word would make LLVM's instruction selection abort.
    """
    if len(values) == 1:
        return values[0].to(element).bitcast(fx.Int16).ir_value()
    pairs = [fx.Vector.from_elements(values[i : i + 2], fx.Float32) for i in range(0, len(values), 2)]
    words = [pair.to(element).bitcast(fx.Int32)[0] for pair in pairs]
    return words[0].ir_value() if len(words) == 1 else fx.Vector.from_elements(words, fx.Int32).ir_value()
