"""Few queries and many keys: the configurations of the kernel that shares out the keys, and its launches' sizes.

Queries of all heads that see one head of K and V, `group` heads of `queries` each, are rows: row r is query r // group
of head r % group of the group. A workgroup takes a tile of them, if possible of all, and a share of the keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flycc.contracts import Reason
from flycc.contracts.sdpa import MAX_HEAD_DIM, SdpaProblem
from flycc.contracts.sizes import Size
from flycc.kernels.common.machine import COMPUTE_UNITS, LDS_BYTES, MAX_GRID_YZ, OFFSET_LIMIT, WAVE_SIZE

#: Elements of a head that kernels are compiled for: what is beyond a head's own reads as zero.
DIMS = (32, 64, 96, 128, 192, 256, 384, 512)
#: Rows of an MFMA tile, and keys of one along which p and V are multiplied.
MFMA_ROWS = 16
MFMA_KEYS = 32
#: Float32 numbers that a row has in memory or LDS beside its sums: the highest score, the sum of p, and two of padding.
ROW_STATISTICS = 4
#: Waves that put the shares of a row together where rows are few, else one does; each lane has a share.
_COMBINE_WAVES, _FEW_ROWS = 4, 2048
#: The most workgroups that share the keys of a tile.
MAX_SPLITS = _COMBINE_WAVES * WAVE_SIZE
#: The most rows of a tile; rows times elements of Q, and of a value: what lanes have registers for, and LDS of sums.
_MOST_ROWS, _MOST_QUERIES, _MOST_SUMS = 64, 16384, 8192
#: Elements of a head of K and of V of which a lane has room for both, and of which two waves of a SIMD have.
_MOST_AHEAD, _MOST_OF_TWO = 512, 256
#: Waves of a workgroup, and of one that has all keys of a tile.
_WAVES, _WAVES_OF_ALL = 4, 8
#: Bytes of K and V that a wave has on the way.
_STEP_BYTES = 16 * 1024
#: Workgroups that a compute unit is to have: two where both find room in LDS.
_PER_UNIT = 2
#: The fewest steps of a wave that are worth a workgroup.
_LEAST_STEPS = 2


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """`head` and `value` are elements (`DIMS`) of Q, K and of V, `rows` those of a tile; `tiled`: there are several.

    Each of `waves` takes every `waves`-th step of `step` keys. With `split` workgroups leave sums in memory, else one
    has all keys and makes the result.
    """

    head: int
    value: int
    rows: int
    step: int
    waves: int = _WAVES
    split: bool = True
    tiled: bool = False

    @property
    def threads(self) -> int:
        return self.waves * WAVE_SIZE

    @property
    def turn(self) -> int:
        """Keys that the waves take together."""
        return self.waves * self.step

    @property
    def lds_bytes(self) -> int:
        """Of the waves' sums."""
        return 4 * self.waves * self.rows * self.row_floats

    @property
    def ahead(self) -> bool:
        """Whether a lane has room for a step's keys and its values."""
        return self.head + self.value <= _MOST_AHEAD

    @property
    def row_floats(self) -> int:
        """Float32 numbers of a row's sums and statistics."""
        return self.value + ROW_STATISTICS

    def __str__(self) -> str:
        return (
            f"d{self.head}_{self.value}_r{self.rows}_s{self.step}_w{self.waves}"
            + "_split" * self.split
            + "_tiled" * self.tiled
        )

    def is_valid(self, problem: SdpaProblem) -> Reason | None:
        """None if this configuration computes `problem`, else why it does not."""
        if problem.dropout:
            return Reason("sdpa.decode", "dropout: kernels that share out keys have none")
        for name, size, most in (
            ("head_dim", problem.head_dim, self.head),
            ("value_dim", problem.value_dim, self.value),
        ):
            if not isinstance(size, int) or not 1 <= size <= most:
                return Reason("sdpa.decode", f"{name} = {size}: configuration {self} takes 1 to {most}")
        count = rows(problem)
        if count is None or (count > self.rows and not self.tiled):
            given = "an unknown number of" if count is None else str(count)
            return Reason(
                "sdpa.decode", f"{given} queries of a head of K: configuration {self} takes {self.rows}"
            )
        for name, size in (("batch", problem.batch), ("kv_heads", problem.kv_heads)):
            if isinstance(size, int) and size > MAX_GRID_YZ:
                return Reason("sdpa.decode", f"{name} = {size}: must be at most {MAX_GRID_YZ}")
        heads = problem.heads if isinstance(problem.heads, int) else 1
        queries = problem.queries if isinstance(problem.queries, int) else 1
        if heads * queries * self.row_floats * 4 >= OFFSET_LIMIT:
            sentence = f"{heads} heads of {queries} queries: offsets of their sums are below {OFFSET_LIMIT}"
            return Reason("sdpa.decode", sentence)
        return None


@dataclass(frozen=True, slots=True)
class Keys:
    """Which keys workgroups take: number s those from `first` + s * `share` on, before `end`."""

    first: int
    end: int
    share: int

    @property
    def splits(self) -> int:
        return max(1, -(-(self.end - self.first) // self.share))


def rows(problem: SdpaProblem) -> int | None:
    """Queries of all heads that see one head of K, if that is known."""
    sizes = problem.queries, problem.heads, problem.kv_heads
    if not all(isinstance(size, int) for size in sizes):
        return None
    queries, heads, kv_heads = (int(size) for size in sizes)
    return queries * (heads // kv_heads) if kv_heads else 0


def dim(size: Size) -> int | None:
    """The elements that a kernel for heads of `size` has."""
    return next((dim for dim in DIMS if isinstance(size, int) and size <= dim), None)


def choose_decode(problem: SdpaProblem) -> DecodeConfig | Reason:
    """The configuration that shares out the keys of `problem`, or why none does.

    It is the same for all numbers of keys from some on, and where that is not known.
    """
    head, value, count = dim(problem.head_dim), dim(problem.value_dim), rows(problem)
    if head is None or value is None:
        given = f"head_dim = {problem.head_dim}, value_dim = {problem.value_dim}"
        return Reason("sdpa.head-dim", f"{given}: kernels take 1 to {MAX_HEAD_DIM}")
    fitting = (size // MFMA_ROWS * MFMA_ROWS for size in (_MOST_QUERIES // head, _MOST_SUMS // value))
    most = min(_MOST_ROWS, *fitting)
    of_tile = min(most, max(1, -(-(count or 1) // MFMA_ROWS)) * MFMA_ROWS)
    step = MFMA_KEYS
    while 2 * step * 2 * (head + value) <= _STEP_BYTES:
        step *= 2
    config = DecodeConfig(head, value, of_tile, step, tiled=(count or 0) > of_tile)
    if reason := config.is_valid(problem):
        return reason
    few = isinstance(problem.keys, int) and problem.keys <= _LEAST_STEPS * config.turn
    if few or _wanted(problem, config) == 1:
        fits = of_tile == MFMA_ROWS and head + value <= _MOST_OF_TWO
        return replace(config, split=False, waves=_WAVES_OF_ALL if fits else _WAVES)
    return config


def tiles(problem: SdpaProblem, config: DecodeConfig) -> int:
    """Tiles of the rows of a head of K and V, whose number is known."""
    return max(1, -(-(rows(problem) or 0) // config.rows))


def combine_waves(problem: SdpaProblem, config: DecodeConfig) -> int:
    """Waves that put the shares of a row together."""
    batch, kv_heads = (size if isinstance(size, int) else 1 for size in (problem.batch, problem.kv_heads))
    many = batch * kv_heads * (rows(problem) or 0) >= _FEW_ROWS
    return 1 if many and _wanted(problem, config) <= WAVE_SIZE else _COMBINE_WAVES


def share_out(
    problem: SdpaProblem, config: DecodeConfig, lower: int | None = None, upper: int | None = None
) -> Keys:
    """The keys that some query of `problem` sees, whose sizes are known, by workgroups."""
    queries, keys = (size if isinstance(size, int) else 0 for size in (problem.queries, problem.keys))
    first = 0 if lower is None else min(max(0, lower), keys) // MFMA_KEYS * MFMA_KEYS
    end = keys if upper is None else max(0, min(keys, queries + upper))
    turns = max(1, -(-max(0, end - first) // config.turn))
    splits = 1
    if config.split:
        splits = min(_wanted(problem, config), MAX_SPLITS, max(1, turns // _LEAST_STEPS))
    return Keys(first, end, -(-turns // splits) * config.turn)


def _wanted(problem: SdpaProblem, config: DecodeConfig) -> int:
    """Shares of the keys that make workgroups enough; sizes that are not known count as 1."""
    batch, kv_heads = (size if isinstance(size, int) else 1 for size in (problem.batch, problem.kv_heads))
    each = max(1, batch * kv_heads * tiles(problem, config))
    return -(-min(_PER_UNIT, LDS_BYTES // config.lds_bytes) * COMPUTE_UNITS // each)
