"""Running a GEMM: problem -> config -> code object -> launch."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from flycc import codegen
from flycc.contracts import FlyccError, GemmProblem, Reason
from flycc.kernels import gemm as family
from flycc.kernels.common.spec import KernelSpec
from flycc.runtime.device import Device
from flycc.runtime.operands import GemmOperands


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel on a device: what `Device.load` returned, and how to pack its arguments."""

    handle: Any
    spec: KernelSpec


def prepare(problem: GemmProblem, device: Device) -> tuple[family.GemmConfig, Loaded]:
    """The configuration and the loaded kernel for `problem`; compiled if this is its first use.

    Raises `FlyccError` with the reason where no kernel serves the problem or it cannot be built.
    """
    config = family.choose(problem)
    if isinstance(config, Reason):
        raise FlyccError(config)
    return config, _load(family.kernel(problem, config), device)


@functools.lru_cache(maxsize=1024)
def _load(spec: KernelSpec, device: Device) -> Loaded:
    compiled = codegen.compile_kernel(spec, target=device.target)
    return Loaded(device.load(compiled.elf, compiled.symbol), spec)


def launch(operands: GemmOperands, device: Device) -> None:
    """Compute `operands.out`. Raises `FlyccError` before anything ran, or `DeviceError` from the launch."""
    problem = operands.problem()
    config, loaded = prepare(problem, device)
    geometry = family.launch(problem, config)
    a, b, out, bias = operands.a, operands.b, operands.out, operands.bias
    inputs: list[Tensor] = [a.tensor, b.tensor]
    if bias is not None:
        inputs.append(bias)
    with device.mapped(inputs, [out]) as addresses:
        values = {
            "a": addresses[0],
            "b": addresses[1],
            "bias": 0 if bias is None else addresses[2],
            "out": addresses[-1],
            "batch_a": a.batch_stride,
            "batch_b": b.batch_stride,
            "batch_out": out.stride(0),
            "bias_batch": 0 if bias is None else bias.stride(0),
            "bias_m": 0 if bias is None else bias.stride(1),
            "bias_n": 0 if bias is None else bias.stride(2),
            "m": problem.m,
            "n": problem.n,
            "k": problem.k,
            "ld_a": a.row_stride,
            "ld_b": b.row_stride,
            "ld_out": out.stride(1),
        }
        device.launch(loaded.handle, geometry.grid, geometry.block, loaded.spec.kernarg.pack(values))
