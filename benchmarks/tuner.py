"""How close configurations come to the best that an exhaustive search finds, by the model, and what the search costs.

For each shape every configuration is modelled. Beside the fastest stand what the kernels' own rules choose, the closed
form, the shipped table, and the pruned search; `share` is the fastest's time over theirs. No shape here was looked at
when the closed form was written. Both searches start with compiled kernels and without a journal.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from math import exp, log
from pathlib import Path
from typing import Any

from flycc import codegen
from flycc.cli.output import console, table
from flycc.contracts import FlyccError, GemmProblem
from flycc.kernels import gemm
from flycc.tuning.choice import analytic_choice, looked_up
from flycc.tuning.family import FAMILIES
from flycc.tuning.search import Tuned, tune
from flycc.tuning.table import read, shipped_path
from flycc.tuning.workers import Workers

#: M, N, K of linear layers: in the shipped table; beside its rows, where the nearest entry counts; not in it at all.
SHAPES = (
    (4, 6144, 4096),
    (24, 4096, 14336),
    (256, 8192, 5120),
    (700, 1024, 8192),
    (1024, 4096, 14336),
    (2048, 1024, 4096),
    (48, 3072, 768),
    (384, 2304, 1152),
)
WORKERS = 2
#: The ways to choose that are judged.
WAYS = ("own", "closed form", "table", "search")


def measure() -> dict[str, Any]:
    """Everything, as plain data; times are modelled us."""
    rows = [judged(*shape) for shape in SHAPES]
    return {
        "modelled": True,
        "workers": WORKERS,
        "shapes": rows,
        "geomean": {
            way: exp(sum(log(row[way]["share"]) for row in rows) / len(rows)) if rows else 1.0 for way in WAYS
        },
        "seconds": {name: sum(row[f"{name}_s"] for row in rows) for name in ("exhaustive", "search")},
    }


def judged(m: int, n: int, k: int) -> dict[str, Any]:
    """One shape."""
    problem, family = GemmProblem("bf16", m, n, k, trans_b=True), FAMILIES["gemm"]
    _compile(problem)
    whole = _search(problem, prune=False)
    pruned = _search(problem, prune=True)
    times = {candidate.config: candidate.time.typical for candidate in whole.ranked}
    key = family.key(problem)
    assert key is not None
    shipped = read(shipped_path("gemm"), family)
    chosen = {
        "own": family.choose(problem),
        "closed form": analytic_choice(problem, family),
        "table": looked_up(problem, family, key, (shipped,)),
        "search": pruned.best.config,
    }
    best = whole.fastest
    return {
        "shape": [m, n, k],
        "in_table": shipped.nearest(key) is not None,
        "candidates": whole.space,
        "searched": len(pruned.ranked) + len(pruned.failed),
        "exhaustive_s": whole.seconds,
        "search_s": pruned.seconds,
        "best": {"config": str(best.config), "us": best.time.typical},
        **{
            way: {"config": str(config), "us": times[config], "share": best.time.typical / times[config]}
            for way, config in chosen.items()
        },
    }


def _compile(problem: GemmProblem) -> None:
    """Every kernel of the space into the cache of code objects; one that cannot be built is the searches' to report."""
    for config in FAMILIES["gemm"].space(problem):
        with suppress(FlyccError):
            codegen.compile_kernel(gemm.kernel(problem, config))


def _search(problem: GemmProblem, prune: bool) -> Tuned:
    with tempfile.TemporaryDirectory() as journal, Workers(WORKERS) as workers:
        return tune(problem, workers, prune=prune, journal=Path(journal))


def show(figures: Mapping[str, Any]) -> None:
    """One line for each shape, then the means."""

    def row(found: Mapping[str, Any]) -> tuple[object, ...]:
        return (
            "x".join(map(str, found["shape"])) + ("" if found["in_table"] else " *"),
            f"{found['best']['us']:.1f}",
            *(f"{found[way]['share']:.0%}" for way in WAYS),
            f"{found['searched']}/{found['candidates']}",
            f"{found['search_s']:.0f}/{found['exhaustive_s']:.0f}",
        )

    table(
        "modelled: time of the exhaustive best over that of what is chosen",
        ("M x N x K", "best us", *WAYS, "tried", "s"),
        map(row, figures["shapes"]),
    )
    means = ", ".join(f"{way} {share:.1%}" for way, share in figures["geomean"].items())
    seconds = {name: total / len(figures["shapes"]) for name, total in figures["seconds"].items()}
    console.print(f"\ngeomean: {means}")
    console.print(
        f"seconds a shape, {figures['workers']} workers: search {seconds['search']:.1f}, "
        f"exhaustive {seconds['exhaustive']:.1f}"
    )
    console.print("* not in the shipped table, so the closed form chooses. Modelled, not measured.")
