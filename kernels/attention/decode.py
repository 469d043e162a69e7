"""Attention of few queries over many keys in FlyDSL: each wave multiplies keys and values as they come from memory.

Scores are S^T = K Q^T, 16 x 16 x 32: a lane has a query, lane % 16 of each 16 rows, and 8 neighbouring keys of each
32, from 8 (lane / 16) on, since row m of the MFMA takes key 8 (m / 4) + m % 4, and of the second one 4 more. That is
what the MFMA of O^T = V^T P^T takes of P^T: 8 keys of a query. Of V a lane loads those 8 keys, some neighbouring
elements of each.

A wave has its own highest score and sums from the first key to the last; waves are put together once, through LDS.
No wave waits for another until then. While a step's keys are multiplied, its values and then the next step's keys are
on their way; of the widest heads, of which a lane has no room for both, a step's keys or its values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl._mlir.dialects import llvm
from flydsl.expr import range_constexpr, rocdl
from flydsl.expr.typing import T

from flycc.kernels.attention.combine import Merged, Output, base, merge
from flycc.kernels.attention.decode_config import MFMA_KEYS, MFMA_ROWS, ROW_STATISTICS
from flycc.kernels.attention.decode_kernarg import DECODE
from flycc.kernels.attention.decode_variant import DecodeVariant
from flycc.kernels.attention.features import Features
from flycc.kernels.attention.scores import (
    NEIGHBOURS,
    STEPS_16,
    Band,
    Beside,
    Documents,
    Mask,
    Place,
    Scores,
    exp2,
)
from flycc.kernels.common import vectors
from flycc.kernels.common.arguments import numbers, placeholders
from flycc.kernels.common.buffers import bounded, checked
from flycc.kernels.common.machine import OFFSET_LIMIT, WAVE_SIZE
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.common.wave import anew, uniform

if TYPE_CHECKING:
    Near = Any
    Far = Any
else:
    #: The numbers among the arguments: `Near` follow the pointers to the operands, `Far` all others.
    Near, Far = numbers(DECODE)

#: Elements of an operand of an MFMA in a lane, and bytes of one.
_CHUNK, _BYTES = 8, 2
#: Bytes that strides of K and V count.
_UNIT = 16


@dataclass(frozen=True)
class Rows:
    """A head's keys or values to a lane, whose row of a step's is at byte `offset` of them.

    `stride` is that of rows, in bytes; `row_bytes` are a row's own, in whole words of 4.
    """

    pointer: fx.Pointer
    stride: fx.Int32
    offset: fx.Int32
    row_bytes: fx.Int32

    def buffer(self, first: fx.Int32, end: fx.Int32) -> Any:
        """Those from row `first` on; rows from `end` on are zero, and are not touched."""
        skipped = fx.Int64(first) * fx.Int64(self.stride)
        left = fx.Int64(end - first - 1) * fx.Int64(self.stride) + fx.Int64(self.row_bytes)
        left = (end > first).select(left, fx.Int64(0))
        size = fx.Int32(fx.Uint32(fx.min(left, fx.Int64(OFFSET_LIMIT))))
        start = self.pointer + fx.Int64(skipped >> 1)
        return bounded(start, size)


@dataclass(frozen=True)
class Tile:
    """What a wave's step needs: operands, and how products become scores, by block of 16 rows."""

    variant: DecodeVariant
    lane: fx.Int32
    keys: Rows
    values: Rows
    end: fx.Int32
    head_offsets: list[fx.Int32]
    value_offsets: list[fx.Int32]
    tail: list[fx.Vector] | None
    query: list[list[Any]]
    scores: list[Scores]
    of_rows: list[fx.Int32]

    @property
    def pairs(self) -> int:
        """How often a step has 32 keys."""
        return self.variant.config.step // MFMA_KEYS

    def places(self, first: fx.Int32, block: int) -> list[Place]:
        """Of the lane's products of the step at key `first`, four at a time."""
        key = self.lane // MFMA_ROWS * _CHUNK
        return [
            Place(fx.Int32(0), first + i, self.of_rows[block], key, True, STEPS_16)
            for pair in range(0, self.pairs * MFMA_KEYS, MFMA_KEYS)
            for i in (pair, pair + NEIGHBOURS)
        ]

    def load_keys(self, first: fx.Int32) -> list[Any]:
        """Operands of the step at key `first`, by 16 keys and 32 elements; and what scores take beside products."""
        buffer = self.keys.buffer(first, self.end)
        kind = fx.Vector.make_type(_CHUNK, fx.Int16)
        stride = of_step(self.keys.stride, first)
        loaded = []
        for block in range(2 * self.pairs):
            row = block // 2 * MFMA_KEYS + block % 2 * 4
            for offset in self.head_offsets:
                place = stride * row
                loaded.append(fx.Vector(rocdl.raw_ptr_buffer_load(kind, buffer, offset, place)))
        beside = [
            [scores.load(place) for place in self.places(first, block)]
            for block, scores in enumerate(self.scores)
        ]
        return [loaded, [[[one.mask, one.documents] for one in of_block] for of_block in beside]]

    def load_values(self, first: fx.Int32) -> list[fx.Vector]:
        """Operands of the step at key `first`, by 32 keys, runs of elements and key."""
        buffer = self.values.buffer(first, self.end)
        stride = of_step(self.values.stride, first)
        loaded = []
        for pair in range(self.pairs):
            for (_, width), offset in zip(runs(self.variant.config.value), self.value_offsets, strict=True):
                for i in range(_CHUNK):
                    place = stride * (pair * MFMA_KEYS + i)
                    kind = fx.Vector.make_type(width, fx.Int16)
                    loaded.append(fx.Vector(rocdl.raw_ptr_buffer_load(kind, buffer, offset, place)))
                rocdl.sched_barrier(0)
        return loaded

    def products(self, keys: Sequence[fx.Vector]) -> list[fx.Vector]:
        """The lane's products of a step, by block of rows."""
        slices = len(self.head_offsets)
        found = []
        for block in range(len(self.query)):
            values = []
            for of_keys in range(2 * self.pairs):
                total = fx.Vector.filled(4, 0.0, fx.Float32)
                for number in range(slices):
                    operand = keys[of_keys * slices + number]
                    if self.tail is not None:
                        operand = _masked(operand, self.tail[number])
                    total = multiply(self.variant.dtype, operand, self.query[block][number], total)
                values += [total[i] for i in range(4)]
            found.append(fx.Vector.from_elements(values, fx.Float32))
        return found

    def score(self, products: fx.Vector, first: fx.Int32, block: int, beside: Any) -> list[fx.Float32]:
        """Scores in units of ln 2. One after another: what of all is seen would take too many registers."""
        scores, found = self.scores[block], []
        for number, place in enumerate(self.places(first, block)):
            some = [products[number * NEIGHBOURS + i] for i in range(NEIGHBOURS)]
            of, _ = scores.of(fx.Vector.from_elements(some, fx.Float32), place, Beside(*beside[number]))
            of = of * scores.unit if scores.features.linear else of
            found += [of[i] for i in range(NEIGHBOURS)]
            if scores.features != Features():
                rocdl.sched_barrier(0)
        return found

    def add_values(
        self, loaded: Sequence[fx.Vector], p: Sequence[fx.Vector], sums: Sequence[fx.Vector]
    ) -> list[fx.Vector]:
        """sums[element][block of rows] + V^T P^T of a step."""
        total, blocks, at = list(sums), len(self.query), 0
        for pair in range(self.pairs):
            operands = [
                vectors.rounded(
                    fx.Vector.from_elements([one[pair * _CHUNK + i] for i in range(_CHUNK)], fx.Float32),
                    ELEMENTS[self.variant.dtype],
                )
                for one in p
            ]
            number = 0
            for _, width in runs(self.variant.config.value):
                lines = loaded[at : at + _CHUNK]
                at += _CHUNK
                for i in range(width):
                    operand = fx.Vector.from_elements([line[i] for line in lines], fx.Int16)
                    for block in range(blocks):
                        place = number * blocks + block
                        total[place] = multiply(self.variant.dtype, operand, operands[block], total[place])
                    number += 1
        return total


def of_step(value: fx.Int32, first: fx.Int32) -> fx.Int32:
    """A scalar, not known to the compiler to be the same at each step.

    Its multiples, offsets of rows, are computed in the loop: before it they would take more registers than there are.
    """
    return fx.Int32(
        llvm.inline_asm(T.i32, [value.ir_value(), first.ir_value()], "", "=s,0,s", has_side_effects=False)
    )


def runs(value: int) -> list[tuple[int, int]]:
    """First element and width of what lanes take of `value` elements: in each run lane % 16 has `width` neighbours."""
    found, first = [], 0
    for width in (8, 4, 2, 1):
        while value - first >= width * MFMA_ROWS:
            found.append((first, width))
            first += width * MFMA_ROWS
    return found


def multiply(dtype: str, a: fx.Vector, b: Any, total: fx.Vector) -> fx.Vector:
    """total + a b, 16 x 16 x 32."""
    element = ELEMENTS[dtype]
    mfma = rocdl.mfma_f32_16x16x32_bf16 if element is fx.BFloat16 else rocdl.mfma_f32_16x16x32_f16
    return fx.Vector(
        mfma(fx.Vector.make_type(4, fx.Float32), [a.bitcast(element), b.bitcast(element), total])
    )


def _masked(operand: fx.Vector, mask: fx.Vector) -> fx.Vector:
    words = operand.bitcast(fx.Int32)
    return fx.Vector.from_elements([words[i] & mask[i] for i in range(4)], fx.Int32).bitcast(fx.Int16)


def over_groups(function: Callable[[Any, Any], Any], value: fx.Float32) -> fx.Float32:
    """`function` of two over the four lanes that have a row, in all of them; it must not matter which is first."""
    pair = ir.Type.parse("!llvm.struct<(i32, i32)>")
    for swap in (rocdl.permlane16_swap, rocdl.permlane32_swap):
        word = value.bitcast(fx.Int32).ir_value()
        both = swap(pair, word, word, False, False)
        halves = [fx.Int32(llvm.extractvalue(T.i32, both, [i])).bitcast(fx.Float32) for i in range(2)]
        value = function(*halves)
    return value


@flyc.jit
def attend(tile: Any, first: Any, turn: Any, turns: Any) -> Any:
    """A wave's highest scores and sums of p of a lane, by block of rows, and sums of p V: of `turns` steps, `turn` keys
    apart, from key `first` on."""
    blocks = len(tile.query)
    highest = [fx.Float32(-math.inf) for _ in range_constexpr(blocks)]
    total = [fx.Float32(0.0) for _ in range_constexpr(blocks)]
    sums = [
        fx.Vector.filled(4, 0.0, fx.Float32)
        for _ in range_constexpr(blocks * tile.variant.config.value // MFMA_ROWS)
    ]
    keys = tile.load_keys(first)
    rocdl.sched_barrier(0)
    values = tile.load_values(first) if tile.variant.config.ahead else []
    rocdl.sched_barrier(0)
    for step in range(turns):
        at = first + fx.Int32(step) * turn
        keys, values, highest, total, sums = attend_step(tile, at, turn, keys, values, highest, total, sums)
    return highest, total, sums


def attend_step(
    tile: Tile,
    at: fx.Int32,
    turn: fx.Int32,
    keys: Any,
    values: Any,
    highest: Sequence[fx.Float32],
    total: Sequence[fx.Float32],
    sums: Sequence[fx.Vector],
) -> Any:
    """The step at key `at`, whose operands are on their way, and loads of the next: beyond `end` they touch nothing."""
    loaded, beside = keys
    ahead = tile.variant.config.ahead
    products = tile.products(loaded)
    if ahead:
        keys = tile.load_keys(at + turn)
    else:
        rocdl.sched_barrier(0)
        values = tile.load_values(at)
    rocdl.sched_barrier(0)
    highest, total, sums, p = soften(tile, products, at, beside, highest, total, sums)
    sums = tile.add_values(values, p, sums)
    if ahead:
        values = tile.load_values(at + turn)
    else:
        rocdl.sched_barrier(0)
        keys = tile.load_keys(at + turn)
    rocdl.sched_barrier(0)
    return keys, values if ahead else [], highest, total, sums


def soften(
    tile: Tile,
    products: Sequence[fx.Vector],
    at: fx.Int32,
    beside: Any,
    highest: Sequence[fx.Float32],
    total: Sequence[fx.Float32],
    sums: Sequence[fx.Vector],
) -> tuple[list[fx.Float32], list[fx.Float32], list[fx.Vector], list[fx.Vector]]:
    """The highest scores with those of a step, everything so far relative to them, and the step's p."""
    blocks = len(products)
    new_highest, new_total, all_p, factors = [], [], [], []
    for block in range(blocks):
        values = tile.score(products[block], at, block, beside[block])
        most = over_groups(fx.max, _tree(fx.max, values))
        most = fx.max(most, highest[block])
        from_here = base(most)
        factors.append(exp2(highest[block] - from_here))
        p = [exp2(value - from_here) for value in values]
        new_highest.append(most)
        new_total.append(total[block] * factors[block] + _tree(lambda a, b: a + b, p))
        all_p.append(fx.Vector.from_elements(p, fx.Float32))
    scaled = [one * factors[i % blocks] for i, one in enumerate(sums)]
    return new_highest, new_total, scaled, all_p


def _tree(function: Callable[[Any, Any], Any], values: list[Any]) -> Any:
    while len(values) > 1:
        pairs = [function(values[i], values[i + 1]) for i in range(0, len(values) - 1, 2)]
        values = pairs + values[len(values) & ~1 :]
    return values[0]


def build(variant: DecodeVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    config, features = variant.config, variant.features
    element = ELEMENTS[variant.dtype]
    mask_element = fx.Int8 if features.mask in ("none", "bool") else ELEMENTS[features.mask]
    blocks = config.rows // MFMA_ROWS
    floats = config.row_floats

    @flyc.kernel(name=variant.symbol)
    def sdpa_decode(
        q: fx.Pointer,
        k: fx.Pointer,
        v: fx.Pointer,
        near: Near,
        out: fx.Pointer,
        lse: fx.Pointer,
        partial: fx.Pointer,
        mask: fx.Pointer,
        slopes: fx.Pointer,
        query_documents: fx.Pointer,
        key_documents: fx.Pointer,
        far: Far,
    ) -> None:
        thread = fx.Int32(fx.thread_idx.x)
        wave, lane = uniform(thread // WAVE_SIZE), thread % WAVE_SIZE
        column, part = lane % MFMA_ROWS, lane // MFMA_ROWS
        split, head, batch = fx.Int32(fx.block_idx.x), fx.Int32(fx.block_idx.y), fx.Int32(fx.block_idx.z)
        count = far.queries * far.group
        first_row = fx.Int32(0)
        if fx.const_expr(config.tiled):
            first_row = fx.Int32(fx.Uint32(split) // fx.Uint32(far.splits))
            split = split - first_row * far.splits
            first_row = first_row * config.rows
        start = split * near.share
        if fx.const_expr(features.lower):
            start = start + far.first
        end = fx.min(start + near.share, near.end)

        def rows_of(pointer: fx.Pointer, name: str, row: fx.Int32, size: fx.Int32) -> Rows:
            strides = [fx.Int64(getattr(near, f"{name}_{axis}_16")) for axis in ("batch", "head")]
            skipped = fx.Int64(batch) * strides[0] + fx.Int64(head) * strides[1]
            stride = getattr(near, f"{name}_row_16") * _UNIT
            return Rows(pointer + skipped * (_UNIT // _BYTES), stride, row * stride, size * _BYTES)

        head_dim = fx.Int32(config.head) if variant.whole_head else far.head_dim
        value_dim = fx.Int32(config.value) if variant.whole_value else far.value_dim
        keys = rows_of(k, "k", column // 4 * _CHUNK + column % 4, head_dim + head_dim % 2)
        values = rows_of(v, "v", part * _CHUNK, value_dim + value_dim % 2)

        def inside(first: Any, size: fx.Int32, whole: bool, offset: fx.Int32) -> fx.Int32:
            return offset if whole else checked(first < size, offset)

        chunk = part * _CHUNK
        slices = range(0, config.head, MFMA_KEYS)
        head_offsets = [
            inside(chunk + i, head_dim, variant.whole_head, keys.offset + (chunk + i) * _BYTES)
            for i in slices
        ]
        value_offsets = [
            inside(
                first + column * width,
                value_dim,
                variant.whole_value,
                values.offset + (first + column * width) * _BYTES,
            )
            for first, width in runs(config.value)
        ]
        tail = None
        if fx.const_expr(variant.ragged):
            tail = [_kept(head_dim - (chunk + i)) for i in slices]

        query, scores, of_rows = [], [], []
        of_batch = q + (fx.Int64(batch) * far.q_batch + fx.Int64(head * far.group) * far.q_head)
        last = fx.Int64(far.queries - 1) * far.q_row + fx.Int64(far.group - 1) * far.q_head
        size = fx.min((last + fx.Int64(head_dim + head_dim % 2)) * _BYTES, fx.Int64(OFFSET_LIMIT))
        buffer = bounded(of_batch, fx.Int32(fx.Uint32(size)))
        kind = fx.Vector.make_type(_CHUNK, fx.Int16)
        band = Band(features, far.lower, far.upper, far.queries, end)
        for block in range_constexpr(blocks):
            row = column + (first_row + block * MFMA_ROWS)
            of_row = fx.Int32(fx.Uint32(row) // fx.Uint32(far.group))
            of_group = row - of_row * far.group
            exists = row < count
            place = fx.Int32(fx.Int64(of_row) * far.q_row + fx.Int64(of_group) * far.q_head)
            fragments = []
            for i, first in enumerate(slices):
                at = (place + (chunk + first)) * _BYTES
                at = checked(exists if variant.whole_head else exists & (chunk + first < head_dim), at)
                loaded = fx.Vector(rocdl.raw_ptr_buffer_load(kind, buffer, at, fx.Int32(0)))
                fragments.append(loaded if tail is None else _masked(loaded, tail[i]))
            query.append(fragments)
            of_rows.append(of_row)
            slope = fx.Float32(0.0)
            if fx.const_expr(features.alibi):
                place = checked(exists, (head * far.group + of_group) * 4)
                slope = vectors.load(bounded(slopes), fx.Float32, 1, place)[0]
            of_mask = None
            if fx.const_expr(features.mask != "none"):
                first_mask = fx.Int64(batch) * far.mask_batch + fx.Int64(head * far.group) * far.mask_head
                of_mask = Mask(
                    kind=features.mask,
                    pointer=mask + first_mask,
                    query_stride=far.mask_query,
                    key_stride=far.mask_key,
                    queries=far.queries,
                    keys=far.keys,
                    of_lane=of_group * fx.Int32(far.mask_head),
                    most=fx.Int64(far.group - 1) * far.mask_head,
                )
            documents = None
            if fx.const_expr(features.documents):
                of_queries = query_documents + fx.Int64(batch) * fx.Int64(far.queries)
                of_keys = key_documents + fx.Int64(batch) * fx.Int64(far.keys)
                documents = Documents.of(of_row, of_queries, far.queries, of_keys, far.keys)
            scores.append(Scores(features, band, far.scale, far.softcap, slope, of_mask, documents))

        tile = Tile(
            variant, lane, keys, values, end, head_offsets, value_offsets, tail, query, scores, of_rows
        )
        first_key = start + wave * config.step
        left = fx.max(end - first_key, fx.Int32(0))
        turns = fx.Int32(fx.Uint32(left + (config.turn - 1)) // config.turn)
        # What is not needed during the loop does not keep scalar registers, of which there are few.
        later = [anew(number) for number in (wave, split, head, batch)]
        highest, total, sums = attend(tile, first_key, fx.Int32(config.turn), turns)
        wave, split, head, batch = (uniform(number) for number in later)

        lds = fx.SharedAllocator().allocate(fx.Array[fx.Float32, config.lds_bytes // 4, 16])
        shares = lds.peek().ptr
        for block in range_constexpr(blocks):
            record = shares + ((wave * config.rows + block * MFMA_ROWS + column) * floats)
            of_row = over_groups(lambda a, b: a + b, total[block])
            if part == 0:
                fx.ptr_store(fx.Vector.from_elements([highest[block], of_row], fx.Float32).ir_value(), record)
            number = 0
            for first, width in runs(config.value):
                some = [sums[(number + i) * blocks + block] for i in range(width)]
                number += width
                neighbours = [some[i][j] for j in range(4) for i in range(width)]
                for i in range(0, 4 * width, 4):
                    piece = fx.Vector.from_elements(neighbours[i : i + 4], fx.Float32)
                    at = record + (part * (4 * width) + (ROW_STATISTICS + first + i))
                    fx.ptr_store(piece.ir_value(), at)
        fx.gpu.barrier()
        merged = merge(shares, config.waves, config.rows, config.value, thread, count - first_row)
        merged = [replace(one, row=one.row + first_row) for one in merged]
        tile_number = fx.Int64(batch * far.kv_heads + head)
        if fx.const_expr(config.split):
            place = (tile_number * fx.Int64(far.splits) + fx.Int64(split)) * fx.Int64(count)
            _keep(partial + place * floats, floats, merged)
        else:
            output = Output(
                out=out + fx.Int64(batch) * far.out_batch,
                lse=lse + fx.Int64(batch * far.kv_heads) * fx.Int64(count) if variant.lse else None,
                head=far.out_head,
                row=far.out_row,
                first_head=head * far.group,
                queries=far.queries,
                group=far.group,
                value_dim=far.value_dim,
                vector=variant.vector,
                element=element,
            )
            for one in merged:
                output.store(one)

    @flyc.jit
    def launch(
        q: fx.Pointer,
        k: fx.Pointer,
        v: fx.Pointer,
        near: Near,
        out: fx.Pointer,
        lse: fx.Pointer,
        partial: fx.Pointer,
        mask: fx.Pointer,
        slopes: fx.Pointer,
        query_documents: fx.Pointer,
        key_documents: fx.Pointer,
        far: Far,
        splits: fx.Int32,
        kv_heads: fx.Int32,
        batch: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        sdpa_decode(
            q, k, v, near, out, lse, partial, mask, slopes, query_documents, key_documents, far
        ).launch(grid=(splits, kv_heads, batch), block=(config.threads, 1, 1), stream=stream)

    elements = dict.fromkeys(("q", "k", "v", "out"), element)
    elements |= dict.fromkeys(("lse", "partial", "slopes"), fx.Float32)
    elements |= dict.fromkeys(("query_documents", "key_documents"), fx.Int32)
    grid = (fx.Int32(1), fx.Int32(1), fx.Int32(1))
    return launch, (*placeholders(DECODE, elements | {"mask": mask_element}), *grid)


def _kept(left: fx.Int32) -> fx.Vector:
    """All ones where the elements of a chunk, of which `left` exist, are."""
    words = []
    for i in range(0, _CHUNK, 2):
        half = (left > i).select(fx.Int32(0xFFFF), fx.Int32(0))
        words.append((left > i + 1).select(fx.Int32(-1), half))
    return fx.Vector.from_elements(words, fx.Int32)


def _keep(to: fx.Pointer, floats: int, merged: Sequence[Merged]) -> None:
    """Puts a share's rows into memory."""
    buffer = bounded(to)
    for one in merged:
        record = one.row * floats
        pair = fx.Vector.from_elements([one.highest, one.total], fx.Float32)
        vectors.store(buffer, pair, checked(one.exists & (one.column == 0), record * 4))
        vectors.store(buffer, one.sums, checked(one.exists, (record + one.column + ROW_STATISTICS) * 4))
