"""The main loop over tiles that asynchronous loads bring to LDS.

In a step along K a wave multiplies slice after slice of the tiles, and reads the next slice meanwhile. Before it
multiplies the last one, all waves meet: these tiles are in registers now, so that their places in the rings are filled
again, and the next step's tiles must have come. Loads further ahead stay in flight: the wait counts them.
"""

from __future__ import annotations

from dataclasses import dataclass

import flydsl.expr as fx
from flydsl.expr import rocdl

from flycc.kernels.gemm.config import MFMA_MN, GemmConfig
from flycc.kernels.gemm.mfma import Fragment, Mfma
from flycc.kernels.gemm.operand import Lane, Operand
from flycc.kernels.gemm.ring import Load, Ring, RingAlongK, RingAlongRows


@dataclass(frozen=True)
class Pipeline:
    """The rings of both operands as one wave sees them.

    `first` are its first rows in the tiles of A and B, `blocks` its MFMA blocks along them. K ends at element `k`. The
    ring of A is at least as long as that of B, so of the tiles loaded at a time B's is needed sooner and comes first.
    """

    mfma: Mfma
    a: Ring
    b: Ring
    first: tuple[fx.Int32, fx.Int32]
    blocks: tuple[int, int]
    k: fx.Int32

    @classmethod
    def of(
        cls,
        mfma: Mfma,
        config: GemmConfig,
        a: Operand,
        b: Operand,
        lane: Lane,
        wave: fx.Int32,
        first: tuple[fx.Int32, fx.Int32],
        lds: fx.Pointer,
        k: fx.Int32,
    ) -> Pipeline:
        """The rings lie in LDS from `lds` on, `config.lds_bytes` in all."""
        lds_b = lds + config.stages_m * config.tile_m * config.tile_k
        kinds = [RingAlongK if operand.along_k else RingAlongRows for operand in (a, b)]
        ring_a = kinds[0](a, lds, config.tile_m, config.stages_m, config, lane, wave)
        ring_b = kinds[1](b, lds_b, config.tile_n, config.stages_n, config, lane, wave)
        blocks = config.tile_m // config.waves_m // MFMA_MN, config.tile_n // config.waves_n // MFMA_MN
        return cls(mfma, ring_a, ring_b, first, blocks, k)

    def start(self) -> None:
        """Fills the rings and waits for their first tiles."""
        for step in range(-self.a.stages, 0):
            for ring in (self.b, self.a):
                if step + ring.stages >= 0:
                    _start(ring.aim(fx.Int32(step + ring.stages), self.k))
        meet(self._after(self.b.stages - 1))

    def advance(self, step: fx.Int32) -> None:
        """Waits for the tiles of the next step, and for all waves to have read those of `step`; fills their places.

        What the next step takes beside its tiles has been asked for in this step.
        """
        loads = [load for ring in (self.b, self.a) for load in ring.aim(step + ring.stages, self.k)]
        meet(self._after(self.b.stages - 2) + self.mfma.loads)
        _start(loads)

    def finish(self) -> None:
        """Waits until nothing is on its way to LDS."""
        meet(0)

    @property
    def slices(self) -> int:
        """Slices of a step."""
        return self.a.config.tile_k // self.mfma.slice_k

    def beside(self, step: fx.Int32) -> list[fx.Int32]:
        """What multiplying the tiles of `step` takes beside them."""
        first = step * self.a.config.tile_k
        return self.mfma.beside(first, self.k - first)

    def fragments(self, step: fx.Int32, slice_k: int) -> list[list[Fragment]]:
        """This wave's fragments of A and of B in a slice of the tiles of `step`."""
        return [
            self.of_operand(i, step, slice_k, first, blocks)
            for i, (first, blocks) in enumerate(zip(self.first, self.blocks, strict=True))
        ]

    def of_operand(
        self, operand: int, step: fx.Int32, slice_k: int, first: fx.Int32, blocks: int
    ) -> list[Fragment]:
        """The fragments of `blocks` MFMA blocks of A (0) or B (1), from row `first` of its tile on."""
        ring = (self.a, self.b)[operand]
        return self.mfma.slice_of(operand, slice_k, lambda piece: ring.fragments(step, piece, first, blocks))

    def _after(self, tiles: int) -> int:
        """Loads that a wave issues after those of some step's tiles, when `tiles` later ones of B have been filled."""
        with_b = self.a.loads if self.a.stages > self.b.stages else 0
        return with_b + tiles * (self.a.loads + self.b.loads)


def step_through(
    pipeline: Pipeline,
    step: fx.Int32,
    first: list[list[Fragment]],
    beside: list[fx.Int32],
    acc: list[fx.Vector],
) -> tuple[list[list[Fragment]], list[fx.Int32], list[fx.Vector]]:
    """Multiplies the tiles of `step`, whose `first` fragments, and what it takes `beside` them, are in registers;
    returns those of the next step too.

    After the last step those are zeros, as all that lies beyond the end of K.
    """
    slices = pipeline.slices
    fragments = first
    following_beside = pipeline.beside(step + 1)
    for following_slice in range(1, slices + 1):
        last = following_slice == slices
        if last:
            pipeline.advance(step)
            following = pipeline.fragments(step + 1, 0)
        else:
            following = pipeline.fragments(step, following_slice)
        of_a, of_b = fragments
        acc = pipeline.mfma.multiply(of_a, of_b, acc, beside, following_slice - 1)
        _schedule(pipeline, loads=last)
        fragments = following
    return fragments, following_beside, acc


def _schedule(pipeline: Pipeline, loads: bool) -> None:
    """Reads spread over the MFMAs, and loads, if there are any: B's first, for it is needed sooner.

    A's come late, so that they are not in the way of those of B that other waves issue.
    """
    blocks_a, blocks_b = pipeline.blocks
    pieces_a, pieces_b = pipeline.mfma.pieces
    reads = blocks_a * pieces_a * pipeline.a.reads + blocks_b * pieces_b * pipeline.b.reads
    products = blocks_a * blocks_b
    late = pipeline.a.loads if loads else 0
    if loads:
        rocdl.sched_vmem(pipeline.b.loads)
    for i in range(reads):
        rocdl.sched_dsrd(1)
        rocdl.sched_mfma(products * (i + 1) // reads - products * i // reads)
        if count := late * (i + 1) // reads - late * i // reads:
            rocdl.sched_vmem(count)


def _start(loads: list[Load]) -> None:
    for load in loads:
        load.start()


def meet(loads: int, reads: int = 0) -> None:
    """All waves meet when each has read what it asked of LDS, but for the latest `reads`, and has at most `loads` loads
    on their way."""
    rocdl.sched_barrier(0)
    rocdl.s_waitcnt(vmcnt=loads, lgkmcnt=reads)
    rocdl.s_barrier()
    rocdl.sched_barrier(0)
