"""The kernel of the gradients of K and V of heads wider than 256 in FlyDSL, by pairs of waves (`wide_backward`).

Q and dO of all heads of the group stream through LDS, always in the same order; a pair has 32 keys:

| role | has K or V | | | adds |
|---|---|---|---|---|
| 0 | K | S = Q K^T | P | dV^T += dO^T P |
| 1 | V | dP = dO V^T - delta | dS = P dP | dK^T += Q^T dS |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.kernels.attention.backward_arguments import Head, Numbers, host, placeholders
from flycc.kernels.attention.backward_common import Turn, in_loop, in_turn
from flycc.kernels.attention.backward_kv import own_rows
from flycc.kernels.attention.backward_variant import BackwardVariant
from flycc.kernels.attention.dropout import Dropout
from flycc.kernels.attention.features import BAND_LIMIT
from flycc.kernels.attention.mfma import BLOCK, RESULTS, as_operands, product
from flycc.kernels.attention.operands import resident, store
from flycc.kernels.attention.scores import (
    NEIGHBOURS,
    Band,
    Beside,
    Documents,
    Mask,
    Place,
    Scores,
    either,
    lse_in_units,
)
from flycc.kernels.attention.tiles import ELEMENT_BYTES, Rows
from flycc.kernels.attention.wide_backward import AHEAD, STAGES, Own, Pair
from flycc.kernels.common.buffers import bounded
from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.common.wave import uniform
from flycc.kernels.gemm.pipeline import meet

#: Slices of a wave's rows of 512 elements for which there are no registers.
_IN_LDS = 6


@dataclass(frozen=True)
class Operands:
    """Pointers to what belongs to the group's first head; `seed` to that of dropout."""

    q: fx.Pointer
    grad: fx.Pointer
    lse: fx.Pointer
    delta: fx.Pointer
    mask: fx.Pointer
    slopes: fx.Pointer
    seed: fx.Pointer


@dataclass(frozen=True)
class Keys:
    """What a wave has of its pair's 32 keys, of which `own` are rows of K or V; queries begin at `start`, in `tiles`
    tiles a head."""

    pair: Pair
    shape: Any
    operands: Operands
    batch_head: fx.Int32  # of the group's first
    band: Band
    documents: Documents | None
    first: fx.Int32
    own: Own
    start: fx.Int32
    tiles: fx.Int32

    def at(self, step: fx.Int32) -> tuple[fx.Int32, fx.Int32]:
        """The head of the group and the first query of tile number `step`."""
        head = fx.Int32(fx.Uint32(step) // fx.Uint32(fx.max(self.tiles, fx.Int32(1))))
        return head, self.start + (step - head * self.tiles) * BLOCK

    def fill(self, step: fx.Int32) -> None:
        """Starts the loads of a tile of Q and dO; after the last one there are zeros."""
        head, first = self.at(step)
        shape = self.shape
        count = (head < shape.group).select(shape.queries - first, fx.Int32(0))
        rows = [
            Rows(
                pointer + (fx.Int64(head) * of_head + fx.Int64(first) * of_row), fx.Int32(of_row), count, dim
            )
            for pointer, of_head, of_row, dim in (
                (self.operands.q, shape.q_head, shape.q_row, shape.head_dim),
                (self.operands.grad, shape.grad_head, shape.grad_row, shape.value_dim),
            )
        ]
        self.pair.fill(step % STAGES, rows)

    def of_rows(self, head: fx.Int32, place: Place) -> list[fx.Vector]:
        """lse or delta, as the wave's role is, of the queries of a lane's results, on their way, in groups of
        neighbours."""
        queries = self.shape.queries
        kind = fx.Vector.make_type(NEIGHBOURS, fx.Float32)

        def load(pointer: fx.Pointer) -> list[fx.Vector]:
            buffer = bounded(pointer + fx.Int64(head) * fx.Int64(queries), queries * 4)
            return [
                fx.Vector(rocdl.raw_ptr_buffer_load(kind, buffer, place.of_rows * 4, fx.Int32(4 * step)))
                for step in place.steps[::NEIGHBOURS]
            ]

        nothing = [fx.Vector.filled(NEIGHBOURS, 0.0, fx.Float32)] * (RESULTS // NEIGHBOURS)
        of = self.operands
        return either(self.pair.scores, partial(load, of.lse), partial(load, of.delta), nothing)

    def found(self, head: fx.Int32, place: Place, of_rows: list[fx.Vector], products: fx.Vector) -> fx.Vector:
        """P, what a wave of role 0 multiplies columns with, which also sends what dP is to be multiplied with; or dP.
        What scores take from memory has no registers before."""
        features = self.pair.variant.features
        rows = [four[i] for four in of_rows for i in range(NEIGHBOURS)]
        zero = fx.Float32(0.0)

        def weights() -> fx.Vector:
            scores = self.scores(head)
            beside = scores.load(place)
            found = []
            # Scores of many parts have registers for some at a time.
            size = RESULTS if features.linear else NEIGHBOURS
            for start in range(0, RESULTS, size):
                rocdl.sched_barrier(0)
                groups = slice(start // NEIGHBOURS, (start + size) // NEIGHBOURS)
                found.append(
                    self.probabilities(
                        scores,
                        replace(place, steps=place.steps[start : start + size]),
                        Beside(beside.mask[groups], beside.documents[groups]),
                        fx.Vector.from_elements(rows[start : start + size], fx.Float32),
                        fx.Vector.from_elements([products[start + i] for i in range(size)], fx.Float32),
                    )
                )
            p, factors = (
                fx.Vector.from_elements([part[i] for part in parts for i in range(size)], fx.Float32)
                for parts in zip(*found, strict=True)
            )
            if features.dropout:
                keeps = self.dropout(head).kept(place)
                values = [keep.select(p[i], zero) for i, keep in enumerate(keeps)]
                p = fx.Vector.from_elements(values, fx.Float32)
            self.pair.exchange.put(factors)
            return p

        def gradients() -> fx.Vector:
            dp = products
            if features.dropout:
                keeps = self.dropout(head).kept(place)
                factors = [keep.select(self.shape.inverse_keep, zero) for keep in keeps]
                dp = dp * fx.Vector.from_elements(factors, fx.Float32)
            return dp - fx.Vector.from_elements(rows, fx.Float32)

        return either(self.pair.scores, weights, gradients, products)

    def probabilities(
        self, scores: Scores, place: Place, beside: Beside, lse: fx.Vector, products: fx.Vector
    ) -> tuple[fx.Vector, fx.Vector]:
        """P, and that times d score / d product / scale."""
        features = self.pair.variant.features
        exist = [place.of_rows + step < self.shape.queries for step in place.steps]
        lse = fx.Vector.from_elements(
            [exists.select(lse_in_units(lse[i]), fx.Float32(math.inf)) for i, exists in enumerate(exist)],
            fx.Float32,
        )
        made, derivative = scores.of(products, place, beside, not (features.lower or features.upper))
        p = scores.probabilities(made, lse)
        # What is beyond the last query may be anything.
        values = [exists.select(p[i], fx.Float32(0.0)) for i, exists in enumerate(exist)]
        p = fx.Vector.from_elements(values, fx.Float32)
        return p, p if derivative is None else p * derivative

    def add(self, stage: fx.Int32, operands: list[fx.Vector], acc: list[fx.Vector]) -> list[fx.Vector]:
        """acc + the products of columns of the other operand than `pair.products` reads, and `operands`."""
        element = ELEMENTS[self.pair.variant.dtype]
        columns = in_loop(self.pair.ring(1 - self.pair.role).columns(stage, 0))
        acc = list(acc)

        def multiply(rows: fx.Vector, column: int, half: int) -> None:
            acc[column] = product(element, rows, operands[half], acc[column])

        in_turn(
            [
                Turn(partial(columns.load, column, half), partial(multiply, column=column, half=half))
                for half in range(2)
                for column in range(len(acc))
            ],
            AHEAD,
        )
        return acc

    def scores(self, head: fx.Int32) -> Scores:
        """What makes scores of that head of the group."""
        features, shape = self.pair.variant.features, self.shape
        slope = fx.Float32(0.0)
        if features.alibi:
            slope = fx.Float32(fx.ptr_load(self.operands.slopes + head, result_type=T.f32))
        return Scores(features, self.band, shape.scale, shape.softcap, slope, self.mask(head), self.documents)

    def mask(self, head: fx.Int32) -> Mask | None:
        features, shape = self.pair.variant.features, self.shape
        if features.mask == "none":
            return None
        start = self.operands.mask + fx.Int64(head) * shape.mask_head
        return Mask(features.mask, start, shape.mask_query, shape.mask_key, shape.queries, shape.keys)

    def dropout(self, head: fx.Int32) -> Dropout:
        return Dropout.of(self.operands.seed, self.batch_head + head, self.shape.threshold)


def one_tile(keys: Keys, step: fx.Int32, acc: list[fx.Vector]) -> list[fx.Vector]:
    """All waves meet when the tile has come and none reads the one before, whose place the next one takes."""
    # There are no registers to keep what follows from a lane's number.
    keys = replace(keys, pair=keys.pair.anew())
    pair, stage = keys.pair, step % STAGES
    head, first = keys.at(step)
    place = Place.of(first, keys.first, pair.lane, along_keys=False)
    meet(0)
    # Scores of many parts leave no registers for them until products are made.
    linear = pair.variant.features.linear
    of_rows = keys.of_rows(head, place) if linear else []
    rocdl.sched_barrier(0)
    keys.fill(step + 1)
    products = pair.products(stage, keys.own)
    of_rows = of_rows or keys.of_rows(head, place)
    own = keys.found(head, place, of_rows, products)
    meet(pair.loads)
    others = pair.exchange.get()
    factors = [pair.scores.select(fx.Float32(1.0), others[i]) for i in range(RESULTS)]
    values = own * fx.Vector.from_elements(factors, fx.Float32)
    return keys.add(stage, as_operands(values, ELEMENTS[pair.variant.dtype]), acc)


@flyc.jit
def over_tiles(keys: Any, acc: Any) -> Any:
    """acc + what the tiles of queries of all heads of the group add."""
    keys.fill(fx.Int32(0))
    for step in range(keys.tiles * keys.shape.group):
        acc = one_tile(keys, fx.Int32(step), acc)
    meet(0)
    return acc


def build(variant: BackwardVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    config, features = variant.config, variant.features
    element = ELEMENTS[variant.dtype]

    @flyc.kernel(name=variant.symbol)
    def sdpa_wide_dkv(
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
        # With `upper` alone the first keys are seen by most queries: those that take longest come first.
        head = Head.of(variant, shape)
        wave, lane = uniform(fx.thread_idx.x // WAVE_SIZE), fx.thread_idx.x % WAVE_SIZE
        first = head.first + wave // 2 * BLOCK
        # Results of keys that do not exist are not stored: the band need not hide them.
        band = Band(features, shape.lower, shape.upper, shape.queries, fx.Int32(BAND_LIMIT + 1))
        start, end = band.queries_of(head.first, fx.min(head.first + config.rows, shape.keys) - 1)
        start = start // BLOCK * BLOCK
        queries = fx.max(fx.min(end, shape.queries) - start, fx.Int32(0))

        query_head = head.head * shape.group
        batch_head = head.batch * shape.heads + query_head
        of_rows = fx.Int64(batch_head) * fx.Int64(shape.queries)
        operands = Operands(
            q=q + head.place(shape, "q", query_head),
            grad=grad + head.place(shape, "grad", query_head),
            lse=lse + of_rows,
            delta=delta + of_rows,
            mask=mask + head.place(shape, "mask", query_head),
            slopes=slopes + query_head,
            seed=seed,
        )
        documents = None
        if fx.const_expr(features.documents):
            documents = Documents.of(
                first + lane % BLOCK,
                key_documents + fx.Int64(head.batch) * fx.Int64(shape.keys),
                shape.keys,
                query_documents + fx.Int64(head.batch) * fx.Int64(shape.queries),
                shape.queries,
            )
        dims = shape.head_dim, shape.value_dim
        in_lds = _IN_LDS if config.head_dim == 512 else 0
        pair = Pair.of(variant, (shape.q_row, shape.grad_row), dims, fx.thread_idx.x, wave, in_lds)
        of_k, of_v, of_dk, of_dv = (
            own_rows(shape, head, first, name, pointer, dim)
            for name, pointer, dim in zip(("k", "v", "dk", "dv"), (k, v, dk, dv), (*dims, *dims), strict=True)
        )
        slices = either(
            pair.scores,
            lambda: resident(of_k, lane, config.head_dim),
            lambda: resident(of_v, lane, config.head_dim),
            pair.nothing,
        )
        keys = Keys(
            pair=pair,
            shape=shape,
            operands=operands,
            batch_head=batch_head,
            band=band,
            documents=documents,
            first=first,
            own=Own.of(slices, pair, in_lds),
            start=start,
            tiles=(queries + (BLOCK - 1)) // BLOCK,
        )
        acc = [
            fx.Vector.filled(RESULTS, 0.0, fx.Float32) for _ in fx.range_constexpr(config.head_dim // BLOCK)
        ]
        acc = over_tiles(keys, acc)
        width = min(4, variant.align_out // ELEMENT_BYTES)
        inverse_keep = shape.inverse_keep if features.dropout else fx.Float32(1.0)
        of_value, of_head = (
            partial(store, rows, lane, acc, factor, element, 1 if ragged else width)
            for rows, factor, ragged in (
                (of_dv, inverse_keep, variant.ragged_value),
                (of_dk, shape.scale, variant.ragged_head),
            )
        )
        if pair.scores:
            of_value()
        else:
            of_head()

    return host(sdpa_wide_dkv, config.block), tuple(placeholders(variant))
