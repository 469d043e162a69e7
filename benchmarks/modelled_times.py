"""Modelled times of RMS norm and top-k beside published ones, which FlyDSL's and ATen's kernels took on an MI355X."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flycc.benchmarks.costmodel_data import rowwise
from flycc.cli.output import table
from flycc.contracts import Reason, RmsNormProblem, TopkProblem
from flycc.kernels import rms_norm, topk
from flycc.tuning.modelled import model, total

#: Columns of the table: what publications call flydsl is its default way, the other takes the lowest of equal indices.
PEERS = ("flydsl", "flydsl-deterministic", "aten")


def with_times(
    problem: RmsNormProblem | TopkProblem, shape: tuple[int, ...], figure: dict[str, Any]
) -> dict[str, Any]:
    """`figure` with modelled microseconds, the rate at which its `least_bytes` move in that time, and published
    microseconds by kernel, where there are any.
    """
    config = (topk if isinstance(problem, TopkProblem) else rms_norm).choose(problem)  # type: ignore[arg-type]
    assert not isinstance(config, Reason)
    interval = total(model(problem, config))
    return {
        **figure,
        "modelled_us": {part: getattr(interval, part) for part in ("low", "typical", "high")},
        "modelled_tb_per_s": figure["least_bytes"] / interval.typical * 1e-6,
        "published_us": published(problem.dtype, shape),
    }


def published(dtype: str, shape: tuple[int, ...]) -> dict[str, float]:
    """Microseconds by kernel; the rows of a top-k have three sizes, those of an RMS norm two."""
    found = {}
    for row in rowwise():
        if (row.dtype, row.shape) == (dtype, shape):
            name = row.key.partition("/")[2]
            found[name.replace("register", "flydsl").replace("radix", "flydsl")] = row.us
    return found


def show_times(title: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """A table of figures that `with_times` made, each with the name of its shape."""
    peers = [peer for peer in PEERS if any(peer in figure["published_us"] for _, figure in rows)]
    lines = []
    for shape, figure in rows:
        low, typical, high = (figure["modelled_us"][part] for part in ("low", "typical", "high"))
        others = [
            f"{figure['published_us'][peer]:.1f}" if peer in figure["published_us"] else "-" for peer in peers
        ]
        lines.append(
            (shape, f"{typical:.1f} [{low:.1f}, {high:.1f}]", f"{figure['modelled_tb_per_s']:.2f}", *others)
        )
    short = {"flydsl-deterministic": "determ."}
    table(title, ("shape", "modelled us", "TB/s", *(short.get(peer, peer) for peer in peers)), lines)
