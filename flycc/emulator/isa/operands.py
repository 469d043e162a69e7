"""Operand types of the instruction tables, and what an inline constant means to each."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

# Inline floats 240..248 (ISA document, "Scalar source operands"); the last is 1/(2*pi).
_FLOATS = (0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0)
_INV_2PI = {"f16": 0x3118, "bf16": 0x3E22, "f32": 0x3E22F983, "f64": 0x3FC45F306DC9C882}
_DWORD = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class OperandType:
    """`repeat` elements of type `element` (`f32`, `bf16`, `b64`, `fp6`, ...) in `count` dwords.

    `field` overrides the encoding's field by position; `file` (`s`, `a` or `v`) overrides the register file.
    Elements that are not numbers: `mask` (a lane mask in an SGPR pair; vcc where the encoding has no field
    for it), `raw` (the field itself), `mxa` and `mxb` (a matrix whose element cbsz or blgp selects).
    """

    element: str
    count: int
    repeat: int = 1
    field: str | None = None
    file: str | None = None


def parse_type(text: str) -> OperandType:
    """Read one table entry: `[field:][file:]element[xN]`."""
    *prefixes, body = text.split(":")
    file = next((prefix for prefix in prefixes if prefix in ("s", "a", "v")), None)
    field = next((prefix for prefix in prefixes if prefix != file), None)
    name, _, repeat = body.partition("x") if not body.startswith("mx") else (body, "", "")
    bits = re.search(r"\d+$", name)
    if name == "mask":
        count = 2
    else:
        count = -(-int(bits[0]) * int(repeat or 1) // 32) if bits else 1
    return OperandType(name, count, int(repeat or 1), field, file)


def inline_constant(code: int, kind: OperandType) -> int | None:
    """The bits of inline constant `code` for one element, or None if `code` is not an inline constant.

    64-bit elements give 64 bits, all others 32. Integers are sign-extended. Floats take the element's own
    format if it has one; a lone 16-bit integer takes half precision, other 64-bit elements double, and all
    others single.
    """
    element = kind.element
    wide = element.endswith("64") or element == "mask"
    if 128 <= code <= 208:
        integer = code - 128 if code <= 192 else 192 - code
        return integer & ((1 << 64) - 1 if wide else _DWORD)
    if not 240 <= code <= 248:
        return None
    if element in _INV_2PI:
        target = element
    elif wide:
        target = "f64"
    else:
        target = "f16" if kind.repeat == 1 and element in ("b16", "i16", "u16") else "f32"
    if code == 248:
        return _INV_2PI[target]
    number = _FLOATS[code - 240]
    if target == "bf16":
        return struct.unpack("<I", struct.pack("<f", number))[0] >> 16
    layout = {"f16": "eH", "f32": "fI", "f64": "dQ"}[target]
    return struct.unpack("<" + layout[1], struct.pack("<" + layout[0], number))[0]


def literal_constant(word: int, kind: OperandType) -> int:
    """The bits of a 32-bit literal as one element sees them."""
    element = kind.element
    if element == "f64":
        return word << 32
    if element == "i64" and word >> 31:
        return word | (_DWORD << 32)
    return word & 0xFFFF if kind.repeat == 1 and element in ("f16", "b16", "i16", "u16") else word
