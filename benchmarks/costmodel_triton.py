"""Like with like: Triton's matrix products, compiled here, emulated in part, modelled; beside Triton's published times.

`flycc bench costmodel` prints it where Triton is installed.

The published kernels were tuned over tiles and stages that nobody lists, so the time modelled is that of the best of
CONFIGS. Nothing in the model was calibrated on these rows, nor on any kernel of Triton's. The shapes' rows beyond M are
computed too, as a tile of 16 does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from flycc.benchmarks.costmodel_data import products
from flycc.costmodel import Interval, Prediction, neighbours, predict
from flycc.emulator import Module, load, run
from flycc.emulator.launch import LDS_BYTES
from flycc.emulator.trace import Trace
from flycc.emulator.trace_recorder import Recorder

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

    def suits(self, m: int, n: int, k: int) -> bool:
        rows = -(-m // self.bm)
        in_flight = 2 * self.stages * (self.bm + self.bn) * self.bk
        fits = (
            in_flight < LDS_BYTES
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


@dataclass(frozen=True, slots=True)
class Row:
    """A shape, the published time and the best modelled one, in us."""

    m: int
    n: int
    k: int
    published_us: float
    modelled_us: Interval
    config: str

    @property
    def ratio(self) -> float:
        return self.modelled_us.typical / self.published_us


@triton.jit
def product(  # type: ignore[no-untyped-def]  # Triton gives the arguments their types
    a, b, c, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """c [m, n] = a [m, k] b [n, k]^T; sizes are multiples of the tile's. Tiles are numbered in groups of rows."""
    number, rows, columns = tl.program_id(0), m // BM, n // BN
    first = number // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    row = first + number % height
    column = number % (GROUP * columns) // height
    depth = tl.arange(0, BK)
    at_row, at_column = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)
    left = a + at_row[:, None] * k + depth[None, :]
    right = b + at_column[None, :] * k + depth[:, None]
    total = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, k, BK):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += BK
        right += BK
    tl.store(c + at_row[:, None] * n + at_column[None, :], total.to(c.dtype.element_ty))


def _compiled(config: Config) -> tuple[Module, Any]:
    """For operands aligned to 16 bytes and below 2 GB, as Triton specialises on what it is called with."""
    constants = {"BM": config.bm, "BN": config.bn, "BK": config.bk, "GROUP": GROUP}
    types = (
        dict.fromkeys("abc", "*bf16") | dict.fromkeys("mnk", "i32") | dict.fromkeys(constants, "constexpr")
    )
    aligned, small = ["tt.divisibility", 16], ["tt.pointer_range", 32]
    hints = {(i,): [aligned, small] if i < 3 else [aligned] for i in range(6)}
    source = ASTSource(product, types, constants, hints)
    options = {"num_warps": config.warps, "num_stages": config.stages, "matrix_instr_nonkdim": 16}
    made = triton.compile(source, target=GPUTarget("hip", "gfx950", 64), options=options)
    return load(made.asm["hsaco"]), made.metadata


def _trace(module: Module, metadata: Any, grid: tuple[int, int, int], m: int, n: int, k: int) -> Trace:
    shapes = ((m, k), (n, k), (m, n))
    args: list[Any] = [np.zeros(shape, np.uint16) for shape in shapes] + [
        np.int32(size) for size in (m, n, k)
    ]
    slots = module.kernels[metadata.name].descriptor.args
    args += [np.uint64(0)] * (sum(not slot.value_kind.startswith("hidden") for slot in slots) - len(args))
    recorder = Recorder()
    run(
        module,
        metadata.name,
        grid,
        (64 * metadata.num_warps, 1, 1),
        args,
        dynamic_lds=metadata.shared,
        workgroups=neighbours(grid),
        observers=(recorder,),
    )
    return recorder.trace()


def model(config: Config, m: int, n: int, k: int) -> Prediction:
    """The modelled launch of a product under a config that suits it."""
    module, metadata = _compiled(config)
    rows = -(-m // config.bm)
    grid = (rows * (n // config.bn), 1, 1)
    steps = min(k // config.bk, STEPS)
    trace = _trace(module, metadata, grid, rows * config.bm, n, steps * config.bk)
    found = predict(trace)
    if steps == k // config.bk:
        return found
    turns = round(max(found.by_loop, key=lambda loop: loop.share).iterations)
    return predict(trace, turns=turns + k // config.bk - steps)


def measure() -> Iterator[Row]:
    """Row after row of the published bf16 products."""
    for row in products():
        if row.key != "gemm/triton/bf16":
            continue
        m, n, k = row.problem.m, row.problem.n, row.problem.k
        best: tuple[Interval, Config] | None = None
        for config in CONFIGS:
            if config.suits(m, n, k):
                time = model(config, m, n, k).time
                if best is None or time.typical < best[0].typical:
                    best = time, config
        assert best is not None, row
        yield Row(m, n, k, row.us, best[0], str(best[1]))


def report(rows: Iterable[Row]) -> dict[str, Any]:
    """The rows and their mean absolute errors, as plain data."""
    found = [{**asdict(row), "ratio": row.ratio} for row in rows]
    many, few = ([r for r in found if (r["m"] >= 256) == large] for large in (True, False))
    errors = {
        name: float(np.mean([abs(r["ratio"] - 1) for r in part]))
        for name, part in (("M >= 256", many), ("M < 256", few))
        if part
    }
    return {"modelled": True, "rows": found, "mean_absolute_error": errors}
