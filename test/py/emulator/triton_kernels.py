"""Triton kernels that the emulator runs as Triton compiles them for gfx950, and a launcher for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import triton
import triton.language as tl

from flycc.benchmarks.triton_kernels import compile_kernel
from flycc.emulator import LaunchStats, Module, load, run


@dataclass(frozen=True)
class Loaded:
    """A kernel that Triton compiled, loaded into the emulator."""

    module: Module
    name: str
    threads: int
    lds: int

    def launch(self, grid: tuple[int, ...], *args: np.ndarray | np.generic, **options: object) -> LaunchStats:
        """Run on `grid` programs; `options` as of flycc.emulator.run. Two pointers nobody uses end the arguments."""
        extent = (*grid, 1, 1)[:3]
        slots = self.module.kernels[self.name].descriptor.args
        visible = sum(not slot.value_kind.startswith("hidden") for slot in slots)
        unused = [np.uint64(0)] * (visible - len(args))
        block = (self.threads, 1, 1)
        return run(self.module, self.name, extent, block, [*args, *unused], dynamic_lds=self.lds, **options)


def build(function, signature: dict[str, str], warps: int = 4, **constants: object) -> Loaded:
    """Compile for gfx950: `signature` gives the types of the run-time arguments, `constants` the others' values."""
    made = compile_kernel(function, signature, constants, warps)
    return Loaded(load(made.elf), made.name, made.threads, made.lds)


@triton.jit
def add_vectors(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax_rows(x, out, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * stride + at, mask=inside, other=float("-inf")).to(tl.float32)
    power = tl.exp(value - tl.max(value, axis=0))
    result = power / tl.sum(power, axis=0)
    tl.store(out + row * stride + at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def layer_norm_rows(x, weight, bias, out, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(value, axis=0) / columns
    centred = tl.where(inside, value - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / columns + epsilon)
    result = centred * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    result += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * columns + at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def rms_norm_rows(x, weight, out, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / columns + epsilon)
    result = value * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * columns + at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def multiply_matrices(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c [m, n] = a [m, k] b [k, n], row-major; k a multiple of BK."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    left = a + rows[:, None] * k + depth[None, :]
    right = b + depth[:, None] * n + columns[None, :]
    total = tl.zeros((BM, BN), tl.float32 if c.dtype.element_ty != tl.int32 else tl.int32)
    for _ in range(0, k, BK):
        x = tl.load(left, mask=rows[:, None] < m, other=0.0)
        y = tl.load(right, mask=columns[None, :] < n, other=0.0)
        total = tl.dot(x, y, total, out_dtype=total.dtype)
        left += BK
        right += BK * n
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def multiply_scaled(
    a, a_scale, b, b_scale, c, m, n, k,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """c [m, n] = a [m, k] b[n, k]^T with one E8M0 scale per 32 elements along k; e2m1 two to a byte."""
    A_PACK: tl.constexpr = 2 if A_FORMAT == "e2m1" else 1
    B_PACK: tl.constexpr = 2 if B_FORMAT == "e2m1" else 1
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    left = a + rows[:, None] * (k // A_PACK) + tl.arange(0, BK // A_PACK)[None, :]
    right = b + columns[None, :] * (k // B_PACK) + tl.arange(0, BK // B_PACK)[:, None]
    groups = tl.arange(0, BK // 32)[None, :]
    left_scale = a_scale + rows[:, None] * (k // 32) + groups
    right_scale = b_scale + columns[:, None] * (k // 32) + groups
    total = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, k, BK):
        total = tl.dot_scaled(
            tl.load(left),
            tl.load(left_scale),
            A_FORMAT,
            tl.load(right),
            tl.load(right_scale),
            B_FORMAT,
            total,
        )
        left += BK // A_PACK
        right += BK // B_PACK
        left_scale += BK // 32
        right_scale += BK // 32
    tl.store(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def attend(
    q, k, v, out, length, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr
):
    """Flash attention, forward: one head of [length, D] a program of axis 1."""
    head = tl.program_id(1).to(tl.int64) * length * D
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns, features = tl.arange(0, BN), tl.arange(0, D)
    query = tl.load(q + head + rows[:, None] * D + features[None, :])
    largest = tl.full((BM,), float("-inf"), tl.float32)
    denominator = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    end = (tl.program_id(0) + 1) * BM if CAUSAL else length
    for start in range(0, end, BN):
        at = start + columns
        key = tl.load(k + head + at[None, :] * D + features[:, None])
        score = tl.dot(query, key) * (scale * 1.44269504)
        if CAUSAL:
            score = tl.where(rows[:, None] >= at[None, :], score, float("-inf"))
        new = tl.maximum(largest, tl.max(score, axis=1))
        weight = tl.exp2(score - new[:, None])
        shrink = tl.exp2(largest - new)
        denominator = denominator * shrink + tl.sum(weight, axis=1)
        value = tl.load(v + head + at[:, None] * D + features[None, :])
        total = total * shrink[:, None] + tl.dot(weight.to(value.dtype), value)
        largest = new
    result = total / denominator[:, None]
    tl.store(out + head + rows[:, None] * D + features[None, :], result.to(out.dtype.element_ty))


@triton.jit
def histogram_and_extremes(x, counts, extremes, total, n, BLOCK: tl.constexpr):
    """counts[v] of values 0..15, the least and the greatest of them, and their sum, all by atomics."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + at, mask=inside, other=0)
    tl.atomic_add(counts + value, 1, mask=inside)
    tl.atomic_min(extremes + at * 0, value, mask=inside)
    tl.atomic_max(extremes + 1 + at * 0, value, mask=inside)
    tl.atomic_add(total, tl.sum(value.to(tl.float32), axis=0))


@triton.jit
def claim_once(slots, winners, SLOTS: tl.constexpr):
    """Programs claim slots by compare-and-swap; `winners` counts successes."""
    program = tl.program_id(0)
    before = tl.atomic_cas(slots + program % SLOTS, 0, program + 1)
    tl.atomic_add(winners, (before == 0).to(tl.int32))


@triton.jit
def argmax_and_sort_rows(x, where, ordered, COLUMNS: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, COLUMNS)
    value = tl.load(x + row * COLUMNS + at)
    tl.store(where + row, tl.argmax(value, axis=0))
    tl.store(ordered + row * COLUMNS + at, tl.sort(value))


@triton.jit
def scan_rows(x, sums, products, COLUMNS: tl.constexpr):
    row = tl.program_id(0)
    at = row * COLUMNS + tl.arange(0, COLUMNS)
    value = tl.load(x + at)
    tl.store(sums + at, tl.cumsum(value, axis=0))
    tl.store(products + at, tl.cumprod(value, axis=0))


@triton.jit
def dropout(x, out, n, keep, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    kept = tl.rand(seed, at) < keep
    value = tl.load(x + at, mask=inside)
    tl.store(out + at, tl.where(kept, value / keep, 0.0), mask=inside)


@triton.jit
def random_words(out, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.randint(seed, at))


@triton.jit
def convert(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside).to(out.dtype.element_ty), mask=inside)


@triton.jit
def elementary(x, out, n, BLOCK: tl.constexpr):
    """Ten functions of x, one after another in `out`."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + at, mask=inside, other=1.0)
    tl.store(out + at, tl.exp(value), mask=inside)
    tl.store(out + n + at, tl.log(tl.abs(value)), mask=inside)
    tl.store(out + 2 * n + at, tl.sin(value), mask=inside)
    tl.store(out + 3 * n + at, tl.cos(value), mask=inside)
    tl.store(out + 4 * n + at, tl.sqrt(tl.abs(value)), mask=inside)
    tl.store(out + 5 * n + at, tl.erf(value), mask=inside)
    tl.store(out + 6 * n + at, tl.sigmoid(value), mask=inside)
    tl.store(out + 7 * n + at, tl.floor(value), mask=inside)
    tl.store(out + 8 * n + at, tl.div_rn(1.0, value), mask=inside)
    tl.store(out + 9 * n + at, tl.sqrt_rn(tl.abs(value)), mask=inside)


@triton.jit
def divide_integers(a, b, quotient, remainder, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x, y = tl.load(a + at, mask=inside, other=1), tl.load(b + at, mask=inside, other=1)
    tl.store(quotient + at, x // y, mask=inside)
    tl.store(remainder + at, x % y, mask=inside)
