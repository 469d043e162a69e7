"""Runs RMS norm kernels on the emulated device, with memory laid out so that every stray access shows.

An operand's registered memory begins with its first element and ends with its last, so that an access beyond
either is a fault; what lies between its rows is NaN, and what a kernel must leave alone is checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from loaded_kernels import loaded

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.contracts import RmsNormBackwardProblem, RmsNormProblem
from flycc.kernels import rms_norm
from flycc.kernels.common.spec import KernelSpec, Launch

NUMPY_TYPES: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
#: Explicit mantissa bits + 1, and the exponent of the smallest normal number.
PRECISION = {"bf16": (8, -126), "f16": (11, -14), "f32": (24, -126)}


@dataclass
class Matrix:
    """[rows, columns] in memory, `padding` elements between rows, at `misalign` bytes past a multiple of 16."""

    values: np.ndarray
    padding: int = 0
    misalign: int = 0

    def __post_init__(self) -> None:
        rows, columns = self.values.shape
        self.stride = columns + self.padding
        size = (rows - 1) * self.stride + columns
        room = np.full(size * self.values.itemsize + 32, 0xFF, np.uint8)
        skip = (self.misalign - room.ctypes.data) % 16
        self.buffer = room[skip : skip + size * self.values.itemsize]
        self.view[...] = self.values

    @property
    def view(self) -> np.ndarray:
        """The elements, in place."""
        flat = self.buffer.view(self.values.dtype)
        return np.lib.stride_tricks.as_strided(
            flat, self.values.shape, (self.stride * flat.itemsize, flat.itemsize)
        )


@dataclass
class Run:
    """How to launch: what `flycc.emulator.launch` takes, and what came of it."""

    wave_order: str | int = "lockstep"
    sanitize: str | Sequence[str] = "all"
    findings: tuple[emulator.Finding, ...] = ()
    scratch_bytes: int = 0

    def launch(
        self,
        spec: KernelSpec,
        geometry: Launch,
        inputs: Mapping[str, Matrix],
        outputs: Mapping[str, Matrix],
        numbers: Mapping[str, int | float],
    ) -> None:
        compiled = compile_kernel(spec)
        memory = emulator.Memory()
        values: dict[str, int | float] = dict.fromkeys(spec.kernarg.names, 0)
        for name, matrix in inputs.items():
            values[name] = memory.register(matrix.buffer, name=name, writable=False)
        for name, matrix in outputs.items():
            values[name] = memory.register(matrix.buffer, name=name)
        kernel = loaded(compiled)
        stats = emulator.launch(
            kernel,
            geometry.grid,
            geometry.block,
            compiled.kernarg.pack(values | numbers),
            memory,
            wave_order=self.wave_order,
            sanitize=self.sanitize,
        )
        self.findings += stats.findings
        self.scratch_bytes = max(self.scratch_bytes, kernel.descriptor.scratch_bytes)


def forward(
    problem: RmsNormProblem,
    operands: Mapping[str, Matrix],
    eps: float,
    run: Run,
    config: rms_norm.RmsNormConfig | None = None,
) -> dict[str, np.ndarray]:
    """y, and new_residual and rstd where the problem has them; `operands` are x and where needed residual, weight."""
    rows, columns = operands["x"].values.shape
    config = config or rms_norm.choose(problem)
    assert isinstance(config, rms_norm.RmsNormConfig), config
    outputs = {"y": _unset(rows, columns, problem.out_dtype)}
    if problem.mx is not None:
        outputs["y"] = _bytes(rows, columns // 2 if problem.mx == "e2m1" else columns)
        outputs["scales"] = _bytes(rows, columns // 32)
    if problem.residual:
        outputs["new_residual"] = _unset(rows, columns, problem.dtype)
    if problem.rstd:
        outputs["rstd"] = _unset(rows, 1, "f32")
    numbers = {
        "ld_x": operands["x"].stride,
        "ld_residual": operands["residual"].stride if problem.residual else 0,
        "rows": rows,
        "columns": columns,
        "whole": rms_norm.whole_columns(columns, problem.dtype),
        "eps": eps,
    }
    spec, geometry = rms_norm.kernel(problem, config), rms_norm.launch(problem, config)
    run.launch(spec, geometry, operands, outputs, numbers)
    return {name: matrix.view.copy() for name, matrix in outputs.items()}


def backward(
    problem: RmsNormBackwardProblem, operands: Mapping[str, Matrix], run: Run
) -> tuple[np.ndarray, np.ndarray]:
    """dx, and float32 [n, columns] that sum to dweight; `operands` are grad, x, rstd and where needed weight."""
    rows, columns = operands["x"].values.shape
    steps = rms_norm.plan_backward(problem)
    assert isinstance(steps, tuple), steps
    outputs = {"dx": _unset(rows, columns, problem.dtype)}
    if problem.weight != "none":
        outputs["partial"] = _unset(steps[-1].partial_rows, columns, "f32")
    for step in steps:
        numbers = {
            "ld_grad": operands["grad"].stride,
            "ld_x": operands["x"].stride,
            "rows": rows,
            "columns": columns,
            "whole": rms_norm.whole_columns(columns, problem.dtype),
            "groups": step.groups,
            "turns": step.turns,
        }
        spec = rms_norm.backward_kernel(problem, step.config, step.what)
        run.launch(spec, step.launch, operands, outputs, numbers)
    partial = outputs["partial"].view if problem.weight != "none" else np.zeros((0, columns), np.float32)
    return outputs["dx"].view.copy(), partial.copy()


def _bytes(rows: int, columns: int) -> Matrix:
    return Matrix(np.full((rows, columns), 0xAB, np.uint8))


def _unset(rows: int, columns: int, dtype: str) -> Matrix:
    return Matrix(np.full((rows, columns), -77.0).astype(NUMPY_TYPES[dtype]))


def ulp(values: np.ndarray, dtype: str) -> np.ndarray:
    """The distance between neighbours of the element type around each value."""
    bits, smallest = PRECISION[dtype]
    exponents = np.maximum(np.frexp(values)[1] - 1, smallest)
    return np.ldexp(1.0, exponents - bits + 1)
