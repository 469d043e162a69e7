"""`flycc tune`: find the fastest configurations by the cost model, without a GPU, and keep them in tables."""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flycc.cli.output import console, table, write_json
from flycc.contracts import FlyccError, Reason

if TYPE_CHECKING:
    from rich.progress import Progress

    from flycc.tuning.search import Tuned

LAYOUTS = ("NN", "NT", "TN", "TT")


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument(
        "subject",
        nargs="?",
        metavar="FILE.py:FUNCTION",
        help="tune every op of a model: a function that returns (model, tuple of inputs), as for flycc explain",
    )
    parser.add_argument(
        "--family", metavar="NAME", help="gemm, rms_norm or topk: tune one problem, of --shape"
    )
    parser.add_argument(
        "--shape", metavar="SIZES", help="M,N,K of gemm, ROWS,COLUMNS of rms_norm, and K of topk"
    )
    parser.add_argument("--dtype", default="bf16", help="element type (default: bf16)")
    parser.add_argument("--layout", default="NT", choices=LAYOUTS, help="of gemm's operands (default: NT)")
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
    from flycc.tuning.search import NO_LIMIT, Budget
    from flycc.tuning.workers import Workers

    budget = Budget.parse(args.budget) if args.budget else NO_LIMIT
    if args.jobs < 1:
        raise FlyccError(Reason("tune.jobs", f"--jobs {args.jobs}: at least 1 is needed"))
    problems, untuned = _problems(args)
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
    if args.json:
        write_json(
            args.json,
            {
                "modelled": True,
                "tuned": [tuned.to_json() for tuned in found],
                "failed": [{"problem": str(p), "code": r.code, "sentence": r.sentence} for p, r in failed],
                "untuned": untuned,
            },
        )
    if args.json != "-":
        show(found, failed, untuned)
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
    ways = [bool(args.subject), bool(args.shape), args.shipped]
    if sum(ways) != 1:
        raise FlyccError(
            Reason("tune.subject", "one of FILE.py:FUNCTION, --family with --shape, and --shipped is needed")
        )
    if args.shipped:
        from flycc.tuning.shipped import shipped_problems
        from flycc.tuning.table import tunable

        names = [args.family] if args.family else [family.name for family in tunable()]
        return [problem for name in names for problem in shipped_problems(name)], {}
    return _of_model(args.subject) if args.subject else ([_of_shape(args)], {})


def _of_model(subject: str) -> tuple[list[Any], dict[str, int]]:
    """The different problems that one call of the model launches kernels for."""
    import torch

    from flycc.cli.explain import example
    from flycc.runtime import choice
    from flycc.tuning.family import family_of

    fn, inputs = example(subject)
    launched: dict[Any, None] = {}

    def note(problem: Any) -> None:
        launched[problem] = None

    # The runtime asks a provider for every problem that it launches.
    choice.install(note)
    try:
        torch.compile(fn, backend="flycc")(*inputs)
    finally:
        choice.remove(note)
    problems = []
    untuned: dict[str, int] = defaultdict(int)
    for problem in launched:
        family = family_of(problem)
        if family is None or family.key(problem) is None:
            untuned[f"{problem}: tables have single, 16-byte aligned problems"] += 1
        else:
            problems.append(problem)
    return problems, dict(untuned)


def _of_shape(args: argparse.Namespace) -> Any:
    from flycc.tuning.family import FAMILIES

    family = FAMILIES.get(args.family)
    if family is None:
        raise FlyccError(Reason("tune.family", f"--family {args.family}: {', '.join(FAMILIES)} are accepted"))
    sizes = [name for name in family.names if name not in ("dtype", "layout")]
    given = args.shape.split(",")
    if len(given) != len(sizes) or not all(size.isdecimal() and int(size) for size in given):
        raise FlyccError(
            Reason(
                "tune.shape", f"--shape {args.shape}: {','.join(sizes).upper()} is accepted, all at least 1"
            )
        )
    parts = dict(zip(sizes, map(int, given), strict=True))
    return family.problem({**parts, "dtype": args.dtype, "layout": args.layout})


def _keep(tuned: Tuned, args: argparse.Namespace) -> None:
    """Put what was found into its table, at once: an interrupted run loses nothing."""
    from flycc.tuning.choice import entry_of, keep
    from flycc.tuning.family import family_of
    from flycc.tuning.table import shipped_path, user_path

    family = family_of(tuned.problem)
    assert family is not None
    if family.config is None or family.key(tuned.problem) is None:
        return
    path = (shipped_path if args.shipped else user_path)(family.name)
    keep([entry_of(tuned, family)], family, Path(args.out, path.name) if args.out else path)


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
