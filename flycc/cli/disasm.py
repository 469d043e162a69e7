"""`flycc disasm FILE`: a code object's kernels as assembly text, with what their descriptors say.

The text is what LLVM's assembler accepts, and assembles to the same bytes: branches name labels, bytes that
are no instruction are `.long`, and everything else is in comments.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from flycc.cli.code_object import pick_kernel, read_module
from flycc.cli.output import write_json
from flycc.emulator import Kernel, UnknownInstruction
from flycc.emulator.isa.decode import decode
from flycc.emulator.isa.format import format_instruction

#: Column in which the comment with address and encoding begins, where the instruction leaves room.
COMMENT_COLUMN = 56


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument("file", metavar="FILE", help="a gfx950 code object (.hsaco, ELF)")
    parser.add_argument("--kernel", metavar="NAME", help="only this kernel (default: all)")
    parser.add_argument(
        "--json", metavar="FILE", help="also write the listing as JSON ('-': standard output alone)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the listing."""
    module = read_module(args.file)
    names = [pick_kernel(module, args.file, args.kernel).name] if args.kernel else sorted(module.kernels)
    kernels = [module.kernels[name] for name in names]
    if args.json:
        write_json(args.json, {"file": args.file, "kernels": [to_json(kernel) for kernel in kernels]})
    if args.json != "-":
        for kernel in kernels:
            print("\n".join([*summary(kernel), *text(kernel)]), end="\n\n")
    return 0


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction, or one dword that is none (`target` is where a branch goes)."""

    address: int
    words: tuple[int, ...]
    text: str
    target: int | None = None


def lines(kernel: Kernel) -> Iterator[Line]:
    """The kernel's code from its entry to its end."""
    descriptor = kernel.descriptor
    code = kernel.code.code(descriptor)
    at = 0
    while at < len(code) // 4 * 4:
        address = descriptor.entry + at
        try:
            inst = decode(code[at : at + 16], address)
            size, shown, target = inst.size, format_instruction(inst), inst.mods.get("target")
        except UnknownInstruction:
            size, shown, target = 4, "", None
        words = struct.unpack_from(f"<{size // 4}I", code, at)
        yield Line(address, words, shown or f".long {words[0]:#010x}", target)
        at += size


def summary(kernel: Kernel) -> list[str]:
    """The descriptor in comments."""
    d = kernel.descriptor
    architectural = min(d.accum_offset, d.vgpr_count)
    sgprs = [
        f"s{first}" + (f"..{first + n - 1}" if n > 1 else "") + f" {what}" for what, first, n in d.user_sgprs
    ]
    denormals = ("flushed", "kept in sources", "kept in results", "kept")
    ids = "".join(axis for axis in "xyz" if getattr(d, f"enable_workgroup_id_{axis}"))
    return [
        f"// kernel {d.name}",
        f"//   code     {d.code_size} bytes from {d.entry:#x}"
        + (f"; waves start at {d.start:#x}" if d.start != d.entry else ""),
        f"//   vector   {architectural} VGPRs + {d.vgpr_count - architectural} AGPRs",
        f"//   scalar   {d.sgpr_count} SGPRs: {', '.join(sgprs)}; workgroup ids {ids or 'none'}",
        f"//   memory   {d.lds_bytes} bytes of LDS, {d.scratch_bytes} of scratch a lane",
        f"//   launch   at most {d.max_workgroup_size} work-items, {d.workitem_dims}-dimensional ids",
        f"//   mode     {d.mode_register:#x}: denormals of 32 bits {denormals[d.denorm_mode_32]},"
        f" of 16 and 64 bits {denormals[d.denorm_mode_16_64]}",
        f"//   kernarg  {d.kernarg_size} bytes, aligned to {d.kernarg_align}",
        *(f"//     {a.offset:4} +{a.size:<3} {a.value_kind} {a.name}".rstrip() for a in d.args),
    ]


def text(kernel: Kernel) -> list[str]:
    """The code as assembly text."""
    listing = list(lines(kernel))
    starts = {line.address for line in listing}
    targets = {line.target for line in listing if line.target in starts}
    shown = [f"{kernel.name}:"]
    for line in listing:
        if line.address in targets:
            shown.append(f"L_{line.address:x}:")
        instruction = line.text
        if line.target in targets:
            instruction = f"{instruction.rpartition(' ')[0]} L_{line.target:x}"
        encoding = " ".join(f"{word:08X}" for word in line.words)
        shown.append(f"  {instruction:<{COMMENT_COLUMN - 3}} // {line.address:x}: {encoding}")
    return shown


def to_json(kernel: Kernel) -> dict[str, Any]:
    """The same for programs."""
    return {
        "descriptor": asdict(kernel.descriptor),
        "instructions": [
            {"address": line.address, "words": line.words, "text": line.text, "target": line.target}
            for line in lines(kernel)
        ],
    }
