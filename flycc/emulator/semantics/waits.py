"""Wait counters: which instructions count where, and what s_waitcnt waits for."""

from __future__ import annotations

from flycc.emulator.isa.instruction import Instruction
from flycc.emulator.semantics.operands import Op
from flycc.emulator.state import Batch

#: The counter on which the vector registers that an instruction of an encoding loads depend.
COUNTERS = {
    "DS": "lgkmcnt",
    "FLAT": "vmcnt",
    "GLOBAL": "vmcnt",
    "SCRATCH": "vmcnt",
    "MUBUF": "vmcnt",
}

#: The largest count s_waitcnt can name, which waits for nothing.
COUNTER_LIMITS = {"vmcnt": 63, "lgkmcnt": 15}


def wait_counts(inst: Instruction) -> dict[str, int]:
    """What s_waitcnt lets stay outstanding: vmcnt is in bits 3:0 and 15:14, lgkmcnt in bits 11:8.

    expcnt, in bits 6:4, has nothing to wait for on gfx950.
    """
    bits = inst.mods["simm16"]
    return {"vmcnt": bits & 15 | bits >> 14 << 4, "lgkmcnt": bits >> 8 & 15}


def bind_waitcnt(batch: Batch, inst: Instruction) -> Op:
    counts = wait_counts(inst)
    vmcnt, lgkmcnt = counts["vmcnt"], counts["lgkmcnt"]
    if batch.watch is None:
        return lambda: batch.wait(vmcnt, lgkmcnt)
    watch = batch.watch

    def op() -> None:
        watch.wait(batch, inst, vmcnt, lgkmcnt)
        batch.wait(vmcnt, lgkmcnt)

    return op
