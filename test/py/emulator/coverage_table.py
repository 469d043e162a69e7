"""The coverage table: which instructions are decoded, executed, tested, and decoded as LLVM does."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

import pytest

from flycc.emulator.isa.decode import decode
from flycc.emulator.isa.instruction import Instruction
from flycc.emulator.isa.opcodes import OPCODES
from flycc.emulator.program import CONTROL
from flycc.emulator.semantics import is_known

FORMS = Path(__file__).parent / "data" / "gfx950_forms.txt"


def coverage(executed: Set[str]) -> dict[str, tuple[int, int, int, int]]:
    """{encoding: (opcodes decoded, executed, of those in `executed`, decoded as LLVM does)}."""
    checked = set()
    for line in FORMS.read_text().splitlines():
        words = [int(word, 16) for word in line.partition("|")[0].split()]
        inst = decode(b"".join(word.to_bytes(4, "little") for word in words))
        checked.add(inst.name)
    table: dict[str, tuple[int, int, int, int]] = {}
    for opcode in OPCODES.values():
        known = opcode.name in CONTROL or is_known(Instruction(0, 4, opcode.name, opcode.encoding))
        facts = (True, known, known and opcode.name in executed, opcode.name in checked)
        before = table.get(opcode.encoding, (0, 0, 0, 0))
        table[opcode.encoding] = tuple(a + b for a, b in zip(before, facts, strict=True))  # type: ignore[assignment]
    return table


def write(terminalreporter: pytest.TerminalReporter, executed: Set[str]) -> None:
    """The table, at the end of a run that tested the instructions `executed`."""
    terminalreporter.section("instructions of the emulator")
    terminalreporter.write_line("`tested` counts those that this run executed against a scalar reference")
    rows = coverage(executed)
    rows["all"] = tuple(map(sum, zip(*rows.values(), strict=True)))  # type: ignore[assignment]
    terminalreporter.write_line(f"{'encoding':<12}{'decoded':>9}{'executed':>10}{'tested':>8}{'as LLVM':>9}")
    for name, (decoded, emulated, tested, checked) in rows.items():
        terminalreporter.write_line(f"{name:<12}{decoded:9}{emulated:10}{tested:8}{checked:9}")
