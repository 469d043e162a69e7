"""The forward kernel in FlyDSL, for heads up to 256 wide.

A workgroup has a tile of queries of one head, 32 for each wave, and walks through the keys tile by tile, from rings of
tiles of K and V in LDS. Scores are S^T = K Q^T and sums O^T = V^T P^T, so that all of a lane's results are of one
query, and P is an operand as it is, once rounded. A turn of a wave has two phases:

    vector    p of the scores of tile i
    matrix    K of tile i + 1 by Q, V of tile i by p; starts the loads of K of tile i + 3, V of tile i + 2

All waves meet after each. With 8 waves the second four are a phase behind the first: of the two waves of a SIMD one
multiplies while the other makes p.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import range_constexpr, rocdl
from flydsl.expr.typing import T

from flycc.kernels.attention.config import STAGES, WAVE_QUERIES
from flycc.kernels.attention.dropout import Dropout
from flycc.kernels.attention.kernarg import FORWARD
from flycc.kernels.attention.mfma import BLOCK, as_operands, product
from flycc.kernels.attention.operands import resident, store, valid
from flycc.kernels.attention.order import tile_of
from flycc.kernels.attention.scores import LN_2, Band, Documents, Mask, Place, Scores
from flycc.kernels.attention.softmax import LOWEST, over_halves, splat, weights
from flycc.kernels.attention.tiles import Ring, Rows, RowSlices
from flycc.kernels.attention.variant import SdpaVariant
from flycc.kernels.common.arguments import numbers, placeholders
from flycc.kernels.common.buffers import bounded, checked
from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.common.wave import uniform

if TYPE_CHECKING:
    Sizes = Any
    Others = Any
else:
    Sizes, Others = numbers(FORWARD)

#: Products that are made while the operand of one is on its way from LDS.
_AHEAD = 4


@dataclass(frozen=True)
class Term:
    """One MFMA: what reads its operand A, its operand B, and the number of the sum it is added to."""

    load: Callable[[], fx.Vector]
    b: fx.Vector
    sum: int


@dataclass(frozen=True)
class Cursor:
    """Which tiles a turn has: where in the rings its own, the next one and the one after that lie, and what of the keys
    it loads: `left` of them from the tile of K that is to be loaded on."""

    stages: list[fx.Int32]
    next_k: fx.Pointer
    next_v: fx.Pointer
    left: fx.Int32

    @property
    def carried(self) -> tuple[Any, ...]:
        """What a loop carries of it."""
        return self.stages, self.next_k, self.next_v, self.left

    def k(self, work: Work) -> Rows:
        return Rows(self.next_k, work.k.stride, self.left, work.k.dim)

    def v(self, work: Work) -> Rows:
        return Rows(self.next_v, work.v.stride, self.left + work.tile, work.v.dim)

    def next(self, work: Work) -> Cursor:
        here, *others = self.stages
        next_k, next_v = (
            pointer + fx.Int64(work.tile) * fx.Int64(rows.stride)
            for pointer, rows in ((self.next_k, work.k), (self.next_v, work.v))
        )
        return Cursor([*others, here], next_k, next_v, self.left - work.tile)


@dataclass(frozen=True)
class Work:
    """What a wave's turns have in common."""

    variant: SdpaVariant
    element: Any
    of_k: Ring
    of_v: Ring
    k: Rows
    v: Rows
    offsets_k: list[fx.Int32]
    offsets_v: list[fx.Int32]
    query: list[fx.Vector]
    scores: Scores
    dropout: Dropout | None
    first_query: fx.Int32
    lane: fx.Int32

    @property
    def tile(self) -> int:
        """Keys of a tile."""
        return self.variant.config.tile

    @property
    def blocks(self) -> int:
        """Of 32 keys, of a tile."""
        return self.tile // BLOCK

    def products(self, stage: fx.Int32) -> list[fx.Vector]:
        """Of the keys of a tile and the wave's queries."""
        return self._multiply(self._of_keys(stage), self._nothing(), [])

    def matrix_phase(
        self, at: Cursor, p: list[list[fx.Vector]], total: list[fx.Vector]
    ) -> tuple[list[fx.Vector], list[fx.Vector]]:
        """Products of the next tile's keys; `total` and the values of this tile's keys times `p`."""
        here, following, after = at.stages
        keys, values = self._of_keys(following), self._of_values(here, p, self.blocks)
        loads = [
            *self.of_k.filling(here, at.k(self), self.offsets_k),
            *self.of_v.filling(after, at.v(self), self.offsets_v),
        ]
        sums = self._multiply([*keys, *values], [*self._nothing(), *total], loads)
        return sums[: self.blocks], sums[self.blocks :]

    def _nothing(self) -> list[fx.Vector]:
        return [splat(fx.Float32(0.0)) for _ in range(self.blocks)]

    def _of_keys(self, stage: fx.Int32) -> list[Term]:
        """Terms of the sums 0, 1, ... of blocks of keys."""
        found = []
        for block in range(self.blocks):
            keys = self.of_k.row_slices(stage, block)
            for number, query in enumerate(self.query):
                found.append(Term(partial(self._key, keys, number), query, block))
        return found

    def _key(self, keys: RowSlices, number: int) -> fx.Vector:
        key = keys.load(number)
        return valid(key, 2 * number + self.lane // BLOCK, self.k.dim) if self.variant.ragged else key

    def _of_values(self, stage: fx.Int32, p: list[list[fx.Vector]], first: int) -> list[Term]:
        """Terms of the sums `first`, `first` + 1, ... of blocks of columns."""
        columns = -(-self.variant.config.value_dim // BLOCK)
        found = []
        for block in range(self.blocks):
            values = self.of_v.columns(stage, block)
            for column in range(columns):
                for half in range(2):
                    found.append(Term(partial(values.load, column, half), p[block][half], first + column))
        return found

    def _multiply(
        self, terms: list[Term], sums: list[fx.Vector], loads: list[Callable[[], None]]
    ) -> list[fx.Vector]:
        """Adds all terms, each while what those `_AHEAD` take is on its way from LDS, and starts `loads` meanwhile."""
        operands = [term.load() for term in terms[:_AHEAD]]
        starts = {(i + 1) * len(terms) // (len(loads) + 1): load for i, load in enumerate(loads)}
        for number, term in enumerate(terms):
            rocdl.sched_barrier(0)
            if number + _AHEAD < len(terms):
                operands.append(terms[number + _AHEAD].load())
            if number in starts:
                starts[number]()
            sums[term.sum] = product(self.element, operands[number], term.b, sums[term.sum])
        return sums

    def values(self, turn: fx.Int32, products: list[fx.Vector], whole: bool) -> list[fx.Vector]:
        """Scores of a tile in units."""
        found = []
        for block, of_block in enumerate(products):
            place = self.place(turn, block)
            found.append(self.scores.of(of_block, place, self.scores.load(place), whole)[0])
        return found

    def place(self, turn: fx.Int32, block: int) -> Place:
        first = turn * self.tile + block * BLOCK
        return Place.of(self.first_query, first, self.lane)

    def operands(self, turn: fx.Int32, p: list[fx.Vector]) -> list[list[fx.Vector]]:
        """p, without what dropout leaves out, for `weigh`."""
        found = []
        for block, values in enumerate(p):
            if self.dropout is not None:
                kept = self.dropout.kept(self.place(turn, block))
                zero = fx.Float32(0.0)
                elements = [keep.select(values[i], zero) for i, keep in enumerate(kept)]
                values = fx.Vector.from_elements(elements, fx.Float32)
            found.append(as_operands(values, self.element))
        return found


def meet(loads: int) -> None:
    """All waves meet when each has read what it asked of LDS and has at most `loads` loads on their way."""
    rocdl.sched_barrier(0)
    rocdl.s_waitcnt(vmcnt=loads, lgkmcnt=0)
    rocdl.s_barrier()
    rocdl.sched_barrier(0)


@flyc.jit
def step(work: Any, turn: Any, at: Any, products: Any, shift: Any, sums: Any, total: Any, whole: Any) -> Any:
    """Turn number `turn`; `whole` says that all queries of the workgroup see all of the tile's keys."""
    at = Cursor(*at)
    values = work.values(turn, products, whole)
    p, shift, sums, total = weights(work.scores, values, shift, sums, total)
    of_p = work.operands(turn, p)
    loads = work.of_k.loads + work.of_v.loads
    meet(loads)
    rocdl.s_setprio(1)
    following, total = work.matrix_phase(at, of_p, total)
    rocdl.s_setprio(0)
    meet(loads)
    return at.next(work).carried, following, shift, sums, total


def build(variant: SdpaVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    config, features = variant.config, variant.features
    element = ELEMENTS[variant.dtype]
    columns = -(-config.value_dim // BLOCK)

    @flyc.kernel(name=variant.symbol)
    def sdpa(
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
        others: Others,
    ) -> None:
        queries, keys = sizes.queries, sizes.keys
        tiles = fx.Int32(fx.Uint32(queries + (config.queries - 1)) // config.queries)
        batch_head, place = tile_of(fx.block_idx.x, tiles, sizes.heads * sizes.batch, features.upper)
        # The last queries see most keys where these are causal: they come first.
        first = (tiles - 1 - place) * config.queries
        batch = fx.Int32(fx.Uint32(batch_head) // fx.Uint32(sizes.heads))
        head = batch_head - batch * sizes.heads
        kv_head = fx.Int32(fx.Uint32(head) // fx.Uint32(sizes.group))
        thread = fx.thread_idx.x
        wave = uniform(thread // WAVE_SIZE)
        lane = thread % WAVE_SIZE
        own = first + wave * WAVE_QUERIES
        query = own + lane % BLOCK

        def of(pointer: Any, name: str, of_head: Any) -> Any:
            of_batch = fx.Int64(batch) * getattr(others, f"{name}_batch")
            return pointer + (of_batch + fx.Int64(of_head) * getattr(others, f"{name}_head"))

        def own_rows(pointer: Any, name: str, stride: fx.Int32, dim: fx.Int32) -> Rows:
            return Rows(
                of(pointer, name, head) + fx.Int64(own) * fx.Int64(stride), stride, queries - own, dim
            )

        of_query = resident(own_rows(q, "q", sizes.q_row, sizes.head_dim), lane, config.head_dim)

        lds = fx.SharedAllocator().allocate(fx.Array[fx.Int16, config.lds_bytes // 2, 16]).peek().ptr
        of_k = Ring(lds, config.tile, config.head_dim, STAGES, config.threads, thread, wave)
        after_k = lds + STAGES * of_k.stage_elements
        of_v = Ring(after_k, config.tile, config.value_dim, STAGES, config.threads, thread, wave)
        rows_k = Rows(of(k, "k", kv_head), sizes.k_row, keys, sizes.head_dim)
        rows_v = Rows(of(v, "v", kv_head), sizes.v_row, keys, sizes.value_dim)

        slope = fx.Float32(0.0)
        if fx.const_expr(features.alibi):
            slope = fx.Float32(fx.ptr_load(slopes + head, result_type=fx.Float32.ir_type))
        masked = documents = dropout = None
        if fx.const_expr(features.mask != "none"):
            of_mask = fx.Int64(batch) * others.mask_batch + fx.Int64(head) * others.mask_head
            masked = Mask(features.mask, mask + of_mask, others.mask_query, others.mask_key, queries, keys)
        if fx.const_expr(features.documents):
            of_queries = query_documents + fx.Int64(batch) * fx.Int64(queries)
            of_keys = key_documents + fx.Int64(batch) * fx.Int64(keys)
            documents = Documents.of(query, of_queries, queries, of_keys, keys)
        if fx.const_expr(features.dropout):
            dropout = Dropout.of(seed, batch_head, sizes.threshold)
        band = Band(features, sizes.lower, sizes.upper, queries, keys)
        scores = Scores(features, band, sizes.scale, sizes.softcap, slope, masked, documents)
        work = Work(
            variant,
            element,
            of_k,
            of_v,
            rows_k,
            rows_v,
            of_k.aim(sizes.k_row, sizes.head_dim),
            of_v.aim(sizes.v_row, sizes.value_dim),
            of_query,
            scores,
            dropout,
            own,
            lane,
        )

        # Turns [start, end), of which those of [inner, outer) have nothing to hide.
        last = fx.min(first + config.queries, queries) - 1
        first_key, end_key = band.keys_of(first, last)
        start = fx.Int32(fx.Uint32(first_key) // config.tile)
        end = fx.max(
            fx.Int32(fx.Uint32(fx.max(end_key, fx.Int32(0)) + (config.tile - 1)) // config.tile), start
        )
        inner, outer = start, fx.min(fx.max(fx.Int32(fx.Uint32(keys) // config.tile), start), end)
        if fx.const_expr(features.upper):
            seen = fx.max(fx.min(first + sizes.upper + 1, keys), fx.Int32(0))
            outer = fx.min(fx.max(fx.Int32(fx.Uint32(seen) // config.tile), start), end)
        if fx.const_expr(features.lower):
            hidden = fx.max(last + sizes.lower, fx.Int32(0))
            inner = fx.min(fx.Int32(fx.Uint32(hidden + (config.tile - 1)) // config.tile), outer)
            inner = fx.max(inner, start)

        stages = [fx.Int32(i) for i in range_constexpr(STAGES)]

        def tile(rows: Rows, number: int) -> Rows:
            skipped = (start + number) * config.tile
            pointer = rows.pointer + fx.Int64(skipped) * fx.Int64(rows.stride)
            return Rows(pointer, rows.stride, rows.count - skipped, rows.dim)

        of_k.fill(stages[0], tile(rows_k, 0), work.offsets_k)
        of_k.fill(stages[1], tile(rows_k, 1), work.offsets_k)
        of_v.fill(stages[0], tile(rows_v, 0), work.offsets_v)
        of_k.fill(stages[2], tile(rows_k, 2), work.offsets_k)
        of_v.fill(stages[1], tile(rows_v, 1), work.offsets_v)
        next_k = tile(rows_k, STAGES)
        at_first = Cursor(stages, next_k.pointer, tile(rows_v, STAGES - 1).pointer, next_k.count)
        loads = of_k.loads + of_v.loads
        meet(2 * loads)
        products = work.products(stages[0])
        meet(loads)
        behind = wave >= config.waves // 2
        if fx.const_expr(config.staggered):  # noqa: SIM102 (one is known when the kernel is traced)
            if behind:
                rocdl.s_barrier()
        total = [splat(fx.Float32(0.0)) for _ in range_constexpr(columns)]
        shift, sums = fx.Float32(LOWEST), fx.Float32(0.0)
        at = at_first.carried
        if fx.const_expr(features.lower):
            for turn in range(start, inner):
                at, products, shift, sums, total = step(
                    work, fx.Int32(turn), at, products, shift, sums, total, False
                )
        for turn in range(inner, outer):
            at, products, shift, sums, total = step(
                work, fx.Int32(turn), at, products, shift, sums, total, True
            )
        for turn in range(outer, end):
            at, products, shift, sums, total = step(
                work, fx.Int32(turn), at, products, shift, sums, total, False
            )
        if fx.const_expr(config.staggered):  # noqa: SIM102
            if not behind:
                rocdl.s_barrier()
        rocdl.s_waitcnt(vmcnt=0)

        sums = over_halves(lambda a, b: a + b, sums)
        inverse = fx.Float32(rocdl.rcp(T.f32, sums.ir_value()))
        inverse = (sums == 0.0).select(fx.Float32(0.0), inverse)
        if fx.const_expr(features.dropout):
            inverse = inverse * sizes.inverse_keep
        store(
            own_rows(out, "out", sizes.out_row, sizes.value_dim),
            lane,
            total,
            inverse,
            element,
            variant.vector,
        )
        if fx.const_expr(variant.lse):
            logarithm = (shift + fx.Float32(rocdl.log(T.f32, sums.ir_value()))) * LN_2
            value = (sums == 0.0).select(fx.Float32(-float("inf")), logarithm)
            row = bounded(lse + (fx.Int64(batch_head) * fx.Int64(queries) + fx.Int64(own)))
            place = checked((query < queries) & (lane < BLOCK), lane * 4)
            rocdl.raw_ptr_buffer_store(value.ir_value(), row, place.ir_value(), fx.Int32(0).ir_value())

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
        others: Others,
        grid: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        sdpa(q, k, v, sizes, out, lse, mask, slopes, query_documents, key_documents, seed, others).launch(
            grid=(grid, 1, 1), block=(config.threads, 1, 1), stream=stream
        )

    elements = dict.fromkeys(("q", "k", "v", "out"), element)
    elements |= dict.fromkeys(("lse", "slopes"), fx.Float32)
    elements |= dict.fromkeys(("query_documents", "key_documents", "seed"), fx.Int32)
    elements["mask"] = fx.Int8 if features.mask in ("none", "bool") else ELEMENTS[features.mask]
    return launch, (*placeholders(FORWARD, elements), fx.Int32(1))
