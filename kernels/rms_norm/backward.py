"""The kernel of both RMS norm gradients in FlyDSL, for rows that fit into registers.

A workgroup takes `config.rows` rows a turn and reads each once. What makes the gradient of the weight is summed
over its turns in registers, or where they end in LDS: always of the same columns, as all its rows of an odd length
start alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import rocdl

from flycc.kernels.common import vectors
from flycc.kernels.common.machine import ACCESS_BYTES, WAVE_SIZE
from flycc.kernels.common.reduce import sum_of_elements, sum_over_threads, tree_sum
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.rms_norm.gradient import (
    GradientRows,
    Numbers,
    Pointers,
    gradient_row,
    gradient_rows,
    host,
    placeholders,
)
from flycc.kernels.rms_norm.row import Operand, Place, Row
from flycc.kernels.rms_norm.variant import BackwardVariant

#: Elements of each operand that a work-item reads together where registers are full.
IN_FLIGHT = 8


def places_of(row: Row, variant: BackwardVariant) -> list[Place]:
    """Everything of the row that the work-item has."""
    config = variant.config
    places = row.vectors(config.slots, 0, checked_from=config.slots - 1)
    return [*places, row.edge()] if variant.edges else places


@dataclass(frozen=True)
class LdsSums:
    """Sums over rows of the first `count` vectors of `width` columns that a work-item has, float32 in LDS."""

    pointer: fx.Pointer | None
    thread: fx.Int32
    threads: int
    count: int
    width: int

    def get(self, index: int) -> fx.Vector:
        kind = fx.Vector.make_type(4, fx.Float32)
        parts = [fx.Vector(fx.ptr_load(place, result_type=kind)) for place in self._places(index)]
        return fx.Vector.from_elements([part[i] for part in parts for i in range(4)], fx.Float32)

    def put(self, index: int, sums: fx.Vector) -> None:
        for number, place in enumerate(self._places(index)):
            part = fx.Vector.from_elements([sums[4 * number + i] for i in range(4)], fx.Float32)
            fx.ptr_store(part.ir_value(), place)

    def _places(self, index: int) -> list[fx.Pointer]:
        """16 bytes each, a work-item's next to its neighbours': no bank conflicts."""
        first = index * self.width // 4
        return [
            self.pointer + ((first + part) * self.threads + self.thread) * 4
            for part in range(self.width // 4)
        ]


def one_turn(
    rows: GradientRows, scratch: fx.Pointer | None, thread: fx.Int32, sums: list[fx.Vector], in_lds: LdsSums
) -> list[fx.Vector]:
    """Writes dx of the rows; adds their share of the gradient of the weight to `in_lds`, and returns `sums` with it."""
    config = rows.variant.config
    places = places_of(rows.row, rows.variant)
    kept, parts, totals = [], [], []
    for i, place in enumerate(places):
        grad, normalised = rows.terms(place)
        weighted = rows.weighted(place, grad)
        kept.append((weighted, normalised))
        parts.append(sum_of_elements(weighted * normalised))
        # Added here and not at the end, so that gradients need no registers while the row is summed.
        if rows.variant.weight != "none":
            if i < in_lds.count:
                in_lds.put(i, fx.math.fma(grad, normalised, in_lds.get(i)))
            else:
                totals.append(fx.math.fma(grad, normalised, sums[i - in_lds.count]))
        if in_lds.count and (i + 1) * in_lds.width % IN_FLIGHT == 0:
            rocdl.sched_barrier(0)
    mean = sum_over_threads(tree_sum(parts), config.threads, thread, scratch) / rows.row.columns.to(
        fx.Float32
    )
    for place, (weighted, normalised) in zip(places, kept, strict=True):
        rows.write(place, weighted, normalised, mean)
    return totals


def build(variant: BackwardVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    config = variant.config
    weights = variant.weight != "none"
    width = ACCESS_BYTES // vectors.element_bytes(ELEMENTS[variant.dtype])

    @flyc.kernel(name=variant.symbol)
    def rms_norm_backward(
        grad: fx.Pointer,
        x: fx.Pointer,
        weight: fx.Pointer,
        rstd: fx.Pointer,
        dx: fx.Pointer,
        partial: fx.Pointer,
        shape: Numbers,
    ) -> None:
        pointers = Pointers(grad, x, weight, rstd, dx)
        thread = fx.thread_idx.x % config.threads
        index = fx.thread_idx.x // config.threads
        scratch, area = None, None
        shared = fx.SharedAllocator()
        if fx.const_expr(config.threads > WAVE_SIZE):
            scratch = shared.allocate(fx.Array[fx.Float32, 2 * config.threads, 16]).peek().ptr
        count = config.lds_vectors if weights else 0
        if fx.const_expr(count > 0):
            area = shared.allocate(fx.Array[fx.Float32, count * config.threads * width, 16]).peek().ptr
        in_lds = LdsSums(area, thread, config.threads, count, width)
        own = replace(gradient_row(variant, shape, fx.block_idx.x * config.rows, index, thread), exists=None)
        places = places_of(own, variant)
        spilled, places = places[:count], places[count:]
        sums = [fx.Vector.filled(place.count, 0.0, fx.Float32) for place in places] if weights else []
        for i in fx.range_constexpr(count):
            in_lds.put(i, fx.Vector.filled(width, 0.0, fx.Float32))
        for turn in range(shape.turns):
            first_row = (fx.block_idx.x + turn * shape.groups) * config.rows
            # Two scratch areas in turn: a wave may be ahead of another by one barrier, and not by two.
            own_scratch = None if scratch is None else scratch + turn % 2 * config.threads
            row = gradient_row(variant, shape, first_row, index, thread)
            rows = gradient_rows(variant, pointers, shape, first_row, row)
            sums = one_turn(rows, own_scratch, thread, sums, in_lds)
        if fx.const_expr(weights):
            ld = fx.Int64(shape.columns)
            start = partial + fx.Int64(fx.block_idx.x * config.rows) * ld
            out = Operand.of(start, fx.Float32, own, ld)
            for place, total in zip(places, sums, strict=True):
                out.store(place, total)
            for i, place in enumerate(spilled):
                out.store(place, in_lds.get(i))

    return host(rms_norm_backward, config.block), (*placeholders(variant), *[fx.Int32(1)] * 2)
