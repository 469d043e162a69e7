"""The kernel of the gradient of Q of heads wider than 256 in FlyDSL, by pairs of waves (`wide_backward`).

K and V of the head stream through LDS; a pair has 32 queries, and dS^T in both of its waves, each of which has half of
the rows of dQ^T:

| role | has Q or dO | | | adds |
|---|---|---|---|---|
| 0 | Q | S^T = K Q^T | P^T | dQ^T += K^T dS^T |
| 1 | dO | dP^T = V dO^T - delta | | dQ^T += K^T dS^T |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import rocdl

from flycc.kernels.attention.backward_arguments import Head, Numbers, host, placeholders
from flycc.kernels.attention.backward_common import Turn, in_turn
from flycc.kernels.attention.backward_q import of_row, own_rows, scores_of
from flycc.kernels.attention.backward_variant import BackwardVariant
from flycc.kernels.attention.dropout import Dropout
from flycc.kernels.attention.mfma import BLOCK, RESULTS, as_operands, product
from flycc.kernels.attention.operands import resident, store
from flycc.kernels.attention.scores import Band, Beside, Place, Scores, either, lse_in_units
from flycc.kernels.attention.tiles import ELEMENT_BYTES, Rows
from flycc.kernels.attention.wide_backward import AHEAD, STAGES, Own, Pair
from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.common.wave import uniform
from flycc.kernels.gemm.pipeline import meet

#: Elements of the slices of a row of dQ of which the waves of a pair have every other one.
_HALF = 64


@dataclass(frozen=True)
class Queries:
    """What a wave has of its pair's 32 queries, of which `own` are rows of Q or dO; keys, rows of K and V, begin at
    `start`."""

    pair: Pair
    rows: tuple[Rows, Rows]
    scores: Scores
    dropout: Dropout | None
    inverse_keep: fx.Float32
    first: fx.Int32
    own: Own
    lse: fx.Float32  # in units of ln 2
    delta: fx.Float32
    start: fx.Int32

    @property
    def half(self) -> fx.Int32:
        """The first column of the wave's slices."""
        return self.pair.role * _HALF

    def fill(self, tile: fx.Int32) -> None:
        """Starts the loads of a tile of K and V; beyond the last key there are zeros."""
        first = self.start + tile * BLOCK
        some = [
            replace(
                rows,
                pointer=rows.pointer + fx.Int64(first) * fx.Int64(rows.stride),
                count=rows.count - first,
            )
            for rows in self.rows
        ]
        self.pair.fill(tile % STAGES, some)

    def factor(self, place: Place, beside: Beside, products: fx.Vector) -> fx.Vector:
        """That of dS^T which the wave makes."""

        def weights() -> fx.Vector:
            scores, derivative = self.scores.of(products, place, beside)
            p = self.scores.probabilities(scores, self.lse)
            return p if derivative is None else p * derivative

        def gradients() -> fx.Vector:
            dp = products
            if self.dropout is not None:
                kept = self.dropout.kept(place)
                factors = [keep.select(self.inverse_keep, fx.Float32(0.0)) for keep in kept]
                dp = dp * fx.Vector.from_elements(factors, fx.Float32)
            return dp - fx.Vector.filled(RESULTS, self.delta, fx.Float32)

        return either(self.pair.scores, weights, gradients, products)

    def add(self, stage: fx.Int32, operands: list[fx.Vector], acc: list[fx.Vector]) -> list[fx.Vector]:
        """acc + the wave's half of K^T dS^T, blocks of 32 rows."""
        element = ELEMENTS[self.pair.variant.dtype]
        columns = self.pair.rings[0].columns(stage, 0)
        columns = replace(columns, own=columns.own ^ self.half)
        acc = list(acc)

        def multiply(rows: fx.Vector, block: int, half: int) -> None:
            acc[block] = product(element, rows, operands[half], acc[block])

        in_turn(
            [
                Turn(
                    partial(columns.load, block // 2 * 4 + block % 2, half),
                    partial(multiply, block=block, half=half),
                )
                for half in range(2)
                for block in range(len(acc))
            ],
            AHEAD,
        )
        return acc


def one_tile(queries: Queries, tile: fx.Int32, acc: list[fx.Vector]) -> list[fx.Vector]:
    """All waves meet when the tile has come and none reads the one before, whose place the next one takes."""
    if queries.pair.ragged:  # or which elements exist would stay in registers
        queries = replace(queries, pair=queries.pair.anew())
    pair, stage = queries.pair, tile % STAGES
    place = Place.of(queries.first, queries.start + tile * BLOCK, pair.lane)
    meet(0)
    beside = queries.scores.load(place)
    rocdl.sched_barrier(0)
    queries.fill(tile + 1)
    factor = queries.factor(place, beside, pair.products(stage, queries.own))
    pair.exchange.put(factor)
    meet(pair.loads)
    ds = factor * pair.exchange.get()
    return queries.add(stage, as_operands(ds, ELEMENTS[pair.variant.dtype]), acc)


@flyc.jit
def over_tiles(queries: Any, tiles: Any, acc: Any) -> Any:
    """acc + what so many tiles of keys add."""
    queries.fill(fx.Int32(0))
    for tile in range(tiles):
        acc = one_tile(queries, fx.Int32(tile), acc)
    meet(0)
    return acc


def build(variant: BackwardVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    config, features = variant.config, variant.features

    @flyc.kernel(name=variant.symbol)
    def sdpa_wide_dq(
        q: fx.Pointer,
        k: fx.Pointer,
        v: fx.Pointer,
        out: fx.Pointer,
        grad: fx.Pointer,
        lse: fx.Pointer,
        delta: fx.Pointer,
        mask: fx.Pointer,
        slopes: fx.Pointer,
        query_documents: fx.Pointer,
        key_documents: fx.Pointer,
        seed: fx.Pointer,
        dq: fx.Pointer,
        dk: fx.Pointer,
        dv: fx.Pointer,
        shape: Numbers,
    ) -> None:
        head = Head.of(variant, shape, descending=features.upper)
        wave, lane = uniform(fx.thread_idx.x // WAVE_SIZE), fx.thread_idx.x % WAVE_SIZE
        first = head.first + wave // 2 * BLOCK
        kv_head = fx.Int32(fx.Uint32(head.head) // fx.Uint32(shape.group))
        of_k = Rows(k + head.place(shape, "k", kv_head), fx.Int32(shape.k_row), shape.keys, shape.head_dim)
        of_v = Rows(v + head.place(shape, "v", kv_head), fx.Int32(shape.v_row), shape.keys, shape.value_dim)
        band = Band(features, shape.lower, shape.upper, shape.queries, shape.keys)
        start, end = band.keys_of(head.first, fx.min(head.first + config.rows, shape.queries) - 1)
        start = start // BLOCK * BLOCK
        tiles = (fx.max(end - start, fx.Int32(0)) + (BLOCK - 1)) // BLOCK

        dims = shape.head_dim, shape.value_dim
        pair = Pair.of(variant, (shape.k_row, shape.v_row), dims, fx.thread_idx.x, wave)
        of_q = own_rows(shape, head, first, "q", q, shape.head_dim)
        of_grad = own_rows(shape, head, first, "grad", grad, shape.value_dim)
        batch_head = head.batch * shape.heads + head.head
        row = fx.Int64(batch_head) * fx.Int64(shape.queries) + fx.Int64(first)
        slices = either(
            pair.scores,
            lambda: resident(of_q, lane, config.head_dim),
            lambda: resident(of_grad, lane, config.head_dim),
            pair.nothing,
        )
        queries = Queries(
            pair=pair,
            rows=(of_k, of_v),
            scores=scores_of(
                variant,
                shape,
                head,
                band,
                first + lane % BLOCK,
                mask,
                slopes,
                (query_documents, key_documents),
            ),
            dropout=Dropout.of(seed, batch_head, shape.threshold) if features.dropout else None,
            inverse_keep=shape.inverse_keep,
            first=first,
            own=Own.of(slices, pair, 0),
            lse=lse_in_units(of_row(lse + row, lane, shape.queries - first)),
            delta=of_row(delta + row, lane, shape.queries - first),
            start=start,
        )
        blocks = config.head_dim // (2 * BLOCK)
        acc = [fx.Vector.filled(RESULTS, 0.0, fx.Float32) for _ in fx.range_constexpr(blocks)]
        acc = over_tiles(queries, tiles, acc)
        rows = own_rows(shape, head, first, "dq", dq, shape.head_dim)
        width = 1 if variant.ragged_head else min(4, variant.align_out // ELEMENT_BYTES)
        for number in fx.range_constexpr(blocks // 2):
            column = queries.half + number * (2 * _HALF)
            part = replace(rows, pointer=rows.pointer + column, dim=rows.dim - column)
            sums = acc[2 * number : 2 * number + 2]
            store(part, lane, sums, shape.scale, ELEMENTS[variant.dtype], width)

    return host(sdpa_wide_dq, config.block), tuple(placeholders(variant))
