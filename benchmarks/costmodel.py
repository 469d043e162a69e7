"""How far the cost model can be believed: modelled times beside documented and published ones.

Kernel level: every published time beside the peer class's prediction, with constants fitted to all rows, with
its shape left out of the fit, and with its N and K left out of all classes' fits. Rankings: pairs of classes
of one shape, and of kernels of one, whose published times differ by more than 10%. Loop level: the time of
one step along K that public measurements give for 256x256 assembly kernels. Instruction level: matrix
instructions' clocks, which are facts the model starts from. Our own kernels were measured by nobody; where a
published kernel has their tile and staging, the two stand side by side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain, combinations
from typing import Any

import numpy as np

from flycc import tuning
from flycc.benchmarks import costmodel_origami
from flycc.benchmarks.costmodel_data import ProductRow, RowwiseRow
from flycc.benchmarks.costmodel_fit import (
    MANY_ROWS,
    Classes,
    LeftOut,
    fold_across_classes,
    fold_within_class,
    left_out,
    model_of,
    rows_by_class,
    with_many_rows,
)
from flycc.cli.output import console, table
from flycc.contracts import GemmProblem
from flycc.costmodel.mfma import mfma
from flycc.costmodel.peers.constants import COVERAGE, SMALL_M, fitted
from flycc.costmodel.peers.tiled import BF16, MXFP4, Constants, Format, Tiles, Work, parts_us
from flycc.kernels import gemm

#: Published times nearer than this say nothing of an order.
DIFFERENCE = 0.10
#: Row-wise operators below this are the host's time.
SHORT_US = 5.0
#: [S] Clocks of matrix instructions on one SIMD: name, formats of the operands as the assembler spells them, clk.
MFMA_CLK = (
    ("v_mfma_f32_16x16x32_bf16", "", 16),
    ("v_mfma_f32_32x32x16_bf16", "", 32),
    ("v_mfma_f32_16x16x16_bf16", "", 16),
    ("v_mfma_f32_16x16x128_f8f6f4", "", 32),
    ("v_mfma_f32_16x16x128_f8f6f4", " cbsz:4 blgp:4", 16),
    ("v_mfma_f32_32x32x64_f8f6f4", "", 64),
    ("v_mfma_f32_32x32x64_f8f6f4", " cbsz:4 blgp:4", 32),
)
#: [M] Fitted by others to 256x256 assembly kernels at full occupancy: K of a step and its microseconds.
STEPS = (("aiter-asm", BF16, 64, 1.391), ("aiter-asm-mxfp4", MXFP4, 256, 1.476))
#: Our configurations that have the tile and the staging in LDS of published kernels, and shapes that both take.
LIKE = ("64x64x64", "128x128x64")
LIKE_SHAPES = 6

Row = ProductRow | RowwiseRow
#: class -> its rows and their predictions.
Predicted = dict[str, list[LeftOut]]


def measure() -> dict[str, Any]:
    """Everything, as plain data."""
    classes = rows_by_class()
    many = with_many_rows(classes)
    given = fitted_predictions(classes)
    left = left_out(classes, many, fold_within_class(classes))
    across = left_out(classes, many, fold_across_classes)
    return {
        "modelled": True,
        "instructions": instructions(),
        "loops": loops(),
        "kernels": kernels(given, left, across),
        "targets": targets(given, left),
        "coverage": coverage(across),
        "rankings": {"given": rankings(given), "left out": rankings(left)},
        "ours": ours(given),
        "triton": triton(),
        "origami": costmodel_origami.compare(
            [(each.row, each.known) for found in given.values() for each in found]
        ),
    }


def fitted_predictions(classes: Classes | None = None) -> Predicted:
    """Every row with its predictions by the shipped constants."""
    classes = rows_by_class() if classes is None else classes
    fits = {key: dict(fitted(key).constants) for key in classes}
    found: Predicted = {}
    for key, rows in classes.items():
        known, chosen = (
            model_of(key, rows, fits, known_tile=known)(fits[key]).tolist() for known in (True, False)
        )
        found[key] = list(map(LeftOut, rows, known, chosen))
    return found


def instructions() -> list[dict[str, Any]]:
    """Clocks of matrix instructions."""
    return [
        {"instruction": name + text, "published_clk": clk, "modelled_clk": mfma(name, text).clk}
        for name, text, clk in MFMA_CLK
    ]


def loops() -> list[dict[str, Any]]:
    """Microseconds of a step of the large assembly kernels' loops: the peer's, from its constants."""
    found = []
    for name, fmt, step_k, published in STEPS:
        family = "scaled_gemm" if fmt is MXFP4 else "gemm"
        modelled = _step_us(f"{family}/{name}/{fmt.name}", fmt, step_k)
        found.append({"class": name, "step_k": step_k, "published_us": published, "modelled_us": modelled})
    return found


def _step_us(key: str, fmt: Format, step_k: int) -> float:
    """What one more step along K adds to a full round of 256x256 tiles."""
    tiles = Tiles.of([(256, 256, step_k, 1, 2)])
    constants = Constants(**fitted(key).constants)

    def us(steps: int) -> float:
        m, n, k = (np.array([size * 1.0]) for size in (4096, 4096, steps * step_k))
        parts = parts_us(Work.dense(m, n, k, tiles, fmt), tiles, fmt, constants)
        return float(sum(parts[name][0] for name in ("latency", "mfma", "operands")))

    return (us(256) - us(128)) / 128


def kernels(given: Predicted, left: Predicted, across: Predicted) -> list[dict[str, Any]]:
    """Mean absolute and largest relative errors of each class. `error_unnamed` is where the class chooses the tile, not
    the name; `error_across` where no class was fitted to that pair of N and K."""
    return [
        {
            "class": key,
            "rows": len(found),
            "constants": len(fitted(key).constants),
            "error": _error(found),
            "error_left_out": _error(left[key]),
            "error_across": _error(across[key]),
            "error_unnamed": float(np.mean([abs(each.chosen / each.row.us - 1) for each in found])),
            "worst": max(map(_off, found)),
            "worst_left_out": max(map(_off, left[key])),
        }
        for key, found in given.items()
    ]


def targets(given: Predicted, left: Predicted) -> list[dict[str, Any]]:
    """Errors over all rows of each target, the mean over rows and the largest of a class."""

    def wanted(name: str, keep: Callable[[Row], bool], most: float) -> dict[str, Any]:
        parts = [
            [kept for found in by_class.values() if (kept := [each for each in found if keep(each.row)])]
            for by_class in (given, left)
        ]
        worst = [max(map(_error, part)) for part in parts]
        errors = [_error(list(chain.from_iterable(part))) for part in parts]
        return {
            "target": name,
            "most": most,
            "rows": sum(map(len, parts[0])),
            "error": errors[0],
            "error_left_out": errors[1],
            "worst_class": worst[0],
            "worst_class_left_out": worst[1],
        }

    def product(row: Row) -> bool:
        return isinstance(row, ProductRow)

    return [
        wanted(f"products, M >= {SMALL_M}", lambda r: product(r) and r.m >= SMALL_M, 0.15),
        wanted(f"products, M < {SMALL_M}", lambda r: product(r) and r.m < SMALL_M, 0.25),
        wanted(f"RMS norm, top-k over {SHORT_US:.0f} us", lambda r: not product(r) and r.us > SHORT_US, 0.20),
    ]


def coverage(across: Predicted) -> list[dict[str, Any]]:
    """Share of published times within intervals around predictions by fits that saw no class's rows of that N and K."""

    def within(each: LeftOut, known_tile: bool) -> bool:
        predicted = each.known if known_tile else each.chosen
        half = fitted(each.row.key).spread(each.row.m, known_tile=known_tile)
        return bool(max(predicted / each.row.us, each.row.us / predicted) - 1 <= half)

    found = []
    for name, known_tile in (("of its name", True), ("chosen by the class", False)):
        shares = {
            key: float(np.mean([within(each, known_tile) for each in rows])) for key, rows in across.items()
        }
        counts = {key: len(rows) for key, rows in across.items()}
        worst = min((share, key) for key, share in shares.items() if counts[key] >= MANY_ROWS)
        whole = sum(shares[key] * counts[key] for key in shares) / sum(counts.values())
        found.append(
            {
                "tile": name,
                "rows": sum(counts.values()),
                "within": whole,
                "least_class": worst[1],
                "least_within": worst[0],
            }
        )
    return found


def rankings(predicted: Predicted) -> list[dict[str, Any]]:
    """How many orders of pairs are right: of implementations of one shape, of kernels of one class on one shape; and of
    kernels of a class on one pair of N and K where the larger M is the faster. All other such pairs "larger M is
    slower" gets right, so that they show nothing."""
    implementations, same_m, by_m = defaultdict(list), defaultdict(list), defaultdict(list)
    for each in chain.from_iterable(predicted.values()):
        row, (family, _, *fmt) = each.row, each.row.key.split("/")
        if isinstance(row, ProductRow):
            implementations[family, *fmt, row.shape].append(each)
            if row.kernel:
                same_m[row.key, row.shape].append(each)
                by_m[row.key, row.problem.n, row.problem.k].append(each)
        else:
            implementations[family, row.dtype, row.shape].append(each)

    def faster_though_larger(a: LeftOut, b: LeftOut) -> bool:
        return (a.row.m - b.row.m) * (a.row.us - b.row.us) < 0

    return [
        {"pairs": "implementations of one shape", **_orders(implementations.values())},
        {"pairs": "kernels of a class, one shape", **_orders(same_m.values())},
        {
            "pairs": "kernels of a class, larger M faster",
            **_orders(by_m.values(), faster_though_larger),
        },
    ]


def _orders(
    groups: Iterable[Sequence[LeftOut]], wanted: Callable[[LeftOut, LeftOut], bool] = lambda a, b: True
) -> dict[str, Any]:
    pairs = [
        (a, b)
        for group in groups
        for a, b in combinations(group, 2)
        if max(a.row.us / b.row.us, b.row.us / a.row.us) > 1 + DIFFERENCE and wanted(a, b)
    ]
    right = [(a.row.us < b.row.us) == (a.known < b.known) for a, b in pairs]
    return {"count": len(right), "right": float(np.mean(right)) if right else None}


def ours(given: Predicted) -> list[dict[str, Any]]:
    """Our binaries, emulated and modelled, beside published kernels of the same tile and staging."""
    found = []
    for spelled in LIKE:
        m, n, k = map(int, spelled.split("x"))
        config = gemm.GemmConfig(m, n, k, waves_m=2, waves_n=2)
        alike = [
            each
            for each in given["gemm/aiter-flydsl/bf16"]
            if each.row.kernel and each.row.kernel.tile[:4] == (m, n, k, 1)
        ]
        for each in sorted(alike, key=lambda found: found.row.us)[:: max(1, len(alike) // LIKE_SHAPES)]:
            row = each.row
            problem = GemmProblem("bf16", row.m, row.problem.n, row.problem.k, trans_b=True)
            time = tuning.total(tuning.model(problem, config))
            found.append(
                {
                    "tile": spelled,
                    "shape": [row.m, row.problem.n, row.problem.k],
                    "published_us": row.us,
                    "published_stages": row.kernel.tile[4],
                    "peer_modelled_us": each.known,
                    "ours_modelled_us": [time.low, time.typical, time.high],
                }
            )
    return found


def triton() -> dict[str, Any] | None:
    """Triton's kernels, compiled here, beside its published times; None where Triton is not installed."""
    if not find_spec("triton"):
        return None
    from flycc.benchmarks import costmodel_triton

    return costmodel_triton.report(costmodel_triton.measure())


def _off(each: LeftOut) -> float:
    return float(abs(each.known / each.row.us - 1))


def _error(found: Sequence[LeftOut]) -> float:
    return float(np.mean([*map(_off, found)]))


def show(figures: Mapping[str, Any]) -> None:
    """Tables of 80 columns."""
    table(
        "instructions: clk of a SIMD, published and modelled",
        ("instruction", "published", "modelled"),
        [(r["instruction"], r["published_clk"], f"{r['modelled_clk']:g}") for r in figures["instructions"]],
    )
    console.print()
    table(
        "loops: us of a K-step of 256x256",
        ("class", "K", "published", "modelled"),
        [(r["class"], r["step_k"], r["published_us"], f"{r['modelled_us']:.3f}") for r in figures["loops"]],
    )
    console.print()
    table(
        "kernels: mean absolute error of modelled times, %",
        ("class", "rows", "c", "given", "left", "all", "own", "worst"),
        [
            (
                r["class"],
                r["rows"],
                r["constants"],
                *(
                    f"{100 * r[name]:.1f}"
                    for name in ("error", "error_left_out", "error_across", "error_unnamed")
                ),
                f"{100 * r['worst']:.0f} {100 * r['worst_left_out']:.0f}",
            )
            for r in figures["kernels"]
        ],
    )
    console.print()
    table(
        "targets: mean over rows, and of the worst class",
        ("rows of", "at most", "rows", "given", "left out", "worst class"),
        [
            (
                r["target"],
                f"{r['most']:.0%}",
                r["rows"],
                f"{r['error']:.1%}",
                f"{r['error_left_out']:.1%}",
                f"{r['worst_class']:.1%}, {r['worst_class_left_out']:.1%}",
            )
            for r in figures["targets"]
        ],
    )
    console.print()
    table(
        f"intervals: published times within, of {COVERAGE:.0%} stated; left out across",
        ("tile", "rows", "within", "least, of a class of many rows"),
        [
            (
                r["tile"],
                r["rows"],
                f"{r['within']:.0%}",
                f"{r['least_within']:.0%}, {r['least_class']}",
            )
            for r in figures["coverage"]
        ],
    )
    console.print()
    table(
        f"rankings: pairs whose published times differ by over {DIFFERENCE:.0%}",
        ("pairs of", "count", "right", "left out"),
        [
            (a["pairs"], a["count"], *("-" if x["right"] is None else f"{x['right']:.0%}" for x in (a, b)))
            for a, b in zip(figures["rankings"]["given"], figures["rankings"]["left out"], strict=True)
        ],
    )
    console.print()
    table(
        "ours beside published kernels of the same tile, us",
        ("tile", "M,N,K", "published", "its peer, modelled", "ours, modelled"),
        [
            (
                r["tile"],
                ",".join(map(str, r["shape"])),
                f"{r['published_us']:.1f}",
                f"{r['peer_modelled_us']:.1f}",
                "{1:.1f} [{0:.1f}, {2:.1f}]".format(*r["ours_modelled_us"]),
            )
            for r in figures["ours"]
        ],
    )
    console.print()
    if figures["triton"] is None:
        console.print("Triton's kernels beside its published times: Triton not installed.")
    else:
        _show_triton(figures["triton"])
    console.print()
    if figures["origami"] is None:
        console.print("rocm-origami, AMD's analytical model: not installed.")
    else:
        table(
            "mean absolute errors, on the rows that rocm-origami answers",
            ("class", "rows", "answered", "peer", "origami"),
            [
                (r["class"], r["rows"], r["answered"], f"{r['error']:.1%}", f"{r['origami_error']:.1%}")
                for r in figures["origami"]
            ],
        )
        console.print()
    console.print(
        "All times are modelled but those called published. c: constants fitted; where they are nearly as many as "
        "rows, given says little. left: the fit saw none of the class's rows of that shape; all: nor any class's of "
        "that N and K. own: the class chose the tile, not the kernel's name. worst: the worst row, given and left out."
    )


def _show_triton(figures: Mapping[str, Any]) -> None:
    table(
        "Triton's kernels, compiled here, us",
        ("M,N,K", "published", "modelled", "tile"),
        [
            (
                f"{r['m']},{r['n']},{r['k']}",
                f"{r['published_us']:.1f}",
                "{typical:.1f} [{low:.1f}, {high:.1f}]".format(**r["modelled_us"]),
                r["config"],
            )
            for r in figures["rows"]
        ],
    )
    for name, error in figures["mean_absolute_error"].items():
        console.print(f"mean absolute error of modelled times, {name}: {error:.1%}")
