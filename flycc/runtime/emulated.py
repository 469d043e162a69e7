"""The emulated gfx950 as a Device: CPU tensors are its memory, used in place."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from torch import Tensor

from flycc import emulator
from flycc.contracts import Reason
from flycc.emulator.errors import EmulatorError
from flycc.runtime.device import DeviceError, Extent


class EmulatedDevice:
    """Executes the bytes of gfx950 code objects on the CPU, for one thread at a time; others wait."""

    name = "emulated"
    target = "gfx950"

    def __init__(self) -> None:
        self._memory = emulator.Memory()
        self._allocations: dict[int, np.ndarray] = {}
        self._make_lock()
        # A child of a fork has one thread, and a lock that another thread held at the fork would stay locked.
        os.register_at_fork(after_in_child=self._make_lock)

    def _make_lock(self) -> None:
        """Held while tensors are mapped, so that launches see a memory, and kernels a state, of their own."""
        self._lock = threading.RLock()

    def allocate(self, nbytes: int) -> int:
        # Oversized by one alignment, so that the start can be aligned: device addresses follow host ones modulo 16.
        raw = np.zeros(nbytes + 256, np.uint8)
        start = -raw.ctypes.data % 256
        array = raw[start : start + nbytes]
        with self._lock:
            address = self._memory.register(array)
            self._allocations[address] = array
        return address

    def free(self, address: int) -> None:
        with self._lock:
            self._memory.unregister(address)
            del self._allocations[address]

    def copy_to(self, address: int, data: bytes) -> None:
        with self._lock:
            self._memory.read(address, len(data))[:] = np.frombuffer(data, np.uint8)

    def copy_from(self, address: int, nbytes: int) -> bytes:
        with self._lock:
            return self._memory.read(address, nbytes).tobytes()

    @contextmanager
    def mapped(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Iterator[list[int]]:
        addresses: list[int] = []
        with self._lock:
            try:
                for tensor in inputs:
                    addresses.append(self._memory.register(extent(tensor), writable=False))
                for tensor in outputs:
                    addresses.append(self._memory.register(extent(tensor)))
                yield addresses
            finally:
                for address in addresses:
                    self._memory.unregister(address)

    def load(self, elf: bytes, symbol: str) -> emulator.Kernel:
        try:
            return emulator.load(elf).kernels[symbol]
        except EmulatorError as error:
            raise DeviceError(
                Reason("device.load", f"the code object of {symbol} cannot be loaded: {error}")
            ) from error
        except KeyError:
            raise DeviceError(Reason("device.load", f"the code object holds no kernel {symbol}")) from None

    def launch(self, kernel: emulator.Kernel, grid: Extent, block: Extent, kernarg: bytes) -> None:
        try:
            with self._lock:
                emulator.launch(kernel, grid, block, kernarg, self._memory)
        except EmulatorError as error:
            raise DeviceError(Reason("device.launch", str(error))) from error

    def ready(
        self, kernel: emulator.Kernel, grid: Extent, block: Extent, kernarg: bytes, pointers: Sequence[int]
    ) -> None:
        """None: a kernel may touch nothing but what is mapped."""

    def queue(self) -> tuple[int, int]:
        return 0, 0

    def synchronize(self) -> None:
        """Launches are synchronous."""


def extent(tensor: Tensor) -> np.ndarray:
    """The bytes from a CPU tensor's first element to its last, uint8, in place; gaps of a strided view included."""
    if not tensor.numel():
        return np.empty(0, np.uint8)
    elements = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    nbytes = elements * tensor.element_size()
    # Not Tensor.numpy(): NumPy has no bfloat16, and a view with gaps is not contiguous.
    return np.frombuffer((ctypes.c_char * nbytes).from_address(tensor.data_ptr()), np.uint8)
