"""Peers that multiply matrices: dense, scaled and grouped products by implementation class.

A class is named after who publishes the kernels' times: "aten", "triton" and "flydsl" are what PyTorch runs and
reports (host time included where it shows), "aiter-..." are kernels of public tuning tables, timed on the device alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flycc.costmodel.peers import tiled
from flycc.costmodel.peers.constants import fitted
from flycc.costmodel.peers.kernel_names import DOUBLE_BUFFER, NamedKernel
from flycc.costmodel.peers.tiled import (
    BF16,
    FP8,
    INT8,
    MXFP4,
    MXFP8,
    Array,
    Constants,
    Format,
    Tiles,
    Work,
)
from flycc.costmodel.prediction import Interval

Family = Literal["gemm", "scaled_gemm", "grouped_gemm"]

_Tile = tuple[int, int, int]
#: A tile splits K only where each part keeps this many steps.
MIN_SPLIT_STEPS = 2


def _grid(tiles: Sequence[_Tile], splits: Sequence[int] = (1,)) -> tuple[tuple[int, ...], ...]:
    return tuple((*tile, split, DOUBLE_BUFFER) for tile, split in product(tiles, splits))


_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
#: Of kernels that do not split K over workgroups: a few stand for waves that share K, and for tiles not listed here.
_WAVE_SPLITS = (1, 2, 4)
#: Macro tiles of a library with many, for elements of 2 bytes.
_LIBRARY: tuple[_Tile, ...] = (
    *((m, n, 64) for m, n in product((64, 128, 192, 256), repeat=2)),
    *((m, n, 128) for m, n in product((16, 32, 64), (64, 128))),
    (96, 64, 128),
    (96, 128, 64),
    (32, 256, 64),
)
_LIBRARY_BYTES: tuple[_Tile, ...] = tuple((m, n, 2 * k) for m, n, k in _LIBRARY)
_LIBRARY_NIBBLES: tuple[_Tile, ...] = tuple((m, n, 4 * k) for m, n, k in _LIBRARY)


@dataclass(frozen=True, slots=True)
class Peer:
    """One implementation class: what it multiplies, tiles it chooses from, and the class its fit is drawn to."""

    name: str
    family: Family
    format: Format
    source: str
    tiles: tuple[tuple[int, ...], ...]
    like: str | None = None
    #: A library without tuned configurations for few columns: square tiles, larger with M.
    untuned_below_n: int = 0
    #: Groups one after another, each a product of this class that the host launches; the time of a launch is fitted.
    sequence_of: str | None = None

    @property
    def key(self) -> str:
        """Name of its constants."""
        return f"{self.family}/{self.name}/{self.format.name}"

    @property
    def constants(self) -> Constants:
        return Constants(**fitted(self.key).constants)


_ASM_MXFP4: tuple[_Tile, ...] = (
    *((m, 128, 256) for m in (32, 64, 96, 128, 160, 192, 224, 256)),
    *((m, 256, 256) for m in (64, 96, 128, 160, 192, 224, 256)),
    *((m, n, 256) for m, n in ((128, 384), (160, 384), (128, 512), (96, 640))),
)
_TABLES = "public tuning tables for MI355X"
_PYTORCH = "operator tables published with PyTorch's FlyDSL kernels"

PEERS: tuple[Peer, ...] = (
    Peer(
        "aiter-flydsl",
        "gemm",
        BF16,
        _TABLES,
        _grid(
            (
                (16, 64, 64),
                (16, 64, 128),
                (16, 128, 128),
                (32, 64, 64),
                (32, 64, 128),
                (64, 64, 128),
                (96, 128, 64),
                (128, 64, 128),
                (128, 128, 64),
                (256, 128, 64),
            ),
            _SPLITS,
        ),
    ),
    Peer("aiter-asm", "gemm", BF16, _TABLES, _grid(((256, 256, 64),))),
    Peer(
        "aiter-asm-splitk",
        "gemm",
        BF16,
        _TABLES,
        _grid([(m, 64, 64) for m in (32, 48, 64, 80, 96)], range(1, 17)),
    ),
    Peer("aiter-aten", "gemm", BF16, _TABLES, _grid(_LIBRARY, _SPLITS)),
    Peer(
        "aiter-triton",
        "gemm",
        BF16,
        _TABLES,
        _grid(_LIBRARY, _SPLITS),
        like="gemm/aiter-aten/bf16",
        untuned_below_n=1024,
    ),
    Peer(
        "aiter-flydsl-fp8",
        "gemm",
        FP8,
        _TABLES,
        _grid(
            (
                (16, 64, 512),
                (32, 64, 512),
                (64, 64, 256),
                (64, 128, 256),
                (128, 128, 256),
                (256, 128, 128),
                (128, 256, 128),
                (64, 192, 256),
                (128, 192, 256),
            ),
        ),
    ),
    *(
        Peer(
            f"aiter-ck-{fmt.name}",
            "gemm",
            fmt,
            _TABLES,
            _grid(
                (
                    (16, 32, 128),
                    (16, 64, 512),
                    (32, 64, 512),
                    (64, 64, 512),
                    (64, 128, 256),
                    (128, 64, 256),
                    (128, 128, 128),
                    (128, 160, 128),
                    (256, 160, 128),
                    (256, 224, 128),
                    (256, 256, 128),
                ),
            ),
        )
        for fmt in (FP8, INT8)
    ),
    Peer("aiter-asm-mxfp4", "scaled_gemm", MXFP4, _TABLES, _grid(_ASM_MXFP4)),
    Peer(
        "aiter-ck-mxfp4",
        "scaled_gemm",
        MXFP4,
        _TABLES,
        _grid(
            (
                (32, 128, 256),
                (64, 128, 256),
                (96, 128, 256),
                (128, 128, 256),
                (64, 512, 256),
                (128, 256, 256),
                (128, 384, 256),
                (96, 512, 256),
                (256, 256, 256),
            ),
        ),
    ),
    Peer("flydsl", "gemm", BF16, _PYTORCH, _grid(_LIBRARY, _WAVE_SPLITS)),
    Peer("triton", "gemm", BF16, _PYTORCH, _grid(_LIBRARY, _WAVE_SPLITS)),
    Peer("aten", "gemm", BF16, _PYTORCH, _grid(_LIBRARY, _WAVE_SPLITS)),
    Peer("flydsl", "scaled_gemm", MXFP8, _PYTORCH, _grid(_LIBRARY_BYTES, _WAVE_SPLITS)),
    Peer("aten", "scaled_gemm", MXFP8, _PYTORCH, _grid(_LIBRARY_BYTES), like="gemm/aiter-flydsl-fp8/fp8"),
    Peer("flydsl", "scaled_gemm", MXFP4, _PYTORCH, _grid(_LIBRARY_NIBBLES)),
    Peer("aten", "scaled_gemm", MXFP4, _PYTORCH, _grid(_LIBRARY_NIBBLES)),
    Peer("flydsl", "grouped_gemm", BF16, _PYTORCH, _grid(_LIBRARY), like="gemm/flydsl/bf16"),
    Peer("triton", "grouped_gemm", BF16, _PYTORCH, _grid(_LIBRARY), like="gemm/triton/bf16"),
    Peer("aten", "grouped_gemm", BF16, _PYTORCH, (), sequence_of="gemm/aten/bf16"),
)
BY_KEY = {peer.key: peer for peer in PEERS}


@dataclass(frozen=True, slots=True)
class Product:
    """A product, or one for each group of rows: [m, k] by [k, n]. Sizes in elements."""

    rows: tuple[int, ...]
    n: int
    k: int
    #: Bytes of an element of the result.
    result_bytes: int = 2

    @property
    def m(self) -> int:
        return sum(self.rows)


@dataclass(frozen=True, slots=True)
class PeerPrediction:
    """Modelled time of a published implementation. `breakdown` has shares of the typical time that sum to 1."""

    peer: str
    source: str
    time: Interval
    breakdown: dict[str, float]
    kernel: str = ""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data, with "modelled" among the keys."""
        return {"modelled": True, "unit": "us", **asdict(self)}


def predict(peer: Peer, problem: Product, kernel: NamedKernel | None = None) -> PeerPrediction:
    """Modelled time of `problem` by `peer`; of `kernel`'s tile, else of the tile that the class would choose."""
    if peer.sequence_of:
        each, launch = BY_KEY[peer.sequence_of], fitted(peer.key).constants["launch_us"]
        parts = sequence_parts_us(each, each.constants, problem, launch)
        tile = f"{sum(m > 0 for m in problem.rows)} products one after another"
    else:
        rows = [kernel.tile] if kernel else peer.tiles
        arrays, chosen = best_parts_us(peer, peer.constants, [problem], rows)
        parts = {name: float(values[0]) for name, values in arrays.items()}
        m, n, k, split, _ = rows[int(chosen[0])]
        tile = f"{m}x{n}x{k}" + (f" split-K {split}" if split > 1 else "")
    total, found = sum(parts.values()), fitted(peer.key)
    spread = found.spread(problem.m, known_tile=kernel is not None)
    notes = found.outside({"M": problem.m, "N": problem.n, "K": problem.k})
    if problem.n < peer.untuned_below_n:
        notes += (f"no tuned configuration below N {peer.untuned_below_n:,}: its tiles are guessed",)
    return PeerPrediction(
        peer.name,
        peer.source,
        Interval(total / (1 + spread), total, total * (1 + spread)),
        {name: value / total for name, value in parts.items()},
        tile,
        notes,
    )


def best_parts_us(
    peer: Peer, c: Constants, problems: Sequence[Product], rows: Sequence[tuple[int, ...]]
) -> tuple[dict[str, Array], Array]:
    """Parts of the time of each problem under its fastest tile of `rows`, and which one that is."""
    tiles = Tiles.of(rows)
    work = _work(problems, tiles, peer.format)
    parts = tiled.parts_us(work, tiles, peer.format, c)
    total = tiled.total(parts)
    if len(rows) > 1:
        total = np.where(_allowed(peer, problems, tiles), total, np.inf)
    chosen = np.argmin(total, axis=1)
    pick = np.arange(len(problems)), chosen
    return {name: np.broadcast_to(values, total.shape)[pick] for name, values in parts.items()}, chosen


def sequence_parts_us(each: Peer, c: Constants, problem: Product, launch_us: float) -> dict[str, float]:
    """Parts of the time of the groups of `problem` run one after another, `launch_us` between them."""
    groups = [replace(problem, rows=(m,)) for m in problem.rows if m]
    parts, _ = best_parts_us(each, c, groups, each.tiles)
    return {**{name: float(v.sum()) for name, v in parts.items()}, "launch": launch_us * len(groups)}


def _work(problems: Sequence[Product], tiles: Tiles, fmt: Format) -> Work:
    """Arrays of shape [problems, tiles]."""
    n, k, m = (np.array([[getattr(p, name)] for p in problems], np.float64) for name in ("n", "k", "m"))
    result_bytes = np.array([[p.result_bytes] for p in problems], np.float64)
    work = Work.dense(m, n, k, tiles, fmt, result_bytes)
    if all(len(p.rows) == 1 for p in problems):
        return work
    row_tiles = np.array([sum(np.ceil(m / tiles.m) for m in p.rows) for p in problems])
    used = np.array([[sum(m > 0 for m in p.rows)] for p in problems])
    return replace(
        work,
        workgroups=row_tiles * np.ceil(n / tiles.n) * tiles.split,
        rows=np.minimum(tiles.m, np.ceil(m / used)),
        operand_bytes=(m + n * used) * k * fmt.element_bytes,
    )


def _allowed(peer: Peer, problems: Sequence[Product], tiles: Tiles) -> NDArray[np.bool_]:
    """Which tiles the class would take for which problem."""
    k = np.array([[p.k] for p in problems])
    allowed = (tiles.split == 1) | (np.ceil(k / tiles.k) >= MIN_SPLIT_STEPS * tiles.split)
    if peer.untuned_below_n:
        few = np.array([[p.n < peer.untuned_below_n] for p in problems])
        side = np.array([[64 if p.m <= 64 else 128 if p.m <= 512 else 256] for p in problems])
        allowed &= ~few | ((tiles.split == 1) & (tiles.m == side) & (tiles.n == side) & (tiles.k == 64))
    return allowed
