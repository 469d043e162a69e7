"""Runs the kernels of attention's gradients on the emulated device, with memory laid out so that stray accesses show.

An operand's registered memory begins with its first element and ends with its last, so that an access beyond either is
a fault; what lies between its rows is NaN, and between those of a gradient what must stay as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from attention_reference import Attention, dropout_mask
from loaded_kernels import loaded
from torch import Tensor

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.contracts import SdpaBackwardProblem, SdpaProblem
from flycc.contracts.sdpa import threshold
from flycc.kernels import attention
from flycc.kernels.attention.features import band

DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32", torch.bool: "bool"}
_FILL = 0xFF  # NaN in both 16-bit types and in float32

#: Seed and offset of dropout.
PHILOX = (0x123456789ABCDEF, 42)

Order = Literal["bhsd", "bshd"]


@dataclass
class Strided:
    """[batch, heads, rows, columns] of 16 bits in memory, in that order or by rows first; rows begin at multiples of 16
    bytes, `padding` times that further apart than they must. Memory ends with the word of the last element."""

    values: Tensor
    order: Order = "bhsd"
    padding: int = 0
    buffer: np.ndarray = field(init=False)
    strides: tuple[int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        batch, heads, rows, columns = self.values.shape
        row = (-(-columns // 8) + self.padding) * 8
        if self.order == "bhsd":
            self.strides = heads * rows * row, rows * row, row
        else:
            self.strides = rows * heads * row, row, heads * row
        last = sum((n - 1) * s for n, s in zip((batch, heads, rows), self.strides, strict=True))
        size = -(-2 * (last + columns) // 4) * 4
        room = np.full(size + 16, _FILL, np.uint8)
        skip = -room.ctypes.data % 16
        self.buffer = room[skip : skip + size]
        self.view[...] = self.values.contiguous().view(torch.int16).numpy()

    @property
    def view(self) -> np.ndarray:
        """The bits of the elements, in place."""
        strides = tuple(2 * stride for stride in (*self.strides, 1))
        return np.lib.stride_tricks.as_strided(self.buffer.view(np.int16), self.values.shape, strides)

    def read(self) -> Tensor:
        """The elements; what lies between rows must be as it was."""
        found = torch.from_numpy(self.view.copy()).view(self.values.dtype)
        self.view[...] = -1
        assert (self.buffer == _FILL).all(), "memory between rows was written to"
        return found

    def numbers(self, name: str) -> dict[str, int]:
        axes = ("batch", "head", "row")
        return {f"{name}_{axis}": stride for axis, stride in zip(axes, self.strides, strict=True)}


@dataclass
class Run:
    """How to launch: what `flycc.emulator.launch` takes, the memory order of operands, and what came of it."""

    wave_order: str | int = "lockstep"
    sanitize: str | Sequence[str] = "all"
    order: Order = "bhsd"
    padding: int = 0
    findings: tuple[emulator.Finding, ...] = ()
    scratch_bytes: int = 0


def problem_of(operands: Attention, align_out: int = 16) -> SdpaBackwardProblem:
    """What `operands` are a problem of."""
    batch, heads, queries, head_dim = operands.query.shape
    _, kv_heads, keys, value_dim = operands.value.shape
    forward = SdpaProblem(
        DTYPES[operands.query.dtype],  # type: ignore[arg-type]
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        head_dim,
        value_dim,
        mask="none" if operands.mask is None else DTYPES[operands.mask.dtype],  # type: ignore[arg-type]
        lower=operands.lower is not None,
        upper=operands.upper is not None,
        documents=operands.documents is not None,
        alibi=operands.slopes is not None,
        softcap=bool(operands.softcap),
        dropout=operands.keep is not None,
        lse=True,
        align_out=align_out,
    )
    return SdpaBackwardProblem(forward)


def backward(
    operands: Attention,
    grad: Tensor,
    run: Run,
    seed: tuple[int, int] = (0, 0),
    steps: Sequence[attention.BackwardStep] | None = None,
) -> dict[str, Tensor]:
    """What the launches of `steps`, by default all of the plan's, write of delta, dq, dk and dv.

    out and lse are the reference's, rounded; `seed` is what `operands.keep` is of.
    """
    problem = problem_of(operands)
    if steps is None:
        planned = attention.plan_backward(problem)
        assert isinstance(planned, tuple), planned
        steps = planned
    dtype = operands.query.dtype
    out, lse = operands.forward()
    out = out.to(dtype)
    tensors = {"q": operands.query, "k": operands.key, "v": operands.value, "out": out, "grad": grad}
    inputs = {name: Strided(tensor, run.order, run.padding) for name, tensor in tensors.items()}
    unset = {
        "d" + name: torch.full_like(tensors[name], 0, dtype=dtype).view(torch.int16).fill_(-1).view(dtype)
        for name in "qkv"
    }
    gradients = {name: Strided(tensor, run.order, run.padding) for name, tensor in unset.items()}
    # What a plan's first launch makes, for plans that lack it.
    delta = (grad.double() * out.double()).sum(-1).float().numpy().copy()
    if any(step.what == "delta" for step in steps):
        delta[...] = np.nan
    plain, numbers = _plain(operands, seed)
    plain["lse"] = lse.float().numpy()
    shape = problem.forward
    numbers |= {name: getattr(shape, name) for name in ("batch", "heads", "queries", "keys")}
    numbers |= {"head_dim": shape.head_dim, "value_dim": shape.value_dim}
    numbers["group"] = shape.heads // shape.kv_heads  # type: ignore[operator]
    for name, operand in (inputs | gradients).items():
        numbers |= operand.numbers(name)
    memory = emulator.Memory()
    pointers = dict.fromkeys(attention.BACKWARD.pointers, 0)
    for name, array in (plain | {name: operand.buffer for name, operand in inputs.items()}).items():
        pointers[name] = memory.register(array, name=name, writable=False)
    for name, array in {"delta": delta, **{name: of.buffer for name, of in gradients.items()}}.items():
        pointers[name] = memory.register(array, name=name)
    for step in steps:
        _launch(attention.backward_kernel(problem, step.config), step, pointers | numbers, memory, run)
    return {"delta": torch.from_numpy(delta), **{name: of.read() for name, of in gradients.items()}}


def _plain(
    operands: Attention, seed: tuple[int, int]
) -> tuple[dict[str, np.ndarray], dict[str, int | float]]:
    """Operands that are contiguous, or as the reference has them, and numbers."""
    plain: dict[str, np.ndarray] = {}
    limit = threshold(operands.dropout_p)
    numbers: dict[str, int | float] = {
        "scale": operands.scale,
        "softcap": operands.softcap,
        "lower": band(operands.lower),
        "upper": band(operands.upper),
        "threshold": limit - (1 << 32) if limit >= 1 << 31 else limit,
        "inverse_keep": 1 / (1 - operands.dropout_p) if operands.dropout_p < 1 else 0.0,
        **{f"mask_{axis}": 0 for axis in ("batch", "head", "query", "key")},
    }
    if operands.mask is not None:
        mask = operands.mask
        shape = (operands.query.size(0), operands.query.size(1), operands.query.size(2), operands.key.size(2))
        strides = mask.expand(shape).stride()
        axes = ("batch", "head", "query", "key")
        numbers |= {f"mask_{axis}": stride for axis, stride in zip(axes, strides, strict=True)}
        bits = mask.contiguous() if mask.dtype in (torch.bool, torch.float32) else mask.view(torch.int16)
        plain["mask"] = bits.numpy()
    if operands.slopes is not None:
        plain["slopes"] = operands.slopes.float().numpy()
    if operands.documents is not None:
        for name, ids in zip(("query", "key"), operands.documents, strict=True):
            plain[f"{name}_documents"] = ids.to(torch.int32).numpy()
    if operands.keep is not None:
        plain["seed"] = np.array(seed, np.int64)
    return plain, numbers


def _launch(
    spec: Any,
    step: attention.BackwardStep,
    values: Mapping[str, int | float],
    memory: emulator.Memory,
    run: Run,
) -> None:
    compiled = compile_kernel(spec)
    kernel = loaded(compiled)
    stats = emulator.launch(
        kernel,
        step.launch.grid,
        step.launch.block,
        compiled.kernarg.pack(values),
        memory,
        wave_order=run.wave_order,
        sanitize=run.sanitize,
    )
    run.findings += stats.findings
    run.scratch_bytes = max(run.scratch_bytes, kernel.descriptor.scratch_bytes)


def random(rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=rng).to(dtype)


def operands_of(
    rng: torch.Generator,
    heads: tuple[int, int],
    queries: int,
    keys: int,
    dims: tuple[int, int],
    dtype: torch.dtype = torch.bfloat16,
    **more: Any,
) -> tuple[Attention, Tensor]:
    """Two batches of random operands, and a random gradient of out."""
    shapes = ((heads[0], queries, dims[0]), (heads[1], keys, dims[0]), (heads[1], keys, dims[1]))
    q, k, v = (random(rng, 2, *shape, dtype=dtype) for shape in shapes)
    grad = random(rng, 2, heads[0], queries, dims[1], dtype=dtype)
    return Attention(q, k, v, 1 / math.sqrt(dims[0]), **more), grad


def masked(rng: torch.Generator, queries: int, keys: int) -> dict[str, dict[str, Any]]:
    """What operands of two batches and 9 heads may have besides, by names of kinds."""
    numbers = 3 * torch.randn((1, 9, queries, keys), generator=rng)
    numbers[0, 2, 7] = -math.inf
    numbers[0, 1, :, 3] = -math.inf
    bools = torch.rand((2, 1, queries, keys), generator=rng) > 0.3
    bools[0, 0, 5] = False
    rows, columns = torch.arange(queries), torch.arange(keys)
    dropped = dropout_mask(*PHILOX, (2, 9, queries, keys), 0.3)
    return {
        "causal": {"upper": 0},
        "bottom_right": {"upper": keys - queries},
        "window": {"lower": -20, "upper": 3},
        "no_key": {"upper": -10},
        "bool": {"mask": bools},
        "f32": {"mask": numbers},
        "bf16": {"mask": numbers.bfloat16()},
        "softcap": {"softcap": 1.5},
        "alibi": {"slopes": torch.rand(9, generator=rng), "upper": 0},
        "documents": {"documents": (rows.expand(2, -1) // 20, columns.expand(2, -1) // 17)},
        "dropout": {"keep": dropped, "dropout_p": 0.3},
    }
