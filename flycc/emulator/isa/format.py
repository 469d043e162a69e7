"""`Instruction` to text, as LLVM's disassembler spells it."""

from __future__ import annotations

import re
from collections.abc import Callable

from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.isa.opcodes import OPCODES
from flycc.emulator.isa.operands import OperandType, inline_constant

_OP_SEL_4 = frozenset(opcode.name for opcode in OPCODES.values() if "opsel4" in opcode.flags)
_E32_ONLY = frozenset(opcode.name for opcode in OPCODES.values() if "e32" in opcode.flags)
_HAS_E64 = frozenset(opcode.name for opcode in OPCODES.values() if "e64" in opcode.flags)

_INT16 = re.compile(r"^v_(?!.*pk_|dot|sad_).*_[iub]16$")  # instructions with lone 16-bit integer sources
_SGPR_NAMES = {102: "flat_scratch", 104: "xnack_mask", 106: "vcc", 126: "exec"}
_SPECIAL_NAMES = {
    235: "src_shared_base",
    236: "src_shared_limit",
    237: "src_private_base",
    238: "src_private_limit",
    239: "src_pops_exiting_wave_id",
    251: "src_vccz",
    252: "src_execz",
    253: "src_scc",
    254: "src_lds_direct",
}
_FLOATS = {
    240: "0.5", 241: "-0.5", 242: "1.0", 243: "-1.0", 244: "2.0", 245: "-2.0", 246: "4.0", 247: "-4.0",
    248: "0.15915494",
}  # fmt: skip
_HWREGS = {
    1: "HW_REG_MODE", 2: "HW_REG_STATUS", 3: "HW_REG_TRAPSTS", 4: "HW_REG_HW_ID", 5: "HW_REG_GPR_ALLOC",
    6: "HW_REG_LDS_ALLOC", 7: "HW_REG_IB_STS", 15: "HW_REG_SH_MEM_BASES", 16: "HW_REG_TBA_LO",
    17: "HW_REG_TBA_HI", 18: "HW_REG_TMA_LO", 19: "HW_REG_TMA_HI", 20: "HW_REG_XCC_ID",
    21: "HW_REG_SQ_PERF_SNAPSHOT_DATA", 22: "HW_REG_SQ_PERF_SNAPSHOT_DATA1",
    23: "HW_REG_SQ_PERF_SNAPSHOT_PC_LO", 24: "HW_REG_SQ_PERF_SNAPSHOT_PC_HI",
}  # fmt: skip
_MESSAGES = {
    1: "MSG_INTERRUPT", 4: "MSG_SAVEWAVE", 5: "MSG_STALL_WAVE_GEN", 6: "MSG_HALT_WAVES",
    7: "MSG_ORDERED_PS_DONE", 8: "MSG_EARLY_PRIM_DEALLOC", 9: "MSG_GS_ALLOC_REQ", 10: "MSG_GET_DOORBELL",
}  # fmt: skip
# Literals with these values are marked, since assembling them plainly would give an inline constant.
_INLINE = frozenset(inline_constant(code, OperandType("b32", 1)) for code in range(128, 249))
_NO_IMMEDIATE = frozenset(
    (
        *("s_barrier", "s_wakeup", "s_icache_inv", "s_ttracedata", "s_set_gpr_idx_off"),
        *("s_endpgm_saved", "s_endpgm_ordered_ps_done"),
    )
)
_ALWAYS_LITERAL = ("v_fmamk", "v_fmaak", "v_madmk", "v_madak")
_SELECTS = ("BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD")
_UNUSED = ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE")
_OMOD = ("", "mul:2", "mul:4", "div:2")


def format_instruction(inst: Instruction) -> str:
    """The instruction as LLVM prints it: `v_add_u32_e32 v2, 1, v2`."""
    operands, modifiers = _FORMATTERS.get(inst.encoding, _plain)(inst)
    text = " ".join([_mnemonic(inst), ", ".join(operands), *modifiers])
    return " ".join(text.split())


def _mnemonic(inst: Instruction) -> str:
    if inst.encoding in ("SDWA", "DPP"):
        return f"{inst.name}_{inst.encoding.lower()}"
    if inst.encoding in ("VOP1", "VOP2", "VOPC") and inst.name not in _E32_ONLY:
        return inst.name + "_e32"
    if inst.encoding == "VOP3" and inst.name in _HAS_E64:
        return inst.name + "_e64"
    return inst.name


def _operand(operand: Operand, as_bits: bool = False) -> str:
    """`as_bits`: print a float constant by its bits, as LLVM does where a 16-bit integer is wanted."""
    kind, index, count = operand.kind, operand.index, operand.count
    if kind is OperandKind.OFF:
        return "off"
    if kind is OperandKind.SPECIAL:
        return _SPECIAL_NAMES[index]
    if kind is OperandKind.CONST:
        return _constant(operand, as_bits)
    file = kind.value
    if kind is OperandKind.SGPR:
        if index == 124:
            return "m0"
        base = index & ~1
        if base in _SGPR_NAMES:
            return _SGPR_NAMES[base] + ("" if count == 2 else ("_lo", "_hi")[index & 1])
        if index >= 108:
            file, index = "ttmp", index - 108
    return f"{file}{index}" if count == 1 else f"{file}[{index}:{index + count - 1}]"


def _constant(operand: Operand, as_bits: bool) -> str:
    code = operand.index
    if 128 <= code <= 208:
        return str(code - 128 if code <= 192 else 192 - code)
    if code == 248 and operand.value >> 32:
        return "0.15915494309189532"
    if code in _FLOATS and not as_bits:
        return _FLOATS[code]
    value = operand.value >> 32 if operand.value & 0xFFFFFFFF == 0 else operand.value & 0xFFFFFFFF
    return f"lit({value:#x})" if operand.value in _INLINE else f"{value:#x}"


def _as_bits(inst: Instruction, source: int) -> bool:
    # v_mad_i32_i16 and v_mad_u32_u16 add to a third source of 32 bits.
    return _INT16.search(inst.name) is not None and not (
        source == 2 and inst.name.startswith("v_mad_") and "32" in inst.name
    )


def _plain(inst: Instruction) -> tuple[list[str], list[str]]:
    operands = [_operand(operand) for operand in inst.dst]
    operands += [_operand(operand, _as_bits(inst, index)) for index, operand in enumerate(inst.src)]
    if inst.name.startswith(_ALWAYS_LITERAL):
        operands = [text.removeprefix("lit(").removesuffix(")") for text in operands]
    return operands, []


def _bits(value: int, count: int) -> str:
    return "[" + ",".join(str(value >> bit & 1) for bit in range(count)) + "]"


def _flags(inst: Instruction, *names: str) -> list[str]:
    return [name for name in names if inst.mods.get(name)]


def _offset(inst: Instruction) -> list[str]:
    return [f"{name}:{inst.mods[name]}" for name in ("offset", "offset0", "offset1") if name in inst.mods]


def _sopp(inst: Instruction) -> tuple[list[str], list[str]]:
    if "target" in inst.mods:
        return [str((inst.mods["target"] - inst.address - 4) // 4 & 0xFFFF)], []
    value = inst.mods["simm16"]
    if inst.name == "s_waitcnt":
        return [], _waitcnt(value)
    if inst.name in _NO_IMMEDIATE or (inst.name == "s_endpgm" and not value):
        return [], []
    if inst.name.startswith("s_sendmsg"):
        return [f"sendmsg({_MESSAGES[value]})" if value in _MESSAGES else str(value)], []
    if inst.name == "s_set_gpr_idx_mode":
        return [_gpr_idx(value)], []
    return [str(value) if inst.name == "s_endpgm" else _number(value)], []


def _number(value: int) -> str:
    """A field as LLVM prints it: what could be an inline constant in decimal."""
    return str(value) if value <= 64 else f"{value:#x}"


def _hex(value: int) -> str:
    return str(value) if value < 10 else f"{value:#x}"


def _gpr_idx(mask: int) -> str:
    if mask >> 4:
        return f"{mask:#x}"
    names = ("SRC0", "SRC1", "SRC2", "DST")
    return f"gpr_idx({','.join(name for bit, name in enumerate(names) if mask >> bit & 1)})"


def _sopc(inst: Instruction) -> tuple[list[str], list[str]]:
    operands, _ = _plain(inst)
    if inst.name == "s_set_gpr_idx_on":
        operands[1] = _gpr_idx(inst.src[1].value)
    return operands, []


def _waitcnt(value: int) -> list[str]:
    counters = (
        ("vmcnt", value & 15 | value >> 14 << 4, 63),
        ("expcnt", value >> 4 & 7, 7),
        ("lgkmcnt", value >> 8 & 15, 15),
    )
    everything = all(count == most for _, count, most in counters)
    return [f"{name}({count})" for name, count, most in counters if everything or count != most]


def _sopk(inst: Instruction) -> tuple[list[str], list[str]]:
    operands, _ = _plain(inst)
    if "target" in inst.mods:
        return [*operands, *_sopp(inst)[0]], []
    value = inst.mods["simm16"]
    if "etreg" not in inst.name:
        return [*operands, f"{value:#x}"], []
    register, first, size = value & 63, value >> 6 & 31, (value >> 11) + 1
    name = _HWREGS.get(register, str(register))
    field = f"hwreg({name})" if (first, size) == (0, 32) else f"hwreg({name}, {first}, {size})"
    if "imm" in inst.mods:
        operands = [f"{inst.mods['imm']:#x}"]
    return ([*operands, field] if inst.name == "s_getreg_b32" else [field, *operands]), []


def _smem(inst: Instruction) -> tuple[list[str], list[str]]:
    operands = [*(inst.dst if not _reads_data(inst) else ()), *inst.src]
    offset = inst.mods.get("offset", 0)
    text = [_operand(operand) for operand in operands if operand.kind is not OperandKind.OFF]
    extra = []
    if inst.src and inst.src[-1].kind is OperandKind.OFF:
        text.append(f"{offset:#x}")
    elif "offset" in inst.mods:
        extra = [f"offset:{offset:#x}"]
    return text, extra + (_flags(inst, "glc") if (inst.dst and inst.src) or len(inst.src) == 3 else [])


def _reads_data(inst: Instruction) -> bool:
    """Whether a destination is the data operand as well, which LLVM prints once."""
    return "atomic" in inst.name and bool(inst.dst) and inst.encoding in ("SMEM", "MUBUF")


def _vop3(inst: Instruction) -> tuple[list[str], list[str]]:
    operands = [_operand(operand) for operand in inst.dst]
    operands += [_modified(inst, index, operand) for index, operand in enumerate(inst.src)]
    modifiers = []
    if "bitop3" in inst.mods:
        table = inst.mods["bitop3"]
        modifiers.append(f"bitop3:{_hex(table)}" if table else "")
    if "op_sel" in inst.mods:
        modifiers.append("op_sel:" + _bits_with_dst(inst))
    if inst.name.endswith("_swap_b32"):
        modifiers += [f"{name}:1" for name in _flags(inst, "bound_ctrl", "fi")]
    return operands, [*modifiers, *_flags(inst, "clamp"), _OMOD[inst.mods.get("omod", 0)]]


def _bits_with_dst(inst: Instruction) -> str:
    selected, sources = inst.mods["op_sel"], len(inst.src)
    if inst.name in _OP_SEL_4:
        return _bits(selected, 4)
    return _bits(selected & (1 << sources) - 1 | selected >> 3 << sources, sources + 1)


def _modified(inst: Instruction, index: int, operand: Operand) -> str:
    text = _operand(operand, _as_bits(inst, index))
    if inst.mods.get("sext", 0) >> index & 1:
        text = f"sext({text})"
    if inst.mods.get("abs", 0) >> index & 1:
        text = f"|{text}|"
    if inst.mods.get("neg", 0) >> index & 1:
        bare = operand.kind is OperandKind.CONST and "|" not in text
        text = f"neg({text})" if bare else f"-{text}"
    return text


def _vop3p(inst: Instruction) -> tuple[list[str], list[str]]:
    operands, _ = _vop3(inst) if "_fma_mix" in inst.name else _plain(inst)
    count = len(inst.src)
    every = (1 << count) - 1
    modifiers = []
    selected, selected_hi = inst.mods.get("op_sel", 0), inst.mods["op_sel_hi"] & every
    if selected:
        modifiers.append("op_sel:" + _bits(selected, count))
    if not inst.name.startswith(("v_dot4", "v_dot8")) and selected_hi != (
        0 if "_mix" in inst.name else every
    ):
        modifiers.append("op_sel_hi:" + _bits(selected_hi, count))
    modifiers += [
        f"{name}:{_bits(inst.mods[name], count)}" for name in ("neg_lo", "neg_hi") if name in inst.mods
    ]
    return operands, modifiers + _flags(inst, "clamp")


def _mai(inst: Instruction) -> tuple[list[str], list[str]]:
    operands, _ = _plain(inst)
    modifiers = []
    if inst.encoding == "MAI_SCALED":
        if "op_sel" in inst.mods:
            modifiers.append("op_sel:" + _bits(inst.mods["op_sel"], 3))
        modifiers.append("op_sel_hi:" + _bits(inst.mods["op_sel_hi"], 3))
    for name in ("cbsz", "abid", "blgp"):
        if name in inst.mods:
            negate = name == "blgp" and "f64" in inst.name
            modifiers.append("neg:" + _bits(inst.mods[name], 3) if negate else f"{name}:{inst.mods[name]}")
    return operands, modifiers


def _sdwa(inst: Instruction) -> tuple[list[str], list[str]]:
    operands, modifiers = _vop3(inst)
    for name, names in (
        ("dst_sel", _SELECTS),
        ("dst_unused", _UNUSED),
        ("src0_sel", _SELECTS),
        ("src1_sel", _SELECTS),
    ):
        if name in inst.mods:
            value = inst.mods[name]
            modifiers.append(f"{name}:{names[value] if value < len(names) else value}")
    return operands, modifiers


_DPP_SHIFTS = {
    0x10: "row_shl", 0x11: "row_shr", 0x12: "row_ror", 0x15: "row_newbcast",
}  # fmt: skip
_DPP_FIXED = {
    0x130: "wave_shl:1", 0x134: "wave_rol:1", 0x138: "wave_shr:1", 0x13C: "wave_ror:1", 0x140: "row_mirror",
    0x141: "row_half_mirror", 0x142: "row_bcast:15", 0x143: "row_bcast:31",
}  # fmt: skip


def _dpp(inst: Instruction) -> tuple[list[str], list[str]]:
    operands, _ = _vop3(inst)
    control = inst.mods["dpp_ctrl"]
    if control < 0x100:
        move = "quad_perm:[" + ",".join(str(control >> 2 * lane & 3) for lane in range(4)) + "]"
    elif control in _DPP_FIXED:
        move = _DPP_FIXED[control]
    else:
        move = f"{_DPP_SHIFTS.get(control >> 4, 'unknown')}:{control & 15}"
    masks = [f"{name}:{inst.mods[name]:#x}" for name in ("row_mask", "bank_mask")]
    return operands, [move, *masks, *(["bound_ctrl:1"] if "bound_ctrl" in inst.mods else [])]


def _ds(inst: Instruction) -> tuple[list[str], list[str]]:
    operands, _ = _plain(inst)
    if inst.name == "ds_swizzle_b32":
        return operands, [f"offset:{_swizzle(inst.mods['offset'])}"] if "offset" in inst.mods else []
    return operands, _offset(inst) + _flags(inst, "gds")


def _swizzle(offset: int) -> str:
    if offset >> 8 == 0x80:
        return f"swizzle(QUAD_PERM,{','.join(str(offset >> 2 * lane & 3) for lane in range(4))})"
    if offset >= 0xE000:
        return f"swizzle(FFT,{offset & 31})"
    if offset >= 0xC000:
        return f"swizzle(ROTATE,{offset >> 10 & 1},{offset >> 5 & 31})"
    if offset >> 15:
        return str(offset)
    and_mask, or_mask, xor_mask = offset & 31, offset >> 5 & 31, offset >> 10
    if and_mask == 31 and not or_mask and xor_mask.bit_count() == 1:
        return f"swizzle(SWAP,{xor_mask})"
    if and_mask == 31 and not or_mask and xor_mask and not xor_mask & xor_mask + 1:
        return f"swizzle(REVERSE,{xor_mask + 1})"
    group = 32 - and_mask
    if group > 1 and not group & group - 1 and or_mask < group and not xor_mask:
        return f"swizzle(BROADCAST,{group},{or_mask})"
    from_zero, from_ones = or_mask ^ xor_mask, (and_mask | or_mask) ^ xor_mask
    letters = {(0, 0): "0", (1, 1): "1", (0, 1): "p", (1, 0): "i"}
    pattern = "".join(letters[from_zero >> bit & 1, from_ones >> bit & 1] for bit in (4, 3, 2, 1, 0))
    return f'swizzle(BITMASK_PERM,"{pattern}")'


def _flat(inst: Instruction) -> tuple[list[str], list[str]]:
    return _plain(inst)[0], _offset(inst) + _flags(inst, "sc0", "nt", "sc1")


def _mubuf(inst: Instruction) -> tuple[list[str], list[str]]:
    operands = [_operand(operand) for operand in (*(() if _reads_data(inst) else inst.dst), *inst.src)]
    modifiers = [*_flags(inst, "idxen", "offen"), *_offset(inst), *_flags(inst, "sc0", "nt", "sc1", "lds")]
    return operands, modifiers


_FORMATTERS: dict[str, Callable[[Instruction], tuple[list[str], list[str]]]] = {
    "SOPC": _sopc,
    "SOPP": _sopp,
    "SOPK": _sopk,
    "SMEM": _smem,
    "VOP3": _vop3,
    "VOP3P": _vop3p,
    "MAI": _mai,
    "MAI_SCALED": _mai,
    "SDWA": _sdwa,
    "DPP": _dpp,
    "DS": _ds,
    "FLAT": _flat,
    "GLOBAL": _flat,
    "SCRATCH": _flat,
    "MUBUF": _mubuf,
}
