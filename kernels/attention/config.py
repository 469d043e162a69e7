"""Configurations of the forward kernels, of heads up to 256 wide and of wider ones, and which one a problem gets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flycc.contracts import Reason
from flycc.contracts.sdpa import MAX_HEAD_DIM, SdpaProblem
from flycc.contracts.sizes import Size
from flycc.kernels.attention.features import BAND_LIMIT
from flycc.kernels.common.machine import COMPUTE_UNITS, LDS_BYTES, MAX_WORK_ITEMS, WAVE_SIZE
from flycc.kernels.common.spec import Launch

#: Head dims that kernels are built for: others are taken as the next one, filled up with zeros.
RUNGS = (32, 64, 96, 128, 160, 192, 256)
#: Queries of a wave: columns of an MFMA's results.
WAVE_QUERIES = 32
#: Tiles of K and of V in LDS: one that is read, two on their way.
STAGES = 3
#: Numbers of heads whose tiles are taken in one order (`order.tile_of`).
TOGETHER = (2, 4, 8, 16)
#: Heads of the kernel for wide ones are padded to multiples of this: of the slices of 64 elements each of two waves has
#: every other one.
_WIDE_STEP = 128
#: Elements of 16 bytes.
_CHUNK = 8
#: Of wider heads the registers of one of eight waves do not hold Q and the sums: four have twice as many each.
_MOST_STAGGERED = 192


@dataclass(frozen=True, slots=True)
class SdpaConfig:
    """`waves` waves of 32 queries each, and tiles of `tile` keys. Dims are rungs.

    With 8 waves the second four are a phase behind the first, on the same four SIMDs.
    """

    head_dim: int
    value_dim: int
    waves: int = 8
    tile: int = 64

    @property
    def threads(self) -> int:
        """Work-items of a workgroup."""
        return self.waves * WAVE_SIZE

    @property
    def queries(self) -> int:
        """Of a workgroup."""
        return self.waves * WAVE_QUERIES

    @property
    def staggered(self) -> bool:
        """Whether the second half of the waves is a phase behind the first."""
        return self.waves == 8

    @property
    def lds_bytes(self) -> int:
        """Of all tiles; the loads of a tile are whole ones of all work-items."""
        loads = sum(-(-self.tile * dim // (self.threads * _CHUNK)) for dim in (self.head_dim, self.value_dim))
        return STAGES * loads * self.threads * 2 * _CHUNK

    def __str__(self) -> str:
        return f"d{self.head_dim}_{self.value_dim}_w{self.waves}t{self.tile}"

    def is_valid(self, problem: SdpaProblem) -> Reason | None:
        """None if this configuration computes `problem`, else why it does not."""
        if reason := check_problem(problem):
            return reason
        for name in ("head_dim", "value_dim"):
            size, most = getattr(problem, name), getattr(self, name)
            if isinstance(size, int) and size > most:
                return Reason("sdpa.config", f"{name} = {size}: configuration {self} takes 1 to {most}")
        if self.lds_bytes > LDS_BYTES:
            return Reason("sdpa.config", f"{self} takes {self.lds_bytes} bytes of LDS, there are {LDS_BYTES}")
        return _check_launch(problem, self)


@dataclass(frozen=True, slots=True)
class WideConfig:
    """Heads of which one is wider than 256: pairs of waves have 32 queries each, and share sums and the head."""

    head_dim: int
    value_dim: int

    @property
    def waves(self) -> int:
        return 8

    @property
    def threads(self) -> int:
        """Work-items of a workgroup."""
        return self.waves * WAVE_SIZE

    @property
    def queries(self) -> int:
        """Of a workgroup."""
        return self.waves // 2 * WAVE_QUERIES

    @property
    def tile(self) -> int:
        """Keys of a tile: rows of an MFMA's results."""
        return WAVE_QUERIES

    def __str__(self) -> str:
        return f"wide{self.head_dim}_{self.value_dim}"

    def is_valid(self, problem: SdpaProblem) -> Reason | None:
        """None if this configuration computes `problem`, else why it does not."""
        if reason := check_problem(problem):
            return reason
        for name in ("head_dim", "value_dim"):
            size, most = getattr(problem, name), getattr(self, name)
            if not (isinstance(size, int) and 1 <= size <= most):
                return Reason("sdpa.config", f"{name} = {size}: configuration {self} takes 1 to {most}")
            if most % _WIDE_STEP or most > MAX_HEAD_DIM:
                sentence = f"multiples of {_WIDE_STEP} up to {MAX_HEAD_DIM} are accepted"
                return Reason("sdpa.config", f"{name} of {self} is {most}: {sentence}")
        return _check_launch(problem, self)


def check_problem(problem: SdpaProblem) -> Reason | None:
    """None if `problem` is one that forward kernels of some configuration compute, else why it is not."""
    if problem.dtype not in ("bf16", "f16"):
        return Reason("sdpa.dtype", f"dtype = {problem.dtype}: the kernels take bf16 and f16")
    for name in ("batch", "heads", "kv_heads", "queries", "keys"):
        size = getattr(problem, name)
        least = 0 if name == "keys" else 1
        if isinstance(size, int) and not least <= size <= BAND_LIMIT:
            return Reason("sdpa.size", f"{name} = {size}: the kernels take {least} to {BAND_LIMIT}")
    heads, kv_heads = problem.heads, problem.kv_heads
    if isinstance(heads, int) and isinstance(kv_heads, int) and heads % kv_heads:
        return Reason("sdpa.heads", f"heads = {heads}: must be a multiple of kv_heads = {kv_heads}")
    return None


def rung(size: Size) -> int | None:
    """The head dim that a kernel for `size` is built for, None if there is none here."""
    if not isinstance(size, int):
        return 128
    return next((rung for rung in RUNGS if 1 <= size <= rung), None)


def choose(problem: SdpaProblem) -> SdpaConfig | WideConfig | Reason:
    """The configuration for `problem`, or why none computes it. Sizes that are not known count as large."""
    head_dim, value_dim = rung(problem.head_dim), rung(problem.value_dim)
    if head_dim is None or value_dim is None:
        dims = problem.head_dim, problem.value_dim
        if not all(isinstance(dim, int) and 1 <= dim <= MAX_HEAD_DIM for dim in dims):
            given = f"head_dim = {dims[0]}, value_dim = {dims[1]}"
            return Reason("sdpa.head-dim", f"{given}: the kernels take 1 to {MAX_HEAD_DIM}")
        wide = WideConfig(*(-(-dim // _WIDE_STEP) * _WIDE_STEP for dim in dims))  # type: ignore[operator]
        return wide.is_valid(problem) or wide
    if head_dim + value_dim > 2 * _MOST_STAGGERED:
        config = SdpaConfig(head_dim, value_dim, 4, 32)
    else:
        config = SdpaConfig(head_dim, value_dim)
        sizes = problem.queries, problem.heads, problem.batch
        if all(isinstance(size, int) for size in sizes) and workgroups(problem, config) < COMPUTE_UNITS:
            config = replace(config, waves=4)
    return config.is_valid(problem) or config


def workgroups(problem: SdpaProblem, config: SdpaConfig | WideConfig) -> int:
    """Of the launch for `problem`; sizes that are not known count as 1."""
    queries, heads, batch = (
        size if isinstance(size, int) else 1 for size in (problem.queries, problem.heads, problem.batch)
    )
    return -(-queries // config.queries) * heads * batch


def launch(problem: SdpaProblem, config: SdpaConfig | WideConfig) -> Launch:
    """Launch geometry for `problem`, whose sizes must all be known. Workgroups are counted along x, those of a head one
    after another.

    Raises ValueError if `config` does not compute `problem`.
    """
    if reason := config.is_valid(problem):
        raise ValueError(str(reason))
    sizes = (problem.batch, problem.heads, problem.queries, problem.keys)
    if not all(isinstance(size, int) for size in sizes):
        raise ValueError(f"launch: every size must be known, got {problem}")
    return Launch((workgroups(problem, config), 1, 1), (config.threads, 1, 1))


def _check_launch(problem: SdpaProblem, config: SdpaConfig | WideConfig) -> Reason | None:
    """None if one launch takes all workgroups, else what says that it does not."""
    count, most = workgroups(problem, config), MAX_WORK_ITEMS // config.threads
    if count <= most:
        return None
    return Reason("sdpa.size", f"{problem}: {count} workgroups of {config}, a launch takes {most}")
