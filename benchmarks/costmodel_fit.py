"""Fits the constants of the cost model's peers to the published times: `python -m flycc.benchmarks.costmodel_fit`.

The constants that make the most of a posterior: residuals of the logarithm of time, robust ones (a pseudo-Huber loss,
so that no single row decides), and a normal prior on the logarithm of each constant around its starting value, so that
a class with few rows stays with its relative. No constant belongs to a shape. Cross-validation leaves out all rows of
some pairs of N and K at once, whatever their M; of a class with few rows, whole shapes. Rewrites
flycc/costmodel/peers/constants.json, the same bytes from the same rows.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import numpy as np

from flycc.benchmarks.costmodel_data import ProductRow, RowwiseRow, products, rowwise
from flycc.costmodel.peers import rms_norm, tiled, topk
from flycc.costmodel.peers.constants import SMALL_M
from flycc.costmodel.peers.products import BY_KEY, PEERS, Peer, best_parts_us, sequence_parts_us
from flycc.costmodel.peers.tiled import Array, Tiles, Work

FOLDS = 5
#: Scatter of a measured time around the model beyond which a row counts less, in logarithms.
SCATTER = 0.08
#: Standard deviation of the prior on a constant's logarithm: of a class with many rows, and of one with few.
WIDTH, NARROW, MANY_ROWS = 0.7, 0.25, 50
WIDTHS = {"launch_us": 0.7, "mfma_efficiency": 0.3}
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


def product_model(peer: Peer, rows: Sequence[ProductRow]) -> Model:
    """Time of every row as a function of the class's constants."""
    problems = [row.problem for row in rows]
    if rows[0].kernel:
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


def entry(
    rows: Sequence[Any],
    build: Callable[[Sequence[Any]], Model],
    start: Mapping[str, float],
    widths: Mapping[str, float],
) -> tuple[dict[str, Any], Array]:
    """What constants.json holds of a class, and the predictions of its rows when they are left out."""
    us = np.array([row.us for row in rows])
    constants = fit(build(rows), us, start, widths)
    many = len(rows) >= MANY_ROWS
    folds = np.array([fold_of(row.shape[-2:] if many else row.shape) for row in rows])
    held_out = np.empty(len(rows))
    for fold in np.unique(folds):
        kept = [row for row, f in zip(rows, folds, strict=True) if f != fold]
        left = [row for row, f in zip(rows, folds, strict=True) if f == fold]
        others = fit(build(kept), us[folds != fold], start, widths) if kept else dict(start)
        held_out[folds == fold] = build(left)(others)
    errors = np.abs(held_out / us - 1)
    large = np.array([row.m >= SMALL_M for row in rows])
    both = [float(np.mean(errors[part] if part.any() else errors)) for part in (~large, large)]
    value = {
        "constants": {name: float(f"{number:.4g}") for name, number in constants.items()},
        "rows": len(rows),
        "error": round(float(np.mean(np.abs(build(rows)(constants) / us - 1))), 4),
        "held_out_error": [round(error, 4) for error in both],
    }
    return value, held_out


def fit_all() -> tuple[dict[str, dict[str, Any]], list[tuple[Any, float]]]:
    """Every class's entry, relatives first, and every row with its prediction when its shape is left out."""
    classes = {**grouped_by_class(products()), **grouped_by_class(rowwise())}
    table: dict[str, dict[str, Any]] = {}
    held_out: list[tuple[Any, float]] = []

    def add(key: str, build: Callable, start: Mapping[str, float], widths: Mapping[str, float]) -> None:
        table[key], predictions = entry(classes[key], build, start, widths)
        held_out.extend(zip(classes[key], predictions.tolist(), strict=True))

    waiting = list(PEERS)
    while waiting:
        peer = waiting.pop(0)
        relative = peer.like or peer.sequence_of
        if relative and relative not in table:
            waiting.append(peer)
            continue
        if peer.sequence_of:
            each = table[peer.sequence_of]["constants"]
            add(
                peer.key,
                lambda rows, peer=peer, each=each: sequence_model(peer, rows, each),
                {"launch_us": 8.0},
                {"launch_us": WIDTH},
            )
            continue
        start = table[relative]["constants"] if relative else asdict(tiled.START)
        width = WIDTH if len(classes[peer.key]) >= MANY_ROWS else NARROW
        add(
            peer.key,
            lambda rows, peer=peer: product_model(peer, rows),
            start,
            {name: WIDTHS.get(name, width) for name in start},
        )
    starts: dict[str, Any] = {
        **{f"rms_norm/{name}": value for name, value in rms_norm.START.items()},
        **{f"topk/{name}": value for name, value in topk.START.items()},
    }
    for key, value in starts.items():
        start = asdict(value)
        free = {name: NARROW for name, number in start.items() if number > 0 and name != "cached_elements"}
        add(key, lambda rows, key=key: rowwise_model(key, rows), start, free)
    return table, held_out


def main() -> None:
    """Fit, and rewrite the file."""
    table, _ = fit_all()
    text = json.dumps(dict(sorted(table.items())), indent=1) + "\n"
    with open(str(files("flycc.costmodel.peers").joinpath("constants.json")), "w") as file:
        file.write(text)
    for key, value in table.items():
        small, large = value["held_out_error"]
        print(f"{key:36} {value['rows']:4} rows  {value['error']:6.1%}  left out {small:6.1%} {large:6.1%}")


if __name__ == "__main__":
    main()
