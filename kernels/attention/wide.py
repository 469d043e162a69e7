"""Attention forward for heads wider than 256, in FlyDSL.

A workgroup is 8 waves, two a SIMD, for 128 queries; the two waves of a *pair* share 32 of these. Each of a pair makes
the sums of S^T = K Q^T over one half of the head, adds the other's, which come through LDS, and has one half of O^T's
rows: so a wave has 128 registers of O and 64 of Q. Keys come in tiles of 32, K's and V's each in a ring of two in LDS,
in slices of 64 elements along the head. A turn has three phases, all waves meet at the end of each:

| phase | | loads started | waits at the end |
|---|---|---|---|
| products | sums of S over half the head, to LDS | | V of this turn |
| softmax | S, P; O is scaled where it must be | V of the next turn | K of the next turn |
| weights | O^T += V^T P | K of the turn after that | |

Waves 4 to 7 are a phase behind, so that of the two waves of a SIMD one multiplies while the other has its softmax. All
waves have read what a load overwrites: those behind read K, or V, in the phase before its load starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import const_expr, range_constexpr, rocdl
from flydsl.expr.typing import T

from flycc.kernels.attention.dropout import Dropout
from flycc.kernels.attention.exchange import Exchange
from flycc.kernels.attention.forward import meet
from flycc.kernels.attention.kernarg import FORWARD
from flycc.kernels.attention.mfma import BLOCK, RESULTS, SLICE, as_operands, product
from flycc.kernels.attention.operands import valid
from flycc.kernels.attention.order import tile_of
from flycc.kernels.attention.scores import LN_2, Band, Beside, Documents, Mask, Place, Scores
from flycc.kernels.attention.softmax import LOWEST, over_halves, splat, weights
from flycc.kernels.attention.tiles import CHUNK, ELEMENT_BYTES, Ring, Rows
from flycc.kernels.attention.variant import SdpaVariant
from flycc.kernels.common.arguments import numbers, placeholders
from flycc.kernels.common.buffers import bounded, checked, store16
from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.common.wave import uniform

if TYPE_CHECKING:
    Sizes = Any
    Strides = Any
else:
    Sizes, Strides = numbers(FORWARD)

#: Tiles of each ring.
STAGES = 2
#: Elements of the slices of which the waves of a pair have every other one.
_HALF = 64
#: Products between the reads of an operand and its use.
_AHEAD = 3


@dataclass(frozen=True)
class Tiles:
    """K or V on its way to LDS: tile i are the 32 rows from `first` + 32 i on."""

    ring: Ring
    rows: Rows
    offsets: list[fx.Int32]
    first: fx.Int32

    def load(self, number: fx.Int32) -> None:
        """Starts the loads of a tile."""
        first = self.first + number * BLOCK
        start = self.rows.pointer + fx.Int64(first) * fx.Int64(self.rows.stride)
        rows = replace(self.rows, pointer=start, count=self.rows.count - first)
        self.ring.fill(number % STAGES, rows, self.offsets)


@dataclass(frozen=True)
class Work:
    """What a wave's turns have in common."""

    element: Any
    exchange: Exchange
    keys: Tiles
    values: Tiles
    half: fx.Int32  # what is to be xored to places of a tile's first elements for those of the wave's half
    of_q: list[fx.Vector]
    scores: Scores
    dropout: Dropout | None
    first_query: fx.Int32
    first_key: fx.Int32
    lane: fx.Int32
    ragged: bool

    def place(self, turn: fx.Int32) -> Place:
        return Place.of(self.first_query, self.first_key + turn * BLOCK, self.lane)

    @property
    def simple(self) -> bool:
        """Whether only tiles at the edges of the band need more than products."""
        return self.scores.features.linear and not self.scores.features.hides

    def whole(self, place: Place) -> Any:
        """Whether all pairs of the wave's part of a tile are in the band."""
        query, key = place.first_query, place.first_key
        return self.scores.band.has_all(query, query + (BLOCK - 1), key, key + (BLOCK - 1))

    def products(self, turn: fx.Int32) -> fx.Vector:
        sums = splat(fx.Float32(0.0))
        rows = self.keys.ring.row_slices(turn % STAGES, 0)
        rows = replace(rows, own=rows.own ^ self.half)
        for i, b in enumerate(self.of_q):
            number = i // 4 * 8 + i % 4
            a = rows.load(number)
            if self.ragged and i + 4 >= len(self.of_q):
                chunk = self.half // CHUNK + 2 * number + self.lane // BLOCK
                a = valid(a, chunk, self.keys.rows.dim)
            sums = product(self.element, a, b, sums)
        _read_ahead(len(self.of_q), 1)
        return sums

    def operand(self, p: fx.Vector, turn: fx.Int32) -> list[fx.Vector]:
        """P as operand of products with V, without what dropout leaves out."""
        if self.dropout is not None:
            kept = self.dropout.kept(self.place(turn))
            some = [keep.select(p[i], fx.Float32(0.0)) for i, keep in enumerate(kept)]
            p = fx.Vector.from_elements(some, fx.Float32)
        return as_operands(p, self.element)

    def weigh(self, turn: fx.Int32, of_p: list[fx.Vector], total: list[fx.Vector]) -> list[fx.Vector]:
        columns = self.values.ring.columns(turn % STAGES, 0)
        columns = replace(columns, own=columns.own ^ self.half)
        for half, b in enumerate(of_p):
            total = [
                product(self.element, columns.load(i // 2 * 4 + i % 2, half), b, sums)
                for i, sums in enumerate(total)
            ]
        return total


def _read_ahead(products: int, reads: int, loads: int = 0) -> None:
    """Each of so many products takes so many reads, which begin `_AHEAD` products before it; loads start between."""
    rocdl.sched_dsrd(_AHEAD * reads)
    for i in range(products):
        rocdl.sched_mfma(1)
        if i + _AHEAD < products:
            rocdl.sched_dsrd(reads)
        if i < loads:
            rocdl.sched_vmem(1)


@flyc.jit
def _step(work: Any, turn: Any, shift: Any, sums: Any, total: Any) -> Any:
    """Turn number `turn`."""
    place = work.place(turn)
    products = work.products(turn)
    work.exchange.put(products)
    beside = work.scores.load(place)
    meet(work.keys.ring.loads)

    rocdl.s_setprio(1)
    others = work.exchange.get()
    work.values.load(turn + 1)
    products = products + others
    values = products
    if const_expr(work.simple):
        whole = work.whole(place)
        if ~whole:
            values = _masked(work, products, place, beside)
    else:
        values = _masked(work, products, place, beside)
    (p,), shift, sums, total = weights(work.scores, [values], shift, sums, total)
    of_p = work.operand(p, turn)
    meet(work.values.ring.loads)
    rocdl.s_setprio(0)

    work.keys.load(turn + 2)
    total = work.weigh(turn, of_p, total)
    _read_ahead(len(of_p) * len(total), 2, work.keys.ring.loads)
    rocdl.sched_barrier(0)
    rocdl.s_barrier()
    rocdl.sched_barrier(0)
    return shift, sums, total


def _masked(work: Work, products: fx.Vector, place: Place, beside: Beside) -> fx.Vector:
    return work.scores.of(products, place, beside)[0]


def build(variant: SdpaVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    element = ELEMENTS[variant.dtype]
    config, features = variant.config, variant.features
    threads = config.threads

    @flyc.kernel(name=variant.symbol)
    def sdpa_wide(
        q: fx.Pointer,
        k: fx.Pointer,
        v: fx.Pointer,
        sizes: Sizes,
        out: fx.Pointer,
        lse: fx.Pointer,
        mask: fx.Pointer,
        slopes: fx.Pointer,
        query_documents: fx.Pointer,
        key_documents: fx.Pointer,
        seed: fx.Pointer,
        strides: Strides,
    ) -> None:
        queries, keys = sizes.queries, sizes.keys
        tiles = fx.Int32(fx.Uint32(queries + (config.queries - 1)) // config.queries)
        batch_head, place = tile_of(fx.block_idx.x, tiles, sizes.heads * sizes.batch, features.upper)
        # The last queries see most keys where these are causal: they come first.
        first_query = (tiles - 1 - place) * config.queries
        batch = fx.Int32(fx.Uint32(batch_head) // fx.Uint32(sizes.heads))
        head = batch_head - batch * sizes.heads
        kv_head = fx.Int32(fx.Uint32(head) // fx.Uint32(sizes.group))
        thread = fx.thread_idx.x
        wave, lane = uniform(thread // WAVE_SIZE), thread % WAVE_SIZE
        band = Band(features, sizes.lower, sizes.upper, queries, keys)
        start, end = band.keys_of(first_query, fx.min(first_query + config.queries, queries) - 1)
        start = start // BLOCK * BLOCK
        turns = fx.Int32(fx.Uint32(fx.max(end - start, fx.Int32(0)) + (BLOCK - 1)) // BLOCK)

        shared = fx.SharedAllocator()
        of_keys, of_values = (
            Ring(
                shared.allocate(fx.Array[fx.Int16, STAGES * BLOCK * dim, 16]).peek().ptr,
                BLOCK,
                dim,
                STAGES,
                threads,
                thread,
                wave,
            )
            for dim in (config.head_dim, config.value_dim)
        )
        sent = shared.allocate(fx.Array[fx.Float32, threads * RESULTS, 16]).peek().ptr
        at_k = k + (fx.Int64(batch) * strides.k_batch + fx.Int64(kv_head) * strides.k_head)
        at_v = v + (fx.Int64(batch) * strides.v_batch + fx.Int64(kv_head) * strides.v_head)
        key_tiles = Tiles(
            of_keys,
            Rows(at_k, sizes.k_row, keys, sizes.head_dim),
            of_keys.aim(sizes.k_row, sizes.head_dim),
            start,
        )
        value_tiles = Tiles(
            of_values,
            Rows(at_v, sizes.v_row, keys, sizes.value_dim),
            of_values.aim(sizes.v_row, sizes.value_dim),
            start,
        )
        key_tiles.load(fx.Int32(0))
        value_tiles.load(fx.Int32(0))
        key_tiles.load(fx.Int32(1))

        own = first_query + wave // 2 * BLOCK
        query = own + lane % BLOCK
        # Slices of 64 elements take turns.
        half = wave % 2 * _HALF
        at_q = q + (fx.Int64(batch) * strides.q_batch + fx.Int64(head) * strides.q_head)
        own_rows = at_q + fx.Int64(own) * fx.Int64(sizes.q_row)
        of_q = _query_operands(
            variant, Rows(own_rows, sizes.q_row, queries - own, sizes.head_dim), half, lane
        )

        slope = fx.Float32(0.0)
        if const_expr(features.alibi):
            slope = fx.Float32(fx.ptr_load(slopes + head, result_type=fx.Float32.ir_type))
        masked = documents = dropout = None
        if const_expr(features.mask != "none"):
            at_mask = mask + (fx.Int64(batch) * strides.mask_batch + fx.Int64(head) * strides.mask_head)
            masked = Mask(features.mask, at_mask, strides.mask_query, strides.mask_key, queries, keys)
        if const_expr(features.documents):
            of_batch = query_documents + fx.Int64(batch) * fx.Int64(queries)
            others = key_documents + fx.Int64(batch) * fx.Int64(keys)
            documents = Documents.of(query, of_batch, queries, others, keys)
        if const_expr(features.dropout):
            dropout = Dropout.of(seed, batch_head, sizes.threshold)
        scores = Scores(features, band, sizes.scale, sizes.softcap, slope, masked, documents)
        work = Work(
            element,
            Exchange(sent, lane, wave, wave ^ 1),
            key_tiles,
            value_tiles,
            half,
            of_q,
            scores,
            dropout,
            own,
            start,
            lane,
            variant.ragged,
        )
        total = [splat(fx.Float32(0.0)) for _ in range_constexpr(config.value_dim // (2 * BLOCK))]
        shift, sums = fx.Float32(LOWEST), fx.Float32(0.0)
        meet(of_keys.loads + of_values.loads)
        if wave // 4 == 1:
            rocdl.s_barrier()
        for turn in range(turns):
            shift, sums, total = _step(work, fx.Int32(turn), shift, sums, total)
        if wave // 4 == 0:
            rocdl.s_barrier()
        rocdl.s_waitcnt(vmcnt=0)
        sums = over_halves(lambda a, b: a + b, sums)
        inverse = fx.Float32(rocdl.rcp(T.f32, sums.ir_value()))
        inverse = (sums == 0.0).select(fx.Float32(0.0), inverse)
        if const_expr(features.dropout):
            inverse = inverse * sizes.inverse_keep
        row = out + (fx.Int64(batch) * strides.out_batch + fx.Int64(head) * strides.out_head)
        buffer = bounded(row + fx.Int64(own) * fx.Int64(sizes.out_row))
        place = lane % BLOCK * sizes.out_row
        for i, block in enumerate(total):
            for r in range_constexpr(0, RESULTS, variant.vector):
                own_column = half + lane // BLOCK * 4
                column = own_column + ((i // 2 * 4 + i % 2) * BLOCK + r // 4 * 8 + r % 4)
                some = [block[r + j] * inverse for j in range_constexpr(variant.vector)]
                exists = (query < queries) & (column < sizes.value_dim)
                store16(buffer, some, element, checked(exists, (place + column) * ELEMENT_BYTES))
        if const_expr(variant.lse):
            logarithm = (shift + fx.Float32(rocdl.log(T.f32, sums.ir_value()))) * LN_2
            value = (sums == 0.0).select(fx.Float32(-math.inf), logarithm)
            row_lse = bounded(lse + (fx.Int64(batch_head) * fx.Int64(queries) + fx.Int64(own)))
            exists = (query < queries) & (lane < BLOCK) & (wave % 2 == 0)
            offset = checked(exists, lane * 4).ir_value()
            rocdl.raw_ptr_buffer_store(value.ir_value(), row_lse, offset, fx.Int32(0).ir_value())

    @flyc.jit
    def launch(
        q: fx.Pointer,
        k: fx.Pointer,
        v: fx.Pointer,
        sizes: Sizes,
        out: fx.Pointer,
        lse: fx.Pointer,
        mask: fx.Pointer,
        slopes: fx.Pointer,
        query_documents: fx.Pointer,
        key_documents: fx.Pointer,
        seed: fx.Pointer,
        strides: Strides,
        grid: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        sdpa_wide(
            q, k, v, sizes, out, lse, mask, slopes, query_documents, key_documents, seed, strides
        ).launch(grid=(grid, 1, 1), block=(threads, 1, 1), stream=stream)

    elements = dict.fromkeys(("q", "k", "v", "out"), element)
    elements |= dict.fromkeys(("lse", "slopes"), fx.Float32)
    elements |= dict.fromkeys(("query_documents", "key_documents", "seed"), fx.Int32)
    elements["mask"] = fx.Int8 if features.mask == "bool" else ELEMENTS.get(features.mask, element)
    return launch, (*placeholders(FORWARD, elements), fx.Int32(1))


def _query_operands(variant: SdpaVariant, rows: Rows, half: fx.Int32, lane: fx.Int32) -> list[fx.Vector]:
    """The lane's query, of `rows`, as operand of products with K, over the wave's half of the head."""
    buffer = rows.buffer(BLOCK)
    column = half + lane // BLOCK * CHUNK
    exists = lane % BLOCK < rows.count
    offset = checked(exists, (lane % BLOCK * rows.stride + column) * ELEMENT_BYTES)
    found = []
    for i in range(variant.config.head_dim // (2 * SLICE)):
        more = i // 4 * 2 * _HALF + i % 4 * SLICE
        at = checked(column + more < rows.dim, offset)
        kind = fx.Vector.make_type(4, fx.Int32)
        words = fx.Vector(rocdl.raw_ptr_buffer_load(kind, buffer, at, fx.Int32(more * ELEMENT_BYTES)))
        operand = words.bitcast(fx.Int16)
        found.append(
            valid(operand, half // CHUNK + more // CHUNK + lane // BLOCK, rows.dim)
            if variant.ragged
            else operand
        )
    return found
