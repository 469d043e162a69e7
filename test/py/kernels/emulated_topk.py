"""Runs top-k kernels on the emulated device against `torch.sort(stable=True)`.

Every operand's registered memory begins with its first element and ends with its last, so that a stray
access is a fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from loaded_kernels import loaded
from torch import Tensor

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.contracts import Reason, TopkProblem
from flycc.kernels import topk

TORCH_TYPES: dict[str, torch.dtype] = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i32": torch.int32,
}


@dataclass
class Outcome:
    """`values` and `indices` [rows, k], and what the sanitizers found in all launches."""

    values: Tensor
    indices: Tensor
    findings: tuple[emulator.Finding, ...]
    config: topk.TopkConfig


def bits(tensor: Tensor) -> np.ndarray:
    """The bits of a CPU tensor's elements, in place."""
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32).numpy()


def chosen(problem: TopkProblem) -> topk.TopkConfig:
    config = topk.choose(problem)
    assert not isinstance(config, Reason), str(config)
    return config


def run(
    x: Tensor,
    problem: TopkProblem,
    config: topk.TopkConfig | None = None,
    **launching: Any,
) -> Outcome:
    """The launches of `config`, by default the one chosen for `problem`, on `x`.

    `x` is [rows, columns] with unit column stride. `launching` goes to `emulator.launch`.
    """
    config = config or chosen(problem)
    rows = x.shape[0]
    memory = emulator.Memory()
    flat = x.as_strided(((rows - 1) * x.stride(0) + x.shape[1],), (1,))
    source, places, stride = memory.register(bits(flat), name="x", writable=False), 0, x.stride(0)
    findings: list[emulator.Finding] = []
    for step in config.steps:
        last = step is config.steps[-1]
        values = torch.full((rows, step.parts * step.k), -77, dtype=x.dtype)
        indices = torch.full(values.shape, -1, dtype=torch.int64 if last else torch.int32)
        work = np.zeros(max(1, rows * step.work), np.int32)
        arguments = {
            "x": source,
            "places": places,
            "values": memory.register(bits(values), name="values"),
            "indices": memory.register(indices.numpy(), name="indices"),
            "work": memory.register(work, name="work"),
            "ld_x": stride,
            "n": step.n,
            "k": step.k,
            "rows": rows,
            "chunk": step.chunk,
        }
        compiled = compile_kernel(topk.kernel(step.variant))
        kernel = loaded(compiled)
        geometry = topk.launch(step, rows)
        stats = emulator.launch(
            kernel, geometry.grid, geometry.block, compiled.kernarg.pack(arguments), memory, **launching
        )
        findings += stats.findings
        source, places, stride = arguments["values"], arguments["indices"], values.shape[1]
    return Outcome(values, indices, tuple(findings), config)


def check(
    x: Tensor, k: int, *, largest: bool = True, sorted: bool = True, what: str = "", **launching: Any
) -> Outcome:
    """Runs the kernels chosen for the k best of `x`, which must be those of `torch.sort(stable=True)`, bit by bit.

    Unsorted results must be the same ones in some order.
    """
    dtype = next(name for name, kind in TORCH_TYPES.items() if kind == x.dtype)
    size = x.element_size()
    address = x.data_ptr() | x.stride(0) * size
    problem = TopkProblem(
        dtype,  # type: ignore[arg-type]
        *x.shape,
        k,
        largest,
        sorted,
        align=min(16, address & -address),
    )
    outcome = run(x, problem, **launching)
    values, indices = outcome.values, outcome.indices
    expected = torch.sort(x, dim=-1, stable=True, descending=largest).indices[:, :k]
    if not sorted:
        expected, indices = expected.sort(-1).values, indices.sort(-1).values
    what = f"{problem} {outcome.config} {what}"
    assert torch.equal(indices, expected), what
    gathered = x.gather(1, outcome.indices)
    assert np.array_equal(bits(values), bits(gathered)), what
    return outcome
