"""`flycc trace FILE.npz`: what a trace of `flycc emulate --trace` holds; `--perfetto` makes it one a browser shows."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from flycc.cli.output import console, table, write_json
from flycc.contracts import FlyccError, Reason
from flycc.emulator import perfetto
from flycc.emulator.isa.registers import UNITS
from flycc.emulator.trace import LINE_BYTES, SPACES, Trace

#: Rows of the table of instructions that access memory.
SHOWN = 12


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument("file", metavar="FILE.npz", help="a trace")
    parser.add_argument(
        "--perfetto",
        metavar="OUT.json",
        help="write Chrome trace events, for ui.perfetto.dev or chrome://tracing",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="also write the summary as JSON ('-': standard output alone)"
    )


def run(args: argparse.Namespace) -> int:
    """Summarise, and export if asked."""
    try:
        trace = Trace.load(args.file)
        summary = summarise(trace)
    except (OSError, ValueError) as error:
        raise FlyccError(Reason("trace.file", str(error))) from error
    except (IndexError, KeyError) as error:  # arrays of the right types that do not fit together
        raise FlyccError(Reason("trace.file", f"{args.file} is damaged: {error}")) from error
    told = ""
    if args.perfetto:
        try:
            count = perfetto.export(trace, args.perfetto)
        except OSError as error:
            raise FlyccError(
                Reason("trace.perfetto", f"--perfetto {args.perfetto}: {error.strerror}")
            ) from error
        told = f"\n{args.perfetto}: {count:,} instructions; {perfetto.TIME_NOTE}"
    if args.json:
        write_json(args.json, summary)
    if args.json != "-":
        show(summary)
        if told:
            console.print(told)
    return 0


def summarise(trace: Trace) -> dict[str, Any]:
    """Counts over all traced waves: instructions by unit, and for each instruction that accesses memory."""
    waves_of_step = trace.set_sizes()[trace.steps["set"]]
    units = trace.instructions["unit"][trace.steps["instruction"]]
    by_unit = np.bincount(units, waves_of_step, len(UNITS)).astype(np.int64)
    return {
        "info": trace.info,
        "waves": len(trace.waves),
        "wave_instructions": trace.wave_instructions,
        "units": dict(zip(UNITS, by_unit.tolist(), strict=True)),
        "accesses": accesses_by_instruction(trace),
    }


def accesses_by_instruction(trace: Trace) -> list[dict[str, Any]]:
    """One entry for each instruction and space, those that take most LDS clocks or lines first.

    `used` is the bytes asked for over the bytes of the lines touched: 1 where accesses are contiguous, above it where
    lanes share bytes.
    """
    accesses = trace.accesses
    instruction = trace.steps["instruction"][accesses["step"]].astype(np.int64)
    groups, inverse = np.unique(instruction * len(SPACES) + accesses["space"], return_inverse=True)

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(inverse, values, len(groups)).astype(np.int64)

    entries: list[dict[str, Any]] = []
    columns = {
        "accesses": total(np.ones(len(accesses))),
        "clocks": total(accesses["clocks"]),
        "conflicts": total(accesses["clocks"].astype(np.int64) - accesses["phases"]),
        "lines": total(accesses["line_count"]),
        "bytes": total(accesses["lanes"].astype(np.int64) * accesses["size"]),
    }
    for number, group in enumerate(groups.tolist()):
        row = trace.instructions[group // len(SPACES)]
        entry = {
            "address": int(row["address"]),
            "text": str(row["text"]),
            "space": SPACES[group % len(SPACES)],
        }
        counts = {name: int(values[number]) for name, values in columns.items()}
        used = counts["bytes"] / (counts["lines"] * LINE_BYTES) if counts["lines"] else None
        entry |= {**counts, "used": used}
        entries.append(entry)
    return sorted(entries, key=lambda entry: (-entry["conflicts"], -entry["clocks"], -entry["lines"]))


def show(summary: dict[str, Any]) -> None:
    """The report a person reads."""
    info, total = summary["info"], summary["wave_instructions"]
    console.print(f"kernel        {info['kernel']}", soft_wrap=True)
    console.print(
        f"launch        grid {info['grid']}, block {info['block']}; {summary['waves']} waves traced"
    )
    console.print(f"instructions  {total:,}, summed over waves\n")
    rows = [
        (unit, f"{count:,}", f"{count / max(total, 1):.1%}")
        for unit, count in summary["units"].items()
        if count
    ]
    table("Instructions by unit", ("unit", "number", "share"), rows)
    console.print()
    shown = summary["accesses"][:SHOWN]
    table(
        f"Memory: {len(shown)} of {len(summary['accesses'])} instructions",
        ("address", "accesses", "LDS clk", "conflicts", "lines", "instruction"),
        [
            (f"{e['address']:x}", e["accesses"], e["clocks"], e["conflicts"], e["lines"], e["text"])
            for e in shown
        ],
    )
