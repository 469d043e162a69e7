"""Code objects: the ELF files that hold gfx950 kernels.

Layouts follow the ELF specification and LLVM's "User Guide for AMDGPU Backend" (code object V4 and later: ELF header,
note records, kernel descriptor, initial kernel execution state).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from flycc.emulator.errors import BadCodeObject

LDS_BYTES = 160 * 1024  # per compute unit
_MAX_IMAGE = 256 << 20  # far above any kernel; keeps a hostile file from asking for the machine's memory
_MAX_SEGMENTS, _MAX_SECTIONS, _MAX_SYMBOLS = 64, 1024, 1 << 16
_MAX_METADATA_DEPTH = 32

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
    count: int


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
    `kernarg_preload` is (length, offset) in dwords.
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

    @property
    def mode_register(self) -> int:
        """The MODE register's bits when a wave starts."""
        rounding = self.round_mode_32 | self.round_mode_16_64 << 2
        denormals = self.denorm_mode_32 | self.denorm_mode_16_64 << 2
        switches = self.dx10_clamp << 8 | self.ieee_mode << 9 | self.fp16_overflow << 23
        return rounding | denormals << 4 | switches


class _Reader:
    """Bounds-checked little-endian reads, so that a broken file is one kind of error."""

    def __init__(self, data: bytes | memoryview, what: str) -> None:
        self.data = data
        self.what = what

    def bytes(self, at: int, size: int) -> bytes:
        if at < 0 or size < 0 or at + size > len(self.data):
            raise BadCodeObject(
                f"{self.what} is truncated or corrupt: {size} bytes at {at:#x}, has {len(self.data)}"
            )
        return bytes(self.data[at : at + size])

    def unpack(self, layout: str, at: int) -> tuple[int, ...]:
        return struct.unpack("<" + layout, self.bytes(at, struct.calcsize("<" + layout)))

    def text(self, at: int) -> str:
        """The zero-terminated string at `at`."""
        end = bytes(self.data).find(b"\0", at) if at < len(self.data) else -1
        if end < 0:
            raise BadCodeObject(f"{self.what} has no string at {at:#x}")
        return _utf8(bytes(self.data[at:end]), self.what)


def _utf8(raw: bytes, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadCodeObject(f"{what} holds a string that is not UTF-8") from None


@dataclass(frozen=True, slots=True)
class CodeObject:
    """A parsed code object: what `parse` makes of an ELF file."""

    segments: tuple[Segment, ...]
    symbols: dict[str, Symbol]
    kernels: dict[str, Kernel]

    @staticmethod
    def parse(data: bytes) -> CodeObject:
        """Parse a gfx950 ELF file. Raises BadCodeObject for anything else, however broken."""
        reader = _Reader(memoryview(data), "the ELF file")
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
            if 0 <= at and at + size <= len(segment.data):
                return segment.data[at : at + size]
        raise BadCodeObject(f"{size} bytes at address {address:#x} are not in a loaded segment")

    def code(self, kernel: Kernel) -> bytes:
        """The kernel's machine code, which starts at `kernel.entry`."""
        return self.read(kernel.entry, kernel.code_size)


class _Headers(NamedTuple):
    program: tuple[int, int, int]  # offset, entry size, entries
    section: tuple[int, int, int]


def _check_header(reader: _Reader) -> _Headers:
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


def _load(reader: _Reader, headers: _Headers) -> tuple[tuple[Segment, ...], Any]:
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
            data = reader.bytes(start, file_size) + bytes(size - file_size)
            segments.append(Segment(address, data, bool(flags & 2), bool(flags & 1)))
        elif kind == _PT_NOTE:
            for name, note, body in _notes(reader.bytes(start, file_size)):
                if name == b"AMDGPU\0" and note == _NT_AMDGPU_METADATA:
                    metadata = _MsgPack(body).document()
    return tuple(segments), metadata


def _notes(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    reader = _Reader(data, "the note segment")
    at = 0
    while at < len(data):
        name_size, body_size, kind = reader.unpack("III", at)
        body_at = at + 12 + (name_size + 3) // 4 * 4
        yield reader.bytes(at + 12, name_size), kind, reader.bytes(body_at, body_size)
        at = body_at + (body_size + 3) // 4 * 4


def _symbols(reader: _Reader, headers: _Headers) -> dict[str, Symbol]:
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
        table = _Reader(reader.bytes(at, size), "the symbol table")
        if len(symbols) + size // 24 > _MAX_SYMBOLS:
            raise BadCodeObject(f"more than {_MAX_SYMBOLS} symbols are absurd for a code object")
        names = _Reader(reader.bytes(sections[link][4], sections[link][5]), "the string table")
        for index in range(size // 24):
            name, _, _, section, value, length = table.unpack("IBBHQQ", index * 24)
            if name and section:
                symbols[names.text(name)] = Symbol(value, length)
    return symbols


class _MsgPack:
    """A reader for the subset of MessagePack that code object metadata uses, of bounded depth and size."""

    _FIXED = {  # noqa: RUF012
        0xCA: "f", 0xCB: "d", 0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q", 0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q",
    }  # fmt: skip
    _CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}  # noqa: RUF012
    _SIZED = {  # noqa: RUF012
        0xC4: ("bin", "B"), 0xC5: ("bin", "H"), 0xC6: ("bin", "I"), 0xD9: ("str", "B"), 0xDA: ("str", "H"),
        0xDB: ("str", "I"), 0xDC: ("array", "H"), 0xDD: ("array", "I"), 0xDE: ("map", "H"), 0xDF: ("map", "I"),
    }  # fmt: skip

    def __init__(self, data: bytes) -> None:
        self._reader = _Reader(data, "the metadata note")
        self._at = 0

    def document(self) -> Any:
        """The one value that the note holds."""
        return self._value(0)

    def _take(self, layout: str) -> Any:
        """One value; MessagePack is big-endian."""
        size = struct.calcsize(">" + layout)
        (value,) = struct.unpack(">" + layout, self._reader.bytes(self._at, size))
        self._at += size
        return value

    def _value(self, depth: int) -> Any:
        if depth > _MAX_METADATA_DEPTH:
            raise BadCodeObject("the metadata note is nested too deeply")
        tag = self._take("B")
        if tag < 0x80 or tag >= 0xE0:
            return tag - (tag >> 7 << 8)
        if tag in self._CONSTANTS:
            return self._CONSTANTS[tag]
        if tag in self._FIXED:
            return self._take(self._FIXED[tag])
        if tag < 0x90:
            kind, size = "map", tag & 15
        elif tag < 0xA0:
            kind, size = "array", tag & 15
        elif tag < 0xC0:
            kind, size = "str", tag & 31
        elif tag in self._SIZED:
            kind, layout = self._SIZED[tag]
            size = self._take(layout)
        else:
            raise BadCodeObject(f"the metadata note has a value of unknown type {tag:#x}")
        # A value takes at least one byte, so a count beyond what is left fails in the loop, not in memory.
        if kind == "array":
            return [self._value(depth + 1) for _ in range(size)]
        if kind == "map":
            return dict(self._pair(depth + 1) for _ in range(size))
        raw = self._reader.bytes(self._at, size)
        self._at += size
        return raw if kind == "bin" else _utf8(raw, "the metadata note")

    def _pair(self, depth: int) -> tuple[str, Any]:
        key = self._value(depth)
        if not isinstance(key, str):
            raise BadCodeObject("the metadata note has a key that is not a string")
        return key, self._value(depth)


def _field(record: Any, key: str, kind: type, default: Any) -> Any:
    value = record.get(key, default) if isinstance(record, dict) else None
    if not isinstance(value, kind) or (kind is int and not 0 <= value < 1 << 32):
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
    descriptor = _Reader(code.read(at, 64), f"the descriptor of kernel {name}")
    lds, scratch, kernarg_size = descriptor.unpack("III", 0)
    (entry_offset,) = descriptor.unpack("q", 16)
    rsrc3, rsrc1, rsrc2, properties, preload = descriptor.unpack("IIIHH", 44)
    entry = at + entry_offset
    homes = [s for s in code.segments if s.executable and 0 <= entry - s.address < len(s.data)]
    if not homes or entry % 4:
        raise BadCodeObject(f"kernel {name} starts at {entry:#x}, which is not in a code segment")
    if lds > LDS_BYTES:
        raise BadCodeObject(f"kernel {name} wants {lds} bytes of LDS; gfx950 has {LDS_BYTES}")
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
    )
