"""The kernel that quantises, in FlyDSL: four neighbouring work-items have a block, with 8 elements each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from flycc.contracts.mx import NAN_BYTE
from flycc.contracts.scaled_gemm import BLOCK_K
from flycc.kernels.common.arguments import numbers, placeholders
from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.mx_quantize import extent
from flycc.kernels.mx_quantize.block import Block, Rule, word_of_bytes
from flycc.kernels.mx_quantize.config import BYTES, CHUNK, SHARING, THREADS
from flycc.kernels.mx_quantize.kernarg import QUANTIZE
from flycc.kernels.mx_quantize.place import Operand, Place, places
from flycc.kernels.mx_quantize.variant import QuantizeVariant

if TYPE_CHECKING:
    Numbers = Any
else:
    (Numbers,) = numbers(QUANTIZE)


def _load(x: Operand, place: Place, variant: QuantizeVariant) -> list[fx.Int32]:
    """The words of a chunk, with zeros for what does not exist."""
    size = BYTES[variant.dtype]
    if variant.wide_loads:
        return x.load_words(place, place.column * size, CHUNK * size // 4)
    bits = [x.load_element(place.has(i), place, (place.column + i) * size, size) for i in range(CHUNK)]
    if size == 4:
        return bits
    return [bits[i] | (bits[i + 1] << 16) for i in range(0, CHUNK, 2)]


def _store(data: Operand, place: Place, codes: list[fx.Int32], variant: QuantizeVariant) -> None:
    each = 2 if variant.format == "e2m1" else 1  # elements of a byte
    byte = place.column // each
    if variant.wide_stores:
        data.store_words(place.exists, place, byte, codes)
        return
    for i in range(CHUNK // each):
        code = codes[i // 4] >> (8 * (i % 4))
        data.store_element(place.has(i * each), place, byte + i, code, 1)


def _store_byte(scales: Operand, place: Place, byte: fx.Int32, thread: fx.Int32, wide: bool) -> None:
    block = fx.Int32(fx.Uint32(place.column) // BLOCK_K)
    if not wide:
        scales.store_element(place.exists & (thread % SHARING == 0), place, block, byte, 1)
        return
    exists = place.exists & (thread % (4 * SHARING) == 0)
    scales.store_words(exists, place, block, [word_of_bytes(byte, thread)])


def _turn(
    first: fx.Int32,
    thread: fx.Int32,
    x: fx.Pointer,
    data: fx.Pointer,
    scales: fx.Pointer,
    shape: Any,
    variant: QuantizeVariant,
    seen: fx.Int32,
    highest: fx.Int32,
) -> tuple[fx.Int32, fx.Int32]:
    """Quantises the rows of a workgroup from `first` on; returns what it has seen of bytes now."""
    columns = shape.columns
    stored = (columns + 1) // 2 if variant.format == "e2m1" else columns
    blocks = fx.Int32(fx.Uint32(columns + (BLOCK_K - 1)) // BLOCK_K)
    from_ = Operand.of(x, first, shape.ld_x, BYTES[variant.dtype])
    to, bytes_ = Operand.of(data, first, fx.Int64(stored)), Operand.of(scales, first, fx.Int64(blocks))
    chunks = places(first, thread, fx.block_idx.x, shape, variant.config)
    rule = Rule(variant.dtype, variant.format, variant.rounding)
    loaded = [_load(from_, place, variant) for place in chunks]
    for place, words in zip(chunks, loaded, strict=True):
        block = Block.of(words, rule)
        _store(to, place, block.codes(), variant)
        _store_byte(bytes_, place, block.byte, thread, variant.wide_scales)
        zero = fx.Int32(0)
        seen = extent.larger(seen, place.exists.select(extent.of_byte(block.byte), zero))
        highest = fx.max(highest, place.exists.select(block.byte, zero))
    return seen, highest


def build(variant: QuantizeVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    config = variant.config

    @flyc.kernel(name=variant.symbol)
    def mx_quantize(
        x: fx.Pointer,
        data: fx.Pointer,
        scales: fx.Pointer,
        shape: Numbers,
        partial: fx.Pointer,
        arrived: fx.Pointer,
        range_: fx.Pointer,
    ) -> None:
        thread, group = fx.thread_idx.x, fx.block_idx.y
        scratch = fx.SharedAllocator().allocate(fx.Array[fx.Int32, THREADS // WAVE_SIZE, 16]).peek().ptr
        seen, highest = fx.Int32(0), fx.Int32(0)
        for turn in range(shape.turns):
            first = (turn * shape.groups + group) * config.rows
            seen, highest = _turn(first, thread, x, data, scales, shape, variant, seen, highest)
        meeting = extent.Meeting(
            fx.block_idx.x * shape.groups + group, shape.workgroups, partial, arrived, range_
        )
        extent.publish(seen, highest == NAN_BYTE, thread, scratch, meeting)

    @flyc.jit
    def launch(
        x: fx.Pointer,
        data: fx.Pointer,
        scales: fx.Pointer,
        shape: Numbers,
        partial: fx.Pointer,
        arrived: fx.Pointer,
        range_: fx.Pointer,
        grid: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        mx_quantize(x, data, scales, shape, partial, arrived, range_).launch(
            grid=(grid, grid, 1), block=(THREADS, 1, 1), stream=stream
        )

    elements = dict.fromkeys(("partial", "arrived", "range"), fx.Int32)
    elements |= {"x": ELEMENTS[variant.dtype], "data": fx.Int8, "scales": fx.Int8}
    return launch, (*placeholders(QUANTIZE, elements), fx.Int32(1))
