"""Runs GEMM kernels on the emulated device, with memory laid out so that every stray access shows.

An operand's registered memory ends with its last element and begins with its first, so that a read beyond
either is a fault; what lies between its rows is NaN. All arrays are float64 outside, 16-bit inside.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
from loaded_kernels import loaded

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.contracts import Epilogue, GemmProblem
from flycc.kernels import gemm

NUMPY_TYPES: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
#: An integer of an element's size.
BITS: dict[str, Any] = {"bf16": np.uint16, "f16": np.uint16, "f32": np.uint32}
#: Explicit mantissa bits + 1, and the exponent of the smallest normal number.
PRECISION = {"bf16": (8, -126), "f16": (11, -14), "f32": (24, -126)}

#: NaN in bf16 and in fp16; in float32 two of them.
POISON = 0x7FFF


@dataclass
class Stored:
    """A [batch, rows, columns] operand in memory: contiguous along columns, `stride` between rows.

    `values` float64 [batch, rows, columns]; a leading dimension of 1 with `batch` > 1 is broadcast.
    `misalign` is the base address modulo 16 bytes.
    """

    values: np.ndarray
    dtype: str
    padding: int = 0
    misalign: int = 0
    batch_padding: int = 0
    buffer: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        batch, rows, columns = self.values.shape
        self.stride = columns + self.padding
        self.batch_stride = rows * self.stride + self.batch_padding if batch > 1 else 0
        size = (batch - 1) * self.batch_stride + (rows - 1) * self.stride + columns
        # Gibibytes are left to the operating system, which provides zeros without touching them.
        bits, poison = BITS[self.dtype], POISON << 16 | POISON if self.item == 4 else POISON
        room = np.full(size + 16, poison, bits) if size < 1 << 24 else np.zeros(size + 16, bits)
        skip = (self.misalign - room.ctypes.data) % 16 // self.item
        self.buffer = room[skip : skip + size]
        self.view[...] = self.values.astype(NUMPY_TYPES[self.dtype]).view(bits)

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return np.dtype(BITS[self.dtype]).itemsize

    @property
    def view(self) -> np.ndarray:
        """The bits [batch, rows, columns], in place."""
        strides = (self.item * self.batch_stride, self.item * self.stride, self.item)
        return np.lib.stride_tricks.as_strided(self.buffer, self.values.shape, strides)

    @property
    def alignment(self) -> int:
        """What divides every row's address, at most 16 (bytes)."""
        strides = [self.misalign, self.item * self.stride, self.item * self.batch_stride]
        return int(np.gcd.reduce([16, *strides]))

    def read(self) -> np.ndarray:
        return self.view.view(NUMPY_TYPES[self.dtype]).astype(np.float64)


@dataclass
class Result:
    """`out` float64 [batch, m, n], its raw memory, and what the emulator counted and its sanitizers found.

    `pre`, if the epilogue has it, is the pre-activation, as stored.
    """

    out: np.ndarray
    memory: np.ndarray
    instructions_per_wave: float
    findings: tuple[emulator.Finding, ...]
    pre: Stored | None = None


@dataclass
class Gemm:
    """One launch: `a` and `b` as stored (transposed where the flag says so), `out` by its padding.

    `b2` is stored as `b` is; bias and residual are contiguous but for the dimensions of which they have 1.
    """

    dtype: str
    a: Stored
    b: Stored
    trans_a: bool = False
    trans_b: bool = False
    bias: np.ndarray | None = None  # float64, broadcastable to [batch, m, n]
    out_padding: int = 0
    out_misalign: int = 0
    epilogue: Epilogue = field(default_factory=Epilogue)
    b2: Stored | None = None
    residual: np.ndarray | None = None  # as the bias
    scale: float = 1.0
    partial: np.ndarray = field(init=False, repr=False)
    arrived: np.ndarray = field(init=False, repr=False)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        a, b = self.a.values.shape, self.b.values.shape
        m, k = a[:0:-1] if self.trans_a else a[1:]
        n = b[1] if self.trans_b else b[2]
        return max(a[0], b[0]), m, n, k

    def problem(self, out: Stored) -> GemmProblem:
        batch, m, n, k = self.sizes
        return GemmProblem(
            self.dtype,  # type: ignore[arg-type]
            m,
            n,
            k,
            batch,
            self.trans_a,
            self.trans_b,
            self.bias is not None,
            self.a.alignment,
            self.b.alignment,
            out.alignment,
            self._alignment(self.bias),
            self._alignment(self.residual),
            self.epilogue,
        )

    def _alignment(self, addend: np.ndarray | None) -> int:
        """`GemmProblem.align_bias` or `align_residual`; such arrays lie at multiples of 16 bytes."""
        if addend is None or addend.ndim == 0 or addend.shape[-1] == 1:
            return 2
        strides = np.broadcast_to(np.empty(addend.shape, np.uint16), self.sizes[:3]).strides
        return int(np.gcd.reduce([16, *strides[:-1]]))

    def operands(self) -> tuple[np.ndarray, np.ndarray]:
        """A [batch, m, k] and B [batch, k, n] in float64, as rounded to the element type."""
        a, b = self.a.read(), self.b.read()
        return a.swapaxes(1, 2) if self.trans_a else a, b.swapaxes(1, 2) if self.trans_b else b

    def run(
        self,
        config: gemm.GemmConfig,
        wave_order: str | int = "lockstep",
        sanitize: str | tuple[str, ...] = (),
    ) -> Result:
        batch, m, n, k = self.sizes
        out_dtype = self.epilogue.out_dtype or self.dtype
        out = Stored(np.full((batch, m, n), -77.0), out_dtype, self.out_padding, self.out_misalign)
        pre = replace(out) if self.epilogue.preactivation else None
        problem = self.problem(out)
        compiled = compile_kernel(gemm.kernel(problem, config))
        memory = emulator.Memory()
        values = {
            **gemm.ABSENT,
            "a": memory.register(self.a.buffer, name="a", writable=False),
            "b": memory.register(self.b.buffer, name="b", writable=False),
            "out": memory.register(out.buffer, name="out"),
            "batch_a": self.a.batch_stride,
            "batch_b": self.b.batch_stride,
            "batch_out": out.batch_stride,
            "m": m,
            "n": n,
            "k": k,
            "ld_a": self.a.stride,
            "ld_b": self.b.stride,
            "ld_out": out.stride,
            **self._addend(memory, "bias", self.bias),
            **self._addend(memory, "residual", self.residual),
            "scale": self.scale,
            **self._split(memory, gemm.shares(problem, config) if config.split else None),
        }
        if self.b2 is not None:
            values["b2"] = memory.register(self.b2.buffer, name="b2", writable=False)
        if pre is not None:
            values["pre"] = memory.register(pre.buffer, name="pre")
        kernel = loaded(compiled)
        grid = gemm.launch(problem, config)
        kernarg = compiled.kernarg.pack(values)
        stats = emulator.launch(
            kernel, grid.grid, grid.block, kernarg, memory, wave_order=wave_order, sanitize=sanitize
        )
        if config.split:
            assert not self.arrived.any(), "a launch leaves its counters at zero"
        waves = stats.workgroups * config.waves
        return Result(out.read(), out.buffer.copy(), stats.wave_instructions / waves, stats.findings, pre)

    def _split(self, memory: emulator.Memory, shares: gemm.Shares | None) -> dict[str, int]:
        """Partial sums are poison before a launch; counters are zero before it and after it."""
        if shares is None:
            return {}
        self.partial = np.full(max(1, shares.sums), np.nan, np.float32)
        self.arrived = np.zeros(shares.counters, np.int32)
        return {
            "partial": memory.register(self.partial, name="partial"),
            "arrived": memory.register(self.arrived, name="arrived"),
            "parts": shares.parts,
            "part_k": shares.part_k,
            "whole": shares.whole,
        }

    def _addend(self, memory: emulator.Memory, name: str, addend: np.ndarray | None) -> dict[str, int]:
        if addend is None:
            return {}
        data = addend.astype(NUMPY_TYPES[self.dtype]).view(np.uint16)
        strides = np.broadcast_to(data, self.sizes[:3]).strides
        address = memory.register(data, name=name, writable=False)
        names = (f"{name}_{dim}" for dim in ("batch", "m", "n"))
        return {name: address, **{name: stride // 2 for name, stride in zip(names, strides, strict=True)}}


def reference(case: Gemm) -> tuple[np.ndarray, np.ndarray]:
    """The exact result (up to float64) and the sum of the magnitudes of its terms, both [batch, m, n]."""
    a, b = case.operands()
    exact, magnitude = a @ b, abs(a) @ abs(b)
    if case.bias is not None:
        bias = case.bias.astype(NUMPY_TYPES[case.dtype]).astype(np.float64)
        exact, magnitude = exact + bias, magnitude + abs(bias)
    return exact, magnitude


def half_ulp(values: np.ndarray, dtype: str) -> np.ndarray:
    """Half the distance between neighbours of the element type around each value."""
    bits, smallest = PRECISION[dtype]
    exponents = np.maximum(np.frexp(values)[1] - 1, smallest)
    return np.ldexp(0.5, exponents - bits + 1)


def bound(case: Gemm) -> np.ndarray:
    """How far a result may be from the exact one, [batch, m, n].

    A product of two 16-bit floats is exact in float32 (at most 22 significant bits). Whatever the order,
    each of the K products, and the bias, goes through at most K roundings to float32, so the sum is off by
    at most g * (sum|a||b| + |bias|) with g = K u / (1 - K u), u = 2^-24 (Higham, Accuracy and Stability of
    Numerical Algorithms, section 4.2). Rounding the sum to the element type adds half an ulp of the sum,
    whose magnitude is at most |exact| plus that error.
    """
    exact, magnitude = reference(case)
    roundings = case.sizes[3] * 2.0**-24
    error = roundings / (1 - roundings) * magnitude
    return error + half_ulp(abs(exact) + error, case.dtype)
