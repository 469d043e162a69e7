"""The launches that make attention's gradients, and how each shares out its work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flycc.contracts import Reason
from flycc.contracts.sdpa import SdpaBackwardProblem, SdpaProblem
from flycc.contracts.sizes import Size
from flycc.kernels.attention.features import BAND_LIMIT, Features
from flycc.kernels.common.machine import COMPUTE_UNITS, MAX_WORK_ITEMS, OFFSET_LIMIT, WAVE_SIZE
from flycc.kernels.common.spec import Launch

#: The kernels: of delta, the sums over rows of dO * out; of dK and dV; of dQ.
What = Literal["delta", "dkv", "dq"]

#: Head dims that kernels are built for: others are taken as the next one, filled up with zeros.
RUNGS = (32, 64, 96, 128, 192, 256, 384, 512)
#: The largest that a wave has the rows of two operands and the sums of their gradients for.
WAVE_DIM = 256
#: Rows that an MFMA takes: those of a wave.
WAVE_ROWS = 32
#: Elements between rows, at most: a tile's rows are reached with 32-bit offsets.
MAX_ROW_STRIDE = OFFSET_LIMIT // 2 // 1024

#: Work-items of a workgroup of delta, and vectors of 8 elements that each takes.
_DELTA_THREADS, _DELTA_TURNS = 256, 4


@dataclass(frozen=True, slots=True)
class BackwardConfig:
    """How a kernel shares out its work: `waves` a workgroup, which has `rows` queries (`delta`, `dq`) or keys (`dkv`)
    of one head, and takes the others, keys or queries, in tiles of `tile`. Dims are rungs."""

    what: What
    head_dim: int
    value_dim: int
    waves: int
    rows: int
    tile: int

    @property
    def block(self) -> int:
        """Work-items of a workgroup."""
        return self.waves * WAVE_SIZE

    @property
    def wide(self) -> bool:
        """Whether pairs of waves share 32 of the rows (`wide_backward`)."""
        return self.what != "delta" and self.head_dim > WAVE_DIM

    @property
    def row_lanes(self) -> int:
        """Lanes that share a row of delta, with 8 elements each."""
        return 1 << (self.value_dim // 8 - 1).bit_length()

    def __str__(self) -> str:
        return f"{self.what}_d{self.head_dim}_{self.value_dim}_w{self.waves}r{self.rows}t{self.tile}"


@dataclass(frozen=True, slots=True)
class BackwardStep:
    """A launch of a backward kernel; its workgroups are counted along x, all row tiles of a head one after another."""

    config: BackwardConfig
    launch: Launch

    @property
    def what(self) -> What:
        return self.config.what


def plan_backward(problem: SdpaBackwardProblem) -> tuple[BackwardStep, ...] | Reason:
    """The launches that compute `problem`, in order: delta, which the others read, then dK and dV, then dQ. Or why not.

    Sizes that are not known count as 1, head dims as 128: a plan is made again at run time.
    """
    forward = problem.forward
    if reason := check_problem(forward):
        return reason
    head_dim, value_dim = (rung(size) for size in (forward.head_dim, forward.value_dim))
    assert head_dim is not None
    assert value_dim is not None
    lanes = BackwardConfig("delta", head_dim, value_dim, 1, 1, 1).row_lanes
    rows = _DELTA_THREADS // lanes * _DELTA_TURNS
    configs = (
        BackwardConfig("delta", head_dim, value_dim, _DELTA_THREADS // WAVE_SIZE, rows, rows),
        _resident("dkv", forward, head_dim, value_dim),
        _resident("dq", forward, head_dim, value_dim),
    )
    steps = tuple(BackwardStep(config, _launch(config, forward)) for config in configs)
    for step in steps:
        if step.launch.grid[0] > MAX_WORK_ITEMS // step.config.block:
            sentence = (
                f"{problem}: {step.launch.grid[0]} workgroups of {step.config} are more than a launch takes"
            )
            return Reason("sdpa.size", sentence)
    return steps


def check_problem(problem: SdpaProblem) -> Reason | None:
    """None if there are kernels for the gradients of `problem`, else why there are not."""
    if problem.dtype not in ("bf16", "f16"):
        return Reason("sdpa.dtype", f"dtype = {problem.dtype}: the kernels take bf16 and f16")
    for name in ("batch", "heads", "kv_heads", "queries", "keys"):
        size = getattr(problem, name)
        if isinstance(size, int) and not 1 <= size <= BAND_LIMIT:
            return Reason(
                "sdpa.size", f"{name} = {size}: the kernels of the gradients take 1 to {BAND_LIMIT}"
            )
    for name in ("head_dim", "value_dim"):
        if rung(getattr(problem, name)) is None:
            sentence = (
                f"{name} = {getattr(problem, name)}: the kernels of the gradients take 1 to {RUNGS[-1]}"
            )
            return Reason("sdpa.backward-dim", sentence)
    heads, kv_heads = problem.heads, problem.kv_heads
    if isinstance(heads, int) and isinstance(kv_heads, int) and heads % kv_heads:
        return Reason("sdpa.heads", f"heads = {heads}: must be a multiple of kv_heads = {kv_heads}")
    return None


def rung(size: Size) -> int | None:
    """The head dim that a kernel for `size` is built for, None if there is none."""
    if not isinstance(size, int):
        return 128
    return next((rung for rung in RUNGS if 1 <= size <= rung), None)


def _resident(what: What, problem: SdpaProblem, head_dim: int, value_dim: int) -> BackwardConfig:
    """Of dK and dV, or of dQ: 8 waves of a workgroup; 4 where these need all registers of a SIMD each, or where 8 leave
    compute units without a workgroup. Pairs of waves have the same dim for heads and values."""
    dim = max(head_dim, value_dim)
    if dim > WAVE_DIM:
        return BackwardConfig(what, dim, dim, 4, 2 * WAVE_ROWS, WAVE_ROWS)
    config = BackwardConfig(what, head_dim, value_dim, 8, 8 * WAVE_ROWS, _tile(what, head_dim, value_dim))
    features = Features.of(problem)
    # What scores take beside products takes registers, too; of dK/dV of wide heads even the band does.
    plain = features.linear and not features.hides and not features.dropout
    if what == "dkv":
        plain = features == Features() or head_dim + value_dim <= 192
    if plain and max(head_dim, value_dim) <= 128 and _launch(config, problem).grid[0] >= COMPUTE_UNITS:
        return config
    return BackwardConfig(what, head_dim, value_dim, 4, 4 * WAVE_ROWS, config.tile)


def _tile(what: What, head_dim: int, value_dim: int) -> int:
    return 32 if what == "dkv" or max(head_dim, value_dim) > 128 else 64


def _launch(config: BackwardConfig, problem: SdpaProblem) -> Launch:
    of_keys = config.what == "dkv"
    rows, heads, batch = (
        size if isinstance(size, int) else 1
        for size in (
            problem.keys if of_keys else problem.queries,
            problem.kv_heads if of_keys else problem.heads,
            problem.batch,
        )
    )
    return Launch((-(-rows // config.rows) * heads * batch, 1, 1), (config.block, 1, 1))
