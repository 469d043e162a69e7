"""The HIP device, through the calls it makes on hardware: libamdhip64 is the stand-in, its GPUs are emulated."""

from __future__ import annotations

import ctypes
import gc
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from conftest import on_device
from torch import Tensor

from flycc import codegen
from flycc.cli import doctor
from flycc.contracts import FlyccError, GemmProblem
from flycc.kernels import gemm as family
from flycc.runtime import devices, gemm, hip_library, ops
from flycc.runtime.device import DeviceError
from flycc.runtime.emulated import EmulatedDevice
from flycc.runtime.hip import HipDevice, HipKernel
from flycc.runtime.hip_standin import HipStandin, Settings
from flycc.runtime.operands import GemmOperands

HIP_STREAM_CAPTURE_MODE_GLOBAL = 0


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


def operands(device: HipDevice, m: int = 40, n: int = 24, k: int = 64) -> GemmOperands:
    out = on_device(device, torch.full((1, m, n), 7.0).bfloat16())
    return GemmOperands.of(on_device(device, randn(m, k)), on_device(device, randn(k, n)), None, out)


def expected(given: GemmOperands) -> Tensor:
    """What the emulated device makes of the same operands: the same code object, so the same bits."""
    out = torch.empty_like(given.out)
    a, b = given.a.tensor.clone(), given.b.tensor.clone()
    gemm.launch(GemmOperands.of(a, b, given.bias, out), EmulatedDevice())
    return out


def new_stream(raw: ctypes.CDLL) -> int:
    stream = ctypes.c_void_p()
    assert raw.hipStreamCreate(ctypes.byref(stream)) == 0
    assert stream.value is not None
    return stream.value


def refusal(call: Callable[..., object], *args: object) -> str:
    """The code of the reason why `call` fails."""
    with pytest.raises(DeviceError) as caught:
        call(*args)
    return caught.value.reason.code


# Results and order


@pytest.mark.parametrize("index", [0, 1])
def test_a_gemm_gives_the_bits_of_the_emulated_device(standin: HipStandin, index: int) -> None:
    device = HipDevice(index, stream=lambda: 0)
    given = operands(device)
    gemm.launch(given, device)
    assert (given.out == 7.0).all()  # a GPU would still be at it
    device.synchronize()
    assert torch.equal(given.out, expected(given))


def test_copies_are_in_order_with_launches(device: HipDevice) -> None:
    given = operands(device)
    right = expected(given)
    gemm.launch(given, device)
    found = device.copy_from(given.out.data_ptr(), 2 * given.out.numel())
    assert found == right.view(torch.uint8).numpy().tobytes()


def test_the_threads_current_gpu_is_left_as_it_was(standin: HipStandin, raw: ctypes.CDLL) -> None:
    device, current = HipDevice(0, stream=lambda: 0), ctypes.c_int()
    given = operands(device)
    gemm.prepare(given.problem(), device)
    raw.hipSetDevice(1)
    gemm.launch(given, device)  # refused if the function is another GPU's than the current one
    device.synchronize()
    raw.hipGetDevice(ctypes.byref(current))
    assert current.value == 1
    assert refusal(device.load, b"no ELF" * 20, "x") == "device.load"
    raw.hipGetDevice(ctypes.byref(current))
    assert current.value == 1


def test_work_goes_to_pytorchs_current_stream(
    standin: HipStandin, raw: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    streams = {index: new_stream(raw) for index in (0, 1)}

    def current_stream(index: int) -> int:
        asked.append(index)
        return streams[index]

    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", current_stream, raising=False)
    device = HipDevice(1)
    given = operands(device)
    gemm.launch(given, device)
    assert set(asked) == {1}
    assert raw.hipStreamSynchronize(streams[0]) == 0
    assert (given.out == 7.0).all()
    assert raw.hipStreamSynchronize(streams[1]) == 0
    assert torch.equal(given.out, expected(given))


# Graph capture


def test_a_launch_can_be_captured_and_replayed(standin: HipStandin, raw: ctypes.CDLL) -> None:
    stream = new_stream(raw)
    device = HipDevice(0, stream=lambda: stream)
    given = operands(device)
    gemm.prepare(given.problem(), device)
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    assert raw.hipStreamBeginCapture(ctypes.c_void_p(stream), HIP_STREAM_CAPTURE_MODE_GLOBAL) == 0
    before = standin.calls.copy()
    gemm.launch(given, device)
    assert standin.calls - before == Counter(hipModuleLaunchKernel=1)
    assert raw.hipStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)) == 0
    assert raw.hipGraphInstantiate(ctypes.byref(executable), graph, None, None, ctypes.c_size_t(0)) == 0
    gc.collect()  # the arguments must live in the graph
    device.synchronize()
    assert (given.out == 7.0).all()
    for _ in range(2):
        given.a.tensor.copy_(randn(*given.a.tensor.shape))
        assert raw.hipGraphLaunch(executable, ctypes.c_void_p(stream)) == 0
        device.synchronize()
        assert torch.equal(given.out, expected(given))


def test_what_cannot_be_captured_is_refused_and_the_capture_goes_on(
    standin: HipStandin, raw: ctypes.CDLL
) -> None:
    stream = new_stream(raw)
    device = HipDevice(0, stream=lambda: stream)
    given, address, elf, graph = operands(device), device.allocate(16), code_object(), ctypes.c_void_p()
    gemm.prepare(given.problem(), device)
    assert raw.hipStreamBeginCapture(ctypes.c_void_p(stream), HIP_STREAM_CAPTURE_MODE_GLOBAL) == 0
    for call, *args in (
        (device.load, elf.elf, elf.symbol),
        (device.allocate, 16),
        (device.free, address),
        (device.copy_to, address, b"1234"),
        (device.copy_from, address, 4),
        (device.synchronize,),
    ):
        assert refusal(call, *args) == "device.capture"
    gemm.launch(given, device)
    assert raw.hipStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)) == 0
    assert graph.value


# Memory


@pytest.mark.parametrize("nbytes", [0, 1, 1000])
def test_memory_is_aligned_and_zero(device: HipDevice, nbytes: int) -> None:
    address = device.allocate(nbytes)
    assert address
    # Zero already, for whatever stream uses it first.
    assert ctypes.string_at(address, nbytes) == bytes(nbytes)
    assert address % 256 == 0
    assert device.copy_from(address, nbytes) == bytes(nbytes)
    data = bytes(i % 256 for i in range(nbytes))
    device.copy_to(address, data)
    assert device.copy_from(address, nbytes) == data
    device.free(address)
    with pytest.raises(DeviceError, match="hipErrorInvalidValue"):
        device.free(address)


def test_out_of_memory_says_how_much_there_is(device: HipDevice, raw: ctypes.CDLL) -> None:
    device.allocate(1 << 20)
    with pytest.raises(
        DeviceError, match=f"{64 << 20} bytes asked for, {63 << 20} of {64 << 20} are free"
    ) as caught:
        device.allocate(64 << 20)
    assert caught.value.reason.code == "device.memory"
    assert raw.hipPeekAtLastError() == 0  # PyTorch would take it for an error of its own
    device.allocate(1 << 20)


# Errors of code objects and launches


def code_object() -> codegen.Compiled:
    problem = GemmProblem("bf16", 40, 24, 64)
    config = family.choose(problem)
    return codegen.compile_kernel(family.kernel(problem, config))


def test_code_objects_that_do_not_load(device: HipDevice) -> None:
    compiled = code_object()
    foreign = bytearray(compiled.elf)
    foreign[48] = 0x4C  # EF_AMDGPU_MACH of gfx942
    with pytest.raises(DeviceError, match="is not for gfx950"):
        device.load(bytes(foreign), compiled.symbol)
    with pytest.raises(DeviceError, match="hipModuleLoadData failed with hipErrorInvalidImage"):
        device.load(bytes(64), compiled.symbol)
    with pytest.raises(DeviceError, match="hipModuleGetFunction failed with hipErrorNotFound"):
        device.load(compiled.elf, "other")


def test_launches_that_are_refused(device: HipDevice, raw: ctypes.CDLL) -> None:
    compiled = code_object()
    kernel = device.load(compiled.elf, compiled.symbol)
    with pytest.raises(DeviceError, match=rf"{compiled.symbol} with grid \(1, 1, 1\), block \(2048, 1, 1\)"):
        device.launch(kernel, (1, 1, 1), (2048, 1, 1), bytes(128))
    with pytest.raises(DeviceError, match="hipErrorInvalidConfiguration"):
        device.launch(kernel, (0, 1, 1), (64, 1, 1), bytes(128))
    with pytest.raises(DeviceError, match="hipErrorInvalidValue"):
        device.launch(kernel, (1, 1, 1), (64, 1, 1), bytes(8))
    with pytest.raises(DeviceError, match="hipErrorInvalidHandle"):
        device.launch(HipKernel(4, "none"), (1, 1, 1), (64, 1, 1), b"")
    assert raw.hipPeekAtLastError() == 0


def test_a_fault_shows_at_the_next_synchronisation_and_stays(device: HipDevice) -> None:
    given = operands(device)
    device.free(given.out.data_ptr())
    gemm.launch(given, device)  # an asynchronous error: not known yet
    with pytest.raises(
        DeviceError, match="hipDeviceSynchronize failed with hipErrorIllegalAddress"
    ) as caught:
        device.synchronize()
    assert caught.value.reason.code == "device.launch"
    with pytest.raises(DeviceError, match="or an earlier kernel: hipModuleLaunchKernel failed"):
        gemm.launch(given, device)
    assert refusal(device.copy_from, given.b.tensor.data_ptr(), 2) == "device.launch"


# Choosing the device


@pytest.fixture
def _rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PyTorch built for ROCm, as far as choosing a device goes."""
    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    monkeypatch.setattr(devices, "GPUS", {})


@pytest.mark.usefixtures("_rocm")
def test_rocm_tensors_have_their_gpu(standin: HipStandin) -> None:
    device = devices.device_for(torch.device("cuda", 1))
    assert (device.name, device.target, device.index) == ("hip", "gfx950", 1)
    assert devices.device_for(torch.device("cuda")) is device
    assert devices.device_for(torch.device("cuda", 0)) is not device
    assert ops.serve(GemmProblem("bf16", 40, 24, 64), torch.device("cuda", 0)) is None
    properties = device.properties
    assert (properties.wave_size, properties.lds_bytes, properties.memory_bytes) == (64, 160 << 10, 64 << 20)
    assert (properties.name, properties.compute_units) == ("flycc emulated GPU", 256)


def why_not(device: torch.device) -> tuple[str, str]:
    with pytest.raises(FlyccError) as caught:
        devices.device_for(device)
    return caught.value.reason.code, str(caught.value)


@pytest.mark.usefixtures("_rocm")
@pytest.mark.parametrize("standin", [Settings(arch="gfx942:sramecc+:xnack-")], indirect=True)
def test_another_gpu_is_refused_by_name(standin: HipStandin) -> None:
    code, why = why_not(torch.device("cuda", 0))
    assert code == "device.target"
    assert "GPU 0 is a flycc emulated GPU (gfx942)" in why
    assert doctor.examine()["device"] == "emulated gfx950 on this CPU"


@pytest.mark.usefixtures("_rocm")
@pytest.mark.parametrize("standin", [Settings(devices=0)], indirect=True)
def test_no_gpu_is_refused(standin: HipStandin) -> None:
    code, why = why_not(torch.device("cuda", 0))
    assert code == "device.absent"
    assert "libamdhip64.so.7 sees 0 GPUs" in why


def test_other_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not(torch.device("meta")) == (
        "device.type",
        "tensors on meta: flycc launches on CPU tensors (emulated) and on ROCm GPUs",
    )
    monkeypatch.setattr(torch.version, "hip", None)
    code, why = why_not(torch.device("cuda", 0))
    assert code == "device.type"
    assert "not built for ROCm" in why


def test_no_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hip_library, "NAMES", ("libabsent.so.1",))
    monkeypatch.setattr(hip_library, "loaded_copies", list)
    hip_library.library.cache_clear()
    assert refusal(HipDevice, 0) == "device.library"
    found = doctor.examine()
    assert found["hip"]["library"] is None
    assert "libabsent.so.1 is neither loaded nor" in found["hip"]["problem"]


def test_a_library_that_is_too_old_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"has no hip\w+; HIP 6 or newer is needed"):
        hip_library.HipLibrary("libc.so.6")


def test_doctor_names_the_gpus(standin: HipStandin) -> None:
    found = doctor.examine()
    assert found["hip"]["gpus"] == [{"name": "flycc emulated GPU", "target": "gfx950"}] * 2
    assert found["hip"]["problem"] is None
    assert found["device"].startswith("GPU 0 (flycc emulated GPU), GPU 1 (flycc emulated GPU), emulated")


def test_operands_on_two_devices_go_to_pytorch() -> None:
    with pytest.raises(FlyccError, match=r"a is on cpu, bias is on meta") as caught:
        devices.common_device(a=randn(2, 2), b=randn(2, 2), bias=torch.empty(2, device="meta"))
    assert caught.value.reason.code == "device.mixed"
