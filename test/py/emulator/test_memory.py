"""Registered memory: in place, nothing outside it, any alignment."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from harness import SEED

from flycc.emulator.memory import GUARD, AccessError, Memory


def test_buffers_are_used_in_place() -> None:
    memory = Memory()
    array = np.arange(16, dtype=np.float32)
    address = memory.register(array)
    addresses = np.array([address + 4 * i for i in (3, 1)], np.uint64)
    np.testing.assert_array_equal(memory.gather(addresses, 4, None).view(np.float32), [3, 1])
    memory.scatter(addresses, np.array([7, 8], np.float32).view(np.uint32), 4, None)
    assert (array[3], array[1]) == (7, 8)
    for other in (np.zeros((3, 4), ml_dtypes.bfloat16), np.asfortranarray(np.ones((3, 5))), np.array(1.0)):
        memory.register(other)


def test_addresses_follow_host_alignment_and_keep_apart() -> None:
    memory = Memory()
    raw = np.zeros(256, np.uint8)
    previous = 0
    for offset in (0, 1, 2, 4, 8, 15):
        view = raw[offset : offset + 100]
        address = memory.register(view)
        assert address % 16 == view.ctypes.data % 16
        assert not previous or address - previous >= GUARD
        previous = address + view.size


@pytest.mark.parametrize("size", [1, 2, 4, 8, 12, 16])
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("buffers", [1, 3])
def test_gather_and_scatter_against_bytes(size: int, aligned: bool, buffers: int) -> None:
    rng = np.random.default_rng([SEED, size, aligned, buffers])
    memory = Memory()
    arrays = [rng.integers(0, 256, 2048, dtype=np.uint8) for _ in range(buffers)]
    bases = [memory.register(array) for array in arrays]
    which = rng.integers(0, buffers, (2, 64))
    step = 1 if not aligned else 4 if size == 12 else size
    slots = rng.permutation(128).reshape(2, 64)
    if aligned and buffers == 1:  # the same places in both rows: the second wins
        slots[1] = rng.permutation(slots[0])
    offsets = slots * 16 // step * step + (
        0 if aligned else rng.integers(0, 16 - size + 1, (2, 64)) if size < 16 else 0
    )
    addresses = np.array(bases, np.uint64)[which] + offsets.astype(np.uint64)
    mask = rng.integers(0, 2, (2, 64)).astype(bool)
    addresses[~mask] = 0xDEAD_0000_0000  # never looked at
    loaded = memory.gather(addresses, size, mask)
    for wave, lane in np.argwhere(mask):
        start = offsets[wave, lane]
        expected = arrays[which[wave, lane]][start : start + size].tobytes()
        assert loaded[wave, lane].tobytes() == expected
    before = [array.copy() for array in arrays]
    data = rng.integers(0, 256, (2, 64, size), dtype=np.uint8)
    values = (
        data.view(np.uint32)
        if size == 12
        else data.view({16: np.complex128}.get(size, f"u{min(size, 8)}"))[..., 0]
    )
    memory.scatter(addresses, values, size, mask)
    for wave, lane in np.argwhere(mask):  # in lane order, as later lanes win
        start = offsets[wave, lane]
        before[which[wave, lane]][start : start + size] = data[wave, lane]
    for array, expected in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 12, 16])
def test_nothing_outside_is_touched(size: int) -> None:
    memory = Memory()
    array = np.zeros(64, np.uint8)
    memory.register(np.zeros(64, np.uint8))
    base = memory.register(array)
    memory.register(np.zeros(64, np.uint8))
    constant = memory.register(np.zeros(64, np.uint8), writable=False)
    for bad in (base - 1, base + 64 - size + 1, base + 64, 0, 2**64 - 1, 2**64 - size):
        addresses = np.array([[base, bad]], np.uint64)
        values = np.zeros(
            (1, 2, 3) if size == 12 else (1, 2),
            {12: np.uint32, 16: np.complex128}.get(size, f"u{min(size, 8)}"),
        )
        for mask in (None, np.array([[True, True]])):
            with pytest.raises(AccessError) as caught:
                memory.gather(addresses, size, mask)
            assert (caught.value.index, caught.value.address) == ((0, 1), bad)
            with pytest.raises(AccessError) as caught:
                memory.scatter(addresses, values, size, mask)
            assert (caught.value.index, caught.value.address) == ((0, 1), bad)
        memory.gather(addresses, size, np.array([[True, False]]))
    with pytest.raises(AccessError, match="read-only"):
        memory.scatter(np.array([constant], np.uint64), values[0, :1], size, None)


def test_unregistered_and_empty_buffers_hold_nothing() -> None:
    memory = Memory()
    empty = memory.register(np.zeros(0, np.uint8))
    address = memory.register(np.zeros(8, np.uint8))
    assert memory.read(address, 8).size == 8
    with pytest.raises(AccessError):
        memory.read(empty, 1)
    memory.unregister(address)
    with pytest.raises(AccessError):
        memory.read(address, 1)
    with pytest.raises(ValueError, match="no buffer is registered"):
        memory.unregister(address)


def test_bad_arrays_are_refused() -> None:
    memory = Memory()
    with pytest.raises(TypeError, match="got list"):
        memory.register([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not contiguous"):
        memory.register(np.zeros((4, 4))[:, ::2])
    constant = np.zeros(4)
    constant.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        memory.register(constant)


def test_buffers_at_chosen_addresses() -> None:
    memory = Memory()
    other = memory.register(np.zeros(8, np.uint8))
    arrays = {
        0x7F0000000010: np.arange(16, dtype=np.uint8),
        0x7F0000000000: np.arange(16, 32, dtype=np.uint8),
        0x5000: np.arange(32, 48, dtype=np.uint8),
    }
    for address, array in arrays.items():
        assert memory.register(array, address=address) == address
    for address, array in arrays.items():
        np.testing.assert_array_equal(memory.read(address, 16), array)
    # Neighbours without a gap stay two buffers.
    with pytest.raises(AccessError):
        memory.gather(np.array([0x7F000000000C], np.uint64), 8, None)
    for start, size in ((0x500F, 1), (0x4FFF, 2), (0x4FF0, 64), (0x5004, 0), (other, 1)):
        with pytest.raises(ValueError, match="overlaps buffer"):
            memory.register(np.zeros(size, np.uint8), address=start)
    for start in (-1, (1 << 47) - 15):
        with pytest.raises(MemoryError, match="47-bit"):
            memory.register(np.zeros(16, np.uint8), address=start)
    memory.unregister(0x5000)
    memory.register(np.zeros(64, np.uint8), address=0x4FF0)
