"""Runs the kernels that share out keys on the emulated device, with memory laid out so that every stray access shows.

Registered memory of an operand begins with its first element and ends with its last, or with the 4 bytes that it lies
in; what lies between its rows is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from attention_reference import Attention
from loaded_kernels import loaded
from torch import Tensor

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.contracts.sdpa import SdpaProblem
from flycc.kernels.attention import decode_host
from flycc.kernels.attention.decode_config import DecodeConfig, Keys, choose_decode
from flycc.kernels.attention.features import band
from flycc.kernels.common.spec import KernelSpec, Launch

_NAMES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32", torch.bool: "bool"}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def place(values: Tensor, padding: int = 0, order: Sequence[int] = (0, 1, 2, 3)) -> Tensor:
    """The same in memory of its own, NaN between rows: dimensions in `order`, rows of 16 bytes' multiples, and
    `padding` rows of the last but one in `order`."""
    moved = values.permute(*order)
    room = list(moved.shape)
    room[-1] += -room[-1] % 8
    room[-2] += padding
    memory = torch.full(room, -1, dtype=torch.int16).view(values.dtype)
    view = memory[tuple(slice(size) for size in moved.shape)]
    view.copy_(moved)
    return view.permute(*np.argsort(order).tolist())


@dataclass
class Run:
    """One call; `out_padding` elements between rows of out, and its heads inside of its rows with `bshd`."""

    attention: Attention
    config: DecodeConfig | None = None
    splits: int | None = None
    wave_order: str | int = "lockstep"
    sanitize: str | Sequence[str] = "all"
    lse: bool = True
    bshd: bool = False
    findings: tuple[emulator.Finding, ...] = ()
    spilled: int = 0

    def problem(self) -> SdpaProblem:
        a = self.attention
        return SdpaProblem(
            dtype=_NAMES[a.query.dtype],  # type: ignore[arg-type]
            batch=a.query.size(0),
            heads=a.query.size(1),
            kv_heads=a.key.size(1),
            queries=a.query.size(2),
            keys=a.key.size(2),
            head_dim=a.query.size(3),
            value_dim=a.value.size(3),
            mask="none" if a.mask is None else _NAMES[a.mask.dtype],  # type: ignore[arg-type]
            lower=a.lower is not None,
            upper=a.upper is not None,
            documents=a.documents is not None,
            alibi=a.slopes is not None,
            softcap=a.softcap > 0,
            lse=self.lse,
        )

    def results(self) -> tuple[Tensor, Tensor]:
        """out and lse."""
        a, problem = self.attention, self.problem()
        config = self.config or choose_decode(problem)
        assert isinstance(config, DecodeConfig), config
        batch, heads, queries, _ = a.query.shape
        keys, value_dim = a.key.size(2), a.value.size(3)
        plan = decode_host.decode_launches(problem, config, a.lower, a.upper)
        if self.splits is not None and config.split:
            share = -(-(plan.keys.end - plan.keys.first) // (self.splits * config.turn)) * config.turn
            plan = _shared_out(plan, Keys(plan.keys.first, plan.keys.end, max(config.turn, share)))
        shape = (batch, queries, heads, value_dim) if self.bshd else (batch, heads, queries, value_dim)
        out = torch.full(shape, -77.0, dtype=a.query.dtype)
        out = out.transpose(1, 2) if self.bshd else out
        lse = torch.full((batch, heads, queries), -77.0)
        partial = torch.full((plan.partial,), float("nan"))
        mask = None if a.mask is None else a.mask.expand(batch, heads, queries, keys)
        documents = a.documents or (None, None)
        tensors = {
            **{
                "q": a.query,
                "k": a.key,
                "v": a.value,
                "out": out,
                "lse": lse,
                "partial": partial,
                "mask": mask,
            },
            **{"slopes": a.slopes, "query_documents": documents[0], "key_documents": documents[1]},
        }
        numbers = {
            **{
                f"{name}_{axis}": stride
                for name, tensor in (("q", a.query), ("k", a.key), ("v", a.value), ("out", out))
                for axis, stride in zip(("batch", "head", "row"), tensor.stride()[:3], strict=True)
            },
            **{
                f"mask_{axis}": 0 if mask is None else mask.stride(i)
                for i, axis in enumerate(("batch", "head", "query", "key"))
            },
            **{"queries": queries, "keys": keys, "heads": heads, "group": heads // a.key.size(1)},
            **{
                "head_dim": a.query.size(3),
                "value_dim": value_dim,
                "lower": band(a.lower),
                "upper": band(a.upper),
            },
            **{"scale": a.scale, "softcap": a.softcap},
        }
        decode, combine = (
            make(plan, numbers) for make in (decode_host.decode_numbers, decode_host.combine_numbers)
        )
        self.launch(decode_host.decode_kernel(problem, config), plan.decode, tensors, decode)
        if plan.combine is not None:
            self.launch(decode_host.combine_kernel(problem, config), plan.combine, tensors, combine)
        return out, lse

    def launch(
        self, spec: KernelSpec, geometry: Launch, tensors: dict[str, Tensor | None], numbers: dict[str, float]
    ) -> None:
        compiled = compile_kernel(spec)
        memory = emulator.Memory()
        values: dict[str, int | float] = dict.fromkeys(spec.kernarg.pointers, 0)
        for name in spec.kernarg.pointers:
            tensor = tensors[name]
            if tensor is not None and tensor.numel():
                written = name in ("out", "lse", "partial")
                values[name] = memory.register(_memory(tensor), name=name, writable=written)
        kernel = loaded(compiled)
        stats = emulator.launch(
            kernel,
            geometry.grid,
            geometry.block,
            compiled.kernarg.pack({**values, **numbers}),
            memory,
            wave_order=self.wave_order,
            sanitize=self.sanitize,
        )
        self.findings += stats.findings
        # LLVM may set aside some bytes of scratch that nothing uses; scalar registers go to lanes of a vector register.
        self.spilled += kernel.descriptor.spilled_vgprs


def _shared_out(plan: decode_host.Decoding, keys: Keys) -> decode_host.Decoding:
    each = plan.partial // plan.keys.splits
    grid = (plan.decode.grid[0] // plan.keys.splits * keys.splits, *plan.decode.grid[1:])
    return replace(plan, keys=keys, decode=replace(plan.decode, grid=grid), partial=each * keys.splits)


def _memory(tensor: Tensor) -> np.ndarray:
    """The bytes from a tensor's first element to its last, in whole words where rows are of 16 bytes' multiples."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.dim() == 4 and tensor.stride(-2) % 8 == 0 and tensor.element_size() == 2:
        extent += extent % 2
    flat = tensor.as_strided((extent,), (1,)).view(_BITS[tensor.element_size()])
    return flat.numpy().view(np.uint8)
