"""Blocks in registers, in FlyDSL: four neighbouring lanes have one, with 8 elements each.

Magnitudes are compared, and cut off at the format's largest number, as integers, which for floating point is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.contracts.mx import EMAX, NAN_BYTE, ZERO_BLOCK, ScaleRounding, carry
from flycc.contracts.scaled_gemm import ElementFormat
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.mx_quantize.config import SHARING
from flycc.kernels.mx_quantize.extent import halves

_INFINITY = 0x7F800000
#: The fraction of 1.75, which the largest numbers of both 8-bit formats have as theirs.
_LARGEST_FRACTION = 0x600000
#: DPP controls: another lane of the four, and of those another pair; of 16 lanes those 4 and 8 before.
_SWAP, _SWAP_PAIRS, _TURN_4, _TURN_8 = 0xB1, 0x4E, 0x124, 0x128


@dataclass(frozen=True)
class Rule:
    """What elements of `dtype` become, and how scales are rounded."""

    dtype: str
    format: ElementFormat
    rounding: ScaleRounding


@dataclass(frozen=True)
class Block:
    """A block's byte, and of a chunk of it the words of bits: one element each of float32, else two.

    The lanes of its four chunks must all be at work.
    """

    words: list[fx.Int32]
    byte: fx.Int32
    rule: Rule

    @classmethod
    def of(cls, words: list[fx.Int32], rule: Rule) -> Block:
        amax = _over_block(_largest([word & _magnitude_mask(rule) for word in words], rule))
        exponent = fx.Int32(fx.Uint32(amax + carry(rule.format, rule.rounding)) >> 23) - EMAX[rule.format]
        byte = (amax == 0).select(fx.Int32(ZERO_BLOCK), fx.max(exponent, fx.Int32(0)))
        return cls(words, (amax >= _INFINITY).select(fx.Int32(NAN_BYTE), byte), rule)

    def codes(self) -> list[fx.Int32]:
        """The elements in the format, as the words of memory that they are."""
        rule, words = self.rule, self.words
        scale = (self.byte << 23).bitcast(fx.Float32).ir_value()
        if rule.format != "e2m1" and rule.rounding != "ceil":
            words = self._cut_off()
        if rule.format == "e2m1":
            codes = [_to_e2m1(words, scale, rule.dtype)]
        else:
            half = len(words) // 2
            codes = [_to_8_bits(part, scale, rule) for part in (words[:half], words[half:])]
        return [(self.byte == NAN_BYTE).select(fx.Int32(0), code) for code in codes]

    def _cut_off(self) -> list[fx.Int32]:
        """The words with magnitudes of at most the format's largest number, times the scale."""
        rule, mask = self.rule, _magnitude_mask(self.rule)
        limit = _both_halves(((self.byte + EMAX[rule.format]) << 23) | _LARGEST_FRACTION, rule.dtype)
        return [_smaller(word & mask, limit, rule.dtype) | (word & ~mask) for word in self.words]


def _magnitude_mask(rule: Rule) -> int:
    return 0x7FFFFFFF if rule.dtype == "f32" else 0x7FFF7FFF


def _smaller(word: fx.Int32, limit: fx.Int32, dtype: str) -> fx.Int32:
    if dtype == "f32":
        return fx.min(word, limit)
    return fx.min(halves(word), halves(limit)).bitcast(fx.Int32)[0]


def _largest(magnitudes: list[fx.Int32], rule: Rule) -> fx.Int32:
    """The largest magnitude, as the bits of a float32."""
    if rule.dtype == "f32":
        return fx.max(*magnitudes)
    both = fx.max(*(halves(word) for word in magnitudes))
    bits = fx.max(both[0], both[1])
    if rule.dtype == "bf16":
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


def _to_8_bits(words: list[fx.Int32], scale: Any, rule: Rule) -> fx.Int32:
    """A word of four elements."""
    target = {"e4m3": "fp8", "e5m2": "bf8"}[rule.format]
    convert = getattr(rocdl, f"cvt_scalef32_pk_{target}_{rule.dtype}")
    kind = fx.Vector.make_type(2, fx.Int16)
    done = fx.Vector.filled(2, 0, fx.Int16).ir_value()
    for half, sources in enumerate(_sources(words, rule.dtype)):
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


def word_of_bytes(byte: fx.Int32, lane: fx.Int32) -> fx.Int32:
    """The bytes of 16 neighbouring lanes, which are those of four blocks, as one word; of any kind of `lane` number by
    which 16 neighbours begin at a multiple of 16. All of them must be at work."""
    word = byte << (fx.Int32(fx.Uint32(lane) // SHARING) % 4 * 8)
    word = word | _from_lane(word, _TURN_4)
    return word | _from_lane(word, _TURN_8)
