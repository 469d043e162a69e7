"""Runs the kernel of wide heads on the emulated device; memory as `emulated_attention_backward` lays it out."""

from __future__ import annotations

import numpy as np
import torch
from attention_reference import Attention
from emulated_attention_backward import Run, Strided, _plain, problem_of
from torch import Tensor

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.kernels.attention.kernarg import FORWARD
from flycc.kernels.attention.wide_host import wide_kernel, wide_launch


def forward(
    operands: Attention, run: Run, seed: tuple[int, int] = (0, 0), align_out: int = 16
) -> tuple[Tensor, Tensor]:
    """out and lse."""
    problem = problem_of(operands, align_out).forward
    batch, heads, queries, head_dim = operands.query.shape
    _, kv_heads, keys, value_dim = operands.value.shape
    tensors = {"q": operands.query, "k": operands.key, "v": operands.value}
    inputs = {name: Strided(tensor, run.order, run.padding) for name, tensor in tensors.items()}
    dtype = operands.query.dtype
    unset = torch.full((batch, heads, queries, value_dim), -1, dtype=torch.int16).view(dtype)
    out, lse = Strided(unset, run.order, run.padding), np.full((batch, heads, queries), np.nan, np.float32)
    plain, numbers = _plain(operands, seed)
    sizes = {"batch": batch, "heads": heads, "group": heads // kv_heads, "queries": queries, "keys": keys}
    numbers |= {**sizes, "head_dim": head_dim, "value_dim": value_dim}
    for name, operand in {**inputs, "out": out}.items():
        numbers |= operand.numbers(name)
    memory = emulator.Memory()
    pointers = dict.fromkeys(FORWARD.pointers, 0)
    for name, array in (plain | {name: operand.buffer for name, operand in inputs.items()}).items():
        pointers[name] = memory.register(array, name=name, writable=False)
    for name, array in {"out": out.buffer, "lse": lse}.items():
        pointers[name] = memory.register(array, name=name)
    compiled, geometry = compile_kernel(wide_kernel(problem)), wide_launch(problem)
    kernel = emulator.load(compiled.elf).kernels[compiled.symbol]
    stats = emulator.launch(
        kernel,
        geometry.grid,
        geometry.block,
        compiled.kernarg.pack(pointers | numbers),
        memory,
        wave_order=run.wave_order,
        sanitize=run.sanitize,
    )
    run.findings += stats.findings
    run.scratch_bytes = max(run.scratch_bytes, kernel.descriptor.scratch_bytes)
    return out.read(), torch.from_numpy(lse)
