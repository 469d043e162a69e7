"""SMT solvers, given a script in SMT-LIB 2 text: cvc5, and z3 as a second opinion."""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from flycc.contracts import FlyccError, Reason

SolverName = Literal["cvc5", "z3"]
SOLVERS: tuple[SolverName, ...] = get_args(SolverName)

#: "unknown" is of a solver that ran out of time.
Verdict = Literal["sat", "unsat", "unknown"]

_VALUE = re.compile(r"\((\w+) (?:(\d+)|\(- (\d+)\)|(true|false))\)")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a solver said of a script, after how many seconds; of "sat", the values of the constants asked for."""

    verdict: Verdict
    model: dict[str, int]
    seconds: float


def check_installed(solvers: tuple[SolverName, ...] = SOLVERS) -> None:
    """Raise `FlyccError` that names what to install, if one of the solvers is missing."""
    missing = [name for name in solvers if importlib.util.find_spec(name) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise FlyccError(
            Reason(
                "prove.solver", f"{' and '.join(missing)} {are} not installed: pip install 'flycc[proofs]'"
            )
        )


def solve(solver: SolverName, script: str, constants: list[str], seconds: float) -> Answer:
    """Check the assertions of `script`, with the time limit `seconds`; booleans among the values are 0 and 1."""
    run: Callable[[str], str] = _Cvc5(seconds) if solver == "cvc5" else _Z3(seconds)
    started = time.perf_counter()
    text = run(script + "\n(check-sat)\n").strip()
    spent = time.perf_counter() - started
    if text == "unsat" or text.startswith(("unknown", "timeout")):
        return Answer("unsat" if text == "unsat" else "unknown", {}, spent)
    if text != "sat":
        raise ValueError(f"{solver} cannot read its script: {text}")
    values = run(f"(get-value ({' '.join(constants)}))\n")
    model = {}
    for name, number, negative, truth in _VALUE.findall(values):
        model[name] = int(truth == "true") if truth else int(number) if number else -int(negative)
    return Answer("sat", model, spent)


class _Cvc5:
    def __init__(self, seconds: float) -> None:
        import cvc5

        self._solver = cvc5.Solver(cvc5.TermManager())
        self._solver.setOption("produce-models", "true")
        self._solver.setOption("tlimit-per", str(int(1000 * seconds)))
        self._parser = cvc5.InputParser(self._solver)
        self._parser.setIncrementalStringInput(cvc5.InputLanguage.SMT_LIB_2_6, "script")

    def __call__(self, text: str) -> str:
        self._parser.appendIncrementalStringInput(text)
        said = []
        while not (command := self._parser.nextCommand()).isNull():
            said.append(command.invoke(self._solver, self._parser.getSymbolManager()))
        return "".join(said)


class _Z3:
    def __init__(self, seconds: float) -> None:
        import z3

        self._context = z3.Context()
        self(f"(set-option :timeout {int(1000 * seconds)})")

    def __call__(self, text: str) -> str:
        from z3 import z3core

        return z3core.Z3_eval_smtlib2_string(self._context.ref(), text)
