"""What `flycc bench gemm`, `grouped` and `mx` share: figures of a kernel, comparisons with others, targets."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from math import exp, log
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import track

from flycc.cli.output import console, table
from flycc.codegen import CodeObjectCache, Compiled, compile_kernel
from flycc.costmodel import Interval, Prediction
from flycc.costmodel.mfma import mfma
from flycc.emulator import load
from flycc.kernels.common.spec import KernelSpec
from flycc.tuning.choice import looked_up
from flycc.tuning.family import family_of
from flycc.tuning.modelled import steps
from flycc.tuning.table import read, shipped_path

#: Whose times are compared with ours, as columns: Triton compiled here and modelled, and what is published.
PEERS = {
    "triton": "Triton",
    "published triton": "triton",
    "published flydsl": "flydsl",
    "published aten": "aten",
    "published anchor": "anchor",
}


def tracked(shapes: Sequence[Any], what: str) -> Iterator[Any]:
    """The shapes one after another, with a bar on a terminal's standard error that says how many are done."""
    yield from track(shapes, what, console=Console(stderr=True), transient=True)


def chosen(problem: Any) -> tuple[Any, str]:
    """The configuration that flycc runs a problem with where nobody tuned it, and by what that was chosen."""
    family = family_of(problem)
    assert family is not None
    shipped, key = read(shipped_path(family.name), family), family.key(problem)
    assert key is not None, "tables serve single, aligned products"
    config = looked_up(problem, family, key, (shipped,))
    if config is None:
        return family.choose(problem), "own"
    nearest = shipped.nearest(key)
    return config, "table" if nearest is not None and nearest.config == config else "closed form"


def timed(time: Interval, flops: float) -> dict[str, Any]:
    """Microseconds and TFLOP/s, both from low to high."""
    rates = {"low": time.high, "typical": time.typical, "high": time.low}
    return {"us": asdict(time), "tflops": {part: flops / us / 1e6 for part, us in rates.items()}}


def launches(problem: Any, config: Any, predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """The figures of all launches of a problem. One of which only the last round is split is modelled as two."""
    specs = [step.spec for step in steps(problem, config)]
    specs += specs[-1:] * (len(predictions) - len(specs))
    return [launch_figures(spec, prediction) for spec, prediction in zip(specs, predictions, strict=True)]


def launch_figures(spec: KernelSpec, prediction: Prediction) -> dict[str, Any]:
    """What the model says of one launch, what the code object says of its kernel, and the seconds to compile that."""
    compiled = _compiled(spec)
    return {
        "family": spec.family,
        **kernel_figures(compiled.elf, compiled.symbol, prediction),
        "compile_s": sum(compiled.seconds.values()),
    }


@lru_cache(maxsize=64)
def _compiled(spec: KernelSpec) -> Compiled:
    """Compiled as if for the first time."""
    with tempfile.TemporaryDirectory() as folder:
        return compile_kernel(spec, cache=CodeObjectCache(Path(folder)))


def kernel_figures(elf: bytes, name: str, prediction: Prediction) -> dict[str, Any]:
    """What the model says of one launch, and what the code object says of its kernel, whoever compiled that.
    `accumulation_vgprs` are those of `vgprs` that only MFMAs, moves and memory can name."""
    kernel = load(elf).kernels[name].descriptor
    return {
        "kernel": name,
        "device_us": asdict(prediction.device_us),
        "mfma_utilisation": prediction.utilisation["mfma"],
        "valu_utilisation": prediction.utilisation["valu"],
        "mfma_steady": steady_mfma(prediction),
        "lds_conflicts": prediction.lds_conflicts,
        "workgroups": prediction.workgroups,
        "waves_per_simd": prediction.occupancy.waves_per_simd,
        "vgprs": kernel.vgpr_count,
        "accumulation_vgprs": max(0, kernel.vgpr_count - kernel.accum_offset),
        "sgprs": kernel.sgpr_count,
        "spilled_vgprs": kernel.spilled_vgprs,
        "spilled_sgprs": kernel.spilled_sgprs,
        "scratch_bytes": kernel.scratch_bytes,
    }


def steady_mfma(prediction: Prediction) -> float:
    """The share of a turn of the main loop that the matrix pipe of a SIMD is busy; 0 if MFMAs are in no loop."""
    clk_of: dict[int, float] = defaultdict(float)
    for cost in prediction.by_instruction:
        if cost.unit == "MFMA" and cost.loop >= 0:
            clk_of[cost.loop] += cost.count * mfma(cost.text.split()[0], cost.text).clk
    if not clk_of:
        return 0.0
    number, clk = max(clk_of.items(), key=lambda item: item[1])
    loop = prediction.by_loop[number]
    return clk / loop.iterations * prediction.occupancy.waves_per_simd / loop.clk_per_iteration


def with_speedups(row: dict[str, Any], published_us: Mapping[str, float]) -> dict[str, Any]:
    """`row`, which has "flycc" and perhaps "triton", with published times and how many times faster flycc is."""
    ours = row["flycc"]["us"]["typical"]
    times = {"triton": row["triton"]["us"]["typical"]} if row["triton"] else {}
    times |= {f"published {peer}": us for peer, us in published_us.items()}
    return {
        **row,
        "published_us": dict(published_us),
        "speedup": {peer: us / ours for peer, us in times.items()},
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By peer: geomean and least of how many times faster flycc is; and how Triton's modelled time compares with the
    published one, where there is one."""
    speedups = {peer: [row["speedup"][peer] for row in rows if peer in row["speedup"]] for peer in PEERS}
    credible = [
        row["triton"]["us"]["typical"] / row["published_us"]["triton"]
        for row in rows
        if row["triton"] and "triton" in row["published_us"]
    ]
    return {
        "speedup": {
            peer: {"geomean": geomean(found), "least": min(found), "shapes": len(found)}
            for peer, found in speedups.items()
            if found
        },
        "triton_modelled_over_published": {
            "geomean": geomean(credible),
            "least": min(credible),
            "most": max(credible),
        }
        if credible
        else None,
    }


def geomean(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def target(
    what: str, value: float | None, bound: float, sense: Literal["at_least", "at_most"] = "at_least"
) -> dict[str, Any]:
    """A target of the project; `value` is None where nothing was found to judge it by."""
    met = None if value is None else value >= bound if sense == "at_least" else value <= bound
    return {"target": what, sense: bound, "value": value, "met": met}


def speedup_target(found: Mapping[str, Any], peer: str, which: str, at_least: float) -> dict[str, Any]:
    """A target for `which`, "geomean" or "least", of the speedups over a peer in a `summary`."""
    value = found["speedup"].get(peer, {}).get(which)
    return target(f"{which} of speedup over {peer}", value, at_least)


def show_times(title: str, shapes: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Our time and rate, Triton's time, and how many times faster we are than each peer that has a figure."""
    rows = list(shapes)
    peers = [peer for peer in PEERS if any(peer in row["speedup"] for _, row in rows)]

    def line(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
        us, tflops = row["flycc"]["us"], row["flycc"]["tflops"]["typical"]
        triton = f"{row['triton']['us']['typical']:.1f}" if row["triton"] else "-"
        speedups = (f"{row['speedup'][peer]:.2f}" if peer in row["speedup"] else "-" for peer in peers)
        return (
            name,
            f"{us['typical']:.1f} [{us['low']:.0f}, {us['high']:.0f}]",
            f"{tflops:.0f}",
            triton,
            *speedups,
        )

    columns = ("shape", "modelled us", "TF/s", "Triton", *(f"/{PEERS[peer]}" for peer in peers))
    table(title, columns, [line(*row) for row in rows])


def show_kernels(title: str, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Each launch that has MFMAs: the configuration, how busy the matrix pipes are, LDS conflicts, registers,
    compilation."""
    lines = [
        (
            name,
            f"{launch['mfma_utilisation']:.0%}/{launch['mfma_steady']:.0%}",
            f"{launch['lds_conflicts']:.0%}",
            launch["vgprs"],
            launch["spilled_vgprs"],
            f"{launch['compile_s']:.1f}",
            row["flycc"]["config"],
        )
        for name, row in rows
        for launch in row["flycc"]["launches"]
        if launch["mfma_utilisation"]
    ]
    columns = ("shape", "MFMA", "conflicts", "VGPRs", "spills", "compile s", "configuration")
    table(title, columns, lines)


def show_summary(found: Mapping[str, Any], targets: Iterable[Mapping[str, Any]]) -> None:
    """The means, then the targets."""
    show_means(found)
    show_notes(found)
    show_targets(targets)


def show_means(found: Mapping[str, Any]) -> None:
    """A line for each peer of a `summary`."""
    for peer, of in found["speedup"].items():
        console.print(
            f"over {peer}: geomean {of['geomean']:.2f}, least {of['least']:.2f} of {of['shapes']} shapes"
        )


def show_notes(found: Mapping[str, Any]) -> None:
    """How far to believe the comparison with Triton."""
    if "triton" in found["speedup"]:
        console.print("Triton's kernels, a sweep of tiles, neither share K nor order tiles by XCD.")
    else:
        console.print("Triton: not installed, not compared")
    if ratio := found["triton_modelled_over_published"]:
        console.print(
            f"Triton modelled over published: geomean {ratio['geomean']:.2f}, "
            f"{ratio['least']:.2f} to {ratio['most']:.2f}"
        )


def show_targets(targets: Iterable[Mapping[str, Any]]) -> None:
    """A line for each target, and what all figures are."""
    for each in targets:
        value = "not known" if each["met"] is None else f"{each['value']:.2f}"
        met = "" if each["met"] is None else ", met" if each["met"] else ", NOT met"
        bound = f">= {each['at_least']:g}" if "at_least" in each else f"<= {each['at_most']:g}"
        console.print(f"target: {each['target']} {bound}: {value}{met}")
    console.print(
        "Modelled, not measured, but what is published. MFMA: of the launch / of a turn of its main loop."
    )
