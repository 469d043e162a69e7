"""`flycc explain FILE.py:FUNCTION`: which ops of a model get a kernel, and why the others do not."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flycc.cli.output import console, table, write_json
from flycc.contracts import FlyccError, Reason, flycc_error_in


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument(
        "subject",
        metavar="FILE.py:FUNCTION",
        help="a function without arguments that returns (model, tuple of inputs); MODULE:FUNCTION works too",
    )
    parser.add_argument(
        "--fallback", choices=("eager", "inductor"), default="eager", help="who runs the other ops"
    )
    parser.add_argument(
        "--mx", choices=("mxfp8", "mxfp4"), help="as option mx: run linear layers in this format"
    )
    parser.add_argument(
        "--scale-placement",
        choices=("exact", "relaxed"),
        default="exact",
        help="as the option: whether block scales may be moved without a proof",
    )
    parser.add_argument("--strict", action="store_true", help="fail where an op is left to PyTorch")
    parser.add_argument(
        "--json", metavar="FILE", help="also write the table as JSON ('-': standard output alone)"
    )


def run(args: argparse.Namespace) -> int:
    """Compile the subject once and print what became of every candidate op."""
    fn, inputs = example(args.subject)
    options = {name: getattr(args, name) for name in ("fallback", "strict", "mx", "scale_placement")}
    record = explained(args.subject, fn, inputs, **options)
    if args.json:
        write_json(args.json, record.to_json())
    if args.json != "-":
        show(record)
    return 0


def example(subject: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The model and the inputs that the subject returns."""
    function = load(subject)
    try:
        returned = function()
    except Exception as error:
        raise raised(subject, error) from error
    match returned:
        case (fn, tuple(inputs)) if callable(fn):
            return fn, inputs
    sentence = f"{subject} must return (model, tuple of inputs), got {type(returned).__name__}"
    raise FlyccError(Reason("explain.subject", sentence))


def explained(subject: str, fn: Callable[..., Any], inputs: tuple[Any, ...], **options: Any) -> Any:
    """What `flycc.explain` records of the subject; `FlyccError` where the subject's own code fails."""
    from torch._dynamo.exc import TorchRuntimeError

    import flycc

    try:
        return flycc.explain(fn, *inputs, options=options)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = isinstance(error, TorchRuntimeError) or Path(frames[-1].filename).resolve() == _file(subject)
        if own and flycc_error_in(error) is None:
            raise raised(subject, error) from error
        raise


def raised(subject: str, error: Exception) -> FlyccError:
    """What the subject's own code raised, in one line: where in its file, and what."""
    frames = [*traceback.extract_tb(error.__traceback__), *getattr(error, "real_stack", ())]
    lines = [f.lineno for f in frames if Path(f.filename).resolve() == _file(subject)]
    where = f" at line {lines[-1]}" if lines else ""
    # Dynamo tells much around what PyTorch raised.
    cause = error.__cause__ if hasattr(error, "real_stack") and error.__cause__ else error
    first = (str(cause).strip() or "no message").splitlines()[0]
    sentence = f"{subject} raised {type(cause).__name__}{where}: {first}"
    return FlyccError(Reason("explain.subject", sentence))


def _file(subject: str) -> Path:
    place = subject.rpartition(":")[0]
    return Path(
        place if place.endswith(".py") else getattr(sys.modules.get(place), "__file__", place)
    ).resolve()


def load(subject: str) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
    """The function that `FILE.py:FUNCTION` or `MODULE:FUNCTION` names."""
    place, _, name = subject.rpartition(":")
    if not place:
        raise FlyccError(Reason("explain.subject", f"{subject!r} is not of the form FILE.py:FUNCTION"))
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise FlyccError(Reason("explain.subject", f"there is no file {place}"))
        # As when Python runs a file: its folder is where it imports from. The name is one that no module has, and
        # Dynamo looks a function's globals up by it.
        sys.path.insert(0, str(Path(place).resolve().parent))
        spec = importlib.util.spec_from_file_location(f"flycc_explained_{Path(place).stem}", place)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise raised(subject, error) from error
    else:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise FlyccError(Reason("explain.subject", f"cannot import {place}: {error}")) from error
    if not callable(getattr(module, name, None)):
        raise FlyccError(Reason("explain.subject", f"{place} has no function {name!r}"))
    return getattr(module, name)


def show(record: Any) -> None:
    """One table a graph: like ops with the same outcome share a row."""
    for number, graph in enumerate(record.graphs):
        counts: dict[str, int] = {}
        for candidate in graph.report.nodes:
            outcome = (
                f"{candidate.kernel}: {candidate.problem}"
                if candidate.kernel
                else f"PyTorch, {candidate.reason}"
            )
            fused = "".join(f" + {target}" for target in candidate.fused)
            text = f"{candidate.target}{fused} {candidate.shapes}\n-> {outcome}"
            if candidate.detail:
                text += f"\n   {candidate.detail}"
            if candidate.placement:
                text += f"\nscales: {candidate.placement}"
            counts[text] = counts.get(text, 0) + 1
        table(
            f"graph {number} ({graph.kind}): {len(graph.report.nodes)} candidate ops",
            ("ops", "what runs it"),
            [(count, text) for text, count in counts.items()],
        )
        others = graph.report.others
        if others:
            kinds = ", ".join(f"{count} {target}" for target, count in sorted(others.items()))
            console.print(f"other ops on PyTorch, no kernel family covers them: {kinds}")
        if graph.report.failure:
            console.print(f"the whole graph runs on PyTorch: {graph.report.failure}")
        console.print()
    for product, verdicts in record.scale_guards.items():
        console.print(f"scale guard of {product}: {verdicts}")
    for reason, count in record.launch_refusals.items():
        console.print(f"{count} launches left to PyTorch: {reason}")
    for reason, count in record.notes.items():
        console.print(f"note, {count} times: {reason}")
