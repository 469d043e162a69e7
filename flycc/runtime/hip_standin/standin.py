"""The Python side of the stand-in: one method for each entry point, named like it, on emulated GPUs.

Arguments arrive as integers. Memory is host memory at its own address, so copies are plain copies and host
pointers that were registered are device pointers. All devices share it.

What a kernel does wrong while it runs is reported as by a GPU: the launch succeeds, and every later call
fails. The emulator's diagnosis goes to stderr, and is raised by `HipStandin.check`.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import struct
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from flycc import emulator
from flycc.contracts import FlyccError, Reason
from flycc.emulator.launch import LDS_BYTES
from flycc.emulator.memory import AccessError
from flycc.runtime.emulated import extent
from flycc.runtime.hip_library import loaded_copies
from flycc.runtime.hip_standin.build import build

_HANDLER = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int
)

#: What fresh device memory holds: hipMalloc does not clear it.
JUNK = 0xA5
ALIGNMENT = 256

# hipError_t
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
INVALID_CONFIGURATION = 9
INVALID_IMAGE = 200
NO_BINARY_FOR_GPU = 209
FILE_NOT_FOUND = 301
INVALID_HANDLE = 400
NOT_FOUND = 500
NOT_READY = 600
ILLEGAL_ADDRESS = 700
LAUNCH_TIMEOUT = 702
HOST_MEMORY_ALREADY_REGISTERED = 712
HOST_MEMORY_NOT_REGISTERED = 713
LAUNCH_FAILURE = 719
NOT_SUPPORTED = 801
CAPTURE_UNSUPPORTED = 900
CAPTURE_INVALIDATED = 901
CAPTURE_IMPLICIT = 906
UNKNOWN = 999

#: hipStreamCaptureStatus and hipStreamCaptureMode
CAPTURE_NONE, CAPTURE_ACTIVE, CAPTURE_DEAD = 0, 1, 2
CAPTURE_RELAXED = 2

#: The legacy null stream, hipStreamLegacy and hipStreamPerThread exist without being created.
NULL_STREAMS = (0, 1, 2)

#: EM_AMDGPU, and gfx950 in the low byte of e_flags.
_AMDGPU, _GFX950 = 224, 0x4F

#: What a stream does at its turn.
Work = Callable[[], object]
Launch = Callable[..., object]
T = TypeVar("T")


class HipError(Exception):
    """An entry point returns this code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(eq=False)
class Stream:
    """A stream; `capture` is the graph that it is recording, if any."""

    capture: Graph | None = None
    mode: int = 0
    invalidated: bool = False


@dataclass(eq=False)
class Graph:
    """Captured work, in order; also an instantiated graph. `number` is the capture's."""

    nodes: list[Work] = field(default_factory=list)
    number: int = field(default_factory=itertools.count(1).__next__)


@dataclass(eq=False)
class Event:
    """`seconds` is when the stream got to it (None: not recorded yet)."""

    seconds: float | None = None


@dataclass(frozen=True, eq=False)
class Module:
    """A code object that was loaded on a device."""

    loaded: emulator.Module
    device: int


@dataclass(frozen=True, eq=False)
class Function:
    """A kernel of a module."""

    kernel: emulator.Kernel
    device: int


@dataclass(frozen=True, slots=True)
class Settings:
    """How many GPUs there are, their gcnArchName, and what hipMalloc hands out before it is out of memory."""

    devices: int = 1
    arch: str = "gfx950:sramecc+:xnack-"
    memory_bytes: int = 8 << 30


class HipStandin:
    """The emulated GPUs. `calls` counts entry points that reached it; `memory` is what kernels may touch.

    `settings` is who they are, `deferred` and `launch` are as for `installed`.
    """

    def __init__(self, library: ctypes.CDLL, settings: Settings, deferred: bool, launch: Launch) -> None:
        self._library, self._settings = library, settings
        self._handler = _HANDLER(self._call)
        self.calls: Counter[str] = Counter()
        self.memory = emulator.Memory()
        self._memory_bytes, self._deferred, self._launch = settings.memory_bytes, deferred, launch
        self._lock = threading.RLock()
        self._device = 0
        self._handles = itertools.count(0x1000, 16)
        self._objects: dict[int, Any] = {}
        self._null_streams = {handle: Stream() for handle in NULL_STREAMS}
        self._allocations: dict[int, int] = {}
        self._spans: list[tuple[int, int, str]] = []
        self._mapped: list[int] = []
        self._queue: list[tuple[int, Work]] = []
        self._failure = 0
        self._error: Exception | None = None

    def _call(self, name: bytes, device: int, args: Any, count: int) -> int:
        """The handler of the C library; returns a hipError_t."""
        entry = name.decode()
        with self._lock:
            self.calls[entry] += 1
            if self._failure:
                return self._failure
            self._device = device
            try:
                getattr(self, entry)(*args[:count])
                return 0
            except HipError as error:
                return self._refused(entry, error.code, error.__cause__)
            except AccessError as error:
                return self._refused(entry, INVALID_VALUE, error)
            except MemoryError as error:
                return self._refused(entry, OUT_OF_MEMORY, error)
            except Exception:
                traceback.print_exc()
                return UNKNOWN

    @contextmanager
    def registered(self, *tensors: Tensor) -> Iterator[None]:
        """Inside the block kernels may touch these CPU tensors, in place, each from its first element to its last.

        A launcher that gets CPU tensors passes on their host addresses; a kernel that touches any other
        host memory has a fault. Leaving the block waits for all work and raises what failed first in it:
        FlyDSL's launchers themselves only print that.
        """
        for number, tensor in enumerate(tensors):
            if tensor.device.type != "cpu":
                raise ValueError(f"tensors[{number}]: is on {tensor.device}; CPU tensors are needed")
        spans = [
            (tensor.data_ptr(), tensor.data_ptr() + extent(tensor).size, f"tensor {number}")
            for number, tensor in enumerate(tensors)
            if tensor.numel()
        ]
        with self._lock:
            if not self._failure:
                self._error = None  # of calls before the block, which returned it
            self._add_spans(spans)
        try:
            yield
            self.check()
        finally:
            with self._lock:
                for span in spans:
                    self._spans.remove(span)
                self._map_spans()

    def check(self) -> None:
        """Wait for all work. Raises what failed first, a kernel or a call; after that the devices work again."""
        with self._lock:
            self._finish()
            error, self._error, self._failure = self._error, None, 0
        if error is not None:
            raise error

    def _refused(self, entry: str, code: int, cause: BaseException | None) -> int:
        if self._error is None:
            said = Reason(
                "standin.call", f"{entry} returned hipError_t {code}{f': {cause}' if cause else ''}"
            )
            self._error = FlyccError(said)
        return code

    @contextmanager
    def ignoring(self) -> Iterator[None]:
        """Inside the block every call succeeds at once and does nothing, to measure what callers cost."""
        self._install(ctypes.cast(self._library.flycc_standin_ignore, _HANDLER))
        try:
            yield
        finally:
            self._install(self._handler)

    def _install(self, handler: Any) -> None:
        settings = self._settings
        self._library.flycc_standin_install(
            handler, settings.devices, settings.arch.encode(), settings.memory_bytes
        )

    # Devices and memory

    def hipDeviceSynchronize(self, _: int) -> None:
        self._forbid_in_capture()
        self._finish()
        self._report()

    def hipMemGetInfo(self, available: int, total: int) -> None:
        ctypes.c_size_t.from_address(available).value = self._memory_bytes - sum(self._allocations.values())
        ctypes.c_size_t.from_address(total).value = self._memory_bytes

    def hipMalloc(self, pointer: int, size: int) -> None:
        self._forbid_in_capture()
        address = 0
        if size:
            if size + sum(self._allocations.values()) > self._memory_bytes:
                raise HipError(OUT_OF_MEMORY)
            raw = np.full(size + ALIGNMENT, JUNK, np.uint8)
            start = -raw.ctypes.data % ALIGNMENT
            array = raw[start : start + size]
            address = self.memory.register(array, name="hipMalloc", address=array.ctypes.data)
            self._allocations[address] = size
        _write_handle(pointer, address)

    def hipFree(self, pointer: int) -> None:
        self._forbid_in_capture()
        self._finish()
        if pointer:
            if self._allocations.pop(pointer, None) is None:
                raise HipError(INVALID_VALUE)
            self.memory.unregister(pointer)
        self._report()

    def hipHostRegister(self, pointer: int, size: int, _flags: int) -> None:
        if not pointer or not size:
            raise HipError(INVALID_VALUE)
        if any(start < pointer + size and pointer < end for start, end, _ in self._spans):
            raise HipError(HOST_MEMORY_ALREADY_REGISTERED)
        try:
            self._add_spans([(pointer, pointer + size, "hipHostRegister")])
        except ValueError:  # part of it is device memory
            raise HipError(INVALID_VALUE) from None

    def hipHostUnregister(self, pointer: int) -> None:
        mine = [span for span in self._spans if span[0] == pointer and span[2] == "hipHostRegister"]
        if not mine:
            raise HipError(HOST_MEMORY_NOT_REGISTERED)
        self._finish()
        self._spans.remove(mine[0])
        self._map_spans()

    def hipHostGetDevicePointer(self, device: int, host: int, _flags: int) -> None:
        if self.memory.region_at(host) is None:
            raise HipError(INVALID_VALUE)
        _write_handle(device, host)

    def hipMemcpy(self, to: int, source: int, size: int, kind: int) -> None:
        self._forbid_in_capture()
        self._finish()
        self._report()
        self._copy(to, source, size, kind)()

    def hipMemcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        self._submit(stream, self._copy(to, source, size, kind))

    def fill(self, to: int, value: int, width: int, count: int, stream: int) -> None:
        """All of hipMemset*: `count` elements of `width` bytes."""
        if count:
            self.memory.read(to, width * count)
            pattern = np.frombuffer(value.to_bytes(width, "little"), np.uint8)

            def work() -> None:
                self.memory.read(to, width * count).reshape(-1, width)[:] = pattern

            self._submit(stream, work)

    # Modules

    def hipModuleLoad(self, module: int, file: int) -> None:
        try:
            image = Path(os.fsdecode(ctypes.string_at(file))).read_bytes()
        except OSError:
            raise HipError(FILE_NOT_FOUND) from None
        self._load(module, image)

    def hipModuleLoadData(self, module: int, image: int) -> None:
        self._load(module, _elf_at(image))

    def hipModuleUnload(self, module: int) -> None:
        self._forbid_in_capture()
        self._finish()
        kernels = list(self._get(module, Module).loaded.kernels.values())
        del self._objects[module]
        for handle, thing in list(self._objects.items()):
            if isinstance(thing, Function) and any(thing.kernel is kernel for kernel in kernels):
                del self._objects[handle]

    def hipModuleGetFunction(self, function: int, module: int, name: int) -> None:
        found = self._get(module, Module)
        kernel = found.loaded.kernels.get(ctypes.string_at(name).decode(errors="replace"))
        if kernel is None:
            raise HipError(NOT_FOUND)
        _write_handle(function, self._new(Function(kernel, found.device)))

    def hipModuleLaunchKernel(self, function: int, *rest: int) -> None:
        found = self._get(function, Function)
        grid, block, (shared, stream, params, extra) = rest[:3], rest[3:6], rest[6:]
        if found.device != self._device:
            raise HipError(INVALID_HANDLE)
        descriptor = found.kernel.descriptor
        if not all(grid) or not all(block):
            raise HipError(INVALID_CONFIGURATION)
        if block[0] * block[1] * block[2] > descriptor.max_workgroup_size:
            raise HipError(INVALID_CONFIGURATION)
        if shared + descriptor.lds_bytes > LDS_BYTES:
            raise HipError(INVALID_VALUE)
        try:
            found.kernel.check()
        except emulator.EmulatorError as error:
            _tell(error)
            raise HipError(NOT_SUPPORTED) from error
        kernarg = _kernarg(found.kernel, grid, block, shared, params, extra)

        def work() -> None:
            self._launch(found.kernel, grid, block, kernarg, self.memory, dynamic_lds=shared)

        self._submit(stream, work)

    def hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
        self, count: int, function: int, block: int, shared: int
    ) -> None:
        descriptor = self._get(function, Function).kernel.descriptor
        # 4 SIMDs of 512 registers a lane, allocated by eights, and 8 waves each.
        registers = -(-max(descriptor.vgpr_count, 1) // 8) * 8
        blocks = 4 * min(8, 512 // registers) // -(-block // 64) if block else 0
        lds = descriptor.lds_bytes + shared
        ctypes.c_int.from_address(count).value = min(blocks, LDS_BYTES // lds) if lds else blocks

    # Streams and events

    def hipStreamCreateWithPriority(self, stream: int) -> None:
        _write_handle(stream, self._new(Stream()))

    def hipStreamDestroy(self, stream: int) -> None:
        self._finish(stream)
        self._get(stream, Stream)
        del self._objects[stream]

    def hipStreamSynchronize(self, stream: int) -> None:
        self._forbid_in_capture_of(stream)
        self._finish(stream)
        self._report()

    def hipStreamQuery(self, stream: int) -> None:
        self._forbid_in_capture_of(stream)
        if any(queued == stream for queued, _ in self._queue):
            raise HipError(NOT_READY)

    def hipStreamWaitEvent(self, stream: int, event: int, _flags: int) -> None:
        # Work runs in the order of submission, so that what was recorded has its turn before what follows.
        self._stream(stream)
        self._get(event, Event)

    def hipEventCreateWithFlags(self, event: int, _flags: int) -> None:
        _write_handle(event, self._new(Event()))

    def hipEventDestroy(self, event: int) -> None:
        self._get(event, Event)
        del self._objects[event]

    def hipEventRecord(self, event: int, stream: int) -> None:
        found = self._get(event, Event)
        found.seconds = None

        def work() -> None:
            found.seconds = time.perf_counter()

        self._submit(stream, work)

    def hipEventSynchronize(self, event: int) -> None:
        self._get(event, Event)
        self._forbid_in_capture()
        self._finish()
        self._report()

    def hipEventQuery(self, event: int) -> None:
        if self._get(event, Event).seconds is None:
            raise HipError(NOT_READY)

    def hipEventElapsedTime(self, milliseconds: int, start: int, stop: int) -> None:
        first, last = self._get(start, Event).seconds, self._get(stop, Event).seconds
        if first is None or last is None:
            raise HipError(NOT_READY)
        ctypes.c_float.from_address(milliseconds).value = 1e3 * (last - first)

    # Graphs

    def hipStreamIsCapturing(self, stream: int, status: int) -> None:
        found = self._stream(stream)
        value = CAPTURE_DEAD if found.invalidated else CAPTURE_ACTIVE if found.capture else CAPTURE_NONE
        ctypes.c_int.from_address(status).value = value

    def hipStreamGetCaptureInfo(self, stream: int, status: int, number: int) -> None:
        self.hipStreamIsCapturing(stream, status)
        if capture := self._stream(stream).capture:
            ctypes.c_ulonglong.from_address(number).value = capture.number

    def hipStreamBeginCapture(self, stream: int, mode: int) -> None:
        found = self._stream(stream)
        if stream in NULL_STREAMS or found.capture is not None:
            raise HipError(CAPTURE_UNSUPPORTED)
        found.capture, found.mode, found.invalidated = Graph(), mode, False

    def hipStreamEndCapture(self, stream: int, graph: int) -> None:
        found = self._stream(stream)
        if found.capture is None:
            raise HipError(INVALID_VALUE)
        captured, found.capture = found.capture, None
        if found.invalidated:
            found.invalidated = False
            _write_handle(graph, 0)
            raise HipError(CAPTURE_INVALIDATED)
        _write_handle(graph, self._new(captured))

    def hipGraphInstantiate(self, executable: int, graph: int) -> None:
        _write_handle(executable, self._new(Graph(list(self._get(graph, Graph).nodes))))

    def hipGraphLaunch(self, executable: int, stream: int) -> None:
        for node in self._get(executable, Graph).nodes:
            self._submit(stream, node)

    def hipGraphExecDestroy(self, executable: int) -> None:
        self._finish()
        self._get(executable, Graph)
        del self._objects[executable]

    hipGraphDestroy = hipGraphExecDestroy

    # The order of work

    def _submit(self, stream: int, work: Work) -> None:
        found = self._stream(stream)
        if found.invalidated:
            raise HipError(CAPTURE_INVALIDATED)
        if found.capture is not None:
            found.capture.nodes.append(work)
            return
        if stream in NULL_STREAMS and self._invalidate_captures():
            raise HipError(CAPTURE_IMPLICIT)
        self._queue.append((stream, work))
        if not self._deferred:
            self._finish()

    def _finish(self, stream: int | None = None) -> None:
        """Run what is queued, in order of submission, up to the last work of `stream` (None: all)."""
        last = max((i for i, (at, _) in enumerate(self._queue) if stream in (None, at)), default=-1)
        due, self._queue = self._queue[: last + 1], self._queue[last + 1 :]
        for _, work in due:
            if self._failure:
                return
            try:
                work()
            except Exception as error:  # whatever a kernel did: the process that launched it goes on
                self._error, self._failure = error, _failure_code(error)
                _tell(error)

    def _report(self) -> None:
        if self._failure:
            raise HipError(self._failure)

    def _forbid_in_capture(self) -> None:
        if self._invalidate_captures():
            raise HipError(CAPTURE_UNSUPPORTED)

    def _forbid_in_capture_of(self, stream: int) -> None:
        found = self._stream(stream)
        if found.capture is not None:
            found.invalidated = True
            raise HipError(CAPTURE_UNSUPPORTED)

    def _invalidate_captures(self) -> bool:
        """Whether a capture is going on that unsafe calls spoil; it is spoilt then."""
        spoilt = [s for s in self._objects.values() if isinstance(s, Stream) and s.capture is not None]
        spoilt = [stream for stream in spoilt if stream.mode != CAPTURE_RELAXED]
        for stream in spoilt:
            stream.invalidated = True
        return bool(spoilt)

    # Handles, memory, code objects

    def _new(self, thing: object) -> int:
        handle = next(self._handles)
        self._objects[handle] = thing
        return handle

    def _get(self, handle: int, kind: type[T]) -> T:
        thing = self._objects.get(handle)
        if not isinstance(thing, kind):
            raise HipError(INVALID_HANDLE)
        return thing

    def _stream(self, handle: int) -> Stream:
        return self._null_streams.get(handle) or self._get(handle, Stream)

    def _copy(self, to: int, source: int, size: int, kind: int) -> Work:
        # Kinds: host to host, host to device, device to host, device to device, told by the addresses.
        if kind > 4 or (size and not (to and source)):
            raise HipError(INVALID_VALUE)
        told = kind == 4
        on_device = [
            address
            for address, kinds in ((to, (1, 3)), (source, (2, 3)))
            if size and (kind in kinds or (told and self.memory.region_at(address)))
        ]

        def copy() -> None:
            # Once more when it runs, which for a captured graph may be after the memory was freed.
            for address in on_device:
                self.memory.read(address, size)
            ctypes.memmove(to, source, size)

        for address in on_device:
            self.memory.read(address, size)
        return copy

    def _load(self, module: int, image: bytes) -> None:
        self._forbid_in_capture()
        try:
            loaded = emulator.load(image)
        except emulator.BadCodeObject as error:
            _tell(error)
            header = image[:64].ljust(64, b"\0")
            foreign = struct.unpack_from("<H", header, 18)[0] == _AMDGPU and header[48] != _GFX950
            raise HipError(NO_BINARY_FOR_GPU if foreign else INVALID_IMAGE) from error
        _write_handle(module, self._new(Module(loaded, self._device)))

    def _add_spans(self, spans: list[tuple[int, int, str]]) -> None:
        """Register host ranges, all or none."""
        self._spans += spans
        try:
            self._map_spans()
        except (ValueError, MemoryError):
            for span in spans:
                self._spans.remove(span)
            self._map_spans()
            raise

    def _map_spans(self) -> None:
        """Map the union of the registered host ranges; overlapping ones become one buffer."""
        for address in self._mapped:
            self.memory.unregister(address)
        self._mapped = []
        merged: list[tuple[int, int, str]] = []
        for start, end, name in sorted(self._spans):
            if merged and start < merged[-1][1]:
                first, last, names = merged.pop()
                start, end, name = first, max(last, end), f"{names}, {name}"
            merged.append((start, end, name))
        for start, end, name in merged:
            region = self.memory.region_at(start)
            if region is None or region.end < end:
                array = np.ctypeslib.as_array((ctypes.c_uint8 * (end - start)).from_address(start))
                self._mapped.append(self.memory.register(array, name=name, address=start))


def _write_handle(at: int, value: int) -> None:
    ctypes.c_uint64.from_address(at).value = value


def _tell(error: Exception) -> None:
    print(f"HIP stand-in: {type(error).__name__}: {error}", file=sys.stderr)


def _failure_code(error: Exception) -> int:
    if isinstance(error, emulator.MemoryFault):
        return ILLEGAL_ADDRESS
    return LAUNCH_TIMEOUT if isinstance(error, emulator.RunawayKernel) else LAUNCH_FAILURE


def _elf_at(image: int) -> bytes:
    """The ELF file at an address: the caller does not say how long it is, its headers do."""
    header = ctypes.string_at(image, 64)
    if header[:4] != b"\x7fELF":
        raise HipError(INVALID_IMAGE)
    segments, sections = struct.unpack_from("<QQ", header, 32)
    segment_size, segment_count, section_size, section_count = struct.unpack_from("<4H", header, 54)
    size = max(64, sections + section_size * section_count, segments + segment_size * segment_count)
    for number in range(segment_count if segment_size >= 40 else 0):
        entry = ctypes.string_at(image + segments + number * segment_size, 40)
        offset, length = struct.unpack_from("<Q16xQ", entry, 8)
        size = max(size, offset + length)
    return ctypes.string_at(image, size)


def _kernarg(
    kernel: emulator.Kernel,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    shared: int,
    params: int,
    extra: int,
) -> bytes:
    """The kernel argument segment: explicit arguments from `params` or `extra`, hidden ones filled in."""
    descriptor = kernel.descriptor
    explicit = [slot for slot in descriptor.args if not slot.value_kind.startswith("hidden")]
    kernarg = bytearray(descriptor.kernarg_size)
    if extra:
        given = _buffer(extra)
        if len(given) < max((slot.offset + slot.size for slot in explicit), default=0):
            raise HipError(INVALID_VALUE)
        kernarg[: len(given)] = given[: descriptor.kernarg_size]
    elif params:
        pointers = (ctypes.c_uint64 * len(explicit)).from_address(params)
        for slot, pointer in zip(explicit, pointers, strict=True):
            kernarg[slot.offset : slot.offset + slot.size] = ctypes.string_at(pointer, slot.size)
    elif explicit:
        raise HipError(INVALID_VALUE)
    hidden = {"hidden_grid_dims": 3, "hidden_dynamic_lds_size": shared}
    for axis, groups, items in zip("xyz", grid, block, strict=True):
        hidden |= {f"hidden_block_count_{axis}": groups, f"hidden_group_size_{axis}": items}
    for slot in descriptor.args:
        if slot.value_kind in hidden:
            kernarg[slot.offset : slot.offset + slot.size] = hidden[slot.value_kind].to_bytes(
                slot.size, "little"
            )
    return bytes(kernarg)


def _buffer(extra: int) -> bytes:
    """The bytes that HIP_LAUNCH_PARAM_BUFFER_POINTER (1) and _SIZE (2) name, in a list that ends with _END (3)."""
    found: dict[int, int] = {}
    for at in itertools.count(extra, 16):
        key = ctypes.c_uint64.from_address(at).value
        if key == 3:
            break
        if key not in (1, 2):
            raise HipError(INVALID_VALUE)
        found[key] = ctypes.c_uint64.from_address(at + 8).value
    if found.keys() != {1, 2}:
        raise HipError(INVALID_VALUE)
    return ctypes.string_at(found[1], ctypes.c_size_t.from_address(found[2]).value)


_installed = threading.Lock()


@contextmanager
def installed(
    settings: Settings = Settings(),
    *,
    deferred: bool = False,
    launch: Launch = emulator.launch,
) -> Iterator[HipStandin]:
    """Inside the block this process's libamdhip64 is the stand-in.

    It must be loaded before anything else loads a HIP library. `libamdhip64` stays loaded after the block, and
    then all its calls fail. Raises `FlyccError` if the library cannot be built, or another one is loaded.

    Args:
        settings: the GPUs.
        deferred: queue work until something waits for it, as a GPU does, instead of running it at once.
        launch: runs a kernel, with the signature of `emulator.launch`.
    """
    path = str(build())
    if others := set(loaded_copies()) - {path}:
        raise FlyccError(
            Reason("standin.loaded", f"{', '.join(sorted(others))} is loaded: the stand-in must come first")
        )
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    library.flycc_standin_install.argtypes = [_HANDLER, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64]
    library.flycc_standin_install.restype = None
    if not _installed.acquire(blocking=False):
        raise FlyccError(Reason("standin.installed", "the HIP stand-in is already installed"))
    standin = HipStandin(library, settings, deferred, launch)
    try:
        standin._install(standin._handler)
        yield standin
    finally:
        standin._install(_HANDLER())
        _installed.release()
