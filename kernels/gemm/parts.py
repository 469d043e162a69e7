"""The main loop over tiles of which LDS holds two, refilled part by part.

A *part* is 64 rows of each wave of A, or all of B. As soon as all waves have read a part of a step's tiles, the same
part of the tiles after next is on its way to its place: loads are in flight all the time, though two tiles fill LDS.

A step is a row of *turns*, two for each part of A, in which a wave multiplies one of two slices along K of its rows by
all of its columns; or, where a step has but one slice, one half of its rows. There are two ways to have what a turn
multiplies in time:

    staggered   two groups of four waves, one of each on every SIMD, are a barrier apart: one reads while the other
                multiplies
    ahead       a wave reads the next turn's operands while it multiplies; it may be alone on its SIMD, with all of
                the SIMD's 512 registers
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import flydsl.expr as fx
from flydsl.expr import rocdl

from flycc.kernels.gemm.config import FRAGMENT, MAX_LOADS, MFMA_MN, PART_ROWS, GemmConfig
from flycc.kernels.gemm.mfma import Fragment
from flycc.kernels.gemm.pipeline import Pipeline, meet

#: Turns of each part.
TURNS = 2
#: MFMA blocks along M of a part.
_BLOCKS = PART_ROWS // MFMA_MN
#: The group of loads beside those of tiles.
_BESIDE = -1


@dataclass(frozen=True)
class Plan:
    """In which turn which part is loaded, and which loads may be on their way when one is needed.

    Loads are issued in groups: number 0 and 1 are halves of B, the others the parts of A. `loads_a` and `loads_b` are
    those of a wave for a tile. Number -1 is what a step takes `beside` its tiles.
    """

    parts: int
    loads_a: int
    loads_b: int
    staggered: bool
    beside: int = 0

    @classmethod
    def of(cls, config: GemmConfig, beside: int = 0) -> Plan:
        parts = config.parts
        loads_a, loads_b = (
            rows * config.tile_k // FRAGMENT // config.threads for rows in (config.tile_m, config.tile_n)
        )
        return cls(parts, loads_a, loads_b, config.schedule == "staggered", beside)

    @property
    def turns(self) -> int:
        return self.parts * TURNS

    def slot(self, group: int) -> int:
        """The turn, counted from the first one of step t - 2, in which the group's loads for step t are issued.

        The place of part p of A is free after the turn in which the last of it is read: if staggered the part's last,
        or, ahead, the one before; B's as that of part 0. What is beside a step's tiles is asked for a step before.
        """
        if group == _BESIDE:
            return self.turns
        return (TURNS if self.staggered else TURNS - 1) + group * self.turns // (self.parts + 2)

    def issued_in(self, turn: int) -> Iterator[tuple[int, int]]:
        """(step, group) of the loads of a turn, the step counted from the one that the turn is in."""
        for group in range(_BESIDE, self.parts + 2):
            if self.slot(group) % self.turns == turn:
                yield 2 - self.slot(group) // self.turns, group

    def before(self, turn: int) -> Iterator[tuple[int, int]]:
        """(tile, group) of all loads before that turn of step 0, in order."""
        order = [(t, g) for t in (0, 1, 2) for g in range(_BESIDE, self.parts + 2)]
        return (at for at in sorted(order, key=self._time) if self._time(at)[0] < turn)

    def in_flight(self, turn: int, tile: int, group: int) -> int:
        """Loads issued after those of that group and tile, before that turn of step 0."""
        later = [at for at in self.before(turn) if self._time(at) > self._time((tile, group))]
        return sum(self.size(group) for _, group in later)

    def size(self, group: int) -> int:
        if group == _BESIDE:
            return self.beside
        return self.loads_b // 2 if group < 2 else self.loads_a // self.parts

    def _time(self, at: tuple[int, int]) -> tuple[int, int]:
        tile, group = at
        return (tile - 2) * self.turns + self.slot(group), group


@dataclass(frozen=True)
class Parts:
    """The two tiles of each operand as one wave sees them."""

    pipeline: Pipeline
    plan: Plan

    @classmethod
    def of(cls, pipeline: Pipeline, config: GemmConfig) -> Parts:
        return cls(pipeline, Plan.of(config, pipeline.mfma.loads))

    @property
    def blocks(self) -> int:
        """MFMA blocks along M of a turn."""
        return _BLOCKS * self.pipeline.slices // TURNS

    def at(self, turn: int) -> tuple[int, int]:
        """The first of a turn's MFMA blocks along M, and its slice along K: turns of a part take its slices, or, if
        there is but one, halves of its rows."""
        part, number = divmod(turn, TURNS)
        row, slice_k = divmod(number, self.pipeline.slices)
        return part * _BLOCKS + row * self.blocks, slice_k

    def start(self) -> list[fx.Int32]:
        """Loads what is on its way before the first turn, and waits for what that reads; returns what the first step
        takes beside its tiles."""
        beside = []
        for tile, group in self.plan.before(0):
            if group == _BESIDE:
                beside = self.pipeline.beside(fx.Int32(tile))
            else:
                self._load(fx.Int32(tile), group)
        meet(self.plan.in_flight(0, 0, 2))
        return beside

    def first(self) -> list[list[Fragment]]:
        """What the first turn multiplies."""
        return [self.read_a(fx.Int32(0), 0), self.read_b(fx.Int32(0), 0)]

    def needed(self, turn: int, before: int) -> int:
        """Loads that may be on their way when the parts that are first read after `turn` must have come."""
        part = turn // TURNS + 1
        if turn % TURNS < TURNS - 1:
            return MAX_LOADS
        if part < self.plan.parts:
            return self.plan.in_flight(before, 0, 2 + part)
        return self.plan.in_flight(before, 1, 2)

    def load_in(self, step: fx.Int32, turn: int) -> int:
        """Starts the loads of a turn, but for those beside tiles; how many those are."""
        started = [at for at in self.plan.issued_in(turn) if at[1] != _BESIDE]
        for tile, group in started:
            self._load(step + tile, group)
        return sum(self.plan.size(group) for _, group in started)

    def _load(self, step: fx.Int32, group: int) -> None:
        if group < 2:
            ring = self.pipeline.b
            chosen = list(range(ring.loads))[group * ring.loads // 2 :][: ring.loads // 2]
        else:
            ring = self.pipeline.a
            rows = self.plan.parts * PART_ROWS
            chosen = [i for i in range(ring.loads) if ring.first_row(i) % rows // PART_ROWS == group - 2]
        for load in ring.aim(step, self.pipeline.k, chosen):
            load.start()

    def read_a(self, step: fx.Int32, turn: int) -> list[Fragment]:
        block, slice_k = self.at(turn)
        first = self.pipeline.first[0] + block * MFMA_MN
        return self.pipeline.of_operand(0, step, slice_k, first, self.blocks)

    def read_b(self, step: fx.Int32, slice_k: int) -> list[Fragment]:
        return self.pipeline.of_operand(1, step, slice_k, self.pipeline.first[1], self.pipeline.blocks[1])

    def multiply(
        self, turn: int, a: list[Fragment], b: list[Fragment], beside: list[fx.Int32], acc: list[fx.Vector]
    ) -> list[fx.Vector]:
        """acc[n][m] += b[n] a[m] for the blocks m of a turn's part."""
        block, slice_k = self.at(turn)
        places = [n * self.pipeline.blocks[0] + block + m for n in range(len(b)) for m in range(self.blocks)]
        some = [acc[place] for place in places]
        sums = self.pipeline.mfma.multiply(a, b, some, beside, slice_k, block)
        updated = dict(zip(places, sums, strict=True))
        return [updated.get(place, total) for place, total in enumerate(acc)]


def staggered_step(
    parts: Parts, step: fx.Int32, beside: list[fx.Int32], acc: list[fx.Vector]
) -> tuple[list[fx.Int32], list[fx.Vector]]:
    """Adds the products of the tiles of `step`, of which registers have what it takes `beside` them; returns that of
    the next step, too."""
    of_b = []
    following = parts.pipeline.beside(step + 1)
    for turn in range(parts.plan.turns):
        slice_k = parts.at(turn)[1]
        of_a = parts.read_a(step, turn)
        if turn < parts.pipeline.slices:
            rocdl.sched_barrier(0)
            of_b.append(parts.read_b(step, slice_k))
        # The first turn reads most: half of B comes while the other is multiplied, two turns before it is refilled.
        of_fragment = parts.pipeline.b.reads * parts.pipeline.mfma.pieces[1]
        reading = len(of_b[0]) * of_fragment // 2 if turn == 0 else 0
        parts.load_in(step, turn)
        meet(parts.needed(turn, turn + 1), reading)
        rocdl.s_setprio(1)
        acc = parts.multiply(turn, of_a, of_b[slice_k], beside, acc)
        rocdl.s_setprio(0)
        rocdl.sched_barrier(0)
        rocdl.s_barrier()
        rocdl.sched_barrier(0)
    return following, acc


def ahead_step(
    parts: Parts,
    step: fx.Int32,
    first: list[list[Fragment]],
    beside: list[fx.Int32],
    acc: list[fx.Vector],
) -> tuple[list[list[Fragment]], list[fx.Int32], list[fx.Vector]]:
    """Adds the products of the tiles of `step`, of which the `first` turn's fragments, and what it takes `beside` them,
    are in registers; returns those of the next step, too. After the last step those are zeros, as all that lies beyond
    the end of K."""
    of_a, *of_b = first
    following_beside = parts.pipeline.beside(step + 1)
    for turn in range(parts.plan.turns):
        slice_k = parts.at(turn)[1]
        if turn % TURNS == TURNS - 1:  # other parts are read from now on
            meet(parts.needed(turn, turn))
        else:
            rocdl.sched_barrier(0)
        loads = parts.load_in(step, turn)
        reads = parts.blocks
        following_b = []
        if turn < parts.pipeline.slices - 1:
            of_b.append(parts.read_b(step, turn + 1))
            reads += len(of_b[0])
        if turn == parts.plan.turns - 1:
            following_b.append(parts.read_b(step + 1, 0))
            reads += len(of_b[0])
            following_a = parts.read_a(step + 1, 0)
        else:
            following_a = parts.read_a(step, turn + 1)
        acc = parts.multiply(turn, of_a, of_b[slice_k], beside, acc)
        _spread(reads * parts.pipeline.a.reads, loads, parts.blocks * len(of_b[0]))
        of_a = following_a
    return [of_a, *following_b], following_beside, acc


def _spread(reads: int, loads: int, products: int) -> None:
    """Reads come early, loads all over the MFMAs of a turn."""
    early = products // 2
    for i in range(products):
        rocdl.sched_mfma(1)
        if i < early and (count := reads * (i + 1) // early - reads * i // early):
            rocdl.sched_dsrd(count)
        if count := loads * (i + 1) // products - loads * i // products:
            rocdl.sched_vmem(count)
