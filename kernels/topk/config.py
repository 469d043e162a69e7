"""Which kernels compute a top-k problem, and the rules that choose among them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from flycc.contracts import Reason, TopkProblem
from flycc.contracts.sizes import Size
from flycc.kernels.common.machine import COMPUTE_UNITS, MAX_GRID_YZ, MAX_WORK_ITEMS, OFFSET_LIMIT, WAVE_SIZE
from flycc.kernels.topk.variant import RegisterVariant, SelectVariant, SortVariant, Variant

ELEMENT_BYTES = {"f32": 4, "i32": 4, "bf16": 2, "f16": 2}

#: Most results that lanes keep in registers, and most that a workgroup puts in order in LDS.
MAX_KEEP = 16
MAX_CAPACITY = 16384
#: (threads, items of a thread) of the workgroups that hold a chunk in registers, the smallest first: where there are
#: more workgroups than compute units, of a size that several share one, so that one computes while another loads.
_RESIDENT = {
    "shared": ((64, 8), (64, 16), (256, 8), (256, 16), (256, 32), (512, 32)),
    "alone": ((64, 8), (64, 16), (256, 8), (256, 16), (256, 32), (1024, 16), (1024, 32), (1024, 48)),
}
#: The same of those that take a row tile by tile, and of those that read it in every pass.
_TILED = {"shared": (512, 32), "alone": (1024, 16)}
_STREAMED = (1024, 16)
#: Most results of a row taken tile by tile: LDS has them twice, as pairs of 8 bytes.
_MAX_TILED_CAPACITY = 8192
#: A row is cut into chunks of at least so many elements, and of at least so many times k.
_MIN_CHUNK = {RegisterVariant: 1024, SelectVariant: 4096}
_CHUNK_PER_K = 4
#: What takes the place of a size that is not known yet.
_NOMINAL_ROWS, _NOMINAL_COLUMNS, _NOMINAL_K = 256, 8192, 64


@dataclass(frozen=True, slots=True)
class Step:
    """One launch: the best `k` of every chunk of `chunk` elements of rows of `n`."""

    variant: Variant
    n: int
    k: int
    chunk: int

    @property
    def parts(self) -> int:
        """Chunks of a row."""
        return -(-self.n // self.chunk)

    @property
    def work(self) -> int:
        """int32 of scratch memory for each row."""
        return 4 * self.n if isinstance(self.variant, SortVariant) else 0


@dataclass(frozen=True, slots=True)
class TopkConfig:
    """The launches that compute a problem. All but the last leave candidates, with their indices, to the next."""

    steps: tuple[Step, ...]

    @property
    def max_stride(self) -> int:
        """Largest distance between rows, in elements, that the kernels reach."""
        first = self.steps[0].variant
        return OFFSET_LIMIT // ELEMENT_BYTES[first.dtype] // (first.rows + 1)

    def __str__(self) -> str:
        return " -> ".join(f"{step.variant.symbol} x{step.parts}" for step in self.steps)


def choose(problem: TopkProblem) -> TopkConfig | Reason:
    """The launches for `problem`; sizes that are not known yet get nominal values."""
    rows, n = _known(problem.rows, _NOMINAL_ROWS), _known(problem.columns, _NOMINAL_COLUMNS)
    k = _known(problem.k, min(_NOMINAL_K, n))
    n = max(n, k) if isinstance(problem.columns, str) else n
    if reason := _check(problem, rows, n, k):
        return reason
    if k > MAX_CAPACITY:
        return _many(problem, rows, n, k)
    family = RegisterVariant if k <= MAX_KEEP else SelectVariant
    chunk = _chunk(family, rows, n, k)
    if chunk == n:
        return TopkConfig((Step(_variant(problem, rows, n, k), n, k, n),))
    parts = -(-n // chunk)
    first = _variant(problem, rows * parts, chunk, k)
    if isinstance(first, SelectVariant):
        first = replace(first, partial=True, sorted=False)
    else:
        first = replace(first, partial=True)
    # Candidates of one value stand in the order of their indices, so that places decide between them as well.
    candidates = replace(problem, align=_candidates_align(problem, parts * k))
    last = replace(_variant(candidates, rows, parts * k, k), mapped=True)
    return TopkConfig((Step(first, n, k, chunk), Step(last, parts * k, k, parts * k)))


def _many(problem: TopkProblem, rows: int, n: int, k: int) -> TopkConfig:
    """For more results than LDS holds."""
    sort = SortVariant(problem.dtype, problem.largest, _STREAMED[0], mapped=k < n)
    if k == n:
        return TopkConfig((Step(sort, n, n, n),))
    select = _select(problem, rows, n, 0, sorted=False)
    if not problem.sorted:
        return TopkConfig((Step(select, n, k, n),))
    return TopkConfig((Step(replace(select, partial=True), n, k, n), Step(sort, k, k, k)))


def _known(size: Size, nominal: int) -> int:
    return size if isinstance(size, int) else nominal


def _check(problem: TopkProblem, rows: int, n: int, k: int) -> Reason | None:
    if problem.dtype not in ELEMENT_BYTES:
        return Reason(
            "topk.dtype", f"element type {problem.dtype}: the kernels take {', '.join(ELEMENT_BYTES)}"
        )
    least = min(ELEMENT_BYTES[problem.dtype], 16)
    if problem.align % least or problem.align > 16:
        return Reason("topk.align", f"align = {problem.align}: must be {least} to 16 bytes, a power of two")
    limits = (
        ("rows", rows, MAX_WORK_ITEMS // 1024),
        ("columns", n, OFFSET_LIMIT // 8),
        ("k", k, n),
    )
    for name, size, most in limits:
        if not 1 <= size <= most:
            return Reason("topk.size", f"{name} = {size}: the kernels take 1 to {most} for {problem}")
    return None


def _chunk(family: type[Variant], rows: int, n: int, k: int) -> int:
    """Elements that one workgroup, or wave, looks at: all `n`, or less to keep the machine busy or in registers."""
    least = max(_MIN_CHUNK[family], _CHUNK_PER_K * k)
    if family is RegisterVariant:
        wanted = -(-4 * COMPUTE_UNITS // rows)  # a wave for each SIMD
    else:
        threads, items = _RESIDENT["alone"][-1]
        wanted = -(-COMPUTE_UNITS // rows)
        if k > _MAX_TILED_CAPACITY:
            wanted = max(wanted, -(-n // (threads * items)))
    parts = min(wanted, n // least, MAX_GRID_YZ)
    while parts > 1:
        chunk = -(-n // parts // 8) * 8
        parts = -(-n // chunk)
        # The last chunk is the shortest, and must have k elements too.
        if n - (parts - 1) * chunk >= k:
            return chunk
        parts -= 1
    return n


def _variant(problem: TopkProblem, rows: int, n: int, k: int) -> SelectVariant | RegisterVariant:
    vector = _vector(problem)
    if k <= MAX_KEEP:
        keep = _power(k)
        lanes = min(WAVE_SIZE, _power(-(-n // max(keep, vector))))
        loads = max(keep // vector, min(_power(-(-n // (lanes * vector))), 16 // vector), 1)
        threads = 256 if rows * lanes >= 256 * COMPUTE_UNITS else WAVE_SIZE
        return RegisterVariant(problem.dtype, problem.largest, threads, lanes, keep, vector, loads)
    return _select(problem, rows, n, _power(k), problem.sorted)


def _select(problem: TopkProblem, rows: int, n: int, capacity: int, sorted: bool) -> SelectVariant:
    units = "shared" if rows > COMPUTE_UNITS else "alone"
    fitting = [(threads, items) for threads, items in _RESIDENT[units] if threads * items >= n]
    reading: Literal["once", "tiles", "passes"]
    if fitting:
        reading, (threads, items) = "once", fitting[0]
    elif 0 < capacity <= _MAX_TILED_CAPACITY:
        reading, (threads, items) = "tiles", _TILED[units]
    else:
        reading, (threads, items) = "passes", _STREAMED
    return SelectVariant(
        dtype=problem.dtype,
        largest=problem.largest,
        threads=threads,
        items=items,
        vector=_vector(problem),
        digit_bits=8 if threads == WAVE_SIZE else 11,
        reading=reading,
        capacity=capacity,
        sorted=sorted,
    )


def _vector(problem: TopkProblem) -> int:
    """Elements to a load of 16 bytes, which takes rows that start at a multiple of 4 bytes."""
    return 16 // ELEMENT_BYTES[problem.dtype] if problem.align >= 4 else 1


def _candidates_align(problem: TopkProblem, n: int) -> int:
    """What divides the addresses of rows of `n` candidates that start at a multiple of 16 bytes."""
    nbytes = n * ELEMENT_BYTES[problem.dtype]
    return min(16, nbytes & -nbytes)


def _power(number: int) -> int:
    """The least power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()
