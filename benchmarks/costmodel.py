"""How far the cost model can be believed: modelled times beside documented and published ones.

Kernel level: every published time beside the peer class's prediction, once with constants fitted to all rows and once
with its shape left out of the fit. Rankings: pairs of classes of one shape, and of kernels of one operand shape, whose
published times differ by more than 10%. Loop level: the time of one step along K that public measurements give for
256x256 assembly kernels. Instruction level: matrix instructions' clocks, which are facts the model starts from. Our own
kernels were measured by nobody; where a published kernel has their tile and staging, the two stand side by side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from flycc import tuning
from flycc.benchmarks import costmodel_origami
from flycc.benchmarks.costmodel_data import ProductRow, RowwiseRow, products, rowwise
from flycc.benchmarks.costmodel_fit import (
    fit_all,
    grouped_by_class,
    product_model,
    rowwise_model,
    sequence_model,
)
from flycc.cli.output import console, table
from flycc.contracts import GemmProblem
from flycc.costmodel.mfma import mfma
from flycc.costmodel.peers.constants import SMALL_M, fitted
from flycc.costmodel.peers.products import BY_KEY, best_parts_us
from flycc.costmodel.peers.tiled import BF16, MXFP4, Constants, Format, Tiles, Work, parts_us, total
from flycc.kernels import gemm

#: Published times nearer than this say nothing of an order.
DIFFERENCE = 0.10
#: Above this factor an order is easily told.
NEAR = 2.0
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
Predicted = list[tuple[Any, float]]


def measure() -> dict[str, Any]:
    """Everything, as plain data."""
    given, (_, held_out) = fitted_predictions(), fit_all()
    return {
        "modelled": True,
        "instructions": instructions(),
        "loops": loops(),
        "kernels": kernels(given, held_out),
        "targets": targets(given, held_out),
        "rankings": {"given": rankings(given), "left out": rankings(held_out)},
        "ours": ours(given),
        "origami": costmodel_origami.compare(given),
    }


def fitted_predictions() -> Predicted:
    """Every row with its prediction by the shipped constants."""
    found: Predicted = []
    classes: dict[str, list[Any]] = {**grouped_by_class(products()), **grouped_by_class(rowwise())}
    for key, rows in classes.items():
        constants = dict(fitted(key).constants)
        if key not in BY_KEY:
            model: Callable = rowwise_model(key, rows)
        elif peer_of := BY_KEY[key].sequence_of:
            model = sequence_model(BY_KEY[key], rows, dict(fitted(peer_of).constants))
        else:
            model = product_model(BY_KEY[key], rows)
        found += zip(rows, model(constants).tolist(), strict=True)
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


def kernels(given: Predicted, held_out: Predicted) -> list[dict[str, Any]]:
    """Mean absolute relative error of each class; `error_unnamed` is where the class chooses the tile, not the name."""
    left = _by_class(held_out)
    return [
        {
            "class": key,
            "rows": len(pairs),
            "error": _error(pairs),
            "error_left_out": _error(left[key]),
            "error_unnamed": _error(_choosing(pairs)),
            "worst": max(abs(p / row.us - 1) for row, p in pairs),
        }
        for key, pairs in _by_class(given).items()
    ]


def _choosing(pairs: Predicted) -> Predicted:
    """The same rows, of those with kernels' names as if these were not known."""
    rows = [row for row, _ in pairs]
    if not getattr(rows[0], "kernel", None):
        return pairs
    peer = BY_KEY[rows[0].key]
    parts, _ = best_parts_us(peer, peer.constants, [row.problem for row in rows], peer.tiles)
    return list(zip(rows, total(parts).tolist(), strict=True))


def targets(given: Predicted, held_out: Predicted) -> list[dict[str, Any]]:
    """Errors over all rows of each target, the mean over rows and the largest of a class."""

    def wanted(name: str, keep: Callable[[Row], bool], most: float) -> dict[str, Any]:
        parts = [[(row, p) for row, p in pairs if keep(row)] for pairs in (given, held_out)]
        worst = [max(_error(pairs) for pairs in _by_class(part).values()) for part in parts]
        errors = [_error(part) for part in parts]
        return {
            "target": name,
            "most": most,
            "rows": len(parts[0]),
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


def rankings(predicted: Predicted) -> list[dict[str, Any]]:
    """How many orders of pairs are right: of implementations of one shape, and of kernels on one pair of N and K, where
    most differ by far because M does; so those pairs again whose times are near each other."""
    implementations, configurations = defaultdict(list), defaultdict(list)
    for row, modelled in predicted:
        family, _, *fmt = row.key.split("/")
        pair = (row.us, modelled)
        if isinstance(row, ProductRow):
            implementations[family, *fmt, row.shape].append(pair)
            if row.kernel:
                n, k = row.problem.n, row.problem.k
                configurations[row.key, n, k].append(pair)
        else:
            implementations[family, row.dtype, row.shape].append(pair)
    return [
        {"pairs": "implementations of one shape", **_orders(implementations.values())},
        {"pairs": "kernels of a class, N and K the same", **_orders(configurations.values())},
        {"pairs": f"of these, within {NEAR:g} x", **_orders(configurations.values(), NEAR)},
    ]


def _orders(groups: Iterable[Sequence[tuple[float, float]]], most: float = np.inf) -> dict[str, Any]:
    right = [
        (a[0] < b[0]) == (a[1] < b[1])
        for group in groups
        for a, b in combinations(group, 2)
        if 1 + DIFFERENCE < max(a[0] / b[0], b[0] / a[0]) <= most
    ]
    return {"count": len(right), "right": float(np.mean(right)) if right else 1.0}


def ours(given: Predicted) -> list[dict[str, Any]]:
    """Our binaries, emulated and modelled, beside published kernels of the same tile and staging."""
    found = []
    for spelled in LIKE:
        m, n, k = map(int, spelled.split("x"))
        config = gemm.GemmConfig(m, n, k, waves_m=2, waves_n=2)
        alike = [
            (row, p, row.kernel.tile[4])
            for row, p in given
            if isinstance(row, ProductRow) and row.kernel and row.key == "gemm/aiter-flydsl/bf16"
            if row.kernel.tile[:4] == (m, n, k, 1)
        ]
        for row, peer_us, stages in sorted(alike, key=lambda found: found[0].us)[
            :: max(1, len(alike) // LIKE_SHAPES)
        ]:
            problem = GemmProblem("bf16", row.m, row.problem.n, row.problem.k, trans_b=True)
            time = tuning.total(tuning.model(problem, config))
            found.append(
                {
                    "tile": spelled,
                    "shape": [row.m, row.problem.n, row.problem.k],
                    "published_us": row.us,
                    "published_stages": stages,
                    "peer_modelled_us": peer_us,
                    "ours_modelled_us": [time.low, time.typical, time.high],
                }
            )
    return found


def _by_class(predicted: Predicted) -> Mapping[str, Predicted]:
    classes: dict[str, Predicted] = defaultdict(list)
    for row, modelled in predicted:
        classes[row.key].append((row, modelled))
    return classes


def _error(pairs: Predicted) -> float:
    return float(np.mean([abs(modelled / row.us - 1) for row, modelled in pairs]))


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
        "kernels: mean absolute error of modelled times",
        ("class", "rows", "given", "left out", "unnamed", "worst"),
        [
            (
                r["class"],
                r["rows"],
                f"{r['error']:.1%}",
                f"{r['error_left_out']:.1%}",
                f"{r['error_unnamed']:.1%}",
                f"{r['worst']:.0%}",
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
        f"rankings: pairs whose published times differ by over {DIFFERENCE:.0%}",
        ("pairs of", "count", "right", "left out"),
        [
            (a["pairs"], a["count"], f"{a['right']:.1%}", f"{b['right']:.1%}")
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
        "All times are modelled but those called published. left out: the fit did not see the shape; "
        "unnamed: the class chose the tile, not the kernel's name."
    )
