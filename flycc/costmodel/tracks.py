"""The modelled timeline of a compute unit as tracks of slices, and as Chrome trace events for ui.perfetto.dev.

A wave's track has no gaps: it waits, for a cause, or has issued an instruction and goes on to the next one. A matrix
pipe's track shows what it executes. All times are modelled, in clk.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from flycc.costmodel.attribution import EXECUTING
from flycc.costmodel.compute_unit import Event
from flycc.emulator.isa.registers import UNITS
from flycc.emulator.trace import Trace

TIME_NOTE = "modelled: 1 us stands for 1 clk of a compute unit in the launch's first round"


@dataclass(frozen=True, slots=True)
class Slice:
    """From `start` to `end` a wave waits for `cause`, or executes (`stalled` is False) what counts as `cause`.

    `instruction` is the row of the trace's instructions, `done` when its result is there.
    """

    start: int
    end: int
    cause: str
    stalled: bool
    instruction: int
    done: int


def tracks(trace: Trace, events: Iterable[Event]) -> dict[tuple[int, int], list[Slice]]:
    """The slices of each wave, in order and without overlap, by (workgroup, wave) in rising order."""
    by_wave: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        by_wave.setdefault((event.group, event.wave), []).append(event)
    causes = [EXECUTING[UNITS[unit]] for unit in trace.instructions["unit"]]
    return {wave: list(_slices(by_wave[wave], causes)) for wave in sorted(by_wave)}


def _slices(events: Sequence[Event], causes: Sequence[str]) -> Iterator[Slice]:
    for event, after in zip(events, [*events[1:], None], strict=True):
        if event.issue > event.ready:
            yield Slice(event.ready, event.issue, event.stall, True, event.instruction, event.end)
        until = after.ready if after else event.end
        yield Slice(event.issue, until, causes[event.instruction], False, event.instruction, event.end)


def export(launches: Sequence[tuple[str, Trace, Sequence[Event]]], path: str | PathLike[str]) -> int:
    """Write named launches, one after another in time, as a JSON file; returns the number of instructions in it."""
    written = 0
    with open(path, "w") as file:
        file.write('{"otherData": ' + json.dumps({"time": TIME_NOTE}) + ',\n"traceEvents": [\n')
        for number, event in enumerate(_chrome_events(launches)):
            file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
            written += event.get("cat") == "instruction"
        file.write("\n]}\n")
    return written


def _chrome_events(launches: Sequence[tuple[str, Trace, Sequence[Event]]]) -> Iterator[dict[str, Any]]:
    process = began = 0
    for name, trace, events in launches:
        groups: dict[int, int] = {}
        simds = {(event.group, event.wave): event.simd for event in events}
        for (group, wave), slices in tracks(trace, events).items():
            if group not in groups:
                groups[group] = process = process + 1
                yield _named("process", process, 0, f"{name}: workgroup {group}")
            yield _named("thread", process, wave, f"wave {wave}, SIMD {simds[group, wave]}")
            for piece in slices:
                yield {
                    **_slice(process, wave, began + piece.start, piece.end - piece.start),
                    **_described(trace, piece),
                }
        process += 1
        yield _named("process", process, 0, f"{name}: matrix pipes")
        for simd in sorted(set(simds.values())):
            yield _named("thread", process, simd, f"SIMD {simd}")
        for event in events:
            row = trace.instructions[event.instruction]
            if UNITS[row["unit"]] == "MFMA":
                yield {
                    **_slice(process, event.simd, began + event.issue, event.end - event.issue),
                    "cat": "mfma",
                    "name": str(row["name"]),
                    "args": {"workgroup": event.group, "wave": event.wave},
                }
        began += max((event.end for event in events), default=0)


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": f"{what}_name", "args": {"name": name}}


def _slice(process: int, thread: int, start: int, duration: int) -> dict[str, Any]:
    return {"ph": "X", "pid": process, "tid": thread, "ts": start, "dur": duration}


def _described(trace: Trace, piece: Slice) -> dict[str, Any]:
    row = trace.instructions[piece.instruction]
    told = {"text": str(row["text"]), "address": hex(row["address"])}
    if piece.stalled:
        return {"cat": "stall", "name": piece.cause, "args": told}
    return {
        "cat": "instruction",
        "name": str(row["name"]),
        "args": {**told, "result after": f"{piece.done - piece.start} clk"},
    }
