"""The kernels of the RMS norm gradients, one each, for rows that do not fit into registers.

That of dx reads every row twice. That of the weight gives a work-item the same vector of columns in every
row that its workgroup takes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from flycc.kernels.common.reduce import sum_of_elements, sum_over_threads, tree_sum
from flycc.kernels.rms_norm.gradient import (
    GradientRows,
    Numbers,
    Pointers,
    gradient_row,
    gradient_rows,
    host,
    placeholders,
)
from flycc.kernels.rms_norm.row import Operand, Place
from flycc.kernels.rms_norm.variant import BackwardVariant


def add_products(rows: GradientRows, places: list[Place], total: fx.Float32) -> fx.Float32:
    """`total` + what `places` add to the sum of weighted gradient times normalised x."""
    terms = [(*rows.terms(place), place) for place in places]
    return total + tree_sum([sum_of_elements(rows.weighted(place, grad) * n) for grad, n, place in terms])


def write_dx(rows: GradientRows, places: list[Place], mean: fx.Float32) -> None:
    for grad, normalised, place in [(*rows.terms(place), place) for place in places]:
        rows.write(place, rows.weighted(place, grad), normalised, mean)


def step_places(rows: GradientRows, first: fx.Int32) -> list[Place]:
    """The work-item's vectors of a step that lies wholly inside the row."""
    slots = rows.variant.config.slots
    return rows.row.vectors(slots, first, checked_from=slots)


def build_dx(variant: BackwardVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of dx, a row a workgroup, and placeholder arguments for it."""
    config = variant.config

    @flyc.kernel(name=variant.symbol)
    def rms_norm_dx(
        grad: fx.Pointer,
        x: fx.Pointer,
        weight: fx.Pointer,
        rstd: fx.Pointer,
        dx: fx.Pointer,
        partial: fx.Pointer,
        shape: Numbers,
    ) -> None:
        thread = fx.thread_idx.x
        scratch = fx.SharedAllocator().allocate(fx.Array[fx.Float32, config.threads, 16]).peek().ptr
        row = replace(gradient_row(variant, shape, fx.block_idx.x, 0, thread), exists=None)
        pointers = Pointers(grad, x, weight, rstd, dx)
        rows = gradient_rows(variant, pointers, shape, fx.block_idx.x, row)
        span = config.slots * config.threads
        steps = fx.Int32(fx.Uint32(shape.whole) // (span * row.width))
        rest = row.vectors(config.slots, steps * span)
        if fx.const_expr(variant.edges):
            rest = [*rest, row.edge()]
        total = fx.Float32(0.0)
        for step in range(steps):
            total = add_products(rows, step_places(rows, step * span), total)
        total = add_products(rows, rest, total)
        mean = sum_over_threads(total, config.threads, thread, scratch) / shape.columns.to(fx.Float32)
        for step in range(steps):
            write_dx(rows, step_places(rows, step * span), mean)
        write_dx(rows, rest, mean)

    return host(rms_norm_dx, config.block), (*placeholders(variant), *[fx.Int32(1)] * 2)


def build_dweight(variant: BackwardVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of dweight, and placeholder arguments for it.

    Workgroups along x share out the columns, those along y the rows.
    """
    config = variant.config

    @flyc.kernel(name=variant.symbol)
    def rms_norm_dweight(
        grad: fx.Pointer,
        x: fx.Pointer,
        weight: fx.Pointer,
        rstd: fx.Pointer,
        dx: fx.Pointer,
        partial: fx.Pointer,
        shape: Numbers,
    ) -> None:
        thread = fx.block_idx.x * config.threads + fx.thread_idx.x
        pointers = Pointers(grad, x, weight, rstd, dx)
        own = replace(gradient_row(variant, shape, fx.block_idx.y, 0, thread), exists=None)
        places = [*own.vectors(1), own.edge()] if variant.edges else own.vectors(1)
        sums = [fx.Vector.filled(place.count, 0.0, fx.Float32) for place in places]
        for turn in range(shape.turns):
            row = fx.block_idx.y + turn * shape.groups
            sums = add_row(variant, pointers, shape, row, thread, sums)
        ld = fx.Int64(shape.columns)
        out = Operand.of(partial + fx.Int64(fx.block_idx.y) * ld, fx.Float32, own, ld)
        for place, total in zip(places, sums, strict=True):
            out.store(place, total)

    return host(rms_norm_dweight, config.block), (*placeholders(variant), *[fx.Int32(1)] * 2)


def add_row(
    variant: BackwardVariant,
    pointers: Pointers,
    shape: Any,
    number: fx.Int32,
    thread: fx.Int32,
    sums: list[fx.Vector],
) -> list[fx.Vector]:
    """`sums` + what row `number` adds to the gradient of the weight, if there is such a row."""
    row = gradient_row(variant, shape, number, 0, thread)
    rows = gradient_rows(variant, pointers, shape, number, row)
    places = [*row.vectors(1), row.edge()] if variant.edges else row.vectors(1)
    terms = [rows.terms(place) for place in places]
    return [fx.math.fma(grad, n, total) for (grad, n), total in zip(terms, sums, strict=True)]
