"""Counts which instructions the unit tests execute, and ends a run that executed any with the coverage table."""

from __future__ import annotations

from pathlib import Path

import harness
import pytest

from flycc.emulator.isa.decode import decode
from flycc.emulator.isa.instruction import Instruction
from flycc.emulator.isa.opcodes import OPCODES
from flycc.emulator.program import CONTROL
from flycc.emulator.semantics import is_known

FORMS = Path(__file__).parent / "data" / "gfx950_forms.txt"

_executed: set[str] = set()
_bind = harness.bind


def _recording(batch: object, inst: Instruction) -> object:
    _executed.add(inst.name)
    return _bind(batch, inst)


harness.bind = _recording


def coverage() -> dict[str, tuple[int, int, int, int]]:
    """{encoding: (opcodes decoded, executed, of those tested in this run, decoded as LLVM does)}."""
    checked = set()
    for line in FORMS.read_text().splitlines():
        words = [int(word, 16) for word in line.partition("|")[0].split()]
        inst = decode(b"".join(word.to_bytes(4, "little") for word in words))
        checked.add(inst.name)
    table: dict[str, tuple[int, int, int, int]] = {}
    for opcode in OPCODES.values():
        known = opcode.name in CONTROL or is_known(Instruction(0, 4, opcode.name, opcode.encoding))
        facts = (True, known, known and opcode.name in _executed, opcode.name in checked)
        before = table.get(opcode.encoding, (0, 0, 0, 0))
        table[opcode.encoding] = tuple(a + b for a, b in zip(before, facts, strict=True))  # type: ignore[assignment]
    return table


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _executed:
        return
    terminalreporter.section("instructions of the emulator")
    terminalreporter.write_line("`tested` counts those that this run executed against a scalar reference")
    rows = coverage()
    rows["all"] = tuple(map(sum, zip(*rows.values(), strict=True)))  # type: ignore[assignment]
    terminalreporter.write_line(f"{'encoding':<12}{'decoded':>9}{'executed':>10}{'tested':>8}{'as LLVM':>9}")
    for name, (decoded, executed, tested, checked) in rows.items():
        terminalreporter.write_line(f"{name:<12}{decoded:9}{executed:10}{tested:8}{checked:9}")
