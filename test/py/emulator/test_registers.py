"""What instructions read and write: execution depends on nothing else, and changes nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from harness import SEED, descriptor

from flycc.emulator.errors import EmulatorError
from flycc.emulator.isa.decode import decode
from flycc.emulator.isa.format import format_instruction
from flycc.emulator.isa.instruction import Instruction
from flycc.emulator.isa.opcodes import OPCODES
from flycc.emulator.isa.registers import UNITS, Registers, read, unit, written
from flycc.emulator.memory import Memory
from flycc.emulator.semantics import bind, is_known
from flycc.emulator.state import LANES, Batch

FORMS = Path(__file__).parent / "data" / "gfx950_forms.txt"
REGISTERS, ACCUM = 512, 256

#: Encodings whose vector registers are all spelled out, and that touch no memory.
ALU = ("VOP1", "VOP2", "VOPC", "VOP3", "VOP3P", "MAI", "MAI_SCALED")


def forms() -> Iterator[Instruction]:
    for line in FORMS.read_text().splitlines():
        words = [int(word, 16) for word in line.partition("|")[0].split()]
        inst = decode(b"".join(word.to_bytes(4, "little") for word in words))
        if inst.encoding in ALU and is_known(inst):
            yield inst


def rows_of(ranges: tuple[Registers, ...]) -> np.ndarray:
    """bool [REGISTERS]: the vector registers among the ranges."""
    named = np.zeros(REGISTERS, bool)
    for file, first, count in ranges:
        if file != "s":
            start = first + (ACCUM if file == "a" else 0)
            named[start : start + count] = True
    return named


def executed(inst: Instruction, registers: np.ndarray, scalars: np.ndarray) -> np.ndarray:
    """Vector registers after `inst`, uint32 [REGISTERS, 1, 64], from those before."""
    batch = Batch(descriptor(), 1, 1, REGISTERS, ACCUM, 0, 0)
    batch.reset(Memory(), np.zeros((1, 3), np.int64))
    batch.vgpr[:REGISTERS] = registers
    batch.sgpr[:, :126] = scalars
    with np.errstate(all="ignore"):
        bind(batch, inst)()
    return batch.vgpr[:REGISTERS].copy()


def test_results_depend_on_what_is_read_and_reach_what_is_written() -> None:
    rng = np.random.default_rng(SEED)
    tried = 0
    for inst in forms():
        # A float's exponent is what most instructions look at, so some registers hold moderate numbers.
        before = rng.integers(0, 1 << 32, (REGISTERS, 1, LANES), np.uint32)
        before[::2] = rng.standard_normal((REGISTERS // 2, 1, LANES)).astype(np.float32).view(np.uint32)
        scalars = rng.integers(0, 1 << 32, (1, 126), np.uint32)
        other = rng.integers(0, 1 << 32, before.shape, np.uint32)
        other[rows_of(read(inst))] = before[rows_of(read(inst))]
        try:
            first, second = executed(inst, before, scalars), executed(inst, other, scalars)
        except EmulatorError:
            continue
        changed = rows_of(written(inst))
        text = format_instruction(inst)
        np.testing.assert_array_equal(first[~changed], before[~changed], text)
        np.testing.assert_array_equal(first[changed], second[changed], text)
        tried += 1
    assert tried > 700


def test_every_opcode_has_a_unit() -> None:
    units = {
        opcode.name: unit(Instruction(0, 4, opcode.name, opcode.encoding)) for opcode in OPCODES.values()
    }
    assert set(units.values()) == set(UNITS)
    expected = {
        "s_add_u32": "SALU",
        "s_waitcnt": "SYNC",
        "s_barrier": "SYNC",
        "s_cbranch_scc0": "BRANCH",
        "s_endpgm": "BRANCH",
        "s_load_dwordx4": "SMEM",
        "v_add_f32": "VALU",
        "v_exp_f32": "TRANS",
        "v_cmp_lt_f32": "VALU",
        "v_accvgpr_read_b32": "VALU",
        "v_mfma_f32_16x16x32_bf16": "MFMA",
        "v_smfmac_f32_16x16x64_bf16": "MFMA",
        "ds_read_b128": "LDS",
        "buffer_load_dwordx4": "VMEM",
        "global_load_lds_dwordx4": "VMEM",
        "scratch_store_dword": "VMEM",
    }
    assert {name: units[name] for name in expected} == expected


def test_a_load_to_lds_reads_m0() -> None:
    # buffer_load_dword off, s[8:11], s3 offset:4 lds
    inst = decode(b"".join(word.to_bytes(4, "little") for word in (0xE0510004, 0x03020000)))
    assert inst.mods["lds"]
    assert set(read(inst)) == {("s", 8, 4), ("s", 3, 1), ("s", 124, 1)}
