"""Reading bytes that may be broken: every fault is a BadCodeObject, whatever the input."""

from __future__ import annotations

import struct
from typing import Any

from flycc.emulator.errors import BadCodeObject

_MAX_DEPTH = 32


class Reader:
    """Bounds-checked little-endian reads, so that a broken file is one kind of error."""

    def __init__(self, data: bytes | memoryview, what: str) -> None:
        self.data = data
        self.what = what

    def bytes(self, at: int, size: int) -> bytes:
        """`size` bytes at offset `at`."""
        if at < 0 or size < 0 or at + size > len(self.data):
            raise BadCodeObject(
                f"{self.what} is truncated or corrupt: {size} bytes at {at:#x}, has {len(self.data)}"
            )
        return bytes(self.data[at : at + size])

    def unpack(self, layout: str, at: int) -> tuple[int, ...]:
        """The fields of `layout` (struct's letters) at offset `at`."""
        return struct.unpack("<" + layout, self.bytes(at, struct.calcsize("<" + layout)))

    def text(self, at: int) -> str:
        """The zero-terminated string at `at`."""
        end = bytes(self.data).find(b"\0", at) if at < len(self.data) else -1
        if end < 0:
            raise BadCodeObject(f"{self.what} has no string at {at:#x}")
        return utf8(bytes(self.data[at:end]), self.what)


def utf8(raw: bytes, what: str) -> str:
    """`raw`, which comes from `what`, as text."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadCodeObject(f"{what} holds a string that is not UTF-8") from None


# MessagePack's tags for scalars (struct's letter) and for what has a length (its kind, the length's letter).
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_SCALARS = dict(zip(range(0xCA, 0xD4), "fdBHIQbhiq", strict=True))
_SIZED = {
    0xC4: ("bin", "B"), 0xC5: ("bin", "H"), 0xC6: ("bin", "I"),
    0xD9: ("str", "B"), 0xDA: ("str", "H"), 0xDB: ("str", "I"),
    0xDC: ("array", "H"), 0xDD: ("array", "I"), 0xDE: ("map", "H"), 0xDF: ("map", "I"),
}  # fmt: skip


class MessagePack:
    """A reader for the subset of MessagePack that code object metadata uses, of bounded depth and size."""

    def __init__(self, data: bytes) -> None:
        self._reader = Reader(data, "the metadata note")
        self._at = 0

    def document(self) -> Any:
        """The one value that the note holds."""
        return self._value(0)

    def _take(self, layout: str) -> Any:
        """One value; MessagePack is big-endian."""
        size = struct.calcsize(">" + layout)
        (value,) = struct.unpack(">" + layout, self._reader.bytes(self._at, size))
        self._at += size
        return value

    def _value(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise BadCodeObject("the metadata note is nested too deeply")
        tag = self._take("B")
        if tag < 0x80 or tag >= 0xE0:
            return tag - (tag >> 7 << 8)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _SCALARS:
            return self._take(_SCALARS[tag])
        if tag < 0x90:
            kind, size = "map", tag & 15
        elif tag < 0xA0:
            kind, size = "array", tag & 15
        elif tag < 0xC0:
            kind, size = "str", tag & 31
        elif tag in _SIZED:
            kind, layout = _SIZED[tag]
            size = self._take(layout)
        else:
            raise BadCodeObject(f"the metadata note has a value of unknown type {tag:#x}")
        # A value takes at least one byte, so a count beyond what is left fails in the loop, not in memory.
        if kind == "array":
            return [self._value(depth + 1) for _ in range(size)]
        if kind == "map":
            return dict(self._pair(depth + 1) for _ in range(size))
        raw = self._reader.bytes(self._at, size)
        self._at += size
        return raw if kind == "bin" else utf8(raw, "the metadata note")

    def _pair(self, depth: int) -> tuple[str, Any]:
        key = self._value(depth)
        if not isinstance(key, str):
            raise BadCodeObject("the metadata note has a key that is not a string")
        return key, self._value(depth)
