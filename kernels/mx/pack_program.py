"""The kernel that packs block scales, in FlyDSL: a work-item transposes 4 x 4 bytes of four rows, 16 apart, four
times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.kernels.common.arguments import numbers, placeholders
from flycc.kernels.common.buffers import bounded, checked
from flycc.kernels.mx.config import GROUP_ROWS
from flycc.kernels.mx.pack import KERNARG, LANE_ROWS, OF_THREAD, THREADS

if TYPE_CHECKING:
    Sizes = Any
else:
    (Sizes,) = numbers(KERNARG)

#: Selectors of v_perm_b32: pairs of the lower and of the upper bytes of two dwords, and their lower and upper halves.
_LOWER_BYTES, _UPPER_BYTES, _LOWER_HALVES, _UPPER_HALVES = 0x05010400, 0x07030602, 0x05040100, 0x07060302


def build(symbol: str, slices: int, vector: int) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel, and placeholder arguments for it."""

    @flyc.kernel(name=symbol)
    def mx_pack(
        scale_a: fx.Pointer, scale_b: fx.Pointer, packed_a: fx.Pointer, packed_b: fx.Pointer, sizes: Sizes
    ) -> None:
        if fx.Int32(fx.block_idx.z) == 0:
            _pack(scale_a, packed_a, sizes.rows_a, sizes, slices, vector)
        else:
            _pack(scale_b, packed_b, sizes.rows_b, sizes, slices, vector)

    @flyc.jit
    def launch(
        scale_a: fx.Pointer,
        scale_b: fx.Pointer,
        packed_a: fx.Pointer,
        packed_b: fx.Pointer,
        sizes: Sizes,
        groups: fx.Int32,
        along_k: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        mx_pack(scale_a, scale_b, packed_a, packed_b, sizes).launch(
            grid=(groups, along_k, 2), block=(THREADS, 1, 1), stream=stream
        )

    elements = dict.fromkeys(KERNARG.pointers, fx.Int8)
    return launch, (*placeholders(KERNARG, elements), fx.Int32(1), fx.Int32(1))


def _pack(
    scales: fx.Pointer, packed: fx.Pointer, count: fx.Int32, sizes: Any, slices: int, vector: int
) -> None:
    """A work-item's share of an operand that has `count` rows."""
    thread, group = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
    row = thread % LANE_ROWS
    first = (fx.Int32(fx.block_idx.y) * (THREADS // LANE_ROWS) + thread // LANE_ROWS) * OF_THREAD
    left = count - group * GROUP_ROWS
    source = bounded(scales + fx.Int64(group) * fx.Int64(sizes.blocks) * GROUP_ROWS)
    rows = []
    for place in (row + i * LANE_ROWS for i in range(GROUP_ROWS // LANE_ROWS)):
        rows.append(_load(source, place < left, place * sizes.blocks, first, sizes.blocks, vector))
    of_step = GROUP_ROWS * 4 * slices
    target = bounded(packed + fx.Int64(group) * fx.Int64(sizes.steps) * of_step)
    for chunk in range(0, OF_THREAD // 4, slices):
        transposed = [_transposed([words[chunk + i] for words in rows]) for i in range(slices)]
        step = fx.Int32(fx.Uint32(first + 4 * chunk) // (4 * slices))
        for lane_group in range(4):
            lane = row + lane_group * LANE_ROWS
            offset = checked((left > 0) & (step < sizes.steps), step * of_step + lane * (4 * slices))
            _store(target, [words[lane_group] for words in transposed], offset)


def _load(
    buffer: Any, exists: Any, place: fx.Int32, first: fx.Int32, blocks: fx.Int32, vector: int
) -> list[fx.Int32]:
    """16 bytes of a row, from number `first` of its `blocks` on, as dwords."""
    words: list[fx.Int32] = []
    for start in range(0, OF_THREAD, max(4, vector)):
        if vector == 1:
            word = fx.Int32(0)
            for i in range(4):
                at = first + (start + i)
                offset = checked(exists & (at < blocks), place + at)
                byte = fx.Uint8(rocdl.raw_ptr_buffer_load(T.i8, buffer, offset, fx.Int32(0)))
                word = word | fx.Int32(fx.Uint32(byte)) << (8 * i)
            words.append(word)
            continue
        at = first + start
        offset = checked(exists & (at < blocks), place + at)
        if vector == 4:
            words.append(fx.Int32(rocdl.raw_ptr_buffer_load(T.i32, buffer, offset, fx.Int32(0))))
        else:
            kind = fx.Vector.make_type(vector // 4, fx.Int32)
            loaded = fx.Vector(rocdl.raw_ptr_buffer_load(kind, buffer, offset, fx.Int32(0)))
            words += [loaded[i] for i in range(vector // 4)]
    return words


def _transposed(rows: list[fx.Int32]) -> list[fx.Int32]:
    """Dword i has byte i of each of four dwords."""
    lower = [_permuted(rows[i + 1], rows[i], _LOWER_BYTES) for i in (0, 2)]
    upper = [_permuted(rows[i + 1], rows[i], _UPPER_BYTES) for i in (0, 2)]
    return [
        _permuted(pair[1], pair[0], halves)
        for pair in (lower, upper)
        for halves in (_LOWER_HALVES, _UPPER_HALVES)
    ]


def _permuted(high: fx.Int32, low: fx.Int32, selector: int) -> fx.Int32:
    return fx.Int32(rocdl.perm_b32(high, low, fx.Int32(selector)))


def _store(buffer: Any, words: list[fx.Int32], offset: fx.Int32) -> None:
    data = words[0].ir_value() if len(words) == 1 else fx.Vector.from_elements(words, fx.Int32).ir_value()
    rocdl.raw_ptr_buffer_store(data, buffer, offset.ir_value(), fx.Int32(0).ir_value())
