"""Code objects: the ELF files that hold gfx950 kernels.

Layouts follow the ELF specification and LLVM's "User Guide for AMDGPU Backend" (code object V4 and later: ELF
header, note records, kernel descriptor, initial kernel execution state).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from flycc.emulator.errors import BadCodeObject
from flycc.emulator.reader import MessagePack, Reader

LDS_BYTES = 160 * 1024  # per compute unit
_MAX_IMAGE = 64 << 20  # far above any kernel; keeps a hostile file from asking for the machine's memory
_MAX_KERNARG = 1 << 16
_PRELOAD_PROLOGUE = 256  # bytes
_MAX_SCRATCH = (8191 << 10) // 64  # bytes a lane: 13 bits of KiB a wave in COMPUTE_TMPRING_SIZE
_MAX_SEGMENTS, _MAX_SECTIONS, _MAX_SYMBOLS = 64, 1024, 1 << 16

_AMDGPU, _OSABI_HSA, _SHARED_OBJECT = 224, 64, 3
_GFX950 = 0x4F
_OTHER_TARGETS = {
    0x2C: "gfx900", 0x2F: "gfx906", 0x30: "gfx908", 0x3F: "gfx90a", 0x4C: "gfx942", 0x36: "gfx1030",
    0x41: "gfx1100", 0x48: "gfx1200", 0x4E: "gfx1201", 0x49: "gfx1250",
}  # fmt: skip
_PT_LOAD, _PT_NOTE, _SHT_SYMTAB, _SHT_DYNSYM = 1, 4, 2, 11
_NT_AMDGPU_METADATA = 32


class UserSgpr(NamedTuple):
    """`count` SGPRs from s`first` on that hold `what` when a wave starts."""

    what: str
    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here


class KernelArg(NamedTuple):
    """One kernel argument as the metadata describes it. `offset` and `size` in bytes."""

    name: str
    offset: int
    size: int
    value_kind: str


class Symbol(NamedTuple):
    """A defined symbol: virtual address and size in bytes."""

    address: int
    size: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A loaded segment: its bytes (zero-filled to the size in memory) at a virtual address."""

    address: int
    data: bytes
    writable: bool
    executable: bool


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's descriptor and metadata. Sizes in bytes, register counts per lane (VGPR) or wave (SGPR).

    `vgpr_count` counts architectural and accumulation registers together; the first `accum_offset` are
    architectural. `user_sgprs` is in register order; the enabled workgroup ids follow at once, one SGPR each.
    `workitem_dims` work-item ids (1 to 3) are packed in v0, ten bits each. Modes are as in the MODE register:
    rounding 0 nearest even, 1 up, 2 down, 3 to zero; denormals bit 0 = sources are kept, bit 1 = results are.
    `kernarg_preload` is (length, offset) in dwords of the arguments that are in SGPRs when a wave starts, which it
    then does at `start`. `spilled_vgprs` and `spilled_sgprs` are what the metadata
    says of registers kept elsewhere: in scratch memory or in accumulation registers, and in lanes of VGPRs.
    """

    name: str
    entry: int
    code_size: int
    kernarg_size: int
    kernarg_align: int
    lds_bytes: int
    scratch_bytes: int
    vgpr_count: int
    accum_offset: int
    sgpr_count: int
    user_sgprs: tuple[UserSgpr, ...]
    enable_workgroup_id_x: bool
    enable_workgroup_id_y: bool
    enable_workgroup_id_z: bool
    workitem_dims: int
    round_mode_32: int
    round_mode_16_64: int
    denorm_mode_32: int
    denorm_mode_16_64: int
    dx10_clamp: bool
    ieee_mode: bool
    fp16_overflow: bool
    kernarg_preload: tuple[int, int]
    args: tuple[KernelArg, ...]
    max_workgroup_size: int
    spilled_vgprs: int = 0
    spilled_sgprs: int = 0

    @property
    def start(self) -> int:
        """Where waves start: the code at `entry` loads the arguments that firmware which cannot preload them does not,
        and is skipped by all other firmware (LLVM AMDGPU guide, "Preloaded Kernel Arguments")."""
        return self.entry + (_PRELOAD_PROLOGUE if self.kernarg_preload[0] else 0)

    @property
    def mode_register(self) -> int:
        """The MODE register's bits when a wave starts."""
        rounding = self.round_mode_32 | self.round_mode_16_64 << 2
        denormals = self.denorm_mode_32 | self.denorm_mode_16_64 << 2
        switches = self.dx10_clamp << 8 | self.ieee_mode << 9 | self.fp16_overflow << 23
        return rounding | denormals << 4 | switches


@dataclass(frozen=True, slots=True)
class CodeObject:
    """A parsed code object: what `parse` makes of an ELF file."""

    segments: tuple[Segment, ...]
    symbols: dict[str, Symbol]
    kernels: dict[str, Kernel]

    @staticmethod
    def parse(data: bytes) -> CodeObject:
        """Parse a gfx950 ELF file. Raises BadCodeObject for anything else, however broken."""
        reader = Reader(memoryview(data), "the ELF file")
        headers = _check_header(reader)
        segments, metadata = _load(reader, headers)
        symbols = _symbols(reader, headers)
        code = CodeObject(segments, symbols, {})
        described = _described_kernels(metadata)
        for name in [name.removesuffix(".kd") for name in symbols if name.endswith(".kd")]:
            code.kernels[name] = _kernel(code, name, described.get(name, {}))
        return code

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes of the image at a virtual address, all in one segment."""
        for segment in self.segments:
            at = address - segment.address
            if at >= 0 and at + size <= len(segment.data):
                return segment.data[at : at + size]
        raise BadCodeObject(f"{size} bytes at address {address:#x} are not in a loaded segment")

    def code(self, kernel: Kernel) -> bytes:
        """The kernel's machine code, which starts at `kernel.entry`."""
        return self.read(kernel.entry, kernel.code_size)


class _Headers(NamedTuple):
    program: tuple[int, int, int]  # offset, entry size, entries
    section: tuple[int, int, int]


def _check_header(reader: Reader) -> _Headers:
    ident = reader.bytes(0, 16)
    if ident[:4] != b"\x7fELF":
        raise BadCodeObject(f"not an ELF file: it starts with {ident[:4].hex(' ')}")
    if ident[4:6] != b"\x02\x01":
        raise BadCodeObject("not a 64-bit little-endian ELF file")
    kind, machine = reader.unpack("HH", 16)
    phoff, shoff, flags, _, phentsize, phnum, shentsize, shnum = reader.unpack("QQIHHHHH", 32)
    if machine != _AMDGPU or ident[7] != _OSABI_HSA:
        raise BadCodeObject(f"not an AMDGPU HSA code object: machine {machine}, OS ABI {ident[7]}")
    if flags & 0xFF != _GFX950:
        target = _OTHER_TARGETS.get(flags & 0xFF, f"machine {flags & 0xFF:#x}")
        raise BadCodeObject(f"the code object is for {target}; this emulator runs gfx950")
    if kind != _SHARED_OBJECT:
        raise BadCodeObject(f"the code object is not linked (ELF type {kind}); a shared object is needed")
    for name, size, accepted in (("program", phentsize, 56), ("section", shentsize, 64)):
        if size != accepted:
            raise BadCodeObject(f"{name} header entries of {size} bytes; ELF64 has {accepted}")
    if phnum > _MAX_SEGMENTS or shnum > _MAX_SECTIONS:
        raise BadCodeObject(f"{phnum} segments and {shnum} sections are absurd for a code object")
    return _Headers((phoff, phentsize, phnum), (shoff, shentsize, shnum))


def _load(reader: Reader, headers: _Headers) -> tuple[tuple[Segment, ...], Any]:
    """The loaded segments and the metadata (None without a note)."""
    segments, metadata = [], None
    total = 0
    offset, entry, count = headers.program
    for index in range(count):
        kind, flags, start, address, _, file_size, size = reader.unpack("IIQQQQQ", offset + index * entry)
        if kind == _PT_LOAD:
            total += size
            if total > _MAX_IMAGE or address + size > 1 << 48 or file_size > size:
                raise BadCodeObject(
                    f"segment {index} ({file_size} of {size} bytes at {address:#x}) is absurd"
                )
            if flags & 1 and file_size < size:  # or zeros would count as code, however many
                raise BadCodeObject(
                    f"code segment {index} has {size} bytes but {file_size} of them in the file"
                )
            data = reader.bytes(start, file_size) + bytes(size - file_size)
            segments.append(Segment(address, data, bool(flags & 2), bool(flags & 1)))
        elif kind == _PT_NOTE:
            for name, note, body in _notes(reader.bytes(start, file_size)):
                if name == b"AMDGPU\0" and note == _NT_AMDGPU_METADATA:
                    metadata = MessagePack(body).document()
    if segments:
        first, end = min(s.address for s in segments), max(s.address + len(s.data) for s in segments)
        if end - first > _MAX_IMAGE:
            raise BadCodeObject(f"segments from {first:#x} to {end:#x} are too far apart for a code object")
    return tuple(segments), metadata


def _notes(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    reader = Reader(data, "the note segment")
    at = 0
    while at < len(data):
        name_size, body_size, kind = reader.unpack("III", at)
        body_at = at + 12 + (name_size + 3) // 4 * 4
        yield reader.bytes(at + 12, name_size), kind, reader.bytes(body_at, body_size)
        at = body_at + (body_size + 3) // 4 * 4


def _symbols(reader: Reader, headers: _Headers) -> dict[str, Symbol]:
    symbols: dict[str, Symbol] = {}
    offset, entry, count = headers.section
    sections = [reader.unpack("IIQQQQIIQQ", offset + index * entry) for index in range(count)]
    for _, kind, _, _, at, size, link, _, _, entry_size in sections:
        if kind not in (_SHT_SYMTAB, _SHT_DYNSYM):
            continue
        if entry_size != 24 or link >= count:
            raise BadCodeObject(
                f"a symbol table has entries of {entry_size} bytes and strings in section {link}"
            )
        table = Reader(reader.bytes(at, size), "the symbol table")
        if len(symbols) + size // 24 > _MAX_SYMBOLS:
            raise BadCodeObject(f"more than {_MAX_SYMBOLS} symbols are absurd for a code object")
        names = Reader(reader.bytes(sections[link][4], sections[link][5]), "the string table")
        for index in range(size // 24):
            name, _, _, section, value, length = table.unpack("IBBHQQ", index * 24)
            if name and section:
                symbols[names.text(name)] = Symbol(value, length)
    return symbols


def _field(record: Any, key: str, kind: type, default: Any) -> Any:
    value = record.get(key, default) if isinstance(record, dict) else None
    if not isinstance(value, kind) or (isinstance(value, int) and not 0 <= value < 1 << 32):
        raise BadCodeObject(f"the metadata note has no usable {key}: {value!r:.40}")
    return value


def _described_kernels(metadata: Any) -> dict[str, dict[str, Any]]:
    if metadata is None:
        return {}
    kernels = _field(metadata, "amdhsa.kernels", list, [])
    return {_field(kernel, ".symbol", str, "").removesuffix(".kd"): kernel for kernel in kernels}


def _bits(word: int, low: int, width: int = 1) -> int:
    return word >> low & (1 << width) - 1


# Bit of the descriptor's kernel_code_properties, what it puts into user SGPRs, how many: in register order.
_USER_SGPRS = (
    (0, "private_segment_buffer", 4),
    (1, "dispatch_ptr", 2),
    (2, "queue_ptr", 2),
    (3, "kernarg_segment_ptr", 2),
    (4, "dispatch_id", 2),
    (5, "flat_scratch_init", 2),
    (6, "private_segment_size", 1),
)


def _user_sgprs(properties: int, preload: int, count: int) -> tuple[UserSgpr, ...]:
    result, first = [], 0
    wanted = [(what, size) for bit, what, size in _USER_SGPRS if _bits(properties, bit)]
    for what, size in [*wanted, *([("kernarg_preload", preload)] if preload else [])]:
        result.append(UserSgpr(what, first, size))
        first += size
    if first > count:
        raise BadCodeObject(f"a kernel descriptor enables {first} user SGPRs but reserves {count}")
    if first < count:
        result.append(UserSgpr("unused", first, count - first))
    return tuple(result)


def _kernel(code: CodeObject, name: str, metadata: dict[str, Any]) -> Kernel:
    at = code.symbols[name + ".kd"].address
    descriptor = Reader(code.read(at, 64), f"the descriptor of kernel {name}")
    lds, scratch, kernarg_size = descriptor.unpack("III", 0)
    (entry_offset,) = descriptor.unpack("q", 16)
    rsrc3, rsrc1, rsrc2, properties, preload = descriptor.unpack("IIIHH", 44)
    entry = at + entry_offset
    homes = [s for s in code.segments if s.executable and 0 <= entry - s.address < len(s.data)]
    if not homes or entry % 4:
        raise BadCodeObject(f"kernel {name} starts at {entry:#x}, which is not in a code segment")
    if lds > LDS_BYTES:
        raise BadCodeObject(f"kernel {name} wants {lds} bytes of LDS; gfx950 has {LDS_BYTES}")
    if scratch > _MAX_SCRATCH or kernarg_size > _MAX_KERNARG:
        raise BadCodeObject(
            f"kernel {name} wants {scratch} bytes of scratch a lane and {kernarg_size} of arguments; "
            f"{_MAX_SCRATCH} and {_MAX_KERNARG} are the most"
        )
    if _bits(properties, 10):
        raise BadCodeObject(f"kernel {name} is compiled for 32-lane waves; gfx950 has only 64-lane ones")
    rest = homes[0].address + len(homes[0].data) - entry
    symbol = code.symbols.get(name)
    code_size = symbol.size if symbol and symbol.address == entry and symbol.size else rest
    args = tuple(
        KernelArg(
            _field(arg, ".name", str, ""),
            _field(arg, ".offset", int, 0),
            _field(arg, ".size", int, 0),
            _field(arg, ".value_kind", str, ""),
        )
        for arg in _field(metadata, ".args", list, [])
    )
    for arg in args:
        if arg.offset + arg.size > kernarg_size:
            raise BadCodeObject(
                f"argument {arg.name!r} of kernel {name} lies outside its {kernarg_size} bytes"
            )
    preload_length = _bits(preload, 0, 7)
    user_count = _bits(rsrc2, 1, 5)
    return Kernel(
        name=name,
        entry=entry,
        code_size=min(code_size, rest),
        kernarg_size=kernarg_size,
        kernarg_align=_field(metadata, ".kernarg_segment_align", int, 8),
        lds_bytes=lds,
        scratch_bytes=scratch,
        vgpr_count=(_bits(rsrc1, 0, 6) + 1) * 8,
        accum_offset=(_bits(rsrc3, 0, 6) + 1) * 4,
        sgpr_count=(_bits(rsrc1, 6, 4) // 2 + 1) * 16,
        user_sgprs=_user_sgprs(properties, preload_length, user_count),
        enable_workgroup_id_x=bool(_bits(rsrc2, 7)),
        enable_workgroup_id_y=bool(_bits(rsrc2, 8)),
        enable_workgroup_id_z=bool(_bits(rsrc2, 9)),
        workitem_dims=min(_bits(rsrc2, 11, 2), 2) + 1,
        round_mode_32=_bits(rsrc1, 12, 2),
        round_mode_16_64=_bits(rsrc1, 14, 2),
        denorm_mode_32=_bits(rsrc1, 16, 2),
        denorm_mode_16_64=_bits(rsrc1, 18, 2),
        dx10_clamp=bool(_bits(rsrc1, 21)),
        ieee_mode=bool(_bits(rsrc1, 23)),
        fp16_overflow=bool(_bits(rsrc1, 26)),
        kernarg_preload=(preload_length, _bits(preload, 7, 9)),
        args=args,
        max_workgroup_size=_field(metadata, ".max_flat_workgroup_size", int, 1024),
        spilled_vgprs=_field(metadata, ".vgpr_spill_count", int, 0),
        spilled_sgprs=_field(metadata, ".sgpr_spill_count", int, 0),
    )
