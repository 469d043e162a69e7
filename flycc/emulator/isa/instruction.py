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


class Operand(NamedTuple):
    """One operand. `count` is its width in dwords (a packed 16-bit pair or a lone 16-bit value is 1)."""

    kind: OperandKind
    index: int = 0
    count: int = 1
    value: int = 0


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction at `address` (bytes, in the code object's virtual address space).

    `name` is LLVM's mnemonic without the encoding suffix (`v_add_u32`, not `v_add_u32_e32`).
    `dst` and `src` follow LLVM's operand order, implicit operands excluded; an implicit carry or compare
    destination that VOP2/VOPC fix to vcc is spelled out as an operand, so that the executor needs no case for it.
    `mods` holds every modifier that is not at its default: for example `neg` and `abs` (bit i = source i), `op_sel`,
    `op_sel_hi`, `neg_lo`, `neg_hi`, `clamp`, `omod`, `offset`, `offset0`, `offset1`, `sc0`, `sc1`, `nt`,
    `idxen`, `offen`, `lds`, `gds`, `cbsz`, `abid`, `blgp`, `simm16`, `imm`, the DPP fields
    (`dpp_ctrl`, `row_mask`, `bank_mask`, `bound_ctrl`) and the SDWA ones (`dst_sel`, `dst_unused`,
    `src0_sel`, `src1_sel`, `sext`). Branch targets are in `mods["target"]` as an absolute address.
    """

    address: int
    size: int
    name: str
    encoding: str
    dst: tuple[Operand, ...] = ()
    src: tuple[Operand, ...] = ()
    mods: dict[str, int] = field(default_factory=dict)
