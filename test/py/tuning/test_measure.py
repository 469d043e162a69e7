"""Measuring on a GPU: HIP's events through the stand-in, whose GPUs are emulated and whose time is the host's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flycc.contracts import FlyccError, GemmProblem
from flycc.kernels.gemm import GemmConfig
from flycc.runtime import hip_standin
from flycc.runtime.device import DeviceError
from flycc.runtime.hip import HipDevice
from flycc.tuning import measure
from flycc.tuning.measure import fastest_on, measured_us

PROBLEM = GemmProblem("bf16", 16, 32, 64, trans_b=True)
#: One wave of two MFMAs, and one workgroup of 64 x 64 for the same 16 x 32.
CONFIGS = (GemmConfig(64, 64, 64, 2, 2), GemmConfig(16, 32, 64, staged=False))


@pytest.fixture
def standin() -> Iterator[hip_standin.HipStandin]:
    settings = hip_standin.Settings(memory_bytes=64 << 20)
    try:
        with hip_standin.installed(settings, deferred=True) as standin:
            yield standin
    except FlyccError as error:
        if error.reason.code != "standin.loaded":
            raise
        pytest.skip(f"this process has a real HIP library: {error}")


@pytest.fixture
def device(standin: hip_standin.HipStandin, monkeypatch: pytest.MonkeyPatch) -> HipDevice:
    monkeypatch.setattr(measure, "_LAUNCHES", 2)
    monkeypatch.setattr(measure, "_SERIES", 2)
    monkeypatch.setattr(measure, "_MOST_COPIES", 2)
    return HipDevice(0, stream=lambda: 0)


def test_events_enclose_what_is_launched(device: HipDevice, standin: hip_standin.HipStandin) -> None:
    assert device.timed_us(lambda: None) >= 0
    before = Counter(standin.calls)
    us = measured_us(device, PROBLEM, CONFIGS[1])
    calls = standin.calls - before
    assert us > 0
    assert calls["hipModuleLaunchKernel"] == measure._WARM + 2 * 2
    assert calls["hipEventCreateWithFlags"] == calls["hipEventDestroy"] == 2 * 2
    assert calls["hipEventRecord"] == 2 * 2
    assert calls["hipMalloc"] == calls["hipFree"] == 2 * 3  # a, b, out; two copies


def test_a_failing_launch_is_an_error_and_frees_what_was_allocated(
    device: HipDevice, standin: hip_standin.HipStandin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DeviceError(measure.Reason("device.launch", "no"))

    monkeypatch.setattr(device, "launch", fail)
    before = Counter(standin.calls)
    with pytest.raises(DeviceError, match="no"):
        measured_us(device, PROBLEM, CONFIGS[1])
    calls = standin.calls - before
    assert calls["hipMalloc"] == calls["hipFree"] > 0


def test_the_fastest_is_the_one_with_the_least_time(
    device: HipDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device's clock says what each kernel takes; the one in front is the slower one."""
    took = {"gemm_bf16_nt_v888_" + str(config): us for config, us in zip(CONFIGS, (9.0, 4.0), strict=True)}
    clock = 0.0
    launch = device.launch

    def timed(kernel: Any, *rest: Any) -> None:
        nonlocal clock
        clock += took[kernel.symbol]
        launch(kernel, *rest)

    def timed_us(work: Callable[[], None]) -> float:
        before = clock
        work()
        return clock - before

    monkeypatch.setattr(device, "launch", timed)
    monkeypatch.setattr(device, "timed_us", timed_us)
    assert fastest_on(device, PROBLEM, CONFIGS) == (CONFIGS[1], 4.0)


def test_nothing_to_measure_is_refused(device: HipDevice) -> None:
    with pytest.raises(DeviceError, match="no configuration"):
        fastest_on(device, PROBLEM, [])
