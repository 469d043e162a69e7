"""`flycc tune`: find the fastest configurations by the cost model, without a GPU, and keep them in tables."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flycc.cli.output import console, table, write_json
from flycc.contracts import FlyccError, Reason

if TYPE_CHECKING:
    from rich.progress import Progress

    from flycc.tuning.family import Family
    from flycc.tuning.search import Tuned

LAYOUTS = ("NN", "NT", "TN", "TT")
#: Elements of 8 and 4 bits with scales of blocks, and of 8 bits with scales of rows.
FORMATS = ("mxfp8", "mxfp4", "fp8")
#: What a size on the command line looks like: from 1, within 64 bits.
_SIZE = r"[1-9][0-9]{0,17}"
#: The exit status of a command that Ctrl-C ended: 128 and the signal's number.
_INTERRUPTED = 130


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument(
        "subject",
        nargs="?",
        metavar="FILE.py:FUNCTION",
        help="tune every op of a model: a function that returns (model, tuple of inputs), as for flycc explain",
    )
    parser.add_argument(
        "--family",
        metavar="NAME",
        help="gemm, grouped_gemm, scaled_gemm, rms_norm or topk: tune one problem, of --shape",
    )
    parser.add_argument(
        "--shape",
        metavar="SIZES",
        help="M,N,K of gemm and scaled_gemm, ROWS,COLUMNS of rms_norm, and K of topk",
    )
    parser.add_argument("--dtype", help="element type (default: bf16)")
    parser.add_argument("--layout", choices=LAYOUTS, help="of gemm's operands (default: NT)")
    parser.add_argument(
        "--format", choices=FORMATS, help=f"of scaled_gemm's operands (default: {FORMATS[0]})"
    )
    parser.add_argument(
        "--shipped", action="store_true", help="fill the tables that flycc ships; --family: that one alone"
    )
    parser.add_argument(
        "--budget",
        metavar="60s|200",
        help="for each problem: seconds, or candidates (default: all that may win)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        default=os.cpu_count() or 1,
        help="processes (default: one for each core)",
    )
    parser.add_argument(
        "--out", metavar="FOLDER", help="where the tables are kept (default: in the cache directory)"
    )
    parser.add_argument(
        "--json", metavar="FILE", help="also write what was found as JSON ('-': standard output alone)"
    )


def run(args: argparse.Namespace) -> int:
    """Tune, report, keep what was found."""
    try:
        return _run(args)
    except KeyboardInterrupt:
        print("flycc tune: interrupted; the same command goes on where it was", file=sys.stderr)
        return _INTERRUPTED


def _run(args: argparse.Namespace) -> int:
    from flycc.tuning.search import NO_LIMIT, Budget
    from flycc.tuning.workers import Workers

    budget = NO_LIMIT if args.budget is None else Budget.parse(args.budget)
    if args.jobs < 1:
        raise FlyccError(Reason("tune.jobs", f"--jobs {args.jobs}: at least 1 is needed"))
    if args.out is not None and (not args.out or (Path(args.out).exists() and not Path(args.out).is_dir())):
        raise FlyccError(Reason("tune.out", f"--out {args.out}: a folder is needed"))
    problems, untuned = _problems(args)
    _check_tables(problems, args)
    found, failed = [], []
    with Workers(args.jobs) as workers, _progress(args.json == "-") as progress:
        bar = progress.add_task("problems", total=len(problems))
        for problem, tuned in _each(problems, workers, budget, progress):
            progress.advance(bar)
            if isinstance(tuned, Reason):
                failed.append((problem, tuned))
                continue
            found.append(tuned)
            _keep(tuned, args)
    unkept = [f"{tuned.problem}: {why}" for tuned in found if (why := _unserved(tuned.problem))]
    if args.json:
        write_json(
            args.json,
            {
                "modelled": True,
                "tuned": [tuned.to_json() for tuned in found],
                "failed": [{"problem": str(p), "code": r.code, "sentence": r.sentence} for p, r in failed],
                "untuned": untuned,
                "unkept": unkept,
            },
        )
    if args.json != "-":
        show(found, failed, untuned)
        for sentence in unkept:
            console.print(f"Kept in no table: {sentence}")
    return 1 if failed and not found else 0


def _each(
    problems: Sequence[Any], workers: Any, budget: Any, progress: Progress
) -> Iterator[tuple[Any, Any]]:
    """Each problem and what was found, or why nothing was."""
    from flycc.tuning.search import tune

    for problem in problems:
        bar = progress.add_task(str(problem), total=None)

        def tell(done: int, of: int, bar: Any = bar) -> None:
            progress.update(bar, completed=done, total=of)

        try:
            yield problem, tune(problem, workers, budget, progress=tell)
        except FlyccError as error:
            yield problem, error.reason
        finally:
            progress.remove_task(bar)


def _problems(args: argparse.Namespace) -> tuple[list[Any], dict[str, int]]:
    """What to tune; and of a model's problems those that cannot be, by why, with their number."""
    ways = {
        "FILE.py:FUNCTION": (args.subject is not None, ("family", "shape", "dtype", "layout", "format")),
        "--shape": (args.shape is not None and args.subject is None and not args.shipped, ()),
        "--shipped": (args.shipped, ("shape", "dtype", "layout", "format")),
    }
    if sum(given for given, _ in ways.values()) != 1:
        raise FlyccError(
            Reason("tune.subject", "one of FILE.py:FUNCTION, --family with --shape, and --shipped is needed")
        )
    for way, (given, foreign) in ways.items():
        for name in foreign:
            if given and getattr(args, name) is not None:
                raise FlyccError(Reason("tune.option", f"--{name}: it says nothing with {way}"))
    if args.shipped:
        return _of_shipped(args.family), {}
    return _of_model(args.subject) if args.subject is not None else ([_of_shape(args)], {})


def _of_shipped(family: str | None) -> list[Any]:
    from flycc.tuning.shipped import SHIPPED, shipped_problems

    if family is not None and family not in SHIPPED:
        raise FlyccError(
            Reason("tune.family", f"--family {family}: of shipped tables {', '.join(SHIPPED)} are accepted")
        )
    return [problem for name in SHIPPED if family in (None, name) for problem in shipped_problems(name)]


def _of_model(subject: str) -> tuple[list[Any], dict[str, int]]:
    """The different problems that one call of the model launches kernels for."""
    # It installs the tables: who comes after them is asked before them.
    import flycc.backend  # noqa: F401
    from flycc.cli.explain import example, explained
    from flycc.runtime import choice
    from flycc.tuning.family import family_of

    fn, inputs = example(subject)
    launched: dict[Any, None] = {}

    def note(problem: Any) -> None:
        # What has unknown sizes is being compiled; its launches have problems of their own.
        family = family_of(problem)
        if family is not None and family.known(problem):
            launched[problem] = None

    # The runtime asks a provider for every problem that it launches.
    choice.install(note)
    try:
        explained(subject, fn, inputs)
    finally:
        choice.remove(note)
    if not launched:
        raise FlyccError(
            Reason("tune.subject", f"{subject} launches no kernel that can be tuned; flycc explain says why")
        )
    problems = []
    untuned: dict[str, int] = defaultdict(int)
    for problem in launched:
        why = _unserved(problem)
        if why is None:
            problems.append(problem)
        else:
            untuned[f"{problem}: {why}"] += 1
    return problems, dict(untuned)


def _unserved(problem: Any) -> str | None:
    """Why tables do not serve a problem; None if they do."""
    from flycc.tuning.family import family_of

    family = family_of(problem)
    if family is None or family.config is None:
        return "one configuration serves it, there is nothing to choose"
    return None if family.key(problem) else "tables have single problems with operands aligned to 16 bytes"


def _of_shape(args: argparse.Namespace) -> Any:
    from flycc.tuning.family import FAMILIES, contiguous

    family = FAMILIES.get(args.family)
    if family is None:
        raise FlyccError(Reason("tune.family", f"--family {args.family}: {', '.join(FAMILIES)} are accepted"))
    words = {"dtype": "bf16", "layout": "NT", "format": FORMATS[0]}
    for name in words:
        if getattr(args, name) is not None and name not in family.names:
            raise FlyccError(Reason("tune.option", f"--{name}: it says nothing with --family {family.name}"))
    given = args.shape.split(",")
    if len(given) != len(family.sizes) or not all(re.fullmatch(_SIZE, size) for size in given):
        names, shape = ",".join(family.sizes).upper(), args.shape[:80]
        raise FlyccError(
            Reason("tune.shape", f"--shape {shape}: {names} is accepted, all from 1 to 18 digits")
        )
    sizes = dict(zip(family.sizes, map(int, given), strict=True))
    given_words = {name: word for name in words if (word := getattr(args, name)) is not None}
    return contiguous(family.problem(words | given_words | sizes))


def _table_path(problem: Any, args: argparse.Namespace) -> tuple[Family, Path] | None:
    """The family of a problem and the file of its table; None if none serves it."""
    from flycc.tuning.family import family_of
    from flycc.tuning.table import shipped_path, user_path

    family = family_of(problem)
    if family is None or _unserved(problem):
        return None
    path = (shipped_path if args.shipped else user_path)(family.name)
    return family, Path(args.out, path.name) if args.out else path


def _check_tables(problems: Sequence[Any], args: argparse.Namespace) -> None:
    """Refuse tables that would not be written to, before the work that they are to keep."""
    from flycc.tuning.table import examined

    tables = {place[1]: place[0] for problem in problems if (place := _table_path(problem, args))}
    for path, family in tables.items():
        _, wrong = examined(path, family)
        if wrong:
            raise FlyccError(Reason("tune.table", f"{path}: {wrong}; mend it or move it away"))


def _keep(tuned: Tuned, args: argparse.Namespace) -> None:
    """Put what was found into its table, at once: an interrupted run loses nothing."""
    from flycc.tuning.choice import entry_of, keep

    place = _table_path(tuned.problem, args)
    if place is not None:
        family, path = place
        keep([entry_of(tuned, family)], family, path)


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    """A bar for the problems and one for the candidates of the problem under way."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
        yield progress


def show(found: Sequence[Tuned], failed: Sequence[tuple[Any, Reason]], untuned: dict[str, int]) -> None:
    """A line for each problem."""

    def row(tuned: Tuned) -> Sequence[object]:
        time = tuned.best.time
        own = f"{tuned.own.time.typical:.1f}" if tuned.own else "-"
        tried = f"{len(tuned.ranked) + len(tuned.failed)}/{tuned.space}"
        return (
            f"{time.typical:.1f}", f"{time.low:.1f}-{time.high:.1f}", own, tried, f"{tuned.seconds:.1f}",
            f"{tuned.problem}\n-> {tuned.best.config}",
        )  # fmt: skip

    if found:
        table(
            "modelled",
            ("us", "interval", "own us", "tried", "s", "problem and configuration"),
            map(row, found),
        )
        console.print("\nModelled, not measured. own: the kernels' own choice; a tie goes to it.")
    for problem, reason in failed:
        console.print(f"{problem}: {reason}")
    for why, count in untuned.items():
        console.print(f"{count} ops: {why}")
