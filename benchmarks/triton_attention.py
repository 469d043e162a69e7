"""Modelled times of Triton's flash attention, forward, backward and decode: the best of a few tiles.

The standard algorithm: an online softmax in base 2, causal tiles in two stages, gradients of keys and values and those
of queries by kernels of their own, decode with the keys shared out and a launch that combines. Dimensions are padded to
a power of two, which is all that Triton's tiles can have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import triton
import triton.language as tl

from flycc.benchmarks.triton_kernels import Compiled, compile_kernel
from flycc.benchmarks.triton_products import STEPS, fastest, traced
from flycc.costmodel import MI350, Prediction, loop_turns, predict, representative
from flycc.tuning.modelled import total


@triton.jit
def _tile(base, at, D: tl.constexpr, WIDE: tl.constexpr, ACROSS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows `at` of a matrix with D columns, which are zeros from there to WIDE; [WIDE, rows] if ACROSS."""
    columns = tl.arange(0, WIDE)
    if ACROSS:
        places = base + at[None, :] * D + columns[:, None]
        return tl.load(places) if D == WIDE else tl.load(places, mask=(columns < D)[:, None], other=0.0)
    else:
        places = base + at[:, None] * D + columns[None, :]
        return tl.load(places) if D == WIDE else tl.load(places, mask=(columns < D)[None, :], other=0.0)


@triton.jit
def _put(base, at, value, D: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The opposite of `_tile`."""
    columns = tl.arange(0, WIDE)
    inside = (columns < D)[None, :] & (at >= 0)[:, None]
    tl.store(base + at[:, None] * D + columns[None, :], value.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    query, mixed, total, highest, k, v, rows, first, last, scale,
    D: tl.constexpr, WIDE: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Take in keys from `first` to `last`; scores are in base 2, and `highest` and `total` of those before."""
    for start in range(first, last, COLUMNS):
        at = start + tl.arange(0, COLUMNS)
        score = tl.dot(query, _tile(k, at, D, WIDE, True))
        if MASKED:
            score = tl.where(at[None, :] <= rows[:, None], score, float("-inf"))
        higher = tl.maximum(highest, tl.max(score, axis=1) * scale)
        weight = tl.exp2(score * scale - higher[:, None])
        kept = tl.exp2(highest - higher)
        total = total * kept + tl.sum(weight, axis=1)
        mixed = mixed * kept[:, None]
        value = _tile(v, at, D, WIDE, False)
        mixed = tl.dot(weight.to(value.dtype), value, mixed)
        highest = higher
    return mixed, total, highest


@triton.jit
def forward(  # type: ignore[no-untyped-def]
    q, k, v, out, lse, queries, keys, scale,
    D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """out [heads, queries, D] of q of that shape and k, v [heads, keys, D], and lse [heads, queries] in base 2.

    A program takes `ROWS` queries of a head; of a causal one the last rows, which have most keys, come first. `scale`
    has the factor log2 e. Queries and keys are multiples of the tile's.
    """
    head = tl.program_id(1)
    block = tl.num_programs(0) - 1 - tl.program_id(0) if CAUSAL else tl.program_id(0)
    rows = block * ROWS + tl.arange(0, ROWS)
    query = _tile(q + head * queries * D, rows, D, WIDE, False)
    k += head * keys * D
    v += head * keys * D
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, WIDE), tl.float32)
    whole = block * ROWS if CAUSAL else keys
    mixed, total, highest = _attend(
        query, mixed, total, highest, k, v, rows, 0, whole, scale, D, WIDE, COLUMNS, False
    )
    if CAUSAL:
        mixed, total, highest = _attend(
            query, mixed, total, highest, k, v, rows, whole, whole + ROWS, scale, D, WIDE, COLUMNS, True
        )
    _put(out + head * queries * D, rows, mixed / total[:, None], D, WIDE)
    tl.store(lse + head * queries + rows, highest + tl.log2(total))


@triton.jit
def sums(  # type: ignore[no-untyped-def]
    grad, out, delta, queries, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr
):
    """delta [heads, queries]: what rows of grad * out sum up to."""
    head, rows = tl.program_id(1), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    left = _tile(grad + head * queries * D, rows, D, WIDE, False).to(tl.float32)
    right = _tile(out + head * queries * D, rows, D, WIDE, False).to(tl.float32)
    tl.store(delta + head * queries + rows, tl.sum(left * right, axis=1))


@triton.jit
def _gather(  # type: ignore[no-untyped-def]
    key, value, dk, dv, q, grad, lse, delta, columns, first, last, scale,
    D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add what queries from `first` to `last` do to the gradients of a tile of keys and values."""
    for start in range(first, last, ROWS):
        at = start + tl.arange(0, ROWS)
        query = _tile(q, at, D, WIDE, True)
        weight = tl.exp2(tl.dot(key, query) * scale - tl.load(lse + at)[None, :])
        if MASKED:
            weight = tl.where(columns[:, None] <= at[None, :], weight, 0.0)
        above = _tile(grad, at, D, WIDE, False)
        dv = tl.dot(weight.to(above.dtype), above, dv)
        ds = weight * (tl.dot(value, tl.trans(above)) - tl.load(delta + at)[None, :])
        dk = tl.dot(ds.to(query.dtype), tl.trans(query), dk)
    return dk, dv


@triton.jit
def backward_kv(  # type: ignore[no-untyped-def]
    q, k, v, grad, lse, delta, dk, dv, queries, keys, scale,
    D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """dk and dv of `COLUMNS` keys of a head a program, over `ROWS` queries at a time; as `forward` otherwise."""
    head, block = tl.program_id(1), tl.program_id(0)
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    key = _tile(k + head * keys * D, columns, D, WIDE, False)
    value = _tile(v + head * keys * D, columns, D, WIDE, False)
    q += head * queries * D
    grad += head * queries * D
    lse += head * queries
    delta += head * queries
    to_k = tl.zeros((COLUMNS, WIDE), tl.float32)
    to_v = tl.zeros((COLUMNS, WIDE), tl.float32)
    whole = 0
    if CAUSAL:
        whole = (block + 1) * COLUMNS
        to_k, to_v = _gather(
            key, value, to_k, to_v, q, grad, lse, delta, columns, block * COLUMNS, whole, scale,
            D, WIDE, ROWS, True,
        )  # fmt: skip
    to_k, to_v = _gather(
        key, value, to_k, to_v, q, grad, lse, delta, columns, whole, queries, scale, D, WIDE, ROWS, False
    )
    _put(dk + head * keys * D, columns, to_k * (scale * 0.6931471805599453), D, WIDE)
    _put(dv + head * keys * D, columns, to_v, D, WIDE)


@triton.jit
def _descend(  # type: ignore[no-untyped-def]
    query, above, most, less, dq, k, v, rows, first, last, scale,
    D: tl.constexpr, WIDE: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add what keys from `first` to `last` do to the gradient of a tile of queries."""
    for start in range(first, last, COLUMNS):
        at = start + tl.arange(0, COLUMNS)
        key = _tile(k, at, D, WIDE, True)
        weight = tl.exp2(tl.dot(query, key) * scale - most[:, None])
        if MASKED:
            weight = tl.where(at[None, :] <= rows[:, None], weight, 0.0)
        ds = weight * (tl.dot(above, _tile(v, at, D, WIDE, True)) - less[:, None])
        dq = tl.dot(ds.to(key.dtype), tl.trans(key), dq)
    return dq


@triton.jit
def backward_q(  # type: ignore[no-untyped-def]
    q, k, v, grad, lse, delta, dq, queries, keys, scale,
    D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """dq of `ROWS` queries of a head a program; as `forward` otherwise."""
    head = tl.program_id(1)
    block = tl.num_programs(0) - 1 - tl.program_id(0) if CAUSAL else tl.program_id(0)
    rows = block * ROWS + tl.arange(0, ROWS)
    query = _tile(q + head * queries * D, rows, D, WIDE, False)
    above = _tile(grad + head * queries * D, rows, D, WIDE, False)
    most = tl.load(lse + head * queries + rows)
    less = tl.load(delta + head * queries + rows)
    k += head * keys * D
    v += head * keys * D
    to_q = tl.zeros((ROWS, WIDE), tl.float32)
    whole = block * ROWS if CAUSAL else keys
    to_q = _descend(query, above, most, less, to_q, k, v, rows, 0, whole, scale, D, WIDE, COLUMNS, False)
    if CAUSAL:
        to_q = _descend(
            query, above, most, less, to_q, k, v, rows, whole, whole + ROWS, scale, D, WIDE, COLUMNS, True
        )
    _put(dq + head * queries * D, rows, to_q * (scale * 0.6931471805599453), D, WIDE)


@triton.jit
def decode(  # type: ignore[no-untyped-def]
    q, k, v, mixed, highest, total, keys, share, scale,
    GROUP: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Of one query a head, `GROUP` heads of which share k and v [heads, keys, D], what each `share` of keys adds:
    mixed [heads, shares, GROUP, D] and highest and total [heads, shares, GROUP], in float32."""
    head, part = tl.program_id(1), tl.program_id(0)
    rows = tl.arange(0, 16)
    own = rows % GROUP
    query = _tile(q + head * GROUP * D, own, D, D, False)
    most = tl.full((16,), float("-inf"), tl.float32)
    whole = tl.zeros((16,), tl.float32)
    sum_ = tl.zeros((16, D), tl.float32)
    sum_, whole, most = _attend(
        query, sum_, whole, most, k + tl.cast(head, tl.int64) * keys * D, v + tl.cast(head, tl.int64) * keys * D,
        rows, part * share, (part + 1) * share, scale, D, D, COLUMNS, False,
    )  # fmt: skip
    at = (head * tl.num_programs(0) + part) * GROUP + rows
    inside = rows < GROUP
    features = tl.arange(0, D)
    tl.store(mixed + at[:, None] * D + features[None, :], sum_, mask=inside[:, None])
    tl.store(highest + at, most, mask=inside)
    tl.store(total + at, whole, mask=inside)


@triton.jit
def combine(  # type: ignore[no-untyped-def]
    mixed, highest, total, out, shares, GROUP: tl.constexpr, D: tl.constexpr, MOST: tl.constexpr
):
    """out [heads, GROUP, D] of what `decode` made of no more than `MOST` shares, a query's row a program."""
    head, row = tl.program_id(1), tl.program_id(0)
    number = tl.arange(0, MOST)
    at = (head * shares + number) * GROUP + row
    inside = number < shares
    most = tl.load(highest + at, mask=inside, other=float("-inf"))
    weight = tl.exp2(most - tl.max(most, axis=0))
    whole = tl.sum(weight * tl.load(total + at, mask=inside, other=0.0), axis=0)
    features = tl.arange(0, D)
    parts = tl.load(mixed + at[:, None] * D + features[None, :], mask=inside[:, None], other=0.0)
    value = tl.sum(parts * weight[:, None], axis=0) / whole
    tl.store(out + (head * GROUP + row) * D + features, value.to(out.dtype.element_ty))


Pass = Literal["forward", "sums", "backward_kv", "backward_q"]
_KERNELS: dict[Pass, Any] = {
    "forward": forward, "sums": sums, "backward_kv": backward_kv, "backward_q": backward_q
}  # fmt: skip
#: Arguments that are matrices of a row for each query and for each key, and those with a number for each query.
_OF_QUERIES, _OF_KEYS, _NUMBERS = {"q", "out", "grad", "dq"}, {"k", "v", "dk", "dv"}, {"lse", "delta"}


@dataclass(frozen=True, slots=True)
class Config:
    """Queries and keys of a tile, waves of a program, steps in flight, and rows of an MFMA's result."""

    rows: int
    columns: int
    warps: int
    stages: int
    mfma: int = 32

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns} {self.warps} waves {self.stages} stages"


@dataclass(frozen=True, slots=True)
class Shape:
    """As many queries as keys, of `heads` heads of all batches."""

    heads: int
    length: int
    dim: int
    causal: bool


_SUMS = Config(64, 64, 4, 1)
#: The length at which tiles are chosen.
LENGTH = 8192
#: By head dimension, the best of a few tiles that were modelled by hand at `LENGTH`: forward six to eight and queries
#: four, both without a mask only; keys and values three to nine, some of them causal. Not an exhaustive tuning: waves
#: a SIMD, scheduling hints and MFMAs of another size for each tile were not tried, and where all tiles of keys and
#: values spill, so do these.
SWEEP: dict[Pass, dict[int, list[Config]]] = {
    "forward": {
        64: [Config(128, 64, 4, 2), Config(128, 128, 4, 2)],
        128: [Config(128, 64, 4, 2), Config(256, 64, 8, 2)],
        192: [Config(128, 64, 4, 2), Config(128, 32, 4, 2)],
        256: [Config(128, 64, 4, 2), Config(128, 32, 4, 2)],
        512: [Config(64, 32, 4, 2, 16), Config(64, 32, 4, 2)],
    },
    "backward_kv": {
        64: [Config(32, 128, 4, 2), Config(64, 128, 4, 2)],
        128: [Config(32, 128, 4, 2), Config(64, 128, 4, 2)],
        192: [Config(16, 128, 8, 2, 16), Config(16, 128, 4, 2, 16)],
        256: [Config(16, 128, 8, 2, 16), Config(16, 128, 4, 2, 16)],
        512: [Config(64, 128, 4, 1), Config(32, 128, 4, 2)],
    },
    "backward_q": {
        64: [Config(128, 32, 4, 2)],
        128: [Config(128, 32, 4, 2)],
        192: [Config(128, 32, 4, 2)],
        256: [Config(128, 32, 4, 2)],
        512: [Config(64, 32, 4, 2, 16)],
    },
}
#: What Triton 3.9 compiles to code that runs into a trap.
_TRAPS = {("backward_kv", Config(32, 128, 4, 2), 64, True)}


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel, the tile it was compiled for, and its modelled launch."""

    config: Config | Shares
    compiled: Compiled
    prediction: Prediction


def best_forward(shape: Shape) -> list[Launch]:
    """The fastest, as modelled, of those of the sweep."""
    return [_best("forward", shape)]


def best_backward(shape: Shape) -> list[Launch]:
    """Sums of the rows, and the fastest for keys and values and for queries."""
    sums_ = Launch(_SUMS, compiled("sums", _SUMS, shape.dim, shape.causal), model("sums", _SUMS, shape))
    return [sums_, _best("backward_kv", shape), _best("backward_q", shape)]


def _best(of: Pass, shape: Shape) -> Launch:
    """Tiles are chosen at one length, for all lengths."""
    config = _chosen(of, shape.heads, shape.dim, shape.causal)
    return Launch(config, compiled(of, config, shape.dim, shape.causal), model(of, config, shape))


@cache
def _chosen(of: Pass, heads: int, dim: int, causal: bool) -> Config:
    shape = Shape(heads, LENGTH, dim, causal)
    sound = [config for config in SWEEP[of][dim] if (of, config, dim, causal) not in _TRAPS]
    return fastest((config, model(of, config, shape)) for config in sound)[0]


@cache
def model(of: Pass, config: Config, shape: Shape) -> Prediction:
    """The modelled launch of a pass. As the grid of a causal one lies, an XCD gets every eighth block of all heads: the
    heaviest of all if a head has 8, and what is the less uneven the more there are."""
    tile, step = (config.columns, config.rows) if of == "backward_kv" else (config.rows, config.columns)
    blocks = shape.length // tile
    if of == "sums":
        return predict(_trace(of, config, shape, shape.length))
    steps = shape.length // step
    if not shape.causal:
        trace = _trace(of, config, shape, min(steps, STEPS) * step)
        return predict(trace, turns=_turns(trace) + steps - STEPS if steps > STEPS else None)
    # The block that has most comes first.
    lengths = np.tile(np.arange(blocks, 0, -1) * tile // step, shape.heads)
    some = [(number % blocks, number // blocks, 0) for number in representative(lengths)]
    without = model(of, config, Shape(shape.heads, shape.length, shape.dim, False)).reuse
    reuse = without.of_fewer(float(lengths.mean()) / steps, "misses as without a mask")
    return predict(_trace(of, config, shape, shape.length, some), lengths=lengths, reuse=reuse)


def _turns(trace: Any) -> int:
    turns = loop_turns(trace)
    assert turns is not None, "all waves go round their longest loop equally often"
    return turns


def _trace(
    of: Pass,
    config: Config,
    shape: Shape,
    looped: int,
    workgroups: Sequence[tuple[int, int, int]] | None = None,
) -> Any:
    """What workgroups execute if the queries or keys that a program loops over are so many."""
    over_queries = of == "backward_kv"
    queries, keys = (looped, shape.length) if over_queries else (shape.length, looped)
    blocks = shape.length // (config.columns if over_queries else config.rows)
    made = compiled(of, config, shape.dim, shape.causal)
    args = arguments(of, shape.heads, queries, keys, shape.dim)
    return traced(made, (blocks, shape.heads, 1), [*args.values()], workgroups)


def arguments(of: Pass, heads: int, queries: int, keys: int, dim: int) -> dict[str, Any]:
    """Zeros for each argument of a pass."""
    known: dict[str, Any] = {
        **dict.fromkeys(_OF_QUERIES, (heads, queries, dim)),
        **dict.fromkeys(_OF_KEYS, (heads, keys, dim)),
        **dict.fromkeys(_NUMBERS, (heads, queries)),
    }
    numbers = {"queries": np.int32(queries), "keys": np.int32(keys), "scale": np.float32(0.125)}
    return {
        name: numbers[name]
        if name in numbers
        else np.zeros(known[name], np.float32 if name in _NUMBERS else np.uint16)
        for name in _KERNELS[of].arg_names
        if name in numbers or name in known
    }


@cache
def compiled(of: Pass, config: Config, dim: int, causal: bool) -> Compiled:
    """The kernel of a pass, for bf16."""
    function = _KERNELS[of]
    names = arguments(of, 1, 1, 1, 1)
    types = {
        name: "*fp32" if name in _NUMBERS else "i32" if name in ("queries", "keys") else "*bf16"
        for name in names
    } | {"scale": "fp32"}
    constants = {
        "D": dim,
        "WIDE": 1 << (dim - 1).bit_length(),
        "ROWS": config.rows,
        "COLUMNS": config.columns,
        "CAUSAL": causal,
    }
    return compile_kernel(
        function,
        {name: types[name] for name in names},
        {name: value for name, value in constants.items() if name in function.arg_names},
        config.warps,
        aligned=names.keys() - {"scale"},
        num_stages=config.stages,
        matrix_instr_nonkdim=config.mfma,
    )


@dataclass(frozen=True, slots=True)
class Decode:
    """One query of each of `group` * `heads` heads of `batch` sequences, of `keys` keys."""

    batch: int
    heads: int
    group: int
    keys: int
    dim: int


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts that the keys of a sequence are shared out to, and the tile that goes through them."""

    parts: int
    columns: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.parts} x {self.columns} {self.warps} waves {self.stages} stages"


#: Workgroups for each compute unit that a decode has at least, as far as keys allow; keys that a part has at least.
_PER_CU, _LEAST_KEYS, _MOST_PARTS = (2, 4), 256, 128


def best_decode(shape: Decode) -> list[Launch]:
    """The fastest, as modelled, of some numbers of parts; both launches."""
    found = (model_decode(shares, shape) for shares in _shares(shape))
    return min(found, key=lambda launches: total([launch.prediction for launch in launches]).typical)


def _shares(shape: Decode) -> list[Shares]:
    each = shape.batch * shape.heads
    most = min(_MOST_PARTS, shape.keys // _LEAST_KEYS)
    wanted = {min(most, 1 << math.ceil(math.log2(max(1, MI350.cus * per_cu / each)))) for per_cu in _PER_CU}
    return [Shares(parts, 64, 4, 2) for parts in sorted(wanted)]


def model_decode(shares: Shares, shape: Decode) -> list[Launch]:
    """The modelled launches: the parts, and what combines them."""
    each, share = shape.batch * shape.heads, shape.keys // shares.parts
    steps = share // shares.columns
    rows = each * shares.parts * shape.group
    large = 2 * each * shape.keys * shape.dim >= 1 << 31
    k, v = (np.zeros((each, shape.keys, shape.dim), np.uint16) for _ in range(2))
    query = np.zeros((each, shape.group, shape.dim), np.uint16)
    mixed, of_row = np.zeros((rows, shape.dim), np.float32), np.zeros(rows, np.float32)
    numbers = np.int32(shape.keys), np.int32(min(steps, STEPS) * shares.columns), np.float32(0.125)
    split = compiled_decode(shares.columns, shares.warps, shares.stages, shape.group, shape.dim, large)
    trace = traced(split, (shares.parts, each, 1), [query, k, v, mixed, of_row, of_row, *numbers])
    parts = predict(trace, turns=_turns(trace) + steps - STEPS if steps > STEPS else None)
    join = compiled_combine(shape.group, shape.dim, shares.parts)
    args = [mixed, of_row, of_row, query, np.int32(shares.parts)]
    whole = predict(traced(join, (shape.group, each, 1), args))
    return [Launch(shares, split, parts), Launch(shares, join, whole)]


@cache
def compiled_decode(columns: int, warps: int, stages: int, group: int, dim: int, large: bool) -> Compiled:
    """`decode` for bf16; `large` if k and v may have 2 GB or more."""
    types = {
        **dict.fromkeys(("q", "k", "v"), "*bf16"),
        **dict.fromkeys(("mixed", "highest", "total"), "*fp32"),
        "keys": "i32",
        "share": "i32",
        "scale": "fp32",
    }
    return compile_kernel(
        decode,
        types,
        {"GROUP": group, "D": dim, "COLUMNS": columns},
        warps,
        aligned=types.keys() - {"scale"},
        large=("k", "v") if large else (),
        num_stages=stages,
        matrix_instr_nonkdim=16,
    )


@cache
def compiled_combine(group: int, dim: int, parts: int) -> Compiled:
    """`combine` for bf16 and no more than the next power of two of `parts`."""
    types = dict.fromkeys(("mixed", "highest", "total"), "*fp32") | {"out": "*bf16", "shares": "i32"}
    constants = {"GROUP": group, "D": dim, "MOST": max(2, 1 << (parts - 1).bit_length())}
    return compile_kernel(combine, types, constants, 1, aligned=types.keys() - {"shares"})
