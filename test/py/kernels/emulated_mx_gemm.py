"""Runs MX products on the emulated device, with memory laid out so that every stray access shows.

An operand's registered memory ends with its last byte and begins with its first, so that a read beyond either is a
fault; between its rows are NaNs (elements of 8 bits) or largest numbers (of 4). Codes are uint8 [rows, K], scales uint8
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from emulated_gemm import NUMPY_TYPES, PRECISION, Stored
from loaded_kernels import loaded

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.contracts import Epilogue
from flycc.contracts.scaled_gemm import ELEMENT_BITS, ElementFormat, ScaledGemmProblem, ScaleKind
from flycc.kernels import mx

#: numpy's types of elements; codes of 4 bits are the low halves of bytes.
ELEMENTS: dict[str, Any] = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
BLOCK = 32


def decoded(element: ElementFormat, codes: np.ndarray) -> np.ndarray:
    """The numbers in float64 that codes stand for."""
    table = np.arange(1 << ELEMENT_BITS[element], dtype=np.uint8).view(ELEMENTS[element])
    return table.astype(np.float64)[codes]


def powers(scales: np.ndarray) -> np.ndarray:
    """2^(byte - 127) in float64, and NaN for 255."""
    return np.where(scales == 255, np.nan, np.ldexp(1.0, scales.astype(np.int64) - 127))


@dataclass
class Side:
    """One operand: `codes` [rows, K], scales as its `kind` has them: bytes [rows, ceil(K / 32)] or [rows], or float32
    [rows] (of one element: for all rows). Rows are `padding` bytes apart, and begin `misalign` bytes off multiples of
    16."""

    element: ElementFormat
    codes: np.ndarray
    kind: ScaleKind = "block"
    scales: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint8))
    padding: int = 0
    misalign: int = 0
    scale_misalign: int = 0

    def __post_init__(self) -> None:
        rows, k = self.codes.shape
        data = self.codes
        if ELEMENT_BITS[self.element] == 4:
            assert k % 2 == 0, "two elements share a byte"
            data = data[:, ::2] | data[:, 1::2] << 4
        self.stride = data.shape[1] + self.padding
        size = (rows - 1) * self.stride + data.shape[1]
        self.buffer = _placed(size, self.misalign)
        view = np.lib.stride_tricks.as_strided(self.buffer, data.shape, (self.stride, 1))
        view[...] = data
        flat = np.ascontiguousarray(self.scales).reshape(-1).view(np.uint8)
        self.scale_buffer = _placed(max(1, flat.size), self.scale_misalign)
        self.scale_buffer[: flat.size] = flat

    @property
    def alignment(self) -> int:
        return int(np.gcd.reduce([16, self.buffer.ctypes.data, self.stride]))

    @property
    def scale_alignment(self) -> int:
        return int(np.gcd.reduce([16, self.scale_buffer.ctypes.data, self.scales.shape[-1]]))

    def elements(self) -> np.ndarray:
        """Numbers in float64 [rows, K], scaled by block scales."""
        found = decoded(self.element, self.codes)
        if self.kind != "block":
            return found
        return found * np.repeat(powers(self.scales), BLOCK, axis=1)[:, : found.shape[1]]

    def rows(self) -> np.ndarray:
        """The factor of each row in float64."""
        count = len(self.codes)
        if self.kind not in ("row", "row_f32"):
            return np.ones(count)
        factors = powers(self.scales) if self.kind == "row" else self.scales.astype(np.float64)
        return np.broadcast_to(factors, (count,))


def _placed(size: int, misalign: int) -> np.ndarray:
    """`size` bytes of 0x7f that begin `misalign` bytes off a multiple of 16."""
    room = np.full(size + 32, 0x7F, np.uint8)
    skip = (misalign - room.ctypes.data) % 16
    return room[skip : skip + size]


@dataclass
class Result:
    """`out` float64 [m, n]; `stored` is its memory."""

    out: np.ndarray
    stored: Stored
    findings: list[Any]
    pre: np.ndarray | None


@dataclass
class Mx:
    """One product; `bias` and `residual` float64, broadcastable to [m, n]."""

    a: Side
    b: Side
    dtype: str = "bf16"
    bias: np.ndarray | None = None
    residual: np.ndarray | None = None
    epilogue: Epilogue = field(default_factory=Epilogue)
    scale: float = 1.0
    out_padding: int = 0
    out_misalign: int = 0

    @property
    def sizes(self) -> tuple[int, int, int]:
        return len(self.a.codes), len(self.b.codes), self.a.codes.shape[1]

    def problem(self, out: Stored) -> ScaledGemmProblem:
        m, n, k = self.sizes
        return ScaledGemmProblem(
            self.a.element,
            self.b.element,
            self.dtype,  # type: ignore[arg-type]
            m,
            n,
            k,
            self.a.kind,
            self.b.kind,
            self.bias is not None,
            self.a.alignment,
            self.b.alignment,
            self.a.scale_alignment if self.a.kind == "block" else 16,
            self.b.scale_alignment if self.b.kind == "block" else 16,
            out.alignment,
            self._alignment(self.bias),
            self._alignment(self.residual),
            self.epilogue,
        )

    def _alignment(self, addend: np.ndarray | None) -> int:
        if addend is None or addend.ndim == 0 or addend.shape[-1] == 1:
            return 2
        item = np.dtype(NUMPY_TYPES[self.dtype]).itemsize
        return int(
            np.gcd.reduce([16, item * addend.shape[-1] if addend.ndim > 1 and len(addend) > 1 else 16])
        )

    def run(
        self,
        config: mx.MxConfig,
        wave_order: str | int = "lockstep",
        sanitize: str | tuple[str, ...] = (),
        mfma_order: str = "fast",
    ) -> Result:
        m, n, k = self.sizes
        out = Stored(
            np.full((1, m, n), -77.0),
            self.epilogue.out_dtype or self.dtype,
            self.out_padding,
            self.out_misalign,
        )
        before = out.buffer.copy()
        pre = Stored(np.full((1, m, n), -77.0), out.dtype, self.out_padding, self.out_misalign)
        problem = self.problem(out)
        compiled = compile_kernel(mx.kernel(problem, config))
        memory = emulator.Memory()
        scales = [
            packed(side.scales, mx.Packing.of(problem))
            if config.packed and side.kind == "block"
            else side.scale_buffer
            for side in (self.a, self.b)
        ]
        values: dict[str, int | float] = {
            **mx.ABSENT,
            "a": memory.register(self.a.buffer, name="a", writable=False),
            "b": memory.register(self.b.buffer, name="b", writable=False),
            "scale_a": memory.register(scales[0], name="scale_a", writable=False),
            "scale_b": memory.register(scales[1], name="scale_b", writable=False),
            "out": memory.register(out.buffer, name="out"),
            "m": m,
            "n": n,
            "k": mx.pairs(mx.widest(problem), k),
            "ld_a": self.a.stride // 2,
            "ld_b": self.b.stride // 2,
            "row_a": int(self.a.scales.size > 1),
            "row_b": int(self.b.scales.size > 1),
            "ld_out": out.stride,
            "scale": self.scale,
            **self._addend(memory, "bias", self.bias),
            **self._addend(memory, "residual", self.residual),
        }
        if self.epilogue.preactivation:
            values["pre"] = memory.register(pre.buffer, name="pre")
        arrived = np.zeros(1, np.int32)
        if config.split:
            shares = mx.shares(problem, config)
            arrived = np.zeros(shares.counters, np.int32)
            values |= {
                "partial": memory.register(np.full(max(1, shares.sums), np.nan, np.float32), name="partial"),
                "arrived": memory.register(arrived, name="arrived"),
                "parts": shares.parts,
                "part_k": shares.part_k,
                "whole": shares.whole,
            }
        kernel = loaded(compiled)
        grid = mx.launch(problem, config)
        kernarg = compiled.kernarg.pack(values)
        stats = emulator.launch(
            kernel,
            grid.grid,
            grid.block,
            kernarg,
            memory,
            wave_order=wave_order,
            sanitize=sanitize,
        )
        assert not arrived.any(), "a launch leaves its counters at zero"
        between = np.ones(out.buffer.size, bool)
        np.lib.stride_tricks.as_strided(between, (m, n), (out.stride, 1))[...] = False
        assert (out.buffer[between] == before[between]).all(), "what lies between rows stays"
        return Result(
            out.read()[0], out, stats.findings, pre.read()[0] if self.epilogue.preactivation else None
        )

    def _addend(
        self, memory: emulator.Memory, name: str, addend: np.ndarray | None
    ) -> dict[str, int | float]:
        if addend is None:
            return {}
        data = addend.astype(NUMPY_TYPES[self.dtype])
        strides = [stride // data.itemsize for stride in np.broadcast_to(data, self.sizes[:2]).strides]
        address = memory.register(data.view(np.uint8), name=name, writable=False)
        return {name: address, **{f"{name}_{dim}": s for dim, s in zip("mn", strides, strict=True)}}


def packed(scales: np.ndarray, packing: mx.Packing) -> np.ndarray:
    """Scales [rows, blocks] as `kernels.mx.pack` describes them."""
    rows, blocks = scales.shape
    whole = np.zeros((-(-rows // 64) * 64, packing.steps * 4 * packing.slices), np.uint8)
    whole[:rows, :blocks] = scales
    parts = whole.reshape(-1, 4, 16, packing.steps, packing.slices, 4)
    return np.ascontiguousarray(parts.transpose(0, 3, 5, 2, 4, 1)).reshape(-1)


def reference(case: Mx) -> tuple[np.ndarray, np.ndarray]:
    """The exact sums, scaled by rows, in float64, and the sums of their terms' magnitudes, [m, n] both; NaN where a
    scale or an element is."""
    a, b = case.a.elements(), case.b.elements()
    factors = np.outer(case.a.rows(), case.b.rows())
    with np.errstate(invalid="ignore", over="ignore"):
        return (a @ b.T) * factors, (abs(a) @ abs(b).T) * abs(factors)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64 numbers as the element type has them."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32).astype(NUMPY_TYPES[dtype]).astype(np.float64)


def relative_rms(out: np.ndarray, exact: np.ndarray) -> float:
    """Of the difference, relative to the exact."""
    return float(np.sqrt(np.mean((out - exact) ** 2) / np.mean(exact**2)))


__all__ = [
    "PRECISION",
    "Mx",
    "Result",
    "Side",
    "decoded",
    "packed",
    "powers",
    "reference",
    "relative_rms",
    "rounded",
]
