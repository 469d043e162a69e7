"""Which of a few configurations is the fastest on the GPU at hand, by HIP's events.

Operands hold normally distributed values: zeros would draw less power and run at a higher clock than a model's. As many
copies of them take turns as it takes to fill the caches twice, because a model's weights are not in a cache either.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from flycc.contracts import Reason
from flycc.costmodel import MI350
from flycc.runtime.device import Device, DeviceError
from flycc.runtime.loading import load
from flycc.tuning.modelled import Step, steps

#: Launches before and in each of the timed series, and series, of which the median counts.
_WARM, _LAUNCHES, _SERIES = 3, 20, 5
#: Copies of small operands: beyond this they are not worth the memory's management.
_MOST_COPIES = 32
#: Different values of an operand, which repeat.
_VALUES = 1 << 20


class TimedDevice(Device, Protocol):
    """A device that can time what it runs."""

    def timed_us(self, work: Callable[[], None]) -> float:
        """Microseconds on the device from the first to the last of what `work` launches."""


def fastest_on(device: TimedDevice, problem: Any, configs: Sequence[Any]) -> tuple[Any, float]:
    """The configuration with the least time a call, and that time in us. The first of equals.

    Raises `FlyccError` where a kernel cannot be built or run.
    """
    if not configs:
        raise DeviceError(Reason("tune.measure", f"{problem}: there is no configuration to measure"))
    times = {config: measured_us(device, problem, config) for config in configs}
    best = min(times, key=lambda config: times[config])
    return best, times[best]


def measured_us(device: TimedDevice, problem: Any, config: Any) -> float:
    """Time of a call in us, its launches one after another: the median of several series."""
    launches = steps(problem, config)
    nbytes = sum(sum(step.buffers.values()) for step in launches)
    copies = min(_MOST_COPIES, max(1, -(-2 * MI350.mall_bytes // max(1, nbytes))))
    with _allocated(device, launches, copies) as kernargs:
        loaded = [load(step.spec, device) for step in launches]

        def call(count: int) -> None:
            for i in range(count):
                for step, kernel, kernarg in zip(launches, loaded, kernargs[i % copies], strict=True):
                    device.launch(kernel.handle, step.launch.grid, step.launch.block, kernarg)

        call(_WARM)
        return statistics.median(device.timed_us(lambda: call(_LAUNCHES)) / _LAUNCHES for _ in range(_SERIES))


@contextmanager
def _allocated(device: Device, launches: Sequence[Step], copies: int) -> Iterator[list[list[bytes]]]:
    """For each copy the kernel arguments of each launch, on buffers of their own."""
    addresses: list[int] = []

    def buffer(step: Step, name: str, size: int) -> int:
        if not size:
            return 0
        addresses.append(device.allocate(size))
        if name in step.contents:
            device.copy_to(addresses[-1], step.contents[name].tobytes())
        if name in ("a", "b", "b2", "x", "bias", "residual", "weight"):
            device.copy_to(addresses[-1], _values(size))
        return addresses[-1]

    try:
        yield [
            [
                step.spec.kernarg.pack(
                    {
                        **{name: buffer(step, name, size) for name, size in step.buffers.items()},
                        **step.numbers,
                    }
                )
                for step in launches
            ]
            for _ in range(copies)
        ]
        device.synchronize()
    finally:
        for address in addresses:
            device.free(address)


def _values(nbytes: int) -> bytes:
    """bfloat16 values, normally distributed, the same every time. As float16 or float32 they are as varied."""
    values = np.random.default_rng(0).standard_normal(_VALUES, np.float32)
    pattern = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return (pattern * (nbytes // len(pattern) + 1))[:nbytes]
