"""Tiles of which several workgroups compute a part along K each, added up in the same launch.

A wave that is done with its part counts itself in, at the tile's counter of waves of its number. All but the last one
to come put their sums into memory and count them done. The last waits until they are (those waves run already, so they
need nothing of it), adds up the parts in the order of K, its own from registers, and has the result: the same bits
whichever comes last. It leaves the counter at zero for the next launch.

Workgroups of a tile run on several XCDs, whose L2s are not coherent. So counters are atomic at the scope of the device
(LLVM's "agent"), with a release fence of that scope between a wave's stores and its count, and an acquire fence between
the count that the last wave waits for and its loads. Partial sums are accessed past L2 (sc1), so that the fences find
little to write back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl.expr import range_constexpr, rocdl

from flycc.kernels.common.buffers import bounded, checked
from flycc.kernels.common.machine import ACCESS_BYTES, WAVE_SIZE
from flycc.kernels.common.wave import uniform
from flycc.kernels.gemm.config import DONE, GemmConfig
from flycc.kernels.gemm.order import Share
from flycc.kernels.gemm.result import Chunk

#: Bit sc1 of an access's cache policy: the scope of the device.
_DEVICE_SCOPE = 16
_VECTOR = 4
#: A wave that waits for others sleeps so long before it looks again, in 64 clk.
_SLEEP = 1
#: While it adds up, a lane has so many vectors in flight, of so many parts each.
_OF_PART, _AT_A_TIME = 8, 2


@dataclass(frozen=True)
class Parts:
    """The parts of one tile, to the workgroup that has part `share.part` of them.

    `sums` is float32 [parts][vectors of a work-item][threads][4] of the tile, `arrived` int32 [waves] of it.
    """

    share: Share
    sums: fx.Pointer
    arrived: fx.Pointer
    thread: fx.Int32
    config: GemmConfig

    @classmethod
    def of(
        cls,
        share: Share,
        batch: fx.Int32,
        sizes: Any,
        partial: fx.Pointer,
        arrived: fx.Pointer,
        thread: fx.Int32,
        config: GemmConfig,
    ) -> Parts:
        """Those of the tile of `share` of product number `batch`."""
        size = fx.Int64(sizes.parts) * config.part_sums
        split = batch * (share.tiles - sizes.whole) + (share.tile - sizes.whole)
        sums = partial + fx.Int64(split) * size
        return cls(share, sums, arrived + (batch * share.tiles + share.tile) * config.waves, thread, config)

    def place(self, part: fx.Int32, vector: int) -> fx.Int32:
        """Byte offset of this work-item's vector in `sums`."""
        of_part = part * (4 * self.config.part_sums)
        return of_part + (self.thread + vector * self.config.threads) * ACCESS_BYTES


@flyc.jit
def combine(parts: Any, chunks: Any, store: Any) -> None:
    """Calls `store` with the sums over all parts of the tile, in the waves that come last of the tile's."""
    vectors = _vectors(chunks)
    lane = parts.thread % WAVE_SIZE
    counter = parts.arrived + uniform(parts.thread // WAVE_SIZE)
    others = parts.share.parts - 1
    before = fx.Int32(0)
    if lane == 0:
        before = _count(counter, 1)
    if (uniform(before) & (DONE - 1)) == others:
        done = fx.Int32(fx.Uint32(uniform(before)) // DONE)
        while done < others:
            rocdl.s_sleep(_SLEEP)
            done = fx.Int32(fx.Uint32(uniform(_counted(counter))) // DONE)
        fx.llvm.memory_fence(syncscope=rocdl.SyncScope.Agent, ordering=fx.AtomicOrdering.Acquire)
        if lane == 0:
            _reset(counter)
        totals = []
        for first in range_constexpr(0, len(vectors), _OF_PART):
            totals += _total(parts, first, vectors[first : first + _OF_PART])
        store(_chunks(chunks, totals))
    else:
        _keep(parts, vectors)
        if lane == 0:
            _count(counter, DONE)


@flyc.jit
def _total(parts: Any, first: Any, own: Any) -> Any:
    """The sums over all parts of those vectors, `own` being this part's, the first of them number `first`."""
    total = [fx.Vector.filled(_VECTOR, 0.0, fx.Float32) for _ in range_constexpr(len(own))]
    for start in range(fx.Int32(0), parts.share.parts, fx.Int32(_AT_A_TIME)):
        total = _add_some(parts, fx.Int32(start), first, own, total)
    return total


def _add_some(
    parts: Parts, start: fx.Int32, first: int, own: list[fx.Vector], total: list[fx.Vector]
) -> list[fx.Vector]:
    """Adds `_AT_A_TIME` parts from `start` on: those beyond the last are zeros."""
    buffer = bounded(parts.sums)
    kind = fx.Vector.make_type(_VECTOR, fx.Float32)
    numbers = [start + i for i in range(_AT_A_TIME)]
    loaded = []
    for part in numbers:
        # This part is not in memory.
        there = (part < parts.share.parts) & (part != parts.share.part)
        offsets = [checked(there, parts.place(part, first + j)) for j in range(len(own))]
        loaded.append([_load(kind, buffer, offset) for offset in offsets])
    for part, others in zip(numbers, loaded, strict=True):
        mine = part == parts.share.part
        total = [_add(*vectors, mine) for vectors in zip(total, own, others, strict=True)]
    return total


def _add(total: fx.Vector, own: fx.Vector, other: fx.Vector, mine: Any) -> fx.Vector:
    addends = [mine.select(own[i], other[i]) for i in range(_VECTOR)]
    return total + fx.Vector.from_elements(addends, fx.Float32)


def _keep(parts: Parts, vectors: list[fx.Vector]) -> None:
    """Puts sums into memory, where all see them before what comes next."""
    buffer, zero = bounded(parts.sums), fx.Int32(0).ir_value()
    for i, vector in enumerate(vectors):
        offset = parts.place(parts.share.part, i).ir_value()
        rocdl.raw_ptr_buffer_store(vector.ir_value(), buffer, offset, zero, aux=_policy())
    fx.llvm.memory_fence(syncscope=rocdl.SyncScope.Agent, ordering=fx.AtomicOrdering.Release)


def _load(kind: Any, buffer: Any, offset: fx.Int32) -> fx.Vector:
    return fx.Vector(rocdl.raw_ptr_buffer_load(kind, buffer, offset, fx.Int32(0), aux=_DEVICE_SCOPE))


def _count(counter: fx.Pointer, what: int) -> fx.Int32:
    """Adds to a counter; returns what it was."""
    return fx.llvm.atomic_add(counter, fx.Int32(what), syncscope=rocdl.SyncScope.Agent)


def _counted(counter: fx.Pointer) -> fx.Int32:
    order = fx.AtomicOrdering.Monotonic
    return fx.llvm.generic_load(counter, dtype=fx.Int32, memory_order=order, syncscope=rocdl.SyncScope.Agent)


def _reset(counter: fx.Pointer) -> None:
    order = fx.AtomicOrdering.Monotonic
    fx.llvm.generic_store(counter, fx.Int32(0), memory_order=order, syncscope=rocdl.SyncScope.Agent)


def _policy() -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), _DEVICE_SCOPE)


def _vectors(chunks: list[Chunk]) -> list[fx.Vector]:
    """The sums of all chunks, four at a time, of which there is a multiple."""
    values = [value for chunk in chunks for value in (*chunk.values, *(chunk.gates or ()))]
    return [
        fx.Vector.from_elements(values[i : i + _VECTOR], fx.Float32) for i in range(0, len(values), _VECTOR)
    ]


def _chunks(like: list[Chunk], vectors: list[fx.Vector]) -> list[Chunk]:
    """Those chunks with other values."""
    values = iter(vector[i] for vector in vectors for i in range(_VECTOR))

    def some(old: list[fx.Float32] | None) -> Any:
        return None if old is None else [next(values) for _ in old]

    return [replace(chunk, values=some(chunk.values), gates=some(chunk.gates)) for chunk in like]
