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


#: Each GPU of this process by PyTorch's name with its index, or why it is none of ours, found out once.
GPUS: dict[torch.device, Device | Reason] = {}


def device_for(device: torch.device) -> Device:
    """The device that runs kernels on tensors of a PyTorch device. Raises `FlyccError` where there is none."""
    found = GPUS.get(device)
    if found is None:
        found = _find(device)
    if isinstance(found, Reason):
        raise FlyccError(found)
    return found


def _find(device: torch.device) -> Device | Reason:
    if device.type == "cpu":
        return emulated_device()
    if device.type != "cuda":
        return Reason(
            "device.type",
            f"tensors on {device}: flycc launches on CPU tensors (emulated) and on ROCm GPUs",
        )
    if torch.version.hip is None:
        return Reason(
            "device.type",
            f"tensors on {device}: this PyTorch is not built for ROCm, so that is no AMD GPU",
        )
    if device.index is None:
        return device_for(torch.device("cuda", torch.cuda.current_device()))
    try:
        return GPUS.setdefault(device, HipDevice(device.index))
    except FlyccError as error:
        return GPUS.setdefault(device, error.reason)


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
