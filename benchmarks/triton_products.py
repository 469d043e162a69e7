"""Modelled times of Triton's matrix products: compiled here for gfx950, emulated in part; the best of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np

from flycc.benchmarks.triton_kernels import Compiled, compile_kernel, product
from flycc.costmodel import Prediction, loop_turns, neighbours, predict
from flycc.emulator import Module, load, run
from flycc.emulator.launch import LDS_BYTES
from flycc.emulator.trace import Trace
from flycc.emulator.trace_recorder import Recorder

T = TypeVar("T")

#: Rows of tiles that share the columns that are worked on: Triton's tutorial takes as many.
GROUP = 8
#: Steps along K that are emulated; the model carries the loop on.
STEPS = 20
#: A tile taller than this many times the shape wastes most of its work, and so does a grid of more tiles than these.
TALLEST, MOST_TILES = 8, 2048


@dataclass(frozen=True, slots=True)
class Config:
    """A tile of the result, a step along K, waves of a workgroup, and steps that are in flight."""

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int

    @property
    def fits(self) -> bool:
        return 2 * self.stages * (self.bm + self.bn) * self.bk < LDS_BYTES

    def suits(self, m: int, n: int, k: int) -> bool:
        rows = -(-m // self.bm)
        fits = (
            self.fits
            and self.bm <= TALLEST * m
            and m <= 16 * TALLEST * self.bm
            and n % self.bn == k % self.bk == 0
        )
        return fits and rows * (n // self.bn) <= MOST_TILES

    def __str__(self) -> str:
        return f"{self.bm}x{self.bn}x{self.bk} {self.warps} waves {self.stages} stages"


CONFIGS = [
    Config(bm, bn, bk, warps, stages)
    for bm, bn, bk, warps in (
        (16, 32, 128, 4), (16, 32, 256, 4), (16, 64, 256, 4), (32, 32, 128, 4), (32, 32, 256, 4), (32, 64, 128, 4),
        (64, 32, 128, 4), (64, 64, 64, 4), (64, 64, 128, 4), (64, 128, 64, 4), (128, 64, 64, 4), (128, 128, 64, 4),
        (256, 128, 64, 8), (256, 256, 64, 8),
    )
    for stages in (2, 3)
]  # fmt: skip
#: Each tile with the most stages that LDS has room for: among them are the fastest of all.
SWEEP = [c for c in CONFIGS if c.fits and not (c.stages == 2 and replace(c, stages=3).fits)]


def best(m: int, n: int, k: int, configs: Iterable[Config] = CONFIGS) -> tuple[Config, Prediction]:
    """The fastest, as modelled, of those that suit."""
    return fastest((config, model(config, m, n, k)) for config in configs if config.suits(m, n, k))


def fastest(found: Iterable[tuple[T, Prediction]]) -> tuple[T, Prediction]:
    """Of configurations and their modelled launches the one of least time."""
    return min(found, key=lambda pair: pair[1].time.typical)


def model(config: Config, m: int, n: int, k: int) -> Prediction:
    """The modelled launch of a product under a config that suits it."""
    rows = -(-m // config.bm)
    m, grid = rows * config.bm, (rows * (n // config.bn), 1, 1)

    def trace(steps: int) -> Trace:
        short = steps * config.bk
        operands = [np.zeros(shape, np.uint16) for shape in ((m, short), (n, short), (m, n))]
        return traced(_compiled(config), grid, [*operands, *map(np.int32, (m, n, short))])

    return carried_on(trace, k // config.bk)


def carried_on(trace: Callable[[int], Trace], steps: int) -> Prediction:
    """The modelled launch of `steps` along K, given the trace of any number of them: of a long K some are emulated, if
    a loop's turns can stand for the others."""
    emulated = trace(min(steps, STEPS))
    if steps <= STEPS:
        return predict(emulated)
    turns = loop_turns(emulated)
    return predict(trace(steps)) if turns is None else predict(emulated, turns=turns + steps - STEPS)


@cache
def _compiled(config: Config) -> Compiled:
    tile = {"BM": config.bm, "BN": config.bn, "BK": config.bk, "GROUP": GROUP}
    types = dict.fromkeys("abc", "*bf16") | dict.fromkeys("mnk", "i32")
    return compile_kernel(
        product, types, tile, config.warps, aligned=types, num_stages=config.stages, matrix_instr_nonkdim=16
    )


def traced(
    compiled: Compiled,
    grid: tuple[int, int, int],
    args: list[Any],
    workgroups: Sequence[tuple[int, int, int]] | None = None,
) -> Trace:
    """What these workgroups of a launch execute, by default the representative ones."""
    recorder = Recorder()
    run(
        _loaded(compiled.elf),
        compiled.name,
        grid,
        (compiled.threads, 1, 1),
        [*args, np.uint64(0), np.uint64(0)],
        dynamic_lds=compiled.lds,
        workgroups=neighbours(grid) if workgroups is None else list(workgroups),
        observers=(recorder,),
    )
    return recorder.trace()


@cache
def _loaded(elf: bytes) -> Module:
    return load(elf)
