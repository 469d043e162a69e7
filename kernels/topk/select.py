"""Radix selection in FlyDSL: the k best of a row without sorting the row.

Passes over the keys, from their upper digits down, find the k-th best key: a histogram of the digits among
the keys that agree with the digits found so far, and a parallel scan of its bins from the best digit down,
which also ends the search once a bin holds exactly what is still wanted. One more pass gathers, in the order
of their indices, the elements with better keys and after them the first ones with that key. Nothing depends
on the order in which waves run: atomics only count.
"""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import range_constexpr, rocdl
from flydsl.expr.typing import T

from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.topk.host import Shape, host
from flycc.kernels.topk.keys import KeyOrder, key_and_place, pair_of
from flycc.kernels.topk.row import rows_and_results
from flycc.kernels.topk.variant import SelectVariant
from flycc.kernels.topk.workgroup import (
    block_scan,
    clear_words,
    load_words,
    lower_ones,
    ones,
    uniform,
)


@flyc.jit
def count_digits(bins: Any, keys: Any, shift: Any, prefix: Any, mask: Any, digits: Any) -> None:
    """Counts the digits at `shift` of those keys that agree with `prefix` in the bits of `mask`; bin 0 is for
    the best digit.
    """
    for i in range_constexpr(len(keys)):
        if (keys[i] & mask) == prefix:
            bin = fx.Int32((~keys[i] >> fx.Uint32(shift)) & (digits - 1))
            fx.llvm.atomic_add(
                bins + bin,
                fx.Int32(1),
                ordering=fx.AtomicOrdering.Monotonic,
                syncscope=rocdl.SyncScope.Workgroup,
            )


@flyc.jit
def find_digit(bins: Any, scratch: Any, wanted: Any, thread: Any, variant: Any) -> Any:
    """The digit of the `wanted`-th best of what `bins` counts; how many are better; how many have it.

    Leaves the bins at zero. `scratch` is LDS for 3 int32 and one a wave.
    """
    share = (1 << variant.digit_bits) // variant.threads
    first = thread * share
    counts = load_words(bins + first, share)
    clear_words(bins + first, share)
    own = counts[0]
    for count in counts[1:]:
        own = own + count
    better, _ = block_scan(own, scratch + 3, thread, variant.waves)
    for i in range_constexpr(share):
        if (better < wanted) & (wanted <= better + counts[i]):
            fx.ptr_store(((1 << variant.digit_bits) - 1 - i - first).ir_value(), scratch)
            fx.ptr_store(better.ir_value(), scratch + 1)
            fx.ptr_store(counts[i].ir_value(), scratch + 2)
        better = better + counts[i]
    fx.gpu.barrier()
    return tuple(uniform(fx.ptr_load(scratch + i)) for i in range(3))


@flyc.jit
def sort_pairs(pairs: Any, thread: Any, capacity: Any, threads: Any) -> None:
    """Sorts `capacity` uint64 in LDS, the largest first (Batcher's bitonic sort). Ends with a barrier."""
    size = fx.Int32(2)
    while size <= capacity:
        stride = size >> 1
        while stride > 0:
            for pair in range(thread, fx.Int32(capacity // 2), fx.Int32(threads)):
                number = fx.Int32(pair)
                low = number * 2 - (number & (stride - 1))
                high = low + stride
                one = fx.Uint64(fx.ptr_load(pairs + low))
                other = fx.Uint64(fx.ptr_load(pairs + high))
                falling = (low & size) == 0
                swap = (falling & (one < other)) | (~falling & (one > other))
                if swap:
                    fx.ptr_store(other.ir_value(), pairs + low)
                    fx.ptr_store(one.ir_value(), pairs + high)
            fx.gpu.barrier()
            stride = stride >> 1
        size = size << 1


def build(variant: SelectVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    order = KeyOrder(variant.dtype, variant.largest)
    threads, waves, loads, vector = variant.threads, variant.waves, variant.loads, variant.vector
    digits = 1 << variant.digit_bits
    share = digits // threads
    passes = -(-order.bits // variant.digit_bits)

    @flyc.jit
    def histogram(
        bins: Any, keys: Any, row: Any, tiles: Any, place: Any, shift: Any, prefix: Any, mask: Any
    ) -> None:
        keys_at, count = row.keys, row.count
        if fx.const_expr(variant.resident):
            for j in range_constexpr(loads):
                # Waves wholly beyond the end of the row have nothing to count.
                if uniform(place) + j * (threads * vector) < count:
                    count_digits(bins, keys[j], shift, prefix, mask, digits)
        else:
            for tile in range(tiles):
                start = place + fx.Int32(tile) * variant.tile
                loaded = [keys_at(start + j * (threads * vector)) for j in range(loads)]
                for j in range_constexpr(loads):
                    if uniform(start) + j * (threads * vector) < count:
                        count_digits(bins, loaded[j], shift, prefix, mask, digits)

    @flyc.kernel(name=variant.symbol)
    def select(
        x: fx.Pointer,
        places: fx.Pointer,
        values: fx.Pointer,
        indices: fx.Pointer,
        work: fx.Pointer,
        shape: Shape,
    ) -> None:
        thread = fx.thread_idx.x
        wave = uniform(thread // WAVE_SIZE)
        k = shape.k
        results = rows_and_results(
            order,
            (x, places, values, indices),
            shape,
            first_row=fx.block_idx.x,
            own_row=fx.Int32(0),
            rows=fx.Int32(1),
            variant=variant,
        )
        row = results.row
        tiles = fx.Int32(fx.Uint32(row.count + (variant.tile - 1)) // variant.tile)

        lds = fx.SharedAllocator()
        bins = lds.allocate(fx.Array[fx.Int32, digits, 16]).peek().ptr
        scratch = lds.allocate(fx.Array[fx.Int32, waves + 3, 16]).peek().ptr
        found = lds.allocate(fx.Array[fx.Int32, 2, 16]).peek().ptr
        counts = lds.allocate(fx.Array[fx.Int32, 2 * loads * waves, 16]).peek().ptr
        clear_words(bins + thread * share, share)

        # Bound methods: FlyDSL takes an object whose method is called in a loop for a value that the loop changes.
        keys_at, store_result = row.keys, results.store
        place = thread * vector
        keys = [keys_at(place + j * (threads * vector)) for j in range(loads)] if variant.resident else []

        fx.gpu.barrier()
        prefix, mask, shift, level = fx.Uint32(0), fx.Uint32(0), fx.Int32(32), fx.Int32(0)
        wanted = k
        while level < passes:
            shift = fx.max(shift - variant.digit_bits, fx.Int32(0))
            histogram(bins, keys, row, tiles, place, shift, prefix, mask)
            fx.gpu.barrier()
            digit, better, having = find_digit(bins, scratch, wanted, thread, variant)
            wanted = wanted - better
            prefix = prefix | (fx.Uint32(digit) << fx.Uint32(shift))
            mask = fx.Uint32(0xFFFF_FFFF) << fx.Uint32(shift)
            # What the last bin holds is wanted to the last one: no need to tell its keys apart.
            level = (having == wanted).select(fx.Int32(passes), level + 1)

        if thread == 0:
            fx.ptr_store(fx.Int32(prefix).ir_value(), found)
            fx.ptr_store(fx.Int32(mask).ir_value(), found + 1)
        better_before, equal_before = fx.Int32(0), fx.Int32(0)
        best = k - wanted

        @flyc.jit
        def gather(keys: Any, start: Any, better_before: Any, equal_before: Any, sink: Any) -> Any:
            """Passes the selected ones of a tile to `sink`; returns the counts after the tile."""
            for j in range_constexpr(loads):
                better_here, equal_here = fx.Int32(0), fx.Int32(0)
                for key in keys[j]:
                    better_here = better_here + ones(rocdl.ballot(T.i64, (key & mask) > prefix))
                    equal_here = equal_here + ones(rocdl.ballot(T.i64, (key & mask) == prefix))
                if thread % WAVE_SIZE == 0:
                    fx.ptr_store(better_here.ir_value(), counts + (wave + j * waves))
                    fx.ptr_store(equal_here.ir_value(), counts + (wave + (loads + j) * waves))
            fx.gpu.barrier()
            owner = thread < loads * waves
            entry = owner.select(thread, fx.Int32(0))
            better_own = owner.select(fx.Int32(fx.ptr_load(counts + entry)), fx.Int32(0))
            equal_own = owner.select(fx.Int32(fx.ptr_load(counts + (entry + loads * waves))), fx.Int32(0))
            better_below, better_all = block_scan(better_own, scratch, thread, waves)
            fx.gpu.barrier()
            equal_below, equal_all = block_scan(equal_own, scratch, thread, waves)
            if owner:
                fx.ptr_store(better_below.ir_value(), counts + entry)
                fx.ptr_store(equal_below.ir_value(), counts + (entry + loads * waves))
            fx.gpu.barrier()
            # From memory, so that LLVM makes the comparisons anew: it would keep all ballots from above.
            prefix_again, mask_again = (fx.Uint32(uniform(fx.ptr_load(found + i))) for i in range(2))
            for j in range_constexpr(loads):
                betters = [(key & mask_again) > prefix_again for key in keys[j]]
                equals = [(key & mask_again) == prefix_again for key in keys[j]]
                better_masks = [rocdl.ballot(T.i64, one) for one in betters]
                equal_masks = [rocdl.ballot(T.i64, one) for one in equals]
                anyone = fx.Int64(0)
                for lanes in [*better_masks, *equal_masks]:
                    anyone = anyone | fx.Int64(lanes)
                if anyone != 0:
                    rank = uniform(fx.ptr_load(counts + (wave + j * waves)))
                    rank = rank + better_before + lower_ones(better_masks)
                    tied = uniform(fx.ptr_load(counts + (wave + (loads + j) * waves)))
                    tied = tied + equal_before + lower_ones(equal_masks)
                    for i in range_constexpr(vector):
                        taken = betters[i] | (equals[i] & (tied < wanted))
                        if taken:
                            at = betters[i].select(rank, best + tied)
                            sink(at, keys[j][i], start + (j * threads * vector + i))
                        rank = rank + betters[i].select(fx.Int32(1), fx.Int32(0))
                        tied = tied + equals[i].select(fx.Int32(1), fx.Int32(0))
            return better_before + better_all, equal_before + equal_all

        if fx.const_expr(variant.capacity):
            pairs = lds.allocate(fx.Array[fx.Uint64, variant.capacity, 16]).peek().ptr
            for i in range(thread, fx.Int32(variant.capacity), fx.Int32(threads)):
                fx.ptr_store(fx.Uint64(0).ir_value(), pairs + fx.Int32(i))

            def sink(at: fx.Int32, key: fx.Uint32, at_place: fx.Int32) -> None:
                fx.ptr_store(pair_of(key, at_place).ir_value(), pairs + at)
        else:

            def sink(at: fx.Int32, key: fx.Uint32, at_place: fx.Int32) -> None:
                store_result(at, key, at_place)

        if fx.const_expr(variant.resident):
            better_before, equal_before = gather(keys, place, better_before, equal_before, sink)
        else:
            for tile in range(tiles):
                tile_start = place + fx.Int32(tile) * variant.tile
                loaded = [keys_at(tile_start + j * (threads * vector)) for j in range(loads)]
                better_before, equal_before = gather(loaded, tile_start, better_before, equal_before, sink)
                fx.gpu.barrier()

        if fx.const_expr(variant.capacity):
            fx.gpu.barrier()
            if fx.const_expr(variant.sorted):
                sort_pairs(pairs, thread, variant.capacity, threads)
            for number in range(thread, k, fx.Int32(threads)):
                rank = fx.Int32(number)
                store_result(rank, *key_and_place(fx.Uint64(fx.ptr_load(pairs + rank))))

    return host(select, order, variant.threads)
