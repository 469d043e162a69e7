"""The kernel of the gradients of K and V in FlyDSL.

A workgroup owns a tile of keys of one head of K and V, of which each wave has 32: their rows and the sums of both
gradients are in registers. Q, dO, lse and delta of all heads of the group stream through LDS, always in the same order.
With a query in each row of a result and a key in each column,

    S = Q K^T       dP = dO V^T - delta       dV^T += dO^T P       dK^T += Q^T dS

a lane's results P and dS are operands of the last two as they are, once rounded; dO^T and Q^T are transposed reads of
the tiles that the first two read.
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
from flycc.kernels.attention.backward_common import Turn, in_turn, resident, store, valid
from flycc.kernels.attention.backward_variant import BackwardVariant
from flycc.kernels.attention.dropout import Dropout
from flycc.kernels.attention.features import BAND_LIMIT
from flycc.kernels.attention.mfma import BLOCK, RESULTS, as_operands, product
from flycc.kernels.attention.scores import LN_2, LOG2_E, Band, Documents, Mask, Place, Scores, exp2, lse_in_units
from flycc.kernels.attention.tiles import CHUNK, ELEMENT_BYTES, Ring, Rows, loads_of_tile
from flycc.kernels.common.buffers import bounded
from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.common.wave import anew, uniform
from flycc.kernels.gemm.pipeline import meet

#: Tiles of Q and dO that LDS holds: one that is read, two on their way.
_STAGES = 3
#: Blocks of dV^T that come before the same of dK^T, which needs dS: so addresses of both soon leave registers.
_LATER = 1.5
#: Loads of lse and delta of a tile.
_ROW_LOADS = 2


@dataclass(frozen=True)
class At:
    """A tile of queries: of head number `head` of the group, from `first` on. Beyond the last head there is none."""

    head: fx.Int32
    first: fx.Int32


@dataclass(frozen=True)
class Tiles:
    """The tile that is read, which lies in LDS at place `stage`, and the next ones: those of `size` queries between
    `start` and `end`, head after head."""

    at: tuple[At, ...]
    stage: fx.Int32
    start: fx.Int32
    end: fx.Int32
    size: int

    @classmethod
    def first(cls, start: fx.Int32, end: fx.Int32, size: int) -> Tiles:
        numbers = [fx.Int32(0), fx.Int32(0), start]
        for _ in range(_STAGES - 1):
            numbers += cls.of(numbers, start, end, size)._next()
        return cls.of(numbers, start, end, size)

    @classmethod
    def of(cls, numbers: list[fx.Int32], start: fx.Int32, end: fx.Int32, size: int) -> Tiles:
        """What has these `numbers`."""
        stage, *places = numbers
        at = tuple(At(*places[i : i + 2]) for i in range(0, len(places), 2))
        return cls(at, stage, start, end, size)

    @property
    def numbers(self) -> list[fx.Int32]:
        return [self.stage, *(number for at in self.at for number in (at.head, at.first))]

    def after(self) -> list[fx.Int32]:
        """The numbers of those from the next one on."""
        return [self.place(1), *self.numbers[3:], *self._next()]

    def place(self, ahead: int) -> fx.Int32:
        """Where the tile lies that is `ahead` tiles further."""
        place = self.stage + ahead
        return (place >= _STAGES).select(place - _STAGES, place)

    def _next(self) -> list[fx.Int32]:
        last = self.at[-1]
        first = last.first + self.size
        over = first >= self.end
        return [over.select(last.head + 1, last.head), over.select(self.start, first)]


@dataclass(frozen=True)
class Operands:
    """Pointers of a batch: to the first head of the group where heads have strides, else of the batch."""

    q: fx.Pointer
    grad: fx.Pointer
    lse: fx.Pointer
    delta: fx.Pointer
    mask: fx.Pointer
    slopes: fx.Pointer
    seed: fx.Pointer


@dataclass(frozen=True)
class Stream:
    """Q, dO, lse and delta of a group's heads on their way through LDS: `kept` is the wave's, float32 [2 tiles][lse,
    delta][64 queries]."""

    variant: BackwardVariant
    shape: Any
    operands: Operands
    rings: tuple[Ring, Ring]
    offsets: tuple[list[fx.Int32], list[fx.Int32]]
    kept: fx.Pointer
    lane: fx.Int32
    per_score: fx.Float32
    unit: fx.Float32

    @classmethod
    def of(
        cls, variant: BackwardVariant, shape: Any, operands: Operands, thread: fx.Int32, wave: fx.Int32
    ) -> Stream:
        config = variant.config
        dims = config.head_dim, config.value_dim
        sizes = [loads_of_tile(config.tile, dim, config.block) * config.block * CHUNK for dim in dims]
        shared = fx.SharedAllocator()
        tiles = shared.allocate(fx.Array[fx.Int16, _STAGES * sum(sizes), 16]).peek().ptr
        of_wave = 2 * 2 * WAVE_SIZE
        kept = shared.allocate(fx.Array[fx.Float32, config.waves * of_wave, 16]).peek().ptr
        of_q, of_grad = (
            Ring(place, config.tile, dim, _STAGES, config.block, thread, wave)
            for place, dim in zip((tiles, tiles + _STAGES * sizes[0]), dims, strict=True)
        )
        offsets = (
            of_q.aim(fx.Int32(shape.q_row), shape.head_dim),
            of_grad.aim(fx.Int32(shape.grad_row), shape.value_dim),
        )
        lane = thread % WAVE_SIZE
        per_score, unit = (
            fx.Int32(uniform(value.bitcast(fx.Int32))).bitcast(fx.Float32)
            for value in (fx.Float32(LN_2) / shape.scale, shape.scale * LOG2_E)
        )
        return cls(variant, shape, operands, (of_q, of_grad), offsets, kept + wave * of_wave, lane, per_score, unit)

    def begin(self, tiles: Tiles) -> list[fx.Float32]:
        """Starts the loads of the first tiles and keeps the rows of the first; returns those of the second, on their
        way."""
        for number, at in enumerate(tiles.at[:-1]):
            self.fill(at, tiles.place(number))
        self.keep_rows(tiles.at[0], fx.Int32(0), self.load_rows(tiles.at[0]))
        return self.load_rows(tiles.at[1])

    @property
    def loads(self) -> int:
        """Load instructions of a wave for a tile of Q and of dO."""
        return sum(ring.loads for ring in self.rings)

    def left(self, at: At) -> fx.Int32:
        """Queries from the tile's first on."""
        return (at.head < self.shape.group).select(self.shape.queries - at.first, fx.Int32(0))

    def fill(self, at: At, stage: fx.Int32) -> None:
        """Starts the loads of a tile of Q and dO; beyond the last query there are zeros."""
        shape, left = self.shape, self.left(at)
        sources = (
            (self.operands.q, shape.q_head, shape.q_row, shape.head_dim),
            (self.operands.grad, shape.grad_head, shape.grad_row, shape.value_dim),
        )
        for ring, offsets, (pointer, of_head, row, dim) in zip(
            self.rings, self.offsets, sources, strict=True
        ):
            first = fx.Int64(at.head) * of_head + fx.Int64(at.first) * row
            ring.fill(stage, Rows(pointer + first, fx.Int32(row), left, dim), offsets)

    def load_rows(self, at: At) -> list[fx.Float32]:
        """lse and delta of that of the tile's queries whose number is the lane's, 0 where there is none."""
        first = fx.Int64(at.head) * fx.Int64(self.shape.queries) + fx.Int64(at.first)
        size = fx.max(self.left(at), fx.Int32(0)) * 4
        return [
            fx.Float32(
                rocdl.raw_ptr_buffer_load(T.f32, bounded(of + first, size), self.lane * 4, fx.Int32(0))
            )
            for of in (self.operands.lse, self.operands.delta)
        ]

    def keep_rows(self, at: At, slot: fx.Int32, rows: list[fx.Float32]) -> None:
        """Keeps what `of_rows` gives. Queries that do not exist are as those that see no key."""
        lse, delta = rows
        none = self.lane >= self.left(at)
        start = none.select(fx.Float32(-math.inf), -lse_in_units(lse))
        if self.variant.features.linear:
            start = start * self.per_score
        to = self.kept + (slot * (2 * WAVE_SIZE) + self.lane)
        fx.ptr_store(start.ir_value(), to)
        fx.ptr_store((-delta).ir_value(), to + WAVE_SIZE)

    def of_rows(self, slot: fx.Int32, what: int, block: int) -> fx.Vector:
        """-lse (0), where scores are linear as products have it, else in units of ln 2, or -delta (1) of a lane's
        results: what their sums may start with."""
        first = self.kept + (slot * (2 * WAVE_SIZE) + self.lane // BLOCK * 4)
        kind = fx.Vector.make_type(4, fx.Float32)
        places = [first + (what * WAVE_SIZE + block * BLOCK + 8 * i) for i in range(RESULTS // 4)]
        parts = [fx.Vector(fx.ptr_load(place, result_type=kind)) for place in places]
        return fx.Vector.from_elements([part[i] for part in parts for i in range(4)], fx.Float32)


@flyc.jit
def _either(condition: Any, then: Any, otherwise: Any) -> Any:
    """What `then` gives where `condition`, which is the same in all lanes, else what `otherwise` gives."""
    return then() if condition else otherwise()


@dataclass(frozen=True)
class Keys:
    """What a wave has of its 32 keys; a lane has a row of each of K and V: half of its elements."""

    stream: Stream
    head: Head
    band: Band
    documents: Documents | None
    first: fx.Int32
    k: list[fx.Vector]
    v: list[fx.Vector]

    def add_tile(self, at: At, stage: fx.Int32, slot: fx.Int32, acc: list[fx.Vector]) -> list[fx.Vector]:
        """acc + what a tile of queries adds: to dK^T / scale in blocks of 32 elements of a row, then to dV^T."""
        acc = list(acc)
        for block in range(self.stream.variant.config.tile // BLOCK):
            place = Place.of(at.first + block * BLOCK, self.first, self.stream.lane, along_keys=False)
            operands: list[list[fx.Vector]] = []
            in_turn(
                [
                    *self._products(at, place, stage, slot, block, operands),
                    *self._sums(stage, block, operands, acc),
                ]
            )
        return acc

    def _products(
        self,
        at: At,
        place: Place,
        stage: fx.Int32,
        slot: fx.Int32,
        block: int,
        operands: list[list[fx.Vector]],
    ) -> list[Turn]:
        """Of S and of dP, of which the last makes `operands`: dS and P."""
        variant, stream = self.stream.variant, self.stream
        element = ELEMENTS[variant.dtype]
        starts = variant.features.linear, not variant.features.dropout
        sums = [
            stream.of_rows(slot, what, block) if start else fx.Vector.filled(RESULTS, 0.0, fx.Float32)
            for what, start in enumerate(starts)
        ]
        scores = self._scores(at.head)
        beside = scores.load(place)
        ragged = variant.ragged_head, variant.ragged_value
        dims = stream.shape.head_dim, stream.shape.value_dim
        turns = []
        for i, own in enumerate((self.k, self.v)):
            slices = stream.rings[i].row_slices(stage, block)
            if i:  # or addresses that both tiles have in common would stay in registers
                slices = replace(slices, first=anew(slices.first))

            def read(number: int, i: int = i, slices: Any = slices) -> fx.Vector:
                rows = slices.load(number)
                return valid(rows, 2 * number + stream.lane // BLOCK, dims[i]) if ragged[i] else rows

            def multiply(rows: fx.Vector, number: int, i: int = i, own: list[fx.Vector] = own) -> None:
                sums[i] = product(element, rows, own[number], sums[i])
                if i == 1 and number == len(own) - 1:
                    operands.extend(self._gradients(at, place, slot, block, scores, beside, *sums))

            turns += [
                Turn(partial(read, number), partial(multiply, number=number)) for number in range(len(own))
            ]
        return turns

    def _gradients(
        self,
        at: At,
        place: Place,
        slot: fx.Int32,
        block: int,
        scores: Scores,
        beside: Any,
        products: fx.Vector,
        dp: fx.Vector,
    ) -> list[list[fx.Vector]]:
        """dS and P times 1 - dropout_p, as operands of two products over queries each."""
        features = self.stream.variant.features
        element = ELEMENTS[self.stream.variant.dtype]

        def make(whole: bool) -> list[fx.Vector]:
            found, derivative = scores.of(products, place, beside, whole)
            return [found] if derivative is None else [found, derivative]

        if features.lower or features.upper:
            whole = self.band.has_all(
                place.first_query, place.first_query + (BLOCK - 1), self.first, self.first + (BLOCK - 1)
            )
            made, *derivative = _either(whole, partial(make, True), partial(make, False))
        else:
            made, *derivative = make(True)
        if features.linear:
            p = fx.Vector.from_elements([exp2(made[i] * self.stream.unit) for i in range(RESULTS)], fx.Float32)
        else:
            p = scores.probabilities(made, -self.stream.of_rows(slot, 0, block))
        if features.adds:
            exist = [place.of_rows + step < self.stream.shape.queries for step in place.steps]
            values = [exists.select(p[i], fx.Float32(0.0)) for i, exists in enumerate(exist)]
            p = fx.Vector.from_elements(values, fx.Float32)
        kept = p
        if features.dropout:
            keeps = self._dropout(at.head).kept(place)
            zero = fx.Float32(0.0)
            factors = [keep.select(self.stream.shape.inverse_keep, zero) for keep in keeps]
            delta = self.stream.of_rows(slot, 1, block)
            dp = fx.math.fma(dp, fx.Vector.from_elements(factors, fx.Float32), delta)
            values = [keep.select(p[i], zero) for i, keep in enumerate(keeps)]
            kept = fx.Vector.from_elements(values, fx.Float32)
        ds = p * dp
        for factor in derivative:
            ds = ds * factor
        return [as_operands(ds, element), as_operands(kept, element)]

    def _sums(
        self, stage: fx.Int32, block: int, operands: list[list[fx.Vector]], acc: list[fx.Vector]
    ) -> list[Turn]:
        """Of dV^T, then of dK^T."""
        config = self.stream.variant.config
        element = ELEMENTS[self.stream.variant.dtype]
        of_k = config.head_dim // BLOCK

        def multiply(rows: fx.Vector, what: int, half: int, place: int) -> None:
            acc[place] = product(element, rows, operands[what][half], acc[place])

        turns = []
        columns = [ring.columns(stage, block) for ring in self.stream.rings]
        counts = config.head_dim // BLOCK, config.value_dim // BLOCK
        for what, column in sorted(
            ((what, column) for what in range(2) for column in range(counts[what])),
            key=lambda at: (at[1] + (1 - at[0]) * _LATER, -at[0]),
        ):
            place = column if what == 0 else of_k + column
            turns += [
                Turn(
                    partial(columns[what].load, column, half),
                    partial(multiply, what=what, half=half, place=place),
                )
                for half in range(2)
            ]
        return turns

    def _scores(self, head: fx.Int32) -> Scores:
        """What makes scores of that head of the group."""
        features, shape = self.stream.variant.features, self.stream.shape
        of_head, of_mask = fx.Float32(0.0), None
        if features.alibi:
            slope = fx.ptr_load(self.stream.operands.slopes + head, result_type=T.f32)
            of_head = fx.Float32(slope)
        if features.mask != "none":
            start = self.stream.operands.mask + fx.Int64(head) * shape.mask_head
            strides = shape.mask_query, shape.mask_key
            of_mask = Mask(features.mask, start, *strides, shape.queries, shape.keys)
        return Scores(features, self.band, shape.scale, shape.softcap, of_head, of_mask, self.documents)

    def _dropout(self, head: fx.Int32) -> Dropout:
        shape = self.stream.shape
        own = self.head.batch * shape.heads + self.head.head * shape.group + head
        return Dropout.of(self.stream.operands.seed, own, shape.threshold)


def one_tile(
    keys: Keys, tiles: Tiles, slot: fx.Int32, rows: list[fx.Float32], acc: list[fx.Vector]
) -> tuple[list[fx.Int32], list[fx.Float32], list[fx.Vector]]:
    """All waves meet when the tile has come and none reads the one before, whose place the one after next takes."""
    stream = keys.stream
    now, following, later = tiles.at
    meet(_ROW_LOADS + stream.loads)
    stream.keep_rows(following, 1 - slot, rows)
    rows = stream.load_rows(later)
    stream.fill(later, tiles.place(_STAGES - 1))
    acc = keys.add_tile(now, tiles.stage, slot, acc)
    return tiles.after(), rows, acc


@flyc.jit
def over_tiles(keys: Any, start: Any, end: Any, acc: Any) -> Any:
    """acc + what the tiles of queries from `start` to `end` of all heads of the group add."""
    stream, tile = keys.stream, keys.stream.variant.config.tile
    count = fx.max(end - start + (tile - 1), fx.Int32(0)) // tile
    tiles = Tiles.first(start, end, tile)
    rows = stream.begin(tiles)
    state = tiles.numbers
    for step in range(count * stream.shape.group):
        state, rows, acc = one_tile(keys, Tiles.of(state, start, end, tile), step % 2, rows, acc)
    meet(0)
    return acc


def build(variant: BackwardVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    config, features = variant.config, variant.features
    element = ELEMENTS[variant.dtype]

    @flyc.kernel(name=variant.symbol)
    def sdpa_dkv(
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
        first = head.first + wave * BLOCK
        # Results of keys that do not exist are not stored: the band need not hide them.
        band = Band(features, shape.lower, shape.upper, shape.queries, fx.Int32(BAND_LIMIT + 1))
        last = fx.min(head.first + config.rows, shape.keys) - 1
        start, end = band.queries_of(head.first, last)
        start = start // BLOCK * BLOCK
        end = fx.min(end, shape.queries)

        query_head = head.head * shape.group
        of_rows = fx.Int64(head.batch * shape.heads + query_head) * fx.Int64(shape.queries)
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
        keys = Keys(
            stream=Stream.of(variant, shape, operands, fx.thread_idx.x, wave),
            head=head,
            band=band,
            documents=documents,
            first=first,
            k=resident(own_rows(shape, head, first, "k", k, shape.head_dim), lane, config.head_dim),
            v=resident(own_rows(shape, head, first, "v", v, shape.value_dim), lane, config.value_dim),
        )
        of_k, of_v = config.head_dim // BLOCK, config.value_dim // BLOCK
        acc = [fx.Vector.filled(RESULTS, 0.0, fx.Float32) for _ in fx.range_constexpr(of_k + of_v)]
        acc = over_tiles(keys, start, end, acc)
        inverse_keep = shape.inverse_keep if features.dropout else fx.Float32(1.0)
        for rows, sums, factor, ragged in (
            (
                own_rows(shape, head, first, "dk", dk, shape.head_dim),
                acc[:of_k],
                shape.scale,
                variant.ragged_head,
            ),
            (
                own_rows(shape, head, first, "dv", dv, shape.value_dim),
                acc[of_k:],
                inverse_keep,
                variant.ragged_value,
            ),
        ):
            width = 1 if ragged else min(4, variant.align_out // ELEMENT_BYTES)
            store(rows, lane, sums, factor, element, width)

    return host(sdpa_dkv, config.block), tuple(placeholders(variant))


def own_rows(shape: Any, head: Head, first: fx.Int32, name: str, pointer: fx.Pointer, dim: fx.Int32) -> Rows:
    """A wave's rows of an operand: those of the keys from `first` on."""
    stride = getattr(shape, f"{name}_row")
    start = head.place(shape, name) + fx.Int64(first) * stride
    return Rows(pointer + start, fx.Int32(stride), shape.keys - first, dim)
