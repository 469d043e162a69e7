"""Radix selection in FlyDSL: the k best of a row without sorting the row.

Passes over the keys, from their upper digits down, find the k-th best key: a histogram of the digits among
the keys that agree with the digits found so far, and a parallel scan of its bins from the best digit down,
which also ends the search once a bin holds exactly what is still wanted. One more pass gathers, in the order
of their indices, the elements with better keys and after them the first ones with that key. Nothing depends
on the order in which waves run: atomics only count.

A row that registers do not hold is taken tile by tile, each together with the k best of those before, which wait
in LDS: so it is read once. Keys below the k-th best so far are never counted, so that later tiles are cheap.
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
from flycc.kernels.topk.keys import KeyOrder, key_and_place, pair_of
from flycc.kernels.topk.row import rows_and_results
from flycc.kernels.topk.variant import SelectVariant
from flycc.kernels.topk.workgroup import block_scan, clear_words, load_words


@flyc.jit
def count_digits(bins: Any, keys: Any, shift: Any, floor: Any, top: Any, digits: Any) -> None:
    """Counts the digits at `shift` of the keys from `floor` to `top`; bin 0 is for the best digit."""
    for i in range_constexpr(len(keys)):
        if keys[i] - floor <= top - floor:
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
    """Sorts `capacity` uint64 in LDS, the largest first (Batcher's bitonic sort). Ends with a barrier.

    At a stride of up to a wave's lanes, a wave compares within blocks of twice its size, always the same ones: from
    there down to a stride of 1 no wave waits for another.
    """
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
            if (stride > WAVE_SIZE) | (stride == 1):
                fx.gpu.barrier()
            rocdl.wave_barrier()
            stride = stride >> 1
        size = size << 1


def build(variant: SelectVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    order = KeyOrder(variant.dtype, variant.largest)
    threads, waves, loads, vector = variant.threads, variant.waves, variant.loads, variant.vector
    digits = 1 << variant.digit_bits
    share = digits // threads
    passes = -(-order.bits // variant.digit_bits)
    in_tiles = variant.reading == "tiles"
    # What a lane chooses among: keys of its share of the best so far, if there is one, and of its loads.
    best_share = max(1, variant.capacity // threads)
    groups = loads + in_tiles

    @flyc.kernel(name=variant.symbol)
    def select(
        x: fx.Pointer,
        places: fx.Pointer,
        shape: Shape,
        values: fx.Pointer,
        indices: fx.Pointer,
        work: fx.Pointer,
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
        # Bound methods: FlyDSL takes an object whose method is called in a loop for a value that the loop changes.
        keys_at, store_result, count = results.row.keys, results.store, results.row.count
        tiles = fx.Int32(fx.Uint32(count + (variant.tile - 1)) // variant.tile)

        lds = fx.SharedAllocator()
        bins = lds.allocate(fx.Array[fx.Int32, digits, 16]).peek().ptr
        scratch = lds.allocate(fx.Array[fx.Int32, waves + 3, 16]).peek().ptr
        found = lds.allocate(fx.Array[fx.Int32, 2, 16]).peek().ptr
        counts = lds.allocate(fx.Array[fx.Int32, 2 * groups * waves, 16]).peek().ptr
        clear_words(bins + thread * share, share)
        pairs = None
        if fx.const_expr(variant.capacity):
            size = variant.capacity * (2 if in_tiles else 1)
            pairs = lds.allocate(fx.Array[fx.Uint64, size, 16]).peek().ptr
            for i in range(thread, fx.Int32(size), fx.Int32(threads)):
                fx.ptr_store(fx.Uint64(0).ir_value(), pairs + fx.Int32(i))

        def best_pair(best: Any, i: int) -> fx.Uint64:
            """Number `i` of this lane's share of the best so far, which are in LDS at `best`."""
            # A lane with no share of its own repeats the last one's.
            at = fx.min(thread * best_share + i, fx.Int32(variant.capacity - 1))
            return fx.Uint64(fx.ptr_load(best + at))

        def best_keys(best: Any) -> list[list[fx.Uint32]]:
            return [[key_and_place(best_pair(best, i))[0] for i in range(best_share)]] if in_tiles else []

        def wanted_of(group: int, i: int, having: Any, condition: Any) -> Any:
            """`condition`, of the key `i` of a group; of the best so far there are `having`."""
            mine = thread * best_share + i < having if in_tiles and group == 0 else None
            return condition if mine is None else condition & mine

        def place_of(group: int, i: int, start: fx.Int32, best: Any) -> fx.Int32:
            """The place in the row of the key `i` of a group."""
            in_row = start + ((group - in_tiles) * threads * vector + i)
            return key_and_place(best_pair(best, i))[1] if in_tiles and group == 0 else in_row

        def load_tile(tile: Any) -> tuple[fx.Int32, list[list[fx.Uint32]]]:
            """Where this lane's share of a tile starts, and its keys."""
            start = thread * vector + fx.Int32(tile) * variant.tile
            return start, [keys_at(start + j * (threads * vector)) for j in range(loads)]

        @flyc.jit
        def count_tile(keys: Any, start: Any, shift: Any, floor: Any, top: Any) -> None:
            for j in range_constexpr(loads):
                # Waves wholly beyond the end of the row have nothing to count.
                if uniform(start) + j * (threads * vector) < count:
                    count_digits(bins, keys[j], shift, floor, top, digits)

        @flyc.jit
        def search(keys: Any, start: Any, best: Any, having: Any, least: Any) -> Any:
            """What tells the k best from the rest, none of them below `least`: the lowest and the highest key of which
            some may be left out, and how many keys from the one to the other are wanted.
            """
            prefix, floor, top = fx.Uint32(0), least, fx.Uint32(0xFFFF_FFFF)
            shift, level, wanted = fx.Int32(32), fx.Int32(0), k
            while level < passes:
                shift = fx.max(shift - variant.digit_bits, fx.Int32(0))
                if fx.const_expr(in_tiles):
                    for i in range_constexpr(best_share):
                        if thread * best_share + i < having:
                            count_digits(bins, best_keys(best)[0][i : i + 1], shift, floor, top, digits)
                if fx.const_expr(variant.reading == "passes"):
                    for tile in range(tiles):
                        tile_start, loaded = load_tile(tile)
                        count_tile(loaded, tile_start, shift, floor, top)
                else:
                    count_tile(keys, start, shift, floor, top)
                fx.gpu.barrier()
                digit, better, same = find_digit(bins, scratch, wanted, thread, variant)
                wanted = wanted - better
                prefix = prefix | (fx.Uint32(digit) << fx.Uint32(shift))
                floor = (prefix > floor).select(prefix, floor)
                top = prefix | ~(fx.Uint32(0xFFFF_FFFF) << fx.Uint32(shift))
                # What the last bin holds is wanted to the last one: no need to tell its keys apart.
                level = (same == wanted).select(fx.Int32(passes), level + 1)
            if thread == 0:
                fx.ptr_store(fx.Int32(floor).ir_value(), found)
                fx.ptr_store(fx.Int32(top).ir_value(), found + 1)
            return floor, top, wanted

        @flyc.jit
        def gather(
            keys: Any,
            start: Any,
            best: Any,
            having: Any,
            floor: Any,
            top: Any,
            wanted: Any,
            before: Any,
            sink: Any,
        ) -> Any:
            """Passes the selected ones of `keys`, with their ranks and places, to `sink`.

            `before` and the result count the keys above `top`, and those from `floor` to `top`, up to here.
            """
            better_before, equal_before = before
            for j in range_constexpr(len(keys)):
                better_here, equal_here = fx.Int32(0), fx.Int32(0)
                for i in range_constexpr(len(keys[j])):
                    better = wanted_of(j, i, having, keys[j][i] > top)
                    equal = wanted_of(j, i, having, keys[j][i] - floor <= top - floor)
                    better_here = better_here + ones(rocdl.ballot(T.i64, better))
                    equal_here = equal_here + ones(rocdl.ballot(T.i64, equal))
                if thread % WAVE_SIZE == 0:
                    fx.ptr_store(better_here.ir_value(), counts + (wave + j * waves))
                    fx.ptr_store(equal_here.ir_value(), counts + (wave + (len(keys) + j) * waves))
            fx.gpu.barrier()
            owner = thread < len(keys) * waves
            entry = owner.select(thread, fx.Int32(0))
            better_own = owner.select(fx.Int32(fx.ptr_load(counts + entry)), fx.Int32(0))
            equal_own = owner.select(fx.Int32(fx.ptr_load(counts + (entry + len(keys) * waves))), fx.Int32(0))
            better_below, better_all = block_scan(better_own, scratch, thread, waves)
            fx.gpu.barrier()
            equal_below, equal_all = block_scan(equal_own, scratch, thread, waves)
            if owner:
                fx.ptr_store(better_below.ir_value(), counts + entry)
                fx.ptr_store(equal_below.ir_value(), counts + (entry + len(keys) * waves))
            fx.gpu.barrier()
            # From memory, so that LLVM makes the comparisons anew: it would keep all ballots from above.
            floor_again, top_again = (fx.Uint32(uniform(fx.ptr_load(found + i))) for i in range(2))
            for j in range_constexpr(len(keys)):
                betters = [wanted_of(j, i, having, key > top_again) for i, key in enumerate(keys[j])]
                equals = [
                    wanted_of(j, i, having, key - floor_again <= top_again - floor_again)
                    for i, key in enumerate(keys[j])
                ]
                better_masks = [rocdl.ballot(T.i64, one) for one in betters]
                equal_masks = [rocdl.ballot(T.i64, one) for one in equals]
                anyone = fx.Int64(0)
                for lanes in [*better_masks, *equal_masks]:
                    anyone = anyone | fx.Int64(lanes)
                if anyone != 0:
                    rank = uniform(fx.ptr_load(counts + (wave + j * waves)))
                    rank = rank + better_before + lower_ones(better_masks)
                    tied = uniform(fx.ptr_load(counts + (wave + (len(keys) + j) * waves)))
                    tied = tied + equal_before + lower_ones(equal_masks)
                    for i in range_constexpr(len(keys[j])):
                        taken = betters[i] | (equals[i] & (tied < wanted))
                        if taken:
                            at = betters[i].select(rank, (k - wanted) + tied)
                            sink(at, keys[j][i], place_of(j, i, start, best))
                        rank = rank + betters[i].select(fx.Int32(1), fx.Int32(0))
                        tied = tied + equals[i].select(fx.Int32(1), fx.Int32(0))
            return better_before + better_all, equal_before + equal_all

        def sink_to(target: Any) -> Any:
            """What takes a selected element to its place among the pairs at `target`."""
            return lambda at, key, place: fx.ptr_store(pair_of(key, place).ir_value(), target + at)

        nothing = (fx.Int32(0), fx.Int32(0))
        sink, result = (store_result, None) if pairs is None else (sink_to(pairs), pairs)
        if fx.const_expr(in_tiles):
            least, having = fx.Uint32(0), fx.Int32(0)
            for tile in range(tiles):
                fx.gpu.barrier()
                # The pairs have two halves, by turns that of the best so far and that of the next.
                half = fx.Int32(tile) % 2 * variant.capacity
                best = pairs + (variant.capacity - half)
                start, loaded = load_tile(tile)
                floor, top, wanted = search(loaded, start, best, having, least)
                keys = best_keys(best) + loaded
                gather(keys, start, best, having, floor, top, wanted, nothing, sink_to(pairs + half))
                least, having = floor, k
            result = pairs + (tiles - 1) % 2 * variant.capacity
        else:
            start, keys = load_tile(0) if variant.reading == "once" else (fx.Int32(0), [])
            fx.gpu.barrier()
            floor, top, wanted = search(keys, start, None, None, fx.Uint32(0))
            if fx.const_expr(variant.reading == "once"):
                gather(keys, start, None, None, floor, top, wanted, nothing, sink)
            else:
                better, equal = nothing
                for tile in range(tiles):
                    tile_start, loaded = load_tile(tile)
                    better, equal = gather(
                        loaded, tile_start, None, None, floor, top, wanted, (better, equal), sink
                    )
                    fx.gpu.barrier()

        if fx.const_expr(variant.capacity):
            fx.gpu.barrier()
            if fx.const_expr(variant.sorted):
                sort_pairs(result, thread, variant.capacity, threads)
            for number in range(thread, k, fx.Int32(threads)):
                rank = fx.Int32(number)
                store_result(rank, *key_and_place(fx.Uint64(fx.ptr_load(result + rank))))

    return host(select, order, variant.threads)
