"""Whole kernels: launches, control flow, barriers, wave orders, faults, and loads to LDS that land late."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from assembled import ENTRY, PROGRAMS, Kernel, assembled, has_llvm, kernel, recorded
from harness import SEED

from flycc.emulator import (
    LaunchStats,
    Memory,
    MemoryFault,
    Module,
    RunawayKernel,
    UnsupportedInstruction,
    launch,
    run,
)
from flycc.emulator.elf import CodeObject, Segment
from flycc.emulator.launch import MAX_WAVES, pack_arguments

ORDERS = ["lockstep", "serial", "reverse", 7, ("random", SEED)]


def go(program: Kernel, grid: int, block: int, args: list, **options) -> LaunchStats:
    module = Module(program.code, {program.name: program})
    return run(module, program.name, (grid, 1, 1), (block, 1, 1), args, **options)


@pytest.mark.parametrize("name", sorted(path.stem for path in PROGRAMS.glob("*.s")))
def test_recorded_words_are_what_llvm_assembles(name: str, tmp_path: Path) -> None:
    if not has_llvm():
        pytest.skip("llvm-mc-22 is not installed: the recorded words are taken on trust")
    assert assembled(name, tmp_path) == recorded(name)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", [1, 64, 1000, 1024])
def test_add_arrays(order, n: int) -> None:
    rng = np.random.default_rng([SEED, n])
    a, b = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
    out = np.full(n, -1, np.float32)
    program = kernel("add_arrays", ("a", "b", "out", "n"))
    stats = go(program, 8, 128, [a, b, out, np.uint32(n)], wave_order=order)
    np.testing.assert_array_equal(out, a + b)
    assert stats.workgroups == 8
    # 10 instructions for every wave, 6 more where a lane has work.
    assert stats.wave_instructions == 16 * 10 + -(-n // 64) * 6


def test_a_grid_of_several_batches() -> None:
    n = 128 * (2 * MAX_WAVES + 3)
    a = np.arange(n, dtype=np.float32)
    out = np.zeros(n, np.float32)
    program = kernel("add_arrays", ("a", "b", "out", "n"))
    for _ in range(2):  # the second launch reuses what the first has bound
        out[:] = 0
        go(program, -(-n // 128), 128, [a, a, out, np.uint32(n)])
        np.testing.assert_array_equal(out, 2 * a)


@pytest.mark.parametrize("order", ORDERS)
def test_divergent_loops_and_a_barrier(order) -> None:
    out = np.zeros((3, 256), np.uint32)
    go(kernel("exchange", ("out",), lds=1024), 3, 256, [out], wave_order=order)
    sums = np.arange(256) * (np.arange(256) // 64 + 1)
    np.testing.assert_array_equal(out, np.tile(sums[np.arange(256) ^ 192], (3, 1)))


@pytest.mark.parametrize("order", ORDERS)
def test_ended_waves_do_not_hold_up_a_barrier(order) -> None:
    out = np.zeros(128, np.uint32)
    go(kernel("early_exit", ("out",)), 1, 128, [out], wave_order=order)
    np.testing.assert_array_equal(out, np.arange(128) >= 64)


def test_calls_through_registers() -> None:
    out = np.zeros(64, np.uint32)
    go(kernel("calls", ("out",)), 1, 64, [out])
    np.testing.assert_array_equal(out, 12)


@pytest.mark.parametrize("order", ORDERS)
def test_load_to_lds_lands_when_waited_for(order) -> None:
    data = np.random.default_rng(SEED).integers(1, 2**32, 64, dtype=np.uint32)
    out = np.zeros(64, np.uint32)
    go(kernel("load_to_lds_waits", ("in", "out"), lds=256), 1, 64, [data, out], wave_order=order)
    np.testing.assert_array_equal(out, data)


def test_load_to_lds_without_its_wait_reads_stale_data() -> None:
    data = np.random.default_rng(SEED).integers(1, 2**32, 64, dtype=np.uint32)
    out = np.ones(64, np.uint32)
    go(kernel("load_to_lds_forgets", ("in", "out"), lds=256), 1, 64, [data, out])
    np.testing.assert_array_equal(out, 0)


def test_fault_says_who_did_it() -> None:
    a = np.zeros(1000, np.float32)
    short = np.zeros(900, np.float32)
    with pytest.raises(MemoryFault) as caught:
        go(kernel("add_arrays", ("a", "b", "out", "n")), 8, 128, [a, short, a, np.uint32(1000)])
    message = str(caught.value)
    for part in (
        "add_arrays",
        "global_load_dword v3",
        "4 bytes",
        "buffer b",
        "workgroup (7, 0, 0)",
        "wave 0",
        "lane 4",
    ):
        assert part in message


def test_write_to_read_only_memory_faults() -> None:
    a = np.zeros(128, np.float32)
    constant = np.zeros(128, np.float32)
    constant.flags.writeable = False
    with pytest.raises(MemoryFault, match="read-only buffer out"):
        go(kernel("add_arrays", ("a", "b", "out", "n")), 1, 128, [a, a, constant, np.uint32(128)])


def test_lds_beyond_what_the_kernel_declares_reads_as_zero_and_drops_writes() -> None:
    expected = np.arange(256) * (np.arange(256) // 64 + 1)
    out = np.ones(256, np.uint32)
    go(kernel("exchange", ("out",), lds=512), 1, 256, [out])
    np.testing.assert_array_equal(out, np.where(np.arange(256) >= 128, expected[np.arange(256) ^ 192], 0))
    go(kernel("exchange", ("out",), lds=512), 1, 256, [out], dynamic_lds=512)
    np.testing.assert_array_equal(out, expected[np.arange(256) ^ 192])


def test_runaway_loop_is_stopped() -> None:
    with pytest.raises(RunawayKernel, match="endless executed more than 500 instructions and is at 0x1000"):
        go(kernel("endless"), 1, 64, [], max_instructions=500)


def test_unknown_meaning_is_an_error_before_anything_runs() -> None:
    program = kernel("endless")
    gws_barrier = np.array([0xD93A0000, 0x00000000], "<u4").tobytes()  # ds_gws_barrier v0
    code = CodeObject((Segment(ENTRY, gws_barrier, False, True),), {}, {})
    with pytest.raises(UnsupportedInstruction, match=r"ds_gws_barrier .* 0x1000"):
        go(Kernel(program.descriptor, code), 1, 64, [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": (0, 1, 1)}, "grid: got"),
        ({"block": (64, 1)}, "block: got"),
        ({"block": (2048, 1, 1)}, "block: .* allows 1024"),
        ({"kernarg": b"1234"}, "kernarg: got 4 bytes, add_arrays takes 28"),
        ({"dynamic_lds": 1 << 20}, "dynamic_lds"),
        ({"wave_order": "backwards"}, "wave_order: got 'backwards'"),
    ],
)
def test_bad_launches_are_refused(changes: dict, message: str) -> None:
    program = kernel("add_arrays", ("a", "b", "out", "n"))
    memory = Memory()
    data = np.zeros(128, np.float32)
    kernarg = pack_arguments(program, (1, 1, 1), (128, 1, 1), [data, data, data, np.uint32(128)], memory)
    options = {"grid": (1, 1, 1), "block": (128, 1, 1), "kernarg": kernarg, "memory": memory, **changes}
    with pytest.raises(ValueError, match=message):
        launch(program, **options)


def test_wrong_arguments_are_refused() -> None:
    program = kernel("add_arrays", ("a", "b", "out", "n"))
    data = np.zeros(128, np.float32)
    with pytest.raises(ValueError, match="args: got 2, add_arrays takes 4"):
        go(program, 1, 128, [data, data])
    with pytest.raises(ValueError, match=r"args\[3\]: 8 bytes given, 'n' of add_arrays takes 4"):
        go(program, 1, 128, [data, data, data, np.uint64(128)])
