"""Runs the kernels that quantise, dequantise and find ranges on the emulated device, where every stray access shows:
see `emulated_rms_norm`. Results hold `UNSET` before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from emulated_rms_norm import NUMPY_TYPES, Matrix, Run

from flycc.contracts.mx import MxDequantizeProblem, MxQuantizeProblem, ScaleRangeProblem
from flycc.kernels import mx_quantize as family
from flycc.kernels.common.spec import Launch

UNSET = 0xAB


@dataclass
class Quantized:
    data: np.ndarray
    scales: np.ndarray
    range: list[int]


def unset(rows: int, columns: int, kind: Any = np.uint8) -> Matrix:
    return Matrix(np.full((rows, columns), UNSET, np.uint8).astype(kind))


def quantize(
    problem: MxQuantizeProblem, x: Matrix, run: Run, config: Any = None, groups: int | None = None
) -> Quantized:
    rows, columns = x.values.shape
    config = config or family.choose(problem)
    assert isinstance(config, family.RowsConfig), config
    shares = family.shares(problem, config)
    if groups is not None:
        launch = Launch((shares.launch.grid[0], groups, 1), shares.launch.block)
        shares = replace(shares, launch=launch, groups=groups, turns=-(-rows // (config.rows * groups)))
    arrived = Matrix(np.zeros((1, 1), np.int32))
    outputs = {
        "data": unset(rows, -(-columns // 2) if problem.format == "e2m1" else columns),
        "scales": unset(rows, -(-columns // 32)),
        "partial": unset(1, shares.workgroups, np.int32),
        "arrived": arrived,
        "range": unset(1, 3, np.int32),
    }
    numbers = {**shares.numbers, "ld_x": x.stride, "workgroups": shares.workgroups}
    run.launch(family.quantize_kernel(problem, config), shares.launch, {"x": x}, outputs, numbers)
    assert arrived.view[0, 0] == 0
    return Quantized(
        outputs["data"].view.copy(), outputs["scales"].view.copy(), outputs["range"].view[0].tolist()
    )


def dequantize(
    problem: MxDequantizeProblem, data: Matrix, scales: Matrix, run: Run, config: Any = None
) -> np.ndarray:
    config = config or family.choose(problem)
    assert isinstance(config, family.RowsConfig), config
    shares = family.shares(problem, config)
    rows, columns = len(data.values), int(problem.columns)
    out = Matrix(np.full((rows, columns), -77.0).astype(NUMPY_TYPES[problem.dtype]))
    numbers = {**shares.numbers, "ld_data": data.stride, "ld_scales": scales.stride}
    inputs = {"data": data, "scales": scales}
    run.launch(family.dequantize_kernel(problem, config), shares.launch, inputs, {"out": out}, numbers)
    return out.view.copy()


def scale_range(bytes_: np.ndarray, run: Run) -> list[int]:
    problem = ScaleRangeProblem(bytes_.size)
    shares = family.range_shares(problem)
    assert isinstance(shares, family.Shares), shares
    outputs = {
        "partial": unset(1, shares.workgroups, np.int32),
        "arrived": Matrix(np.zeros((1, 1), np.int32)),
        "range": unset(1, 3, np.int32),
    }
    inputs = {"scales": Matrix(bytes_[None])}
    run.launch(family.range_kernel(problem), shares.launch, inputs, outputs, shares.numbers)
    assert outputs["arrived"].view[0, 0] == 0
    return outputs["range"].view[0].tolist()
