"""The state of a batch of waves: registers, LDS, scratch, lane masks and outstanding memory operations.

All waves of a batch execute one instruction at a time, so every register is one array over the batch:
a vector register is uint32 [waves, 64], a scalar register a column uint32 [waves]. Waves of a
workgroup are neighbours. A batch is built once per kernel and size and reset for every launch, because
bound instructions (`flycc.emulator.semantics`) hold views of these arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from flycc.emulator.errors import EmulatorError
from flycc.emulator.isa.instruction import Instruction
from flycc.emulator.memory import Memory
from flycc.emulator.observe import Kind, Space, Watch

if TYPE_CHECKING:
    from flycc.emulator.elf import Kernel

LANES = 64
SGPRS = 128
VCC, M0, EXEC = 106, 124, 126

#: Rows behind the declared vector registers, for operands that DPP and SDWA rearrange.
TEMPORARIES = 3

#: How matrix instructions may sum; see semantics.mfma.
MFMA_ORDERS = ("fast", "sequential", "exact")

ALL_LANES = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


#: Makes the data of an operation land for a mask of waves, bool [waves] (None: all that issued it).
Land = Callable[[np.ndarray | None], None]


def took_effect(waves: np.ndarray | None) -> None:
    """The `Land` of an operation that took effect when it was issued: it only counts."""


class Queue:
    """Outstanding operations of one wait counter, oldest first, for every wave of a batch.

    An entry is (waves, land): the waves that still wait for it, bool [waves], or None for every wave
    of the batch, and the function that makes the data land.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[np.ndarray | None, Land]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        self._entries.clear()

    def push(self, waves: np.ndarray | None, land: Land) -> None:
        self._entries.append((waves, land))

    def wait(self, waves: np.ndarray | None, limit: int) -> None:
        """Let the oldest operations of `waves` (None: all) land until at most `limit` are outstanding."""
        entries = self._entries
        if len(entries) <= limit:
            return
        if waves is None and all(entry[0] is None for entry in entries):
            done = len(entries) - limit
            for _, land in entries[:done]:
                land(None)
            del entries[:done]
            return
        self._wait_by_wave(waves, limit)

    def _wait_by_wave(self, waves: np.ndarray | None, limit: int) -> None:
        """As `wait`, where the waves of the batch are not all treated alike."""
        given = [owners for owners, _ in self._entries]
        some = next(x for x in (waves, *given) if x is not None)
        everyone = np.ones(some.shape, bool)
        owners = np.array([everyone if x is None else x for x in given])
        newer = np.cumsum(owners[::-1], axis=0)[::-1] - owners  # operations younger than the entry, per wave
        ready = owners & (newer >= limit)
        if waves is not None:
            ready &= waves
        due = ready.any(axis=1)
        if not due.any():
            return
        left = owners & ~ready
        kept: list[tuple[np.ndarray | None, Land]] = []
        for entry, lands, stays, now, later in zip(
            self._entries, due.tolist(), left.any(axis=1).tolist(), ready, left, strict=True
        ):
            if lands:
                entry[1](now)
            if stays:
                kept.append((later, entry[1]) if lands else entry)
        self._entries = kept


class WatchedQueue(Queue):
    """A queue that tells observers when the accesses of its operations are complete."""

    def __init__(self, batch: Batch, watch: Watch) -> None:
        super().__init__()
        self._batch, self._watch = batch, watch

    def push(self, waves: np.ndarray | None, land: Land) -> None:
        accesses = self._watch.take()

        def land_watched(which: np.ndarray | None) -> None:
            self._watch.landed(self._batch, which, accesses)
            land(which)

        super().push(waves, land_watched if accesses else land)


class Fragments:
    """Expanded matrix operands, shared by the instructions of a block while their registers stay as they are.

    Used while a block is bound: what is live is known then, as it is straight-line code.
    """

    def __init__(self) -> None:
        self._live: dict[tuple[int, int, object], np.ndarray] = {}
        self._free: dict[tuple[tuple[int, ...], np.dtype], list[np.ndarray]] = {}

    def find(self, first: int, count: int, kind: object) -> np.ndarray | None:
        """The array that holds rows `first` to `first + count` expanded as `kind`, if one does."""
        return self._live.get((first, count, kind))

    def make(
        self, first: int, count: int, kind: object, shape: tuple[int, ...], dtype: np.dtype
    ) -> np.ndarray:
        """An array for that; the caller fills it when its instruction executes."""
        free = self._free.get((shape, dtype))
        array = free.pop() if free else np.empty(shape, dtype)
        self._live[first, count, kind] = array
        return array

    def written(self, first: int, count: int) -> None:
        """Rows `first` to `first + count` have changed."""
        for key in [k for k in self._live if k[0] < first + count and first < k[0] + k[1]]:
            array = self._live.pop(key)
            self._free.setdefault((array.shape, array.dtype), []).append(array)


@dataclass(slots=True)
class Mode:
    """The float mode bits: whether denormals are kept, for float32, and for float16 and float64.

    `may_flush` says that a kernel may run with denormals off at some point; without it instructions are
    bound with no test of the mode. `fp16_overflow` (FP16_OVFL) turns overflows of float16, fp8 and bf8
    results into the largest number. `mfma_order` says how matrix instructions sum (see semantics.mfma).
    """

    denormals_f32: bool = True
    denormals_f16_f64: bool = True
    dx10_clamp: bool = True
    may_flush: bool = False
    fp16_overflow: bool = False
    mfma_order: str = "fast"

    def keeps(self, dtype: np.dtype) -> bool:
        """Whether denormals of this float type are kept."""
        return self.denormals_f32 if dtype.itemsize == 4 else self.denormals_f16_f64


@dataclass(slots=True, eq=False)
class Batch:
    """Registers and memory of `groups` workgroups of `waves_per_group` waves each.

    `vgpr` is uint32 [registers, waves, 64]: v0 and up, from `accum_offset` on a0 and up, then the
    temporaries. `sgpr` is uint32 [waves, 128] as encoded (vcc 106, m0 124, exec 126), `scc` bool
    [waves]. `lds` is uint8, `lds_size` bytes a workgroup, which begins at `lds_base` (int64 [waves, 1]);
    `scratch` uint8, `scratch_size` bytes a lane.

    The waves that execute now are `active` (bool [waves], None for all), the lanes `mask` (bool
    [waves, 64], None for all); both are replaced, never changed in place.

    Loads are asynchronous: they read memory when they are issued, and write registers or LDS when a wait
    requires it, until which the old contents are seen. `vmcnt` returns in order, `lgkmcnt` (LDS) too;
    `smem` is the scalar part of lgkmcnt, which returns out of order: only a wait for 0 completes it.
    A FLAT operation counts in vmcnt and, out of order, in lgkmcnt, and lands with vmcnt.
    """

    kernel: Kernel
    groups: int
    waves_per_group: int
    registers: int
    accum_offset: int
    lds_size: int
    scratch_size: int
    memory: Memory = field(default_factory=Memory)
    mode: Mode = field(default_factory=Mode)
    code_base: int = 0
    vgpr: np.ndarray = field(init=False)
    sgpr: np.ndarray = field(init=False)
    sgpr64: np.ndarray = field(init=False)
    scc: np.ndarray = field(init=False)
    lds: np.ndarray = field(init=False)
    lds_base: np.ndarray = field(init=False)
    scratch: np.ndarray = field(init=False)
    workgroups: np.ndarray = field(init=False)
    active: np.ndarray | None = None
    mask: np.ndarray | None = None
    watch: Watch | None = None
    vmcnt: Queue = field(init=False)
    lgkmcnt: Queue = field(init=False)
    smem: Queue = field(init=False)
    clock: int = 0
    fragments: Fragments = field(default_factory=Fragments)
    at: Instruction | None = None

    def __post_init__(self) -> None:
        waves = self.waves
        self.vgpr = np.zeros((self.registers + TEMPORARIES, waves, LANES), np.uint32)
        self.sgpr = np.zeros((waves, SGPRS), np.uint32)
        self.sgpr64 = self.sgpr.view(np.uint64)
        self.scc = np.zeros(waves, bool)
        stride = -(-self.lds_size // 16) * 16
        self.lds = np.zeros(self.groups * stride, np.uint8)
        group = np.arange(waves) // self.waves_per_group
        self.lds_base = (group * stride)[:, None]
        watch = self.watch
        queues = [Queue() if watch is None else WatchedQueue(self, watch) for _ in range(3)]
        self.vmcnt, self.lgkmcnt, self.smem = queues
        self.scratch = np.zeros(waves * LANES * self.scratch_size, np.uint8)
        self.workgroups = np.zeros((self.groups, 3), np.int64)

    @property
    def waves(self) -> int:
        return self.groups * self.waves_per_group

    @property
    def nbytes(self) -> int:
        return self.vgpr.nbytes + self.lds.nbytes + self.scratch.nbytes

    def reset(self, memory: Memory, workgroups: np.ndarray) -> None:
        """Make ready for a launch: everything zero, all lanes on, `workgroups` int64 [groups, 3] ids."""
        for array in (self.vgpr, self.sgpr, self.scc, self.lds, self.scratch):
            array.fill(0)
        self.memory = memory
        self.workgroups = workgroups
        for queue in (self.vmcnt, self.lgkmcnt, self.smem):
            queue.clear()
        self.clock = 0
        self.sgpr64[:, EXEC // 2] = ALL_LANES
        self.activate(None)

    def activate(self, waves: np.ndarray | None) -> None:
        """Execute only `waves` (bool [waves], None for all) from now on."""
        self.active = waves
        self.exec_changed()

    def wait(self, vmcnt: int, lgkmcnt: int) -> None:
        """Let memory operations of the active waves land until at most so many are outstanding."""
        self.vmcnt.wait(self.active, vmcnt)
        self.lgkmcnt.wait(self.active, lgkmcnt)
        if lgkmcnt == 0:
            self.smem.wait(self.active, 0)

    def is_idle(self) -> bool:
        """Whether no lane is active."""
        return self.mask is not None and not self.mask.any()

    def mirror(self, values: np.ndarray) -> np.ndarray:
        """Give the second half of the waves, where they are twins of the first, the values of the first."""
        if self.watch is not None and self.watch.twins:
            values[self.waves // 2 :] = values[: self.waves // 2]
        return values

    def where(self, mask: np.ndarray | None, waves: np.ndarray | None) -> np.ndarray | None:
        """The lanes `mask` (None for all) of `waves` (bool, None for all): bool [waves, 64], None for all."""
        if waves is None:
            return mask
        lanes = waves[:, None]
        return np.broadcast_to(lanes, (self.waves, LANES)) if mask is None else mask & lanes

    def watched(
        self,
        inst: Instruction,
        space: Space,
        kind: Kind,
        addresses: np.ndarray,
        size: int,
        mask: np.ndarray | None,
        values: np.ndarray | None = None,
    ) -> np.ndarray | None:
        """Tell observers, if there are any, of an access; returns the mask to perform it under.

        All arrays are over all waves of the batch, `mask` None for all lanes: see `Access`.
        To be called when a memory instruction is issued, before its operation is pushed to a queue.
        """
        if self.watch is None:
            return mask
        return self.watch.access(self, inst, space, kind, addresses, size, mask, values)

    def exec_changed(self) -> None:
        """Derive the lane mask; to be called after every write of EXEC."""
        lanes = self.sgpr64[:, EXEC // 2]
        if self.active is None:
            self.mask = None if (lanes == ALL_LANES).all() else self.lanes_of(EXEC)
        else:
            self.mask = self.lanes_of(EXEC) & self.active[:, None]

    def lanes_of(self, register: int) -> np.ndarray:
        """The lane mask that a pair of scalar registers holds, as bool [waves, 64]."""
        as_bytes = self.sgpr.view(np.uint8)[:, 4 * register : 4 * register + 8]
        return np.unpackbits(as_bytes, axis=1, bitorder="little").view(bool)

    def row(self, index: int, accumulator: bool = False) -> np.ndarray:
        """A vector register, uint32 [waves, 64]: the view instructions keep."""
        at = self.accum_offset + index if accumulator else index
        if at >= len(self.vgpr):
            name = f"{'a' if accumulator else 'v'}{index}"
            raise EmulatorError(f"{name} is beyond the {self.registers} vector registers the kernel declares")
        return self.vgpr[at]

    def temporary(self, index: int) -> int:
        """The vector register index of a temporary row."""
        return self.registers + index
