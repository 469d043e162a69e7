"""What `flycc prove scale-placement` asks: every bound of `flycc.scales` holds, and one further it does not.

Inside a bound no block may differ (unsat). At one more, or one less, some block must (sat), and float32 arithmetic has
to agree that it does. Theorem 1 is about formats whose sums are exact, 5 about all others, 2 about elements, 3 about
one operand's scale inside the sum, 4 about one scale after the other,
6 about any order, and 7 about multiply-adds. Sums are those of `machine`, but for a few of `floating`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Protocol

from flycc.proofs.contracted import ContractedQuery
from flycc.proofs.dequantised import ElementQuery
from flycc.proofs.floating import FloatQuery
from flycc.proofs.machine import Leaves, Query, Sums
from flycc.proofs.orders import OrderQuery
from flycc.proofs.solvers import INTEGERS, SolverName, Verdict, solve
from flycc.proofs.spelling import SpellingQuery
from flycc.scales.bounds import derive, element_bytes, exponent_max, exponent_min
from flycc.scales.formats import (
    BIAS,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    FLOAT_TYPES,
    FORMATS,
    MAX_BYTE,
    MXINT8,
    FloatType,
    Format,
    product_maximum,
    product_q,
    sums_are_exact,
)
from flycc.scales.ranges import spread_limit
from flycc.scales.trees import Tree

PAIRS: tuple[tuple[Format, Format], ...] = (
    *((each, each) for each in (E2M1, E2M3, E3M2, E4M3, E5M2, MXINT8)),
    (E2M1, E4M3),
    (E2M1, E5M2),
    (E4M3, E5M2),
)
SIZES = (2, 4, 8, 16, 32, 64)


class Question(Protocol):
    """A script that is satisfiable if two placements differ, and the check of a model that they do."""

    def script(self) -> str: ...
    def constants(self) -> list[str]: ...
    def differs(self, model: dict[str, int]) -> bool: ...


@dataclass(frozen=True, slots=True)
class Claim:
    """What a question is expected to be, and where: `s` are exponents, or bytes of one operand where it says so."""

    theorem: int
    format: str
    k: int
    tree: str
    s: str
    flush: bool
    expected: Verdict
    question: Question


@dataclass(frozen=True, slots=True)
class Row:
    """A claim put to a solver. `replayed` tells of a model whether float32 arithmetic differs; None without a model."""

    claim: Claim
    solver: SolverName
    result: Verdict
    replayed: bool | None
    seconds: float

    @property
    def holds(self) -> bool:
        """The solver said what was expected, and a model is a counterexample."""
        return self.result == self.claim.expected and self.replayed is not False

    def json(self) -> dict[str, Any]:
        """The row as `--json` has it."""
        claim = self.claim
        return {
            "theorem": claim.theorem,
            "format": claim.format,
            "k": claim.k,
            "tree": claim.tree,
            "s": claim.s,
            "flush": claim.flush,
            "expected": claim.expected,
            "result": self.result,
            "replayed": self.replayed,
            "seconds": round(self.seconds, 3),
            "solver": self.solver,
        }


def prove(claim: Claim, solver: SolverName, seconds: float = 120) -> Row:
    """Put a claim to a solver, within a time limit."""
    question = claim.question
    answer = solve(solver, question.script(), question.constants(), seconds)
    replayed = question.differs(answer.model) if answer.verdict == "sat" and claim.expected == "sat" else None
    return Row(claim, solver, answer.verdict, replayed, answer.seconds)


def core() -> list[tuple[Claim, SolverName]]:
    """What the tests prove: MXFP4 in all sizes, other formats in blocks of 32, all in 8 if flushed, and elements."""
    claims = [
        claim
        for a, b in PAIRS
        for k, flush in [(8, True), *((k, False) for k in (SIZES if a is b is E2M1 else (32,)))]
        for name in ("balanced", "chain")
        for claim in of_product(a, b, Tree(name, k), flush)
    ]
    claims += [claim for a, b in PAIRS for claim in of_one_side(a, b, Tree("chain", 8), flush=True)]
    second = [claim for claim in claims if claim.format == E2M1.name and claim.k < 8]
    claims += of_elements()
    claims += [
        claim
        for operand in FLOAT_TYPES.values()
        for k in (2, 4)
        for claim in of_dequantised(E2M1, operand, Tree("balanced", k))
    ]
    claims += [claim for a, b in PAIRS for claim in (*of_spelling(a, b, 32), *of_contracted(a, b, 32))]
    claims += [
        claim for a, b in PAIRS for claim in (*of_orders(a, b, 3), *of_hoisted(a, b, Tree("balanced", 4)))
    ]
    floats = [claim for claim in of_floats(Tree("chain", 2)) if claim.s in ("-148", "122", "123")]
    return [
        *((claim, "cvc5") for claim in claims),
        *((claim, "z3") for claim in second),
        *((claim, "bitwuzla") for claim in floats),
    ]


def full() -> list[tuple[Claim, SolverName]]:
    """Every format, size, tree and mode, by two solvers; MXFP4 also without lemmas, at every exponent, in floats."""
    trees = [Tree(name, k) for k in SIZES for name in ("balanced", "chain")]
    modes = (False, True)
    claims = [
        claim
        for a, b in PAIRS
        for tree in trees
        for flush in modes
        for claim in of_product(a, b, tree, flush)
    ]
    claims += [
        claim
        for a, b in PAIRS
        for k in (2, 32)
        for flush in modes
        for claim in of_one_side(a, b, Tree("chain", k), flush)
    ]
    claims += [claim for a, b in PAIRS for tree in trees[:5] for claim in of_hoisted(a, b, tree)]
    small = [tree for tree in trees if tree.leaves <= 8]
    claims += [claim for tree in small for claim in of_product(E2M1, E2M1, tree, False, lemmas=False)]
    claims += of_elements()
    claims += [
        claim for a, b in PAIRS for k in SIZES for claim in (*of_spelling(a, b, k), *of_contracted(a, b, k))
    ]
    claims += [claim for a, b in PAIRS for k in SIZES[:5] for claim in of_orders(a, b, k)]
    claims += [
        claim
        for element in (E2M1, E2M3)
        for operand in FLOAT_TYPES.values()
        for tree in trees[:5]
        for claim in of_dequantised(element, operand, tree)
    ]
    claims += of_every_exponent(E2M1, E2M1, Tree("balanced", 2))
    floats: list[tuple[Claim, SolverName]] = [
        *((claim, solver) for claim in of_floats(Tree("chain", 2)) for solver in ("bitwuzla", "z3")),
        *((claim, "bitwuzla") for claim in of_floats(Tree("balanced", 4)) if claim.expected == "sat"),
    ]
    return [*((claim, solver) for claim in claims for solver in INTEGERS), *floats]


def of_product(a: Format, b: Format, tree: Tree, flush: bool, lemmas: bool = True) -> list[Claim]:
    """Theorems 1 and 5: the scale of a block in each product, or after the sum."""
    guard = derive(a, b, tree, "product", flush=flush)
    low, high = guard.sum_min - 2 * BIAS, guard.sum_max - 2 * BIAS
    theorem = 1 if sums_are_exact(a, b, tree.leaves) else 5
    return [
        _claim(theorem, a, b, tree, flush, (low, high), lemmas=lemmas),
        _claim(theorem, a, b, tree, flush, (high + 1, high + 1), leaves=Leaves.GREATEST, lemmas=lemmas),
        _claim(theorem, a, b, tree, flush, (low - 1, low - 1), leaves=Leaves.LEAST, lemmas=lemmas),
    ]


def of_one_side(a: Format, b: Format, tree: Tree, flush: bool) -> Iterator[Claim]:
    """Theorem 3: b's scale inside the sum, and a's after it, 2^-1 for all of b's exponents and at the end above them.

    With a's 2^1 the end below, where bytes reach it. b's least exponent of all has no query: with 2^-1 after it, the
    result would be rounded.
    """
    guard = derive(a, b, tree, "one_sided", flush=flush)
    low, high = guard.b_min - BIAS, guard.b_max - BIAS
    start = max(low, exponent_min(a, b, flush) + 1)
    yield _claim(3, a, b, tree, flush, (start, high), outer=-1)
    if guard.b_max < MAX_BYTE:
        yield _claim(3, a, b, tree, flush, (high + 1, high + 1), outer=-1, leaves=Leaves.GREATEST)
    if guard.b_min > 0:
        yield _claim(3, a, b, tree, flush, (low - 1, low - 1), outer=1, leaves=Leaves.LEAST)


def of_elements() -> Iterator[Claim]:
    """Theorem 2: elements dequantised to a type, at both ends of the bytes of which all are exact, and one further."""
    for element, operand, flush in product(FORMATS.values(), FLOAT_TYPES.values(), (False, True)):
        limits = element_bytes(element, operand, flush)
        low, high = limits or (MAX_BYTE + 1, MAX_BYTE)
        expected: dict[int, Verdict] = {high: "unsat", low: "unsat", high + 1: "sat", low - 1: "sat"}
        if limits is None:  # any byte then has an element that is not exact
            expected = {BIAS: "sat"}
        for byte, verdict in expected.items():
            if 0 <= byte <= MAX_BYTE:
                query = ElementQuery(element, operand, byte - BIAS, flush)
                name = f"{element.name} in {operand.name}"
                yield Claim(2, name, 1, "-", f"byte {byte}", flush, verdict, query)


def of_every_exponent(a: Format, b: Format, tree: Tree) -> Iterator[Claim]:
    """Theorem 1 of every exponent by itself: those that are legal, and no others."""
    guard = derive(a, b, tree, "product")
    for total in range(2 * MAX_BYTE + 1):
        inside = guard.sum_min <= total <= guard.sum_max
        s = total - 2 * BIAS
        yield _claim(
            1, a, b, tree, False, (s, s), leaves=Leaves.ELEMENTS, expected="unsat" if inside else "sat"
        )


def of_dequantised(element: Format, operand: FloatType, tree: Tree) -> Iterator[Claim]:
    """Theorem 2 of whole sums, both operands dequantised with any exponents, and one more than every element bears."""
    guard = derive(element, element, tree, "element", operand=operand)
    low, high, most = guard.sum_min - 2 * BIAS, guard.sum_max - 2 * BIAS, guard.a_max - BIAS
    low = max(low, 2 * (guard.a_min - BIAS))
    query = Query(
        element, element, tree, low, min(high, 2 * most), leaves=Leaves.ELEMENTS, operand=operand, most=most
    )
    where = f"{element.name} in {operand.name}", tree.leaves, tree.name
    yield Claim(2, *where, f"all up to {most} each", False, "unsat", query)
    beyond = replace(query, most=most + 1)
    yield Claim(2, *where, f"all up to {most + 1} each", False, "sat", beyond)


def of_hoisted(a: Format, b: Format, tree: Tree) -> Iterator[Claim]:
    """Theorem 5 of products with exponents of their own, that differ by up to 2: 2^3 hoisted, and 2^-3; one above."""
    least = exponent_min(a, b, False)
    for t in (3, -3):
        inner = exponent_max(a, b, tree.leaves if t < 0 else tree.larger)
        low, high = least + max(t, 0), min(exponent_max(a, b, tree.larger), inner + t)
        sums = Sums.EXACT if sums_are_exact(a, b, 4 * tree.leaves) else Sums.ROUNDED
        inside = Query(a, b, tree, low, high, sums=sums, spread=2, hoisted=t)
        above = Query(a, b, tree, high + 1, high + 1, leaves=Leaves.GREATEST, spread=2, hoisted=t)
        where = _name(a, b), tree.leaves, tree.name
        yield Claim(5, *where, f"{low}..{high} by {t}", False, "unsat", inside)
        yield Claim(5, *where, f"{high + 1} by {t}", False, "sat", above)


def of_spelling(a: Format, b: Format, k: int) -> Iterator[Claim]:
    """Theorem 4: a sum of at most k products times the smaller power first; the larger first; and one below."""
    low = max(exponent_min(a, b, False), -BIAS)
    end = MAX_BYTE - BIAS

    def claim(s: str, expected: Verdict, first: tuple[int, int], second: int, ordered: bool) -> Claim:
        query = SpellingQuery(a, b, k, first, (second, end), ordered, equal=expected == "sat")
        return Claim(4, _name(a, b), k, "any", s, False, expected, query)

    yield claim(f"{low}..{end}", "unsat", (low, end), low, True)
    yield claim("the larger first", "sat", (low, end), -BIAS, False)
    if low > -BIAS:  # 2^24 and more bring up again what the first multiplication should have kept
        yield claim(str(low - 1), "sat", (low - 1, low - 1), 24, True)


def of_orders(a: Format, b: Format, k: int) -> Iterator[Claim]:
    """Theorem 6: k products with exponents as far apart as `order_free` allows, and the ends of those.

    At a spread of one more there is a sum that float32 has not if `k - 1` products above the least are enough for it.
    """
    spread = spread_limit(a, b, k)
    if spread is None:
        return
    low, high = exponent_min(a, b, False), exponent_max(a, b, k)

    def claim(s: str, expected: Verdict, low: int, high: int, spread: int) -> Claim:
        query = OrderQuery(a, b, k, low, high, spread, extreme=expected == "sat")
        return Claim(6, _name(a, b), k, "any", s, False, expected, query)

    yield claim(f"{low}..{high}, spread {spread}", "unsat", low, high, spread)
    yield claim(str(high + 1), "sat", high + 1, high + 1, 0)
    greatest = product_maximum(a, b) * 2.0 ** product_q(a, b)
    if (k - 1) * greatest * 2 ** (spread + 1) >= 2**24:
        yield claim(f"spread {spread + 1}", "sat", 0, spread + 1, spread + 1)


def of_contracted(a: Format, b: Format, k: int) -> Iterator[Claim]:
    """Theorem 7: a sum of at most k products that goes into a multiply-add."""
    guard = derive(a, b, Tree("any", k), "block", contracted=True)
    low, high = guard.sum_min - 2 * BIAS, guard.sum_max - 2 * BIAS
    expected: dict[int, Verdict] = {low: "unsat", high: "unsat", high + 1: "sat", low - 1: "sat"}
    for s, verdict in expected.items():
        query = ContractedQuery(a, b, k, s, equal=verdict == "sat")
        yield Claim(7, _name(a, b), k, "any", str(s), False, verdict, query)


def of_floats(tree: Tree) -> Iterator[Claim]:
    """Theorem 1 of MXFP4 in floating-point arithmetic itself: the ends of the bound, the middle, and one further."""
    guard = derive(E2M1, E2M1, tree, "product")
    low, high = guard.sum_min - 2 * BIAS, guard.sum_max - 2 * BIAS
    expected: dict[int, Verdict] = {low: "unsat", 0: "unsat", high: "unsat", high + 1: "sat", low - 1: "sat"}
    for s, verdict in expected.items():
        query = FloatQuery(E2M1, tree, s)
        yield Claim(1, "e2m1 in QF_FP", tree.leaves, tree.name, str(s), False, verdict, query)


def _claim(
    theorem: int,
    a: Format,
    b: Format,
    tree: Tree,
    flush: bool,
    exponents: tuple[int, int],
    *,
    outer: int = 0,
    leaves: Leaves = Leaves.SUPERSET,
    lemmas: bool = True,
    expected: Verdict | None = None,
) -> Claim:
    """A claim about a range of exponents, "unsat" of all products, or "sat" of the kinds of `leaves`.

    Of MXFP4 the products are exactly those of elements, but for models of more than 8 of them, which take long to find.
    """
    low, high = exponents
    expected = expected or ("unsat" if leaves is Leaves.SUPERSET else "sat")
    rounded = expected == "unsat" and not sums_are_exact(a, b, tree.leaves)
    if a is b is E2M1 and (expected == "unsat" or tree.leaves <= 8):
        leaves = Leaves.ELEMENTS
    sums = Sums.ROUNDED if rounded else Sums.EXACT
    query = Query(a, b, tree, low, high, outer, flush, leaves, sums, lemmas)
    s = str(low) if low == high else f"{low}..{high}"
    return Claim(theorem, _name(a, b), tree.leaves, tree.name, s, flush, expected, query)


def _name(a: Format, b: Format) -> str:
    return a.name if a is b else f"{a.name} x {b.name}"
