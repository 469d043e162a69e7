"""SMT solvers, given a script in SMT-LIB 2 text: cvc5, z3 as a second opinion, and bitwuzla for floating point."""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from flycc.contracts import FlyccError, Reason

SolverName = Literal["cvc5", "z3", "bitwuzla"]
SOLVERS: tuple[SolverName, ...] = get_args(SolverName)
#: Those for integers.
INTEGERS: tuple[SolverName, ...] = ("cvc5", "z3")

#: "unknown" is of a solver that ran out of time.
Verdict = Literal["sat", "unsat", "unknown"]

#: A constant and its value, as `get-value` has them.
_VALUE = re.compile(r"\((\w+) (\d+|\(- \d+\)|true|false|#b[01]+|#x[0-9a-f]+)\)")


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
    """Check the assertions of `script`, with the time limit `seconds`; booleans among the values are 0 and 1.

    Ctrl-C raises KeyboardInterrupt: of z3 at once, of the others when they are done with the query.
    """
    solvers: dict[SolverName, Callable[[float], Callable[[str], str]]]
    solvers = {"cvc5": _Cvc5, "z3": _Z3, "bitwuzla": _Bitwuzla}
    run = solvers[solver](seconds)
    started = time.perf_counter()
    text = run(script + "\n(check-sat)\n").strip()
    spent = time.perf_counter() - started
    if text == "unsat" or text.startswith(("unknown", "timeout")):
        return Answer("unsat" if text == "unsat" else "unknown", {}, spent)
    if text != "sat":
        raise ValueError(f"{solver} cannot read its script: {text}")
    values = run(f"(get-value ({' '.join(constants)}))\n")
    model = {name: _number(value) for name, value in _VALUE.findall(values)}
    return Answer("sat", model, spent)


def _number(value: str) -> int:
    """Of an integer, a boolean, or bits."""
    if value in ("true", "false"):
        return int(value == "true")
    return int(value.strip("()").replace(" ", "").replace("#", "0"), 0)


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

        said = z3core.Z3_eval_smtlib2_string(self._context.ref(), text)
        if said.startswith("unknown"):
            why = z3core.Z3_eval_smtlib2_string(self._context.ref(), "(get-info :reason-unknown)\n")
            if "interrupted" in why:  # its own handler of Ctrl-C hides it from Python
                raise KeyboardInterrupt
        return said


class _Bitwuzla:
    def __init__(self, seconds: float) -> None:
        import bitwuzla

        options = bitwuzla.Options()
        options.set(bitwuzla.Option.PRODUCE_MODELS, True)
        options.set(bitwuzla.Option.TIME_LIMIT_PER, int(1000 * seconds))
        self._parser = bitwuzla.Parser(bitwuzla.TermManager(), options)

    def __call__(self, text: str) -> str:
        # The parser would print what it finds: checks and values are asked for by calls.
        if names := re.fullmatch(r"\(get-value \((.*)\)\)\s*", text):
            solver = self._parser.bitwuzla()
            values = {name: solver.get_value(self._parser.parse_term(name)) for name in names[1].split()}
            return " ".join(f"({name} {value})" for name, value in values.items())
        self._parser.parse(text.replace("(check-sat)", ""), True, False)
        return self._parser.bitwuzla().check_sat().name.lower()
