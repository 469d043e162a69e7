"""Traces of flycc's GEMM kernels: a few workgroups of a launch, on matrices of zeros."""

from __future__ import annotations

from functools import cache

import numpy as np

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.contracts import GemmProblem
from flycc.costmodel import neighbours
from flycc.emulator.trace import Trace
from flycc.emulator.trace_recorder import Recorder
from flycc.kernels import gemm


@cache
def gemm_trace(m: int, n: int, k: int, config: gemm.GemmConfig | None = None) -> Trace:
    """Of bf16, NT."""
    problem = GemmProblem("bf16", m, n, k, trans_b=True)
    chosen = config or gemm.choose(problem)
    assert isinstance(chosen, gemm.GemmConfig)
    compiled, extent = compile_kernel(gemm.kernel(problem, chosen)), gemm.launch(problem, chosen)
    memory = emulator.Memory()
    values = dict.fromkeys(compiled.kernarg.names, 0)
    values |= {"m": m, "n": n, "k": k, "ld_a": k, "ld_b": k, "ld_out": n}
    shapes = {"a": (m, k), "b": (n, k), "out": (m, n)}
    values |= {name: memory.register(np.zeros(shape, np.uint16)) for name, shape in shapes.items()}
    kernel = emulator.load(compiled.elf).kernels[compiled.symbol]
    recorder = Recorder()
    emulator.launch(
        kernel,
        extent.grid,
        extent.block,
        compiled.kernarg.pack(values),
        memory,
        workgroups=neighbours(extent.grid),
        observers=(recorder,),
    )
    return recorder.trace()
