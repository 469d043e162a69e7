"""The instruction formats of gfx950: which bits hold what (ISA document, "Microcode formats").

Bit 0 is the lowest of the first dword; the second dword starts at bit 32. An operand field is written

    name:kind@low+width[/acc]

where bit `acc` says that the register is an AGPR. A modifier is `name@low+width`, several pieces (lowest
first) joined by a comma, `~` in front if signed, `!` if it is kept whatever its value.
"""

from __future__ import annotations

from dataclasses import dataclass


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


def _encoding(name: str, size: int, number: str, dst: str = "", src: str = "", mods: str = "") -> Encoding:
    low, width = _span(number)
    to, of = ([_operand(text) for text in part.split()] for part in (dst, src))
    modifiers = tuple(_modifier(text) for text in mods.split())
    names = (tuple(name for name, _ in part) for part in (to, of))
    return Encoding(name, size, low, (1 << width) - 1, *names, dict(to + of), modifiers)


_VOP3_SRC = "src0:source@32+9 src1:source@41+9 src2:source@50+9"
_SDWA = "!dst_sel@40+3 !dst_unused@43+2 clamp@45+1 omod@46+2 "
_SDWA_SRC = "!src0_sel@48+3 !src1_sel@56+3 sext@51+1,59+1 neg@52+1,60+1 abs@53+1,61+1"
_FLAT = "sc0@16+1 nt@17+1 sc1@25+1"

ENCODINGS = {
    encoding.name: encoding
    for encoding in (
        _encoding("SOP1", 4, "8+8", "sdst:sgpr@16+7", "ssrc0:source@0+8"),
        _encoding("SOP2", 4, "23+7", "sdst:sgpr@16+7", "ssrc0:source@0+8 ssrc1:source@8+8"),
        _encoding("SOPC", 4, "16+7", "", "ssrc0:source@0+8 ssrc1:source@8+8"),
        _encoding("SOPK", 4, "23+5", "sdst:sgpr@16+7", "", "!simm16@0+16"),
        _encoding("SOPP", 4, "16+7", "", "", "!simm16@0+16"),
        _encoding(
            "SMEM",
            8,
            "18+8",
            "sdata:sgpr@6+7",
            "sdata:sgpr@6+7 sbase:pair@0+6 soffset:smem_soffset@57+7",
            "~offset@32+21 glc@16+1",
        ),
        _encoding("VOP1", 4, "9+8", "vdst:vgpr@17+8 vcc:vcc", "src0:source@0+9"),
        _encoding(
            "VOP2", 4, "25+6", "vdst:vgpr@17+8 vcc:vcc", "src0:source@0+9 src1:vgpr@9+8 vcc:vcc lit:literal"
        ),
        _encoding("VOPC", 4, "17+8", "vcc:vcc", "src0:source@0+9 src1:vgpr@9+8"),
        _encoding(
            "VOP3",
            8,
            "16+10",
            "vdst:vgpr@0+8",
            _VOP3_SRC,
            "abs@8+3 op_sel@11+4 clamp@15+1 omod@59+2 neg@61+3",
        ),
        _encoding(
            "VOP3B", 8, "16+10", "vdst:vgpr@0+8 sdst:sgpr@8+7", _VOP3_SRC, "clamp@15+1 omod@59+2 neg@61+3"
        ),
        _encoding("BITOP3", 8, "16+10", "vdst:vgpr@0+8", _VOP3_SRC, "op_sel@11+4 !bitop3@61+3,59+2,8+3"),
        _encoding(
            "VOP3P",
            8,
            "16+7",
            "vdst:vgpr@0+8",
            _VOP3_SRC,
            "neg_hi@8+3 op_sel@11+3 !op_sel_hi@59+2,14+1 clamp@15+1 neg_lo@61+3",
        ),
        _encoding(
            "MAI",
            8,
            "16+7",
            "vdst:vgpr@0+8/15",
            "src0:source@32+9/59 src1:source@41+9/60 src2:source@50+9/15",
            "cbsz@8+3 abid@11+4 blgp@61+3",
        ),
        # The scales' half comes first, the matrix half is an MAI instruction 64 bits further up.
        _encoding(
            "MAI_SCALED",
            16,
            "80+7",
            "vdst:vgpr@64+8/79",
            "src0:source@96+9/123 src1:source@105+9/124 src2:source@114+9/79 "
            "scale0:source@32+9 scale1:source@41+9",
            "op_sel@11+2 !op_sel_hi@59+2 cbsz@72+3 blgp@125+3",
        ),
        _encoding("SDWA VOP1", 8, "9+8", "vdst:vgpr@17+8 vcc:vcc", "src0:sdwa@32+8/55", _SDWA + _SDWA_SRC),
        _encoding(
            "SDWA VOP2",
            8,
            "25+6",
            "vdst:vgpr@17+8 vcc:vcc",
            "src0:sdwa@32+8/55 src1:sdwa@9+8/63 vcc:vcc",
            _SDWA + _SDWA_SRC,
        ),
        _encoding(
            "SDWA VOPC",
            8,
            "17+8",
            "sdst:sdwa_sdst@40+8",
            "src0:sdwa@32+8/55 src1:sdwa@9+8/63",
            _SDWA_SRC,
        ),
        _encoding(
            "DPP VOP1",
            8,
            "9+8",
            "vdst:vgpr@17+8 vcc:vcc",
            "src0:vgpr@32+8",
            "!dpp_ctrl@40+9 bound_ctrl@51+1 neg@52+1,54+1 abs@53+1,55+1 !bank_mask@56+4 !row_mask@60+4",
        ),
        _encoding(
            "DPP VOP2",
            8,
            "25+6",
            "vdst:vgpr@17+8 vcc:vcc",
            "src0:vgpr@32+8 src1:vgpr@9+8 vcc:vcc",
            "!dpp_ctrl@40+9 bound_ctrl@51+1 neg@52+1,54+1 abs@53+1,55+1 !bank_mask@56+4 !row_mask@60+4",
        ),
        _encoding(
            "DS",
            8,
            "17+8",
            "vdst:vgpr@56+8/25",
            "addr:vgpr@32+8 data0:vgpr@40+8/25 data1:vgpr@48+8/25",
            "offset@0+16 gds@16+1",
        ),
        _encoding(
            "FLAT",
            8,
            "18+7",
            "vdst:vgpr@56+8/55",
            "vaddr:vgpr@32+8 data:vgpr@40+8/55",
            "offset@0+13 " + _FLAT,
        ),
        _encoding(
            "GLOBAL",
            8,
            "18+7",
            "vdst:vgpr@56+8/55",
            "vaddr:global_vaddr@32+8 data:vgpr@40+8/55 saddr:global_saddr@48+7",
            "~offset@0+13 " + _FLAT,
        ),
        _encoding(
            "SCRATCH",
            8,
            "18+7",
            "vdst:vgpr@56+8/55",
            "vaddr:scratch_vaddr@32+8 data:vgpr@40+8/55 saddr:scratch_saddr@48+7",
            "~offset@0+13 " + _FLAT,
        ),
        _encoding(
            "MUBUF",
            8,
            "18+7",
            "vdata:vgpr@40+8/55",
            "vdata:vgpr@40+8/55 vaddr:mubuf_vaddr@32+8 srsrc:quad@48+5 soffset:source@56+8",
            "offset@0+12 offen@12+1 idxen@13+1 sc0@14+1 sc1@15+1 lds@16+1 nt@17+1",
        ),
    )
}

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
