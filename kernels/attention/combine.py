"""Rows of attention that waves or workgroups have computed over some keys each, put together, in FlyDSL.

Of a share a row has `highest`, its highest score in units of ln 2 (-inf where it sees no key), `total`, its sum of
p = 2^(score - highest), and sums, those of p V. They lie side by side as in `decode_kernarg.DECODE`'s partial. Whoever
puts them together takes shares in their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import range_constexpr, rocdl
from flydsl.expr.typing import T

from flycc.kernels.attention.decode_config import ROW_STATISTICS
from flycc.kernels.attention.decode_kernarg import COMBINE
from flycc.kernels.attention.decode_variant import CombineVariant
from flycc.kernels.attention.scores import LN_2, exp2
from flycc.kernels.common import vectors
from flycc.kernels.common.arguments import numbers, placeholders
from flycc.kernels.common.buffers import bounded, checked
from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.common.wave import uniform

if TYPE_CHECKING:
    Sizes = Any
    Strides = Any
else:
    Sizes, Strides = numbers(COMBINE)

#: Sums of an access.
WIDTH = 4
#: Shares whose sums a lane has on the way.
_AT_A_TIME = 8


@dataclass(frozen=True)
class Merged:
    """`WIDTH` sums of a row over all shares, from element `column` on, if the row `exists`."""

    row: fx.Int32
    column: fx.Int32
    exists: Any
    highest: fx.Float32
    total: fx.Float32
    sums: fx.Vector


@dataclass(frozen=True)
class Output:
    """The rows of out and of lse of one head of K and V; pointers are at the batch's first element.

    `lse` is None where none is wanted; `vector` elements of a row of out are aligned.
    """

    out: fx.Pointer
    lse: fx.Pointer | None
    head: fx.Int64
    row: fx.Int64
    first_head: fx.Int32
    queries: fx.Int32
    group: fx.Int32
    value_dim: fx.Int32
    vector: int
    element: Any

    def store(self, merged: Merged) -> None:
        """Divides by the sum of p, rounds once, and stores what lies inside."""
        # A row that sees no key has sums of zero.
        factor = fx.Float32(
            rocdl.rcp(T.f32, (merged.total == 0.0).select(fx.Float32(1.0), merged.total).ir_value())
        )
        values = merged.sums * factor
        query = fx.Int32(fx.Uint32(merged.row) // fx.Uint32(self.group))
        head = self.first_head + (merged.row - query * self.group)
        if self.lse is not None:
            first = merged.exists & (merged.column == 0)
            # Both are -inf where no key is seen.
            lse = (merged.highest + fx.Float32(rocdl.log(T.f32, merged.total.ir_value()))) * LN_2
            place = checked(first, (head * self.queries + query) * 4)
            vectors.store(bounded(self.lse), fx.Vector.from_elements([lse], fx.Float32), place)
        out = bounded(self.out)
        start = fx.Int32(fx.Int64(head) * self.head + fx.Int64(query) * self.row)
        for i in range(0, WIDTH, self.vector):
            column = merged.column + i
            piece = fx.Vector.from_elements([values[i + j] for j in range(self.vector)], fx.Float32)
            inside = merged.exists & (column < self.value_dim)
            size = vectors.element_bytes(self.element)
            vectors.store(out, vectors.rounded(piece, self.element), checked(inside, (start + column) * size))


def merge(
    lds: fx.Pointer, waves: int, rows: int, value: int, thread: fx.Int32, count: fx.Int32
) -> list[Merged]:
    """A work-item's part of the rows of which `waves` shares lie in LDS, [waves][rows][row_floats].

    The first `count` rows exist.
    """
    stride = value + ROW_STATISTICS
    each = value // WIDTH
    found = []
    kind = fx.Vector.make_type(WIDTH, fx.Float32)
    for start in range(0, rows * each, waves * WAVE_SIZE):
        item = thread + start
        row = item // each
        exists = row < count
        # Rows of a tile that do not exist are in LDS, too; items beyond the tile are not.
        if start + waves * WAVE_SIZE > rows * each:
            row = exists.select(row, fx.Int32(0))
        column = item % each * WIDTH
        records = [lds + ((wave * rows + row) * stride) for wave in range(waves)]
        highest, total = zip(
            *(
                (
                    fx.Float32(fx.ptr_load(at, result_type=T.f32)),
                    fx.Float32(fx.ptr_load(at + 1, result_type=T.f32)),
                )
                for at in records
            ),
            strict=True,
        )
        parts = [fx.Vector(fx.ptr_load(at + (ROW_STATISTICS + column), result_type=kind)) for at in records]
        most = highest[0]
        for one in highest[1:]:
            most = fx.max(most, one)
        factors = [exp2(one - base(most)) for one in highest]
        sums, sum_of_p = parts[0] * factors[0], total[0] * factors[0]
        for factor, part, one in zip(factors[1:], parts[1:], total[1:], strict=True):
            sums, sum_of_p = sums + part * factor, sum_of_p + one * factor
        found.append(Merged(row, column, exists, most, sum_of_p, sums))
    return found


def base(highest: fx.Float32) -> fx.Float32:
    """What is subtracted from scores of a row: 0 where there are none but -inf."""
    return (highest == -math.inf).select(fx.Float32(0.0), highest)


@dataclass(frozen=True)
class Shares:
    """A row's shares in memory, `stride` bytes apart, to a lane of one of `waves` waves.

    Wave w has in its lane i the statistics of share `waves` * i + w.
    """

    waves: int
    buffer: Any
    stride: fx.Int32
    count: fx.Int32
    wave: fx.Int32
    lane: fx.Int32
    value: int

    @property
    def of_wave(self) -> fx.Int32:
        """How many shares this wave has."""
        return fx.Int32(fx.Uint32(self.count - self.wave + (self.waves - 1)) // self.waves)

    def statistics(self) -> tuple[fx.Float32, fx.Float32]:
        """The highest score and the sum of p of the lane's share, -inf and 0 where there is none."""
        exists = self.lane < self.of_wave
        place = checked(exists, (self.lane * self.waves + self.wave) * self.stride)
        pair = vectors.load(self.buffer, fx.Float32, 2, place)
        return exists.select(pair[0], fx.Float32(-math.inf)), pair[1]

    def sums(self, first: fx.Int32, number: int) -> fx.Vector:
        """The lane's `WIDTH` sums, in pass `number`, of the wave's share `first`."""
        column = self.lane * WIDTH + number * WAVE_SIZE * WIDTH
        exists = (first < self.of_wave) & (column < self.value)
        share = fx.Int32(first * self.waves + self.wave)
        place = share * self.stride + (column + ROW_STATISTICS) * 4
        return vectors.load(self.buffer, fx.Float32, WIDTH, checked(exists, place))


@flyc.jit
def weighted(shares: Any, weight: Any) -> Any:
    """The lane's sums over the shares of its wave, of which lane i has the weight of number i."""
    passes = -(-shares.value // (WAVE_SIZE * WIDTH))
    total = [fx.Vector.filled(WIDTH, 0.0, fx.Float32) for _ in range_constexpr(passes)]
    for start in range(fx.Int32(0), shares.of_wave, fx.Int32(_AT_A_TIME)):
        total = _add_some(shares, fx.Int32(start), weight, total)
    return total


def _add_some(shares: Shares, start: fx.Int32, weight: fx.Float32, total: list[fx.Vector]) -> list[fx.Vector]:
    loaded = [[shares.sums(start + i, number) for number in range(len(total))] for i in range(_AT_A_TIME)]
    for i, sums in enumerate(loaded):
        word = weight.bitcast(fx.Int32).ir_value()
        factor = fx.Int32(rocdl.readlane(T.i32, word, (start + i).ir_value())).bitcast(fx.Float32)
        total = [so_far + more * factor for so_far, more in zip(total, sums, strict=True)]
    return total


def over_wave(function: Callable[[Any, Any], Any], value: fx.Float32) -> fx.Float32:
    """`function` of two over all lanes, in all of them, in a fixed order."""
    distance = WAVE_SIZE // 2
    while distance:
        value = function(value, fx.gpu.shuffle_xor(value, distance, WAVE_SIZE))
        distance //= 2
    return value


def build(variant: CombineVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it: a workgroup has one
    row."""
    element, value = ELEMENTS[variant.dtype], variant.value
    floats = value + ROW_STATISTICS

    @flyc.kernel(name=variant.symbol)
    def sdpa_combine(
        partial: fx.Pointer, sizes: Sizes, out: fx.Pointer, lse: fx.Pointer, strides: Strides
    ) -> None:
        thread = fx.Int32(fx.thread_idx.x)
        wave, lane = uniform(thread // WAVE_SIZE), thread % WAVE_SIZE
        row, head, batch = fx.Int32(fx.block_idx.x), fx.Int32(fx.block_idx.y), fx.Int32(fx.block_idx.z)
        rows = sizes.queries * sizes.group
        tile = fx.Int64(batch * sizes.kv_heads + head)
        first = tile * fx.Int64(sizes.splits * rows) + fx.Int64(row)
        shares = Shares(
            variant.waves,
            bounded(partial + first * floats),
            rows * (floats * 4),
            sizes.splits,
            wave,
            lane,
            value,
        )
        highest, total = shares.statistics()
        most = over_wave(fx.max, highest)
        weight = exp2(highest - base(most))
        sums = weighted(shares, weight)
        total = over_wave(lambda a, b: a + b, total * weight)

        lds = fx.SharedAllocator().allocate(fx.Array[fx.Float32, variant.waves * floats, 16]).peek().ptr
        record = lds + wave * floats
        if lane == 0:
            fx.ptr_store(fx.Vector.from_elements([most, total], fx.Float32).ir_value(), record)
        for i in range_constexpr(len(sums)):
            column = lane * WIDTH + i * WAVE_SIZE * WIDTH
            if column < value:
                fx.ptr_store(sums[i].ir_value(), record + (column + ROW_STATISTICS))
        fx.gpu.barrier()
        output = Output(
            out=out + fx.Int64(batch) * strides.out_batch,
            lse=lse + fx.Int64(batch * sizes.kv_heads) * fx.Int64(rows) if variant.lse else None,
            head=strides.out_head,
            row=strides.out_row,
            first_head=head * sizes.group,
            queries=sizes.queries,
            group=sizes.group,
            value_dim=sizes.value_dim,
            vector=variant.vector,
            element=element,
        )
        for merged in merge(lds, variant.waves, 1, value, thread, fx.Int32(1)):
            output.store(replace(merged, row=row))

    @flyc.jit
    def launch(
        partial: fx.Pointer,
        sizes: Sizes,
        out: fx.Pointer,
        lse: fx.Pointer,
        strides: Strides,
        rows: fx.Int32,
        kv_heads: fx.Int32,
        batch: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        sdpa_combine(partial, sizes, out, lse, strides).launch(
            grid=(rows, kv_heads, batch), block=(variant.waves * WAVE_SIZE, 1, 1), stream=stream
        )

    elements = {"partial": fx.Float32, "out": element, "lse": fx.Float32}
    grid = (fx.Int32(1), fx.Int32(1), fx.Int32(1))
    return launch, (*placeholders(COMBINE, elements), *grid)
