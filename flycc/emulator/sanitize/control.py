"""Sanitizer of control flow: barriers that not all waves reach, deadlocks and endless loops."""

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

    A barrier opens when every wave of the workgroup is at one or has ended, as on hardware. That waves
    meet at different barriers, or that some have ended while others wait, is a finding. A runaway kernel
    ends its launch with a finding; where waves of the looping workgroup wait at a barrier, it is a deadlock.
    """

    def __init__(self, findings: Findings, names: Set[str]) -> None:
        self._findings, self._names = findings, names

    def launch_begins(
        self, kernel: Kernel, grid: tuple[int, int, int], block: tuple[int, int, int], memory: Memory
    ) -> None:
        self._kernel = kernel

    def batch_begins(self, batch: Batch, groups: np.ndarray) -> None:
        #: Where every wave waits or has ended; None while it runs.
        self._stops: list[Instruction | None] = [None] * (len(groups) * batch.waves_per_group)

    def instruction(self, batch: Batch, waves: np.ndarray, inst: Instruction) -> None:
        if inst.name == "s_barrier" or inst.name.startswith("s_endpgm"):
            for wave in waves:
                self._stops[wave] = inst

    def barrier(self, batch: Batch, groups: np.ndarray) -> None:
        for group in groups:
            first = int(group) * batch.waves_per_group
            waves = range(first, first + batch.waves_per_group)
            self._check(batch, int(group), [stop for w in waves if (stop := self._stops[w]) is not None])
            for wave in waves:
                stop = self._stops[wave]
                if stop is not None and stop.name == "s_barrier":
                    self._stops[wave] = None

    def _check(self, batch: Batch, group: int, stops: list[Instruction]) -> None:
        """`stops` are those of all waves of the group, in order."""
        slot = next(i for i, stop in enumerate(stops) if stop.name == "s_barrier")
        here = Site.of(stops[slot], batch.workgroups[group], slot)
        others: dict[int, int] = {}
        for i, stop in enumerate(stops):
            if stop.address != stops[slot].address:
                others.setdefault(stop.address, i)
        for other in others.values() if "barrier" in self._names else ():
            stop = stops[other]
            how = "another barrier" if stop.name == "s_barrier" else "its end"
            self._findings.add(
                "barrier",
                f"wave {other} of the workgroup is at {how}",
                here,
                earlier=Site.of(stop, batch.workgroups[group], other),
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
