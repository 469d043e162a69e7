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
from flycc.kernels.attention.backward_common import Turn, in_loop, in_turn, lane_again
from flycc.kernels.attention.backward_variant import BackwardVariant
from flycc.kernels.attention.dropout import Dropout
from flycc.kernels.attention.features import BAND_LIMIT
from flycc.kernels.attention.mfma import BLOCK, RESULTS, as_operands, product
from flycc.kernels.attention.operands import resident, store, valid
from flycc.kernels.attention.scores import (
    LN_2,
    LOG2_E,
    Band,
    Documents,
    Mask,
    Place,
    Scores,
    either,
    exp2,
    lse_in_units,
)
from flycc.kernels.attention.tiles import CHUNK, ELEMENT_BYTES, Ring, Rows, loads_of_tile
from flycc.kernels.common.buffers import bounded
from flycc.kernels.common.machine import SIMDS, WAVE_SIZE
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.common.wave import anew_uniform, uniform
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
class Steps:
    """From tile to tile of `size` queries between `start` and `end`, head after head. What is the same for all tiles is
    computed once: there is more than enough for the scalar unit to do as it is."""

    start: fx.Int32
    end: fx.Int32
    size: int
    of_rest: fx.Int32  # queries of a tile that has not all
    group: fx.Int32
    queries: fx.Int32
    #: Elements from a tile of Q, dO and lse to the next, in a head and into the next one.
    inside: tuple[fx.Int64, ...]
    across: tuple[fx.Int64, ...]

    @classmethod
    def of(cls, start: fx.Int32, end: fx.Int32, size: int, shape: Any) -> Steps:
        strides = (
            (shape.q_head, shape.q_row),
            (shape.grad_head, shape.grad_row),
            (fx.Int64(shape.queries), fx.Int64(1)),
        )
        last = fx.max(end - start - 1, fx.Int32(0)) // size * size
        return cls(
            start=start,
            end=end,
            size=size,
            of_rest=fx.max(shape.queries - start, fx.Int32(0)) % size,
            group=shape.group,
            queries=shape.queries,
            inside=tuple(fx.Int64(row * size) for _, row in strides),
            across=tuple(fx.Int64(head - row * fx.Int64(last)) for head, row in strides),
        )

    def next(self, at: At) -> tuple[At, Any]:
        """The tile after `at`, and whether it is another head's."""
        first = at.first + self.size
        over = first >= self.end
        return At(over.select(at.head + 1, at.head), over.select(self.start, first)), over

    def queries_of(self, at: At) -> fx.Int32:
        """Those of the tile."""
        some = (self.queries - at.first >= self.size).select(fx.Int32(self.size), self.of_rest)
        return (at.head < self.group).select(some, fx.Int32(0))


@dataclass(frozen=True)
class Tiles:
    """The tile that is read, which lies in LDS at place `stage`, and the next ones; `offsets` are the elements of Q, dO
    and lse before the last of these, `queries` those of the tile before that."""

    steps: Steps
    stage: fx.Int32
    queries: fx.Int32
    at: tuple[At, ...]
    offsets: tuple[fx.Int64, ...]

    @classmethod
    def first(cls, steps: Steps, rows: tuple[fx.Int64, ...]) -> Tiles:
        """A first tile alone; `rows` are strides between rows of Q, dO and lse."""
        offsets = tuple(fx.Int64(steps.start) * row for row in rows)
        none = fx.Int32(0)
        return cls(steps, none, none, (At(none, steps.start),), offsets)

    @classmethod
    def of(cls, steps: Steps, numbers: list[Any]) -> Tiles:
        """What has these `numbers`."""
        stage, queries, *places = numbers
        at = tuple(At(*places[2 * i : 2 * i + 2]) for i in range(_STAGES))
        return cls(steps, stage, queries, at, tuple(places[2 * _STAGES :]))

    @property
    def numbers(self) -> list[Any]:
        return [self.stage, self.queries, *(n for at in self.at for n in (at.head, at.first)), *self.offsets]

    def place(self, ahead: int) -> fx.Int32:
        """Where the tile lies that is `ahead` tiles further."""
        place = self.stage + ahead
        return (place >= _STAGES).select(place - _STAGES, place)

    def more(self) -> Tiles:
        """With the tile after the last."""
        following, over = self.steps.next(self.at[-1])
        steps = zip(self.offsets, self.steps.across, self.steps.inside, strict=True)
        offsets = tuple(offset + over.select(across, inside) for offset, across, inside in steps)
        queries = self.steps.queries_of(self.at[-1])
        return replace(self, queries=queries, at=(*self.at, following), offsets=offsets)

    def after(self) -> Tiles:
        """Those from the next one on."""
        more = self.more()
        return replace(more, stage=self.place(1), at=more.at[1:])


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
    aimed: tuple[list[fx.Int32], list[fx.Int32]]
    kept: fx.Pointer
    lane: fx.Int32
    per_score: fx.Float32
    unit: fx.Float32

    @classmethod
    def of(
        cls,
        variant: BackwardVariant,
        shape: Any,
        operands: Operands,
        thread: fx.Int32,
        wave: fx.Int32,
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
        of_rows = (fx.Int32(shape.q_row), shape.head_dim), (fx.Int32(shape.grad_row), shape.value_dim)
        aimed = of_q.aim(*of_rows[0]), of_grad.aim(*of_rows[1])
        lane = thread % WAVE_SIZE
        per_score, unit = (
            fx.Int32(uniform(value.bitcast(fx.Int32))).bitcast(fx.Float32)
            for value in (fx.Float32(LN_2) / shape.scale, shape.scale * LOG2_E)
        )
        return cls(
            variant,
            shape,
            operands,
            (of_q, of_grad),
            aimed,
            kept + wave * of_wave,
            lane,
            per_score,
            unit,
        )

    def begin(self, steps: Steps) -> tuple[Tiles, list[fx.Float32]]:
        """Starts the loads of the first tiles and keeps the rows of the first; returns those of the second, on their
        way."""
        tiles = Tiles.first(steps, (self.shape.q_row, self.shape.grad_row, fx.Int64(1)))
        rows = []
        for number in range(_STAGES - 1):
            self.fill(tiles, tiles.place(number))
            rows.append(partial(self.load_rows, tiles))
            tiles = tiles.more()
        self.keep_rows(steps.queries_of(tiles.at[0]), fx.Int32(0), rows[0]())
        return tiles, rows[1]()

    @property
    def loads(self) -> int:
        """Load instructions of a wave for a tile of Q and of dO."""
        return sum(ring.loads for ring in self.rings)

    def fill(self, tiles: Tiles, stage: fx.Int32) -> None:
        """Starts the loads of the last tile of Q and dO; beyond the last query there are zeros."""
        queries = tiles.steps.queries_of(tiles.at[-1])
        rows = (
            (self.operands.q, self.shape.q_row, self.shape.head_dim),
            (self.operands.grad, self.shape.grad_row, self.shape.value_dim),
        )
        for ring, aimed, offset, (pointer, stride, dim) in zip(
            self.rings, self.aimed, tiles.offsets[:2], rows, strict=True
        ):
            ring.fill(stage, Rows(pointer + offset, fx.Int32(stride), queries, dim), aimed)

    def load_rows(self, tiles: Tiles) -> list[fx.Float32]:
        """lse and delta of that of the last tile's queries whose number is the lane's, 0 where there is none."""
        size = tiles.steps.queries_of(tiles.at[-1]) * 4
        return [
            fx.Float32(
                rocdl.raw_ptr_buffer_load(
                    T.f32, bounded(of + tiles.offsets[2], size), self.lane * 4, fx.Int32(0)
                )
            )
            for of in (self.operands.lse, self.operands.delta)
        ]

    def keep_rows(self, queries: fx.Int32, slot: fx.Int32, rows: list[fx.Float32]) -> None:
        """Keeps what `of_rows` gives of a tile of so many queries. Others are as those that see no key."""
        lse, delta = rows
        start = (self.lane < queries).select(-lse_in_units(lse), fx.Float32(-math.inf))
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
        acc, config = list(acc), self.stream.variant.config
        for block in range(config.tile // BLOCK):
            place = Place.of(at.first + block * BLOCK, self.first, self.stream.lane, along_keys=False)
            operands: list[list[fx.Vector]] = []
            turns = [
                *self._products(at, place, stage, slot, block, operands),
                *self._sums(stage, block, operands, acc),
            ]
            in_turn(turns, 2 if config.waves > SIMDS and config.head_dim + config.value_dim > 192 else 4)
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
                slices = replace(slices, tile=anew_uniform(slices.tile))
            slices = in_loop(slices)

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
            nothing = [fx.Vector.filled(RESULTS, 0.0, fx.Float32)] * (2 if features.softcap else 1)
            made, *derivative = either(whole, partial(make, True), partial(make, False), nothing)
        else:
            made, *derivative = make(True)
        if features.linear:
            p = fx.Vector.from_elements(
                [exp2(made[i] * self.stream.unit) for i in range(RESULTS)], fx.Float32
            )
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
        columns = [in_loop(ring.columns(stage, block)) for ring in self.stream.rings]
        counts = config.head_dim // BLOCK, config.value_dim // BLOCK
        order = [(what, column) for what, count in enumerate(counts) for column in range(count)]
        for what, column in sorted(order, key=lambda at: (at[1] + (1 - at[0]) * _LATER, -at[0])):
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
) -> tuple[list[Any], list[fx.Float32], list[fx.Vector]]:
    """All waves meet when the tile has come and none reads the one before, whose place the one after next takes."""
    stream = replace(keys.stream, lane=lane_again())
    keys = replace(keys, stream=stream)
    meet(_ROW_LOADS + stream.loads)
    stream.keep_rows(tiles.queries, 1 - slot, rows)
    rows = stream.load_rows(tiles)
    stream.fill(tiles, tiles.place(_STAGES - 1))
    acc = keys.add_tile(tiles.at[0], tiles.stage, slot, acc)
    return tiles.after().numbers, rows, acc


@flyc.jit
def over_tiles(keys: Any, steps: Any, acc: Any) -> Any:
    """acc + what the tiles of queries of all heads of the group add."""
    count = fx.max(steps.end - steps.start + (steps.size - 1), fx.Int32(0)) // steps.size
    tiles, rows = keys.stream.begin(steps)
    state = tiles.numbers
    for step in range(count * steps.group):
        state, rows, acc = one_tile(keys, Tiles.of(steps, state), step % 2, rows, acc)
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
        steps = Steps.of(start, end, config.tile, shape)
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
        acc = over_tiles(keys, steps, acc)
        lane = lane_again()
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
