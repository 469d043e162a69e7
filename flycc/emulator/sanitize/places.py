"""Sanitizers of single accesses: bounds and alignment."""

from __future__ import annotations

import numpy as np

from flycc.emulator.observe import Access, Observer
from flycc.emulator.sanitize.finding import Findings, Site
from flycc.emulator.state import Batch


def report(
    findings: Findings, name: str, batch: Batch, access: Access, lanes: np.ndarray, what: str, kind: str = ""
) -> None:
    """A finding about the first of `lanes` (bool, the shape of the access's mask)."""
    wave, lane = (int(i) for i in np.unravel_index(int(lanes.argmax()), lanes.shape))
    findings.add(
        name,
        what,
        site(batch, access, wave),
        kind=kind,
        lane=None if access.space == "scalar" else lane,
        memory_address=int(access.addresses[wave, lane]),
        count=int(np.count_nonzero(lanes)),
    )


def site(batch: Batch, access: Access, index: int) -> Site:
    """The access as its `index`-th wave makes it."""
    group, slot = divmod(int(access.waves[index]), batch.waves_per_group)
    return Site.of(access.inst, batch.workgroups[group], slot)


class Bounds(Observer):
    """Accesses outside registered buffers, LDS or scratch; the launch goes on without them."""

    tolerates_faults = True

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def out_of_bounds(self, batch: Batch, access: Access, outside: np.ndarray, why: str) -> None:
        what = f"{access.kind} of {access.size} bytes {why}"
        report(self._findings, "bounds", batch, access, outside, what, access.space)


def needed_alignment(access: Access) -> int:
    """What the hardware needs an access's address to be a multiple of, in bytes.

    Atomics and LDS accesses are aligned to their size, 12 bytes to 16 (ISA document, "LDS alignment":
    what is less aligned is split, or wrong, depending on a mode); device memory and scratch need dwords
    for dwords and more, and so does the LDS side of a load to LDS.
    """
    natural = 16 if access.size == 12 else access.size
    if access.kind == "atomic" or (access.space == "lds" and access.kind != "load-to-lds"):
        return natural
    return min(natural, 4)


class Alignment(Observer):
    """Accesses that are less aligned than the hardware needs."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def access(self, batch: Batch, access: Access) -> None:
        needed = needed_alignment(access)
        if access.space == "lanes" or needed == 1:
            return
        wrong = (access.addresses & np.uint64(needed - 1)) != 0
        if wrong.any():
            wrong &= access.mask
            if wrong.any():
                what = f"{access.kind} of {access.size} bytes in {access.space}, not aligned to {needed}"
                report(self._findings, "align", batch, access, wrong, what, access.space)
