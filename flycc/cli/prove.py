"""`flycc prove scale-placement`: every bound of where block scales may stand, proved by SMT solvers."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from flycc.cli.output import console, table, write_json
from flycc.proofs.solvers import SOLVERS, check_installed

if TYPE_CHECKING:
    from flycc.proofs.claims import Row

_T = TypeVar("_T")

#: The exit status of a command that Ctrl-C ended: 128 and the signal's number.
_INTERRUPTED = 130


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument("subject", choices=("scale-placement",), help="what to prove")
    parser.add_argument(
        "--full",
        action="store_true",
        help="every format, size, tree and mode, by two solvers: some five minutes (default: a selection of them)",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="also write every query's row as JSON ('-': standard output alone)"
    )


def run(args: argparse.Namespace) -> int:
    """Prove, report; status 1 if something is not as claimed."""
    try:
        check_installed()
        from flycc.proofs.claims import core, full, prove

        claims = full() if args.full else core()
        rows = [prove(claim, solver) for claim, solver in _shown(claims, args.json == "-")]
    except KeyboardInterrupt:
        print("flycc prove: interrupted", file=sys.stderr)
        return _INTERRUPTED
    if args.json:
        write_json(args.json, {"rows": [row.json() for row in rows]})
    if args.json != "-":
        show(rows)
    return 0 if all(row.holds for row in rows) else 1


def _shown(claims: Sequence[_T], quiet: bool) -> Iterable[_T]:
    """The claims, with a bar that tells how many are done."""
    from rich.progress import track

    return claims if quiet else track(claims, "proving", console=console, transient=True)


def show(rows: Sequence[Row]) -> None:
    """A line for each theorem and format, one for each query that is not as claimed, and how many there were."""
    groups: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.claim.theorem, row.claim.format].append(row)

    def line(theorem: int, name: str, group: list[Row]) -> Sequence[object]:
        sizes = sorted({row.claim.k for row in group})
        k = f"{sizes[0]}-{sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
        counts = [sum(row.claim.expected == verdict for row in group) for verdict in ("unsat", "sat")]
        times = [[row.seconds for row in group if row.solver == solver] for solver in SOLVERS]
        spent = [f"{sum(each):.1f}" if each else "-" for each in times]
        wrong = sum(not row.holds for row in group)
        return theorem, name, k, *counts, *spent, f"{wrong} NOT so" if wrong else "as claimed"

    columns = ("theorem", "format", "k", "unsat", "sat", *(f"{solver} s" for solver in SOLVERS), "")
    table("scale placement", columns, (line(*key, group) for key, group in sorted(groups.items())))
    wrong = [row for row in rows if not row.holds]
    for row in wrong:
        claim, differs = row.claim, {True: ", which differs", False: ", which agrees", None: ""}[row.replayed]
        console.print(
            f"theorem {claim.theorem}, {claim.format}, k={claim.k} {claim.tree}, s {claim.s}: "
            f"{row.solver} says {row.result}{differs}; claimed is {claim.expected}"
        )
    replayed = sum(row.replayed is True for row in rows)
    console.print(
        f"\n{len(rows)} queries, {len(wrong)} not as claimed; {replayed} models differ in float32 arithmetic"
    )
