"""The kernel that finds the range of E8M0 bytes, in FlyDSL: four of a word at a time, one in each half of two words.

What is seen twice changes nothing, so a work-item without a vector of its own takes the last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.kernels.common.arguments import numbers, placeholders
from flycc.kernels.common.buffers import bounded
from flycc.kernels.common.machine import ACCESS_BYTES, WAVE_SIZE
from flycc.kernels.mx_quantize import extent
from flycc.kernels.mx_quantize.config import RANGE_VECTORS, THREADS
from flycc.kernels.mx_quantize.extent import halves, larger
from flycc.kernels.mx_quantize.kernarg import RANGE

if TYPE_CHECKING:
    Numbers = Any
else:
    (Numbers,) = numbers(RANGE)

_BYTES = 0x00FF00FF


@dataclass(frozen=True)
class Seen:
    """Half by half: the largest 255 - byte, the largest (byte + 1) mod 256, and the least 255 - byte, which is 0 if
    there is a 255.
    """

    below: fx.Int32
    above: fx.Int32
    least: fx.Int32

    def add(self, bytes_: fx.Int32) -> Seen:
        """With those of the two bytes of a word, in its halves."""
        below = _BYTES - bytes_
        above = (bytes_ + 0x00010001) & _BYTES
        least = fx.min(halves(self.least), halves(below)).bitcast(fx.Int32)[0]
        return Seen(larger(self.below, below), larger(self.above, above), least)


def _add_words(
    seen: tuple[fx.Int32, fx.Int32, fx.Int32], words: list[fx.Int32]
) -> tuple[fx.Int32, fx.Int32, fx.Int32]:
    found = Seen(*seen)
    for word in words:
        found = found.add(word & _BYTES).add((word >> 8) & _BYTES)
    return found.below, found.above, found.least


def _vectors(buffer: Any, first: fx.Int32, whole: fx.Int32) -> list[fx.Int32]:
    """The words of a work-item's vectors from number `first` on, of `whole`."""
    kind = fx.Vector.make_type(ACCESS_BYTES // 4, fx.Int32)
    loaded = []
    for i in range(RANGE_VECTORS):
        index = fx.min(first + i * THREADS, whole - 1)
        loaded.append(fx.Vector(rocdl.raw_ptr_buffer_load(kind, buffer, index * ACCESS_BYTES, fx.Int32(0))))
    return [vector[i] for vector in loaded for i in range(vector.numel)]


def _largest_half(word: fx.Int32) -> fx.Int32:
    both = halves(word)
    return fx.Int32(fx.Uint32(fx.max(both[0], both[1])))


def build() -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel, and placeholder arguments for it."""

    @flyc.kernel(name="scale_range")
    def scale_range(
        scales: fx.Pointer, shape: Numbers, partial: fx.Pointer, arrived: fx.Pointer, range_: fx.Pointer
    ) -> None:
        thread, group = fx.thread_idx.x, fx.block_idx.x
        scratch = fx.SharedAllocator().allocate(fx.Array[fx.Int32, THREADS // WAVE_SIZE, 16]).peek().ptr
        buffer = bounded(scales)
        whole = fx.Int32(fx.Uint32(shape.count) // ACCESS_BYTES)
        below, above, least = fx.Int32(0), fx.Int32(0), fx.Int32(_BYTES)
        for turn in range(shape.turns):
            first = (turn * shape.groups + group) * (THREADS * RANGE_VECTORS) + thread
            below, above, least = _add_words((below, above, least), _vectors(buffer, first, whole))
        # The bytes beyond the vectors, which every workgroup looks at.
        last = fx.min(whole * ACCESS_BYTES + thread, shape.count - 1)
        byte = fx.Int32(fx.Uint32(fx.Uint8(rocdl.raw_ptr_buffer_load(T.i8, buffer, last, fx.Int32(0)))))
        seen = Seen(below, above, least).add(byte | (byte << 16))
        both = (_largest_half(seen.above) << 16) | _largest_half(seen.below)
        nan = ((seen.least & 0xFFFF) == 0) | (fx.Uint32(seen.least) < fx.Uint32(1 << 16))
        meeting = extent.Meeting(group, shape.groups, partial, arrived, range_)
        extent.publish(both, nan, thread, scratch, meeting)

    @flyc.jit
    def launch(
        scales: fx.Pointer,
        shape: Numbers,
        partial: fx.Pointer,
        arrived: fx.Pointer,
        range_: fx.Pointer,
        grid: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        scale_range(scales, shape, partial, arrived, range_).launch(
            grid=(grid, 1, 1), block=(THREADS, 1, 1), stream=stream
        )

    elements = {"scales": fx.Int8} | dict.fromkeys(("partial", "arrived", "range"), fx.Int32)
    return launch, (*placeholders(RANGE, elements), fx.Int32(1))
