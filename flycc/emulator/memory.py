"""Device memory: registered numpy buffers, and the checked gathers and scatters of the memory instructions.

A buffer is registered under a synthetic device address and is read and written in place. Buffers lie
at least `GUARD` bytes apart, so that an access that runs off the end of one never lands in another: it
is an `AccessError`, which the executor turns into a `MemoryFault` that says who did it. Buffers that are
registered at an address of the caller's choice have no such gap around them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from flycc.emulator.errors import EmulatorError

#: First device address handed out, the alignment of buffers, and the least unmapped gap between two of them.
FIRST_ADDRESS = 0x1000_0000_0000
ALIGNMENT = 256
GUARD = 1 << 16

#: Largest device address plus one: 47 bits, as on the hardware.
END_ADDRESS = 1 << 47

#: One element of an access of that many bytes (12-byte accesses go as three dwords).
ELEMENT = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


NOWHERE = "outside every registered buffer"


class MemoryFault(EmulatorError):
    """A kernel touched memory that is not registered (or wrote to what is read-only)."""


class AccessError(Exception):
    """An access outside memory, by its index in the arrays: the executor adds the rest."""

    def __init__(self, why: str, index: tuple[int, ...], address: int, size: int) -> None:
        super().__init__(why)
        self.why, self.index, self.address, self.size = why, index, address, size


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A registered buffer: `data` is its bytes, uint8 [size], in place."""

    start: int
    data: np.ndarray
    name: str
    writable: bool

    @property
    def end(self) -> int:
        return self.start + self.data.size


class Memory:
    """All memory that a kernel may touch: a set of registered buffers."""

    def __init__(self) -> None:
        self._next = FIRST_ADDRESS
        self._starts: list[int] = []
        self._regions: list[Region] = []

    def register(
        self, array: np.ndarray, *, name: str = "", writable: bool = True, address: int | None = None
    ) -> int:
        """Map a contiguous array of any dtype and return its device address.

        The kernel reads and writes the array's own bytes. The address is congruent to the host
        address modulo 16, so that a misaligned view is misaligned on the device too. With `address`
        the array is mapped there instead, for callers whose kernels get pointers that flycc did not
        hand out; ValueError where that overlaps another buffer.
        """
        if not isinstance(array, np.ndarray):
            raise TypeError(f"array: got {type(array).__name__}, a numpy array is needed")
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            raise ValueError(f"array: strides {array.strides} of shape {array.shape} are not contiguous")
        if writable and not array.flags.writeable:
            raise ValueError("array: is read-only; register it with writable=False")
        data = array.reshape(-1, order="A").view(np.uint8)
        start = self._next + array.ctypes.data % 16 if address is None else address
        end = start + max(data.size, 1)
        if address is None:
            self._next = -(-(end + GUARD) // ALIGNMENT) * ALIGNMENT
        if start < 0 or end > END_ADDRESS:
            raise MemoryError(f"{start:#x} to {end:#x} is not within the 47-bit device address space")
        at = bisect_left(self._starts, start)
        before, after = self._regions[max(at - 1, 0) : at], self._regions[at : at + 1]
        for other in before + after:
            if start < other.start + max(other.data.size, 1) and other.start < end:
                raise ValueError(f"address: {start:#x} to {end:#x} overlaps {_name(other)}")
        self._starts.insert(at, start)
        self._regions.insert(at, Region(start, data, name, writable))
        return start

    def unregister(self, address: int) -> None:
        """Unmap the buffer that `register` gave this address."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or self._starts[at] != address:
            raise ValueError(f"address: no buffer is registered at {address:#x}")
        del self._starts[at], self._regions[at]

    def region_at(self, address: int) -> Region | None:
        """The buffer that holds the byte at `address`, if any (an empty buffer holds none)."""
        at = bisect_right(self._starts, address) - 1
        if at >= 0 and address < self._regions[at].end:
            return self._regions[at]
        return None

    def read(self, address: int, size: int) -> np.ndarray:
        """The `size` bytes at `address` as a uint8 view; AccessError if they are not all in one buffer."""
        region = self.region_at(address)
        if region is None or address + size > region.end:
            raise AccessError(NOWHERE, (), address, size)
        return region.data[address - region.start : address - region.start + size]

    def gather(self, addresses: np.ndarray, size: int, mask: np.ndarray | None) -> np.ndarray:
        """Load `size` bytes per address.

        `addresses` is uint64 of any shape, `mask` bool of that shape or None for all. The result is a
        new array: `ELEMENT[size]` of that shape, or for 12 bytes uint32 with a last axis of 3. Where
        the mask is off it is unspecified.
        """
        region, offsets = self._locate(addresses, size, mask, write=False)
        if region is not None:
            return load_elements(region.data, offsets, size)
        shape = (*addresses.shape, 3) if size == 12 else addresses.shape
        out = np.zeros(shape, np.uint32 if size == 12 else ELEMENT[size])
        for region, offsets, part in self._split(addresses, size, mask, write=False):
            out[part] = load_elements(region.data, offsets, size)
        return out

    def gather_from(self, base: int, offsets: np.ndarray, size: int, mask: np.ndarray | None) -> np.ndarray:
        """`gather` at `base + offsets` (int64, not negative where the mask is on): the usual case of one buffer."""
        region = self.region_at(base)
        if region is not None:
            start = base - region.start
            at = offsets if mask is None else offsets * mask
            if int(at.max()) <= region.data.size - size - start:
                return load_elements(region.data, at + start if start else at, size)
        return self.gather(offsets.view(np.uint64) + np.uint64(base), size, mask)

    def scatter(self, addresses: np.ndarray, values: np.ndarray, size: int, mask: np.ndarray | None) -> None:
        """Store `size` bytes per address where the mask is on; the counterpart of `gather`.

        Where addresses collide, the later one in memory order of the arrays wins.
        """
        if mask is not None:
            addresses, values = addresses[mask], values[mask]
            if not addresses.size:
                return
            try:
                self._scatter(addresses, values, size)
            except AccessError as error:
                where = np.argwhere(mask)[error.index[0]]
                raise AccessError(error.why, tuple(map(int, where)), error.address, size) from None
        else:
            self._scatter(addresses, values, size)

    def _scatter(self, addresses: np.ndarray, values: np.ndarray, size: int) -> None:
        region, offsets = self._locate(addresses, size, None, write=True)
        if region is not None:
            store_elements(region.data, offsets, values, size)
            return
        for region, offsets, part in self._split(addresses, size, None, write=True):
            store_elements(region.data, offsets, values[part], size)

    def split(
        self, addresses: np.ndarray, size: int, mask: np.ndarray | None
    ) -> list[tuple[Region, np.ndarray, np.ndarray]]:
        """(region, byte offsets int64 [n], part bool) for every writable buffer touched; all are checked."""
        return self._split(addresses, size, mask, write=True)

    def outside(
        self, addresses: np.ndarray, size: int, mask: np.ndarray, *, write: bool
    ) -> list[tuple[str, np.ndarray]]:
        """(why, lanes bool) of accesses under `mask` that `gather` or `scatter` would refuse."""
        refused = []
        which = np.searchsorted(np.array(self._starts, np.uint64), addresses, side="right") - 1
        for at in np.unique(which[mask]):
            part = mask & (which == at)
            if at < 0:
                refused.append((NOWHERE, part))
                continue
            region = self._regions[at]
            if write and not region.writable:
                refused.append((f"a write to read-only {_name(region)}", part))
                continue
            beyond = part & (
                addresses - np.uint64(region.start) + np.uint64(size) > np.uint64(region.data.size)
            )
            if beyond.any():
                refused.append((f"past the end of {_name(region)}" if region.data.size else NOWHERE, beyond))
        return refused

    def _locate(
        self, addresses: np.ndarray, size: int, mask: np.ndarray | None, *, write: bool
    ) -> tuple[Region | None, np.ndarray]:
        """The one region that holds all accesses, with in-range offsets (0 where masked off); else None."""
        flat = addresses.reshape(-1)
        first = int(flat[0] if mask is None else flat[mask.reshape(-1).argmax()])
        region = self.region_at(first)
        if region is None or region.data.size < size or (write and not region.writable):
            return None, addresses
        offsets = addresses - np.uint64(region.start)
        if mask is not None:
            offsets *= mask
        if int(offsets.max()) > region.data.size - size:
            return None, addresses
        return region, offsets.view(np.int64)

    def _split(
        self, addresses: np.ndarray, size: int, mask: np.ndarray | None, *, write: bool
    ) -> list[tuple[Region, np.ndarray, np.ndarray]]:
        if mask is None:
            mask = np.ones(addresses.shape, bool)
        which = np.searchsorted(np.array(self._starts, np.uint64), addresses, side="right") - 1
        parts = []
        for at in np.unique(which[mask]):
            part = mask & (which == at)
            if at < 0:
                _refuse(NOWHERE, addresses, part, size)
            region = self._regions[at]
            offsets = addresses - np.uint64(region.start)
            outside = (
                part & (offsets > np.uint64(region.data.size - size)) if region.data.size >= size else part
            )
            if outside.any():
                why = f"past the end of {_name(region)}" if region.data.size else NOWHERE
                _refuse(why, addresses, outside, size)
            if write and not region.writable:
                _refuse(f"a write to read-only {_name(region)}", addresses, part, size)
            parts.append((region, offsets[part].view(np.int64), part))
        return parts


def _name(region: Region) -> str:
    return f"buffer {region.name or 'unnamed'} [{region.start:#x}, {region.end:#x})"


def _refuse(why: str, addresses: np.ndarray, bad: np.ndarray, size: int) -> None:
    index = tuple(int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))
    raise AccessError(why, index, int(addresses[index]), size)


def elements(data: np.ndarray, size: int) -> np.ndarray:
    """`data` (uint8 [n]) as whole elements of `size` bytes; the tail that fills none is left out."""
    return data[: data.size // size * size].view(ELEMENT[size])


def _aligned(offsets: np.ndarray, size: int) -> bool:
    return not int(np.bitwise_or.reduce(offsets, axis=None)) & (size - 1)


def load_elements(data: np.ndarray, offsets: np.ndarray, size: int) -> np.ndarray:
    """`Memory.gather` on plain bytes, uint8 [n]: in-range byte `offsets`, int64 of any shape."""
    if size == 12:
        return np.stack([load_elements(data, offsets + 4 * i, 4) for i in range(3)], axis=-1)
    if size == 1:
        return data[offsets]
    if _aligned(offsets, size):
        return elements(data, size)[offsets >> (size.bit_length() - 1)]
    return data[offsets[..., None] + np.arange(size)].view(ELEMENT[size])[..., 0]


def store_elements(data: np.ndarray, offsets: np.ndarray, values: np.ndarray, size: int) -> None:
    """`Memory.scatter` on plain bytes, the counterpart of `load_elements`."""
    if size == 12:
        for i in range(3):
            store_elements(data, offsets + 4 * i, values[..., i], 4)
    elif size == 1:
        data[offsets] = values
    elif _aligned(offsets, size):
        elements(data, size)[offsets >> (size.bit_length() - 1)] = values
    else:
        data[offsets[..., None] + np.arange(size)] = values[..., None].view(np.uint8)
