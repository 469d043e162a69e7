"""The benchmarks' Triton kernels: RMSNorm, flash attention, matrix products, compiled for gfx950 without a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@dataclass(frozen=True)
class Compiled:
    """`elf` with the kernel `name`; a launch takes `threads` work-items and `lds` bytes of dynamic LDS.

    Two 8-byte arguments that the kernel does not use follow its own.
    """

    elf: bytes
    name: str
    threads: int
    lds: int


def compile_kernel(
    function: Any,
    signature: dict[str, str],
    constants: Mapping[str, Any],
    warps: int = 4,
    *,
    aligned: Collection[str] = (),
    large: Collection[str] = (),
    **options: int,
) -> Compiled:
    """Compile a @triton.jit function: types of its run-time arguments, values of the others.

    `aligned` names arguments that are multiples of 16, as Triton specialises on what it is called with; pointers among
    them are of less than 2 GB, but for those that `large` names. `options` are Triton's, as num_stages.
    """
    types = {name: signature.get(name, "constexpr") for name in function.arg_names}
    hints = {
        (index,): [["tt.divisibility", 16]]
        + [["tt.pointer_range", 32]] * (types[name].startswith("*") and name not in large)
        for index, name in enumerate(function.arg_names)
        if name in aligned
    }
    source = ASTSource(function, types, dict(constants), hints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = triton.compile(
            source, target=GPUTarget("hip", "gfx950", 64), options={"num_warps": warps, **options}
        )
    return Compiled(made.asm["hsaco"], made.metadata.name, made.metadata.num_warps * 64, made.metadata.shared)


@triton.jit
def rms_norm(  # type: ignore[no-untyped-def]  # Triton gives the arguments their types
    x, weight, out, epsilon, COLUMNS: tl.constexpr, BLOCK: tl.constexpr
):
    """A row of `out` a program: x / rms(x) * weight."""
    at = tl.arange(0, BLOCK)
    inside = at < COLUMNS
    row = tl.program_id(0) * COLUMNS
    value = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value) / COLUMNS + epsilon)
    scaled = value * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + at, scaled.to(out.dtype.element_ty), mask=inside)


@triton.jit
def attention(  # type: ignore[no-untyped-def]
    q, k, v, out, length, scale, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """`ROWS` rows of one head a program: softmax(scale q k^T) v with a running maximum; tensors [heads, length, D]."""
    head = tl.program_id(1) * length * D
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns, features = tl.arange(0, COLUMNS), tl.arange(0, D)
    own = head + rows[:, None] * D + features[None, :]
    query = tl.load(q + own)
    maximum = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, D), tl.float32)
    for first in range(0, length, COLUMNS):
        at = first + columns
        score = tl.dot(query, tl.load(k + head + at[None, :] * D + features[:, None])) * (
            scale * 1.4426950408889634
        )
        higher = tl.maximum(maximum, tl.max(score, axis=1))
        kept = tl.exp2(maximum - higher)
        weight = tl.exp2(score - higher[:, None])
        value = tl.load(v + head + at[:, None] * D + features[None, :])
        mixed = mixed * kept[:, None] + tl.dot(weight.to(value.dtype), value)
        total = total * kept + tl.sum(weight, axis=1)
        maximum = higher
    tl.store(out + own, (mixed / total[:, None]).to(out.dtype.element_ty))


@triton.jit
def _tile(m, n, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The rows and the columns of a program's tile, of which `GROUP` rows are numbered column by column."""
    number, rows, columns = tl.program_id(0), m // BM, n // BN
    first = number // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    row = first + number % height
    column = number % (GROUP * columns) // height
    return row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)


@triton.jit
def product(  # type: ignore[no-untyped-def]
    a, b, c, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """c [m, n] = a [m, k] b [n, k]^T; sizes are multiples of the tile's."""
    at_row, at_column = _tile(m, n, BM, BN, GROUP)
    depth = tl.arange(0, BK)
    left = a + at_row[:, None] * k + depth[None, :]
    right = b + at_column[None, :] * k + depth[:, None]
    total = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, k, BK):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += BK
        right += BK
    tl.store(c + at_row[:, None] * n + at_column[None, :], total.to(c.dtype.element_ty))


@triton.jit
def scaled_product(  # type: ignore[no-untyped-def]
    a, b, scale_a, scale_b, c, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    FORMAT: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """As `product`, of elements of an MX format, `PACKED` a byte, with an E8M0 byte for each 32 along k:
    scale_a [m, k / 32] and scale_b [n, k / 32].
    """
    at_row, at_column = _tile(m, n, BM, BN, GROUP)
    depth, block = tl.arange(0, BK // PACKED), tl.arange(0, BK // 32)
    left = a + at_row[:, None] * (k // PACKED) + depth[None, :]
    right = b + at_column[None, :] * (k // PACKED) + depth[:, None]
    left_scale = scale_a + at_row[:, None] * (k // 32) + block[None, :]
    right_scale = scale_b + at_column[:, None] * (k // 32) + block[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, k, BK):
        total = tl.dot_scaled(
            tl.load(left), tl.load(left_scale), FORMAT, tl.load(right), tl.load(right_scale), FORMAT, total
        )
        left += BK // PACKED
        right += BK // PACKED
        left_scale += BK // 32
        right_scale += BK // 32
    tl.store(c + at_row[:, None] * n + at_column[None, :], total.to(c.dtype.element_ty))


@triton.jit
def grouped_product(  # type: ignore[no-untyped-def]
    a, b, c, offsets, groups, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """c [m, n] = a [m, k] b[g] [k, n] for the rows of each group g, which end at offsets[g]: `PROGRAMS` take
    tile after tile of all groups in a row. n and k are multiples of the tile's.
    """
    number, start, before = tl.program_id(0), 0, 0
    columns = n // BN
    for group in range(groups):
        end = tl.load(offsets + group)
        rows = end - start
        height = tl.cdiv(rows, BM)
        while number < before + height * columns:
            tile = number - before
            # Rows beyond the group's are its first ones again, and not stored.
            at_row = tile % height * BM + tl.arange(0, BM)
            at_column = tile // height * BN + tl.arange(0, BN)
            depth = tl.arange(0, BK)
            left = a + (start + at_row % rows)[:, None] * k + depth[None, :]
            right = b + tl.cast(group, tl.int64) * n * k + depth[:, None] * n + at_column[None, :]
            total = tl.zeros((BM, BN), tl.float32)
            for _ in range(0, k, BK):
                total = tl.dot(tl.load(left), tl.load(right), total)
                left += BK
                right += BK * n
            out = c + (start + at_row)[:, None] * n + at_column[None, :]
            tl.store(out, total.to(c.dtype.element_ty), mask=(at_row < rows)[:, None])
            number += PROGRAMS
        before += height * columns
        start = end
