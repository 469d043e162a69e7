"""One launch of a kernel with tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from flycc.kernels.common.spec import Launch
from flycc.runtime.device import Device, ReadyLaunch
from flycc.runtime.loading import Loaded


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch that was made: of `kernel`, with tensors by the names of its arguments."""

    device: Device
    kernel: Loaded
    geometry: Launch
    kernarg: bytes
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @property
    def pointers(self) -> tuple[str, ...]:
        """The names of the kernel's arguments that are pointers, but for those that are null."""
        names = self.kernel.spec.kernarg.pointers
        return tuple(name for name in names if name in self.inputs or name in self.outputs)

    def ready(self) -> ReadyLaunch | None:
        """The same launch, to be made again with other `pointers`; None where the device has no such launches."""
        offsets = [self.kernel.spec.kernarg.offset(name) for name in self.pointers]
        return self.device.ready(
            self.kernel.handle, self.geometry.grid, self.geometry.block, self.kernarg, offsets
        )


def launch(
    device: Device,
    kernel: Loaded,
    geometry: Launch,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    numbers: Mapping[str, int | float],
) -> Launched:
    """Run `kernel`, which reads `inputs` and may touch `outputs` too, by the names of its arguments; pointers to what
    is in neither are null. Raises `DeviceError`."""
    with device.mapped([*inputs.values()], [*outputs.values()]) as addresses:
        names = kernel.spec.kernarg.pointers
        pointers = dict.fromkeys(names, 0) | dict(zip((*inputs, *outputs), addresses, strict=True))
        kernarg = kernel.spec.kernarg.pack({**numbers, **pointers})
        device.launch(kernel.handle, geometry.grid, geometry.block, kernarg)
    return Launched(device, kernel, geometry, kernarg, inputs, outputs)
