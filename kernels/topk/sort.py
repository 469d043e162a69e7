"""A stable radix sort of a row by one workgroup, in FlyDSL: for results that are too many for LDS.

Each pass orders by one digit of the keys, from the lowest up, and keeps the order of those that agree in it.
It counts the digits, and then takes the elements a tile at a time, one to a thread: an element goes behind
all with better digits, all of earlier tiles, those of lower waves of its tile, and those of lower lanes.
Between passes keys and places lie in the two halves of `work`, by turns.
"""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import range_constexpr, rocdl
from flydsl.expr.typing import T

from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.common.wave import lower_ones, ones, uniform
from flycc.kernels.topk.host import Shape, host
from flycc.kernels.topk.keys import KeyOrder
from flycc.kernels.topk.row import exact_buffer, rows_and_results
from flycc.kernels.topk.variant import SortVariant
from flycc.kernels.topk.workgroup import block_scan

_DIGIT_BITS = 8
_DIGITS = 1 << _DIGIT_BITS


def peers(digit: fx.Int32, present: Any) -> fx.Int64:
    """The lanes, of those that are `present`, with the same digit."""
    lanes = fx.Int64(rocdl.ballot(T.i64, present))
    for bit in range(_DIGIT_BITS):
        has = ((digit >> bit) & 1) == 1
        having = fx.Int64(rocdl.ballot(T.i64, has))
        lanes = lanes & has.select(having, ~having)
    return lanes


def build(variant: SortVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    order = KeyOrder(variant.dtype, variant.largest)
    threads, waves = variant.threads, variant.waves
    lowest = 32 - order.bits

    @flyc.kernel(name=variant.symbol)
    def sort(
        x: fx.Pointer,
        places: fx.Pointer,
        shape: Shape,
        values: fx.Pointer,
        indices: fx.Pointer,
        work: fx.Pointer,
    ) -> None:
        thread = fx.thread_idx.x
        wave = uniform(thread // WAVE_SIZE)
        results = rows_and_results(
            order,
            (x, places, values, indices),
            shape,
            first_row=fx.block_idx.x,
            own_row=fx.Int32(0),
            rows=fx.Int32(1),
            variant=variant,
        )
        # Bound methods: FlyDSL takes an object whose method is called in a loop for a value that the loop changes.
        keys_at, store_result, n = results.row.keys, results.store, results.row.count
        tiles = fx.Int32(fx.Uint32(n + (threads - 1)) // threads)
        own_work = work + fx.Int64(fx.block_idx.x) * fx.Int64(n) * 4
        planes = [exact_buffer(own_work + fx.Int64(n) * i, fx.Int64(n) * 4) for i in range(4)]

        lds = fx.SharedAllocator()
        bins = lds.allocate(fx.Array[fx.Int32, _DIGITS, 16]).peek().ptr
        counts = lds.allocate(fx.Array[fx.Int32, waves * _DIGITS, 16]).peek().ptr
        totals = lds.allocate(fx.Array[fx.Int32, waves, 16]).peek().ptr

        def word_at(plane: Any, place: fx.Int32) -> fx.Int32:
            return fx.Int32(rocdl.raw_ptr_buffer_load(T.i32, plane, place * 4, fx.Int32(0)))

        def put_word(plane: Any, place: fx.Int32, value: fx.Int32) -> None:
            rocdl.raw_ptr_buffer_store(
                value.ir_value(), plane, (place * 4).ir_value(), fx.Int32(0).ir_value()
            )

        for i in range_constexpr(waves * _DIGITS // threads):
            fx.ptr_store(fx.Int32(0).ir_value(), counts + (thread + i * threads))

        shifts = list(range(lowest, 32, _DIGIT_BITS))
        for number in range_constexpr(len(shifts)):
            source, target = planes[(number + 1) % 2 * 2 :][:2], planes[number % 2 * 2 :][:2]

            def key_at(number: int, source: Any, place: fx.Int32) -> fx.Uint32:
                return fx.Uint32(word_at(source[0], place)) if number else keys_at(place)[0]

            def bin_of(number: int, key: fx.Uint32) -> fx.Int32:
                """The digit, with bin 0 for the best one."""
                return fx.Int32((~key >> fx.Uint32(shifts[number])) & (_DIGITS - 1))

            if thread < _DIGITS:
                fx.ptr_store(fx.Int32(0).ir_value(), bins + thread)
            fx.gpu.barrier()
            for place_index in range(thread, n, fx.Int32(threads)):
                fx.llvm.atomic_add(
                    bins + bin_of(number, key_at(number, source, fx.Int32(place_index))),
                    fx.Int32(1),
                    ordering=fx.AtomicOrdering.Monotonic,
                    syncscope=rocdl.SyncScope.Workgroup,
                )
            fx.gpu.barrier()
            owner = thread < _DIGITS
            own = owner.select(fx.Int32(fx.ptr_load(bins + owner.select(thread, fx.Int32(0)))), fx.Int32(0))
            before, _ = block_scan(own, totals, thread, waves)
            # What the digit's next element goes behind; kept by the thread that has the digit's number.
            running = before
            for tile in range(tiles):
                place = fx.Int32(tile) * threads + thread
                present = place < n
                key = key_at(number, source, place)
                digit = bin_of(number, key)
                lanes = peers(digit, present)
                rank = lower_ones([lanes])
                entry = counts + (wave * _DIGITS + digit)
                leads = present & (rank == 0)
                if leads:
                    fx.ptr_store(ones(lanes).ir_value(), entry)
                fx.gpu.barrier()
                if owner:
                    for above in range_constexpr(waves):
                        having = fx.Int32(fx.ptr_load(counts + (thread + above * _DIGITS)))
                        fx.ptr_store(running.ir_value(), counts + (thread + above * _DIGITS))
                        running = running + having
                fx.gpu.barrier()
                if present:
                    at = rank + fx.Int32(fx.ptr_load(entry))
                    old = word_at(source[1], place) if number else place
                    if fx.const_expr(number == len(shifts) - 1):
                        store_result(at, key, old)
                    else:
                        put_word(target[0], at, fx.Int32(key))
                        put_word(target[1], at, old)
                fx.gpu.barrier()
                for above in range_constexpr(waves * _DIGITS // threads):
                    fx.ptr_store(fx.Int32(0).ir_value(), counts + (thread + above * threads))
                fx.gpu.barrier()

    return host(sort, order, threads)
