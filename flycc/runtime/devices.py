"""Which device runs a kernel: from where PyTorch keeps the tensors to a `Device`."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from flycc.contracts import FlyccError, Reason
from flycc.runtime.device import Device
from flycc.runtime.emulated import EmulatedDevice
from flycc.runtime.hip import HipDevice


@functools.cache
def emulated_device() -> Device:
    """The one emulated gfx950 of this process."""
    return EmulatedDevice()


def device_for(device: torch.device) -> Device:
    """The device that runs kernels on tensors of a PyTorch device. Raises `FlyccError` where there is none."""
    if device.type == "cpu":
        return emulated_device()
    if device.type != "cuda":
        raise FlyccError(
            Reason(
                "device.type",
                f"tensors on {device}: flycc launches on CPU tensors (emulated) and on ROCm GPUs",
            )
        )
    if torch.version.hip is None:
        raise FlyccError(
            Reason(
                "device.type",
                f"tensors on {device}: this PyTorch is not built for ROCm, so that is no AMD GPU",
            )
        )
    found = _hip_device(torch.cuda.current_device() if device.index is None else device.index)
    if isinstance(found, Reason):
        raise FlyccError(found)
    return found


@functools.cache
def _hip_device(index: int) -> Device | Reason:
    """One device for each GPU of this process, or why it is none, found out once."""
    try:
        return HipDevice(index)
    except FlyccError as error:
        return error.reason


def common_device(**tensors: Tensor | None) -> torch.device:
    """Where all of `tensors`, by the names of an op's arguments, are. Raises `FlyccError` where they differ.

    PyTorch also takes a scalar operand that is on the CPU; a kernel does not.
    """
    (first, tensor), *others = [(name, tensor) for name, tensor in tensors.items() if tensor is not None]
    for name, other in others:
        if other.device != tensor.device:
            raise FlyccError(
                Reason("device.mixed", f"{first} is on {tensor.device}, {name} is on {other.device}")
            )
    return tensor.device
