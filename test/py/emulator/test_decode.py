"""The decoder against LLVM: recorded forms everywhere, fresh ones where LLVM 22 is installed."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from harness import SEED
from hypothesis import given, settings
from hypothesis import strategies as st
from llvm import assemble, disassemble, dump, needs_llvm

from flycc.codegen import compile_kernel
from flycc.contracts import GemmProblem
from flycc.emulator.elf import CodeObject
from flycc.emulator.errors import UnknownInstruction
from flycc.emulator.isa.decode import decode, decode_range
from flycc.emulator.isa.format import format_instruction
from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.isa.opcodes import OPCODES
from flycc.emulator.isa.operands import inline_constant, literal_constant, parse_type
from flycc.kernels import gemm

FORMS = Path(__file__).parent / "data" / "gfx950_forms.txt"


def pack(words: list[int]) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


def recorded() -> list[tuple[list[int], str]]:
    """(words, LLVM's text) of the recorded forms: every opcode in every encoding it has, random operands."""
    lines = (line.split(" | ") for line in FORMS.read_text().splitlines())
    return [([int(word, 16) for word in words.split()], text) for words, text in lines]


def explain(encodings: list[list[int]], expected: list[str], actual: list[str]) -> str:
    rows = zip(encodings, expected, actual, strict=True)
    wrong = [(" ".join(f"{w:08x}" for w in words), want, got) for words, want, got in rows if want != got]
    return f"{len(wrong)} differ:\n" + "\n".join(f"{w}\n  LLVM {a}\n  ours {b}" for w, a, b in wrong[:20])


def test_recorded_forms_decode_to_llvms_text() -> None:
    forms = recorded()
    ours = []
    for words, _ in forms:
        inst = decode(pack(words), 0x1000)
        assert inst.size == 4 * len(words)
        ours.append(format_instruction(inst))
    texts = [text for _, text in forms]
    assert ours == texts, explain([words for words, _ in forms], texts, ours)


def test_every_opcode_is_recorded() -> None:
    seen = {(inst.encoding, inst.name) for inst in (decode(pack(words)) for words, _ in recorded())}
    assert {(opcode.encoding, opcode.name) for opcode in OPCODES.values()} - seen == set()


@needs_llvm
def test_recorded_text_is_what_llvm_prints() -> None:
    forms = recorded()
    assert disassemble([words for words, _ in forms]) == [(text, words) for words, text in forms]


def printed_oddly(inst: Instruction, words: list[int]) -> bool:
    """Where LLVM's text is not the instruction's meaning alone.

    It names graphics messages of s_sendmsg, takes a mandatory literal from 128 to 255 for the encoding of an
    inline constant, and looks at all of a literal of which a 16-bit operand sees half.
    """
    literals = [
        operand.value for operand in inst.src if operand.index == 255 and operand.kind is OperandKind.CONST
    ]
    mandatory = inst.name.endswith(("mk_f32", "ak_f32", "mk_f16", "ak_f16"))
    return (
        inst.name.startswith("s_sendmsg")
        or (mandatory and words[1] in range(128, 256))
        or any(value == words[1] & 0xFFFF != words[1] for value in literals)
    )


@needs_llvm
@pytest.mark.parametrize(
    ("count", "seed"),
    [(6000, 1), pytest.param(100_000, SEED, marks=pytest.mark.nightly)],
)
def test_mutated_forms_agree_with_llvm(count: int, seed: int) -> None:
    """Flip bits of recorded forms: where both take the result for an instruction, they say the same of it.

    LLVM prints some of its 2^64 forms in ways of their own, one in about 10^5, so only the nightly run takes a
    fresh seed.
    """
    print("seed", seed)
    rng = random.Random(seed)
    forms = [words for words, _ in recorded()]
    mutated, ours = [], []
    for _ in range(count):
        words = list(rng.choice(forms))
        for _ in range(rng.randint(1, 3)):
            words[rng.randrange(len(words))] ^= 1 << rng.randrange(32)
        words += [rng.getrandbits(32) for _ in range(4 - len(words))]
        try:
            inst = decode(pack(words))
        except UnknownInstruction:
            continue
        if not printed_oddly(inst, words):
            mutated.append(words)
            ours.append((format_instruction(inst), words[: inst.size // 4]))
    theirs = disassemble(mutated)
    both = [index for index, item in enumerate(theirs) if item is not None]
    assert len(both) > 2000
    expected = [str(theirs[index]) for index in both]
    actual = [str(ours[index]) for index in both]
    assert expected == actual, explain([mutated[index] for index in both], expected, actual)


HAND_WRITTEN = """
s_load_dwordx4 s[8:11], s[0:1], 0x10
s_load_dword s4, s[2:3], s5 offset:0x10
s_waitcnt vmcnt(5) lgkmcnt(0)
s_barrier
s_and_saveexec_b64 s[2:3], vcc
s_cmpk_lg_i32 s4, 0x7fff
s_getreg_b32 s0, hwreg(HW_REG_MODE, 0, 4)
s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 0xf0
v_mfma_f32_16x16x32_bf16 a[0:3], v[4:7], v[8:11], a[0:3]
v_mfma_f32_32x32x16_f16 v[0:15], v[16:19], a[20:23], 0
v_mfma_i32_16x16x64_i8 v[0:3], v[4:7], v[8:11], v[0:3] cbsz:1 abid:2
v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:9], v[10:13], v[0:3] cbsz:2 blgp:4
v_mfma_scale_f32_32x32x64_f8f6f4 v[0:15], v[16:23], v[24:29], v[0:15], v40, v41 op_sel_hi:[1,0,0] blgp:3
v_smfmac_f32_16x16x64_bf16 v[0:3], v[4:7], v[8:15], v16
v_accvgpr_read_b32 v1, a2
v_accvgpr_write_b32 a2, 1.0
buffer_load_dwordx4 v4, s[8:11], 0 offen lds
buffer_load_dwordx4 v[0:3], v4, s[8:11], s12 offen offset:4095 sc0 nt sc1
buffer_store_short_d16_hi v0, v[4:5], s[8:11], 0 idxen offen
buffer_atomic_pk_add_bf16 v0, v4, s[8:11], 0 offen sc0
global_load_dwordx4 a[0:3], v4, s[8:9] offset:-4096
global_load_lds_dwordx4 v[2:3], off offset:16
global_store_dword v[2:3], v4, off
scratch_load_dwordx2 v[2:3], off, s4 offset:8
scratch_store_dword v2, v3, off
flat_atomic_add v1, v[2:3], v4 sc0
ds_read2st64_b64 v[0:3], v4 offset0:1 offset1:255
ds_read_b64_tr_b16 v[0:1], v2 offset:512
ds_swizzle_b32 v0, v1 offset:swizzle(SWAP,16)
v_add_f32_sdwa v0, v1, -v2 clamp dst_sel:BYTE_1 dst_unused:UNUSED_SEXT src0_sel:WORD_1 src1_sel:DWORD
v_mov_b32_dpp v0, v1 row_newbcast:3 row_mask:0xf bank_mask:0xf bound_ctrl:1
v_mov_b32_dpp v0, v1 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf
v_addc_co_u32_e32 v0, vcc, 1, v2, vcc
v_cmp_lt_f32_e64 s[4:5], -v0, |v1|
v_cndmask_b32_e64 v0, -v1, 2.0, s[4:5]
v_div_scale_f32 v0, vcc, v1, v2, v3
v_permlane32_swap_b32_e32 v0, v1
v_cvt_scalef32_pk_fp4_f32 v0, v1, v2, v3 op_sel:[0,0,1,1]
v_cvt_pk_fp8_f32 v0, v1, v2 op_sel:[0,0,1]
v_bitop3_b32 v0, v1, v2, v3 bitop3:0x96
v_pk_fma_f32 v[0:1], v[2:3], s[4:5], 1.0 op_sel_hi:[1,0,0]
v_fma_mix_f32 v0, -v1, |v2|, v3 op_sel:[1,0,0] op_sel_hi:[1,1,0]
v_fmamk_f32 v0, v1, 0x3fb8aa3b, v2
v_readlane_b32 s4, v1, m0
"""


@needs_llvm
def test_hand_written_forms() -> None:
    """What kernels use, spelled by a person: assembled, decoded, printed again."""
    lines = HAND_WRITTEN.strip().splitlines()
    objects = dump(assemble("\n".join(lines) + "\n"))
    assert [text for text, _ in objects.values()] == lines  # LLVM prints what was written
    code = b"".join(pack(words) for _, words in objects.values())
    assert [format_instruction(inst) for inst in decode_range(code, 0)] == lines


@needs_llvm
@pytest.mark.parametrize("m", [1, 256])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_compiled_kernels(dtype: str, m: int) -> None:
    """Every instruction of our own GEMM kernels, of each configuration that the problem has."""
    problem = GemmProblem(dtype, m, 256, 256, trans_b=True)
    for config in gemm.candidates(problem):
        elf = compile_kernel(gemm.kernel(problem, config)).elf
        theirs = {address: (text, words) for address, (text, words) in dump(elf).items()}
        code = CodeObject.parse(elf)
        (kernel,) = code.kernels.values()
        data = code.code(kernel)
        for inst in decode_range(data, kernel.entry):
            at = inst.address - kernel.entry
            words = list(struct.unpack(f"<{inst.size // 4}I", data[at : at + inst.size]))
            assert theirs[inst.address] == (format_instruction(inst), words)


def one(*words: int, address: int = 0) -> Instruction:
    return decode(pack(list(words)), address)


def test_branch_targets_are_absolute() -> None:
    assert one(0xBF840020, address=0x100).mods == {"target": 0x100 + 4 + 4 * 0x20}  # s_cbranch_scc0 32
    assert one(0xBF82FFFF, address=0x100).mods == {"target": 0x100}  # s_branch to itself


def test_operands_of_memory_instructions_keep_their_places() -> None:
    s, v, off = OperandKind.SGPR, OperandKind.VGPR, Operand(OperandKind.OFF, 0, 0)
    # global_store_dword v[2:3], v4, off, and global_store_dword v2, v4, s[6:7]
    assert one(0xDC708000, 0x007F0402).src == (Operand(v, 2, 2), Operand(v, 4), off)
    assert one(0xDC708000, 0x00060402).src == (Operand(v, 2), Operand(v, 4), Operand(s, 6, 2))
    # s_load_dword s0, s[2:3], s5 offset:0x10, and s_load_dwordx2 s[0:1], s[2:3], 0x10
    assert one(0xC0024001, 0x0A000010).src == (Operand(s, 2, 2), Operand(s, 5))
    load = one(0xC0060001, 0x10)
    assert (load.src, load.mods) == ((Operand(s, 2, 2), off), {"offset": 0x10})
    # buffer_atomic_cmpswap v[0:1], v2, s[8:11], 0 offen [sc0]: the data is read, and written where it returns
    data, rest = Operand(v, 0, 2), (Operand(v, 2), Operand(s, 8, 4), Operand(OperandKind.CONST, 128))
    plain, returning = one(0xE1041000, 0x80020002), one(0xE1045000, 0x80020002)
    assert (plain.dst, plain.src) == ((), (data, *rest))
    assert (returning.dst, returning.src) == ((Operand(v, 0),), (data, *rest))


def test_implicit_vcc_is_spelled_out() -> None:
    vcc = Operand(OperandKind.SGPR, 106, 2)
    assert one(0x7D940300).dst == (vcc,)  # v_cmp_eq_u32_e32 vcc, v0, v1
    add = one(0x38000300)  # v_addc_co_u32_e32 v0, vcc, v0, v1, vcc
    assert add.dst[1] == vcc
    assert add.src[2] == vcc


@pytest.mark.parametrize(
    ("code", "kind", "dtype"),
    [
        (code, kind, dtype)
        for code in range(240, 249)
        for kind, dtype in (
            ("f16", np.float16),
            ("f16x2", np.float16),
            ("i16", np.float16),
            ("bf16", ml_dtypes.bfloat16),
            ("f32", np.float32),
            ("f32x2", np.float32),
            ("u32", np.float32),
            ("i16x2", np.float32),
            ("f64", np.float64),
            ("b64", np.float64),
        )
    ],
)
def test_inline_floats(code: int, kind: str, dtype: type) -> None:
    value = (0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0, 1 / (2 * np.pi))[code - 240]
    bits = inline_constant(code, parse_type(kind))
    assert bits is not None
    expected = int.from_bytes(np.array(value, dtype).tobytes(), "little")
    # The hardware's 1/(2*pi) is the nearest value or the one below it in the last place.
    assert bits - expected in ((0, -1) if code == 248 else (0,))


@pytest.mark.parametrize("kind", ["f16", "i16x2", "f32", "u32", "b64", "f64"])
def test_inline_integers_are_sign_extended(kind: str) -> None:
    bits = 64 if kind.endswith("64") else 32
    for code, value in ((128, 0), (129, 1), (192, 64), (193, -1), (208, -16)):
        assert inline_constant(code, parse_type(kind)) == value % (1 << bits)
    assert inline_constant(209, parse_type(kind)) is None


def test_literals_of_wide_and_narrow_operands() -> None:
    word = 0xC0001234
    expected = {"f64": word << 32, "i64": word | 0xFFFFFFFF << 32, "b64": word, "f32": word, "f16": 0x1234}
    assert {kind: literal_constant(word, parse_type(kind)) for kind in expected} == expected


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([0xFFFFFFFF], "no format has this prefix"),
        ([0xBF850000 | 0x7F << 16], "SOPP has no opcode 127"),
        ([0x7E0002FF], "the code ends inside it"),
        ([0xD1010000, 255], "takes no literal"),
        ([0x7E0602D2], "source 210 is reserved"),
        ([0xBE800101], "misaligned"),
        ([0x7E0002FA, 0xFF010000], "DPP control 0x100 is reserved"),
        ([0xD3AC0000, 0, 0xBF800000, 0], "not followed by one that takes them"),
        ([], "the code ends here"),
    ],
)
def test_unknown_instructions_name_address_and_encoding(words: list[int], why: str) -> None:
    with pytest.raises(UnknownInstruction, match=why) as caught:
        decode(pack(words), 0x2340)
    assert caught.value.address == 0x2340
    assert caught.value.words == tuple(words)
    assert "0x2340" in str(caught.value)
    assert all(f"{word:08x}" in str(caught.value) for word in words)


@settings(max_examples=3000, deadline=None)
@given(st.binary(max_size=20))
def test_any_bytes_decode_and_print_or_are_refused(data: bytes) -> None:
    try:
        inst = decode(data)
    except UnknownInstruction:
        return
    assert inst.size in (4, 8, 16)
    assert inst.size <= len(data)
    assert format_instruction(inst).startswith(inst.name)


def test_decode_range_stops_at_the_end() -> None:
    code = pack([0xBF800000, 0xC0060001, 0x10, 0xBF810000, 0xFFFFFFFF])
    assert [(i.address, i.name) for i in decode_range(code, 0x40, 0x50)] == [
        (0x40, "s_nop"),
        (0x44, "s_load_dwordx2"),
        (0x4C, "s_endpgm"),
    ]
    with pytest.raises(UnknownInstruction):
        list(decode_range(code, 0x40))
