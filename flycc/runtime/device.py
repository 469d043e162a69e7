"""The Device protocol: all the runtime knows of the machine that runs a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from flycc.contracts import FlyccError

#: Workgroups, or work-items of a workgroup, along x, y, z.
Extent = tuple[int, int, int]


#: Launches a kernel with everything in place but its pointers, which it takes. Threads may share it.
ReadyLaunch = Callable[..., None]


class DeviceError(FlyccError):
    """The device could not load or run a kernel."""


class Device(Protocol):
    """A gfx950, real or emulated. Addresses are the device's; kernels are what `load` returned."""

    #: One word for reports: "emulated" or "hip".
    name: str
    #: The GPU target whose code objects it runs.
    target: str

    def __hash__(self) -> int:
        """Devices key the cache of loaded kernels, by identity."""

    def allocate(self, nbytes: int) -> int:
        """Address of `nbytes` of new, zeroed device memory, at least 256-byte aligned."""

    def free(self, address: int) -> None:
        """Give back what `allocate` returned."""

    def copy_to(self, address: int, data: bytes) -> None:
        """Write host bytes to device memory."""

    def copy_from(self, address: int, nbytes: int) -> bytes:
        """Read device memory, after everything launched before has ended."""

    def mapped(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> AbstractContextManager[list[int]]:
        """Device addresses of the first elements of `inputs`, then `outputs`, valid inside the block.

        A kernel launched inside the block may read the inputs and touch the outputs, and nothing else.
        """

    def load(self, elf: bytes, symbol: str) -> Any:
        """The kernel `symbol` of a code object. Raises `DeviceError` for one that is not for this device."""

    def launch(self, kernel: Any, grid: Extent, block: Extent, kernarg: bytes) -> None:
        """Run `kernel` on `grid` workgroups of `block` work-items, ordered after earlier launches."""

    def ready(
        self, kernel: Any, grid: Extent, block: Extent, kernarg: bytes, pointers: Sequence[int]
    ) -> ReadyLaunch | None:
        """A launch to be repeated with other pointers, whose offsets in `kernarg` are `pointers`; or None where kernels
        may only touch what is `mapped`."""

    def queue(self) -> tuple[int, int]:
        """The stream of the next launch, whose launches come one after another, and a number for the graph that it is
        being captured to, 0 if to none: no two captures have the same."""

    def synchronize(self) -> None:
        """Wait until everything launched has ended."""
