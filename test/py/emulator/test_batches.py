"""How a launch is split into batches: every workgroup once, and memory for the live waves only."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from assembled import Kernel, kernel

from flycc.emulator import Module, RunawayKernel, run
from flycc.emulator.launch import KEPT_BYTES
from flycc.emulator.observe import Observer


class Batches(Observer):
    """The workgroup ids of every batch."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def batch_begins(self, batch: object, groups: np.ndarray) -> None:
        self.seen.append(groups)


def go(name: str, grid: tuple[int, int, int], scratch: int = 0, **options: object) -> list[np.ndarray]:
    """Run a program on one buffer of 64 dwords, in workgroups of one wave with `scratch` bytes a lane."""
    program, batches = kernel(name, ("out",)), Batches()
    program = Kernel(replace(program.descriptor, scratch_bytes=scratch), program.code)
    module = Module(program.code, {name: program})
    run(module, name, grid, (64, 1, 1), [np.zeros(64, np.uint32)], observers=[batches], **options)
    return batches.seen


def test_every_workgroup_runs_once_x_fastest() -> None:
    seen = go("calls", (7, 5, 23))
    assert len(seen) > 1
    expected = [(x, y, z) for z in range(23) for y in range(5) for x in range(7)]
    assert list(map(tuple, np.concatenate(seen).tolist())) == expected


def test_chosen_workgroups_alone_run_in_their_order() -> None:
    chosen = [(6, 4, 22), (0, 0, 0), (3, 2, 1)]
    seen = go("calls", (7, 5, 23), workgroups=chosen)
    assert list(map(tuple, np.concatenate(seen).tolist())) == chosen


@pytest.mark.parametrize("chosen", [[], [(0, 0)], [(7, 0, 0)], [(0, -1, 0)], [(1, 1, 1), (1, 1, 1)]])
def test_chosen_workgroups_must_be_of_the_grid(chosen: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="workgroups: "):
        go("calls", (7, 5, 23), workgroups=chosen)


def test_a_large_grid_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RunawayKernel):
            go("endless", (1 << 20, 1 << 20, 1 << 20), max_instructions=10)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20  # the registers of 256 waves are 8 MiB
    finally:
        tracemalloc.stop()


def test_much_scratch_makes_small_batches() -> None:
    scratch = KEPT_BYTES // 64 // 5  # of a lane: five workgroups fill the budget
    seen = go("calls", (12, 1, 1), scratch)
    assert [len(groups) for groups in seen] == [4, 4, 4]  # three batches are needed, of the same size


@pytest.mark.parametrize("grid", [(0, 1, 1), (1 << 31, 1, 1), (1, 1, -1)])
def test_sizes_no_launch_accepts(grid: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="grid: got"):
        go("endless", grid)
