"""Tile configurations of the GEMM family and the rules that choose among them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from flycc.contracts import GemmProblem, Reason
from flycc.contracts.gemm import Activation
from flycc.contracts.sizes import Size
from flycc.kernels.common.machine import (
    ACCESS_BYTES,
    COMPUTE_UNITS,
    LDS_BYTES,
    MAX_GRID_YZ,
    MAX_THREADS,
    MAX_WORK_ITEMS,
    OFFSET_LIMIT,
    SIMDS,
    WAVE_SIZE,
)

MFMA_MN = 16  # v_mfma_f32_16x16x32: rows and columns of one result block
MFMA_K = 32
FRAGMENT = 8  # elements along K that a lane feeds to one MFMA
ELEMENT_BYTES = 2
#: LDS rows are padded by 16 bytes, so that 16 lanes reading 16 bytes of 16 rows meet all 64 banks once.
LDS_PAD = 8
#: The same for rows of float32 partial sums.
SUM_PAD = 4
MAX_K = 1 << 30
#: Elements along K of a ring's tile: whole lines of memory, and free of bank conflicts in LDS.
RING_TILE_K = (64, 128)
#: Rows of a block of a ring's tile, if the operand is contiguous along rows: a line of memory.
RING_ROWS = 64
#: A counter's lower half counts a tile's waves that have come, its upper half those whose sums are in memory.
DONE = 1 << 16
#: Elements of a line of memory.
LINE_ELEMENTS = 64
#: Rows up to which each wave loads operands for itself.
_DECODE_ROWS = 32
#: Steps along K of a part.
LEAST_STEPS = 2
#: Bytes that a compute unit gets from L2 in the time in which it gets one from memory, if all do.
_FARTHER = 2.5
#: Those that it could get while a workgroup starts and ends, while one checks a step, and while one adds up parts.
_WORKGROUP_BYTES, _PARTIAL_BYTES, _PARTS_BYTES = 40_000, 10_000, 50_000
#: Parts of K: a counter has 16 bits, and no problem so few tiles.
MAX_SPLITS = 256
#: Rows of a wave that are one part of its tile of A.
PART_ROWS = 64
#: Sums of a lane beside which there are registers for any epilogue, of the 256 of one of two waves.
_SPARING_SUMS = 128
#: Loads in flight of a wave that s_waitcnt can count.
MAX_LOADS = 63

DTYPES = ("bf16", "f16")
OUT_BYTES = {"bf16": 2, "f16": 2, "f32": 4}


def out_bytes(problem: GemmProblem) -> int:
    """Bytes of a result."""
    return OUT_BYTES[problem.epilogue.out_dtype or problem.dtype]


def product_columns(problem: GemmProblem) -> Size:
    """Columns of products that a problem takes: N, or twice as many where each result is made of two."""
    return problem.n * 2 if problem.epilogue.gated and isinstance(problem.n, int) else problem.n


Schedule = Literal["steps", "staggered", "ahead"]


@dataclass(frozen=True, slots=True)
class GemmConfig:
    """How one workgroup computes `tile_m` x `tile_n` of the result, `tile_k * waves_k` of K at a time.

    `waves_m * waves_n * waves_k` waves share the workgroup's tile; the `waves_k` waves of one result block
    each take their own `tile_k` of every step along K and are added up through LDS at the end. `staged`
    says that both operand tiles go through LDS (double buffered, the next one loaded while this one is
    multiplied); otherwise each wave loads MFMA operands straight from memory, which suits weights that
    are read once. With `stages_m` and `stages_n` the tiles of A and B go to rings of so many in LDS, without
    registers between; that takes operands aligned to 16 bytes. `schedule` says how rings are refilled and read: by
    whole "steps", or, rings of two, part by part, the waves "staggered" or reading "ahead" (see `parts.py`).

    With `splits` a tile's K is divided among so many workgroups, or as many as there are steps along K; with `tail`
    only that of the tiles that would make up a last round in which compute units are idle.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    waves_m: int = 1
    waves_n: int = 1
    waves_k: int = 1
    staged: bool = True
    stages_m: int = 0
    stages_n: int = 0
    splits: int = 1
    tail: bool = False
    schedule: Schedule = "steps"

    @property
    def split(self) -> bool:
        """Whether several workgroups may share a tile."""
        return self.splits > 1

    @property
    def parts(self) -> int:
        """Parts of the tile of A, if it is not refilled by whole steps."""
        return self.tile_m // self.waves_m // PART_ROWS

    @property
    def ring(self) -> bool:
        """Whether asynchronous loads fill rings of tiles in LDS."""
        return self.stages_m > 0

    @property
    def waves(self) -> int:
        return self.waves_m * self.waves_n * self.waves_k

    @property
    def threads(self) -> int:
        return self.waves * WAVE_SIZE

    @property
    def part_sums(self) -> int:
        """float32 sums of one part of a tile in memory: four at least for each work-item."""
        return max(self.tile_m * self.tile_n, 4 * self.threads)

    @property
    def sums(self) -> int:
        """float32 sums of a lane."""
        return self.tile_m * self.tile_n // (self.waves_m * self.waves_n * WAVE_SIZE)

    @property
    def step_k(self) -> int:
        """Elements of K that one turn of the main loop covers."""
        return self.tile_k * self.waves_k

    @property
    def lds_bytes(self) -> int:
        if self.ring:
            rows = self.stages_m * self.tile_m + self.stages_n * self.tile_n
            return rows * self.tile_k * ELEMENT_BYTES
        if self.staged:
            rows = self.tile_m + self.tile_n
            return 2 * rows * (self.tile_k + LDS_PAD) * ELEMENT_BYTES
        return 4 * self.tile_m * (self.tile_n + SUM_PAD) * self.waves_k if self.waves_k > 1 else 0

    @property
    def ring_loads(self) -> int:
        """Loads that a wave has in flight at most: all of its share of the rings."""
        return self.lds_bytes // (self.threads * ACCESS_BYTES)

    @property
    def max_stride(self) -> int:
        """Largest stride (elements) along one dimension of a tile; an offset is made of two of them.

        Of operands, output and bias alike. It keeps offsets inside a tile below `OFFSET_LIMIT`.
        """
        return OFFSET_LIMIT // ELEMENT_BYTES // 2 // max(self.tile_m, self.tile_n, self.step_k)

    def check_strides(self, strides: Mapping[str, int]) -> Reason | None:
        """None if the kernel reaches everything with these strides (elements, by name), else why not.

        Strides between matrices of a batch need no check: they are only ever multiplied in 64 bits.
        """
        for name, stride in strides.items():
            if not 0 <= stride <= self.max_stride:
                return Reason(
                    "gemm.stride", f"{name} = {stride}: configuration {self} takes 0 to {self.max_stride}"
                )
        return None

    def __str__(self) -> str:
        way = f"ring{self.stages_m}{self.stages_n}" if self.ring else "lds" if self.staged else "direct"
        if self.schedule != "steps":
            way = self.schedule
        waves = f"{self.waves_m}x{self.waves_n}x{self.waves_k}"
        split = f"_{'tail' if self.tail else 'split'}{self.splits}" if self.split else ""
        return f"{self.tile_m}x{self.tile_n}x{self.tile_k}_w{waves}_{way}{split}"

    def is_valid(self, problem: GemmProblem) -> Reason | None:
        """None if this configuration computes `problem`, else why it does not."""
        return (
            _check_problem(problem)
            or self._check_tiling()
            or (self._check_gated(problem) if problem.epilogue.gated else None)
            or self._check_sizes(problem)
            or (self._check_ring(problem) if self.ring else None)
            or (self._check_registers(problem) if self.sums > _SPARING_SUMS else None)
        )

    def _check_registers(self, problem: GemmProblem) -> Reason | None:
        """Beside so many sums there are registers for little else: what else is known to spill is not taken."""
        epilogue, addends = problem.epilogue, []
        if problem.bias:
            addends.append(problem.align_bias)
        if epilogue.residual:
            addends.append(problem.align_residual)
        if self.split:
            what = "a product whose K is in parts"
        elif len(addends) > 1:
            what = "a bias and a residual"
        elif addends and addends[0] < ACCESS_BYTES:
            what = f"an addend aligned to {addends[0]} bytes"
        elif epilogue.preactivation + epilogue.residual + (epilogue.out_dtype == "f32") > 1:
            what = "more than one of a pre-activation, a residual and results in float32"
        else:
            return None
        return Reason("gemm.registers", f"{self} has {self.sums} sums a lane, so it would spill with {what}")

    def _check_ring(self, problem: GemmProblem) -> Reason | None:
        operands = (
            ("a", problem.align_a, "m" if problem.trans_a else "k", self.tile_m if problem.trans_a else None),
            ("b", problem.align_b, "k" if problem.trans_b else "n", None if problem.trans_b else self.tile_n),
        )
        for name, align, along, rows in operands:
            size = getattr(problem, along)
            if align < ACCESS_BYTES:
                sentence = f"align_{name} = {align}: configuration {self} takes {ACCESS_BYTES} bytes"
                return Reason("gemm.align", sentence)
            if not isinstance(size, int) or size % FRAGMENT:
                sentence = (
                    f"{along} = {size}, along which {name} is contiguous: configuration {self} takes known"
                )
                return Reason("gemm.size", f"{sentence} multiples of {FRAGMENT}")
            waves = self.waves_m if name == "a" else self.waves_n * (1 + problem.epilogue.gated)
            of_wave = None if rows is None else rows // waves
            if rows and self.threads * FRAGMENT > RING_ROWS * self.tile_k:
                sentence = (
                    f"{name} is contiguous along its rows: a load of all {self.threads} threads brings more"
                )
                return Reason("gemm.layout", f"{self}: {sentence} than {RING_ROWS} rows of a tile")
            if rows and of_wave and (rows % RING_ROWS or (of_wave % RING_ROWS and RING_ROWS % of_wave)):
                sentence = f"{name} is contiguous along its tile's {rows} rows: configuration {self} takes"
                return Reason(
                    "gemm.layout", f"{sentence} multiples of {RING_ROWS}, which waves share out evenly"
                )
        return None

    def _check_gated(self, problem: GemmProblem) -> Reason | None:
        def bad(sentence: str) -> Reason:
            return Reason("gemm.gated", f"{self}: {sentence}")

        half = self.tile_n // 2
        if self.tile_n // self.waves_n % (2 * MFMA_MN):
            return bad(f"a gated product takes blocks of {MFMA_MN} columns in pairs, those of a wave too")
        if self.ring:
            if half * self.tile_k // FRAGMENT % self.threads:
                return bad(f"{half} x tile_k do not divide into 16-byte chunks for {self.threads} threads")
            if not problem.trans_b and half % RING_ROWS:
                sentence = f"b is contiguous along its tile's {half} rows: multiples of {RING_ROWS} are taken"
                return bad(sentence)
        elif self.staged and (self.threads % half or half * self.tile_k // FRAGMENT % self.threads):
            return bad(f"{half} x tile_k do not divide into 16-byte chunks for {self.threads} threads")
        return None

    def _check_tiling(self) -> Reason | None:
        def bad(sentence: str) -> Reason:
            return Reason("gemm.config", f"{self}: {sentence}")

        sizes = (self.tile_m, self.tile_n, self.tile_k, self.waves_m, self.waves_n, self.waves_k)
        if min(sizes) < 1:
            return bad("every tile size and wave count must be at least 1")
        if self.tile_m % (MFMA_MN * self.waves_m) or self.tile_n % (MFMA_MN * self.waves_n):
            return bad(f"tile_m and tile_n must be multiples of {MFMA_MN} times their wave counts")
        if not 1 <= self.splits <= MAX_SPLITS or (self.tail and not self.split):
            return bad(f"splits must be 1 to {MAX_SPLITS}, and more than 1 for the tail to be split")
        if self.tile_k % MFMA_K:
            return bad(f"tile_k must be a multiple of {MFMA_K}")
        if self.threads > MAX_THREADS:
            return bad(f"{self.threads} work-items in a workgroup, at most {MAX_THREADS} are possible")
        if self.lds_bytes > LDS_BYTES:
            return bad(f"needs {self.lds_bytes} bytes of LDS, a workgroup has {LDS_BYTES}")
        if (self.stages_m, self.stages_n) != (0, 0):
            if not self.staged or not self.stages_m >= self.stages_n >= 2:
                return bad("rings are staged, of at least 2 tiles, and that of A is not the shorter one")
            if self.tile_k not in RING_TILE_K:
                return bad(f"tiles of a ring have a tile_k of {' or '.join(map(str, RING_TILE_K))}")
            if self.ring_loads > MAX_LOADS:
                return bad(
                    f"a wave has {self.ring_loads} loads in flight, at most {MAX_LOADS} can be counted"
                )
        if self.schedule != "steps" and (reason := self._check_parts()):
            return bad(reason)
        if self.staged:
            if self.waves_k != 1:
                return bad("K cannot be split over waves when tiles are staged in LDS")
            for name, rows in (("tile_m", self.tile_m), ("tile_n", self.tile_n)):
                chunks = self.tile_k // FRAGMENT
                apart = not self.ring and (self.threads % rows or self.threads % chunks)
                if apart or rows * chunks % self.threads:
                    return bad(
                        f"{name} x tile_k does not divide into 16-byte chunks for {self.threads} threads"
                    )
        elif self.waves_k > 1:
            results = self.tile_m * self.tile_n
            share = max(4, results // self.threads)
            if results % share or share % 4 or self.tile_n % share:
                return bad(f"{self.threads} threads cannot share the sum of the partial tiles evenly")
        return None

    def _check_parts(self) -> str | None:
        if self.schedule not in get_args(Schedule):
            return f"schedule = {self.schedule!r}: must be one of {', '.join(get_args(Schedule))}"
        if (self.stages_m, self.stages_n, self.tile_k) != (2, 2, RING_TILE_K[0]):
            return f"tiles that are refilled by parts have a tile_k of {RING_TILE_K[0]} and rings of 2"
        if self.tile_m % (PART_ROWS * self.waves_m) or self.parts < 2:
            return f"a part is {PART_ROWS} rows of each wave, of two parts at least"
        if self.waves not in (1, 2, 4, 8) or self.tile_n % (2 * FRAGMENT * self.waves):
            return "1, 2, 4 or 8 waves load whole rows of a part, and B in halves"
        if self.schedule == "staggered" and self.waves != 2 * SIMDS:
            return f"two waves of each SIMD are staggered, {2 * SIMDS} in all"
        return None

    def _check_sizes(self, problem: GemmProblem) -> Reason | None:
        limits = (
            ("m", problem.m, MAX_WORK_ITEMS // self.threads * self.tile_m),
            ("n", problem.n, MAX_GRID_YZ * self.tile_n // (1 + problem.epilogue.gated)),
            ("batch", problem.batch, MAX_GRID_YZ),
            ("k", problem.k, MAX_K),
        )
        for name, size, most in limits:
            if isinstance(size, int) and not 1 <= size <= most:
                return Reason("gemm.size", f"{name} = {size}: configuration {self} takes 1 to {most}")
        columns = product_columns(problem)
        if (self.ring or self.split) and isinstance(problem.m, int) and isinstance(columns, int):
            tiles, most = self.tiles(problem.m, columns), MAX_WORK_ITEMS // self.threads // self.splits
            if tiles[0] * tiles[1] > most:
                sentence = f"{tiles[0]} x {tiles[1]} tiles: configuration {self} takes {most} in all"
                return Reason("gemm.size", sentence)
        return None

    def tiles(self, m: int, n: int) -> tuple[int, int]:
        """Tiles that cover `m` x `n` products (see `product_columns`)."""
        return -(-m // self.tile_m), -(-n // self.tile_n)

    def shares(self, m: int, n: int, k: int, batch: int) -> Shares:
        """How the tiles of `batch` products are divided among workgroups."""
        tiles = math.prod(self.tiles(m, n))
        steps = -(-k // self.step_k)
        of_part = -(-steps // self.splits)
        whole = tiles // COMPUTE_UNITS * COMPUTE_UNITS if self.tail else 0
        parts = -(-steps // of_part) if whole < tiles else 1
        return Shares(parts, of_part * self.step_k, whole, tiles, batch, self)


@dataclass(frozen=True, slots=True)
class Shares:
    """Of each product's `tiles` all but the first `whole` are computed in `parts` parts of `part_k` elements of K."""

    parts: int
    part_k: int
    whole: int
    tiles: int
    batch: int
    config: GemmConfig

    @property
    def workgroups(self) -> int:
        """Workgroups of a product."""
        return self.whole + (self.tiles - self.whole) * self.parts

    @property
    def counters(self) -> int:
        """int32 counters that a launch takes, zero before it and after it: one for each wave of a tile."""
        return self.batch * self.tiles * self.config.waves

    @property
    def sums(self) -> int:
        """float32 sums that a launch has room for in memory: those of all parts."""
        tiles = self.batch * (self.tiles - self.whole)
        return tiles * self.parts * self.config.part_sums if self.parts > 1 else 0


def others_arrived(parts: int) -> int:
    """What a counter of a tile holds when all but one of its `parts` parts are in memory."""
    return (parts - 1) * (1 + DONE)


#: Few rows: the weights are streamed once, K split over the waves.
_DECODE = (
    GemmConfig(16, 16, 128, waves_k=4, staged=False),
    GemmConfig(16, 64, 64, waves_k=4, staged=False),
    GemmConfig(16, 64, 96, waves_k=2, staged=False),
    GemmConfig(32, 32, 64, waves_k=4, staged=False),
    GemmConfig(32, 64, 64, waves_k=4, staged=False),
)
_SMALL = GemmConfig(64, 64, 64, waves_m=2, waves_n=2)
_LARGE = GemmConfig(128, 128, 64, waves_m=2, waves_n=2)

#: LDS holds no more tiles of the largest, and more of the others bring nothing.
RINGS = (
    GemmConfig(384, 256, 64, 2, 4, stages_m=2, stages_n=2, schedule="staggered"),
    GemmConfig(256, 256, 64, 2, 4, stages_m=2, stages_n=2, schedule="staggered"),
    GemmConfig(256, 128, 64, 4, 2, stages_m=3, stages_n=3),
    GemmConfig(128, 256, 64, 2, 4, stages_m=3, stages_n=3),
    GemmConfig(128, 128, 64, 2, 2, stages_m=4, stages_n=4),
    GemmConfig(128, 64, 64, 2, 2, stages_m=5, stages_n=5),
    GemmConfig(64, 128, 64, 2, 2, stages_m=5, stages_n=5),
    GemmConfig(64, 64, 64, 2, 2, stages_m=5, stages_n=5),
)


def _check_problem(problem: GemmProblem) -> Reason | None:
    if problem.dtype not in DTYPES:
        return Reason("gemm.dtype", f"element type {problem.dtype}: the kernel takes {' and '.join(DTYPES)}")
    for name in ("align_a", "align_b", "align_out"):
        if getattr(problem, name) not in (2, 4, 8, 16):
            return Reason("gemm.align", f"{name} = {getattr(problem, name)}: must be 2, 4, 8 or 16 bytes")
    for name in ("align_bias", "align_residual"):
        if getattr(problem, name) not in (2, 4, 8, 16):
            return Reason("gemm.align", f"{name} = {getattr(problem, name)}: must be 2, 4, 8 or 16 bytes")
    return _check_epilogue(problem)


def _check_epilogue(problem: GemmProblem) -> Reason | None:
    epilogue = problem.epilogue
    if epilogue.out_dtype not in (None, *OUT_BYTES):
        return Reason("gemm.epilogue", f"results of {epilogue.out_dtype}: {', '.join(OUT_BYTES)} are taken")
    if epilogue.activation not in get_args(Activation):
        accepted = ", ".join(get_args(Activation))
        return Reason("gemm.epilogue", f"activation {epilogue.activation!r}: {accepted} are taken")
    if epilogue.gated and (problem.bias or epilogue.preactivation):
        return Reason("gemm.epilogue", "a gated product has neither a bias nor a pre-activation")
    return None


def candidates(
    problem: GemmProblem, decode: Sequence[GemmConfig] = _DECODE, decode_rows: int = _DECODE_ROWS
) -> Iterator[GemmConfig]:
    """Every shipped configuration that computes `problem`, the likeliest first: those that stage tiles come last.

    They are checked as they are taken: most callers want the first. Up to `decode_rows` rows it is one of `decode`.
    """
    staged = (_LARGE, _SMALL) if _large(problem) else (_SMALL, _LARGE)
    order: tuple[GemmConfig, ...] = (*staged, *RINGS, *decode)
    if known := _known(problem):
        unstaged = [config for config in (*decode, *RINGS) if _streams(config, problem, decode_rows)]
        # Of tiles that all hold the whole result, the smallest.
        best = sorted(
            (divided(config, problem) for config in unstaged),
            key=lambda c: (_cost(c, problem, *known), c.tile_m * c.tile_n),
        )
        order = (*best, *order)
    return (config for config in dict.fromkeys(order) if config.is_valid(problem) is None)


def divided(config: GemmConfig, problem: GemmProblem) -> GemmConfig:
    """With K in as many parts as have a compute unit each, and a few steps; `config` if that is one part."""
    known = _known(problem)
    if known is None:
        return config
    m, n, k, batch = known
    tiles = math.prod(config.tiles(m, n)) * batch
    splits = min(COMPUTE_UNITS // tiles, -(-k // config.step_k) // LEAST_STEPS, MAX_SPLITS)
    return replace(config, splits=splits) if splits > 1 else config


def _known(problem: GemmProblem) -> tuple[int, int, int, int] | None:
    sizes = (problem.m, product_columns(problem), problem.k, problem.batch)
    return sizes if all(isinstance(size, int) and size > 0 for size in sizes) else None  # type: ignore[return-value]


def _large(problem: GemmProblem) -> bool:
    m, n = problem.m, product_columns(problem)
    return (
        isinstance(m, int) and isinstance(n, int) and m * n >= COMPUTE_UNITS * _LARGE.tile_m * _LARGE.tile_n
    )


def _streams(config: GemmConfig, problem: GemmProblem, decode_rows: int) -> bool:
    """Whether operands come in whole lines of memory, and waves that load them themselves have few rows each."""
    assert isinstance(problem.m, int)
    if config.ring:
        return problem.m > decode_rows
    lines = not problem.trans_b and config.tile_n < LINE_ELEMENTS
    return problem.m <= decode_rows and not lines


def _cost(config: GemmConfig, problem: GemmProblem, m: int, n: int, k: int, batch: int) -> float:
    """What the compute unit that fetches most takes, as bytes that it could fetch: operands come slower than MFMAs go.

    The latencies of a workgroup and of adding up parts count as so many bytes, too; partial sums, and what all fetch at
    least, come from farther away.
    """
    shares = config.shares(m, n, k, batch)
    each = -(-shares.workgroups * batch // COMPUTE_UNITS)
    # A last, partial step takes as long as a full one, and checks what it loads.
    fetched = each * (min(config.tile_m, m) + min(config.tile_n, n)) * shares.part_k
    checked = 0 if config.ring or k % config.step_k == 0 else _PARTIAL_BYTES
    farther = (m + n) * k * batch / COMPUTE_UNITS * _FARTHER
    # The faster of the two ways does not come for nothing.
    cost = (max(fetched, farther) + fetched / 8) * ELEMENT_BYTES + each * (_WORKGROUP_BYTES + checked)
    if shares.parts == 1:
        return cost
    sums = 4 * config.tile_m * config.tile_n * (shares.parts - 1) * each
    return cost + _PARTS_BYTES + sums * _FARTHER


def choose(problem: GemmProblem) -> GemmConfig | Reason:
    """The configuration to run `problem` with, or why none does."""
    found = next(candidates(problem), None)
    if found is not None:
        return found
    reason = _SMALL.is_valid(problem)
    assert reason is not None, "candidates() offers this configuration for every problem"
    return reason
