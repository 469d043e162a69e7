"""Code objects: what the parser reads, what it refuses, and that no broken file does anything else."""

from __future__ import annotations

import importlib.util
import random
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llvm import assemble, dump, needs_llvm

from flycc.emulator.elf import CodeObject, Kernel, KernelArg, UserSgpr
from flycc.emulator.errors import BadCodeObject, EmulatorError
from flycc.emulator.isa.decode import decode_range
from flycc.emulator.isa.format import format_instruction
from flycc.emulator.reader import MessagePack

CODE = struct.pack("<2I", 0xBF8A0000, 0xBF810000)  # s_barrier, s_endpgm
DESCRIPTOR_AT, CODE_AT, DATA_AT = 0x1000, 0x2000, 0x3000
RSRC1 = 5 | 6 << 6 | 2 << 12 | 1 << 14 | 3 << 16 | 2 << 18 | 1 << 21 | 1 << 23 | 1 << 26
RSRC2 = 1 | 8 << 1 | 1 << 7 | 1 << 9 | 1 << 11
ARGS = [
    {".name": "x", ".offset": 0, ".size": 8, ".value_kind": "global_buffer"},
    {".name": "n", ".offset": 8, ".size": 4, ".value_kind": "by_value"},
]
METADATA: dict[str, Any] = {
    "amdhsa.version": [1, 2],
    "amdhsa.kernels": [
        {
            ".name": "k",
            ".symbol": "k.kd",
            ".kernarg_segment_align": 16,
            ".max_flat_workgroup_size": 256,
            ".args": ARGS,
        }
    ],
}
EXPECTED = Kernel(
    name="k",
    entry=CODE_AT,
    code_size=8,
    kernarg_size=16,
    kernarg_align=16,
    lds_bytes=4096,
    scratch_bytes=64,
    vgpr_count=48,  # (5 + 1) * 8
    accum_offset=32,  # (7 + 1) * 4
    sgpr_count=64,  # (6 / 2 + 1) * 16
    user_sgprs=(
        UserSgpr("dispatch_ptr", 0, 2),
        UserSgpr("kernarg_segment_ptr", 2, 2),
        UserSgpr("kernarg_preload", 4, 3),
        UserSgpr("unused", 7, 1),
    ),
    enable_workgroup_id_x=True,
    enable_workgroup_id_y=False,
    enable_workgroup_id_z=True,
    workitem_dims=2,
    round_mode_32=2,
    round_mode_16_64=1,
    denorm_mode_32=3,
    denorm_mode_16_64=2,
    dx10_clamp=True,
    ieee_mode=True,
    fp16_overflow=True,
    kernarg_preload=(3, 1),
    args=(KernelArg("x", 0, 8, "global_buffer"), KernelArg("n", 8, 4, "by_value")),
    max_workgroup_size=256,
)


def msgpack(value: Any) -> bytes:
    """A plain encoder of what the metadata needs."""
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return struct.pack(">BI", 0xCE, value)
    if isinstance(value, str):
        return struct.pack(">BH", 0xDA, len(value)) + value.encode()
    if isinstance(value, list):
        return struct.pack(">BH", 0xDC, len(value)) + b"".join(map(msgpack, value))
    items = b"".join(msgpack(key) + msgpack(item) for key, item in value.items())
    return struct.pack(">BH", 0xDE, len(value)) + items


def descriptor(lds: int = 4096, entry: int = CODE_AT, properties: int = 0b1010, rsrc2: int = RSRC2) -> bytes:
    head = struct.pack("<III4xq20x", lds, 64, 16, entry - DESCRIPTOR_AT)
    return head + struct.pack("<IIIHH4x", 7, RSRC1, rsrc2, properties, 3 | 1 << 7)


def code_object(
    *,
    machine: int = 224,
    osabi: int = 64,
    target: int = 0x54F,
    kind: int = 3,
    kernel: bytes | None = None,
    metadata: Any = METADATA,
    code_memory: int = len(CODE),
) -> bytes:
    """A code object with one kernel `k`: header, program headers, note, tables, section headers."""
    kernel = descriptor() if kernel is None else kernel
    body = msgpack(metadata)
    note = struct.pack("<III", 7, len(body), 32) + b"AMDGPU\0\0" + body
    names = b"\0k\0k.kd\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0, 1, CODE_AT, 8)
    symbols += struct.pack("<IBBHQQ", 3, 0x11, 0, 1, DESCRIPTOR_AT, 64)
    parts, at = [], 64 + 4 * 56
    offsets = []
    for part in (note, kernel, CODE, names, symbols):
        offsets.append(at)
        parts.append(part + bytes(-len(part) % 8))
        at += len(parts[-1])
    note_at, kernel_at, code_at, names_at, symbols_at = offsets
    programs = [
        (4, 4, note_at, 0, len(note), len(note)),
        (1, 4, kernel_at, DESCRIPTOR_AT, 64, 64),
        (1, 5, code_at, CODE_AT, 8, code_memory),
        (1, 6, code_at, DATA_AT, 0, 32),
    ]
    sections = [
        (0, 0, 0, 0, 0),
        (11, symbols_at, len(symbols), 2, 24),
        (3, names_at, len(names), 0, 0),
    ]
    ident = b"\x7fELF\x02\x01\x01" + bytes([osabi, 4]) + bytes(7)
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", kind, machine, 1, 0, 64, at, target, 64, 56, len(programs), 64, len(sections), 0
    )
    table = b"".join(
        struct.pack("<IIQQQQQQ", kind, flags, start, address, address, size, memory, 0x1000)
        for kind, flags, start, address, size, memory in programs
    )
    tail = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, start, size, link, 0, 8, entry)
        for kind, start, size, link, entry in sections
    )
    return header + table + b"".join(parts) + tail


def test_kernel_is_read_from_descriptor_and_metadata() -> None:
    code = CodeObject.parse(code_object())
    assert code.kernels == {"k": EXPECTED}
    assert code.code(EXPECTED) == CODE
    assert [inst.name for inst in decode_range(code.code(EXPECTED), CODE_AT)] == ["s_barrier", "s_endpgm"]


def test_segments_are_zero_filled_and_carry_their_rights() -> None:
    segments = CodeObject.parse(code_object()).segments
    assert [(s.address, len(s.data), s.writable, s.executable) for s in segments] == [
        (DESCRIPTOR_AT, 64, False, False),
        (CODE_AT, 8, False, True),
        (DATA_AT, 32, True, False),
    ]
    assert segments[2].data == bytes(32)


def test_mode_register_bits() -> None:
    """Rounding in bits 0-3, denormals 4-7, dx10_clamp 8, ieee 9, fp16_ovfl 23 (ISA document, "Mode")."""
    assert EXPECTED.mode_register == 0b0110 | 0b1011 << 4 | 1 << 8 | 1 << 9 | 1 << 23
    assert replace(EXPECTED, dx10_clamp=False, fp16_overflow=False).mode_register == 0b0110 | 0xB0 | 1 << 9


def test_metadata_may_be_absent() -> None:
    code = CodeObject.parse(code_object(metadata={}))
    assert code.kernels["k"] == replace(EXPECTED, args=(), kernarg_align=8, max_workgroup_size=1024)


def with_kernel(**changes: Any) -> dict[str, Any]:
    return {"amdhsa.kernels": [METADATA["amdhsa.kernels"][0] | changes]}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "the ELF file is truncated"),
        (b"#!/bin/sh\n" + bytes(99), "not an ELF file: it starts with 23 21 2f 62"),
        (code_object(machine=62), "not an AMDGPU HSA code object: machine 62"),
        (code_object(osabi=0), "OS ABI 0"),
        (code_object(target=0x54C), "is for gfx942; this emulator runs gfx950"),
        (code_object(target=0x5EE), "is for machine 0xee"),
        (code_object(kind=1), "is not linked"),
        (code_object(kernel=descriptor(lds=160 * 1024 + 4)), "163844 bytes of LDS; gfx950 has 163840"),
        (code_object(kernel=descriptor(entry=DATA_AT)), "not in a code segment"),
        (code_object(kernel=descriptor(entry=CODE_AT + 2)), "not in a code segment"),
        (code_object(kernel=descriptor(properties=0b1010 | 1 << 10)), "32-lane waves"),
        (
            code_object(kernel=descriptor(rsrc2=RSRC2 & ~(31 << 1) | 4 << 1)),
            "enables 7 user SGPRs but reserves 4",
        ),
        (code_object(metadata=with_kernel(**{".args": 5})), "no usable .args: 5"),
        (
            code_object(metadata=with_kernel(**{".args": [ARGS[1] | {".offset": 13}]})),
            "'n' of kernel k lies outside",
        ),
        (code_object(code_memory=16), "code segment 2 has 16 bytes but 8 of them in the file"),
        (code_object(code_memory=1 << 40), "segment 2 .* is absurd"),
        (code_object(metadata={1: 2}), "a key that is not a string"),
    ],
)
def test_refusals_name_the_fault(data: bytes, why: str) -> None:
    with pytest.raises(BadCodeObject, match=why):
        CodeObject.parse(data)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x05", 5),
        (b"\xff", -1),
        (b"\xc0", None),
        (b"\xcd\x01\x00", 256),
        (b"\xd1\xff\x00", -256),
        (b"\xcf" + b"\0" * 7 + b"\x07", 7),
        (b"\xa2hi", "hi"),
        (b"\xd9\x02hi", "hi"),
        (b"\xc4\x01\x80", b"\x80"),
        (b"\x92\x01\xc3", [1, True]),
        (b"\x81\xa1a\x91\x02", {"a": [2]}),
    ],
)
def test_message_pack(data: bytes, value: Any) -> None:
    assert MessagePack(data).document() == value


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\xa5hi", b"\xdd\xff\xff\xff\xff", b"\x91" * 99, b"\xa1\xff"]
)
def test_broken_message_pack(data: bytes) -> None:
    with pytest.raises(BadCodeObject, match="the metadata note"):
        MessagePack(data).document()


def test_every_truncation_is_refused() -> None:
    data = code_object()
    for size in range(len(data)):
        with pytest.raises(BadCodeObject):
            CodeObject.parse(data[:size])


def test_mutated_files_parse_or_are_refused() -> None:
    """Random words and cuts in a good file: the parser and the decoder give a result or their own error."""
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    good = code_object()
    refused = 0
    for _ in range(5000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) - 8)
            width = rng.choice((1, 1, 2, 4, 8))
            extreme = rng.choice((0, (1 << 8 * width) - 1, 1 << 8 * width - 1, rng.getrandbits(8 * width)))
            data[at : at + width] = extreme.to_bytes(width, "little")
        if rng.random() < 0.1:
            del data[rng.randrange(len(data)) :]
        try:
            code = CodeObject.parse(bytes(data))
            for kernel in code.kernels.values():
                list(decode_range(code.code(kernel), kernel.entry))
        except EmulatorError:
            refused += 1
    assert 0 < refused < 5000  # both ways were taken


SOURCE = """
.amdgcn_target "amdgcn-amd-amdhsa--gfx950"
.text
.globl scale
.p2align 8
.type scale,@function
scale:
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshlrev_b32 v1, 2, v0
  s_waitcnt lgkmcnt(0)
  global_load_dword v2, v1, s[4:5]
  s_waitcnt vmcnt(0)
  v_mul_f32 v2, 2.0, v2
  global_store_dword v1, v2, s[4:5]
  s_endpgm
.Lend:
.size scale, .Lend-scale
.rodata
.p2align 6
.amdhsa_kernel scale
  .amdhsa_next_free_vgpr 40
  .amdhsa_accum_offset 24
  .amdhsa_next_free_sgpr 20
  .amdhsa_reserve_vcc 0
  .amdhsa_kernarg_size 8
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_group_segment_fixed_size 1024
  .amdhsa_system_sgpr_workgroup_id_y 1
  .amdhsa_system_vgpr_workitem_id 1
  .amdhsa_float_denorm_mode_32 3
.end_amdhsa_kernel
.amdgpu_metadata
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: scale
    .symbol: scale.kd
    .kernarg_segment_size: 8
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 1024
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 20
    .vgpr_count: 40
    .max_flat_workgroup_size: 512
    .args:
      - {.name: x, .offset: 0, .size: 8, .value_kind: global_buffer}
.end_amdgpu_metadata
"""


def lld() -> Path | None:
    spec = importlib.util.find_spec("iree.compiler")
    places = spec.submodule_search_locations if spec else None
    path = Path(places[0], "_mlir_libs", "iree-lld") if places else None
    return path if path and path.is_file() else None


@needs_llvm
@pytest.mark.skipif(lld() is None, reason="iree-base-compiler, whose LLD links the kernel, is not installed")
def test_llvms_own_code_object(tmp_path: Path) -> None:
    """Assembler directives and metadata come back, and the linked code disassembles as LLVM's does."""
    (tmp_path / "k.o").write_bytes(assemble(SOURCE))
    command = [str(lld()), "-flavor", "gnu", "-shared", str(tmp_path / "k.o"), "-o", str(tmp_path / "k.elf")]
    subprocess.run(command, check=True)
    data = (tmp_path / "k.elf").read_bytes()
    code = CodeObject.parse(data)
    kernel = code.kernels["scale"]
    assert (kernel.lds_bytes, kernel.kernarg_size, kernel.max_workgroup_size) == (1024, 8, 512)
    assert (kernel.vgpr_count, kernel.accum_offset) == (40, 24)
    assert kernel.sgpr_count >= 20
    assert kernel.user_sgprs == (UserSgpr("kernarg_segment_ptr", 0, 2),)
    assert kernel.enable_workgroup_id_x
    assert kernel.enable_workgroup_id_y
    assert kernel.workitem_dims == 2
    assert (kernel.denorm_mode_32, kernel.denorm_mode_16_64) == (3, 3)
    assert kernel.args == (KernelArg("x", 0, 8, "global_buffer"),)
    ours = {
        inst.address: (format_instruction(inst), inst.size // 4)
        for inst in decode_range(code.code(kernel), kernel.entry)
    }
    theirs = {address: (text, len(words)) for address, (text, words) in dump(data).items()}
    assert ours == {address: theirs[address] for address in ours}
