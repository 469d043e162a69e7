"""Code objects as loaded on the emulated device, kept for tests that launch one again."""

from __future__ import annotations

from functools import lru_cache

from flycc import emulator
from flycc.codegen.compile import Compiled


def loaded(compiled: Compiled) -> emulator.Kernel:
    """The kernel of a code object; the same one for the same bytes, as far as few others were loaded since.

    Decoding a kernel, and binding it to a number of waves, takes longer than most tests' launches.
    """
    return _loaded(compiled.elf, compiled.symbol)


@lru_cache(maxsize=8)
def _loaded(elf: bytes, symbol: str) -> emulator.Kernel:
    return emulator.load(elf).kernels[symbol]
