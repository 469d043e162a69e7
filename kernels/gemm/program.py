"""The GEMM kernel in FlyDSL.

One workgroup computes a `tile_m` x `tile_n` tile of `out`. The MFMA is fed transposed (its rows run along N,
its columns along M), so that a lane's four results are neighbours along N, where `out` is contiguous.

Every operand access is a buffer access relative to the tile's base (a 64-bit scalar address), with a 32-bit
offset per lane. An element outside the operand gets the offset `OFFSET_LIMIT`, where loads return zero and
stores are dropped; rows are checked once, K only in the last, partial step.

A *fragment* is what a lane feeds to one MFMA: 8 elements, consecutive along K, of one row of A or column of B
(both called rows here). A *group* is the `width` fragments that a lane obtains together:

- the operand is contiguous along K: one row, loaded as 16 bytes or as narrower pieces;
- it is contiguous along its rows: 8 loads of `width` neighbouring rows, transposed in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import range_constexpr, rocdl
from flydsl.expr.typing import T

from flycc.kernels.gemm.config import (
    ELEMENT_BYTES,
    LDS_PAD,
    MFMA_K,
    MFMA_MN,
    OFFSET_LIMIT,
    SUM_PAD,
    WAVE_SIZE,
    GemmConfig,
)
from flycc.kernels.gemm.variant import GemmVariant

FRAGMENT = 8  # elements along K that a lane feeds to one MFMA

Fragment = fx.Vector


def _buffer(pointer: fx.Pointer) -> Any:
    """A buffer resource of `OFFSET_LIMIT` bytes that starts at `pointer`."""
    return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(pointer, num_records_bytes=fx.Int64(OFFSET_LIMIT)))


def _checked(valid: Any, offset: fx.Int32) -> fx.Int32:
    """`offset`, or the out-of-range offset where `valid` is false."""
    return valid.select(offset, fx.Int32(OFFSET_LIMIT - (1 << 32)))


def _load(buffer: Any, elements: int, offset: fx.Int32, scalar_offset: Any) -> list[fx.Int16]:
    """`elements` neighbouring 16-bit elements at byte `offset + scalar_offset`."""
    if elements == 1:
        return [fx.Int16(rocdl.raw_ptr_buffer_load(T.i16, buffer, offset, scalar_offset))]
    kind = fx.Vector.make_type(elements, fx.Int16)
    vector = fx.Vector(rocdl.raw_ptr_buffer_load(kind, buffer, offset, scalar_offset))
    return [vector[i] for i in range(elements)]


@dataclass(frozen=True)
class Group:
    """Where `width` fragments lie: rows `row ..< row + width`, elements `k + k_static ..< + 8` of the tile.

    `offset` is the byte offset of the group's first element but for `k_static`; rows outside the operand
    already have the out-of-range one.
    """

    row: fx.Int32
    k: fx.Int32
    k_static: int
    width: int
    offset: fx.Int32


@dataclass(frozen=True)
class Operand:
    """A (rows = M) or B (rows = N) as the main loop sees it."""

    pointer: fx.Pointer  # first element of the workgroup's tile at k = 0
    leading: fx.Int32  # leading stride in elements
    rows_left: fx.Int32  # rows of the operand from the tile's first row on
    along_k: bool  # contiguous along K, else along its rows
    vector: int  # elements of a load that are known to be aligned and inside or outside together

    def group(self, row: fx.Int32, k: fx.Int32, k_static: int, width: int) -> Group:
        place = row * self.leading + k if self.along_k else k * self.leading + row
        offset = _checked(row < self.rows_left, place * ELEMENT_BYTES)
        return Group(row, k, k_static, width, offset)


def load_group(operand: Operand, group: Group, buffer: Any, k_left: fx.Int32 | None) -> list[Fragment]:
    """The group's fragments; `k_left`, if given, is the number of elements of K that are left."""

    def offset_at(k: int) -> fx.Int32:
        if k_left is None:
            return group.offset
        return _checked(group.k + (group.k_static + k) < k_left, group.offset)

    if operand.along_k:
        elements = []
        for piece in range(0, FRAGMENT, operand.vector):
            offset = offset_at(piece) + (group.k_static + piece) * ELEMENT_BYTES
            elements += _load(buffer, operand.vector, offset, fx.Int32(0))
        return [fx.Vector.from_elements(elements, fx.Int16)]
    lines = []
    for k in range(FRAGMENT):
        scalar_offset = operand.leading * ((group.k_static + k) * ELEMENT_BYTES)
        lines.append(_load(buffer, group.width, offset_at(k), scalar_offset))
    return [fx.Vector.from_elements([line[i] for line in lines], fx.Int16) for i in range(group.width)]


def load(
    operand: Operand, groups: Sequence[Group], position: fx.Int64, k_left: fx.Int32 | None = None
) -> list[list[Fragment]]:
    """The fragments of `groups` for the step that starts at element `position` of K."""
    stride = fx.Int64(1) if operand.along_k else fx.Int64(operand.leading)
    buffer = _buffer(operand.pointer + position * stride)
    return [load_group(operand, group, buffer, k_left) for group in groups]


@dataclass(frozen=True)
class Lane:
    """A lane's place: in its workgroup, and in the 16 x 4 arrangement of MFMA operands."""

    thread: fx.Int32
    row: fx.Int32  # 0..15: row of an operand, column of a result
    group: fx.Int32  # 0..3: the 8 elements along K of an operand, the 4 rows of a result


def direct_width(operand: Operand, blocks: int) -> int:
    """Neighbouring rows that a lane holds when a wave loads `blocks` MFMA blocks straight from memory."""
    if operand.along_k:
        return 1
    width = operand.vector
    while blocks % width:
        width //= 2
    return width


def direct_groups(
    operand: Operand, lane: Lane, first_row: fx.Int32, blocks: int, tile_k: int
) -> list[list[Group]]:
    """Per 32 elements of K: the groups that cover `blocks` MFMA blocks.

    Block `c * width + i` holds the rows `16 * width * c + width * r + i`, for the MFMA row r.
    """
    width = direct_width(operand, blocks)
    rows = [first_row + c * MFMA_MN * width + lane.row * width for c in range(blocks // width)]
    steps = range(0, tile_k, MFMA_K)
    first = [operand.group(row, lane.group * FRAGMENT, 0, width) for row in rows]
    return [[Group(g.row, g.k, step, width, g.offset) for g in first] for step in steps]


def staging_groups(operand: Operand, lane: Lane, rows: int, tile_k: int, threads: int) -> list[Group]:
    """This thread's share of a `rows` x `tile_k` tile on its way to LDS."""
    chunks = tile_k // FRAGMENT
    if operand.along_k:
        k = lane.thread % chunks * FRAGMENT
        count = rows * chunks // threads
        return [operand.group(lane.thread // chunks + i * (threads // chunks), k, 0, 1) for i in range(count)]
    width = min(operand.vector, max(1, rows * chunks // threads))
    lines = rows // width
    row = lane.thread % lines * width
    count = rows * chunks // (width * threads)
    return [
        operand.group(row, (lane.thread // lines + i * (threads // lines)) * FRAGMENT, 0, width)
        for i in range(count)
    ]


@dataclass(frozen=True)
class Tile:
    """An operand's tile in LDS: [2 buffers][rows][row_stride] 16-bit elements."""

    pointer: fx.Pointer
    rows: int
    row_stride: int

    def place(self, buffer: fx.Int32, row: fx.Int32, k: fx.Int32) -> fx.Pointer:
        return self.pointer + ((buffer * self.rows + row) * self.row_stride + k)


def write_tile(
    tile: Tile, buffer: fx.Int32, groups: Sequence[Group], fragments: list[list[Fragment]]
) -> None:
    for group, loaded in zip(groups, fragments, strict=True):
        for i, fragment in enumerate(loaded):
            fx.ptr_store(fragment.ir_value(), tile.place(buffer, group.row + i, group.k))


def read_tile(tile: Tile, buffer: fx.Int32, row: fx.Int32, k: fx.Int32) -> Fragment:
    kind = fx.Vector.make_type(FRAGMENT, fx.Int16)
    return fx.Vector(fx.ptr_load(tile.place(buffer, row, k), result_type=kind))


def multiply(
    element: Any, a: Sequence[Fragment], b: Sequence[Fragment], acc: list[fx.Vector]
) -> list[fx.Vector]:
    """acc[n][m] += b[n] a[m] for all blocks: one MFMA each."""
    mfma = rocdl.mfma_f32_16x16x32_bf16 if element is fx.BFloat16 else rocdl.mfma_f32_16x16x32_f16
    result_type = fx.Vector.make_type(4, fx.Float32)
    a = [fragment.bitcast(element) for fragment in a]
    b = [fragment.bitcast(element) for fragment in b]
    blocks = [(n, m) for n in b for m in a]
    return [fx.Vector(mfma(result_type, [n, m, total])) for (n, m), total in zip(blocks, acc, strict=True)]


def direct_step(
    element: Any,
    a: Operand,
    b: Operand,
    slices_a: list[list[Group]],
    slices_b: list[list[Group]],
    position: fx.Int64,
    k_left: fx.Int32 | None,
    acc: list[fx.Vector],
) -> list[fx.Vector]:
    """Multiplies `tile_k` elements along K from `position` on, straight from memory."""
    loaded_a = [load(a, groups, position, k_left) for groups in slices_a]
    loaded_b = [load(b, groups, position, k_left) for groups in slices_b]
    rocdl.sched_barrier(0)  # all loads in flight before the first wait
    for fragments_a, fragments_b in zip(loaded_a, loaded_b, strict=True):
        acc = multiply(element, _flat(fragments_a), _flat(fragments_b), acc)
    return acc


def staged_step(
    element: Any,
    lane: Lane,
    a: Tile,
    b: Tile,
    buffer: fx.Int32,
    first_m: fx.Int32,
    first_n: fx.Int32,
    config: GemmConfig,
    acc: list[fx.Vector],
) -> list[fx.Vector]:
    """Multiplies the tiles that lie in `buffer` of LDS."""
    blocks_m = config.tile_m // config.waves_m // MFMA_MN
    blocks_n = config.tile_n // config.waves_n // MFMA_MN
    for step in range(0, config.tile_k, MFMA_K):
        k = lane.group * FRAGMENT + step
        fragments_a = [read_tile(a, buffer, first_m + lane.row + i * MFMA_MN, k) for i in range(blocks_m)]
        fragments_b = [read_tile(b, buffer, first_n + lane.row + i * MFMA_MN, k) for i in range(blocks_n)]
        acc = multiply(element, fragments_a, fragments_b, acc)
    return acc


def _flat(groups: list[list[Fragment]]) -> list[Fragment]:
    return [fragment for group in groups for fragment in group]


@dataclass(frozen=True)
class Chunk:
    """Neighbouring results of one row: `values[i]` is out[row, column + i], relative to the tile."""

    row: fx.Int32
    column: fx.Int32
    values: list[fx.Float32]


def result_chunks(
    acc: list[fx.Vector],
    lane: Lane,
    first_row: fx.Int32,
    first_column: fx.Int32,
    blocks_m: int,
    width_m: int,
    width_n: int,
) -> list[Chunk]:
    """The results a lane holds, in runs along N as long as the rows' order in `direct_groups` allows."""
    chunks = []
    for m in range(blocks_m):
        row = first_row + m // width_m * width_m * MFMA_MN + lane.row * width_m + m % width_m
        for n in range(0, len(acc) // blocks_m, width_n):
            column = first_column + n * MFMA_MN + lane.group * (4 * width_n)
            values = [acc[(n + i) * blocks_m + m][r] for r in range(4) for i in range(width_n)]
            chunks.append(Chunk(row, column, values))
    return chunks


def exchange(
    pointer: fx.Pointer, chunks: list[Chunk], config: GemmConfig, wave_k: fx.Int32, thread: fx.Int32
) -> list[Chunk]:
    """Adds up the `waves_k` partial tiles through LDS ([waves_k][tile_m][tile_n + SUM_PAD] float32).

    Every thread of the workgroup gets one chunk of the sum. The order of additions is fixed.
    """
    row_stride = config.tile_n + SUM_PAD
    slab = config.tile_m * row_stride
    for chunk in chunks:
        place = wave_k * slab + chunk.row * row_stride + chunk.column
        for i in range(0, len(chunk.values), 4):
            values = fx.Vector.from_elements(chunk.values[i : i + 4], fx.Float32)
            fx.ptr_store(values.ir_value(), pointer + (place + i))
    fx.gpu.barrier()
    count = config.tile_m * config.tile_n // config.threads
    row = thread * count // config.tile_n
    column = thread * count % config.tile_n
    kind = fx.Vector.make_type(4, fx.Float32)
    values: list[fx.Float32] = []
    for i in range(0, count, 4):
        place = row * row_stride + column + i
        parts = [
            fx.Vector(fx.ptr_load(pointer + (place + w * slab), result_type=kind))
            for w in range(config.waves_k)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        values += [total[j] for j in range(4)]
    return [Chunk(row, column, values)]


def _rounded(values: list[fx.Float32], element: Any) -> Any:
    """One 16-bit element, or a vector of words with two each, as they lie in memory."""
    if len(values) == 1:
        return values[0].to(element).bitcast(fx.Int16).ir_value()
    pairs = [fx.Vector.from_elements(values[i : i + 2], fx.Float32) for i in range(0, len(values), 2)]
    words = [pair.to(element).bitcast(fx.Int32)[0] for pair in pairs]
    return fx.Vector.from_elements(words, fx.Int32).ir_value()


def _store(buffer: Any, data: Any, offset: fx.Int32) -> None:
    rocdl.raw_ptr_buffer_store(data, buffer, offset.ir_value(), fx.Int32(0).ir_value())


@dataclass(frozen=True)
class Output:
    """Where results go; pointers are at the tile's first element, strides count elements."""

    pointer: fx.Pointer
    leading: fx.Int32
    rows_left: fx.Int32
    columns_left: fx.Int32
    vector: int
    element: Any
    bias: fx.Pointer | None
    bias_row: fx.Int32
    bias_column: fx.Int32

    def store(self, chunks: list[Chunk]) -> None:
        """Adds the bias in float32, rounds once, and stores what lies inside `out`."""
        out = _buffer(self.pointer)
        bias = None if self.bias is None else _buffer(self.bias)
        for chunk in chunks:
            row_inside = chunk.row < self.rows_left
            row_offset = chunk.row * self.leading
            size = min(self.vector, len(chunk.values))
            for start in range(0, len(chunk.values), size):
                column = chunk.column + start
                inside = row_inside & (column < self.columns_left)
                values = chunk.values[start : start + size]
                if bias is not None:
                    values = [
                        value + self._bias(bias, chunk.row, column + i, inside)
                        for i, value in enumerate(values)
                    ]
                offset = _checked(inside, (row_offset + column) * ELEMENT_BYTES)
                _store(out, _rounded(values, self.element), offset)

    def _bias(self, buffer: Any, row: fx.Int32, column: fx.Int32, inside: Any) -> fx.Float32:
        place = row * self.bias_row + column * self.bias_column
        (value,) = _load(buffer, 1, _checked(inside, place * ELEMENT_BYTES), fx.Int32(0))
        return value.bitcast(self.element).to(fx.Float32)


def build(variant: GemmVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    config = variant.config
    element = fx.BFloat16 if variant.dtype == "bf16" else fx.Float16
    wave_m_rows = config.tile_m // config.waves_m
    wave_n_rows = config.tile_n // config.waves_n
    blocks_m, blocks_n = wave_m_rows // MFMA_MN, wave_n_rows // MFMA_MN

    @flyc.kernel(name=variant.symbol)
    def gemm(
        a: fx.Pointer,
        b: fx.Pointer,
        bias: fx.Pointer,
        out: fx.Pointer,
        batch_a: fx.Int64,
        batch_b: fx.Int64,
        batch_out: fx.Int64,
        bias_batch: fx.Int64,
        bias_m: fx.Int64,
        bias_n: fx.Int64,
        m: fx.Int32,
        n: fx.Int32,
        k: fx.Int32,
        ld_a: fx.Int32,
        ld_b: fx.Int32,
        ld_out: fx.Int32,
    ):
        thread = fx.thread_idx.x
        lane = Lane(thread, thread % 16, thread % WAVE_SIZE // 16)
        wave = fx.Int32(rocdl.readfirstlane(T.i32, thread // WAVE_SIZE))
        wave_k = wave % config.waves_k
        first_n = wave // config.waves_k % config.waves_n * wave_n_rows
        first_m = wave // (config.waves_k * config.waves_n) * wave_m_rows

        m0 = fx.block_idx.x * config.tile_m
        n0 = fx.block_idx.y * config.tile_n
        batch = fx.Int64(fx.block_idx.z)
        row_a = fx.Int64(m0) if variant.trans_a else fx.Int64(m0) * fx.Int64(ld_a)
        row_b = fx.Int64(n0) * fx.Int64(ld_b) if variant.trans_b else fx.Int64(n0)
        operand_a = Operand(
            a + (batch * batch_a + row_a), ld_a, m - m0, not variant.trans_a, variant.vector_a
        )
        operand_b = Operand(b + (batch * batch_b + row_b), ld_b, n - n0, variant.trans_b, variant.vector_b)

        steps = fx.Int32(fx.Uint32(k) // config.step_k)
        left = k - steps * config.step_k
        acc = [fx.Vector.filled(4, 0.0, fx.Float32) for _ in range_constexpr(blocks_m * blocks_n)]
        if fx.const_expr(config.staged):
            lds = fx.SharedAllocator().allocate(fx.Array[fx.Int16, config.lds_bytes // 2, 16]).peek().ptr
            tile_a = Tile(lds, config.tile_m, config.tile_k + LDS_PAD)
            tile_b = Tile(lds + 2 * tile_a.rows * tile_a.row_stride, config.tile_n, config.tile_k + LDS_PAD)
            groups_a = staging_groups(operand_a, lane, config.tile_m, config.tile_k, config.threads)
            groups_b = staging_groups(operand_b, lane, config.tile_n, config.tile_k, config.threads)
            if steps > 0:
                loaded_a = load(operand_a, groups_a, fx.Int64(0))
                loaded_b = load(operand_b, groups_b, fx.Int64(0))
                for step in range(steps):
                    write_tile(tile_a, step % 2, groups_a, loaded_a)
                    write_tile(tile_b, step % 2, groups_b, loaded_b)
                    fx.gpu.barrier()
                    # The last turn loads its own step again: harmless, and shorter than a branch.
                    following = fx.Int64(fx.min(step + 1, steps - 1)) * config.step_k
                    loaded_a = load(operand_a, groups_a, following)
                    loaded_b = load(operand_b, groups_b, following)
                    rocdl.sched_barrier(0)  # the loads run while this step is multiplied
                    acc = staged_step(element, lane, tile_a, tile_b, step % 2, first_m, first_n, config, acc)
            if left > 0:
                position = fx.Int64(steps) * config.step_k
                write_tile(tile_a, steps % 2, groups_a, load(operand_a, groups_a, position, left))
                write_tile(tile_b, steps % 2, groups_b, load(operand_b, groups_b, position, left))
                fx.gpu.barrier()
                acc = staged_step(element, lane, tile_a, tile_b, steps % 2, first_m, first_n, config, acc)
        else:
            first_k = wave_k * config.tile_k
            slices_a = direct_groups(operand_a, lane, first_m, blocks_m, config.tile_k)
            slices_b = direct_groups(operand_b, lane, first_n, blocks_n, config.tile_k)
            position = fx.Int64(first_k)
            for _ in range(steps):
                acc = direct_step(element, operand_a, operand_b, slices_a, slices_b, position, None, acc)
                position = position + config.step_k
            if left > 0:
                k_left = left - first_k
                acc = direct_step(element, operand_a, operand_b, slices_a, slices_b, position, k_left, acc)

        direct = not config.staged
        width_m = direct_width(operand_a, blocks_m) if direct else 1
        width_n = direct_width(operand_b, blocks_n) if direct else 1
        chunks = result_chunks(acc, lane, first_m, first_n, blocks_m, width_m, width_n)
        if fx.const_expr(config.waves_k > 1):
            sums = fx.SharedAllocator().allocate(fx.Array[fx.Float32, config.lds_bytes // 4, 16]).peek().ptr
            chunks = exchange(sums, chunks, config, wave_k, thread)
        place = batch * batch_out + fx.Int64(m0) * fx.Int64(ld_out) + fx.Int64(n0)
        bias_place = batch * bias_batch + fx.Int64(m0) * bias_m + fx.Int64(n0) * bias_n
        Output(
            pointer=out + place,
            leading=ld_out,
            rows_left=m - m0,
            columns_left=n - n0,
            vector=variant.vector_out,
            element=element,
            bias=bias + bias_place if variant.bias else None,
            bias_row=fx.Int32(bias_m),
            bias_column=fx.Int32(bias_n),
        ).store(chunks)

    @flyc.jit
    def launch(
        a: fx.Pointer,
        b: fx.Pointer,
        bias: fx.Pointer,
        out: fx.Pointer,
        batch_a: fx.Int64,
        batch_b: fx.Int64,
        batch_out: fx.Int64,
        bias_batch: fx.Int64,
        bias_m: fx.Int64,
        bias_n: fx.Int64,
        m: fx.Int32,
        n: fx.Int32,
        k: fx.Int32,
        ld_a: fx.Int32,
        ld_b: fx.Int32,
        ld_out: fx.Int32,
        grid_m: fx.Int32,
        grid_n: fx.Int32,
        batches: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ):
        gemm(
            a,
            b,
            bias,
            out,
            batch_a,
            batch_b,
            batch_out,
            bias_batch,
            bias_m,
            bias_n,
            m,
            n,
            k,
            ld_a,
            ld_b,
            ld_out,
        ).launch(grid=(grid_m, grid_n, batches), block=(config.threads, 1, 1), stream=stream)

    pointers = tuple(flyc.from_c_void_p(element, 0) for _ in range(4))
    return launch, (*pointers, *[fx.Int64(1)] * 6, *[fx.Int32(1)] * 9)
