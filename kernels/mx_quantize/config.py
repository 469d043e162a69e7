"""How rows are shared out among work-items, and the rules that choose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar, get_args

from flycc.contracts import Reason
from flycc.contracts.mx import (
    MxDequantizeProblem,
    MxQuantizeProblem,
    ScaleRangeProblem,
    ScaleRounding,
    WideDtype,
)
from flycc.contracts.scaled_gemm import BLOCK_K, ElementFormat
from flycc.kernels.common.machine import ACCESS_BYTES, COMPUTE_UNITS, MAX_GRID_YZ, OFFSET_LIMIT, WAVE_SIZE
from flycc.kernels.common.spec import Launch

#: Work-items of a workgroup.
THREADS = 256
#: Neighbouring elements of a work-item: those of four work-items make a block.
CHUNK = 8
#: Work-items that share a block.
SHARING = BLOCK_K // CHUNK
#: Waves that are asked of every compute unit: all that it has room for.
_WAVES_PER_UNIT = 32
#: Chunks that a work-item reads together, where there are enough for all work-items.
_MOST_VECTORS = 4
WORKGROUPS = COMPUTE_UNITS * _WAVES_PER_UNIT * WAVE_SIZE // THREADS

#: Size of an element in bytes, by its MLIR name.
BYTES: dict[str, int] = {"bf16": 2, "f16": 2, "f32": 4}

Rows = TypeVar("Rows", MxQuantizeProblem, MxDequantizeProblem)


@dataclass(frozen=True, slots=True)
class RowsConfig:
    """`threads` work-items side by side along a row with a chunk each, and as many rows at a time as a workgroup has
    room for, `vectors` times over: so many chunks of a work-item are read together.
    """

    threads: int
    vectors: int

    @property
    def rows(self) -> int:
        """Rows that a workgroup has at a time."""
        return THREADS // self.threads * self.vectors

    @property
    def columns(self) -> int:
        """Elements of a row that a workgroup has."""
        return self.threads * CHUNK

    def __str__(self) -> str:
        return f"t{self.threads}v{self.vectors}"

    def is_valid(self, problem: Rows) -> Reason | None:
        """None if this configuration computes `problem`, else why it does not."""
        if reason := check_problem(problem):
            return reason
        power = self.threads > 0 and self.threads & (self.threads - 1) == 0
        if not power or not SHARING <= self.threads <= THREADS or not 1 <= self.vectors <= 8:
            return Reason(
                f"{area(problem)}.config",
                f"configuration {self}: a row takes a power of two of {SHARING} to {THREADS} work-items, with 1 to 8 "
                "chunks of each in flight",
            )
        return None

    def check_stride(self, problem: Rows, stride: int, size: int) -> Reason | None:
        """None if the kernel reaches every row with this stride in elements of `size` bytes, else why not."""
        most = (OFFSET_LIMIT - 1) // size // self.rows
        if 0 <= stride <= most:
            return None
        return Reason(f"{area(problem)}.stride", f"rows {stride} elements apart: {self} takes 0 to {most}")


@dataclass(frozen=True, slots=True)
class Shares:
    """A launch of a rows kernel: workgroup (x, y) has the columns of strip x, and every `groups`th of the workgroups'
    rows from y on, in `turns`."""

    launch: Launch
    groups: int
    turns: int
    #: Of the problem.
    sizes: Mapping[str, int]

    @property
    def numbers(self) -> dict[str, int]:
        """The kernel's arguments that are the same for all operands, by name."""
        return {**self.sizes, "groups": self.groups, "turns": self.turns}

    @property
    def workgroups(self) -> int:
        return math.prod(self.launch.grid)


def area(problem: MxQuantizeProblem | MxDequantizeProblem) -> str:
    """What the codes of its reasons begin with."""
    return "mx-quantize" if isinstance(problem, MxQuantizeProblem) else "mx-dequantize"


def check_problem(problem: MxQuantizeProblem | MxDequantizeProblem) -> Reason | None:
    """None if there is a kernel for the problem's types and sizes, else why there is not."""
    accepted = {
        "dtype": get_args(WideDtype),
        "format": get_args(ElementFormat),
        "rounding": get_args(ScaleRounding),
    }
    for name, values in accepted.items():
        given = getattr(problem, name, values[0])
        if given not in values:
            return Reason(f"{area(problem)}.dtype", f"{name} = {given}: the kernels take {', '.join(values)}")
    most = OFFSET_LIMIT // (4 * THREADS)
    for name in ("rows", "columns"):
        size = getattr(problem, name)
        if isinstance(size, int) and not 1 <= size <= (OFFSET_LIMIT - 1 if name == "rows" else most):
            return Reason(f"{area(problem)}.size", f"{name} = {size}: the kernels take 1 to {most} columns")
    return None


def flat(problem: Rows) -> Rows:
    """The same of a contiguous matrix, as rows that keep all work-items of a workgroup at work."""
    rows, columns = problem.rows, problem.columns
    if not isinstance(rows, int) or not isinstance(columns, int) or columns % BLOCK_K:
        return problem
    width = BLOCK_K * math.gcd(rows * columns // BLOCK_K, THREADS // SHARING)
    return replace(problem, rows=rows * columns // width, columns=width)


def choose(problem: Rows) -> RowsConfig | Reason:
    """The configuration to run `problem` with, or why none does. Unknown sizes are large ones."""
    columns = problem.columns if isinstance(problem.columns, int) else THREADS * CHUNK
    threads = SHARING
    while threads < THREADS and threads * CHUNK < columns:
        threads *= 2
    at_a_time = THREADS // threads
    rows = problem.rows if isinstance(problem.rows, int) else at_a_time * WORKGROUPS * _MOST_VECTORS
    workgroups = -(-rows // at_a_time) * -(-columns // (threads * CHUNK))
    vectors = _MOST_VECTORS
    while vectors > 1 and workgroups < vectors * WORKGROUPS:
        vectors //= 2
    config = RowsConfig(threads, vectors)
    return config.is_valid(problem) or config


def shares(problem: Rows, config: RowsConfig) -> Shares:
    """The launch for `problem`, whose sizes must all be known: as few workgroups as fill the GPU."""
    if not isinstance(problem.rows, int) or not isinstance(problem.columns, int):
        raise ValueError(f"launch: every size must be known, got {problem}")
    strips = -(-problem.columns // config.columns)
    blocks = -(-problem.rows // config.rows)
    groups = min(blocks, max(1, WORKGROUPS // strips), MAX_GRID_YZ)
    sizes = {"rows": problem.rows, "columns": problem.columns}
    return Shares(Launch((strips, groups, 1), (THREADS, 1, 1)), groups, -(-blocks // groups), sizes)


#: 16-byte vectors of a work-item that `scale_range` reads together.
RANGE_VECTORS = 4


def range_shares(problem: ScaleRangeProblem) -> Shares | Reason:
    """The launch of `scale_range`, whose size must be known, or why there is none."""
    if not isinstance(problem.count, int):
        raise ValueError(f"launch: every size must be known, got {problem}")
    if not 1 <= problem.count < OFFSET_LIMIT:
        return Reason("scale-range.size", f"{problem.count} bytes: the kernel takes 1 to {OFFSET_LIMIT - 1}")
    blocks = -(-(problem.count // ACCESS_BYTES) // (THREADS * RANGE_VECTORS))
    groups = max(1, min(blocks, WORKGROUPS))
    launch = Launch((groups, 1, 1), (THREADS, 1, 1))
    return Shares(launch, groups, -(-blocks // groups), {"count": problem.count})
