"""`flycc cache`: what the on-disk cache of code objects holds; `--clear` empties it."""

from __future__ import annotations

import argparse

from flycc.cli.output import console
from flycc.contracts import FlyccError, Reason


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument("--clear", action="store_true", help="remove every entry")


def run(args: argparse.Namespace) -> int:
    """Print the cache's place and size, emptied first if asked."""
    from flycc.codegen.cache import CodeObjectCache

    cache = CodeObjectCache()
    problem = cache.problem()
    if problem is not None:
        raise FlyccError(Reason("cache.unusable", problem))
    if args.clear:
        console.print(f"removed {cache.clear()} code objects")
    entries, size = cache.usage()
    console.print(f"{cache.root}: {entries} code objects, {size / 1024:.0f} KiB")
    return 0
