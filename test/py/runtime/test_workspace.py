"""Products whose K is shared among workgroups, from the op to the launch: partial sums, counters, captured graphs."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from conftest import on_device

from flycc import emulator
from flycc.contracts import GemmProblem, Reason
from flycc.emulator.errors import EmulatorError
from flycc.kernels.gemm import KERNARG, GemmConfig
from flycc.runtime import choice, gemm, plans, refusals, workspace
from flycc.runtime.device import DeviceError
from flycc.runtime.emulated import EmulatedDevice
from flycc.runtime.hip import HipDevice
from flycc.runtime.hip_standin import HipStandin
from flycc.runtime.operands import GemmOperands
from flycc.tuning.launches import watched_launches

CONFIG = GemmConfig(16, 64, 64, waves_k=2, staged=False, splits=3)


@pytest.fixture(autouse=True)
def split() -> Iterator[None]:
    """Every product is split."""

    def provider(problem: object) -> object:
        return CONFIG if isinstance(problem, GemmProblem) else None

    choice.install(provider)
    yield
    choice.remove(provider)


def whole_numbers(*shape: int) -> torch.Tensor:
    return torch.randint(-4, 5, shape).bfloat16()


@pytest.mark.parametrize("k", [40, 520])
def test_op(k: int) -> None:
    """Small integers: the sums are exact, so PyTorch's are the same. Counters are used again and again."""
    for m in (5, 40, 5):
        a, b, bias = whole_numbers(2, m, k), whole_numbers(2, k, 72), whole_numbers(72)
        for _ in range(2):
            expected = (a.float() @ b.float() + bias.float()).bfloat16()
            assert torch.equal(torch.ops.flycc.gemm(a, b, bias), expected)


def test_watching_a_launch_leaves_its_counters_and_result_alone() -> None:
    a, b = whole_numbers(40, 520), whole_numbers(520, 72)
    with watched_launches() as found:
        for _ in range(2):
            assert torch.equal(torch.ops.flycc.gemm(a, b), (a.float() @ b.float()).bfloat16())
    assert [launch.count for launch in found.values()] == [2]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), EmulatorError("planted")])
def test_after_a_launch_that_did_not_end_counters_are_new(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a launch that stops after two workgroups the counters say that parts have arrived."""
    a, b = whole_numbers(40, 520), whole_numbers(520, 72)
    expected = (a.float() @ b.float()).bfloat16()
    assert torch.equal(torch.ops.flycc.gemm(a, b), expected)
    arrived: list[tuple[bool, bool]] = []

    def watched(*arguments: Any) -> None:
        region = arguments[4].region_at(
            int.from_bytes(arguments[3][KERNARG.offset("arrived") :][:8], "little")
        )
        before, stops = bool(region.data.any()), not arrived
        launch(*arguments, workgroups=[(0, 0, 0), (1, 0, 0)] if stops else None)
        arrived.append((before, bool(region.data.any())))
        if stops:
            raise error

    launch = emulator.launch
    monkeypatch.setattr(emulator, "launch", watched)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            torch.ops.flycc.gemm(a, b)
    else:
        monkeypatch.setattr(refusals, "_warned", set())
        with pytest.warns(RuntimeWarning, match="planted"):
            assert torch.equal(torch.ops.flycc.gemm(a, b), expected)
    for _ in range(2):
        assert torch.equal(torch.ops.flycc.gemm(a, b), expected)
    assert arrived == [(False, True), (False, False), (False, False)]


def test_a_child_forked_during_a_launch_has_new_counters() -> None:
    device, place = EmulatedDevice(), torch.device("cpu")
    with workspace.counters(1, device, place) as dirty:
        dirty.fill_(1)
        if not (child := os.fork()):
            with workspace.counters(1, device, place) as found:
                os._exit(int(found.any()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_repeated_launch_that_fails_gives_up_its_counters() -> None:
    device, place, used = EmulatedDevice(), torch.device("cpu"), []

    def launch(_: int, counters: int) -> None:
        used.append(counters)
        raise DeviceError(Reason("device.launch", "planted"))

    sums = ((1,), {"dtype": torch.float32, "device": place})
    plan = plans.Plan(device, (sums,), 1, ((launch, lambda addresses: (addresses[0], addresses[1])),))
    with workspace.counters(1, device, place) as counters:
        address = counters.data_ptr()
    with pytest.raises(DeviceError):
        plan.repeat([])
    assert used == [address]
    with workspace.counters(1, device, place) as other:
        assert other.data_ptr() != address  # of `counters`, which is still alive


def test_streams_have_counters_of_their_own_and_captured_launches_too(
    standin: HipStandin, raw: ctypes.CDLL
) -> None:
    streams = [ctypes.c_void_p() for _ in range(2)]
    for stream in streams:
        assert raw.hipStreamCreate(ctypes.byref(stream)) == 0
    current = streams[0]
    device, graph = HipDevice(0, stream=lambda: current.value or 0), ctypes.c_void_p()

    def counters(count: int = 1) -> torch.Tensor:
        with workspace.counters(count, device, torch.device("cpu")) as found:
            return found

    eager = counters()
    assert counters() is eager
    captured = []
    for _ in range(2):
        assert raw.hipStreamBeginCapture(current, 0) == 0
        captured += [counters(), counters()]
        assert raw.hipStreamEndCapture(current, ctypes.byref(graph)) == 0
    assert counters() is eager
    current = streams[1]
    beside = counters()
    different = [eager, *captured, beside]
    assert len({found.data_ptr() for found in different}) == len(different)
    more = counters(beside.numel() + 1)
    assert more.numel() > beside.numel()
    assert not more.any()
    alive = [weakref.ref(found) for found in captured]
    del captured, different
    assert not any(found() is not None for found in alive)


def test_a_captured_graph_gives_the_same_bits_at_each_replay(
    standin: HipStandin, raw: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, graph, executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert raw.hipStreamCreate(ctypes.byref(stream)) == 0
    device = HipDevice(0, stream=lambda: stream.value or 0)
    a, b = torch.randn(40, 520).bfloat16(), torch.randn(520, 72).bfloat16()
    out = on_device(device, torch.full((1, 40, 72), 7.0).bfloat16())
    given = GemmOperands.of(on_device(device, a), on_device(device, b), None, out)
    # PyTorch has no memory on the stand-in's GPU.
    sums, zeros = (
        on_device(device, torch.empty(1 << 16)),
        on_device(device, torch.zeros(1 << 10, dtype=torch.int32)),
    )
    monkeypatch.setattr(workspace, "sums", lambda count, place: sums)
    monkeypatch.setattr(workspace, "counters", lambda count, device, place: nullcontext(zeros))
    gemm.prepare(given.problem(), device)
    assert raw.hipStreamBeginCapture(stream, 0) == 0
    gemm.launch(given, device)
    assert raw.hipStreamEndCapture(stream, ctypes.byref(graph)) == 0
    assert raw.hipGraphInstantiate(ctypes.byref(executable), graph, None, None, ctypes.c_size_t(0)) == 0
    monkeypatch.undo()
    expected = torch.empty_like(out)
    gemm.launch(GemmOperands.of(a, b, None, expected), EmulatedDevice())
    for _ in range(2):
        out.fill_(7)
        assert raw.hipGraphLaunch(executable, stream) == 0
        device.synchronize()
        assert torch.equal(out, expected)
        assert not zeros.any()
