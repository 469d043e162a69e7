"""The instruction formats of gfx950: which bits hold what (ISA document, "Microcode formats").

The table gives each format's size in bytes without a literal, the bits of the opcode, and the fields in
LLVM's operand order. Bit 0 is the lowest of the first dword; the second dword starts at bit 32. VOP3B, SWAP,
BITOP3 and FMA_MIX are how single opcodes of VOP3 and VOP3P use their format. In MAI_SCALED the scales' half
comes first, and the matrix half is an MAI instruction 64 bits further up. An operand field is written

    name:kind@low+width[/acc]

where bit `acc` says that the register is an AGPR. A modifier is `name@low+width`, several pieces (lowest
first) joined by a comma, `~` in front if signed, `!` if it is kept whatever its value.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class OperandField:
    """Where an operand is encoded. `kind` says how to read the number there (see decode.py)."""

    kind: str
    low: int
    mask: int
    acc_bit: int | None


@dataclass(frozen=True, slots=True)
class ModifierField:
    """Where a modifier is encoded: `pieces` are (low, width), lowest first."""

    name: str
    pieces: tuple[tuple[int, int], ...]
    signed: bool
    always: bool

    def read(self, word: int) -> int:
        """The modifier's value in `word`."""
        value = shift = 0
        for low, width in self.pieces:
            value |= (word >> low & (1 << width) - 1) << shift
            shift += width
        if self.signed and value >> shift - 1:
            value -= 1 << shift
        return value


@dataclass(frozen=True, slots=True)
class Encoding:
    """One format: size in bytes without a literal, the opcode's bits, the fields in LLVM's operand order."""

    name: str
    size: int
    number_low: int
    number_mask: int
    dst: tuple[str, ...]
    src: tuple[str, ...]
    fields: dict[str, OperandField]
    modifiers: tuple[ModifierField, ...]


def _span(text: str) -> tuple[int, int]:
    low, width = text.split("+")
    return int(low), int(width)


def _operand(text: str) -> tuple[str, OperandField]:
    name, _, rest = text.partition(":")
    kind, _, place = rest.partition("@")
    place, _, acc = place.partition("/")
    low, width = _span(place or "0+0")
    return name, OperandField(kind, low, (1 << width) - 1, int(acc) if acc else None)


def _modifier(text: str) -> ModifierField:
    name, _, places = text.partition("@")
    pieces = tuple(_span(place) for place in places.split(","))
    return ModifierField(name.lstrip("~!"), pieces, "~" in name, "!" in name)


_TABLE = """
SOP1 4
    number 8+8
    dst sdst:sgpr@16+7
    src ssrc0:source@0+8
SOP2 4
    number 23+7
    dst sdst:sgpr@16+7
    src ssrc0:source@0+8 ssrc1:source@8+8
SOPC 4
    number 16+7
    src ssrc0:source@0+8 ssrc1:source@8+8
SOPK 4
    number 23+5
    dst sdst:sgpr@16+7
    mods !simm16@0+16
SOPP 4
    number 16+7
    mods !simm16@0+16
SMEM 8
    number 18+8
    dst sdata:sgpr@6+7
    src sdata:sgpr@6+7 sbase:pair@0+6 soffset:smem_soffset@57+7
    mods ~offset@32+21 glc@16+1
VOP1 4
    number 9+8
    dst vdst:vgpr@17+8
    src src0:source@0+9
VOP2 4
    number 25+6
    dst vdst:vgpr@17+8 vcc:vcc
    src src0:source@0+9 src1:vgpr@9+8 vcc:vcc lit:literal
VOPC 4
    number 17+8
    dst vcc:vcc
    src src0:source@0+9 src1:vgpr@9+8
VOP3 8
    number 16+10
    dst vdst:vgpr@0+8
    src src0:source@32+9 src1:source@41+9 src2:source@50+9
    mods abs@8+3 op_sel@11+4 clamp@15+1 omod@59+2 neg@61+3
VOP3B 8
    number 16+10
    dst vdst:vgpr@0+8 sdst:sgpr@8+7
    src src0:source@32+9 src1:source@41+9 src2:source@50+9
    mods clamp@15+1 omod@59+2 neg@61+3
SWAP 8
    number 16+10
    dst vdst:vgpr@0+8
    src src0:source@32+9
    mods fi@11+1 bound_ctrl@12+1
BITOP3 8
    number 16+10
    dst vdst:vgpr@0+8
    src src0:source@32+9 src1:source@41+9 src2:source@50+9
    mods op_sel@11+4 !bitop3@61+3,8+3,59+2
VOP3P 8
    number 16+7
    dst vdst:vgpr@0+8
    src src0:source@32+9 src1:source@41+9 src2:source@50+9
    mods neg_hi@8+3 op_sel@11+3 !op_sel_hi@59+2,14+1 clamp@15+1 neg_lo@61+3
FMA_MIX 8
    number 16+7
    dst vdst:vgpr@0+8
    src src0:source@32+9 src1:source@41+9 src2:source@50+9
    mods abs@8+3 op_sel@11+3 !op_sel_hi@59+2,14+1 clamp@15+1 neg@61+3
MAI 8
    number 16+7
    dst vdst:vgpr@0+8/15
    src src0:matrix@32+9/59 src1:matrix@41+9/60 src2:accumulator@50+9/15 data:source@32+9
    mods cbsz@8+3 abid@11+4 blgp@61+3
MAI_SCALED 16
    number 80+7
    dst vdst:vgpr@64+8/79
    src src0:matrix@96+9/123 src1:matrix@105+9/124 src2:accumulator@114+9/79
    src scale0:matrix@32+9 scale1:matrix@41+9
    mods op_sel@11+2 !op_sel_hi@59+2 cbsz@72+3 blgp@125+3
SDWA_VOP1 8
    number 9+8
    dst vdst:vgpr@17+8
    src src0:sdwa@32+8/55
    mods !dst_sel@40+3 !dst_unused@43+2 clamp@45+1 omod@46+2 !src0_sel@48+3 sext@51+1 neg@52+1 abs@53+1
SDWA_VOP2 8
    number 25+6
    dst vdst:vgpr@17+8 vcc:vcc
    src src0:sdwa@32+8/55 src1:sdwa@9+8/63 vcc:vcc
    mods !dst_sel@40+3 !dst_unused@43+2 clamp@45+1 omod@46+2
    mods !src0_sel@48+3 !src1_sel@56+3 sext@51+1,59+1 neg@52+1,60+1 abs@53+1,61+1
SDWA_VOPC 8
    number 17+8
    dst sdst:sdwa_sdst@40+8
    src src0:sdwa@32+8/55 src1:sdwa@9+8/63
    mods !src0_sel@48+3 !src1_sel@56+3 sext@51+1,59+1 neg@52+1,60+1 abs@53+1,61+1
DPP_VOP1 8
    number 9+8
    dst vdst:vgpr@17+8
    src src0:vgpr@32+8
    mods !dpp_ctrl@40+9 bound_ctrl@51+1 neg@52+1 abs@53+1 !bank_mask@56+4 !row_mask@60+4
DPP_VOP2 8
    number 25+6
    dst vdst:vgpr@17+8 vcc:vcc
    src src0:vgpr@32+8 src1:vgpr@9+8 vcc:vcc
    mods !dpp_ctrl@40+9 bound_ctrl@51+1 neg@52+1,54+1 abs@53+1,55+1 !bank_mask@56+4 !row_mask@60+4
DS 8
    number 17+8
    dst vdst:vgpr@56+8/25
    src addr:vgpr@32+8 data0:vgpr@40+8/25 data1:vgpr@48+8/25 gws:vgpr@32+8/25
    mods offset@0+16 gds@16+1
FLAT 8
    number 18+7
    dst vdst:vgpr@56+8/55
    src vaddr:vgpr@32+8 data:vgpr@40+8/55
    mods offset@0+13 sc0@16+1 nt@17+1 sc1@25+1
GLOBAL 8
    number 18+7
    dst vdst:vgpr@56+8/55
    src vaddr:global_vaddr@32+8 data:vgpr@40+8/55 saddr:global_saddr@48+7
    mods ~offset@0+13 sc0@16+1 nt@17+1 sc1@25+1
SCRATCH 8
    number 18+7
    dst vdst:vgpr@56+8/55
    src vaddr:scratch_vaddr@32+8 data:vgpr@40+8/55 saddr:scratch_saddr@48+7
    mods ~offset@0+13 sc0@16+1 nt@17+1 sc1@25+1
MUBUF 8
    number 18+7
    dst vdata:vgpr@40+8/55
    src vdata:vgpr@40+8/55 vaddr:mubuf_vaddr@32+8 srsrc:quad@48+5 soffset:source@56+8
    mods offset@0+12 offen@12+1 idxen@13+1 sc0@14+1 sc1@15+1 lds@16+1 nt@17+1
"""


def _encoding(name: str, size: int, lines: list[str]) -> Encoding:
    parts: dict[str, list[str]] = {"number": [], "dst": [], "src": [], "mods": []}
    for line in lines:
        key, *items = line.split()
        parts[key] += items
    low, width = _span(parts["number"][0])
    dst, src = ([_operand(text) for text in parts[key]] for key in ("dst", "src"))
    modifiers = tuple(_modifier(text) for text in parts["mods"])
    return Encoding(
        name=name,
        size=size,
        number_low=low,
        number_mask=(1 << width) - 1,
        dst=tuple(operand for operand, _ in dst),
        src=tuple(operand for operand, _ in src),
        fields=dict(dst + src),
        modifiers=modifiers,
    )


def _encodings() -> dict[str, Encoding]:
    lines = _TABLE.strip().splitlines()
    starts = [index for index, line in enumerate(lines) if not line.startswith(" ")] + [len(lines)]
    result = {}
    for start, end in pairwise(starts):
        name, size = lines[start].split()
        result[name] = _encoding(name, int(size), lines[start + 1 : end])
    return result


ENCODINGS = _encodings()

# The top bits of the first dword tell the formats apart: (first bit, value, format), tried in order. The FLAT
# family is told by its segment, bits 14-15.
PREFIXES = (
    (23, 0b101111101, "SOP1"),
    (23, 0b101111110, "SOPC"),
    (23, 0b101111111, "SOPP"),
    (28, 0b1011, "SOPK"),
    (30, 0b10, "SOP2"),
    (26, 0b110000, "SMEM"),
    (25, 0b0111111, "VOP1"),
    (25, 0b0111110, "VOPC"),
    (31, 0b0, "VOP2"),
    (23, 0b110100111, "VOP3P"),
    (26, 0b110100, "VOP3"),
    (26, 0b110110, "DS"),
    (26, 0b110111, "FLAT"),
    (26, 0b111000, "MUBUF"),
)
SEGMENTS = ("FLAT", "SCRATCH", "GLOBAL")
