"""Modelled times of a Triton grouped product, persistent over offsets on the device: the best of a sweep of tiles."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from flycc.benchmarks.triton_kernels import Compiled, compile_kernel, grouped_product
from flycc.benchmarks.triton_products import carried_on, fastest, traced
from flycc.costmodel import MI350, Prediction
from flycc.emulator.launch import LDS_BYTES
from flycc.emulator.trace import Trace

#: A tile has at most so many times the rows of a mean group, and at least that share of them. A compute unit has no
#: more tiles than that, but of the largest.
TALLEST, LOWEST, MOST_TILES = 2, 4, 8


@dataclass(frozen=True, slots=True)
class Config:
    """A tile of the result, a step along K, waves of a program, steps in flight, and programs for each compute unit."""

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int
    per_cu: int

    def suits(self, rows: tuple[int, ...], n: int, k: int) -> bool:
        mean = sum(rows) / len(rows)
        tiles = sum(-(-of // self.bm) for of in rows) * (n // self.bn)
        return (
            min(256, mean / LOWEST) <= self.bm <= max(16, TALLEST * mean)
            and n % self.bn == k % self.bk == 0
            and (self.bm == self.bn == 256 or tiles <= MOST_TILES * MI350.cus)
        )

    def __str__(self) -> str:
        return f"{self.bm}x{self.bn}x{self.bk} {self.warps} waves {self.stages} stages {self.per_cu} a compute unit"


#: Each tile with the most stages that LDS has room for, up to 3, and with what else fits beside that.
SWEEP = [
    Config(bm, bn, bk, warps, stages, per_cu)
    for bm, bn, bk, warps, stages, per_cu in (
        (16, 64, 128, 4, 3, 1), (16, 64, 128, 4, 3, 2), (32, 64, 128, 4, 3, 1), (32, 64, 128, 4, 3, 2),
        (64, 64, 64, 4, 3, 2), (64, 128, 64, 4, 3, 1), (64, 128, 64, 4, 3, 2), (128, 128, 64, 4, 3, 1),
        (128, 256, 64, 8, 3, 1), (256, 128, 64, 8, 3, 1), (256, 256, 64, 8, 2, 1),
    )
    if per_cu * 2 * stages * (bm + bn) * bk < LDS_BYTES
]  # fmt: skip


def best(rows: tuple[int, ...], n: int, k: int) -> tuple[Config, Prediction]:
    """The fastest, as modelled, of those that suit groups of so many rows."""
    return fastest((config, model(config, rows, n, k)) for config in SWEEP if config.suits(rows, n, k))


def model(config: Config, rows: tuple[int, ...], n: int, k: int) -> Prediction:
    """The modelled launch."""
    m, groups = sum(rows), len(rows)

    def trace(steps: int) -> Trace:
        short = steps * config.bk
        operands = [np.zeros(shape, np.uint16) for shape in ((m, short), (groups, short, n), (m, n))]
        offsets, sizes = np.cumsum(rows, dtype=np.int32), map(np.int32, (groups, n, short))
        grid = (MI350.cus * config.per_cu, 1, 1)
        return traced(_compiled(config), grid, [*operands, offsets, *sizes])

    return carried_on(trace, k // config.bk)


@cache
def _compiled(config: Config) -> Compiled:
    types = dict.fromkeys("abc", "*bf16") | {"offsets": "*i32", "groups": "i32", "n": "i32", "k": "i32"}
    tile = {"BM": config.bm, "BN": config.bn, "BK": config.bk, "PROGRAMS": MI350.cus * config.per_cu}
    return compile_kernel(
        grouped_product,
        types,
        tile,
        config.warps,
        aligned=types.keys() - {"groups"},
        num_stages=config.stages,
        matrix_instr_nonkdim=16,
    )
