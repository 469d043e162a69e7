"""`emulator.run`: what it takes for a grid, a block and arrays."""

from __future__ import annotations

import numpy as np
import pytest
from assembled import kernel

from flycc import emulator


def run(grid, block=(128, 1, 1), args=None) -> None:
    program = kernel("add_arrays", ("a", "b", "out", "n"))
    a, out = np.ones(100, np.float32), np.zeros(100, np.float32)
    module = emulator.Module(program.code, {program.name: program})
    emulator.run(module, program.name, grid, block, args or [a, a, out, np.uint32(100)])
    if args is None:
        assert (out == 2).all()


@pytest.mark.parametrize("grid", [np.array([1, 1, 1]), (np.int64(1), 1, 1), [1, 1, 1]])
def test_numpy_extents(grid) -> None:
    run(grid)


@pytest.mark.parametrize("grid", [(1,), (-1, 1, 1), (5_000_000_000, 1, 1), (0, 1, 1)])
def test_bad_extents_name_the_argument(grid) -> None:
    with pytest.raises(ValueError, match=r"^grid: "):
        run(grid)


def test_one_array_given_twice_is_one_buffer() -> None:
    array = np.ones(100, np.float32)
    run((1, 1, 1), args=[array, array, array, np.uint32(100)])
    assert (array == 2).all()
