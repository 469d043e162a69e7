"""Modelled times of the kernels that quantise, dequantise and find ranges of scales, against the least that the bytes
which each must move take at the rate that HBM reaches.
"""

from __future__ import annotations

from typing import Any

from flycc.cli.output import table
from flycc.contracts import MxDequantizeProblem, MxQuantizeProblem, Reason, ScaleRangeProblem
from flycc.contracts.scaled_gemm import BLOCK_K, ELEMENT_BITS
from flycc.costmodel import MI350
from flycc.kernels import mx_quantize as family
from flycc.kernels.mx_quantize.config import BYTES, Rows
from flycc.tuning.modelled import Step, predicted

Problem = MxQuantizeProblem | MxDequantizeProblem | ScaleRangeProblem

#: Weights and activations of large models, a decoded token, and rows that are not whole blocks.
PROBLEMS: tuple[Problem, ...] = (
    *(MxQuantizeProblem("bf16", format, 8192, 8192) for format in ("e4m3", "e5m2", "e2m1")),
    MxQuantizeProblem("f32", "e2m1", 8192, 8192),
    *(MxQuantizeProblem("bf16", "e2m1", rows, 8192) for rows in (2048, 64, 1)),
    MxQuantizeProblem("bf16", "e4m3", 8192, 8200),
    *(MxDequantizeProblem(format, "bf16", 8192, 8192) for format in ("e4m3", "e2m1")),
    ScaleRangeProblem(8192 * 8192 // BLOCK_K),
)


def measure() -> dict[str, Any]:
    """A figure for each problem."""
    return {"problems": [figure(problem) for problem in PROBLEMS]}


def figure(problem: Problem) -> dict[str, Any]:
    """Modelled microseconds of a launch that a graph replays, and what share of them the least takes."""
    step, least = step_of(problem)
    modelled = predicted(step)
    time, least_us = modelled.time, least / MI350.hbm_tb_s * 1e-6
    return {
        "problem": str(problem),
        "least_bytes": least,
        "modelled_us": {part: getattr(time, part) for part in ("low", "typical", "high")},
        "least_us": least_us,
        "share_of_roof": least_us / time.typical,
    }


def step_of(problem: Problem) -> tuple[Step, int]:
    """The launch for a contiguous problem, and the bytes of its operands and results."""
    if isinstance(problem, ScaleRangeProblem):
        shares = family.range_shares(problem)
        assert isinstance(shares, family.Shares), shares
        buffers, numbers = {"scales": int(problem.count)}, shares.numbers
        kernel = family.range_kernel(problem)
    elif isinstance(problem, MxQuantizeProblem):
        problem = family.flat(problem)
        config = _chosen(problem)
        shares = family.shares(problem, config)
        buffers = _buffers(problem, "x")
        numbers = {**shares.numbers, "ld_x": shares.sizes["columns"], "workgroups": shares.workgroups}
        kernel = family.quantize_kernel(problem, config)
    else:
        problem = family.flat(problem)
        config = _chosen(problem)
        shares = family.shares(problem, config)
        buffers = _buffers(problem, "out")
        strides = {f"ld_{name}": buffers[name] // shares.sizes["rows"] for name in ("data", "scales")}
        numbers, kernel = {**shares.numbers, **strides}, family.dequantize_kernel(problem, config)
    meeting = {"partial": 4 * shares.workgroups, "arrived": 4, "range": 12}
    pointers = buffers | {name: size for name, size in meeting.items() if name in kernel.kernarg.pointers}
    return Step(kernel, shares.launch, pointers, numbers), sum(buffers.values())


def _chosen(problem: Rows) -> family.RowsConfig:
    config = family.choose(problem)
    assert not isinstance(config, Reason), config
    return config


def _buffers(problem: MxQuantizeProblem | MxDequantizeProblem, wide: str) -> dict[str, int]:
    """Bytes by the names of arguments; `wide` is that of what is not in an MX format."""
    rows, columns = int(problem.rows), int(problem.columns)
    return {
        wide: rows * columns * BYTES[problem.dtype],
        "data": rows * -(-columns * ELEMENT_BITS[problem.format] // 8),
        "scales": rows * -(-columns // BLOCK_K),
    }


def show(figures: dict[str, Any]) -> None:
    """The table a person reads."""
    rows = []
    for found in figures["problems"]:
        low, typical, high = (found["modelled_us"][part] for part in ("low", "typical", "high"))
        interval = f"{typical:.1f} [{low:.1f}, {high:.1f}]"
        what, _, how = found["problem"].partition(" ")
        how = how.removesuffix(" align 16").removesuffix(" floor")
        rows.append(
            (
                f"{what.removeprefix('mx_')} {how}",
                interval,
                f"{found['least_us']:.1f}",
                f"{found['share_of_roof']:.0%}",
            )
        )
    headings = ("problem", "modelled us", "least us", "of roof")
    table(f"MX quantisation: modelled us, and the least at {MI350.hbm_tb_s} TB/s", headings, rows)
