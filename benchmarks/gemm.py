"""Dense products of the published shapes: what flycc chooses, modelled, beside Triton and published times.

bf16, NT. flycc's configuration is the one that it chooses by default: the shipped table's, the closed form's, or the
kernels' own. Triton's kernel is compiled here and modelled in the same way, the best of a sweep of tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from flycc.benchmarks import products
from flycc.benchmarks.costmodel_data import published
from flycc.contracts import GemmProblem
from flycc.costmodel import MI350
from flycc.tuning.modelled import model, total

#: M, N, K.
SHAPES = [(problem.m, problem.n, problem.k) for problem, _ in published("gemm")]
#: The square, and the most rows of the shapes that weights bound, that have targets of their own.
SQUARE, FEW_ROWS = (8192, 8192, 8192), 64


def measure() -> dict[str, Any]:
    """Everything, as plain data; times are in us and modelled, but those called published."""
    known = {(problem.m, problem.n, problem.k): us for problem, us in published("gemm")}
    rows = [
        products.with_speedups(figure(*shape), known.get(shape, {}))
        for shape in products.tracked(SHAPES, "products")
    ]
    found = products.summary(rows)
    rates = {tuple(row["shape"]): row["flycc"]["tflops"]["typical"] for row in rows}
    few = [row["flycc"]["hbm_roof"] for row in rows if row["shape"][0] <= FEW_ROWS]
    return {
        "modelled": True,
        "shapes": rows,
        "summary": found,
        "targets": [
            products.speedup_target(found, "triton", "geomean", 1.25),
            products.speedup_target(found, "published flydsl", "least", 0.98),
            products.target("TFLOP/s at 8192 cubed", rates.get(SQUARE), 1500),
            *(
                products.target(
                    f"least share of HBM's {MI350.hbm_tb_s} TB/s (achieved) at M <= {FEW_ROWS}, {what}",
                    min((share[part] for share in few), default=None),
                    0.85,
                )
                for part, what in (("launch", "launch included"), ("device", "on the device"))
            ),
        ],
    }


def figure(m: int, n: int, k: int) -> dict[str, Any]:
    """One shape."""
    return {"shape": [m, n, k], "flycc": _flycc(m, n, k), "triton": _triton(m, n, k)}


def _flycc(m: int, n: int, k: int) -> dict[str, Any]:
    problem = GemmProblem("bf16", m, n, k, trans_b=True)
    config, chosen_by = products.chosen(problem)
    predictions = model(problem, config)
    time = total(predictions)
    least_us = 2 * (m * k + n * k + m * n) / MI350.hbm_tb_s / 1e6
    on_device = sum(prediction.device_us.typical for prediction in predictions)
    return {
        "config": str(config),
        "chosen_by": chosen_by,
        **products.timed(time, 2 * m * n * k),
        "hbm_roof": {"launch": least_us / time.typical, "device": least_us / on_device},
        "launches": products.launches(problem, config, predictions),
    }


def _triton(m: int, n: int, k: int) -> dict[str, Any] | None:
    if not find_spec("triton"):
        return None
    from flycc.benchmarks.triton_products import SWEEP, best

    config, found = best(m, n, k, SWEEP)
    return {"config": str(config), **products.timed(found.time, 2 * m * n * k)}


def show(figures: Mapping[str, Any]) -> None:
    """The tables a person reads."""
    rows = [("x".join(map(str, row["shape"])), row) for row in figures["shapes"]]
    products.show_times("bf16 products, NT: times faster than each", rows)
    products.show_kernels("What runs", rows)
    products.show_summary(figures["summary"], figures["targets"])
