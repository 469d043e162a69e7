"""The kernel that dequantises, in FlyDSL: a work-item has 8 elements of a block, which the conversions scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import rocdl

from flycc.contracts.mx import NAN_BYTE
from flycc.contracts.scaled_gemm import BLOCK_K
from flycc.kernels.common.arguments import numbers, placeholders
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.mx_quantize.config import BYTES, CHUNK, THREADS
from flycc.kernels.mx_quantize.kernarg import DEQUANTIZE
from flycc.kernels.mx_quantize.place import Operand, Place, places
from flycc.kernels.mx_quantize.variant import DequantizeVariant

if TYPE_CHECKING:
    Numbers = Any
else:
    (Numbers,) = numbers(DEQUANTIZE)

#: What elements are called in the names of conversions.
_SHORT = {"e4m3": "fp8", "e5m2": "bf8", "e2m1": "fp4"}
#: NaN in all elements of a word.
_NAN_WORD = {"bf16": 0x7FC07FC0, "f16": 0x7E007E00, "f32": 0x7FC00000}


def _load(data: Operand, place: Place, variant: DequantizeVariant) -> list[fx.Int32]:
    """The words of a chunk's codes."""
    each = 2 if variant.format == "e2m1" else 1  # elements of a byte
    count, byte = CHUNK // each, place.column // each
    if variant.wide_loads:
        return data.load_words(place, byte, count // 4)
    codes = [data.load_element(place.has(i * each), place, byte + i, 1) for i in range(count)]
    return [
        codes[i] | (codes[i + 1] << 8) | (codes[i + 2] << 16) | (codes[i + 3] << 24)
        for i in range(0, count, 4)
    ]


def _values(words: list[fx.Int32], byte: fx.Int32, variant: DequantizeVariant) -> list[fx.Int32]:
    """What the codes are worth, as words: one element each of float32, else two."""
    element = ELEMENTS[variant.dtype]
    convert = getattr(rocdl, f"cvt_scalef32_pk_{variant.dtype}_{_SHORT[variant.format]}")
    kind = fx.Vector.make_type(2, element)
    scale = (byte << 23).bitcast(fx.Float32).ir_value()
    pairs = 4 if variant.format == "e2m1" else 2  # of a word
    nan = byte == NAN_BYTE
    values: list[fx.Int32] = []
    for word in words:
        for pair in range(pairs):
            which = pair if variant.format == "e2m1" else bool(pair)
            found = fx.Vector(convert(kind, word.ir_value(), scale, which)).bitcast(fx.Int32)
            values += [nan.select(fx.Int32(_NAN_WORD[variant.dtype]), found[i]) for i in range(found.numel)]
    return values


def _store(out: Operand, place: Place, values: list[fx.Int32], variant: DequantizeVariant) -> None:
    size = BYTES[variant.dtype]
    if variant.wide_stores:
        out.store_words(place.exists, place, place.column * size, values)
        return
    for i in range(CHUNK):
        bits = values[i] if size == 4 else values[i // 2] >> (16 * (i % 2))
        out.store_element(place.has(i), place, (place.column + i) * size, bits, size)


def _turn(
    first: fx.Int32,
    thread: fx.Int32,
    data: fx.Pointer,
    scales: fx.Pointer,
    out: fx.Pointer,
    shape: Any,
    variant: DequantizeVariant,
) -> None:
    """Dequantises the rows of a workgroup from `first` on."""
    from_, bytes_ = Operand.of(data, first, shape.ld_data), Operand.of(scales, first, shape.ld_scales)
    to = Operand.of(out, first, fx.Int64(shape.columns), BYTES[variant.dtype])
    chunks = places(first, thread, fx.block_idx.x, shape, variant.config)
    loaded = []
    for place in chunks:
        block = fx.Int32(fx.Uint32(place.column) // BLOCK_K)
        byte = bytes_.load_element(place.exists, place, block, 1)
        loaded.append((_load(from_, place, variant), byte))
    for place, (words, byte) in zip(chunks, loaded, strict=True):
        _store(to, place, _values(words, byte, variant), variant)


def build(variant: DequantizeVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    config = variant.config

    @flyc.kernel(name=variant.symbol)
    def mx_dequantize(data: fx.Pointer, scales: fx.Pointer, out: fx.Pointer, shape: Numbers) -> None:
        for turn in range(shape.turns):
            first = (turn * shape.groups + fx.block_idx.y) * config.rows
            _turn(first, fx.thread_idx.x, data, scales, out, shape, variant)

    @flyc.jit
    def launch(
        data: fx.Pointer,
        scales: fx.Pointer,
        out: fx.Pointer,
        shape: Numbers,
        grid: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        mx_dequantize(data, scales, out, shape).launch(
            grid=(grid, grid, 1), block=(THREADS, 1, 1), stream=stream
        )

    elements = {"data": fx.Int8, "scales": fx.Int8, "out": ELEMENTS[variant.dtype]}
    return launch, (*placeholders(DEQUANTIZE, elements), fx.Int32(1))
