"""How rows are shared out among work-items, and the rules that choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flycc.contracts import Reason, RmsNormBackwardProblem, RmsNormProblem
from flycc.contracts.scaled_gemm import BLOCK_K
from flycc.kernels.common.machine import (
    ACCESS_BYTES,
    COMPUTE_UNITS,
    MAX_THREADS,
    MAX_WORK_ITEMS,
    OFFSET_LIMIT,
    WAVE_SIZE,
)
from flycc.kernels.common.spec import Launch

#: Size of an element in bytes, by its MLIR name.
BYTES = {"bf16": 2, "f16": 2, "f32": 4}
#: Work-items of a workgroup that has several rows.
GROUP_THREADS = 256
#: Fewest work-items of a row: as many as a row may have elements beyond its 16-byte vectors.
MIN_THREADS = 8
#: Registers of a work-item that may hold its part of a row, as float32, of the 128 that each of 1024 has.
ROW_REGISTERS = 64
#: The same where LDS is full, by the elements of a vector: 16-bit ones take some registers to pack and unpack.
MOST_ROW_REGISTERS = {4: 92, 8: 64}
#: LDS that may hold 16-byte vectors of a row, beside the scratch of the reduction.
ROW_LDS_BYTES = 144 * 1024
#: Columns of a row whose weighted gradients and normalised values fit into a workgroup's registers, if its sums over
#: rows are in LDS; and columns where there is room for those as well.
BACKWARD_COLUMNS = 32 * 1024
BACKWARD_REGISTER_COLUMNS = 24 * 1024
#: Waves that a backward kernel asks of every compute unit.
WAVES_PER_UNIT = 8
#: 16-byte accesses of a work-item in flight at a time, where a row does not fit into registers and LDS.
STREAM_VECTORS = 4

#: The backward kernels: of both gradients (without a weight, of dx), of that of x, of that of the weight.
What = Literal["both", "dx", "dweight"]

Problem = RmsNormProblem | RmsNormBackwardProblem


@dataclass(frozen=True, slots=True)
class RmsNormConfig:
    """How a workgroup of `threads * rows` work-items normalises `rows` rows.

    A row's elements are taken in vectors of 16 bytes of its own type; vector `i * threads + t` is that of
    work-item t, and the row's last elements, too few for a vector, go one each to the first work-items.
    `vectors` is how many a work-item keeps in registers and `lds_vectors` in LDS, from the one time that
    the row is read. With `stream` nothing is kept: the row is read twice, `vectors` at a time. Backward keeps the
    row in registers, and in LDS the sums over rows of its first `lds_vectors` vectors.
    """

    threads: int
    rows: int
    vectors: int
    lds_vectors: int = 0
    stream: bool = False

    @property
    def block(self) -> int:
        """Work-items of a workgroup."""
        return self.threads * self.rows

    @property
    def slots(self) -> int:
        """Vectors of a work-item that are read together."""
        return self.vectors + self.lds_vectors

    def __str__(self) -> str:
        kept = f"v{self.vectors}" + (f"l{self.lds_vectors}" if self.lds_vectors else "")
        return f"t{self.threads}r{self.rows}{kept}" + ("_stream" if self.stream else "")

    def is_valid(self, problem: Problem) -> Reason | None:
        """None if this configuration computes `problem`, else why it does not."""
        if reason := check_problem(problem):
            return reason
        if not self._can_run():
            return Reason(
                "rms-norm.config",
                f"configuration {self}: a row takes a power of two of {MIN_THREADS} to {MAX_THREADS} work-items, a "
                f"workgroup whole waves, at most {MAX_THREADS} work-items, and one row where that has several waves",
            )
        if isinstance(problem.rows, int) and problem.rows > MAX_WORK_ITEMS // self.block * self.rows:
            most = MAX_WORK_ITEMS // self.block * self.rows
            return Reason("rms-norm.size", f"rows = {problem.rows}: configuration {self} takes 1 to {most}")
        if isinstance(problem.columns, int) and not self.stream:
            count = problem.columns * BYTES[problem.dtype] // ACCESS_BYTES
            if not (self.slots - 1) * self.threads < max(count, 1) <= max(self.slots * self.threads, 1):
                return Reason(
                    "rms-norm.config", f"columns = {problem.columns}: configuration {self} is for other sizes"
                )
        return None

    def _can_run(self) -> bool:
        """Whether the kernels are written for such workgroups: a sum over several waves is one over a workgroup."""
        power = self.threads > 0 and self.threads & (self.threads - 1) == 0
        return (
            power
            and self.threads >= MIN_THREADS
            and self.rows >= 1
            and self.block % WAVE_SIZE == 0
            and self.block <= MAX_THREADS
            and (self.rows == 1 or self.threads <= WAVE_SIZE)
            and self.vectors >= 0 <= self.lds_vectors
        )

    def check_strides(self, strides: dict[str, int]) -> Reason | None:
        """None if the kernel reaches every row with these strides (elements, by name), else why not."""
        most = OFFSET_LIMIT // 4 // self.rows
        for name, stride in strides.items():
            # One row a workgroup is reached with 64-bit arithmetic alone.
            if stride < 0 or (self.rows > 1 and stride > most):
                return Reason("rms-norm.stride", f"{name} = {stride}: configuration {self} takes 0 to {most}")
        return None


def check_problem(problem: Problem) -> Reason | None:
    """None if there is a kernel for the problem's types and sizes, else why there is not."""
    for name in ("dtype", "out_dtype"):
        if getattr(problem, name) not in BYTES:
            return Reason(
                "rms-norm.dtype", f"{name} = {getattr(problem, name)}: the kernel takes {', '.join(BYTES)}"
            )
    if problem.weight not in (*BYTES, "none"):
        return Reason(
            "rms-norm.dtype", f"weight of {problem.weight}: the kernel takes {', '.join(BYTES)} and none"
        )
    if isinstance(problem.rows, int) and problem.rows < 1:
        return Reason("rms-norm.size", f"rows = {problem.rows}: must be at least 1")
    most = OFFSET_LIMIT // 4 - 1
    if isinstance(problem.columns, int) and not 1 <= problem.columns <= most:
        return Reason("rms-norm.size", f"columns = {problem.columns}: the kernel takes 1 to {most}")
    if isinstance(problem, RmsNormProblem) and problem.mx is not None:
        return _check_mx(problem)
    return None


def _check_mx(problem: RmsNormProblem) -> Reason | None:
    """None if y can be quantised as it is made: a work-item's vectors are then a quarter of a block each."""
    for name in ("dtype", "out_dtype"):
        if BYTES[getattr(problem, name)] != 2:
            given = f"{name} = {getattr(problem, name)}"
            return Reason(
                "rms-norm.mx", f"{given}: rows that are quantised as they are made are of 16-bit types"
            )
    if isinstance(problem.columns, int) and problem.columns % BLOCK_K:
        return Reason(
            "rms-norm.mx", f"columns = {problem.columns}: blocks are of {BLOCK_K}, none may be short"
        )
    return None


def choose(problem: RmsNormProblem) -> RmsNormConfig | Reason:
    """The configuration to run `problem` with, or why none does.

    A problem whose columns are not known is one that a kernel will be chosen for at run time.
    """
    columns = problem.columns if isinstance(problem.columns, int) else GROUP_THREADS
    if reason := check_problem(problem):
        return reason
    config = _for_row(columns * BYTES[problem.dtype] // ACCESS_BYTES, ACCESS_BYTES // BYTES[problem.dtype])
    return config.is_valid(problem) or config


def _threads_and_slots(count: int) -> tuple[int, int]:
    """Work-items for a row of `count` vectors, and vectors of each: up to four in a wave, more waves, then more."""
    threads = MIN_THREADS
    while threads < MAX_THREADS and count > threads * (4 if threads >= WAVE_SIZE else 1):
        # A row in two waves has no advantage over one in a wave or in a whole workgroup of four.
        threads = GROUP_THREADS if threads == WAVE_SIZE else 2 * threads
    return threads, -(-count // threads)


def _for_row(count: int, width: int) -> RmsNormConfig:
    """For rows of `count` vectors of `width` elements."""
    threads, slots = _threads_and_slots(count)
    in_lds = min(max(0, slots - ROW_REGISTERS // width), ROW_LDS_BYTES // (threads * ACCESS_BYTES))
    if slots - in_lds > MOST_ROW_REGISTERS[width] // width:
        return RmsNormConfig(MAX_THREADS, 1, STREAM_VECTORS, stream=True)
    return RmsNormConfig(threads, max(1, GROUP_THREADS // threads), slots - in_lds, in_lds)


@dataclass(frozen=True, slots=True)
class BackwardStep:
    """A launch of a backward kernel: `groups` workgroups (along y for "dweight") take the rows in `turns`."""

    what: What
    config: RmsNormConfig
    groups: int
    turns: int
    launch: Launch

    @property
    def partial_rows(self) -> int:
        """Rows of the partial sums of the gradient of the weight."""
        return self.groups * self.config.rows


def plan_backward(problem: RmsNormBackwardProblem) -> tuple[BackwardStep, ...] | Reason:
    """The launches that compute `problem`, the last of which makes the partial sums; or why there are none.

    Unknown rows count as one, unknown columns as `choose` counts them.
    """
    if reason := check_problem(problem):
        return reason
    rows = problem.rows if isinstance(problem.rows, int) else 1
    width = ACCESS_BYTES // BYTES[problem.dtype]
    columns = problem.columns if isinstance(problem.columns, int) else GROUP_THREADS
    count = columns // width
    threads, slots = _threads_and_slots(count)
    if threads * slots * width <= BACKWARD_COLUMNS:
        in_lds = slots if threads * slots * width > BACKWARD_REGISTER_COLUMNS else 0
        config = RmsNormConfig(threads, max(1, GROUP_THREADS // threads), slots - in_lds, in_lds)
        steps = [_shared_out("both", config, rows, 1)]
    else:
        config = RmsNormConfig(MAX_THREADS, 1, STREAM_VECTORS, stream=True)
        steps = [BackwardStep("dx", config, rows, 1, Launch((rows, 1, 1), (config.block, 1, 1)))]
        if problem.weight != "none":
            config = RmsNormConfig(GROUP_THREADS, 1, 1, stream=True)
            steps.append(_shared_out("dweight", config, rows, -(-count // GROUP_THREADS)))
    for step in steps:
        if reason := step.config.is_valid(problem):
            return reason
    return tuple(steps)


def _shared_out(what: What, config: RmsNormConfig, rows: int, strips: int) -> BackwardStep:
    """Few enough workgroups that their partial sums are small beside the operands, enough to fill the GPU.

    An even number, unless it is 1: a workgroup's rows then all are even ones, or odd ones.
    """
    blocks = -(-rows // config.rows)
    per_unit = -(-WAVES_PER_UNIT * WAVE_SIZE // config.block)
    groups = min(blocks, max(2, per_unit * COMPUTE_UNITS // strips))
    groups += groups % 2 if groups > 1 else 0
    grid = (groups, 1, 1) if what == "both" else (strips, groups, 1)
    return BackwardStep(what, config, groups, -(-blocks // groups), Launch(grid, (config.block, 1, 1)))


def whole_columns(columns: int, dtype: str) -> int:
    """How many of a row's elements make 16-byte vectors."""
    width = ACCESS_BYTES // BYTES[dtype]
    return columns // width * width
