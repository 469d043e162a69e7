"""`flycc emulate FILE`: run a kernel of a code object on the emulated gfx950, with NumPy files as its memory."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from flycc import emulator
from flycc.cli.code_object import pick_kernel, read_module
from flycc.cli.output import console, write_json
from flycc.contracts import FlyccError, Reason
from flycc.emulator.launch import MAX_INSTRUCTIONS
from flycc.emulator.observe import Observer

ACCEPTED = "FILE.npy, zeros:SHAPE:TYPE (zeros:64x32:f32), TYPE:NUMBER (i32:5), bytes:HEX"
TYPES = "TYPE is i8 to i64, u8 to u64, f16, bf16 (buffers only), f32 or f64"

_NUMBER = re.compile(r"(i8|i16|i32|i64|u8|u16|u32|u64|f16|f32|f64):(.+)")
_DTYPES = {f"{kind}{8 * size}": np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)}
_DTYPES |= {f"f{8 * size}": np.dtype(f"f{size}") for size in (2, 4, 8)} | {"bf16": np.dtype(np.uint16)}


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument("file", metavar="FILE", help="a gfx950 code object (.hsaco, ELF)")
    add_launch_options(parser, required=True)
    parser.add_argument(
        "--out",
        metavar="INDEX=FILE.npy",
        action="append",
        default=[],
        help="save an argument's buffer afterwards",
    )
    parser.add_argument(
        "--wave-order",
        default="lockstep",
        help="lockstep, serial, reverse, or a number that seeds a random order",
    )
    parser.add_argument(
        "--max-instructions", type=int, default=MAX_INSTRUCTIONS, help="end a runaway kernel after these"
    )
    parser.add_argument(
        "--sanitize",
        metavar="all|NAME,...",
        help="look for faults that hardware hides; status 1 if one is found",
    )
    parser.add_argument("--trace", metavar="FILE.npz", help="record every instruction (see flycc trace)")
    parser.add_argument(
        "--trace-workgroup", metavar="X,Y,Z", action="append", default=[], help="record only these workgroups"
    )
    parser.add_argument(
        "--json", metavar="FILE", help="also write the result as JSON ('-': standard output alone)"
    )


def add_launch_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """What to launch of a code object, and how; `flycc profile` takes the same."""
    parser.add_argument("--kernel", metavar="NAME", help="which kernel, if the file holds several")
    parser.add_argument("--grid", metavar="X[,Y[,Z]]", required=required, help="workgroups")
    parser.add_argument("--block", metavar="X[,Y[,Z]]", required=required, help="work-items of a workgroup")
    parser.add_argument(
        "--arg",
        metavar="VALUE",
        action="append",
        default=[],
        help=f"a kernel argument, in the kernel's order: {ACCEPTED}; {TYPES}. Files and zeros are buffers; bytes are "
        "a struct passed by value",
    )
    parser.add_argument("--dynamic-lds", metavar="BYTES", type=int, default=0, help="LDS beyond the declared")


def run(args: argparse.Namespace) -> int:
    """Launch once, report, save what was asked for; status 1 if there are findings."""
    module = read_module(args.file)
    kernel = pick_kernel(module, args.file, args.kernel)
    grid, block = extent("--grid", args.grid), extent("--block", args.block)
    values = [argument(text) for text in args.arg]
    outputs = [output(text, values) for text in args.out]
    recorder = recorder_for(args)
    observers: list[Observer] = [recorder] if recorder else []
    try:
        stats = emulator.run(
            module,
            kernel.name,
            grid,
            block,
            values,
            dynamic_lds=args.dynamic_lds,
            wave_order=int(args.wave_order) if args.wave_order.isdecimal() else args.wave_order,
            max_instructions=args.max_instructions,
            observers=observers,
            sanitize=args.sanitize.split(",") if args.sanitize else (),
        )
    except (emulator.EmulatorError, ValueError) as error:
        raise FlyccError(Reason("emulate.launch", str(error))) from error
    try:
        for buffer, path in outputs:
            np.save(path, buffer)
        if recorder:
            recorder.trace().save(args.trace)
    except OSError as error:
        raise FlyccError(Reason("emulate.save", f"{error.filename}: {error.strerror}")) from error
    if args.json:
        write_json(args.json, to_json(kernel.name, stats))
    if args.json != "-":
        show(kernel.name, stats)
        if args.sanitize:
            show_findings(stats)
    return 1 if stats.findings else 0


def extent(option: str, text: str, rest: int = 1) -> tuple[int, int, int]:
    """`8` or `8,4` or `8,4,2` as three numbers, `rest` where one is left out."""
    parts = text.split(",")
    if not 1 <= len(parts) <= 3 or not all(part.isdecimal() for part in parts):
        raise FlyccError(
            Reason(
                "emulate.extent", f"{option} is {text!r}; one to three whole numbers, as 8,4,1, are accepted"
            )
        )
    x, y, z = [*map(int, parts), rest, rest][:3]
    return x, y, z


def argument(text: str) -> np.ndarray | np.generic:
    """What an --arg means: an array is a buffer, a numpy scalar is passed by value."""
    if text.endswith(".npy"):
        try:
            return np.ascontiguousarray(np.load(text, allow_pickle=False))
        except (OSError, ValueError, EOFError) as error:
            raise FlyccError(Reason("emulate.arg", f"--arg {text}: {error}")) from error
    try:
        if text.startswith("zeros:"):
            _, shape, dtype = text.split(":")
            return np.zeros([int(n) for n in shape.split("x")], element(dtype))
        if text.startswith("bytes:"):
            return np.void(bytes.fromhex(text.removeprefix("bytes:")))
        if match := _NUMBER.fullmatch(text):
            by = _DTYPES[match[1]].type
            return by(float(match[2]) if match[1][0] == "f" else int(match[2], 0))
    except (ValueError, OverflowError, MemoryError) as error:
        raise FlyccError(
            Reason("emulate.arg", f"--arg {text}: {error}; accepted are {ACCEPTED}; {TYPES}")
        ) from error
    raise FlyccError(Reason("emulate.arg", f"--arg {text} is none of {ACCEPTED}; {TYPES}"))


def element(name: str) -> np.dtype:
    """The dtype of a buffer's elements; bfloat16, which NumPy lacks, as its bits."""
    if name not in _DTYPES:
        raise ValueError(f"there is no type {name!r}")
    return _DTYPES[name]


def output(text: str, values: Sequence[np.ndarray | np.generic]) -> tuple[np.ndarray, Path]:
    """The buffer and the file that an --out names."""
    index, _, path = text.partition("=")
    if not index.isdecimal() or not path or int(index) >= len(values):
        raise FlyccError(
            Reason("emulate.out", f"--out {text}: INDEX=FILE.npy is accepted, with INDEX below {len(values)}")
        )
    buffer = values[int(index)]
    if not isinstance(buffer, np.ndarray):
        raise FlyccError(Reason("emulate.out", f"--out {text}: argument {index} is no buffer"))
    return buffer, Path(path)


def recorder_for(args: argparse.Namespace) -> Any:
    """The trace recorder, if one is asked for."""
    from flycc.emulator.trace_recorder import Recorder

    chosen = [extent("--trace-workgroup", text, rest=0) for text in args.trace_workgroup] or None
    return Recorder(chosen) if args.trace else None


def to_json(name: str, stats: emulator.LaunchStats) -> dict[str, Any]:
    """The result for programs."""
    return {
        "kernel": name,
        "workgroups": stats.workgroups,
        "wave_instructions": stats.wave_instructions,
        "seconds": stats.seconds,
        "findings": [asdict(finding) for finding in stats.findings],
        "findings_dropped": stats.findings_dropped,
    }


def show(name: str, stats: emulator.LaunchStats) -> None:
    """The report a person reads."""
    rate = stats.wave_instructions / max(stats.seconds, 1e-9)
    console.print(f"kernel        {name}", soft_wrap=True)
    console.print(f"workgroups    {stats.workgroups}")
    console.print(f"instructions  {stats.wave_instructions:,}, summed over waves")
    console.print(f"emulated in   {stats.seconds:.3f} s, {rate:,.0f} wave-instructions/s (not GPU time)")


def show_findings(stats: emulator.LaunchStats) -> None:
    """What sanitizers found, one paragraph each."""
    console.print(f"findings      {len(stats.findings)}")
    for finding in stats.findings:
        lane = "" if finding.lane is None else f", lane {finding.lane}"
        where = "" if finding.memory_address is None else f", address {finding.memory_address:#x}"
        print()
        paragraph(f"{finding.sanitizer}, {finding.count} times: {finding.what}", "")
        paragraph(f"{finding.site}{lane}{where}", "  ")
        if finding.earlier:
            paragraph(f"conflicts with {finding.earlier}", "  ")
    if stats.findings_dropped:
        console.print(f"\nand {stats.findings_dropped} more")


def paragraph(text: str, indent: str) -> None:
    """Text of any length, its later lines indented more than its first."""
    print(textwrap.fill(text, console.width, initial_indent=indent, subsequent_indent=indent + "    "))
