"""Textual pass pipelines in which our passes and MLIR's stand side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from flycc.contracts import FlyccError, Reason
from flycc.passes.registry import MATCH_PIPELINE, PASSES, Pass

_ROOT = re.compile(r"builtin\.module\((.*)\)", re.DOTALL)


class PipelineError(FlyccError):
    """A pipeline's text is malformed or names a pass that does not exist."""


@dataclass(frozen=True)
class Step:
    """One element of a pipeline: its text, and what runs it on a module and verifies the result."""

    text: str
    run: Pass


def run_pipeline(
    module: ir.Module, text: str = MATCH_PIPELINE, *, after: Callable[[Step], None] | None = None
) -> None:
    """Runs the pipeline on `module` in place, calling `after` when a step is done.

    Raises PipelineError before anything runs, and MLIRError where a pass fails or leaves invalid IR.
    """
    for step in parse_pipeline(text, module.context):
        step.run(module.operation)
        if after is not None:
            after(step)


def parse_pipeline(text: str, context: ir.Context) -> list[Step]:
    """The steps of a pipeline such as `match-gemm,flycc-dce,canonicalize,func.func(cse)`.

    MLIR's passes are spelled as in its own pipelines. Ours run on the whole module, so they may stand at the
    top or inside `builtin.module(...)`, but not inside another op's parentheses.
    """
    steps: list[Step] = []
    for element in _elements(text):
        root = _ROOT.fullmatch(element)
        if root is not None:
            steps.extend(parse_pipeline(root[1], context))
        elif element in PASSES:
            steps.append(Step(element, _verified(PASSES[element])))
        else:
            steps.append(Step(element, _upstream(element, context)))
    return steps


def _elements(text: str) -> Iterator[str]:
    """Splits at the commas that no bracket encloses."""
    if not text.strip():
        return
    depth, start = 0, 0
    for position, character in enumerate(text + ","):
        depth += (character in "({") - (character in ")}")
        if depth < 0:
            break
        if character == "," and depth == 0:
            element = text[start:position].strip()
            if not element:
                raise _error("syntax", f"empty pass name at column {start + 1} of {text!r}")
            yield element
            start = position + 1
    if depth != 0:
        raise _error("syntax", f"brackets do not match in {text!r}")


def _verified(run: Pass) -> Pass:
    def run_and_verify(module: ir.Operation) -> None:
        run(module)
        module.verify()

    return run_and_verify


def _upstream(element: str, context: ir.Context) -> Pass:
    misplaced = next((name for name in re.findall(r"[\w.-]+", element) if name in PASSES), None)
    if misplaced is not None:
        raise _error("anchor", f"{misplaced} runs on builtin.module without options, not as in {element!r}")
    try:
        return PassManager.parse(f"builtin.module({element})", context=context).run
    except ValueError as error:
        detail = str(error).partition("error: ")[2].partition("\n")[0]
        ours = ", ".join(PASSES)
        raise _error("unknown-pass", f"{detail or error} (nor is it one of flycc's: {ours})") from None


def _error(what: str, sentence: str) -> PipelineError:
    return PipelineError(Reason(f"pipeline.{what}", sentence))
