"""The kernel of both RMS norm gradients in FlyDSL, for rows that fit into registers.

A workgroup takes `config.rows` rows a turn and reads each once. What makes the gradient of the weight is summed
over its turns in registers: always of the same columns, as all its rows of an odd length start alike.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from flycc.kernels.common.machine import WAVE_SIZE
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
from flycc.kernels.rms_norm.row import Operand, Place, Row
from flycc.kernels.rms_norm.variant import BackwardVariant


def places_of(row: Row, variant: BackwardVariant) -> list[Place]:
    """Everything of the row that the work-item has."""
    config = variant.config
    places = row.vectors(config.slots, 0, checked_from=config.slots - 1)
    return [*places, row.edge()] if variant.edges else places


def one_turn(
    rows: GradientRows, scratch: fx.Pointer | None, thread: fx.Int32, sums: list[fx.Vector]
) -> list[fx.Vector]:
    """Writes dx of the rows; returns `sums` with their share of the gradient of the weight added."""
    config = rows.variant.config
    places = places_of(rows.row, rows.variant)
    terms = [rows.terms(place) for place in places]
    weighted = [rows.weighted(place, grad) for place, (grad, _) in zip(places, terms, strict=True)]
    parts = [sum_of_elements(w * n) for w, (_, n) in zip(weighted, terms, strict=True)]
    mean = sum_over_threads(tree_sum(parts), config.threads, thread, scratch) / rows.row.columns.to(
        fx.Float32
    )
    for place, w, (_, normalised) in zip(places, weighted, terms, strict=True):
        rows.write(place, w, normalised, mean)
    if rows.variant.weight == "none":
        return sums
    return [fx.math.fma(grad, n, total) for (grad, n), total in zip(terms, sums, strict=True)]


def build(variant: BackwardVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    config = variant.config
    weights = variant.weight != "none"

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
        scratch = None
        if fx.const_expr(config.threads > WAVE_SIZE):
            scratch = fx.SharedAllocator().allocate(fx.Array[fx.Float32, 2 * config.threads, 16]).peek().ptr
        own = replace(gradient_row(variant, shape, fx.block_idx.x * config.rows, index, thread), exists=None)
        places = places_of(own, variant)
        sums = [fx.Vector.filled(place.count, 0.0, fx.Float32) for place in places] if weights else []
        for turn in range(shape.turns):
            first_row = (fx.block_idx.x + turn * shape.groups) * config.rows
            # Two scratch areas in turn: a wave may be ahead of another by one barrier, and not by two.
            area = None if scratch is None else scratch + turn % 2 * config.threads
            row = gradient_row(variant, shape, first_row, index, thread)
            sums = one_turn(gradient_rows(variant, pointers, shape, first_row, row), area, thread, sums)
        if fx.const_expr(weights):
            ld = fx.Int64(shape.columns)
            start = partial + fx.Int64(fx.block_idx.x * config.rows) * ld
            out = Operand.of(start, fx.Float32, own, ld)
            for place, total in zip(places, sums, strict=True):
                out.store(place, total)

    return host(rms_norm_backward, config.block), (*placeholders(variant), *[fx.Int32(1)] * 2)
