"""The registers that an instruction names, as ranges, and the unit that executes it."""

from __future__ import annotations

import re
from typing import NamedTuple

from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind

_FILES = (OperandKind.VGPR, OperandKind.AGPR, OperandKind.SGPR)
_M0 = 124

#: Instructions whose destination is a source too: accumulations and swaps, and writes of a part of a register.
_KEEPS_DESTINATION = re.compile(
    r"v_(pk_)?fmac_|v_mac_|v_dot\d+c_|v_smfmac_|v_swap_|v_permlane(16|32)_swap_|s_(addk|mulk|cmovk)_|s_cmov_"
    r"|s_bitset[01]_|v_writelane_|.*_d16(_hi)?$|v_(fma|mad|div_fixup|(min|max|med)3)_[fiu]16$|v_(add|sub)_i16$"
    r"|v_fma_mix(lo|hi)_|v_ashr_pk_|v_cvt_sr_(bf|f)16_|v_cvt_scalef32_f16_|v_cvt_(scalef32_)?(sr_)?(pk_)?(fp8|bf8|fp4)_"
)
_UPPER_HALF = 8  # op_sel's bit of the destination
_PRESERVE = 2  # SDWA's dst_unused


class Registers(NamedTuple):
    """`count` registers of a file ("v", "a" or "s", as encoded: vcc is s106, m0 s124, exec s126) from `first` on."""

    file: str
    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here


def written(inst: Instruction) -> tuple[Registers, ...]:
    """The registers of the destinations. SCC, and EXEC where it is implicit, are not listed."""
    return _ranges(inst.dst)


def read(inst: Instruction) -> tuple[Registers, ...]:
    """The registers of the sources, and of destinations whose old value matters; M0 where it is an address.

    SCC, EXEC as the lane mask, MODE, and a lane that DPP leaves as it was, are not listed.
    """
    ranges = _ranges(inst.src)
    mods = inst.mods
    into_half = mods.get("dst_unused") == _PRESERVE or mods.get("op_sel", 0) & _UPPER_HALF
    if into_half or _KEEPS_DESTINATION.match(inst.name):
        ranges += written(inst)
    if mods.get("lds") or "_load_lds_" in inst.name:
        ranges += (Registers("s", _M0, 1),)
    return ranges


def _ranges(operands: tuple[Operand, ...]) -> tuple[Registers, ...]:
    return tuple(Registers(o.kind.value, o.index, o.count) for o in operands if o.kind in _FILES)


#: What executes an instruction. TRANS is the quarter-rate part of the VALU; SYNC waits and barriers.
UNITS = ("SALU", "VALU", "TRANS", "MFMA", "LDS", "VMEM", "SMEM", "BRANCH", "SYNC")

_TRANS = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_")
_SYNC = ("s_waitcnt", "s_barrier", "s_nop", "s_sleep", "s_setprio", "s_wakeup")
_BRANCH = ("s_branch", "s_cbranch", "s_setpc", "s_swappc", "s_call", "s_endpgm")
_BY_ENCODING = {
    "SMEM": "SMEM", "DS": "LDS", "MAI_SCALED": "MFMA",
    "FLAT": "VMEM", "GLOBAL": "VMEM", "SCRATCH": "VMEM", "MUBUF": "VMEM",
}  # fmt: skip


def unit(inst: Instruction) -> str:
    """The unit of UNITS that executes an instruction. A FLAT access counts as VMEM wherever it goes."""
    if inst.encoding in _BY_ENCODING:
        return _BY_ENCODING[inst.encoding]
    if inst.name.startswith(_SYNC):
        return "SYNC"
    if inst.name.startswith(_BRANCH):
        return "BRANCH"
    if inst.name.startswith("s_"):
        return "SALU"
    if inst.name.startswith(("v_mfma_", "v_smfmac_")):
        return "MFMA"
    return "TRANS" if _TRANS.match(inst.name) else "VALU"
