"""Kernels of `programs/`: assembly text with the words LLVM made of it, so that tests run without LLVM."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
from harness import descriptor

from flycc.emulator import Kernel
from flycc.emulator.elf import CodeObject, KernelArg, Segment, UserSgpr

PROGRAMS = Path(__file__).parent / "programs"
ENTRY = 0x1000
MC, OBJCOPY = "llvm-mc-22", "llvm-objcopy-22"


def recorded(name: str) -> bytes:
    """The machine code of a program as recorded in its `.words` file."""
    words = (PROGRAMS / f"{name}.words").read_text().split()
    return np.array([int(word, 16) for word in words], "<u4").tobytes()


def assembled(name: str, folder: Path) -> bytes:
    """The machine code as LLVM assembles it now."""
    unit, code = folder / "unit.o", folder / "code.bin"
    source = PROGRAMS / f"{name}.s"
    options = ["--triple=amdgcn", "--mcpu=gfx950", "--filetype=obj"]
    subprocess.run([MC, *options, str(source), "-o", str(unit)], check=True)
    subprocess.run([OBJCOPY, "-O", "binary", "--only-section=.text", str(unit), str(code)], check=True)
    return code.read_bytes()


def has_llvm() -> bool:
    return shutil.which(MC) is not None and shutil.which(OBJCOPY) is not None


def kernel(name: str, arguments: tuple[str, ...] = (), *, lds: int = 0) -> Kernel:
    """A program as a kernel: kernarg pointer in s[0:1], workgroup id x in s2; 8-byte pointers, 4-byte "n"."""
    slots, at = [], 0
    for argument in arguments:
        size = 4 if argument == "n" else 8
        slots.append(KernelArg(argument, at, size, "by_value" if size == 4 else "global_buffer"))
        at += size
    code = CodeObject((Segment(ENTRY, recorded(name), False, True),), {}, {})
    described = descriptor(
        name=name,
        entry=ENTRY,
        kernarg_size=at,
        lds_bytes=lds,
        user_sgprs=(UserSgpr("kernarg_segment_ptr", 0, 2),),
        args=tuple(slots),
    )
    return Kernel(described, code)
