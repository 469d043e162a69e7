"""The kernel of the gradient of Q in FlyDSL.

A workgroup owns a tile of queries of one head, of which each wave has 32: their rows of Q and dO and the sums of their
gradient are in registers. K and V stream through LDS. With a key in each row of a result and a query in each column,

    S^T = K Q^T       dP^T = V dO^T - delta       dQ^T += K^T dS^T

a lane's results dS^T are operands of the last as they are, once rounded; K^T are transposed reads of the tile that the
first reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.kernels.attention.backward_arguments import Head, Numbers, host, placeholders
from flycc.kernels.attention.backward_common import Turn, in_loop, in_turn
from flycc.kernels.attention.backward_variant import BackwardVariant
from flycc.kernels.attention.dropout import Dropout
from flycc.kernels.attention.mfma import BLOCK, RESULTS, as_operands, product
from flycc.kernels.attention.operands import resident, store, valid
from flycc.kernels.attention.scores import Band, Beside, Documents, Mask, Place, Scores, lse_in_units
from flycc.kernels.attention.tiles import CHUNK, ELEMENT_BYTES, Ring, Rows, RowSlices, loads_of_tile
from flycc.kernels.common.buffers import bounded
from flycc.kernels.common.machine import SIMDS, WAVE_SIZE
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.common.wave import uniform
from flycc.kernels.gemm.pipeline import meet

#: Tiles of K and V that LDS holds: one that is read, one on its way.
_STAGES = 2


@dataclass(frozen=True)
class Stream:
    """K and V of the head on their way through LDS."""

    rings: tuple[Ring, Ring]
    rows: tuple[Rows, Rows]
    offsets: tuple[list[fx.Int32], list[fx.Int32]]

    @classmethod
    def of(
        cls, variant: BackwardVariant, rows: tuple[Rows, Rows], thread: fx.Int32, wave: fx.Int32
    ) -> Stream:
        config = variant.config
        dims = config.head_dim, config.value_dim
        sizes = [loads_of_tile(config.tile, dim, config.block) * config.block * CHUNK for dim in dims]
        shared = fx.SharedAllocator().allocate(fx.Array[fx.Int16, _STAGES * sum(sizes), 16]).peek().ptr
        places = shared, shared + _STAGES * sizes[0]
        of_k, of_v = (
            Ring(place, config.tile, dim, _STAGES, config.block, thread, wave)
            for place, dim in zip(places, dims, strict=True)
        )
        offsets = of_k.aim(rows[0].stride, rows[0].dim), of_v.aim(rows[1].stride, rows[1].dim)
        return cls((of_k, of_v), rows, offsets)

    def fill(self, tile: fx.Int32) -> None:
        """Starts the loads of a tile; beyond the last key there are zeros."""
        for ring, rows, offsets in zip(self.rings, self.rows, self.offsets, strict=True):
            first = tile * ring.rows
            some = Rows(
                rows.pointer + fx.Int64(first) * fx.Int64(rows.stride),
                rows.stride,
                rows.count - first,
                rows.dim,
            )
            ring.fill(fx.Int32(fx.Uint32(tile) % _STAGES), some, offsets)


@dataclass(frozen=True)
class Queries:
    """What a wave has of its 32 queries; a lane has a row of each: half of its elements."""

    variant: BackwardVariant
    stream: Stream
    scores: Scores
    dropout: Dropout | None
    inverse_keep: fx.Float32
    first: fx.Int32
    lane: fx.Int32
    q: list[fx.Vector]
    grad: list[fx.Vector]
    lse: fx.Float32  # in units of ln 2
    minus_delta: fx.Float32

    def add_tile(self, tile: fx.Int32, acc: list[fx.Vector], whole: bool) -> list[fx.Vector]:
        """acc + what a tile of keys, which is in LDS, adds to dQ^T / scale, in blocks of 32 elements of a row."""
        config = self.variant.config
        stage = fx.Int32(fx.Uint32(tile) % _STAGES)
        acc = list(acc)
        turns: list[Turn] = []
        operands: list[list[fx.Vector]] = []
        for block in range(config.tile // BLOCK):
            first_key = fx.Int32(tile * config.tile + block * BLOCK)
            place = Place.of(fx.Int32(self.first), first_key, fx.Int32(self.lane))
            beside = self.scores.load(place)
            finish = partial(self.gradient, place, beside, whole)
            turns += self.products(stage, block, finish, operands)
            if block:
                turns += self.add(stage, block - 1, operands, acc)
        turns += self.add(stage, config.tile // BLOCK - 1, operands, acc)
        in_turn(turns, 3 if self.variant.features.lower else 4)
        return acc

    def products(
        self,
        stage: fx.Int32,
        block: int,
        finish: Callable[[fx.Vector, fx.Vector], list[fx.Vector]],
        operands: list[list[fx.Vector]],
    ) -> list[Turn]:
        """Of S^T and of dP^T, without dropout less delta, of which `finish` makes the next of `operands`."""
        element = ELEMENTS[self.variant.dtype]
        start = fx.Float32(0.0) if self.variant.features.dropout else self.minus_delta
        sums = [fx.Vector.filled(RESULTS, value, fx.Float32) for value in (fx.Float32(0.0), start)]
        ragged = self.variant.ragged_head, self.variant.ragged_value
        turns = []
        for i, own in enumerate((self.q, self.grad)):
            slices = self.placed(self.stream.rings[i].row_slices(stage, block))
            dim = self.stream.rows[i].dim if ragged[i] else None

            def read(number: int, slices: RowSlices = slices, dim: fx.Int32 | None = dim) -> fx.Vector:
                rows = slices.load(number)
                return rows if dim is None else valid(rows, 2 * number + self.lane // BLOCK, dim)

            def multiply(rows: fx.Vector, number: int, i: int = i, own: list[fx.Vector] = own) -> None:
                sums[i] = product(element, rows, own[number], sums[i])
                if i == 1 and number == len(own) - 1:
                    operands.append(finish(*sums))

            turns += [
                Turn(partial(read, number), partial(multiply, number=number)) for number in range(len(own))
            ]
        return turns

    def placed(self, operands: Any) -> Any:
        """`RowSlices` or `Columns` of whose addresses as many stay in registers as there are registers for."""
        config = self.variant.config
        scarce = config.waves > SIMDS and config.head_dim + config.value_dim > 128
        return in_loop(operands) if scarce else operands

    def gradient(
        self, place: Place, beside: Beside, whole: bool, products: fx.Vector, dp: fx.Vector
    ) -> list[fx.Vector]:
        """dS^T as operands of two products over keys."""
        scores, derivative = self.scores.of(products, place, beside, whole)
        p = self.scores.probabilities(scores, self.lse)
        if self.dropout is not None:
            kept = self.dropout.kept(place)
            factors = [keep.select(self.inverse_keep, fx.Float32(0.0)) for keep in kept]
            delta = fx.Vector.filled(RESULTS, self.minus_delta, fx.Float32)
            dp = fx.math.fma(dp, fx.Vector.from_elements(factors, fx.Float32), delta)
        ds = p * dp
        return as_operands(ds if derivative is None else ds * derivative, ELEMENTS[self.variant.dtype])

    def add(
        self, stage: fx.Int32, block: int, operands: list[list[fx.Vector]], acc: list[fx.Vector]
    ) -> list[Turn]:
        """Of dQ^T."""
        element = ELEMENTS[self.variant.dtype]
        columns = self.placed(self.stream.rings[0].columns(stage, block))

        def multiply(rows: fx.Vector, half: int, column: int) -> None:
            acc[column] = product(element, rows, operands[block][half], acc[column])

        return [
            Turn(partial(columns.load, column, half), partial(multiply, half=half, column=column))
            for half in range(2)
            for column in range(len(acc))
        ]


def one_tile(queries: Queries, tile: fx.Int32, acc: list[fx.Vector], whole: bool) -> list[fx.Vector]:
    """All waves meet when the tile has come and none reads the one before, whose place the next one takes."""
    meet(0)
    queries.stream.fill(tile + 1)
    return queries.add_tile(tile, acc, whole)


@flyc.jit
def over_tiles(queries: Any, first: Any, ends: Any, acc: Any) -> Any:
    """acc + what the tiles of keys from `first` to the last of `ends` add: whole ones from the first of `ends` to the
    second, others before and after."""
    queries.stream.fill(first)
    whole, rest, end = ends
    if fx.const_expr(queries.variant.features.lower):
        for tile in range(first, whole):
            acc = one_tile(queries, tile, acc, False)
    for tile in range(whole, rest):
        acc = one_tile(queries, tile, acc, True)
    for tile in range(rest, end):
        acc = one_tile(queries, tile, acc, False)
    meet(0)
    return acc


def tiles_of(
    band: Band, tile: int, first: fx.Int32, last: fx.Int32
) -> tuple[fx.Int32, tuple[fx.Int32, fx.Int32, fx.Int32]]:
    """The first of the tiles of keys that queries `first` to `last` see, and the ends of those before the ones that all
    see all of, of these, and of those after."""
    start, end = band.keys_of(first, last)
    whole_start = last + band.lower if band.features.lower else fx.Int32(0)
    whole_end = fx.min(first + band.upper + 1, band.keys) if band.features.upper else band.keys
    none = fx.Int32(0)
    begin = start // tile
    stop = fx.max((fx.max(end, none) + (tile - 1)) // tile, begin)
    whole = fx.min(fx.max((fx.max(whole_start, none) + (tile - 1)) // tile, begin), stop)
    rest = fx.min(fx.max(fx.max(whole_end, none) // tile, whole), stop)
    return begin, (whole, rest, stop)


def build(variant: BackwardVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    config, features = variant.config, variant.features

    @flyc.kernel(name=variant.symbol)
    def sdpa_dq(
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
        first = head.first + wave * BLOCK
        kv_head = fx.Int32(fx.Uint32(head.head) // fx.Uint32(shape.group))
        of_k = Rows(k + head.place(shape, "k", kv_head), fx.Int32(shape.k_row), shape.keys, shape.head_dim)
        of_v = Rows(v + head.place(shape, "v", kv_head), fx.Int32(shape.v_row), shape.keys, shape.value_dim)
        stream = Stream.of(variant, (of_k, of_v), fx.thread_idx.x, wave)
        band = Band(features, shape.lower, shape.upper, shape.queries, shape.keys)
        last = fx.min(head.first + config.rows, shape.queries) - 1
        begin, ends = tiles_of(band, config.tile, head.first, last)

        of_q = own_rows(shape, head, first, "q", q, shape.head_dim)
        of_grad = own_rows(shape, head, first, "grad", grad, shape.value_dim)
        row = fx.Int64(head.batch * shape.heads + head.head) * fx.Int64(shape.queries) + fx.Int64(first)
        queries = Queries(
            variant=variant,
            stream=stream,
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
            dropout=Dropout.of(seed, head.batch * shape.heads + head.head, shape.threshold)
            if features.dropout
            else None,
            inverse_keep=shape.inverse_keep,
            first=first,
            lane=lane,
            q=resident(of_q, lane, config.head_dim),
            grad=resident(of_grad, lane, config.value_dim),
            lse=lse_in_units(of_row(lse + row, lane, shape.queries - first)),
            minus_delta=fx.Float32(-of_row(delta + row, lane, shape.queries - first)),
        )
        acc = [
            fx.Vector.filled(RESULTS, 0.0, fx.Float32) for _ in fx.range_constexpr(config.head_dim // BLOCK)
        ]
        acc = over_tiles(queries, begin, ends, acc)
        rows = own_rows(shape, head, first, "dq", dq, shape.head_dim)
        width = 1 if variant.ragged_head else min(4, variant.align_out // ELEMENT_BYTES)
        store(rows, lane, acc, shape.scale, ELEMENTS[variant.dtype], width)

    return host(sdpa_dq, config.block), tuple(placeholders(variant))


def own_rows(shape: Any, head: Head, first: fx.Int32, name: str, pointer: fx.Pointer, dim: fx.Int32) -> Rows:
    """A wave's rows of an operand: those of the queries from `first` on."""
    stride = getattr(shape, f"{name}_row")
    start = head.place(shape, name) + fx.Int64(first) * stride
    return Rows(pointer + start, fx.Int32(stride), shape.queries - first, dim)


def of_row(pointer: fx.Pointer, lane: fx.Int32, left: fx.Int32) -> fx.Float32:
    """The lane's query's of float32 numbers, 0 where there is none."""
    buffer = bounded(pointer, fx.max(left, fx.Int32(0)) * 4)
    return fx.Float32(rocdl.raw_ptr_buffer_load(T.f32, buffer, lane % BLOCK * 4, fx.Int32(0)))


def scores_of(
    variant: BackwardVariant,
    shape: Any,
    head: Head,
    band: Band,
    query: fx.Int32,
    mask: fx.Pointer,
    slopes: fx.Pointer,
    documents: tuple[fx.Pointer, fx.Pointer],
) -> Scores:
    """What makes scores of the head; `query` is the lane's."""
    features = variant.features
    slope = fx.Float32(0.0)
    if features.alibi:
        slope = fx.Float32(fx.ptr_load(slopes + head.head, result_type=T.f32))
    of_mask, of_documents = None, None
    if features.mask != "none":
        start = fx.Int64(head.batch) * shape.mask_batch + fx.Int64(head.head) * shape.mask_head
        strides = shape.mask_query, shape.mask_key
        of_mask = Mask(features.mask, mask + start, *strides, shape.queries, shape.keys)
    if features.documents:
        of_queries, of_keys = documents
        of_documents = Documents.of(
            query,
            of_queries + fx.Int64(head.batch) * fx.Int64(shape.queries),
            shape.queries,
            of_keys + fx.Int64(head.batch) * fx.Int64(shape.keys),
            shape.keys,
        )
    return Scores(features, band, shape.scale, shape.softcap, slope, of_mask, of_documents)
