"""Sanitizer of control flow: barriers that not all waves arrive at, deadlocks and endless loops."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from flycc.emulator.errors import EmulatorError
from flycc.emulator.execute import RunawayKernel
from flycc.emulator.isa.instruction import Instruction
from flycc.emulator.memory import Memory
from flycc.emulator.observe import Observer
from flycc.emulator.program import Kernel
from flycc.emulator.sanitize.finding import Findings, Site
from flycc.emulator.state import Batch


class Control(Observer):
    """Findings "barrier" and "runaway".

    A barrier opens when every wave of the workgroup is at one or has ended, as on hardware, which counts
    arrivals and knows no addresses: waves may meet at different s_barrier instructions. A wave that arrives
    less often than another ends while that one waits, wherever it skipped a barrier: that is the finding, and
    says where waves first met at different barriers. A runaway kernel ends its launch with a finding; where
    waves of the looping workgroup wait at a barrier, it is a deadlock.
    """

    def __init__(self, findings: Findings, names: Set[str]) -> None:
        self._findings, self._names = findings, names

    def launch_begins(
        self, kernel: Kernel, grid: tuple[int, int, int], block: tuple[int, int, int], memory: Memory
    ) -> None:
        self._kernel = kernel

    def batch_begins(self, batch: Batch, groups: np.ndarray) -> None:
        waves = len(groups) * batch.waves_per_group
        #: Where every wave waits or has ended; None while it runs.
        self._stops: list[Instruction | None] = [None] * waves
        self._arrivals = np.zeros(waves, np.int64)
        #: By workgroup, the addresses of the barriers at which waves met that first differed.
        self._parted: dict[int, list[int]] = {}

    def instruction(self, batch: Batch, waves: np.ndarray, inst: Instruction) -> None:
        if inst.name == "s_barrier":
            self._arrivals[waves] += 1
        elif not inst.name.startswith("s_endpgm"):
            return
        for wave in waves:
            self._stops[wave] = inst

    def barrier(self, batch: Batch, groups: np.ndarray) -> None:
        for group in groups:
            first = int(group) * batch.waves_per_group
            waves = range(first, first + batch.waves_per_group)
            stops = [stop for wave in waves if (stop := self._stops[wave]) is not None]
            self._check(batch, int(group), stops)
            for wave, stop in zip(waves, stops, strict=True):
                if stop.name == "s_barrier":
                    self._stops[wave] = None

    def _check(self, batch: Batch, group: int, stops: list[Instruction]) -> None:
        """`stops` are those of all waves of the group, in order."""
        waiting = [slot for slot, stop in enumerate(stops) if stop.name == "s_barrier"]
        met = sorted({stops[slot].address for slot in waiting})
        if len(met) > 1:
            self._parted.setdefault(group, met)
        if len(waiting) == len(stops) or "barrier" not in self._names:
            return
        arrivals = self._arrivals[group * batch.waves_per_group :]
        here = Site.of(stops[waiting[0]], batch.workgroups[group], waiting[0])
        ended: dict[int, int] = {}
        for slot, stop in enumerate(stops):
            if slot not in waiting:
                ended.setdefault(stop.address, slot)
        parted = " and ".join(f"{address:#x}" for address in self._parted.get(group, ()))
        for slot in ended.values():
            self._findings.add(
                "barrier",
                f"barrier number {arrivals[waiting[0]]} of this wave; wave {slot} of the workgroup has ended after "
                f"number {arrivals[slot]}"
                + (f"; waves first met at different ones at {parted}" if parted else ""),
                here,
                earlier=Site.of(stops[slot], batch.workgroups[group], slot),
            )

    def stopped(self, batch: Batch, error: EmulatorError) -> bool:
        if not isinstance(error, RunawayKernel) or "runaway" not in self._names:
            return False
        wave = int(error.waves[0])
        group, slot = divmod(wave, batch.waves_per_group)
        inst = self._kernel.instruction(error.address)
        first = group * batch.waves_per_group
        waiting = None
        for i in range(batch.waves_per_group):
            stop = self._stops[first + i]
            if stop is not None and stop.name == "s_barrier":
                waiting = Site.of(stop, batch.workgroups[group], i)
        what = "the wave loops and another waits at a barrier: a deadlock" if waiting else "an endless loop"
        self._findings.add(
            "runaway",
            f"{what}, stopped after {error.executed} instructions",
            Site.of(inst, batch.workgroups[group], slot),
            earlier=waiting,
        )
        return True
