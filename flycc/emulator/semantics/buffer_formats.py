"""Typed buffers: how the components of an element lie in memory, and what numbers they stand for.

The last dword of a V# holds data_format (bits 18:15), num_format (bits 14:12) and, three bits each from bit
0 on, which component, or 0 or 1, each of x, y, z and w is (ISA document, "Buffer resource descriptor").
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: Bits of the components by data_format, the first in the lowest bits.
COMPONENTS = {
    1: (8,),
    2: (16,),
    3: (8, 8),
    4: (32,),
    5: (16, 16),
    6: (11, 11, 10),
    7: (10, 11, 11),
    8: (2, 10, 10, 10),
    9: (10, 10, 10, 2),
    10: (8, 8, 8, 8),
    11: (32, 32),
    12: (16, 16, 16, 16),
    13: (32, 32, 32),
    14: (32, 32, 32, 32),
}

UNORM, SNORM, USCALED, SSCALED, UINT, SINT, FLOAT = 0, 1, 2, 3, 4, 5, 7

#: Selections of a component: constants, or 4 and up for components.
ZERO, ONE = 0, 1


class Format(NamedTuple):
    """A data format, a number format, and the selections of x, y, z and w."""

    data: int
    number: int
    selections: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return sum(COMPONENTS[self.data]) // 8

    @property
    def gives_floats(self) -> bool:
        return self.number not in (UINT, SINT)


def format_of(word: int) -> Format | None:
    """The format in the last dword of a V#; None for one that does not exist."""
    made = Format(word >> 15 & 15, word >> 12 & 7, tuple(word >> 3 * i & 7 for i in range(4)))
    known = made.data in COMPONENTS and made.number != 6 and not set(made.selections) & {2, 3}
    return made if known else None


def _small_float(code: np.ndarray, bits: int) -> np.ndarray:
    """Unsigned floats of 11 or 10 bits: five of exponent, as float16 has, and no sign."""
    return (code << (15 - bits)).astype(np.uint16).view(np.float16).astype(np.float32)


def decode(code: np.ndarray, bits: int, number: int) -> np.ndarray:
    """Components uint32 as numbers: the bits of a float32 or of a 32-bit integer, uint32."""
    signed = (code << np.uint32(32 - bits)).view(np.int32) >> np.int32(32 - bits)
    if number == UINT:
        return code
    if number == SINT:
        return signed.view(np.uint32)
    if number == FLOAT:
        if bits == 32:
            return code
        value = code.astype(np.uint16).view(np.float16) if bits == 16 else _small_float(code, bits)
    elif number == UNORM:
        value = code / float((1 << bits) - 1)
    elif number == SNORM:
        value = np.maximum(signed / float((1 << bits - 1) - 1), -1.0)
    else:
        value = (code if number == USCALED else signed).astype(np.float64)
    return value.astype(np.float32).view(np.uint32)


def encode(value: np.ndarray, bits: int, number: int) -> np.ndarray:
    """The inverse: bits of numbers (uint32) to components, rounded to nearest even and saturated."""
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    if number == UINT:
        return np.minimum(value, np.uint32((1 << bits) - 1))
    if number == SINT:
        return (np.clip(value.view(np.int32), low, high).view(np.uint32)) & np.uint32((1 << bits) - 1)
    numbers = value.view(np.float32).astype(np.float64)
    if number == FLOAT:
        if bits == 32:
            return value
        if bits == 16:
            return numbers.astype(np.float16).view(np.uint16).astype(np.uint32)
        half = np.maximum(numbers, 0).astype(np.float16).view(np.uint16)
        return (half >> np.uint16(15 - bits)).astype(np.uint32)  # cut off, as small floats are
    numbers = np.where(np.isnan(numbers), 0, numbers)
    if number in (UNORM, SNORM):
        least = 0.0 if number == UNORM else -1.0
        numbers = np.clip(numbers, least, 1.0) * ((1 << bits) - 1 if number == UNORM else high)
    limits = (0, (1 << bits) - 1) if number in (UNORM, USCALED) else (low, high)
    whole = np.clip(np.rint(numbers), *limits).astype(np.int64)
    return (whole & (1 << bits) - 1).astype(np.uint32)


def unpack_element(raw: np.ndarray, form: Format, wanted: int) -> list[np.ndarray]:
    """`wanted` of x, y, z, w, each uint32 [...], of elements uint8 [..., form.size]."""
    parts, at = [], 0
    whole = np.zeros((*raw.shape[:-1], 16), np.uint8)
    whole[..., : form.size] = raw
    words = whole.view(np.uint32)
    for bits in COMPONENTS[form.data]:
        word, shift = divmod(at, 32)
        code = words[..., word] >> np.uint32(shift) & np.uint32((1 << bits) - 1)
        parts.append(decode(code, bits, form.number))
        at += bits
    one = np.float32(1).view(np.uint32) if form.gives_floats else np.uint32(1)
    zero = np.zeros_like(words[..., 0])
    parts += [zero, zero, zero, zero + one][len(parts) :]  # absent components are 0, 0, 0, 1
    return [
        zero if pick == ZERO else zero + one if pick == ONE else parts[pick - 4]
        for pick in form.selections[:wanted]
    ]


def pack_element(values: list[np.ndarray], form: Format) -> np.ndarray:
    """The inverse, without the selections: uint8 [..., form.size]; components that are not given are 0."""
    words = np.zeros((*values[0].shape, 4), np.uint32)
    at = 0
    for i, bits in enumerate(COMPONENTS[form.data]):
        if i < len(values):
            word, shift = divmod(at, 32)
            words[..., word] |= encode(values[i], bits, form.number) << np.uint32(shift)
        at += bits
    return words.view(np.uint8)[..., : form.size]
