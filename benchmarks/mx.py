"""MX-scaled products of the published shapes: what flycc chooses, modelled, beside Triton and published times.

MXFP8 (e4m3) and MXFP4 (e2m1), NT, block scales as tensors have them, bf16 results. Where flycc's kernel takes packed
scales, its time has the launch that packs them. Triton's kernel, tl.dot_scaled on scales as they lie, is compiled here
and modelled in the same way, the best of a sweep of tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from flycc.benchmarks import mx_quantize, products
from flycc.benchmarks.costmodel_data import published
from flycc.cli.output import console, table
from flycc.contracts import ScaledGemmProblem, ScaleRangeProblem
from flycc.contracts.scaled_gemm import BLOCK_K, ElementFormat
from flycc.tuning.family import contiguous
from flycc.tuning.modelled import model, predicted, total

#: By name, the format of both operands, and the TFLOP/s that are the target for the square.
FORMATS: dict[str, tuple[ElementFormat, float]] = {"mxfp8": ("e4m3", 3000), "mxfp4": ("e2m1", 4800)}
#: M, N, K.
SHAPES = [(problem.m, problem.n, problem.k) for problem, _ in published("mxfp8")]
SQUARE = (8192, 8192, 8192)


def measure() -> dict[str, Any]:
    """Everything, as plain data; times are in us and modelled, but those called published."""
    cases = [(name, *shape) for name in FORMATS for shape in SHAPES]
    rows = [figure(*case) for case in products.tracked(cases, "MX-scaled products")]
    by_format = {name: [row for row in rows if row["format"] == name] for name in FORMATS}
    found = {name: products.summary(of) for name, of in by_format.items()}
    targets = [target for name in FORMATS for target in _targets(name, by_format[name], found[name])]
    return {"modelled": True, "shapes": rows, "summary": found, "targets": targets}


def _targets(name: str, rows: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> list[dict[str, Any]]:
    rates = {tuple(row["shape"]): row["flycc"]["tflops"]["typical"] for row in rows}
    shares = [row["guard"]["share"] for row in rows]
    targets = [
        products.speedup_target(found, "triton", "geomean", 1.5),
        products.speedup_target(found, "published flydsl", "least", 1.0),
        products.target("TFLOP/s at 8192 cubed", rates.get(SQUARE), FORMATS[name][1]),
        products.target("most that a guard adds to a call", max(shares, default=None), 0.01, "at_most"),
    ]
    return [{**target, "target": f"{name}: {target['target']}"} for target in targets]


def figure(name: str, m: int, n: int, k: int) -> dict[str, Any]:
    """One shape in one format."""
    known = next(
        (us for found, us in published(name) if (found.m, found.n, found.k) == (m, n, k)),  # type: ignore[arg-type]
        {},
    )
    element = FORMATS[name][0]
    ours = _flycc(element, m, n, k)
    row = {"format": name, "shape": [m, n, k], "flycc": ours, "triton": _triton(element, m, n, k)}
    return {**products.with_speedups(row, known), "guard": _guard(m, k, ours["us"]["typical"])}


def _flycc(element: ElementFormat, m: int, n: int, k: int) -> dict[str, Any]:
    problem = contiguous(ScaledGemmProblem(element, element, "bf16", m, n, k))
    config, chosen_by = products.chosen(problem)
    predictions = model(problem, config)
    launches = products.launches(problem, config, predictions)
    on_device = sum(prediction.device_us.typical for prediction in predictions)
    unscaled = replace(problem, scale_a="none", scale_b="none")
    bare = sum(each.device_us.typical for each in model(unscaled, replace(config, packed=False)))
    return {
        "config": str(config),
        "chosen_by": chosen_by,
        **products.timed(total(predictions), 2 * m * n * k),
        "pack_us": sum(each["device_us"]["typical"] for each in launches if each["family"] == "mx_pack"),
        "scales_share": 1 - bare / on_device,
        "launches": launches,
    }


def _guard(m: int, k: int, call_us: float) -> dict[str, float]:
    """A run-time guard reads the bytes of A's scales in a launch of its own, unless flycc has made them: the kernel
    that quantises knows their range. Those of weights are read once."""
    scan = predicted(mx_quantize.step_of(ScaleRangeProblem(m * -(-k // BLOCK_K)))[0])
    return {"scan_us": scan.device_us.typical, "share": scan.device_us.typical / call_us}


def _triton(element: ElementFormat, m: int, n: int, k: int) -> dict[str, Any] | None:
    if not find_spec("triton"):
        return None
    from flycc.benchmarks.triton_scaled import best

    config, found = best(element, m, n, k)
    return {"config": str(config), **products.timed(found.time, 2 * m * n * k)}


def show(figures: Mapping[str, Any]) -> None:
    """The tables a person reads."""
    for name, found in figures["summary"].items():
        rows = [("x".join(map(str, row["shape"])), row) for row in figures["shapes"] if row["format"] == name]
        products.show_times(f"{name}, NT: times faster than each", rows)
        products.show_kernels(f"{name}: what runs", rows)
        table(f"{name}: what scales cost", _SCALES, [_scales(*row) for row in rows])
        products.show_means(found)
        below = [shape for shape, row in rows if row["speedup"].get("published flydsl", 1) < 1]
        console.print(f"below published flydsl: {', '.join(below) or 'none'}")
    console.print(
        "Scales: share of the time on the device that it takes more than the same kernel without scales. "
        "Pack: us for packing them, part of the call. "
        "Guard: us on the device to read A's scales for one, and that by the call; none where flycc quantises A."
    )
    products.show_notes(found)
    products.show_targets(figures["targets"])


_SCALES = ("shape", "us", "scales", "pack", "guard us", "guard")


def _scales(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    ours, guard = row["flycc"], row["guard"]
    return (
        name,
        f"{ours['us']['typical']:.1f}",
        f"{ours['scales_share']:.0%}",
        f"{ours['pack_us']:.1f}" if ours["pack_us"] else "-",
        f"{guard['scan_us']:.1f}",
        f"{guard['share']:.1%}",
    )
