"""The RMS norm kernel in FlyDSL: `config.rows` rows a workgroup, all statistics in float32.

A row is read once and kept, in registers or LDS, until its mean square is known; or, where it does not fit,
read twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import rocdl

from flycc.contracts.scaled_gemm import BLOCK_K
from flycc.kernels.common import vectors
from flycc.kernels.common.arguments import numbers, placeholders
from flycc.kernels.common.buffers import checked
from flycc.kernels.common.machine import ACCESS_BYTES, WAVE_SIZE
from flycc.kernels.common.reduce import sum_of_elements, sum_over_threads, tree_sum
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.mx_quantize.block import Block, Rule, word_of_bytes
from flycc.kernels.mx_quantize.config import SHARING
from flycc.kernels.rms_norm.config import ROW_REGISTERS
from flycc.kernels.rms_norm.kernarg import FORWARD
from flycc.kernels.rms_norm.row import Operand, Place, Row
from flycc.kernels.rms_norm.variant import ForwardVariant

if TYPE_CHECKING:
    Numbers = Any
else:
    (Numbers,) = numbers(FORWARD)


class Kept:
    """What a work-item keeps of its row between reading and writing it: registers, then LDS."""

    def __init__(self, lds: fx.Pointer | None, thread: fx.Int32, threads: int, registers: int) -> None:
        self._lds, self._thread, self._threads, self._registers = lds, thread, threads, registers
        self._values: list[fx.Vector] = []
        self._count = 0

    def append(self, values: fx.Vector) -> None:
        if self._count < self._registers:
            self._values.append(values)
        else:
            fx.ptr_store(values.bitcast(fx.Int32).ir_value(), self._place(self._count - self._registers))
        self._count += 1

    def get(self, index: int, element: Any) -> fx.Vector:
        if index < self._registers:
            return self._values[index]
        kind = fx.Vector.make_type(ACCESS_BYTES // 4, fx.Int32)
        loaded = fx.ptr_load(self._place(index - self._registers), result_type=kind)
        return fx.Vector(loaded).bitcast(element)

    def _place(self, index: int) -> fx.Pointer:
        return self._lds + (index * self._threads + self._thread) * (ACCESS_BYTES // 4)


def sum_of_squares(values: list[fx.Vector]) -> fx.Vector:
    """The sum of the squares of `values`, element by element, in float32: a balanced tree."""
    wide = [value.to(fx.Float32) for value in values]
    parts = [a * a for a in wide[::2]]
    for i, b in enumerate(wide[1::2]):
        parts[i] = fx.math.fma(b, b, parts[i])
    return tree_sum(parts)


def inverse_root(value: fx.Float32) -> fx.Float32:
    """1 / sqrt(value), rounded but a little more than once: a Newton step, its residual in twice float32's digits."""
    root = fx.math.rsqrt(value)
    product = value * root
    residual = fx.math.fma(product, root, -1.0) + fx.math.fma(value, root, -product) * root
    # 0 and infinity are their own best approximation, and have a residual of NaN.
    return (residual == residual).select(fx.math.fma(root * -0.5, residual, root), root)


@dataclass(frozen=True)
class QuantizedRows:
    """A workgroup's rows of y in an MX format: `data` and `scales` are of bytes, and `y` is rounded to `out` first."""

    data: Operand
    scales: Operand
    row: Row
    out: Any
    rule: Rule
    wide_scales: bool

    @classmethod
    def of(
        cls, data: fx.Pointer, scales: fx.Pointer, first: fx.Int64, row: Row, variant: ForwardVariant
    ) -> QuantizedRows:
        """From row `first` of each on."""
        assert variant.mx is not None
        rule = Rule(variant.out, variant.mx.format, variant.mx.rounding)
        stored = fx.Int64(fx.Uint32(row.columns) // _elements_of_byte(rule))
        blocks = fx.Int64(fx.Uint32(row.columns) // BLOCK_K)
        return cls(
            Operand.of(data + first * stored, fx.Int8, row, stored),
            Operand.of(scales + first * blocks, fx.Int8, row, blocks),
            row,
            ELEMENTS[variant.out],
            rule,
            variant.mx.wide_scales,
        )

    def store(self, place: Place, values: fx.Vector) -> None:
        """Quantises float32 `values`, of all lanes whose place has a block's other elements."""
        words = vectors.rounded(values, self.out).bitcast(fx.Int32)
        block = Block.of([words[i] for i in range(words.numel)], self.rule)
        codes = fx.Vector.from_elements(block.codes(), fx.Int32)
        each = _elements_of_byte(self.rule)
        byte = fx.Int32(fx.Uint32(place.column) // each)
        vectors.store(
            self.data.buffer, codes, self._offset(self.data, place, byte, True), place.static // each
        )
        thread = self.row.thread
        if self.wide_scales:
            first, scale = thread % (4 * SHARING) == 0, word_of_bytes(block.byte, thread)
        else:
            first, scale = thread % SHARING == 0, block.byte.to(fx.Int8)
        index = fx.Int32(fx.Uint32(place.column) // BLOCK_K)
        offset = self._offset(self.scales, place, index, first).ir_value()
        at = fx.Int32(place.static // BLOCK_K).ir_value()
        rocdl.raw_ptr_buffer_store(scale.ir_value(), self.scales.buffer, offset, at)

    def _offset(self, operand: Operand, place: Place, byte: fx.Int32, stores: Any) -> fx.Int32:
        """Of that byte of the row, if it exists and this lane `stores` it."""
        exists = stores if place.exists is None else place.exists if stores is True else place.exists & stores
        offset = operand.row_offset + byte
        return offset if exists is True else checked(exists, offset)


def _elements_of_byte(rule: Rule) -> int:
    return 2 if rule.format == "e2m1" else 1


@dataclass(frozen=True)
class ForwardRows:
    """A workgroup's rows of all operands; what the variant does not have is never accessed."""

    variant: ForwardVariant
    element: Any
    x: Operand
    residual: Operand
    weight: Operand
    y: Operand | QuantizedRows
    new_residual: Operand

    def read(self, places: list[Place]) -> list[fx.Vector]:
        """x, or x + residual, which is stored too."""
        loaded = [self.x.load(place) for place in places]
        if not self.variant.residual:
            return loaded
        added = [self.residual.load(place) for place in places]
        sums = []
        for place, a, b in zip(places, loaded, added, strict=True):
            sums.append(vectors.rounded(a.to(fx.Float32) + b.to(fx.Float32), self.element))
            self.new_residual.store(place, sums[-1])
        return sums

    def read_again(self, place: Place) -> fx.Vector:
        """What `read` gave, from memory."""
        return (self.new_residual if self.variant.residual else self.x).load(place)

    def write(self, place: Place, h: fx.Vector, rstd: fx.Float32) -> None:
        """Normalises what was read at `place` and stores it."""
        values = h.to(fx.Float32) * rstd
        if self.variant.cast_before_weight:
            values = vectors.rounded(values, self.element).to(fx.Float32)
        if self.variant.weight != "none":
            factor = self.weight.load(place).to(fx.Float32)
            values = values * (factor + 1.0 if self.variant.weight_offset else factor)
        self.y.store(place, values)


def read_step(rows: ForwardRows, row: Row, count: int, first: fx.Int32, total: fx.Vector) -> fx.Vector:
    """`total` + the squares of the work-item's `count` vectors after the row's `first`, all of which exist."""
    return total + sum_of_squares(rows.read(row.vectors(count, first, checked_from=count)))


def write_step(rows: ForwardRows, row: Row, count: int, first: fx.Int32, rstd: fx.Float32) -> None:
    """Normalises what `read_step` read, once more from memory."""
    places = row.vectors(count, first, checked_from=count)
    for place, h in zip(places, [rows.read_again(place) for place in places], strict=True):
        rows.write(place, h, rstd)


def build(variant: ForwardVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    config = variant.config
    element, out = ELEMENTS[variant.dtype], ELEMENTS[variant.out]
    weight_element = ELEMENTS.get(variant.weight, element)
    width = ACCESS_BYTES // vectors.element_bytes(element)
    # Vectors of each operand that are read together: as many as fit into registers beside those kept.
    in_flight = 4 if config.vectors * width <= ROW_REGISTERS else 2

    @flyc.kernel(name=variant.symbol)
    def rms_norm(
        x: fx.Pointer,
        residual: fx.Pointer,
        weight: fx.Pointer,
        shape: Numbers,
        y: fx.Pointer,
        new_residual: fx.Pointer,
        rstd: fx.Pointer,
        scales: fx.Pointer,
    ) -> None:
        columns = shape.columns
        first_row = fx.block_idx.x * config.rows
        thread = fx.thread_idx.x % config.threads
        index = fx.thread_idx.x // config.threads
        exists = None if config.rows == 1 else index < shape.rows - first_row
        head = (first_row + index) & columns & 1 if variant.odd else None
        row = Row(index, columns, thread, config.threads, width, shape.whole, head, exists)
        first, ld = fx.Int64(first_row), fx.Int64(columns)
        rows = ForwardRows(
            variant=variant,
            element=element,
            x=Operand.of(x + first * shape.ld_x, element, row, shape.ld_x),
            residual=Operand.of(residual + first * shape.ld_residual, element, row, shape.ld_residual),
            weight=Operand.of(weight, weight_element, row, None),
            y=(
                Operand.of(y + first * ld, out, row, ld)
                if variant.mx is None
                else QuantizedRows.of(y, scales, first, row, variant)
            ),
            new_residual=Operand.of(new_residual + first * ld, element, row, ld),
        )

        total = fx.Vector.filled(width, 0.0, fx.Float32)
        shared = fx.SharedAllocator()
        scratch, lds = None, None
        if fx.const_expr(config.threads > WAVE_SIZE):
            scratch = shared.allocate(fx.Array[fx.Float32, config.threads, 16]).peek().ptr
        if fx.const_expr(config.lds_vectors > 0):
            words = config.lds_vectors * config.threads * ACCESS_BYTES // 4
            lds = shared.allocate(fx.Array[fx.Int32, words, 16]).peek().ptr
        kept = Kept(lds, thread, config.threads, config.vectors)
        span = config.slots * config.threads
        steps = fx.Int32(fx.Uint32(shape.whole) // (span * width)) if config.stream else fx.Int32(0)
        if fx.const_expr(config.stream):
            for step in range(steps):
                total = read_step(rows, row, config.slots, step * span, total)
        # A configuration that keeps rows is chosen so that only a work-item's last vector may not exist.
        places = row.vectors(config.slots, steps * span, 0 if config.stream else config.slots - 1)
        for group in fx.range_constexpr(0, config.slots, in_flight):
            values = rows.read(places[group : group + in_flight])
            for h in values:
                kept.append(h)
            total = total + sum_of_squares(values)
            rocdl.sched_barrier(0)
        edges = [row.edge()] if variant.edges else []
        kept_edges = rows.read(edges)
        square = sum_of_elements(total)
        if fx.const_expr(variant.edges):
            square = square + sum_of_squares(kept_edges)[0]
        square = sum_over_threads(square, config.threads, thread, scratch)
        scale = inverse_root(square / columns.to(fx.Float32) + shape.eps)

        if fx.const_expr(config.stream):
            for step in range(steps):
                write_step(rows, row, config.slots, step * span, scale)
        for i, place in enumerate(places):
            rows.write(place, kept.get(i, element), scale)
            if fx.const_expr(i % in_flight == in_flight - 1):
                rocdl.sched_barrier(0)
        for place, h in zip(edges, kept_edges, strict=True):
            rows.write(place, h, scale)
        if fx.const_expr(variant.rstd):
            Operand.of(rstd + first, fx.Float32, row, fx.Int64(1)).store(
                Place(fx.Int32(0), 0, 1, row.and_exists(thread == 0)),
                fx.Vector.from_elements([scale], fx.Float32),
            )

    @flyc.jit
    def launch(
        x: fx.Pointer,
        residual: fx.Pointer,
        weight: fx.Pointer,
        shape: Numbers,
        y: fx.Pointer,
        new_residual: fx.Pointer,
        rstd: fx.Pointer,
        scales: fx.Pointer,
        grid: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        rms_norm(x, residual, weight, shape, y, new_residual, rstd, scales).launch(
            grid=(grid, 1, 1), block=(config.block, 1, 1), stream=stream
        )

    elements = dict.fromkeys(("x", "residual", "new_residual"), element)
    elements |= {"weight": weight_element, "y": out if variant.mx is None else fx.Int8, "rstd": fx.Float32}
    elements["scales"] = fx.Int8
    return launch, (*placeholders(FORWARD, elements), fx.Int32(1))
