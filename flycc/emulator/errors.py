"""Errors of the emulator. Every input, however broken, gives a result or one of these."""

from __future__ import annotations

from collections.abc import Sequence


class EmulatorError(Exception):
    """Base of everything the emulator raises on purpose."""


class BadCodeObject(EmulatorError):
    """The bytes are not a code object this emulator can load: malformed, truncated, or for another target."""


class UnknownInstruction(EmulatorError):
    """No gfx950 instruction known here has this encoding.

    Attributes: `address` (bytes, virtual) and `words` (the dwords at it, up to four).
    """

    def __init__(self, address: int, words: Sequence[int], why: str) -> None:
        self.address = address
        self.words = tuple(words)
        encoding = " ".join(f"{word:08x}" for word in self.words) or "(nothing)"
        super().__init__(f"unknown instruction at {address:#x}, encoding {encoding}: {why}")
