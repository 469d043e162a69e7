"""AMD's HIP runtime library through ctypes: finding it, calling it, and what its errors become.

Only documented functions of hip_runtime_api.h are called. Their numbers, and the one structure offset used here,
are the ABI of HIP 6 and 7.
"""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from pathlib import Path

from flycc.contracts import Reason
from flycc.runtime.device import DeviceError

#: Newest first; the plain name is that of a development package, and of the copy in PyTorch's wheels.
NAMES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so")

# hipError_t
SUCCESS, OUT_OF_MEMORY, NO_DEVICE, NO_BINARY_FOR_GPU = 0, 2, 100, 209
# hipMemcpyKind
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
# hipDeviceAttribute_t
MULTIPROCESSOR_COUNT, MAX_SHARED_MEMORY_PER_BLOCK, WARP_SIZE = 63, 74, 87

#: hipDeviceProp_tR0600 has 1472 bytes; newer ones may have more. gcnArchName is char[256].
_PROPERTIES_ROOM, _GCN_ARCH_NAME = 4096, 1160

_POINTER, _INT, _UNSIGNED, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
_PROTOTYPES: dict[str, tuple[type, ...]] = {
    "hipGetDeviceCount": (_POINTER,),
    "hipGetDevice": (_POINTER,),
    "hipSetDevice": (_INT,),
    "hipGetDevicePropertiesR0600": (_POINTER, _INT),
    "hipDeviceGetName": (ctypes.c_char_p, _INT, _INT),
    "hipDeviceGetAttribute": (_POINTER, _INT, _INT),
    "hipDeviceTotalMem": (_POINTER, _INT),
    "hipDeviceSynchronize": (),
    "hipMemGetInfo": (_POINTER, _POINTER),
    "hipMalloc": (_POINTER, _SIZE),
    "hipFree": (_POINTER,),
    "hipMemsetAsync": (_POINTER, _INT, _SIZE, _POINTER),
    "hipMemcpyAsync": (_POINTER, _POINTER, _SIZE, _INT, _POINTER),
    "hipStreamSynchronize": (_POINTER,),
    "hipStreamIsCapturing": (_POINTER, _POINTER),
    "hipStreamGetCaptureInfo": (_POINTER, _POINTER, _POINTER),
    "hipEventCreate": (_POINTER,),
    "hipEventDestroy": (_POINTER,),
    "hipEventRecord": (_POINTER, _POINTER),
    "hipEventSynchronize": (_POINTER,),
    "hipEventElapsedTime": (_POINTER, _POINTER, _POINTER),
    "hipModuleLoadData": (_POINTER, _POINTER),
    "hipModuleGetFunction": (_POINTER, _POINTER, ctypes.c_char_p),
    "hipModuleLaunchKernel": (_POINTER, *[_UNSIGNED] * 7, _POINTER, _POINTER, _POINTER),
    "hipGetLastError": (),
}


class HipError(DeviceError):
    """A call of the HIP library failed; `code` is its hipError_t."""

    def __init__(self, reason: Reason, code: int) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class HipProperties:
    """A GPU. `target` is its gcnArchName without features, for example gfx950; sizes in bytes."""

    name: str
    target: str
    compute_units: int
    wave_size: int
    lds_bytes: int
    memory_bytes: int


class HipLibrary:
    """A loaded libamdhip64. Raises `DeviceError` for one that lacks a function."""

    def __init__(self, path: str) -> None:
        self.path = path
        library = ctypes.CDLL(path)
        for name, arguments in _PROTOTYPES.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise DeviceError(
                    Reason("device.library", f"{path} has no {name}; HIP 6 or newer is needed")
                ) from None
            function.argtypes, function.restype = arguments, ctypes.c_int
        library.hipGetErrorName.argtypes = library.hipGetErrorString.argtypes = (_INT,)
        library.hipGetErrorName.restype = library.hipGetErrorString.restype = ctypes.c_char_p
        #: Functions that return a hipError_t, for callers to whom `call` is too slow.
        self.raw = library

    def call(self, code: str, what: str, function: str, *arguments: object) -> None:
        """Call `function`. Raises `HipError` with the Reason `code`, which says that `what` failed."""
        error = getattr(self.raw, function)(*arguments)
        if error:
            raise self.error(code, what, function, error)

    def error(self, code: str, what: str, function: str, error: int) -> HipError:
        """What to raise for the hipError_t that `function` returned.

        The thread's last error is cleared: it is reported here, and PyTorch would take it for its own.
        """
        self.raw.hipGetLastError()
        name, text = self.raw.hipGetErrorName(error).decode(), self.raw.hipGetErrorString(error).decode()
        return HipError(Reason(code, f"{what}: {function} failed with {name} ({text})"), error)

    def device_count(self) -> int:
        """Number of visible GPUs, 0 included."""
        count = ctypes.c_int()
        try:
            self.call("device.count", "counting GPUs", "hipGetDeviceCount", ctypes.byref(count))
        except HipError as error:
            if error.code != NO_DEVICE:
                raise
            return 0
        return count.value

    def properties(self, device: int) -> HipProperties:
        """What GPU number `device` is."""
        what = f"reading the properties of GPU {device}"
        raw, name = ctypes.create_string_buffer(_PROPERTIES_ROOM), ctypes.create_string_buffer(256)
        memory = ctypes.c_size_t()
        self.call("device.properties", what, "hipGetDevicePropertiesR0600", raw, device)
        self.call("device.properties", what, "hipDeviceGetName", name, len(name), device)
        self.call("device.properties", what, "hipDeviceTotalMem", ctypes.byref(memory), device)

        def attribute(number: int) -> int:
            value = ctypes.c_int()
            self.call("device.properties", what, "hipDeviceGetAttribute", ctypes.byref(value), number, device)
            return value.value

        arch = raw.raw[_GCN_ARCH_NAME : _GCN_ARCH_NAME + 256].split(b"\0")[0].decode(errors="replace")
        return HipProperties(
            name=name.value.decode(errors="replace"),
            target=arch.partition(":")[0],
            compute_units=attribute(MULTIPROCESSOR_COUNT),
            wave_size=attribute(WARP_SIZE),
            lds_bytes=attribute(MAX_SHARED_MEMORY_PER_BLOCK),
            memory_bytes=memory.value,
        )


@functools.cache
def library() -> HipLibrary:
    """This process's HIP library: the copy that is loaded already (PyTorch brings its own), or the system's.

    Raises `DeviceError` if there is none.
    """
    candidates = [*loaded_copies(), *_installed(), *NAMES]
    for path in candidates:
        try:
            return HipLibrary(path)
        except OSError:
            continue
    raise DeviceError(
        Reason(
            "device.library",
            f"no HIP library: {', '.join(NAMES)} is neither loaded nor in ROCM_PATH "
            f"({os.environ.get('ROCM_PATH') or 'not set'}) nor where the dynamic linker looks",
        )
    )


def loaded_copies() -> list[str]:
    """The HIP libraries in this process's memory map: two copies would not see each other's streams."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = (line[line.index("/") :] for line in lines if "/libamdhip64" in line)
    return list(dict.fromkeys(paths))


def _installed() -> list[str]:
    root = os.environ.get("ROCM_PATH")
    return [str(Path(root, "lib", name)) for name in NAMES] if root else []
