"""What sanitizers find, and the collection that keeps one finding per pair of instructions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import SupportsInt

from flycc.emulator.errors import EmulatorError
from flycc.emulator.isa.format import format_instruction
from flycc.emulator.isa.instruction import Instruction

#: Findings that a launch keeps; later ones are only counted.
MOST_FINDINGS = 100


@dataclass(frozen=True, slots=True)
class Site:
    """An instruction as one wave executes it. `workgroup` is (x, y, z), `wave` counts within it."""

    address: int
    text: str
    workgroup: tuple[int, ...]
    wave: int

    @classmethod
    def of(cls, inst: Instruction, workgroup: Iterable[SupportsInt], wave: int) -> Site:
        return cls(inst.address, format_instruction(inst), tuple(int(i) for i in workgroup), int(wave))

    def __str__(self) -> str:
        return f"{self.text} at {self.address:#x} (workgroup {self.workgroup}, wave {self.wave})"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a kernel: what `sanitizer` saw first, and how often (`count`, in lanes or waves).

    `lane` is None where the wave as a whole is at fault, `memory_address` (a device address, or a byte
    offset in LDS or scratch) where no memory is involved. `earlier` is the access it conflicts with.
    """

    sanitizer: str
    kernel: str
    what: str
    site: Site
    lane: int | None = None
    memory_address: int | None = None
    earlier: Site | None = None
    count: int = 1

    def __str__(self) -> str:
        lane = "" if self.lane is None else f", lane {self.lane}"
        where = "" if self.memory_address is None else f", address {self.memory_address:#x}"
        conflict = "" if self.earlier is None else f"; conflicts with {self.earlier}"
        who = f"{self.sanitizer}: kernel {self.kernel}: {self.site}{lane}{where}"
        return f"{who}: {self.what}{conflict} [{self.count}x]"


class SanitizerError(EmulatorError):
    """A launch with `raise_on_finding` had `findings`."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__("\n".join(str(finding) for finding in findings))
        self.findings = findings


class Findings:
    """Findings of a launch, one for each sanitizer, kind of fault and pair of instructions."""

    def __init__(self, kernel: str) -> None:
        self._kernel = kernel
        self._kept: dict[tuple[str, str, int, int | None], Finding] = {}
        self.dropped = 0

    def add(
        self,
        sanitizer: str,
        what: str,
        site: Site,
        *,
        kind: str = "",
        lane: int | None = None,
        memory_address: int | None = None,
        earlier: Site | None = None,
        count: int = 1,
    ) -> None:
        """Note a finding; `kind` tells apart different faults of one instruction where the site does not."""
        key = (sanitizer, kind, site.address, None if earlier is None else earlier.address)
        known = self._kept.get(key)
        if known is not None:
            self._kept[key] = replace(known, count=known.count + count)
        elif len(self._kept) >= MOST_FINDINGS:
            self.dropped += count
        else:
            self._kept[key] = Finding(
                sanitizer, self._kernel, what, site, lane, memory_address, earlier, count
            )

    def all(self) -> tuple[Finding, ...]:
        """In the order in which they were first seen."""
        return tuple(self._kept.values())
