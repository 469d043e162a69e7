"""Bytes that the RMS norm kernels move, against the least possible, for published shapes, from emulated launches.

A few workgroups of the published grid are traced. The least is every operand once. "moved" is what lanes ask of the
operands whose rows no other workgroup has, with every repetition, and of the weight, which stays in L2, its bytes
once. "lines" counts whole 128-byte lines that a workgroup touches instead, those at its ends in full.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from flycc import emulator
from flycc.benchmarks.modelled_times import show_times, with_times
from flycc.benchmarks.traffic import Traffic, traffic
from flycc.cli.output import table
from flycc.codegen import compile_kernel
from flycc.contracts import RmsNormProblem
from flycc.contracts.rms_norm import NormDtype
from flycc.kernels import rms_norm
from flycc.kernels.rms_norm.config import BYTES

#: (dtype, rows, columns) of the published table, and decoding and head-sized rows.
SHAPES: tuple[tuple[NormDtype, int, int], ...] = (
    *(
        (dtype, rows, columns)
        for dtype in ("f16", "bf16", "f32")
        for rows, columns in (
            *((8192, 4096), (4096, 8192), (2048, 16384), (2048, 32768), (2048, 65536), (2048, 114688)),
            *((8192, 4097), (4096, 8193), (2048, 16385), (2048, 32769)),
        )
    ),
    *(("bf16", rows, columns) for rows, columns in ((1, 576), (1, 4096), (65536, 64), (65536, 128))),
)
#: Workgroups that are traced: rows that start alike and rows that do not.
TRACED = 2

_NUMPY: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}


def measure() -> list[dict[str, Any]]:
    """A figure for each shape, of y = rms_norm(x, weight), with its times."""
    problems = [RmsNormProblem(dtype, rows, columns, dtype) for dtype, rows, columns in SHAPES]
    return [
        with_times(problem, shape[1:], figure(problem))
        for problem, shape in zip(problems, SHAPES, strict=True)
    ]


def figure(problem: RmsNormProblem) -> dict[str, Any]:
    """What the kernel of `problem` moves, as a multiple of the least, and how."""
    rows, columns = int(problem.rows), int(problem.columns)
    config = rms_norm.choose(problem)
    assert isinstance(config, rms_norm.RmsNormConfig)
    groups = min(TRACED, -(-rows // config.rows))
    traced_rows = min(rows, groups * config.rows)
    found = launch(problem, config, traced_rows)
    own = ("x", "y")
    row_bytes = 2 * columns * BYTES[problem.dtype]
    weight = columns * BYTES[problem.weight]
    least = rows * row_bytes + weight
    return {
        "dtype": problem.dtype,
        "rows": rows,
        "columns": columns,
        "config": str(config),
        "least_bytes": least,
        "moved_over_least": (sum(found.requested[name] for name in own) * rows / traced_rows + weight)
        / least,
        "lines_over_least": (sum(found.lines[name] for name in own) * rows / traced_rows + weight) / least,
        "accesses": {f"{name} {kind} {size}": n for (name, kind, size), n in sorted(found.widths.items())},
        "share_of_16_bytes": wide_share(found),
        "lds_conflict_clocks": found.lds_conflict_clocks,
        "waves_per_compute_unit": found.waves_per_unit,
    }


def wide_share(found: Traffic) -> float:
    """The share of waves' accesses to memory that have 16 bytes a lane."""
    wide = sum(n for (_, _, size), n in found.widths.items() if size == 16)
    return wide / sum(found.widths.values())


def launch(problem: RmsNormProblem, config: rms_norm.RmsNormConfig, rows: int) -> Traffic:
    """The traffic of the kernel of `problem` on `rows` of its rows."""
    columns = int(problem.columns)
    spec = rms_norm.kernel(problem, config)
    compiled = compile_kernel(spec)
    rng = np.random.default_rng(columns)
    arrays = {
        name: rng.standard_normal(shape).astype(_NUMPY[problem.dtype])
        for name, shape in (("x", (rows, columns)), ("weight", (columns,)), ("y", (rows, columns)))
    }
    memory = emulator.Memory()
    operands = {
        name: (memory.register(array.view(np.uint8), name=name), array.nbytes)
        for name, array in arrays.items()
    }
    values: dict[str, int | float] = dict.fromkeys(spec.kernarg.names, 0)
    values |= {name: address for name, (address, _) in operands.items()}
    values |= {"ld_x": columns, "rows": rows, "columns": columns, "eps": 1e-6}
    values["whole"] = rms_norm.whole_columns(columns, problem.dtype)
    geometry = rms_norm.launch(RmsNormProblem(problem.dtype, rows, columns, problem.weight), config)
    kernel = emulator.load(compiled.elf).kernels[compiled.symbol]
    return traffic(kernel, geometry, spec.kernarg.pack(values), memory, operands)


def show(figures: list[dict[str, Any]]) -> None:
    """The table a person reads."""
    shapes = [f"{f['dtype']} {f['rows']}x{f['columns']}" for f in figures]
    rows = [
        (
            shape,
            f["config"],
            f"{f['moved_over_least']:.3f}",
            f"{f['lines_over_least']:.3f}",
            f"{f['share_of_16_bytes']:.0%}",
            f["lds_conflict_clocks"],
            f["waves_per_compute_unit"],
        )
        for shape, f in zip(shapes, figures, strict=True)
    ]
    headings = ("shape", "configuration", "moved", "lines", "16 B", "conflicts", "waves")
    table("RMS norm: bytes over the least, emulated", headings, rows)
    show_times("RMS norm: modelled us, and published us", list(zip(shapes, figures, strict=True)))
