"""Fits the constants of the cost model's peers to the published times: `python -m flycc.benchmarks.costmodel_fit`.

The constants that make the most of a posterior: residuals of the logarithm of time, robust ones (a pseudo-Huber loss,
so that no single row decides), and a normal prior on the logarithm of each constant around its starting value, so that
a class with few rows stays with its relative. No constant belongs to a shape. Cross-validation leaves out all rows of
some pairs of N and K at once, whatever their M; of a class with few rows, whole shapes; relatives are fitted without
them too. Rewrites flycc/costmodel/peers/constants.json, the same bytes from the same rows.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from flycc.benchmarks.costmodel_data import ProductRow, RowwiseRow, products, rowwise
from flycc.costmodel.peers import rms_norm, tiled, topk
from flycc.costmodel.peers.constants import COVERAGE, SMALL_M
from flycc.costmodel.peers.products import BY_KEY, PEERS, Peer, best_parts_us, sequence_parts_us
from flycc.costmodel.peers.tiled import Array, Tiles, Work

FOLDS = 5
#: Scatter of a measured time around the model beyond which a row counts less, in logarithms.
SCATTER = 0.08
#: Standard deviation of the prior on a constant's logarithm: of a class with many rows, and of one with few.
WIDTH, NARROW, MANY_ROWS = 0.7, 0.25, 50
WIDTHS = {"launch_us": 0.7, "mfma_efficiency": 0.3}
#: The same of row-wise operators: little is known beforehand, but of HBM and of what counts overlap.
BROAD = 1.5
ROWWISE_WIDTHS = {"bytes_per_us": NARROW, "long_bytes_per_us": NARROW, "loaded": NARROW}
#: Constants that are facts of an implementation.
NOT_FITTED = ("cached_elements",)
#: What the machine cannot exceed.
LIMITS = {"mfma_efficiency": 1.0, "cu_bytes_per_us": 64 * 2.4e3, "wg_bytes_per_us": 64 * 2.4e3}
STEPS = 40

Parameters = dict[str, float]
Model = Callable[[Parameters], Array]


def fit(model: Model, us: Array, start: Mapping[str, float], widths: Mapping[str, float]) -> Parameters:
    """Levenberg-Marquardt on logarithms: the constants `widths` names, positive, from `start`; the others stay."""
    names = list(widths)
    origin = np.log([start[name] for name in names])
    precision = np.diag([1 / widths[name] ** 2 for name in names])
    limit = np.log([LIMITS.get(name, np.inf) for name in names])

    def residuals(x: Array) -> Array:
        return np.log(model({**start, **dict(zip(names, np.exp(x).tolist(), strict=True))}) / us) / SCATTER

    def cost(x: Array, r: Array) -> float:
        return float(np.sum(np.sqrt(1 + r**2) - 1) + (x - origin) @ precision @ (x - origin) / 2)

    x, damping = np.minimum(origin, limit), 1e-2
    r = residuals(x)
    for _ in range(STEPS):
        jacobian = np.stack([(residuals(x + step) - r) / 1e-4 for step in 1e-4 * np.eye(len(x))], 1)
        weight = 1 / np.sqrt(1 + r**2)
        hessian = jacobian.T @ (jacobian * weight[:, None]) + precision
        gradient = jacobian.T @ (weight * r) + precision @ (x - origin)
        before = cost(x, r)
        for _ in range(8):
            move = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), -gradient)
            candidate = np.minimum(x + np.clip(move, -0.7, 0.7), limit)
            after = residuals(candidate)
            if cost(candidate, after) < before:
                x, r, damping = candidate, after, max(damping / 3, 1e-6)
                break
            damping *= 4
        else:
            break
        if before - cost(x, r) < 1e-6 * before:
            break
    return {**start, **dict(zip(names, np.exp(x).tolist(), strict=True))}


def product_model(peer: Peer, rows: Sequence[ProductRow], *, known_tile: bool = True) -> Model:
    """Time of every row as a function of the class's constants; `known_tile`: of the tile that a row names."""
    problems = [row.problem for row in rows]
    if known_tile and rows[0].kernel:
        tiles = Tiles.of([row.kernel.tile for row in rows if row.kernel])
        sizes = (
            np.array([getattr(p, name) for p in problems], np.float64)
            for name in ("m", "n", "k", "result_bytes")
        )
        m, n, k, result_bytes = sizes
        work = Work.dense(m, n, k, tiles, peer.format, result_bytes)
        return lambda c: tiled.time_us(work, tiles, peer.format, tiled.Constants(**c))
    return lambda c: tiled.total(best_parts_us(peer, tiled.Constants(**c), problems, peer.tiles)[0])


def sequence_model(peer: Peer, rows: Sequence[ProductRow], each: Parameters) -> Model:
    """The same, of groups run one after another."""
    assert peer.sequence_of is not None
    single, constants = BY_KEY[peer.sequence_of], tiled.Constants(**each)

    def us(c: Parameters) -> Array:
        launch = c["launch_us"]
        return np.array([sum(sequence_parts_us(single, constants, r.problem, launch).values()) for r in rows])

    return us


def rowwise_model(key: str, rows: Sequence[RowwiseRow]) -> Model:
    """Time of every RMS norm or top-k as a function of its constants."""
    sizes = np.array([row.shape for row in rows], np.float64).T
    if key.startswith("rms_norm/"):
        element = np.array([rms_norm.ELEMENT_BYTES[row.dtype] for row in rows], np.float64)
        m, n = sizes
        return lambda c: tiled.total(rms_norm.parts_us(m, n, element, rms_norm.Constants(**c)))
    function, kind = topk.WAYS[key.removeprefix("topk/")]
    return lambda c: tiled.total(function(*sizes, kind(**c)))


def grouped_by_class(rows: Sequence[Any]) -> dict[str, list[Any]]:
    """Rows of each class."""
    classes = defaultdict(list)
    for row in rows:
        classes[row.key].append(row)
    return dict(classes)


def fold_of(shape: tuple[int, ...]) -> int:
    """The fold that leaves a shape out."""
    return zlib.crc32(repr(shape).encode()) % FOLDS


Classes = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row and its predictions by a fit that did not see its like: of its known tile, and of a chosen one."""

    row: Any
    known: float
    chosen: float


def rows_by_class() -> dict[str, list[Any]]:
    """All published rows."""
    return {**grouped_by_class(products()), **grouped_by_class(rowwise())}


def fold_within_class(classes: Classes) -> Callable[[Any], int]:
    """Folds by N and K of the classes with many rows, by whole shape of the others."""
    return lambda row: fold_of(row.shape[-2:] if len(classes[row.key]) >= MANY_ROWS else row.shape)


def fold_across_classes(row: Any) -> int:
    """Folds by N and K (M and N of a norm): all classes' rows of a pair are left out together."""
    return fold_of(row.shape[-2:])


def model_of(
    key: str, rows: Sequence[Any], fits: Mapping[str, Parameters], *, known_tile: bool = True
) -> Model:
    """The model of a class; `fits` has the constants of its relatives."""
    if key not in BY_KEY:
        return rowwise_model(key, rows)
    if peer_of := BY_KEY[key].sequence_of:
        return sequence_model(BY_KEY[key], rows, fits[peer_of])
    return product_model(BY_KEY[key], rows, known_tile=known_tile)


def fit_classes(classes: Classes, many: frozenset[str]) -> dict[str, Parameters]:
    """Constants of every class, relatives first. `many` are those whose prior is wide."""
    fits: dict[str, Parameters] = {}

    def add(key: str, start: Mapping[str, float], widths: Mapping[str, float]) -> None:
        rows = classes.get(key)
        us = np.array([row.us for row in rows or ()])
        fits[key] = fit(model_of(key, rows, fits), us, start, widths) if rows else dict(start)

    for peer in sorted(PEERS, key=_generation):
        relative = peer.like or peer.sequence_of
        if peer.sequence_of:
            add(peer.key, {"launch_us": 8.0}, {"launch_us": WIDTH})
            continue
        start = fits[relative] if relative else asdict(tiled.START)
        width = WIDTH if peer.key in many else NARROW
        add(peer.key, start, {name: WIDTHS.get(name, width) for name in start})
    starts: dict[str, Any] = {
        **{f"rms_norm/{name}": value for name, value in rms_norm.START.items()},
        **{f"topk/{name}": value for name, value in topk.START.items()},
    }
    for key, value in starts.items():
        free = [name for name, number in asdict(value).items() if number > 0 and name not in NOT_FITTED]
        add(key, asdict(value), {name: ROWWISE_WIDTHS.get(name, BROAD) for name in free})
    return fits


def _generation(peer: Peer) -> int:
    """How many relatives are fitted before it."""
    relative = peer.like or peer.sequence_of
    return 1 + _generation(BY_KEY[relative]) if relative else 0


def left_out(
    classes: Classes, many: frozenset[str], fold_of_row: Callable[[Any], int]
) -> dict[str, list[LeftOut]]:
    """Every row, by class, with its predictions when its fold is left out of all fits."""
    found: dict[str, list[LeftOut]] = defaultdict(list)
    for fold in range(FOLDS):
        kept = {key: [row for row in rows if fold_of_row(row) != fold] for key, rows in classes.items()}
        fits = fit_classes(kept, many)
        for key, rows in classes.items():
            if rest := [row for row in rows if fold_of_row(row) == fold]:
                known, chosen = (
                    model_of(key, rest, fits, known_tile=known)(fits[key]).tolist() for known in (True, False)
                )
                found[key] += map(LeftOut, rest, known, chosen)
    return found


def entry(fits: Mapping[str, Parameters], found: Sequence[LeftOut]) -> dict[str, Any]:
    """What constants.json holds of a class."""
    rows, key = [each.row for each in found], found[0].row.key
    us = np.array([row.us for row in rows])
    large = np.array([row.m >= SMALL_M for row in rows])
    known, chosen = np.array([(each.known, each.chosen) for each in found]).T
    errors = np.abs(known / us - 1)

    def spread(predicted: Array) -> list[dict[str, Any]]:
        ratios = np.maximum(predicted / us, us / predicted) - 1
        parts = [ratios[part] if part.any() else ratios for part in (~large, large)]
        return [{"rows": len(part), "ratio": round(_quantile(part), 4)} for part in parts]

    sizes = [(row.m, *(row.shape[-2:] if key in BY_KEY else row.shape[1:])) for row in rows]
    return {
        "constants": {name: float(f"{number:.4g}") for name, number in fits[key].items()},
        "rows": len(rows),
        "error": round(float(np.mean(np.abs(model_of(key, rows, fits)(fits[key]) / us - 1))), 4),
        "held_out_error": [
            round(float(np.mean(errors[part] if part.any() else errors)), 4) for part in (~large, large)
        ],
        "spread": {"known tile": spread(known), "chosen tile": spread(chosen)},
        "ranges": {
            name: [min(of), max(of)] for name, of in zip("MNK", zip(*sizes, strict=True), strict=False)
        },
    }


def _quantile(ratios: Array) -> float:
    """What the next ratio keeps to with probability `COVERAGE`, if it is like these: the conformal quantile."""
    rank = int(np.ceil((len(ratios) + 1) * COVERAGE))
    return float(np.sort(ratios)[min(rank, len(ratios)) - 1])


def fit_all() -> tuple[dict[str, dict[str, Any]], dict[str, list[LeftOut]]]:
    """Every class's entry, and every row with its predictions when its shape is left out."""
    classes = rows_by_class()
    many = with_many_rows(classes)
    found = left_out(classes, many, fold_within_class(classes))
    fits = fit_classes(classes, many)
    return {key: entry(fits, found[key]) for key in fits}, found


def with_many_rows(classes: Classes) -> frozenset[str]:
    """The classes whose rows say more than a prior."""
    return frozenset(key for key, rows in classes.items() if len(rows) >= MANY_ROWS)


def main() -> None:
    """Fit, and rewrite the file."""
    table, _ = fit_all()
    text = json.dumps(dict(sorted(table.items())), indent=1) + "\n"
    with open(str(files("flycc.costmodel.peers").joinpath("constants.json")), "w") as file:
        file.write(text)
    for key, value in table.items():
        small, large = value["held_out_error"]
        print(
            f"{key:36} {value['rows']:4} rows  {value['error']:6.1%}  left out {small:6.1%} {large:6.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
