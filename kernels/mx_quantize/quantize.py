"""The kernel that quantises, in FlyDSL: four neighbouring work-items have a block, with 8 elements each.

Magnitudes are compared, and cut off at the format's largest number, as integers, which for floating point is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.contracts.mx import EMAX, NAN_BYTE, ZERO_BLOCK, carry
from flycc.contracts.scaled_gemm import BLOCK_K
from flycc.kernels.common.arguments import numbers, placeholders
from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.mx_quantize import extent
from flycc.kernels.mx_quantize.config import BYTES, CHUNK, SHARING, THREADS
from flycc.kernels.mx_quantize.extent import halves
from flycc.kernels.mx_quantize.kernarg import QUANTIZE
from flycc.kernels.mx_quantize.place import Operand, Place, places
from flycc.kernels.mx_quantize.variant import QuantizeVariant

if TYPE_CHECKING:
    Numbers = Any
else:
    (Numbers,) = numbers(QUANTIZE)

_INFINITY = 0x7F800000
#: The fraction of 1.75, which the largest numbers of both 8-bit formats have as theirs.
_LARGEST_FRACTION = 0x600000
#: DPP controls: another lane of the four, and of those another pair; of 16 lanes those 4 and 8 before.
_SWAP, _SWAP_PAIRS, _TURN_4, _TURN_8 = 0xB1, 0x4E, 0x124, 0x128


@dataclass(frozen=True)
class Block:
    """A block's byte, and of a chunk of it the words of bits: one element each of float32, else two."""

    words: list[fx.Int32]
    byte: fx.Int32
    variant: QuantizeVariant

    @classmethod
    def of(cls, words: list[fx.Int32], variant: QuantizeVariant) -> Block:
        amax = _over_block(_largest([word & _magnitude_mask(variant) for word in words], variant))
        exponent = (
            fx.Int32(fx.Uint32(amax + carry(variant.format, variant.rounding)) >> 23) - EMAX[variant.format]
        )
        byte = (amax == 0).select(fx.Int32(ZERO_BLOCK), fx.max(exponent, fx.Int32(0)))
        return cls(words, (amax >= _INFINITY).select(fx.Int32(NAN_BYTE), byte), variant)

    def codes(self) -> list[fx.Int32]:
        """The elements in the format, as the words of memory that they are."""
        variant, words = self.variant, self.words
        scale = (self.byte << 23).bitcast(fx.Float32).ir_value()
        if variant.format != "e2m1" and variant.rounding != "ceil":
            words = self._cut_off()
        if variant.format == "e2m1":
            codes = [_to_e2m1(words, scale, variant.dtype)]
        else:
            half = len(words) // 2
            codes = [_to_8_bits(part, scale, variant) for part in (words[:half], words[half:])]
        return [(self.byte == NAN_BYTE).select(fx.Int32(0), code) for code in codes]

    def _cut_off(self) -> list[fx.Int32]:
        """The words with magnitudes of at most the format's largest number, times the scale."""
        variant, mask = self.variant, _magnitude_mask(self.variant)
        limit = _both_halves(((self.byte + EMAX[variant.format]) << 23) | _LARGEST_FRACTION, variant.dtype)
        return [_smaller(word & mask, limit, variant.dtype) | (word & ~mask) for word in self.words]


def _magnitude_mask(variant: QuantizeVariant) -> int:
    return 0x7FFFFFFF if variant.dtype == "f32" else 0x7FFF7FFF


def _smaller(word: fx.Int32, limit: fx.Int32, dtype: str) -> fx.Int32:
    if dtype == "f32":
        return fx.min(word, limit)
    return fx.min(halves(word), halves(limit)).bitcast(fx.Int32)[0]


def _largest(magnitudes: list[fx.Int32], variant: QuantizeVariant) -> fx.Int32:
    """The largest magnitude, as the bits of a float32."""
    if variant.dtype == "f32":
        return fx.max(*magnitudes)
    both = fx.max(*(halves(word) for word in magnitudes))
    bits = fx.max(both[0], both[1])
    if variant.dtype == "bf16":
        return fx.Int32(fx.Uint32(bits)) << 16
    return fx.Int16(bits).bitcast(fx.Float16).to(fx.Float32).bitcast(fx.Int32)


def _both_halves(bits: fx.Int32, dtype: str) -> fx.Int32:
    """float32 bits as those of the type; of one of 16 bits in both halves of a word."""
    if dtype == "f32":
        return bits
    if dtype == "bf16":
        return bits | fx.Int32(fx.Uint32(bits) >> 16)
    half = fx.Int32(fx.Uint32(bits.bitcast(fx.Float32).to(fx.Float16).bitcast(fx.Uint16)))
    return half | (half << 16)


def _over_block(bits: fx.Int32) -> fx.Int32:
    for control in (_SWAP, _SWAP_PAIRS):
        bits = fx.max(bits, _from_lane(bits, control))
    return bits


def _from_lane(value: fx.Int32, control: int) -> fx.Int32:
    """`value` of another lane: all rows and banks, and every lane has one."""
    raw = value.ir_value()
    return fx.Int32(rocdl.update_dpp(T.i32, raw, raw, control, 15, 15, True))


def _pair(word: fx.Int32, dtype: str) -> Any:
    return fx.Vector.from_elements([word], fx.Int32).bitcast(ELEMENTS[dtype]).ir_value()


def _to_8_bits(words: list[fx.Int32], scale: Any, variant: QuantizeVariant) -> fx.Int32:
    """A word of four elements."""
    target = {"e4m3": "fp8", "e5m2": "bf8"}[variant.format]
    convert = getattr(rocdl, f"cvt_scalef32_pk_{target}_{variant.dtype}")
    kind = fx.Vector.make_type(2, fx.Int16)
    done = fx.Vector.filled(2, 0, fx.Int16).ir_value()
    for half, sources in enumerate(_sources(words, variant.dtype)):
        done = convert(kind, done, *sources, scale, bool(half))
    return fx.Vector(done).bitcast(fx.Int32)[0]


def _to_e2m1(words: list[fx.Int32], scale: Any, dtype: str) -> fx.Int32:
    """A word of eight elements."""
    convert = getattr(rocdl, f"cvt_scalef32_pk_fp4_{dtype}")
    done = fx.Int32(0).ir_value()
    for part, sources in enumerate(_sources(words, dtype)):
        done = convert(T.i32, done, *sources, scale, part)
    return fx.Int32(done)


def _sources(words: list[fx.Int32], dtype: str) -> list[list[Any]]:
    """Two elements at a time, as the conversions take them."""
    if dtype == "f32":
        values = [word.bitcast(fx.Float32).ir_value() for word in words]
        return [values[i : i + 2] for i in range(0, len(values), 2)]
    return [[_pair(word, dtype)] for word in words]


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
    # Of 16 lanes every four have a byte of the word.
    word = byte << (thread // SHARING % 4 * 8)
    word = word | _from_lane(word, _TURN_4)
    word = word | _from_lane(word, _TURN_8)
    scales.store_words(place.exists & (thread % (4 * SHARING) == 0), place, block, [word])


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
    loaded = [_load(from_, place, variant) for place in chunks]
    for place, words in zip(chunks, loaded, strict=True):
        block = Block.of(words, variant)
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
