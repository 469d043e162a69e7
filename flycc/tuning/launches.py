"""The kernel launches of a call of a compiled function, each different one traced and modelled once.

with watched_launches() as launches:
    compiled(*inputs)
for launch in launches.values():
    launch.prediction()                     # modelled 12.3 us [11.0, 14.1]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from flycc import emulator
from flycc.contracts import FlyccError, Reason
from flycc.costmodel import Prediction, neighbours, predict
from flycc.emulator.elf import KernelArg
from flycc.emulator.errors import EmulatorError
from flycc.emulator.trace import Trace
from flycc.emulator.trace_recorder import Recorder
from flycc.kernels import gemm, grouped_gemm, mx, mx_grouped, mx_quantize, rms_norm, topk
from flycc.kernels.mx import pack
from flycc.runtime import devices
from flycc.runtime.device import DeviceError, Extent
from flycc.runtime.emulated import EmulatedDevice

#: Code of the refusals that leave a traced launch's result to PyTorch.
LEFT_OUT = "profile.left-out"
#: Instructions, summed over waves, that the launches of one call may take beyond those traced. Once they are used up,
#: PyTorch computes the results: much faster, but an op of several launches then shows its first one only.
_WHOLE = 20_000_000

#: What of a kernel's arguments tells its problem: (prefix of its symbol, names of its arguments, those shown).
_SIZES = (
    ("gemm", gemm.KERNARG.names, ("m", "n", "k")),
    ("grouped", grouped_gemm.KERNARG.names, ("groups", "m", "n", "k")),
    ("grouped_mx", mx_grouped.KERNARG.names, ("groups", "m", "n", "k")),
    ("mx_quantize", mx_quantize.QUANTIZE.names, ("rows", "columns")),
    ("mx_dequantize", mx_quantize.DEQUANTIZE.names, ("rows", "columns")),
    ("mx_pack", pack.KERNARG.names, ("rows_a", "rows_b", "blocks")),
    ("mx_", mx.KERNARG.names, ("m", "n", "k")),
    ("scale_range", mx_quantize.RANGE.names, ("count",)),
    ("rms_norm", rms_norm.FORWARD.names, ("rows", "columns")),
    ("rms_norm", rms_norm.BACKWARD.names, ("rows", "columns")),
    ("topk", topk.KERNARG.names, ("rows", "n", "k")),
)


@dataclass(slots=True)
class WatchedLaunch:
    """One kernel with one grid and one set of sizes; `count` is how often it was launched."""

    kernel: str
    sizes: dict[str, int]
    grid: Extent
    block: Extent
    trace: Trace
    count: int = 0

    def prediction(self) -> Prediction:
        """Modelled, as replayed from a graph. Raises `FlyccError` for a trace that the model does not take."""
        try:
            return predict(self.trace)
        except ValueError as error:
            raise FlyccError(Reason("profile.model", f"{self.kernel}: {error}")) from error


#: By what makes a launch different: kernel, grid, and the arguments that are no pointers.
WatchedLaunches = dict[tuple[object, ...], WatchedLaunch]


@contextmanager
def watched_launches() -> Iterator[WatchedLaunches]:
    """Trace what this process launches on the emulated device inside the block.

    Of each different launch the workgroups run that a prediction needs, on the operands it is called with. Its results
    come from running the rest too, while that is cheap, and from PyTorch after that, so that they are always right.
    """
    device = _WatchedDevice()
    emulated = devices.emulated_device
    devices.emulated_device = lambda: device  # type: ignore[assignment]
    try:
        yield device.launches
    finally:
        devices.emulated_device = emulated


class _WatchedDevice(EmulatedDevice):
    def __init__(self) -> None:
        super().__init__()
        self.launches: WatchedLaunches = {}
        self._left = _WHOLE

    def launch(self, kernel: emulator.Kernel, grid: Extent, block: Extent, kernarg: bytes) -> None:
        numbers = [
            kernarg[a.offset : a.offset + a.size]
            for a in kernel.descriptor.args
            if a.value_kind != "global_buffer"
        ]
        key = (kernel.name, grid, *numbers)
        found = self.launches.get(key)
        if found is None:
            trace = self._trace(kernel, grid, block, kernarg)
            found = WatchedLaunch(kernel.name, _sizes(kernel, kernarg), grid, block, trace)
            self.launches[key] = found
        found.count += 1
        traced = len(found.trace.waves) // int(found.trace.info["waves_per_workgroup"])
        whole = found.trace.wave_instructions * grid[0] * grid[1] * grid[2] // traced
        if whole > self._left:
            raise DeviceError(Reason(LEFT_OUT, "profiled, and too long to be emulated whole"))
        self._left -= whole
        super().launch(kernel, grid, block, kernarg)

    def _trace(self, kernel: emulator.Kernel, grid: Extent, block: Extent, kernarg: bytes) -> Trace:
        recorder = Recorder()
        try:
            with self._lock, self._others_arrived(kernel, kernarg):
                emulator.launch(
                    kernel,
                    grid,
                    block,
                    kernarg,
                    self._memory,
                    workgroups=neighbours(grid),
                    observers=(recorder,),
                )
        except EmulatorError as error:
            raise DeviceError(Reason("device.launch", str(error))) from error
        return recorder.trace()

    @contextmanager
    def _others_arrived(self, kernel: emulator.Kernel, kernarg: bytes) -> Iterator[None]:
        """Traced workgroups of a product that share tiles with others are the last to come, and leave no trace."""
        values: dict[str, int] = {}
        for prefix, names in (("gemm_", gemm.KERNARG.names), ("mx_", mx.KERNARG.names)):
            if kernel.name.startswith(prefix):
                values = _numbers(kernel, kernarg, names)
        region = self._memory.region_at(values["arrived"]) if values.get("arrived") else None
        if region is None:
            yield
            return
        counters = region.data.view(np.int32)
        counters[:] = gemm.others_arrived(values["parts"])
        try:
            yield
        finally:
            counters[:] = 0


def _sizes(kernel: emulator.Kernel, kernarg: bytes) -> dict[str, int]:
    """The sizes among the arguments of a kernel of ours; none of another's, whose arguments have no names."""
    for prefix, names, shown in _SIZES:
        if kernel.name.startswith(prefix) and (by_name := _numbers(kernel, kernarg, names)):
            return {name: by_name[name] for name in shown}
    return {}


def _numbers(kernel: emulator.Kernel, kernarg: bytes, names: tuple[str, ...]) -> dict[str, int]:
    """The arguments of a kernel by those names, as whole numbers; none if it has more or fewer."""
    args = kernel.descriptor.args
    return (
        {name: _number(kernarg, arg) for name, arg in zip(names, args, strict=True)}
        if len(names) == len(args)
        else {}
    )


def _number(kernarg: bytes, arg: KernelArg) -> int:
    return int.from_bytes(kernarg[arg.offset : arg.offset + arg.size], "little")
