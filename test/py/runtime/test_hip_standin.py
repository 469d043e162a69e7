"""The HIP stand-in itself: its C interface, its build, what it hands to the emulator, and its own errors."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import on_device

from flycc import codegen, emulator
from flycc.contracts import FlyccError, GemmProblem
from flycc.emulator.elf import KernelArg
from flycc.kernels import gemm as family
from flycc.runtime import hip_standin
from flycc.runtime.hip import HipDevice
from flycc.runtime.hip_standin import HipStandin
from flycc.runtime.hip_standin import standin as implementation

CLIENT = Path(__file__).with_name("hip_client.c")


def test_c_programs_find_hip_as_its_headers_say(standin: HipStandin, tmp_path: Path) -> None:
    triton = importlib.util.find_spec("triton")
    if triton is None or triton.origin is None:
        pytest.skip("HIP's headers come from Triton's wheel, which is not installed")
    headers = Path(triton.origin).parent / "backends" / "amd" / "include"
    library = tmp_path / "client.so"
    command = ["cc", "-std=c11", "-D__HIP_PLATFORM_AMD__", f"-I{headers}", "-shared", "-fPIC"]
    subprocess.run([*command, "-o", library, CLIENT, hip_standin.build()], check=True)
    check = ctypes.CDLL(str(library)).check_hip
    check.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
    line = check(2, b"gfx950:sramecc+:xnack-", 64 << 20)
    assert line == 0, CLIENT.read_text().splitlines()[line - 1]


# Launches


def gemm_kernel() -> tuple[codegen.Compiled, emulator.Kernel]:
    problem = GemmProblem("bf16", 40, 24, 64)
    compiled = codegen.compile_kernel(family.kernel(problem, family.choose(problem)))
    return compiled, emulator.load(compiled.elf).kernels[compiled.symbol]


def launch_arguments(values: list[bytes]) -> tuple[ctypes.Array, list[ctypes.Array]]:
    """`kernelParams` of hipModuleLaunchKernel, and what it points to."""
    held = [ctypes.create_string_buffer(value, len(value)) for value in values]
    return (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held)), held


@pytest.mark.parametrize("by", ["params", "extra"])
def test_arguments_arrive_where_the_metadata_says(by: str) -> None:
    _, kernel = gemm_kernel()
    explicit = [
        KernelArg("a", 0, 8, "global_buffer"),
        KernelArg("n", 8, 4, "by_value"),
        KernelArg("b", 16, 8, "by_value"),
    ]
    hidden = [KernelArg("", 24 + 4 * i, 4, f"hidden_block_count_{axis}") for i, axis in enumerate("xyz")] + [
        KernelArg("", 36 + 2 * i, 2, f"hidden_group_size_{axis}") for i, axis in enumerate("xyz")
    ]
    hidden += [
        KernelArg("", 48, 8, "hidden_global_offset_x"),
        KernelArg("", 56, 2, "hidden_grid_dims"),
        KernelArg("", 60, 4, "hidden_dynamic_lds_size"),
    ]
    described = dataclasses.replace(kernel.descriptor, kernarg_size=64, args=(*explicit, *hidden))
    kernel = dataclasses.replace(kernel, descriptor=described)
    values = [b"AAAAAAAA", b"nnnn", b"BBBBBBBB"]
    params, extra = 0, 0
    if by == "params":
        pointers, _held = launch_arguments(values)
        params = ctypes.addressof(pointers)
    else:
        buffer = ctypes.create_string_buffer(b"AAAAAAAAnnnn\0\0\0\0BBBBBBBB", 24)
        size = ctypes.c_size_t(24)
        pairs = (ctypes.c_void_p * 5)(2, ctypes.addressof(size), 1, ctypes.addressof(buffer), 3)
        extra = ctypes.addressof(pairs)
    kernarg = implementation._kernarg(kernel, (5, 6, 7), (64, 2, 1), 512, params, extra)
    assert kernarg[:24] == b"AAAAAAAAnnnn\0\0\0\0BBBBBBBB"
    assert np.frombuffer(kernarg, "<u4", 3, 24).tolist() == [5, 6, 7]
    assert np.frombuffer(kernarg, "<u2", 3, 36).tolist() == [64, 2, 1]
    assert np.frombuffer(kernarg, "<u8", 1, 48).tolist() == [0]
    assert np.frombuffer(kernarg, "<u2", 1, 56).tolist() == [3]
    assert np.frombuffer(kernarg, "<u4", 1, 60).tolist() == [512]


def test_the_file_is_read_as_far_as_its_headers_say() -> None:
    compiled, _ = gemm_kernel()
    held = ctypes.create_string_buffer(compiled.elf + b"\xff" * 64, len(compiled.elf) + 64)
    read = implementation._elf_at(ctypes.addressof(held))
    assert compiled.elf.startswith(read)
    assert emulator.load(read).kernels.keys() == emulator.load(compiled.elf).kernels.keys()


def test_occupancy_is_bounded_by_registers_waves_and_lds(standin: HipStandin, raw: ctypes.CDLL) -> None:
    compiled, kernel = gemm_kernel()
    module, function, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    assert raw.hipModuleLoadData(ctypes.byref(module), compiled.elf) == 0
    assert raw.hipModuleGetFunction(ctypes.byref(function), module, compiled.symbol.encode()) == 0
    ask = raw.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor
    ask.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    waves_per_simd = min(8, 512 // (-(-kernel.descriptor.vgpr_count // 8) * 8))
    assert ask(ctypes.byref(count), function, 64, 0) == 0
    lds = kernel.descriptor.lds_bytes
    assert count.value == min(4 * waves_per_simd, (160 << 10) // lds if lds else 1000)
    assert ask(ctypes.byref(count), function, 1024, (160 << 10) - lds) == 0
    assert count.value == min(4 * waves_per_simd // 16, 1)


# Host memory


def test_tensors_that_share_memory_become_one_buffer(standin: HipStandin) -> None:
    whole = torch.arange(100, dtype=torch.int32)
    start = whole.data_ptr()
    with standin.registered(whole[10:30], whole[20:40], whole[40:50], whole[60:60], whole[90:]):
        ranges = {
            (r.start - start, r.end - start)
            for r in (standin.memory.region_at(start + 4 * i) for i in (10, 35, 40, 90))
        }
        assert ranges == {(40, 160), (160, 200), (360, 400)}
        assert standin.memory.region_at(start + 4 * 60) is None
        with standin.registered(whole):
            assert standin.memory.region_at(start + 4 * 60) is not None
        assert standin.memory.region_at(start + 4 * 60) is None
    assert standin.memory.region_at(start + 4 * 10) is None


def test_memory_of_hipmalloc_may_be_registered_too(standin: HipStandin, device: HipDevice) -> None:
    tensor = on_device(device, torch.arange(8))
    with standin.registered(tensor):
        pass
    assert standin.memory.region_at(tensor.data_ptr()) is not None


def test_other_tensors_are_refused(standin: HipStandin) -> None:
    with (
        pytest.raises(ValueError, match=r"tensors\[1\]: is on meta; CPU tensors are needed"),
        standin.registered(torch.zeros(1), torch.zeros(1, device="meta")),
    ):
        pass


def test_a_refused_call_is_raised_where_the_launcher_only_prints_it(
    standin: HipStandin, raw: ctypes.CDLL
) -> None:
    launch = [ctypes.c_void_p(64), 1, 1, 1, 64, 1, 1, 0, None, None, None]
    raw.hipModuleLaunchKernel(*launch)  # before the block: its caller's own business
    with (
        pytest.raises(FlyccError, match="hipModuleLaunchKernel returned hipError_t 400"),
        standin.registered(torch.zeros(1)),
    ):
        raw.hipModuleLaunchKernel(*launch)
    with standin.registered(torch.zeros(1)):
        pass


# Building and installing


def test_the_library_is_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLYCC_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    library = hip_standin.build()
    assert library.name == "libamdhip64.so.7"
    built = library.stat().st_mtime_ns
    assert hip_standin.build() == library
    assert library.stat().st_mtime_ns == built
    assert [path for path in library.parents[1].rglob("*") if path.is_file()] == [library]
    monkeypatch.setenv("CC", "cc -O0")
    assert hip_standin.build() != library


@pytest.mark.parametrize(
    ("compiler", "why"),
    [("no-such-compiler", "needs a C compiler: there is no"), ("false", "false .* failed")],
)
def test_a_compiler_that_is_missing_or_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiler: str, why: str
) -> None:
    monkeypatch.setenv("FLYCC_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(FlyccError, match=why):
        hip_standin.build()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_one_at_a_time_and_none_afterwards() -> None:
    with (
        hip_standin.installed(),
        pytest.raises(FlyccError, match="already installed"),
        hip_standin.installed(),
    ):
        pass
    library, count = ctypes.CDLL(str(hip_standin.build())), ctypes.c_int(7)
    assert library.hipGetDeviceCount(ctypes.byref(count)) == 4  # hipErrorDeinitialized
    assert count.value == 0
    assert library.hipDeviceSynchronize() == 4
    assert library.hipModuleUnload(ctypes.c_void_p(0x1000)) == 0


def test_another_hip_library_that_came_first_is_named(tmp_path: Path) -> None:
    code = """
        import ctypes, shutil, sys
        from flycc.contracts import FlyccError
        from flycc.runtime import hip_standin
        other = sys.argv[1] + "/libamdhip64.so.6"
        shutil.copy(hip_standin.build(), other)
        ctypes.CDLL(other)
        try:
            with hip_standin.installed():
                pass
        except FlyccError as error:
            print(error.reason.code, other in str(error))
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["standin.loaded", "True"]


def test_a_refused_registration_leaves_no_trace(standin: HipStandin, raw: ctypes.CDLL) -> None:
    word = ctypes.c_uint64
    pointer = word()
    assert raw.hipMalloc(ctypes.byref(pointer), word(256)) == 0
    assert raw.hipHostRegister(word(1 << 60), word(16), 0) != 0
    assert raw.hipHostRegister(word(pointer.value + 128), word(256), 0) == 1  # hipErrorInvalidValue
    array = np.zeros(64, np.uint8)
    assert raw.hipHostRegister(word(array.ctypes.data), word(64), 0) == 0
    assert raw.hipHostUnregister(word(array.ctypes.data)) == 0
    with standin.registered(torch.zeros(4)):
        pass


def test_copies_are_checked_on_both_sides(standin: HipStandin, raw: ctypes.CDLL) -> None:
    word = ctypes.c_uint64
    pointer, host = word(), np.zeros(4096, np.uint8)
    assert raw.hipMalloc(ctypes.byref(pointer), word(256)) == 0
    assert raw.hipMemcpy(pointer, word(0), word(16), 1) == 1
    assert raw.hipMemcpy(word(host.ctypes.data), pointer, word(4096), 4) != 0
    assert raw.hipMemcpy(word(host.ctypes.data), pointer, word(256), 4) == 0


def test_a_copy_checks_its_memory_again_when_it_runs(standin: HipStandin, raw: ctypes.CDLL) -> None:
    word = ctypes.c_uint64
    pointer, array = word(), np.arange(64, dtype=np.uint8)
    assert raw.hipMalloc(ctypes.byref(pointer), word(64)) == 0
    copy = standin._copy(array.ctypes.data, pointer.value, 64, 2)
    assert raw.hipFree(ctypes.c_void_p(pointer.value)) == 0
    with pytest.raises(Exception, match=r"outside every registered buffer|past the end"):
        copy()
    assert array.tolist() == list(range(64))


def test_functions_end_with_their_module(standin: HipStandin, raw: ctypes.CDLL) -> None:
    compiled, _ = gemm_kernel()
    before = len(standin._objects)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert raw.hipModuleLoadData(ctypes.byref(module), compiled.elf) == 0
    assert raw.hipModuleGetFunction(ctypes.byref(function), module, compiled.symbol.encode()) == 0
    assert raw.hipModuleUnload(module) == 0
    assert len(standin._objects) == before
    launch = [function, 1, 1, 1, 64, 1, 1, 0, None, None, None]
    assert raw.hipModuleLaunchKernel(*launch) == 400  # hipErrorInvalidHandle
