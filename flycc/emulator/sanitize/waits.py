"""Sanitizer of waits: registers and LDS that are used while an asynchronous load is still to write them."""

from __future__ import annotations

import numpy as np

from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.observe import Access, Observer
from flycc.emulator.sanitize.finding import Findings, Site
from flycc.emulator.sanitize.places import site
from flycc.emulator.sanitize.shadow import Shadow
from flycc.emulator.semantics.operands import first_row, is_vector
from flycc.emulator.semantics.waits import COUNTERS
from flycc.emulator.state import M0, SGPRS, Batch


class Waits(Observer):
    """Tracks what is pending for every register and wave, and, for loads to LDS, for every cell of LDS.

    Reading a pending register is a finding, and so is writing it, except by a load that returns in the
    same order. LDS that a wave's own load is still to fill is not to be touched by that wave; other
    waves are the race sanitizer's business.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._instructions: list[Instruction] = []
        self._numbers: dict[int, int] = {}

    def batch_begins(self, batch: Batch, groups: np.ndarray) -> None:
        waves = len(groups) * batch.waves_per_group
        #: Number + 1 of the load that is to write a register, int32 [vector rows + scalar registers, waves].
        self._pending = np.zeros((len(batch.vgpr) + SGPRS, waves), np.int32)
        self._lds = Shadow(batch.lds.size, "load", "wave")
        self._lds_loads = 0
        self._rows: dict[int, tuple[np.ndarray, np.ndarray, int]] = {}

    def _number(self, inst: Instruction) -> int:
        """1 and up: an instruction's number."""
        number = self._numbers.get(inst.address)
        if number is None:
            self._instructions.append(inst)
            number = self._numbers[inst.address] = len(self._instructions)
        return number

    def _registers(self, batch: Batch, inst: Instruction) -> tuple[np.ndarray, np.ndarray, int]:
        """(registers read, registers written) as rows of `_pending`, and the instruction's number."""
        known = self._rows.get(inst.address)
        if known is None:
            read = _rows(batch, inst.src)
            if inst.mods.get("lds", 0) or "_lds_" in inst.name:
                read = np.append(read, len(batch.vgpr) + M0)
            known = self._rows[inst.address] = (read, _rows(batch, inst.dst), self._number(inst))
        return known

    def instruction(self, batch: Batch, waves: np.ndarray, inst: Instruction) -> None:
        read, written, _ = self._registers(batch, inst)
        if read.size:
            self._check(batch, waves, inst, read, "reads", in_order=None)
        if written.size:
            self._check(batch, waves, inst, written, "overwrites", in_order=COUNTERS.get(inst.encoding))

    def _check(
        self,
        batch: Batch,
        waves: np.ndarray,
        inst: Instruction,
        rows: np.ndarray,
        verb: str,
        in_order: str | None,
    ) -> None:
        pending = self._pending[rows]
        if not pending.any():
            return
        pending = pending[:, waves]
        for number in np.unique(pending[pending > 0]):
            load = self._instructions[number - 1]
            if in_order is not None and COUNTERS.get(load.encoding) == in_order:
                continue
            register, index = np.argwhere(pending == number)[0]
            group, slot = divmod(int(waves[index]), batch.waves_per_group)
            self._findings.add(
                "wait",
                f"{verb} {_name(batch, int(rows[register]))} before the load into it is waited for",
                Site.of(inst, batch.workgroups[group], slot),
                kind=verb,
                earlier=Site.of(load, batch.workgroups[group], slot),
                count=int(np.count_nonzero((pending == number).any(axis=0))),
            )

    def access(self, batch: Batch, access: Access) -> None:
        if access.space == "lds":
            self._check_lds(batch, access)
        if access.kind == "load-to-lds":
            cells, waves, _ = self._cells(batch, access, slice(None))
            self._lds["load"][cells] = self._number(access.inst)
            self._lds["wave"][cells] = waves[:, None]
            self._lds_loads += len(access.waves)
        elif access.inst.dst:
            _, written, number = self._registers(batch, access.inst)
            self._pending[np.ix_(written, access.waves)] = number

    def landed(self, batch: Batch, waves: np.ndarray, access: Access) -> None:
        if access.kind == "load-to-lds":
            cells, owners, _ = self._cells(batch, access, np.isin(access.waves, waves))
            number = self._number(access.inst)
            mine = (self._lds["load"][cells] == number) & (self._lds["wave"][cells] == owners[:, None])
            self._lds["load"][cells[mine]] = 0
            self._lds_loads -= len(waves)
        elif access.inst.dst:
            _, written, number = self._registers(batch, access.inst)
            at = np.ix_(written, waves)
            self._pending[at] = np.where(self._pending[at] == number, 0, self._pending[at])

    def _cells(
        self, batch: Batch, access: Access, which: np.ndarray | slice
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(cells [m, n], waves [m], lanes [m]) of the access's active lanes, of the waves `which` of it."""
        mask, waves = access.mask[which], access.waves[which]
        index, lanes = np.nonzero(mask)
        owners = waves[index]
        offsets = access.addresses[which][mask].astype(np.int64) + batch.lds_base[owners, 0]
        return self._lds.cells(offsets, access.size), owners, lanes

    def _check_lds(self, batch: Batch, access: Access) -> None:
        if not self._lds_loads:
            return
        cells, waves, lanes = self._cells(batch, access, slice(None))
        pending = self._lds["load"][cells]
        pending = np.where(self._lds["wave"][cells] == waves[:, None], pending, 0).max(axis=1)
        if access.kind == "load-to-lds":  # loads land in order
            return
        for number in np.unique(pending[pending > 0]):
            hits = pending == number
            first = int(hits.argmax())
            index = int(np.searchsorted(access.waves, waves[first]))
            here = site(batch, access, index)
            self._findings.add(
                "wait",
                "touches LDS that a load of the same wave is still to fill",
                here,
                kind="lds",
                lane=int(lanes[first]),
                memory_address=int(access.addresses[index, lanes[first]]),
                earlier=Site.of(self._instructions[number - 1], here.workgroup, here.wave),
                count=int(np.count_nonzero(hits)),
            )


def _rows(batch: Batch, operands: tuple[Operand, ...]) -> np.ndarray:
    """Vector rows, then scalar registers, int64 [n]; without those that there are not."""
    rows: list[int] = []
    vectors = len(batch.vgpr)
    for operand in operands:
        if is_vector(operand):
            first = first_row(batch, operand)
            rows.extend(range(first, min(first + operand.count, vectors)))
        elif operand.kind is OperandKind.SGPR:
            first = vectors + operand.index
            rows.extend(range(first, min(first + operand.count, vectors + SGPRS)))
    return np.array(rows, np.int64)


def _name(batch: Batch, row: int) -> str:
    if row >= len(batch.vgpr):
        return f"s{row - len(batch.vgpr)}"
    return f"a{row - batch.accum_offset}" if row >= batch.accum_offset else f"v{row}"
