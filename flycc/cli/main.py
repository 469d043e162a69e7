"""The `flycc` command: one subcommand a file.

Exit status: 0, or 1 with one line where something is wrong with what was asked (and where `emulate` has findings), or 2
from argparse for options that are unknown or missing. Files are written before anything is printed, so that a reader
that ends early, as `head` does, loses none.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence

from flycc.cli.output import check_writable, printable
from flycc.contracts import flycc_error_in

#: name -> what `flycc --help` says of it. The module of the same name holds `configure(parser)` and `run(args)`,
#: and is imported only when it is asked for, so that `flycc doctor` works where torch does not.
COMMANDS = {
    "demo": "run a real language model on emulated gfx950 binaries",
    "explain": "show which ops of a model get a kernel, and why the others do not",
    "disasm": "print a code object as assembly text",
    "emulate": "run a kernel of a code object on the emulated gfx950",
    "trace": "summarise a trace of an emulated kernel, or export it for a browser",
    "profile": "where the modelled time of a model or of any gfx950 kernel goes",
    "predict": "the modelled time of an operator of any shape, ours and published kernels",
    "tune": "find the fastest configurations by the cost model, and keep them in tables",
    "prove": "prove where block scales may stand, by SMT solvers, and replay the counterexamples",
    "doctor": "show what is installed, which linker, device and target are used, what is missing",
    "bench": "measure the emulator, compilation, or launches",
    "cache": "show or clear the on-disk cache of code objects",
}


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; returns the exit status."""
    parser = argparse.ArgumentParser(prog="flycc", description="A torch.compile backend for gfx950.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    args, rest = parser.parse_known_args(_joined(sys.argv[1:] if argv is None else argv))
    command = importlib.import_module(f"flycc.cli.{args.command}")
    subparser = argparse.ArgumentParser(prog=f"flycc {args.command}", description=COMMANDS[args.command])
    command.configure(subparser)
    try:
        arguments = subparser.parse_args(rest)
        check_writable("--json", getattr(arguments, "json", None))
        status = command.run(arguments)
        sys.stdout.flush()
        return status
    except (
        BrokenPipeError
    ):  # as when the output goes to `head`; the interpreter would flush once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        known = flycc_error_in(error)
        if known is None:
            raise
        print(printable(f"flycc {args.command}: {known.reason}"), file=sys.stderr)
        return 1


def _joined(argv: Sequence[str]) -> list[str]:
    """With negative sizes as part of their option: argparse would take `--shape -1,2` for two options."""
    found: list[str] = []
    for argument in argv:
        if found and re.fullmatch(r"--[a-z-]+", found[-1]) and re.match(r"-\d", argument):
            found[-1] += f"={argument}"
        else:
            found.append(argument)
    return found


if __name__ == "__main__":
    sys.exit(main())
