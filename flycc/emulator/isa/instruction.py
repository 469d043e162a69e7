"""A decoded gfx950 instruction: what the decoder makes and the executor reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class OperandKind(Enum):
    """Where an operand lives."""

    VGPR = "v"  # architectural vector register, index 0..255
    AGPR = "a"  # accumulation vector register, index 0..255
    SGPR = "s"  # scalar register file as encoded: 0..101, vcc 106/107, m0 124, exec 126/127
    CONST = "const"  # inline constant or literal: `value` holds the bits, already of the operand's width
    SPECIAL = "special"  # src_scc, src_vccz, src_execz, src_shared_base, ...: `index` is the encoding
    OFF = "off"  # an absent address operand, so that the others keep their positions


class Operand(NamedTuple):
    """One operand. `count` is its width in dwords (a packed 16-bit pair or a lone 16-bit value is 1).

    For a CONST, `index` keeps the encoding (128..208 and 240..248 inline, 255 literal), which tells `64` from
    `0x40`. A packed 16-bit operand sees an inline constant as the hardware does: a float in its low half with
    zero above, an integer sign-extended to 32 bits. A packed 32-bit one sees it in its low dword. Of a matrix
    operand `value` is one element, the same for all.
    """

    kind: OperandKind
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    count: int = 1  # type: ignore[assignment]
    value: int = 0


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction at `address` (bytes, in the code object's virtual address space).

    `name` is LLVM's mnemonic without the encoding suffix (`v_add_u32`, not `v_add_u32_e32`). `encoding` is
    SOP1, SOP2, SOPC, SOPK, SOPP, SMEM, VOP1, VOP2, VOPC, VOP3, VOP3P, MAI, MAI_SCALED, SDWA, DPP, DS, FLAT,
    GLOBAL, SCRATCH or MUBUF.

    `dst` and `src` follow LLVM's operand order, implicit operands excluded; an implicit carry or compare
    destination that VOP2/VOPC fix to vcc is spelled out as an operand, so that the executor needs no case for
    it. A destination that is also read (v_fmac, s_bitset, s_addk) is in `dst` only; the two registers of a
    swap are both destinations. Memory operands have fixed positions, OFF where absent:

        SMEM             [sdata,] sbase, soffset
        DS               addr, data0, data1             (those the opcode has)
        FLAT             vaddr [, data]
        GLOBAL, SCRATCH  vaddr [, data], saddr
        MUBUF            [vdata,] vaddr, srsrc, soffset (an atomic that returns has vdata in `dst` as well)

    `mods` holds every modifier that is not at its default: `neg` and `abs` (bit i = source i), `op_sel` (bit
    3 = destination), `neg_lo`, `neg_hi`, `clamp`, `omod`, `offset` (bytes, signed where the ISA's is),
    `offset0`, `offset1` (elements), `sc0`, `sc1`, `nt`, `idxen`, `offen`, `lds`, `gds`, `cbsz`, `abid`,
    `blgp`, `bitop3`, `imm` (the literal of s_setreg_imm32). Present whatever their value: `simm16` (the 16
    raw bits) for SOPK and SOPP, `op_sel_hi` for VOP3P and MAI_SCALED, `dpp_ctrl`, `row_mask` and `bank_mask`
    for DPP (`bound_ctrl` if set), `dst_sel`, `dst_unused`, `src0_sel` and `src1_sel` for SDWA (those the
    opcode has; `sext`, bit i = source i, if set). Branches have no `simm16` but `target`, an absolute
    address.
    """

    address: int
    size: int
    name: str
    encoding: str
    dst: tuple[Operand, ...] = ()
    src: tuple[Operand, ...] = ()
    mods: dict[str, int] = field(default_factory=dict)
