"""Grouped products of the published shapes: what flycc chooses, modelled, beside Triton and published times.

Rows of A in groups, each with a B of its own, [K, N] as it lies: what the published kernels take; bf16. flycc chooses
as at run time by default, without knowing how many rows a group has. Triton's kernel is compiled here and modelled in
the same way, the best of a sweep of tiles for the very groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

from flycc.benchmarks import products
from flycc.benchmarks.costmodel_data import published
from flycc.contracts import GroupedGemmProblem
from flycc.kernels import grouped_gemm
from flycc.tuning import modelled

#: Rows of the groups, N, K.
SHAPES = [(problem.rows, problem.n, problem.k) for problem, _ in published("grouped_gemm")]


def measure() -> dict[str, Any]:
    """Everything, as plain data; times are in us and modelled, but those called published."""
    known = {(problem.rows, problem.n, problem.k): us for problem, us in published("grouped_gemm")}
    rows = [
        products.with_speedups(figure(*shape), known.get(shape, {}))
        for shape in products.tracked(SHAPES, "grouped products")
    ]
    found = products.summary(rows)
    targets = [
        products.speedup_target(found, "triton", "geomean", 1.3),
        products.speedup_target(found, "published flydsl", "least", 0.98),
    ]
    return {"modelled": True, "shapes": rows, "summary": found, "targets": targets}


def figure(rows: tuple[int, ...], n: int, k: int) -> dict[str, Any]:
    """One shape."""
    return {
        "rows_per_group": list(rows),
        "n": n,
        "k": k,
        "flycc": _flycc(rows, n, k),
        "triton": _triton(rows, n, k),
    }


def _flycc(rows: tuple[int, ...], n: int, k: int) -> dict[str, Any]:
    problem = GroupedGemmProblem("bf16", "m", len(rows), sum(rows), n, k)
    config, chosen_by = products.chosen(problem)
    (prediction,) = modelled.model(problem, config, offsets=list(accumulate(rows)))
    return {
        "config": str(config),
        "chosen_by": chosen_by,
        **products.timed(prediction.time, 2 * sum(rows) * n * k),
        "launches": [products.launch_figures(grouped_gemm.kernel(problem, config), prediction)],
    }


def _triton(rows: tuple[int, ...], n: int, k: int) -> dict[str, Any] | None:
    if not find_spec("triton"):
        return None
    from flycc.benchmarks.triton_grouped import best

    config, found = best(rows, n, k)
    return {"config": str(config), **products.timed(found.time, 2 * sum(rows) * n * k)}


def show(figures: Mapping[str, Any]) -> None:
    """The tables a person reads."""
    rows = [(_name(row), row) for row in figures["shapes"]]
    products.show_times("bf16 grouped products: times faster than each", rows)
    products.show_kernels("What runs", rows)
    products.show_summary(figures["summary"], figures["targets"])


def _name(row: Mapping[str, Any]) -> str:
    """As 8x512 4096x2048: groups and their rows, ~ the mean where these differ; N and K."""
    rows = row["rows_per_group"]
    mean = f"{rows[0]}" if len(set(rows)) == 1 else f"~{sum(rows) // len(rows)}"
    return f"{len(rows)}x{mean} {row['n']}x{row['k']}"
