"""A real gfx950 as a Device, through AMD's HIP runtime library.

Launches go to the stream that the caller says is current, so PyTorch's order of work holds, and so does its
capture of graphs: a launch allocates nothing, waits for nothing and copies its arguments before it returns.
What cannot be captured (loading a kernel, allocating, copying, synchronising) is refused during a capture.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from flycc.contracts import Reason
from flycc.runtime.device import DeviceError, Extent, ReadyLaunch
from flycc.runtime.hip_library import (
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    NO_BINARY_FOR_GPU,
    OUT_OF_MEMORY,
    HipError,
    HipLibrary,
    HipProperties,
    library,
)

# Keys of hipModuleLaunchKernel's `extra`, which passes the kernel argument segment as it is.
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 3


@dataclass(frozen=True, slots=True)
class HipKernel:
    """A hipFunction_t. Its module stays loaded: graphs that were captured may launch it at any time."""

    function: int
    symbol: str


class _Current:
    """Makes a GPU HIP's current one for this thread inside a block, and the one before current again after it."""

    def __init__(self, hip: HipLibrary, index: int) -> None:
        self._hip, self._index, self._before = hip, index, ctypes.c_int()

    def __enter__(self) -> None:
        error = self._hip.raw.hipGetDevice(ctypes.byref(self._before))
        if error:
            raise self._hip.error("device.current", f"GPU {self._index}", "hipGetDevice", error)
        self._set(self._index)

    def __exit__(self, *_: object) -> None:
        self._set(self._before.value)

    def _set(self, index: int) -> None:
        if self._before.value != self._index:
            self._hip.call("device.current", f"GPU {index}", "hipSetDevice", index)


class _Call:
    """One call of hipModuleLaunchKernel: `arguments`, ready for ctypes and linked to memory of their own, of which
    `stream` and what is in `kernarg` may be changed between calls."""

    __slots__ = ("_extra", "_size", "arguments", "current", "current_address", "kernarg", "stream")

    def __init__(self, kernel: HipKernel, grid: Extent, block: Extent, kernarg: bytes) -> None:
        self.kernarg = ctypes.create_string_buffer(kernarg, len(kernarg))
        self._size = ctypes.c_size_t(len(kernarg))
        addresses = (ctypes.addressof(self.kernarg), ctypes.addressof(self._size))
        self._extra = (ctypes.c_size_t * 5)(_BUFFER_POINTER, addresses[0], _BUFFER_SIZE, addresses[1], _END)
        self.stream = ctypes.c_void_p()
        self.arguments = (
            ctypes.c_void_p(kernel.function),
            *map(ctypes.c_uint, (*grid, *block, 0)),
            self.stream,
            ctypes.c_void_p(),
            ctypes.byref(self._extra),
        )
        self.current = ctypes.c_int()
        self.current_address = ctypes.byref(self.current)


class _Ready:
    """A launch on a GPU with everything in place but some of the arguments, which are pointers."""

    __slots__ = ("_device", "_free", "_launch", "_runs")

    def __init__(
        self,
        device: HipDevice,
        kernel: HipKernel,
        grid: Extent,
        block: Extent,
        kernarg: bytes,
        pointers: Sequence[int],
    ) -> None:
        self._device, self._launch = device, (kernel, grid, block, kernarg)
        firsts = [i for i, offset in enumerate(pointers) if not i or offset != pointers[i - 1] + 8]
        #: Pointers next to each other: how to write them, where to, and which they are.
        self._runs = [
            (struct.Struct(f"<{end - first}Q").pack_into, pointers[first], slice(first, end))
            for first, end in pairwise((*firsts, len(pointers)))
        ]
        #: Those that are not under way: a list, whose pop and append no other thread can get between.
        self._free: list[_Call] = []

    def __call__(self, *pointers: int) -> None:
        try:
            call = self._free.pop()
        except IndexError:
            call = _Call(*self._launch)
        for pack, offset, which in self._runs:
            pack(call.kernarg, offset, *pointers[which])
        if error := self._device.call(call):
            raise self._device.failed(error, *self._launch[:3])
        self._free.append(call)  # HIP has copied the arguments


class HipDevice:
    """GPU number `index` of this process.

    Args:
        index: HIP's number of the GPU, which is PyTorch's.
        stream: returns the hipStream_t to work on, as a number; None for PyTorch's current stream of the GPU.

    Raises `DeviceError` if there is no HIP library, no such GPU, or one that is not a gfx950.
    """

    name = "hip"
    target = "gfx950"

    def __init__(self, index: int, stream: Callable[[], int] | None = None) -> None:
        self.index = index
        # As PyTorch's own compiled code asks for it; `torch.cuda.current_stream` makes an object first.
        self._stream = stream or (lambda: torch._C._cuda_getCurrentRawStream(index))
        self._library: HipLibrary = library()
        self._raw = self._library.raw
        count = self._library.device_count()
        if not 0 <= index < count:
            raise DeviceError(Reason("device.absent", f"GPU {index}: {self._library.path} sees {count} GPUs"))
        self.properties: HipProperties = self._library.properties(index)
        if self.properties.target != self.target:
            raise DeviceError(
                Reason(
                    "device.target",
                    f"GPU {index} is a {self.properties.name} ({self.properties.target or 'no gcnArchName'}); "
                    f"flycc compiles for {self.target}",
                )
            )

    def allocate(self, nbytes: int) -> int:
        pointer = ctypes.c_void_p()
        with self._current():
            self._refuse_capture("allocating memory")
            try:
                # Never an empty allocation: that has no address.
                self._call("device.memory", "hipMalloc", ctypes.byref(pointer), max(nbytes, 1))
            except HipError as error:
                raise self._out_of_memory(nbytes) if error.code == OUT_OF_MEMORY else error from None
            stream = self._stream()
            self._call("device.memory", "hipMemsetAsync", pointer, 0, nbytes, stream)
            self._call("device.memory", "hipStreamSynchronize", stream)
        return _value(pointer)

    def free(self, address: int) -> None:
        with self._current():
            self._refuse_capture("freeing memory")
            self._call("device.memory", "hipFree", address)

    def copy_to(self, address: int, data: bytes) -> None:
        self._copy("copying to the GPU", address, data, len(data), HOST_TO_DEVICE)

    def copy_from(self, address: int, nbytes: int) -> bytes:
        buffer = ctypes.create_string_buffer(nbytes)
        self._copy("copying from the GPU", buffer, address, nbytes, DEVICE_TO_HOST)
        return buffer.raw

    @contextmanager
    def mapped(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Iterator[list[int]]:
        """The tensors' own addresses: a GPU does not restrict what a kernel touches."""
        yield [tensor.data_ptr() for tensor in (*inputs, *outputs)]

    def load(self, elf: bytes, symbol: str) -> HipKernel:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        with self._current():
            self._refuse_capture(f"loading {symbol}")
            try:
                self._call("device.load", "hipModuleLoadData", ctypes.byref(module), elf)
            except HipError as error:
                if error.code != NO_BINARY_FOR_GPU:
                    raise
                raise DeviceError(
                    Reason("device.load", f"the code object of {symbol} is not for {self.target}")
                ) from None
            name = symbol.encode()
            self._call("device.load", "hipModuleGetFunction", ctypes.byref(function), module, name)
        return HipKernel(_value(function), symbol)

    def launch(self, kernel: HipKernel, grid: Extent, block: Extent, kernarg: bytes) -> None:
        if error := self.call(_Call(kernel, grid, block, kernarg)):
            raise self.failed(error, kernel, grid, block)

    def call(self, call: _Call) -> int:
        """Launch on the stream that is current now. Returns the hipError_t."""
        raw = self._raw
        call.stream.value = self._stream()
        # The same GPU as ever, nearly always: then there is nothing to make current, and nothing to restore.
        if not raw.hipGetDevice(call.current_address) and call.current.value == self.index:
            return raw.hipModuleLaunchKernel(*call.arguments)
        with self._current():
            return raw.hipModuleLaunchKernel(*call.arguments)

    def failed(self, error: int, kernel: HipKernel, grid: Extent, block: Extent) -> HipError:
        """What to raise for a launch that returned the hipError_t `error`."""
        what = f"launching {kernel.symbol} with grid {grid}, block {block}, or an earlier kernel"
        return self._library.error("device.launch", what, "hipModuleLaunchKernel", error)

    def ready(
        self, kernel: HipKernel, grid: Extent, block: Extent, kernarg: bytes, pointers: Sequence[int]
    ) -> ReadyLaunch:
        return _Ready(self, kernel, grid, block, kernarg, pointers)

    def queue(self) -> tuple[int, int]:
        stream, status, number = self._stream(), ctypes.c_int(), ctypes.c_ulonglong()
        with self._current():
            self._call(
                "device.launch", "hipStreamGetCaptureInfo", stream, ctypes.byref(status), ctypes.byref(number)
            )
        return stream, number.value if status.value else 0

    def synchronize(self) -> None:
        with self._current():
            self._refuse_capture("synchronising")
            self._call("device.launch", "hipDeviceSynchronize")

    def timed_us(self, work: Callable[[], None]) -> float:
        """Microseconds on the GPU from the first to the last of what `work` launches."""
        with self._current(), self._event() as start, self._event() as stop:
            self._refuse_capture("timing")
            stream, milliseconds = self._stream(), ctypes.c_float()
            self._call("device.event", "hipEventRecord", start, stream)
            work()
            self._call("device.event", "hipEventRecord", stop, stream)
            self._call("device.launch", "hipEventSynchronize", stop)
            self._call("device.event", "hipEventElapsedTime", ctypes.byref(milliseconds), start, stop)
        return milliseconds.value * 1e3

    @contextmanager
    def _event(self) -> Iterator[int]:
        event = ctypes.c_void_p()
        self._call("device.event", "hipEventCreate", ctypes.byref(event))
        try:
            yield _value(event)
        finally:
            self._call("device.event", "hipEventDestroy", event)

    def _copy(self, what: str, to: object, source: object, nbytes: int, kind: int) -> None:
        with self._current():
            self._refuse_capture(what)
            stream = self._stream()
            self._call("device.copy", "hipMemcpyAsync", to, source, nbytes, kind, stream)
            self._call("device.copy", "hipStreamSynchronize", stream)

    def _call(self, code: str, function: str, *arguments: object) -> None:
        self._library.call(code, f"GPU {self.index}", function, *arguments)

    def _current(self) -> _Current:
        return _Current(self._library, self.index)

    def _refuse_capture(self, what: str) -> None:
        status = ctypes.c_int()
        # It fails only if an earlier kernel did.
        self._call("device.launch", "hipStreamIsCapturing", self._stream(), ctypes.byref(status))
        if status.value:
            raise DeviceError(
                Reason(
                    "device.capture",
                    f"{what}: not possible while a graph is captured; run the model once before the capture",
                )
            )

    def _out_of_memory(self, nbytes: int) -> DeviceError:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("device.memory", "hipMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return DeviceError(
            Reason(
                "device.memory",
                f"GPU {self.index} is out of memory: {nbytes} bytes asked for, "
                f"{free.value} of {total.value} are free",
            )
        )


def _value(pointer: ctypes.c_void_p) -> int:
    assert pointer.value is not None
    return pointer.value
