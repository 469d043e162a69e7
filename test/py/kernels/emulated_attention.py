"""Runs the forward kernel on the emulated device, with memory laid out so that stray accesses show."""

from __future__ import annotations

import numpy as np
import torch
from attention_reference import Attention
from emulated_attention_backward import Run, Strided, _plain, problem_of
from loaded_kernels import loaded
from torch import Tensor

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.kernels import attention


def forward(
    operands: Attention,
    run: Run,
    config: attention.SdpaConfig | attention.WideConfig | None = None,
    seed: tuple[int, int] = (0, 0),
    align_out: int = 16,
) -> tuple[Tensor, Tensor]:
    """What the kernel writes of out and lse; `seed` is what `operands.keep` is of."""
    problem = problem_of(operands, align_out).forward
    chosen = config or attention.choose(problem)
    assert isinstance(chosen, attention.SdpaConfig | attention.WideConfig), chosen
    tensors = {"q": operands.query, "k": operands.key, "v": operands.value}
    inputs = {name: Strided(tensor, run.order, run.padding) for name, tensor in tensors.items()}
    batch, heads, queries, _ = operands.query.shape
    dtype = operands.query.dtype
    unset = torch.full((batch, heads, queries, operands.value.size(-1)), -1, dtype=torch.int16).view(dtype)
    out = Strided(unset, run.order, run.padding)
    lse = np.full((batch, heads, queries), np.nan, np.float32)
    plain, numbers = _plain(operands, seed)
    for name in ("batch", "heads", "queries", "keys", "head_dim", "value_dim"):
        numbers[name] = getattr(problem, name)
    numbers["group"] = heads // operands.key.size(1)
    for name, operand in (inputs | {"out": out}).items():
        numbers |= operand.numbers(name)
    memory = emulator.Memory()
    pointers = dict.fromkeys(attention.FORWARD.pointers, 0)
    for name, array in (plain | {name: operand.buffer for name, operand in inputs.items()}).items():
        pointers[name] = memory.register(array, name=name, writable=False)
    pointers["out"] = memory.register(out.buffer, name="out")
    pointers["lse"] = memory.register(lse, name="lse")
    compiled = compile_kernel(attention.kernel(problem, chosen))
    kernel = loaded(compiled)
    geometry = attention.launch(problem, chosen)
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
