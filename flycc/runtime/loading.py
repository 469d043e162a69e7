"""Kernels on a device: spec -> code object -> loaded kernel."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from flycc import codegen
from flycc.kernels.common.spec import KernelSpec
from flycc.runtime.device import Device


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel on a device: what `Device.load` returned, and how to pack its arguments."""

    handle: Any
    spec: KernelSpec


@functools.lru_cache(maxsize=1024)
def load(spec: KernelSpec, device: Device) -> Loaded:
    """The kernel of `spec`, compiled and loaded if this is its first use. Raises `FlyccError` if it cannot be."""
    compiled = codegen.compile_kernel(spec, target=device.target)
    return Loaded(device.load(compiled.elf, compiled.symbol), spec)
