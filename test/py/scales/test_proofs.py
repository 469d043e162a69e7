"""The proofs hold, their machine is float32 arithmetic, and neither would pass for a bound that is wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from flycc.cli.main import main
from flycc.proofs.claims import Question, core, full, of_every_exponent, of_floats, of_product, prove
from flycc.proofs.dequantised import ElementQuery
from flycc.proofs.float32 import same, scale_inside, scale_outside
from flycc.proofs.machine import Leaves, Query, Sums
from flycc.proofs.orders import OrderQuery
from flycc.proofs.solvers import INTEGERS, SolverName, solve
from flycc.proofs.spelling import SpellingQuery
from flycc.scales.formats import BF16, BIAS, E2M1, E4M3, elements, product_q
from flycc.scales.trees import Tree

SEED = int(os.environ["FLYCC_TEST_SEED"])


@pytest.mark.parametrize("theorem", range(1, 8))
def test_core(theorem: int) -> None:
    rows = [prove(claim, solver) for claim, solver in core() if claim.theorem == theorem]
    assert {row.claim.expected for row in rows} == {"sat", "unsat"}
    assert [row.json() for row in rows if not row.holds] == []
    assert all(row.replayed for row in rows if row.claim.expected == "sat")


def one_further(question: Question) -> list[Question]:
    """The same question one beyond either end, where that is beyond the bound, or with its condition dropped.

    Byte 0 ends the bytes of elements before their bound does: there it is further.
    """
    match question:
        case Query() if question.operand:
            return [replace(question, most=question.most + 1)]
        case Query():
            return [replace(question, high=question.high + 1)]
        case ElementQuery():
            step = 1 if question.exponent > -BIAS else 40
            return [replace(question, exponent=question.exponent + way) for way in (-step, step)]
        case SpellingQuery():
            return [replace(question, ordered=False)]
        case OrderQuery():
            return [replace(question, spread=question.spread + 1), replace(question, high=question.high + 1)]
        case _:
            return [replace(question, s=question.s + way) for way in (-1, 1)]


@pytest.mark.parametrize("large", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("theorem", range(1, 8))
def test_no_proof_is_of_nothing(theorem: int, large: bool) -> None:
    """What is unsatisfiable is so by its last assertion, that results differ, and no longer one beyond the bound."""

    def verdict(script: str, solver: SolverName, constants: list[str]) -> str:
        return solve(solver, script, constants, 60).verdict

    for claim, solver in core():
        if claim.theorem != theorem or (isinstance(claim.question, Query) and claim.k > 8) != large:
            continue
        if claim.expected == "unsat" and solver != "z3":
            *rest, last = claim.question.script().rstrip().splitlines()
            assert last.startswith("(assert (")
            assert verdict("\n".join(rest), solver, claim.question.constants()) == "sat", claim
            assert "sat" in {
                verdict(q.script(), solver, q.constants()) for q in one_further(claim.question)
            }, claim


@pytest.mark.parametrize("k", [2, 5, 8])
def test_rounded_sums_of_the_machine_are_those_of_float32(k: int) -> None:
    """With products fixed, and the sums that float32 arithmetic has, the machine has them too, rounding included."""
    rng = np.random.default_rng([SEED, k])
    numbers, unit = np.array(elements(E4M3)), 2 ** product_q(E4M3, E4M3)
    inexact = 0
    for name in ("balanced", "chain"):
        tree = Tree(name, k)
        query = Query(E4M3, E4M3, tree, -131, 105, sums=Sums.ROUNDED)
        for _ in range(6):
            products = rng.choice(numbers, k) * rng.choice(numbers, k)
            products[rng.permutation(k)[:2]] = (
                448.0**2,
                rng.choice([-1, 1]) * 2.0**-18,
            )  # whose sum is rounded
            values = [np.float32(x) for x in products]
            fixed = [(f"p{i}", values[i]) for i in range(k)]
            for at, (left, right) in enumerate(tree.nodes(), k):
                values.append(values[left] + values[right])
                inexact += Fraction(float(values[left])) + Fraction(float(values[right])) != Fraction(
                    float(values[at])
                )
                fixed.append((f"sum{at}", values[at]))
            lines = query.script().splitlines()[:-1]
            for constant, value in fixed:
                units = int(Fraction(float(value)) * unit)
                lines.append(f"(assert (= {constant} {units if units >= 0 else f'(- {-units})'}))")
            assert solve("cvc5", "\n".join(lines), query.constants(), 20).verdict == "sat", (
                SEED,
                name,
                values,
            )
    assert inexact


@pytest.mark.nightly
def test_full() -> None:
    wrong = [row.json() for row in (prove(claim, solver) for claim, solver in full()) if not row.holds]
    assert wrong == []


def test_what_is_claimed() -> None:
    """Every format, block size, tree and mode has a claim inside its bound and two outside, for both solvers."""
    claims = [
        (c.format, c.k, c.tree, c.flush, c.expected, s)
        for c, s in full()
        if c.theorem in (1, 5) and "QF" not in c.format and "by" not in c.s
    ]
    assert len({key for key in claims if key[4] == "unsat"}) == 9 * 6 * 2 * 2 * 2
    assert len({key for key in claims if key[4] == "sat"}) == 9 * 6 * 2 * 2 * 2


@pytest.mark.parametrize("solver", INTEGERS)
def test_the_machine_is_float32(solver: SolverName) -> None:
    """With its elements fixed, a query is satisfiable exactly where float32 arithmetic gives other bits."""
    rng = np.random.default_rng([SEED, len(solver)])
    seen: set[bool] = set()
    # Few points differ: a run of 60 now and then has none, so go on until one did.
    for count in range(600):
        if count >= 60 and len(seen) == 2:
            break
        k = int(rng.integers(2, 7))
        tree = Tree(str(rng.choice(["balanced", "chain"])), k)
        flush = bool(rng.integers(2))
        low = -126 if flush else -154
        # Half of the points at the ends, where something may differ.
        s = int(rng.choice([rng.integers(low, 130), rng.integers(low, low + 8), rng.integers(119, 126)]))
        outer = int(rng.integers(3)) if s >= -147 else 0
        query = Query(E2M1, E2M1, tree, s, s, outer, flush, Leaves.ELEMENTS)
        numbers = np.array([x for x in elements(E2M1) if x >= 0])
        picks = rng.integers(len(numbers), size=(2, k)) if rng.integers(2) else rng.integers(6, 8, (2, k))
        picks *= rng.integers(4, size=(2, k)) > 0
        minus = rng.integers(2, size=k)
        a, b = numbers[picks]
        fixed = [f"(assert (= a{i} {int(2 * a[i])}))(assert (= b{i} {int(2 * b[i])}))" for i in range(k)]
        fixed += [f"(assert (= minus{i} {'true' if minus[i] else 'false'}))" for i in range(k)]
        answer = solve(solver, "\n".join([query.script(), *fixed]), query.constants(), 20)
        products = (np.where(minus, -a, a) * b)[:, None]
        inside = scale_inside(products, tree, s, outer, flush)
        differs = not same(inside, scale_outside(products, tree, s + outer, flush)).all()
        assert answer.verdict == ("sat" if differs else "unsat"), f"seed {SEED}: {query}, {products.ravel()}"
        assert not differs or query.differs(answer.model)
        seen.add(differs)
    assert seen == {True, False}


@pytest.mark.nightly
def test_every_exponent_against_every_block_of_two() -> None:
    """All 65,536 blocks of two in float32 have the same legal exponents as the machine, at each by itself."""
    numbers = np.array(elements(E2M1))
    products = np.unique(np.append(np.outer(numbers, numbers), -0.0).view(np.int64)).view(np.float64)
    blocks = np.stack([x.ravel() for x in np.meshgrid(products, products)])
    tree = Tree("balanced", 2)
    for claim in of_every_exponent(E2M1, E2M1, tree):
        s = int(claim.s)
        legal = same(scale_inside(blocks, tree, s), scale_outside(blocks, tree, s)).all()
        assert legal == (claim.expected == "unsat"), s


def test_a_wrong_bound_is_found() -> None:
    inside, above, below = of_product(E2M1, E2M1, Tree("chain", 8), flush=False)
    wrong = replace(inside, question=replace(inside.question, high=inside.question.high + 1))
    assert not prove(wrong, "cvc5").holds
    assert not prove(replace(above, question=replace(above.question, low=120, high=120)), "cvc5").holds
    assert not prove(replace(below, question=replace(below.question, low=-147, high=-147)), "z3").holds
    rounded = Query(E4M3, E4M3, Tree("balanced", 4), -131, 110, sums=Sums.ROUNDED)
    assert solve("cvc5", rounded.script(), rounded.constants(), 20).verdict == "sat"
    assert solve("cvc5", replace(rounded, high=109).script(), rounded.constants(), 20).verdict == "unsat"


def test_what_a_model_must_show() -> None:
    """A model counts only if float32 arithmetic gives other bits."""
    query = Query(E2M1, E2M1, Tree("chain", 2), 123, 123, leaves=Leaves.GREATEST)
    model = {"inner": 123, "p0": 144, "minus0": 0, "p1": -144, "minus1": 1}
    assert query.pairs(model)[0][0] * query.pairs(model)[0][1] == 36
    assert query.differs(model)
    assert not query.differs(model | {"inner": 122})
    assert ElementQuery(E4M3, BF16, -125, False).differs({"n": 1})
    assert not ElementQuery(E4M3, BF16, -124, False).differs({"n": 1})
    spelling = SpellingQuery(E2M1, E2M1, 32, (-127, 127), (-127, 127), ordered=False, equal=True)
    assert spelling.differs({"n": 4 * 1152, "first": 120, "second": -120})
    assert not spelling.differs({"n": 4 * 1152, "first": -120, "second": 120})
    order = OrderQuery(E2M1, E2M1, 2, 0, 30, 24, extreme=True)
    many = {"least": 0, "p0": 1, "d0": 0, "in0": 1, "p1": 1, "d1": 24, "in1": 1}
    assert order.differs(many)
    assert not order.differs(many | {"in0": 0})
    assert not order.differs(many | {"d1": 23})


def test_what_the_machine_has_not() -> None:
    with pytest.raises(ValueError, match="subnormal numbers"):
        Query(E2M1, E2M1, Tree("chain", 2), -148, 3, leaves=Leaves.ELEMENTS)
    with pytest.raises(ValueError, match="subnormal numbers"):
        Query(E2M1, E2M1, Tree("chain", 2), -147, -147, outer=-1)
    with pytest.raises(ValueError, match="subnormal numbers"):
        Query(E2M1, E2M1, Tree("chain", 2), -125, 3, flush=True)
    with pytest.raises(ValueError, match="subnormal numbers"):
        Query(E2M1, E2M1, Tree("chain", 2), -147, 3, hoisted=1)
    with pytest.raises(ValueError, match="superset"):
        Query(E2M1, E2M1, Tree("chain", 2), 0, 3).pairs({})


def test_out_of_time_is_not_a_proof() -> None:
    claim = of_product(E2M1, E2M1, Tree("balanced", 32), flush=False)[0]
    row = prove(claim, "cvc5", seconds=0.01)
    assert row.result == "unknown"
    assert not row.holds


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = of_product(E2M1, E2M1, Tree("chain", 4), flush=False)
    monkeypatch.setattr("flycc.proofs.claims.core", lambda: [(claim, "z3") for claim in claims])
    out = tmp_path / "rows.json"
    assert main(["prove", "scale-placement", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    keys = {"theorem", "format", "k", "tree", "s", "expected", "result", "seconds", "solver"}
    assert all(keys <= set(row) for row in rows)
    assert [(row["s"], row["result"]) for row in rows] == [
        ("-147..121", "unsat"),
        ("122", "sat"),
        ("-148", "sat"),
    ]
    shown = capsys.readouterr().out
    assert "3 queries, 0 not as claimed; 2 models differ" in shown
    assert max(map(len, shown.splitlines())) <= 80
    wrong = replace(claims[1], expected="unsat")
    monkeypatch.setattr("flycc.proofs.claims.core", lambda: [(wrong, "z3")])
    assert main(["prove", "scale-placement"]) == 1
    assert "z3 says sat; claimed is unsat" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize("solver", ["z3", "bitwuzla"])
def test_interrupted(
    solver: SolverName, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during a query is no answer to it, whatever a solver makes of it, and nothing is reported."""
    claim = next(c for c in of_floats(Tree("chain", 2)) if c.s == "122")
    monkeypatch.setattr("flycc.proofs.claims.core", lambda: [(claim, solver)] * 300)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what runs behind with it ignored
    # From outside, as a terminal's: a solver may hold the interpreter's lock, which a thread would wait for.
    wait_and_kill = f"import os, time; time.sleep(0.3); os.kill({os.getpid()}, {signal.SIGINT:d})"
    with subprocess.Popen([sys.executable, "-S", "-c", wait_and_kill]):
        assert main(["prove", "scale-placement"]) == 130
    assert capsys.readouterr().err.strip() == "flycc prove: interrupted"


def test_a_solver_that_is_not_installed(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "z3" else find(name, *rest)
    )
    assert main(["prove", "scale-placement"]) == 1
    said = capsys.readouterr().err
    assert "z3 is not installed" in said
    assert "flycc[proofs]" in said
