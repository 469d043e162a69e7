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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import range_constexpr, rocdl
from flydsl.expr.typing import T

from flycc.kernels.attention.config import STAGES, WAVE_QUERIES
from flycc.kernels.attention.dropout import Dropout
from flycc.kernels.attention.kernarg import FORWARD
from flycc.kernels.attention.mfma import BLOCK, RESULTS, SLICE, as_operands, product
from flycc.kernels.attention.scores import LN_2, Band, Documents, Mask, Place, Scores, exp2
from flycc.kernels.attention.softmax import LOWEST, SLACK, exponentials, higher, highest, over_halves, splat
from flycc.kernels.attention.tiles import CHUNK, ELEMENT_BYTES, Ring, Rows
from flycc.kernels.attention.variant import SdpaVariant
from flycc.kernels.common.arguments import numbers, placeholders
from flycc.kernels.common.buffers import bounded, checked, store16
from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.common.wave import uniform
from flycc.kernels.gemm.order import on_xcd

if TYPE_CHECKING:
    Sizes = Any
    Others = Any
else:
    Sizes, Others = numbers(FORWARD)


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
    def blocks(self) -> int:
        """Of 32 keys, of a tile."""
        return self.variant.config.tile // BLOCK

    def fill_k(self, turn: fx.Int32) -> None:
        self.of_k.fill(_stage(turn), self._from(self.k, turn), self.offsets_k)

    def fill_v(self, turn: fx.Int32) -> None:
        self.of_v.fill(_stage(turn), self._from(self.v, turn), self.offsets_v)

    def _from(self, rows: Rows, turn: fx.Int32) -> Rows:
        first = turn * self.variant.config.tile
        return Rows(
            rows.pointer + fx.Int64(first) * fx.Int64(rows.stride), rows.stride, rows.count - first, rows.dim
        )

    def products(self, turn: fx.Int32) -> list[fx.Vector]:
        """Of the keys of a tile and the wave's queries."""
        found = []
        for block in range(self.blocks):
            keys = self.of_k.row_slices(_stage(turn), block)
            total = splat(fx.Float32(0.0))
            for number, query in enumerate(self.query):
                key = keys.load(number)
                if self.variant.ragged:
                    key = valid(key, 2 * number + self.lane // BLOCK, self.k.dim)
                total = product(self.element, key, query, total)
            found.append(total)
        return found

    def weigh(self, turn: fx.Int32, p: list[list[fx.Vector]], total: list[fx.Vector]) -> list[fx.Vector]:
        """Adds the values of a tile's keys times p."""
        total = list(total)
        for block in range(self.blocks):
            values = self.of_v.columns(_stage(turn), block)
            for column in range(len(total)):
                for half in range(2):
                    value = values.load(column, half)
                    total[column] = product(self.element, value, p[block][half], total[column])
        return total

    def probabilities(
        self, turn: fx.Int32, products: list[fx.Vector], shift: fx.Float32, whole: bool
    ) -> tuple[list[fx.Vector], fx.Float32]:
        """Scores of a tile in units, and the higher of `shift` and a query's highest."""
        values = []
        for block, of_block in enumerate(products):
            place = self.place(turn, block)
            scores, _ = self.scores.of(of_block, place, self.scores.load(place), whole)
            values.append(scores)
        return values, higher(highest(values) * self.scores.unit, shift)

    def place(self, turn: fx.Int32, block: int) -> Place:
        first = turn * self.variant.config.tile + block * BLOCK
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


def _stage(turn: fx.Int32) -> fx.Int32:
    return fx.Int32(fx.Uint32(turn) % STAGES)


def meet(loads: int) -> None:
    """All waves meet when each has read what it asked of LDS and has at most `loads` loads on their way."""
    rocdl.sched_barrier(0)
    rocdl.s_waitcnt(vmcnt=loads, lgkmcnt=0)
    rocdl.s_barrier()
    rocdl.sched_barrier(0)


@flyc.jit
def step(work: Any, turn: Any, products: Any, shift: Any, sums: Any, total: Any, whole: Any) -> Any:
    """Turn number `turn`; `whole` says that all queries of the workgroup see all of the tile's keys."""
    values, now = work.probabilities(turn, products, shift, whole)
    grown = rocdl.ballot(T.i64, (now > shift + SLACK).ir_value())
    if fx.Int64(grown) != 0:
        factor = exp2(shift - now)
        shift = now
        sums = sums * factor
        total = [block * splat(factor) for block in total]
    p = [exponentials(scores, work.scores.unit, shift) for scores in values]
    sums = sums + total_of(p)
    of_p = work.operands(turn, p)
    loads = work.of_k.loads + work.of_v.loads
    meet(loads)
    rocdl.s_setprio(1)
    work.fill_k(turn + STAGES)
    work.fill_v(turn + (STAGES - 1))
    following = work.products(turn + 1)
    total = work.weigh(turn, of_p, total)
    rocdl.s_setprio(0)
    meet(loads)
    return following, shift, sums, total


def total_of(vectors: list[fx.Vector]) -> fx.Float32:
    """The sum of all elements, in pairs."""
    total = vectors[0]
    for vector in vectors[1:]:
        total = total + vector
    parts = [fx.Vector.from_elements([total[i], total[i + 1]], fx.Float32) for i in range(0, RESULTS, 2)]
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0][0] + parts[0][1]


def valid(fragment: fx.Vector, chunk: fx.Int32, dim: fx.Int32) -> fx.Vector:
    """Chunk number `chunk` of a row without the elements from `dim` on."""
    words = fragment.bitcast(fx.Int32)
    left = dim - chunk * CHUNK
    kept = []
    for i in range(CHUNK // 2):
        one = (left == 2 * i + 1).select(fx.Int32(0xFFFF), fx.Int32(0))
        kept.append(words[i] & (left >= 2 * i + 2).select(fx.Int32(-1), one))
    return fx.Vector.from_elements(kept, fx.Int32).bitcast(fx.Int16)


def resident(rows: Rows, lane: fx.Int32, dim: int, first: fx.Int32, ragged: bool) -> list[fx.Vector]:
    """Operands with a row in each lane, from memory: rows from `first` on, all slices of a head of `dim`."""
    left = rows.count - first
    own = Rows(rows.pointer + fx.Int64(first) * fx.Int64(rows.stride), rows.stride, left, rows.dim)
    buffer = own.buffer(BLOCK)
    kind = fx.Vector.make_type(4, fx.Int32)
    found = []
    for number in range(dim // SLICE):
        chunk = 2 * number + lane // BLOCK
        inside = (chunk * CHUNK < rows.dim) & (lane % BLOCK < left)
        offset = checked(inside, (lane % BLOCK * rows.stride + chunk * CHUNK) * ELEMENT_BYTES)
        words = fx.Vector(rocdl.raw_ptr_buffer_load(kind, buffer, offset, fx.Int32(0)))
        fragment = words.bitcast(fx.Int16)
        found.append(valid(fragment, chunk, rows.dim) if ragged else fragment)
    return found


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
        number = fx.Int32(on_xcd(fx.block_idx.x, tiles * sizes.heads * sizes.batch))
        batch_head = fx.Int32(fx.Uint32(number) // fx.Uint32(tiles))
        # The last queries see most keys where these are causal: they come first.
        first = (tiles - 1 - (number - batch_head * tiles)) * config.queries
        batch = fx.Int32(fx.Uint32(batch_head) // fx.Uint32(sizes.heads))
        head = batch_head - batch * sizes.heads
        kv_head = fx.Int32(fx.Uint32(head) // fx.Uint32(sizes.group))
        thread = fx.thread_idx.x
        wave = uniform(thread // WAVE_SIZE)
        lane = thread % WAVE_SIZE
        own = first + wave * WAVE_QUERIES
        query = own + lane % BLOCK

        def at(pointer: Any, name: str, of_head: Any) -> Any:
            of_batch = fx.Int64(batch) * getattr(others, f"{name}_batch")
            return pointer + (of_batch + fx.Int64(of_head) * getattr(others, f"{name}_head"))

        rows_q = Rows(at(q, "q", head), sizes.q_row, queries, sizes.head_dim)
        of_query = resident(rows_q, lane, -(-config.head_dim // BLOCK) * BLOCK, own, variant.ragged)

        lds = fx.SharedAllocator().allocate(fx.Array[fx.Int16, config.lds_bytes // 2, 16]).peek().ptr
        of_k = Ring(lds, config.tile, config.head_dim, STAGES, config.threads, thread, wave)
        after_k = lds + STAGES * of_k.stage_elements
        of_v = Ring(after_k, config.tile, config.value_dim, STAGES, config.threads, thread, wave)
        rows_k = Rows(at(k, "k", kv_head), sizes.k_row, keys, sizes.head_dim)
        rows_v = Rows(at(v, "v", kv_head), sizes.v_row, keys, sizes.value_dim)

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

        work.fill_k(start)
        work.fill_k(start + 1)
        work.fill_v(start)
        work.fill_k(start + 2)
        work.fill_v(start + 1)
        loads = of_k.loads + of_v.loads
        meet(2 * loads)
        products = work.products(start)
        meet(loads)
        behind = wave >= config.waves // 2
        if fx.const_expr(config.staggered):  # noqa: SIM102 (one is known when the kernel is traced)
            if behind:
                rocdl.s_barrier()
        total = [splat(fx.Float32(0.0)) for _ in range_constexpr(columns)]
        shift, sums = fx.Float32(LOWEST), fx.Float32(0.0)
        if fx.const_expr(features.lower):
            for turn in range(start, inner):
                products, shift, sums, total = step(work, fx.Int32(turn), products, shift, sums, total, False)
        for turn in range(inner, outer):
            products, shift, sums, total = step(work, fx.Int32(turn), products, shift, sums, total, True)
        for turn in range(outer, end):
            products, shift, sums, total = step(work, fx.Int32(turn), products, shift, sums, total, False)
        if fx.const_expr(config.staggered):  # noqa: SIM102
            if not behind:
                rocdl.s_barrier()
        rocdl.s_waitcnt(vmcnt=0)

        sums = over_halves(lambda a, b: a + b, sums)
        inverse = fx.Float32(rocdl.rcp(T.f32, sums.ir_value()))
        inverse = (sums == 0.0).select(fx.Float32(0.0), inverse)
        if fx.const_expr(features.dropout):
            inverse = inverse * sizes.inverse_keep
        buffer = bounded(at(out, "out", head) + fx.Int64(own) * fx.Int64(sizes.out_row))
        for column in range_constexpr(columns):
            for group in range_constexpr(4):
                first_column = column * BLOCK + group * 8 + lane // BLOCK * 4
                for i in range_constexpr(0, 4, variant.vector):
                    some = [
                        total[column][group * 4 + i + j] * inverse for j in range_constexpr(variant.vector)
                    ]
                    exists = (query < queries) & (first_column + i < sizes.value_dim)
                    place = (lane % BLOCK * sizes.out_row + (first_column + i)) * ELEMENT_BYTES
                    store16(buffer, some, element, checked(exists, place))
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
