"""The few best of a row in registers, in FlyDSL: each lane keeps the best of what it has seen, in order.

A lane sorts as many new elements as it keeps (a bitonic network), and merges them into those it keeps: the
better one of the i-th best kept and the i-th worst new, for every i, are the best of both, and bitonic, so
that log2 steps more put them in order. In the end the lanes of a row merge with each other the same way in a
butterfly, after which each of them has the result. There is no LDS, and no wave needs another.
"""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import range_constexpr

from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.topk.host import Shape, host
from flycc.kernels.topk.keys import KeyOrder, key_and_place, pair_of
from flycc.kernels.topk.row import Row, rows_and_results
from flycc.kernels.topk.variant import RegisterVariant


def clean(pairs: list[fx.Uint64]) -> list[fx.Uint64]:
    """A bitonic list, sorted: the largest first."""
    pairs, stride = list(pairs), len(pairs) // 2
    while stride:
        for low in range(len(pairs)):
            if not low & stride:
                one, other = pairs[low], pairs[low + stride]
                larger = one > other
                pairs[low], pairs[low + stride] = larger.select(one, other), larger.select(other, one)
        stride //= 2
    return pairs


def merge(one: list[fx.Uint64], other: list[fx.Uint64]) -> list[fx.Uint64]:
    """The best of two sorted lists, as many as each has, sorted."""
    return clean([(a > b).select(a, b) for a, b in zip(one, reversed(other), strict=True)])


def sort(pairs: list[fx.Uint64]) -> list[fx.Uint64]:
    """The list with the largest first."""
    if len(pairs) == 1:
        return pairs
    half = len(pairs) // 2
    return clean(sort(pairs[:half]) + sort(pairs[half:])[::-1])


def exchanged(pairs: list[fx.Uint64], distance: int) -> list[fx.Uint64]:
    """The list of the lane whose number differs in the bit `distance`."""
    moved = []
    for whole in pairs:
        high, low = fx.Int32(fx.Uint32(whole >> fx.Uint64(32))), fx.Int32(fx.Uint32(whole))
        halves = [fx.Int32(fx.gpu.shuffle_xor(half, distance, WAVE_SIZE)) for half in (high, low)]
        moved.append((fx.Uint64(fx.Uint32(halves[0])) << fx.Uint64(32)) | fx.Uint64(fx.Uint32(halves[1])))
    return moved


def taken(row: Row, start: fx.Int32, variant: RegisterVariant) -> list[list[fx.Uint64]]:
    """What this lane has of a tile, of which its first element is at `start`: sorted lists of `keep`."""
    pairs = []
    for load in range(variant.loads):
        place = start + load * (variant.lanes * variant.vector)
        pairs += [pair_of(key, place + i) for i, key in enumerate(row.keys(place))]
    return [sort(pairs[i : i + variant.keep]) for i in range(0, len(pairs), variant.keep)]


def build(variant: RegisterVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    order = KeyOrder(variant.dtype, variant.largest)
    lanes, keep, vector = variant.lanes, variant.keep, variant.vector

    @flyc.kernel(name=variant.symbol)
    def register(
        x: fx.Pointer,
        places: fx.Pointer,
        shape: Shape,
        values: fx.Pointer,
        indices: fx.Pointer,
        work: fx.Pointer,
    ) -> None:
        thread = fx.thread_idx.x
        first_row = fx.block_idx.x * variant.rows
        rows = fx.min(fx.Int32(variant.rows), shape.rows - first_row)
        row_here = thread // lanes
        # Lanes without a row of their own repeat the last one, and store nothing.
        results = rows_and_results(
            order,
            (x, places, values, indices),
            shape,
            first_row=first_row,
            own_row=fx.min(row_here, rows - 1),
            rows=rows,
            variant=variant,
        )
        # Not methods: FlyDSL takes an object whose method is called in a loop for a value that the loop changes.
        row, store = results.row, results.store
        start = thread % lanes * vector
        best, *others = taken(row, start, variant)
        for other in others:
            best = merge(best, other)
        tiles = fx.Int32(fx.Uint32(row.count + (variant.tile - 1)) // variant.tile)
        for tile in range(fx.Int32(1), tiles, fx.Int32(1)):
            for other in taken(row, start + fx.Int32(tile) * variant.tile, variant):
                best = merge(best, other)
        distance = 1
        while fx.const_expr(distance < lanes):
            best = merge(best, exchanged(best, distance))
            distance = distance * 2

        lane = thread % lanes
        for turn in range_constexpr(0, keep, lanes):
            mine = best[turn]
            for i in range_constexpr(1, min(lanes, keep - turn)):
                mine = (lane == i).select(best[turn + i], mine)
            rank = lane + turn
            key, place = key_and_place(mine)
            store(rank, key, place, (rank < shape.k) & (row_here < rows))

    return host(register, order, variant.threads)
