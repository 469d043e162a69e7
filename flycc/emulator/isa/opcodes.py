"""The opcodes of gfx950, read from the tables that a person can check against the ISA document.

A table row is

    number name  destination types = source types ; flags

A type is `[field:][file:]element[xN]` (see operands.py); a `-` skips one of the encoding's fields. Flags:
`e32` (has neither a VOP3, nor an SDWA, nor a DPP form), `nosdwa`, `nodpp`, `nodstsel` (SDWA selects only the
source), `opsel` (VOP3 has half selects for sources and destination), `opsel4` (it has them as four plain
bits), and those explained at the memory table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flycc.emulator.isa import table_matrix, table_memory, table_scalar, table_vector
from flycc.emulator.isa.operands import OperandType, parse_type

# A VOP3 instruction that has a short form has its number plus this.
VOP3_BASE = {"VOPC": 0x000, "VOP2": 0x100, "VOP1": 0x140}

_MEMORY_NAMES = {"FLAT": "flat", "GLOBAL": "global", "SCRATCH": "scratch", "MUBUF": "buffer"}


@dataclass(frozen=True, slots=True)
class Opcode:
    """One row: what instruction `number` of `encoding` is. A None among the types skips a field."""

    number: int
    name: str
    encoding: str
    dst: tuple[OperandType | None, ...]
    src: tuple[OperandType | None, ...]
    flags: frozenset[str] = frozenset()


def _types(text: str) -> tuple[OperandType | None, ...]:
    return tuple(None if item == "-" else parse_type(item) for item in text.split())


def _rows(encoding: str, table: str) -> Iterator[Opcode]:
    for line in table.strip().splitlines():
        row, _, flags = line.partition(";")
        left, _, src = row.partition("=")
        number, name, *dst = left.split()
        yield Opcode(
            int(number), name, encoding, _types(" ".join(dst)), _types(src), frozenset(flags.split())
        )


def _comparisons() -> Iterator[Opcode]:
    for line in table_vector.VOPC.strip().splitlines():
        first, distance, left, right, suffix, *conditions = line.split()
        for extra, prefix in ((0, "v_cmp_"), (int(distance), "v_cmpx_")):
            for index, condition in enumerate(conditions or [""]):
                name = prefix + condition + "_" * bool(condition) + suffix
                number = int(first) + index + extra
                yield Opcode(number, name, "VOPC", _types("mask"), _types(f"{left} {right}"))


def _scalar_atomics() -> Iterator[Opcode]:
    for line in table_scalar.SCALAR_ATOMIC_GROUPS.strip().splitlines():
        first, pattern, address, data = line.split()
        for index, operation in enumerate(table_scalar.SCALAR_ATOMIC_OPS.split()):
            operand = data + "x2" * (operation == "cmpswap")
            src = _types(f"{operand} {address} u32")
            name = pattern.format(operation)
            yield Opcode(int(first) + index, name, "SMEM", _types(data), src, frozenset({"atomic"}))


def _vector_memory() -> Iterator[Opcode]:
    for row in _rows("", table_memory.MEMORY):
        homes = sorted(row.flags & _MEMORY_NAMES.keys()) or list(_MEMORY_NAMES)
        if "atomic" in row.flags:
            homes.remove("SCRATCH")
        for encoding in homes:
            name = f"{_MEMORY_NAMES[encoding]}_{row.name}"
            src = () if "cache" in row.flags else _memory_sources(encoding, row.src or (None,))
            yield Opcode(row.number, name, encoding, row.dst, src, row.flags - _MEMORY_NAMES.keys())


def _memory_sources(encoding: str, data: tuple[OperandType | None, ...]) -> tuple[OperandType | None, ...]:
    """Addresses around the data, in the order of the encoding's fields."""
    if encoding == "MUBUF":
        return (*data, *_types("u32 b128 u32"))
    if encoding == "FLAT":
        return (*_types("u64"), *data)
    return (*_types("u32"), *data, *_types("u64"))


def _vop3_of(short: Opcode) -> Opcode:
    number = short.number + VOP3_BASE[short.encoding]
    return Opcode(number, short.name, "VOP3", short.dst, short.src, short.flags | {"e64"})


def _all() -> Iterator[Opcode]:
    for encoding in ("SOP1", "SOP2", "SOPC", "SOPK", "SOPP", "SMEM"):
        yield from _rows(encoding, getattr(table_scalar, encoding))
    yield from _scalar_atomics()
    short = [*_rows("VOP1", table_vector.VOP1), *_rows("VOP2", table_vector.VOP2), *_comparisons()]
    yield from short
    yield from (_vop3_of(opcode) for opcode in short if "e32" not in opcode.flags)
    yield from _rows("VOP3", table_vector.VOP3)
    yield from _rows("VOP3P", table_vector.VOP3P)
    yield from _rows("MAI", table_matrix.MAI)
    yield from _rows("DS", table_memory.DS)
    yield from _vector_memory()


OPCODES: dict[tuple[str, int], Opcode] = {(opcode.encoding, opcode.number): opcode for opcode in _all()}
