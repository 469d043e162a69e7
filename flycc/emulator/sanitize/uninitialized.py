"""Sanitizer of uninitialized registers, LDS and scratch.

What is undefined must not matter, so the launch runs twice at once: every batch holds its workgroups and
their twins, in lockstep, which differ in nothing but what registers, LDS and scratch hold before anyone
writes them. The first see zeros, the twins a pattern that is NaN in all float types. Undefined values may be
copied, combined and dropped as a compiler likes; where they decide an address, a branch, EXEC or
what is stored to device memory, the two differ. That is the finding, and the twin's operand is then
set right, so that one fault is reported once.

Nothing is approximated, so there are no false findings; a fault is missed where zeros and the pattern
happen to give the same. Memory of the device counts as defined. The twins' stores to it are dropped,
and their atomics return what those of the first half do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.observe import Access, Observer
from flycc.emulator.sanitize.finding import Findings, Site
from flycc.emulator.semantics.operands import first_row, is_vector
from flycc.emulator.state import EXEC, LANES, M0, SGPRS, VCC, Batch

#: What twins hold at first, by where: different NaNs, so that a copy tells where it is from.
PATTERNS = {
    "vector register": 0x7FFF_7FFF,
    "LDS": 0x7FFE_7FFE,
    "scratch": 0x7FFD_7FFD,
    "scalar register": 0x7FFC_7FFC,
}


@dataclass(frozen=True, slots=True)
class _Uses:
    """Operands of an instruction that must be defined: (name, rows or columns)."""

    vector: tuple[tuple[str, int], ...] = ()
    scalar: tuple[tuple[str, int], ...] = ()
    scc: bool = False
    what: str = ""


class Uninitialized(Observer):
    """To be run on batches with twins: `Watch(twins=True)`. It changes the twins, and only them."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def batch_begins(self, batch: Batch, groups: np.ndarray) -> None:
        self._uses: dict[int, _Uses] = {}
        self._wrote_exec: tuple[Instruction, np.ndarray] | None = None
        half = self._half = batch.waves // 2
        batch.vgpr[1:, half:] = PATTERNS["vector register"]
        kernel = batch.kernel
        ids = kernel.enable_workgroup_id_x, kernel.enable_workgroup_id_y, kernel.enable_workgroup_id_z
        first = sum(count for _, _, count in kernel.user_sgprs) + sum(map(bool, ids))
        batch.sgpr[half:, first:EXEC] = PATTERNS["scalar register"]
        for name, memory in (("LDS", batch.lds), ("scratch", batch.scratch)):
            memory[memory.size // 2 :].view(np.uint32)[:] = PATTERNS[name]

    def instruction(self, batch: Batch, waves: np.ndarray, inst: Instruction) -> None:
        if self._wrote_exec is not None:
            self._check_exec(batch, *self._wrote_exec)
            self._wrote_exec = None
        uses = self._uses.get(inst.address)
        if uses is None:
            uses = self._uses[inst.address] = _uses(batch, inst)
        if writes_exec(inst):
            self._wrote_exec = inst, waves
        half = self._half
        for name, row in uses.vector:
            lanes = None if batch.mask is None else batch.mask[:half]
            self._compare(batch, inst, name, uses.what, batch.vgpr[row], lanes)
        for name, column in uses.scalar:
            active = None if batch.active is None else batch.active[:half, None]
            self._compare(batch, inst, name, uses.what, batch.sgpr[:, column : column + 1], active)
        if uses.scc:
            active = None if batch.active is None else batch.active[:half, None]
            self._compare(batch, inst, "scc", uses.what, batch.scc[:, None], active)

    def access(self, batch: Batch, access: Access) -> None:
        if access.space != "global" or access.kind not in ("store", "atomic"):
            return
        inst, lanes = access.inst, access.mask
        data = inst.src[0] if inst.encoding == "MUBUF" else inst.src[1]
        if len(access.waves) != self._half:
            lanes = np.zeros((self._half, LANES), bool)
            lanes[access.waves] = access.mask
        bits = 0xFFFF_FFFF
        if "store_byte" in inst.name or "store_short" in inst.name:
            bits = (1 << 8 * access.size) - 1 << (16 if inst.name.endswith("d16_hi") else 0)
        for name, row in _vector(batch, data):
            self._compare(batch, inst, name, "goes to memory", batch.vgpr[row], lanes, np.uint32(bits))

    def _check_exec(self, batch: Batch, inst: Instruction, waves: np.ndarray) -> None:
        here = np.zeros((self._half, 1), bool)
        here[waves] = True
        if self._compare(
            batch, inst, "exec", "decides which lanes run", batch.sgpr64[:, EXEC // 2, None], here
        ):
            batch.exec_changed()

    def _compare(
        self,
        batch: Batch,
        inst: Instruction,
        name: str,
        what: str,
        values: np.ndarray,
        where: np.ndarray | None,
        bits: np.uint32 | None = None,
    ) -> bool:
        """Report where `values` ([waves, n], in the bits given) of the halves differ, and make them equal."""
        first, twins = values[: self._half], values[self._half :]
        differ = first != twins if bits is None or bits == 0xFFFF_FFFF else (first ^ twins) & bits != 0
        if where is not None:
            differ &= where
        if not differ.any():
            return False
        wave, lane = (int(i) for i in np.unravel_index(int(differ.argmax()), differ.shape))
        group, slot = divmod(wave, batch.waves_per_group)
        origin = next((o for o, pattern in PATTERNS.items() if int(twins[wave, lane]) == pattern), None)
        source = f"a copy of a {origin}" if origin else "computed from what"
        self._findings.add(
            "uninitialized",
            f"{name} {what} and is undefined, {source} that was never written",
            Site.of(inst, batch.workgroups[group], slot),
            kind=name,
            lane=lane if values.shape[1] == LANES else None,
            count=int(np.count_nonzero(differ)),
        )
        np.copyto(twins, first, where=differ)
        return True


def writes_exec(inst: Instruction) -> bool:
    if any(d.kind is OperandKind.SGPR and d.index < EXEC + 2 and d.index + d.count > EXEC for d in inst.dst):
        return True
    return "saveexec" in inst.name or "wrexec" in inst.name or inst.name.startswith("v_cmpx")


def _uses(batch: Batch, inst: Instruction) -> _Uses:
    """What of an instruction decides an address or where the wave goes on."""
    if inst.name.startswith("s_cbranch"):
        condition = inst.name.removeprefix("s_cbranch_")
        pair = (("vcc_lo", VCC), ("vcc_hi", VCC + 1)) if condition.startswith("vcc") else ()
        return _Uses(scalar=pair, scc=condition.startswith("scc"), what="decides a branch")
    if inst.name in ("s_setpc_b64", "s_swappc_b64"):
        return _Uses(scalar=_scalar(inst.src[0]), what="is jumped to")
    operands: tuple[Operand, ...] = ()
    moves_lanes = "permute" in inst.name or "swizzle" in inst.name
    if inst.encoding == "FLAT" or (inst.encoding == "DS" and not moves_lanes):
        operands = inst.src[:1]
    elif inst.encoding in ("GLOBAL", "SCRATCH"):
        operands = (inst.src[0], inst.src[-1]) if inst.src else ()
    elif inst.encoding == "MUBUF":
        operands = inst.src[-3:] if inst.mods.get("offen") or inst.mods.get("idxen") else inst.src[-2:]
    elif inst.encoding == "SMEM":
        operands = inst.src
    vector = tuple(use for operand in operands for use in _vector(batch, operand))
    scalar = tuple(use for operand in operands for use in _scalar(operand))
    if inst.mods.get("lds", 0) or "_lds_" in inst.name:
        scalar = (*scalar, ("m0", M0))
    return _Uses(vector, scalar, what="is an address")


def _vector(batch: Batch, operand: Operand) -> tuple[tuple[str, int], ...]:
    if not is_vector(operand):
        return ()
    first = first_row(batch, operand)
    count = min(operand.count, len(batch.vgpr) - first)
    return tuple((f"{operand.kind.value}{operand.index + i}", first + i) for i in range(count))


def _scalar(operand: Operand) -> tuple[tuple[str, int], ...]:
    if operand.kind is not OperandKind.SGPR:
        return ()
    last = min(operand.index + operand.count, SGPRS)
    return tuple((f"s{i}", i) for i in range(operand.index, last))
