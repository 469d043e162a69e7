"""Floating-point formats of 8, 6 and 4 bits: their values, rounding to them, and how they lie in registers.

The names are the instruction set's: fp8 is OCP E4M3 (no infinity, one NaN), bf8 is E5M2, fp6 is E2M3, bf6
is E3M2 and fp4 is E2M1; the last three have neither infinities nor NaNs. A scale is a power of two,
given by its biased exponent (E8M0; 255 is NaN).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_U = np.uint32


class SmallFloat(NamedTuple):
    """`largest` is the code of the largest finite number, `beyond` that of an overflow (the largest where
    the format saturates), `nan` that of a NaN (the largest too where the format has none)."""

    exponent_bits: int
    mantissa_bits: int
    largest: int
    beyond: int
    nan: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        return (1 << self.exponent_bits - 1) - 1

    @property
    def sign(self) -> int:
        return 1 << self.bits - 1

    def values(self) -> np.ndarray:
        """float32 [2**bits]: the number that each code stands for."""
        code = np.arange(self.sign)
        exponent, mantissa = code >> self.mantissa_bits, code & (1 << self.mantissa_bits) - 1
        significand = mantissa + np.where(exponent > 0, 1 << self.mantissa_bits, 0)
        value = np.ldexp(
            significand.astype(np.float64), np.maximum(exponent, 1) - self.bias - self.mantissa_bits
        )
        value = np.where(code > self.largest, np.nan, value)
        if self.beyond < self.nan and self.beyond > self.largest:
            value[self.beyond] = np.inf
        return np.concatenate([value, -value]).astype(np.float32)


FORMATS = {
    "fp8": SmallFloat(4, 3, largest=0x7E, beyond=0x7F, nan=0x7F),
    "bf8": SmallFloat(5, 2, largest=0x7B, beyond=0x7C, nan=0x7F),
    "fp6": SmallFloat(2, 3, largest=0x1F, beyond=0x1F, nan=0x1F),
    "bf6": SmallFloat(3, 2, largest=0x1F, beyond=0x1F, nan=0x1F),
    "fp4": SmallFloat(2, 1, largest=0x7, beyond=0x7, nan=0x7),
}
VALUES = {name: form.values() for name, form in FORMATS.items()}


def encode(
    value: np.ndarray, form: SmallFloat, saturate: bool = False, dither: np.ndarray | None = None
) -> np.ndarray:
    """Codes (uint8) of float64 values, rounded to nearest even.

    `dither`, in [0, 1) units in the last place, is added to the magnitude instead, which is then cut off:
    stochastic rounding. `saturate` turns an overflow into the largest number, but not an infinity.
    """
    magnitude = np.abs(value)
    exponent = np.where(magnitude > 0, np.frexp(magnitude)[1] - 1, 1 - form.bias)
    exponent = np.clip(exponent, 1 - form.bias, form.bias + 2)
    quotient = np.ldexp(magnitude, form.mantissa_bits - exponent)
    whole = np.rint(quotient) if dither is None else np.floor(quotient + dither)
    code = whole + ((exponent + form.bias - 1) << form.mantissa_bits)
    limit = np.where(np.isinf(value), form.beyond, form.largest) if saturate else form.beyond
    code = np.where(code > form.largest, limit, code)
    code = np.where(np.isnan(value), form.nan, code).astype(np.uint8)
    return code | np.where(np.signbit(value), form.sign, 0).astype(np.uint8)


def power_of_two(exponent: np.ndarray) -> np.ndarray:
    """The scale that biased exponents (integers 0..255) stand for, as float64: 2**-127 to 2**127, or NaN."""
    exponent = exponent.astype(np.int32)
    return np.where(exponent == 255, np.nan, np.ldexp(1.0, exponent - 127))


def scale_of(value: np.ndarray) -> np.ndarray:
    """The scale a float32 operand gives: the power of two in its exponent bits."""
    return power_of_two(value.view(_U) >> _U(23) & _U(255))


def next_random(state: np.ndarray) -> np.ndarray:
    """v_prng_b32: one step of the linear feedback shift register, uint32."""
    return state << _U(1) ^ np.where(state >> _U(31), _U(197), _U(0))


def unpack(words: np.ndarray, bits: int) -> np.ndarray:
    """Dwords uint32 [r, ...] to their fields of 4, 6 or 8 bits, lowest first: uint8 [32 r / bits, ...]."""
    count = 32 * len(words) // bits
    fields = np.empty((count, *words.shape[1:]), np.uint8)
    for i in range(count):
        word, shift = divmod(bits * i, 32)
        field = words[word] >> _U(shift)
        if shift + bits > 32:
            field = field | words[word + 1] << _U(32 - shift)
        fields[i] = field & _U((1 << bits) - 1)
    return fields


def pack(fields: np.ndarray, bits: int) -> np.ndarray:
    """The inverse of `unpack`."""
    words = np.zeros((len(fields) * bits // 32, *fields.shape[1:]), np.uint32)
    for i, field in enumerate(fields.astype(np.uint32)):
        word, shift = divmod(bits * i, 32)
        words[word] |= field << _U(shift)
        if shift + bits > 32:
            words[word + 1] |= field >> _U(32 - shift)
    return words
