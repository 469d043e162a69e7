"""Machine code to `Instruction`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

from flycc.emulator.errors import UnknownInstruction
from flycc.emulator.isa.encodings import ENCODINGS, PREFIXES, SEGMENTS, OperandField
from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.isa.opcodes import OPCODES, Opcode
from flycc.emulator.isa.operands import OperandType, inline_constant, literal_constant

_SDWA, _DPP, _LITERAL, _OFF = 249, 250, 255, 0x7F
_SCALED = 0x2C  # the VOP3P number of a scaled MFMA's first half
_SPECIAL = frozenset((*range(235, 240), *range(251, 255)))
_VCC = Operand(OperandKind.SGPR, 106, 2)
_FILES = {file.value: file for file in (OperandKind.VGPR, OperandKind.AGPR, OperandKind.SGPR)}
_ABSENT = Operand(OperandKind.OFF, 0, 0)
_TWO_OFFSETS = re.compile(r"(read|write|wrxchg)2")
# Beside quad_perm (below 0x100): row shifts and rotates, row_newbcast, wave shifts, mirrors, broadcasts.
_DPP_CONTROLS = frozenset(
    (
        *range(0x101, 0x110),
        *range(0x111, 0x120),
        *range(0x121, 0x130),
        *range(0x150, 0x160),
        *(0x130, 0x134, 0x138, 0x13C, 0x140, 0x141, 0x142, 0x143),
    )
)
_BRANCHES = frozenset(
    opcode.name
    for opcode in OPCODES.values()
    if opcode.name.startswith(("s_branch", "s_cbranch", "s_call")) and opcode.encoding in ("SOPP", "SOPK")
)


class _Invalid(Exception):
    """Why the word at hand is no instruction; `decode` adds address and words."""


def _vector(index: int, count: int, file: OperandKind = OperandKind.VGPR) -> Operand:
    if index + count > 256:
        raise _Invalid(f"register {file.value}[{index}:{index + count - 1}] is beyond {file.value}255")
    return Operand(file, index, count)


@cache
def _scalar(index: int, count: int) -> Operand:
    """An SGPR tuple, aligned, inside one of: general registers, trap temporaries (108..123), the rest."""
    last = index + count - 1
    if index % min(count, 4) or (count > 1 and any(index < edge <= last for edge in (102, 108, 124))):
        raise _Invalid(f"s[{index}:{last}] is misaligned or leaves its group of registers")
    if index == 125 or last > 127:
        raise _Invalid(f"scalar register number {index} is reserved")
    return Operand(OperandKind.SGPR, index, count)


def _file(field: OperandField, kind: OperandType, word: int) -> OperandKind:
    if kind.file is not None:
        return _FILES[kind.file]
    acc = field.acc_bit is not None and word >> field.acc_bit & 1
    return OperandKind.AGPR if acc else OperandKind.VGPR


def _vgpr(code: int, kind: OperandType, field: OperandField, word: int) -> Operand:
    file = _file(field, kind, word)
    if file is OperandKind.SGPR or kind.element == "mask":
        return _scalar(code, kind.count)
    return _vector(code, kind.count, file)


def _source(code: int, kind: OperandType, field: OperandField, word: int) -> Operand:
    if kind.element == "raw":
        return Operand(OperandKind.CONST, 0, 1, code)
    if code >= 256 and kind.file != "s":
        return _vector(code - 256, _matrix_count(kind, word), _file(field, kind, word))
    if kind.file in ("a", "v"):
        raise _Invalid(f"source {code} is not a vector register")
    if code < 128:
        return _scalar(code, kind.count)
    if code in _SPECIAL:
        return Operand(OperandKind.SPECIAL, code, kind.count)
    if code == _LITERAL:
        return Operand(OperandKind.CONST, code, kind.count, literal_constant(word >> 32, kind))
    value = inline_constant(code, kind)
    if value is None:
        raise _Invalid(f"source {code} is reserved")
    return Operand(OperandKind.CONST, code, kind.count, value)


def _matrix_count(kind: OperandType, word: int) -> int:
    """Dwords of a source: those of an f8f6f4 matrix follow from its format, cbsz for A and blgp for B."""
    if kind.element not in ("mxa", "mxb"):
        return kind.count
    half = 64 if word >> 64 else 0
    selector = word >> half + (8 if kind.element == "mxa" else 61) & 7
    if selector > 4:
        raise _Invalid(f"matrix format {selector} is reserved")
    return (8, 8, 6, 6, 4)[selector]


def _matrix(code: int, kind: OperandType, field: OperandField, word: int) -> Operand:
    if code < 256:
        raise _Invalid(f"matrix source {code} is not a vector register")
    return _source(code, kind, field, word)


def _accumulator(code: int, kind: OperandType, field: OperandField, word: int) -> Operand:
    if code < 256 and inline_constant(code, kind) is None:
        raise _Invalid(f"accumulator source {code} is neither a vector register nor an inline constant")
    return _source(code, kind, field, word)


def _sdwa(code: int, kind: OperandType, field: OperandField, word: int) -> Operand:
    assert field.acc_bit is not None  # here the bit says that the source is scalar
    if not word >> field.acc_bit & 1:
        return _vector(code, kind.count)
    if code == _LITERAL:
        raise _Invalid("an SDWA source cannot be a literal")
    return _source(code, kind, field, word)


def _sdwa_sdst(code: int, kind: OperandType, field: OperandField, word: int) -> Operand:
    return _scalar(code & 0x7F, kind.count) if code >> 7 else _VCC


def _smem_soffset(code: int, kind: OperandType, field: OperandField, word: int) -> Operand:
    if word >> 14 & 1:
        return _scalar(code, 1)
    return _ABSENT if word >> 17 & 1 else _scalar(word >> 32 & 0x7F, 1)


def _global_vaddr(code: int, kind: OperandType, field: OperandField, word: int) -> Operand:
    return _vector(code, 2 if word >> 48 & 0x7F == _OFF else 1)


def _global_saddr(code: int, kind: OperandType, field: OperandField, word: int) -> Operand:
    return _ABSENT if code == _OFF else _scalar(code, 2)


def _scratch_vaddr(code: int, kind: OperandType, field: OperandField, word: int) -> Operand:
    return _vector(code, 1) if word >> 13 & 1 else _ABSENT


def _scratch_saddr(code: int, kind: OperandType, field: OperandField, word: int) -> Operand:
    return _ABSENT if code == _OFF else _scalar(code, 1)


def _mubuf_vaddr(code: int, kind: OperandType, field: OperandField, word: int) -> Operand:
    count = (word >> 12 & 1) + (word >> 13 & 1)
    return _vector(code, count) if count else _ABSENT


_READERS: dict[str, Callable[[int, OperandType, OperandField, int], Operand]] = {
    "vgpr": _vgpr,
    "source": _source,
    "matrix": _matrix,
    "accumulator": _accumulator,
    "sgpr": lambda code, kind, field, word: _scalar(code, kind.count),
    "pair": lambda code, kind, field, word: _scalar(code * 2, kind.count),
    "quad": lambda code, kind, field, word: _scalar(code * 4, kind.count),
    "vcc": lambda code, kind, field, word: _VCC,
    "literal": lambda code, kind, field, word: _source(_LITERAL, kind, field, word),
    "sdwa": _sdwa,
    "sdwa_sdst": _sdwa_sdst,
    "smem_soffset": _smem_soffset,
    "global_vaddr": _global_vaddr,
    "global_saddr": _global_saddr,
    "scratch_vaddr": _scratch_vaddr,
    "scratch_saddr": _scratch_saddr,
    "mubuf_vaddr": _mubuf_vaddr,
}
_Slot = tuple[OperandField, OperandType]


@cache
def _slots(layout: str, is_dst: bool, types: tuple[OperandType | None, ...]) -> tuple[_Slot, ...]:
    """Pair an opcode's types with the encoding's fields, by position or by the name a type carries."""
    encoding = ENCODINGS[layout]
    names = encoding.dst if is_dst else encoding.src
    return tuple(
        (encoding.fields[kind.field or names[index]], kind)
        for index, kind in enumerate(types)
        if kind is not None
    )


def _read(slots: tuple[_Slot, ...], word: int) -> list[Operand]:
    return [_READERS[field.kind](word >> field.low & field.mask, kind, field, word) for field, kind in slots]


_FORMATS = tuple(
    next((name for low, value, name in PREFIXES if (top << 23) >> low == value), None) for top in range(512)
)


def _layout(opcode: Opcode) -> str:
    """The format of an opcode where it is not the encoding's own."""
    if opcode.encoding == "VOP3":
        if "bitop3" in opcode.name:
            return "BITOP3"
        if len(opcode.dst) == 2 and opcode.dst[1] is not None and opcode.dst[1].element == "mask":
            return "VOP3B"
        if opcode.name.endswith("_swap_b32"):
            return "SWAP"
    if "_fma_mix" in opcode.name:
        return "FMA_MIX"
    return opcode.encoding


def _identify(first: int, word: int) -> tuple[Opcode, str, str]:
    """The opcode, its layout in ENCODINGS, and the name of its encoding."""
    name = _FORMATS[first >> 23]
    if name is None:
        raise _Invalid("no format has this prefix")
    if name == "FLAT":
        segment = first >> 14 & 3
        if segment == 3:
            raise _Invalid("memory segment 3 is reserved")
        name = SEGMENTS[segment]
    encoding = ENCODINGS[name]
    number = first >> encoding.number_low & encoding.number_mask
    opcode = OPCODES.get((name, number))
    if name == "VOP3P" and opcode is None:
        if number == _SCALED:
            return _identify_scaled(word)
        name, opcode = "MAI", OPCODES.get(("MAI", number))
    if opcode is None:
        raise _Invalid(f"{name} has no opcode {number}")
    if name in ("VOP1", "VOP2", "VOPC"):
        for extra, flag, code in (("SDWA", "nosdwa", _SDWA), ("DPP", "nodpp", _DPP)):
            if first & 0x1FF == code:
                layout = f"{extra}_{name}"
                if layout not in ENCODINGS or opcode.flags & {"e32", flag}:
                    raise _Invalid(f"{opcode.name} has no {extra} form")
                return opcode, layout, extra
    return opcode, _layout(opcode), name


def _identify_scaled(word: int) -> tuple[Opcode, str, str]:
    encoding = ENCODINGS["MAI_SCALED"]
    opcode = OPCODES.get(("MAI", word >> encoding.number_low & encoding.number_mask))
    matrix = word >> 64 + 23 & 0x1FF
    if (
        matrix != 0b110100111
        or word >> 64 + 11 & 15 != 1
        or opcode is None
        or not opcode.name.endswith("f8f6f4")
    ):
        raise _Invalid("the scales of a matrix instruction are not followed by one that takes them")
    return _scaled(opcode), "MAI_SCALED", "MAI_SCALED"


@cache
def _scaled(opcode: Opcode) -> Opcode:
    name = opcode.name.replace("v_mfma_", "v_mfma_scale_")
    scale = OperandType("u32", 1)
    return Opcode(opcode.number, name, "MAI_SCALED", opcode.dst, (*opcode.src, scale, scale))


def decode(data: bytes | memoryview, address: int = 0) -> Instruction:
    """Decode the instruction at the start of `data` (at most 16 bytes of it are looked at).

    `address` is its virtual address in bytes; branch targets and errors are in the same space. Raises
    UnknownInstruction.
    """
    chunk = bytes(data[:16])
    word = int.from_bytes(chunk, "little")
    try:
        if len(chunk) < 4:
            raise _Invalid("the code ends here")
        instruction = _decode(word, address)
        if instruction.size > len(chunk):
            raise _Invalid("the code ends inside it")
    except _Invalid as reason:
        words = [int.from_bytes(chunk[at : at + 4], "little") for at in range(0, len(chunk) - 3, 4)]
        raise UnknownInstruction(address, words, str(reason)) from None
    return instruction


def _decode(word: int, address: int) -> Instruction:
    opcode, layout, name = _identify(word & 0xFFFFFFFF, word)
    encoding = ENCODINGS[layout]
    if encoding.size < 16:
        word &= (1 << 64) - 1
    dst = _read(_slots(layout, True, opcode.dst), word)
    src = _read(_slots(layout, False, opcode.src), word)
    mods = {}
    for modifier in encoding.modifiers:
        value = modifier.read(word)
        if modifier.name in ("neg", "abs"):
            value &= _float_sources(opcode, name)
        if value or modifier.always:
            mods[modifier.name] = value
    if name in _ADJUST:
        _ADJUST[name](opcode, word, mods)
    if ("atomic" in opcode.flags and not mods.keys() & {"sc0", "glc"}) or "lds" in mods:
        dst = []
    size = encoding.size
    if any(operand.kind is OperandKind.CONST and operand.index == _LITERAL for operand in src):
        if size != 4:
            raise _Invalid(f"{name} takes no literal")
        size = 8
    if name in ("SOPP", "SOPK"):
        size += _control(opcode, word, address, mods)
    return Instruction(address, size, opcode.name, name, tuple(dst), tuple(src), mods)


def _control(opcode: Opcode, word: int, address: int, mods: dict[str, int]) -> int:
    """SOPP and SOPK: branch targets and the one extra literal, whose size in bytes is returned."""
    if opcode.name in _BRANCHES:
        distance = mods.pop("simm16")
        mods["target"] = address + 4 + 4 * (distance - (distance >> 15 << 16))
    elif opcode.name == "s_setreg_imm32_b32":
        mods["imm"] = word >> 32
        return 4
    return 0


def _smem(opcode: Opcode, word: int, mods: dict[str, int]) -> None:
    if not word >> 17 & 1:
        mods.pop("offset", None)
    elif word >> 14 & 1:
        mods.setdefault("offset", 0)


def _vop3(opcode: Opcode, word: int, mods: dict[str, int]) -> None:
    if not opcode.flags & {"opsel", "opsel4"} and "bitop3" not in mods:
        mods.pop("op_sel", None)


def _mai(opcode: Opcode, word: int, mods: dict[str, int]) -> None:
    if "accvgpr" in opcode.name:
        mods.clear()


def _sdwa_form(opcode: Opcode, word: int, mods: dict[str, int]) -> None:
    if "nodstsel" in opcode.flags:
        del mods["dst_sel"], mods["dst_unused"]
    if mods.get("dst_unused") == 3 or any(mods.get(key) == 7 for key in ("dst_sel", "src0_sel", "src1_sel")):
        raise _Invalid("a reserved SDWA select")


def _dpp_form(opcode: Opcode, word: int, mods: dict[str, int]) -> None:
    control = mods["dpp_ctrl"]
    if control >= 0x100 and control not in _DPP_CONTROLS:
        raise _Invalid(f"DPP control {control:#x} is reserved")
    double = any(kind and kind.count == 2 and kind.element != "mask" for kind in opcode.dst + opcode.src)
    if double and control >> 4 != 0x15:
        raise _Invalid("DPP of a 64-bit operation is only row_newbcast")


def _ds(opcode: Opcode, word: int, mods: dict[str, int]) -> None:
    if "gws" not in opcode.name:
        mods.pop("gds", None)
    if _TWO_OFFSETS.search(opcode.name):
        offset = mods.pop("offset", 0)
        halves = {"offset0": offset & 255, "offset1": offset >> 8}
        mods.update({name: value for name, value in halves.items() if value})


def _mubuf(opcode: Opcode, word: int, mods: dict[str, int]) -> None:
    if "lds" in mods and "lds" not in opcode.flags:
        raise _Invalid(f"{opcode.name} cannot load to LDS")
    if "cache" in opcode.flags:
        for name in ("offset", "nt"):
            mods.pop(name, None)


# What the formats' modifiers mean for single opcodes: changes them in place, or raises _Invalid.
_ADJUST: dict[str, Callable[[Opcode, int, dict[str, int]], None]] = {
    "SMEM": _smem,
    "VOP3": _vop3,
    "MAI": _mai,
    "SDWA": _sdwa_form,
    "DPP": _dpp_form,
    "DS": _ds,
    "MUBUF": _mubuf,
}


@cache
def _float_sources(opcode: Opcode, encoding: str) -> int:
    """Bit i is set if source i is of a type that `neg` and `abs` apply to (with SDWA not to a packed one)."""
    floats = ("f16", "f32", "f64", "bf16")
    return sum(
        1 << index
        for index, kind in enumerate(opcode.src)
        if kind and kind.element in floats and (kind.repeat == 1 or encoding != "SDWA")
    )


def decode_range(data: bytes | memoryview, address: int, end: int | None = None) -> Iterator[Instruction]:
    """Decode `data`, which starts at virtual address `address`, one instruction after another up to `end`."""
    view = memoryview(data)
    stop = len(view) if end is None else min(len(view), end - address)
    at = 0
    while at < stop:
        instruction = decode(view[at : at + 16], address + at)
        yield instruction
        at += instruction.size
