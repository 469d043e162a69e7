"""LLVM's gfx950 tools as the oracle of the decoder's tests."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

MC = shutil.which("llvm-mc-22")
OBJDUMP = shutil.which("llvm-objdump-22")

needs_llvm = pytest.mark.skipif(
    not (MC and OBJDUMP), reason="llvm-mc-22 and llvm-objdump-22 (Debian's llvm-22) are not installed"
)

_LINE = re.compile(r"\s+(.*?)\s*// ([0-9A-F]{12}):((?: [0-9A-F]{8})+)")
_SLOT = 8  # dwords: no instruction is longer than four, so one that is misread cannot swallow the next slot


def assemble(text: str) -> bytes:
    """The relocatable object of assembly `text`."""
    assert MC
    command = [MC, "--triple=amdgcn-amd-amdhsa", "--mcpu=gfx950", "--filetype=obj"]
    return subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout


def dump(data: bytes) -> dict[int, tuple[str, list[int]]]:
    """Address -> (text with single spaces, words) of every instruction in an object or a code object.

    Raises CalledProcessError where LLVM's disassembler crashes, as it does on some reserved encodings.
    """
    assert OBJDUMP
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "code.o")
        path.write_bytes(data)
        command = [OBJDUMP, "-d", "--mcpu=gfx950", str(path)]
        text = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    found = (_LINE.match(line) for line in text.splitlines())
    return {
        int(m[2], 16): (" ".join(m[1].split()), [int(word, 16) for word in m[3].split()]) for m in found if m
    }


def disassemble(encodings: Sequence[Sequence[int]]) -> list[tuple[str, list[int]] | None]:
    """(text, words) of each encoding, or None where LLVM takes it for none, or marks it as invalid."""
    lines = [
        ".long " + ",".join(map(str, [*words, *[0xBF800000] * (_SLOT - len(words))])) for words in encodings
    ]
    try:
        known = dump(assemble("\n".join(lines) + "\n"))
    except subprocess.CalledProcessError:
        if len(encodings) == 1:
            return [None]
        half = len(encodings) // 2
        return disassemble(encodings[:half]) + disassemble(encodings[half:])
    result = [known.get(4 * _SLOT * index) for index in range(len(encodings))]
    return [None if item is None or ".long" in item[0] or "/*" in item[0] else item for item in result]
