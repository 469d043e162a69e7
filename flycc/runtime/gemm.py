"""Running a GEMM: problem -> config -> code object -> launch."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

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
    strides = operands.strides()
    # Those between matrices are only ever multiplied in 64 bits.
    within = {name: stride for name, stride in strides.items() if "batch" not in name}
    if reason := config.check_strides(within):
        raise FlyccError(reason)
    geometry = family.launch(problem, config)
    inputs = [operands.a.tensor, operands.b.tensor]
    if operands.bias is not None:
        inputs.append(operands.bias)
    with device.mapped(inputs, [operands.out]) as addresses:
        a, b, *bias, out = addresses
        pointers = {"a": a, "b": b, "bias": bias[0] if bias else 0, "out": out}
        kernarg = loaded.spec.kernarg.pack(pointers | strides | operands.sizes())
        device.launch(loaded.handle, geometry.grid, geometry.block, kernarg)
