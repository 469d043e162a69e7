"""Observers: what a launch tells whoever asks, for traces and sanitizers.

`launch(..., observers=(...))` passes objects of a subclass of `Observer`; it overrides what it wants to
know. A launch without observers binds instructions that know nothing of them and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from flycc.emulator.errors import EmulatorError
from flycc.emulator.isa.instruction import Instruction
from flycc.emulator.memory import Memory

if TYPE_CHECKING:
    from flycc.emulator.program import Kernel
    from flycc.emulator.state import Batch

Space = Literal["global", "scalar", "lds", "scratch", "lanes"]
Kind = Literal["load", "store", "atomic", "load-to-lds"]


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One access of an instruction to one address space, for all waves that execute it together.

    `waves` are indices into the batch, int64 [n]. `addresses`, uint64 [n, 64], are device addresses in
    "global", byte offsets in the workgroup's LDS in "lds" and in the lane's own memory in "scratch";
    "scalar" is device memory as scalar instructions access it, [n, parts]; "lanes" are the lane
    permutes of the LDS unit, with the lane that is read (or, for ds_permute, written) times 4. `size` is
    bytes a lane, `mask` bool of the addresses' shape: the lanes that take part and lie within bounds. An
    instruction may make several accesses: ds_read2 two, a load to LDS a "load" and a "load-to-lds".

    `values` are what a store of vector registers writes, elements of `size` bytes of the addresses' shape
    (12 bytes: uint32 with a last axis of 3); None otherwise.
    """

    inst: Instruction
    waves: np.ndarray
    space: Space
    kind: Kind
    addresses: np.ndarray
    size: int
    mask: np.ndarray
    values: np.ndarray | None = None


class Observer:
    """Base of observers: every method does nothing. None may change the state it is shown.

    A wave of the batch is `group * batch.waves_per_group + slot`. A launch runs as a series of batches.
    A batch may have more workgroups than `batch_begins` names; observers never hear of those.
    """

    #: Whether the launch goes on after an access out of bounds: such a load gives 0, such a store is dropped.
    tolerates_faults = False

    def launch_begins(
        self, kernel: Kernel, grid: tuple[int, int, int], block: tuple[int, int, int], memory: Memory
    ) -> None:
        """Before the first batch; `memory` holds the buffers, the kernel's arguments and its code."""

    def launch_ends(self) -> None:
        """After the last batch, also if the launch failed."""

    def batch_begins(self, batch: Batch, groups: np.ndarray) -> None:
        """Registers are as waves start; `groups` are the workgroup ids, int64 [groups, 3]."""

    def batch_ends(self, batch: Batch) -> None:
        """All waves of the batch have ended; not called if the launch failed."""

    def stopped(self, batch: Batch, error: EmulatorError) -> bool:
        """The batch cannot go on; True says that the launch is to end here, and normally."""
        return False

    def instruction(self, batch: Batch, waves: np.ndarray, inst: Instruction) -> None:
        """Before `waves` (indices, int64 [n]) execute `inst` together; registers are as it reads them."""

    def access(self, batch: Batch, access: Access) -> None:
        """A memory access is issued; after `instruction` for it and before it takes effect."""

    def out_of_bounds(self, batch: Batch, access: Access, outside: np.ndarray, why: str) -> None:
        """Lanes `outside` (bool, the shape of the access's mask) of an access fall outside memory.

        Called before `access`, which then has these lanes masked off. Device memory that is not registered,
        or is read-only, is a fault, of which only observers that tolerate faults hear; LDS never faults.
        """

    def landed(self, batch: Batch, waves: np.ndarray, access: Access) -> None:
        """An access is complete for `waves` (indices): their wait required it, or they have ended.

        A load's registers, or the LDS it loads to, change now. Stores land too.
        """

    def wait(self, batch: Batch, waves: np.ndarray, inst: Instruction, vmcnt: int, lgkmcnt: int) -> None:
        """s_waitcnt with the numbers of operations that may stay outstanding; before `landed`."""

    def barrier(self, batch: Batch, groups: np.ndarray) -> None:
        """A barrier opens for these workgroups (indices, int64 [n]): their waves all wait or have ended."""


class Watch:
    """The observers of a launch, as a batch calls them: it selects the active waves and drops twins.

    With twins (see `flycc.emulator.sanitize.uninitialized`) the second half of a batch repeats the
    first, must not be seen by observers and must not change device memory.
    """

    def __init__(self, observers: Sequence[Observer], twins: bool = False) -> None:
        self.observers, self.twins = tuple(observers), twins
        self._issued: list[Access] = []
        self.tolerant = any(o.tolerates_faults for o in observers)
        self._instruction = self._hooks("instruction")
        self._access = self._hooks("access")
        self._out_of_bounds = self._hooks("out_of_bounds")
        self._landed = self._hooks("landed")
        self._wait = self._hooks("wait")
        self._barrier = self._hooks("barrier")

    def _hooks(self, name: str) -> list[Callable[..., None]]:
        """The observers' methods of a name, without those that do nothing."""
        nothing = getattr(Observer, name)
        return [getattr(o, name) for o in self.observers if getattr(type(o), name) is not nothing]

    def waves(self, batch: Batch, active: np.ndarray | None) -> np.ndarray:
        """Indices of the waves that observers see, of those in `active` (bool [waves], None for all)."""
        count = self.visible(batch)
        return np.arange(count) if active is None else np.flatnonzero(active[:count])

    def visible(self, batch: Batch) -> int:
        """How many waves of the batch observers see: the first so many."""
        return batch.waves // 2 if self.twins else batch.waves

    def instruction(self, batch: Batch, inst: Instruction) -> None:
        if self._instruction:
            waves = self.waves(batch, batch.active)
            for hook in self._instruction:
                hook(batch, waves, inst)

    def access(
        self,
        batch: Batch,
        inst: Instruction,
        space: Space,
        kind: Kind,
        addresses: np.ndarray,
        size: int,
        mask: np.ndarray | None,
        values: np.ndarray | None,
    ) -> np.ndarray | None:
        """Announce an access (arrays over all waves of the batch); returns the mask to perform it under."""
        waves = self.waves(batch, batch.active)
        shown = np.ones(addresses.shape, bool) if mask is None else mask
        here = slice(len(waves)) if batch.active is None else waves
        given = None if values is None else values[here]
        access = Access(inst, waves, space, kind, addresses[here], size, shown[here], given)
        for why, outside in self._outside(batch, access):
            for hook in self._out_of_bounds:
                hook(batch, access, outside, why)
            access = replace(access, mask=access.mask & ~outside)
            mask = shown.copy() if mask is shown or mask is None else mask.copy()
            _clear(mask, waves, outside)
            if self.twins:
                _clear(mask, waves + batch.waves // 2, outside)
        if self.twins and kind in ("store", "atomic") and space in ("global", "scalar"):
            mask = np.ones(addresses.shape, bool) if mask is None else mask.copy()
            mask[batch.waves // 2 :] = False
        self._issued.append(access)
        for hook in self._access:
            hook(batch, access)
        return mask

    def _outside(self, batch: Batch, access: Access) -> list[tuple[str, np.ndarray]]:
        """Why and in which lanes the access is out of bounds; nothing where it is to fault."""
        space, size = access.space, access.size
        if space == "lds" or (space == "scratch" and self.tolerant):
            limit = batch.lds_size if space == "lds" else batch.scratch_size
            at = access.addresses.view(np.int64)
            outside = access.mask & ((at < 0) | (at > limit - size))
            name = "LDS" if space == "lds" else "scratch"
            return [(f"past the {limit} bytes of {name}", outside)] if outside.any() else []
        if space in ("global", "scalar") and self.tolerant:
            return batch.memory.outside(
                access.addresses, size, access.mask, write=access.kind in ("store", "atomic")
            )
        return []

    def take(self) -> list[Access]:
        """The accesses issued since the last call: those of the operation that a counter counts next."""
        issued, self._issued = self._issued, []
        return issued

    def landed(self, batch: Batch, waves: np.ndarray | None, accesses: list[Access]) -> None:
        """`accesses` are complete for those of `waves` (bool, None for all) that made them."""
        for access in accesses if self._landed else ():
            mine = access.waves if waves is None else access.waves[waves[access.waves]]
            if len(mine):
                for hook in self._landed:
                    hook(batch, mine, access)

    def wait(self, batch: Batch, inst: Instruction, vmcnt: int, lgkmcnt: int) -> None:
        for hook in self._wait:
            hook(batch, self.waves(batch, batch.active), inst, vmcnt, lgkmcnt)

    def barrier(self, batch: Batch, groups: np.ndarray) -> None:
        """`groups` as bool [groups] of the batch."""
        if self._barrier:
            seen = np.flatnonzero(groups[: self.visible(batch) // batch.waves_per_group])
            for hook in self._barrier:
                hook(batch, seen)


def _clear(mask: np.ndarray, waves: np.ndarray, outside: np.ndarray) -> None:
    mask[waves] &= ~outside
