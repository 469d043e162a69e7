"""A trace as Chrome trace events, which chrome://tracing and ui.perfetto.dev open: one track per wave.

The time axis is the order of execution in the emulator, not time: a step takes one "microsecond", counted from the
first step of the wave's batch, so that waves in lockstep stand above each other. On every track the upper slices are
runs of instructions of one unit, and carry its name and colour; the instructions are below them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np

from flycc.emulator.isa.registers import UNITS
from flycc.emulator.trace import KINDS, SPACES, Trace

#: Chrome's reserved colour names, by unit. Perfetto's own interface colours by the slice's name instead.
COLOURS = {
    "SALU": "grey",
    "VALU": "thread_state_running",
    "TRANS": "thread_state_runnable",
    "MFMA": "rail_response",
    "LDS": "rail_animation",
    "VMEM": "rail_load",
    "SMEM": "thread_state_iowait",
    "BRANCH": "black",
    "SYNC": "terrible",
}
TIME_NOTE = "1 us = 1 step in the emulator's order of execution; this is not time on a GPU"


def export(trace: Trace, path: str | PathLike[str]) -> int:
    """Write the JSON file; returns the number of instructions in it."""
    written = 0
    with open(path, "w") as file:
        file.write('{"otherData": ' + json.dumps({**trace.info, "time": TIME_NOTE}) + ',\n"traceEvents": [\n')
        for number, event in enumerate(events(trace)):
            file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
            written += event.get("cat") == "instruction"
        file.write("\n]}\n")
    return written


def events(trace: Trace) -> Iterator[dict[str, Any]]:
    """The events of all waves, a track after the other."""
    workgroups: dict[tuple[int, int, int], int] = {}
    details = _details(trace)
    for wave, (x, y, z, slot) in enumerate(trace.waves.tolist()):
        process = workgroups.setdefault((x, y, z), len(workgroups))
        track = {"pid": process, "tid": slot}
        if slot == 0:
            yield {**track, "ph": "M", "name": "process_name", "args": {"name": f"workgroup {x},{y},{z}"}}
        yield {**track, "ph": "M", "name": "thread_name", "args": {"name": f"wave {slot}"}}
        steps = trace.steps_of(wave)
        rows = trace.instructions[trace.steps["instruction"][steps]]
        times = steps - steps[0] if steps.size else steps
        yield from _runs(track, rows["unit"], times)
        for step, time, row in zip(steps.tolist(), times.tolist(), rows, strict=True):
            name = UNITS[row["unit"]]
            yield {
                **track,
                "ph": "X",
                "cat": "instruction",
                "name": str(row["name"]),
                "cname": COLOURS[name],
                "ts": time,
                "dur": 1,
                "args": {
                    "text": str(row["text"]),
                    "address": hex(row["address"]),
                    **details.get((step, wave), {}),
                },
            }


def _runs(track: dict[str, int], units: np.ndarray, times: np.ndarray) -> Iterator[dict[str, Any]]:
    """A slice over every run of one unit in neighbouring steps."""
    ends = np.flatnonzero((units[1:] != units[:-1]) | (times[1:] != times[:-1] + 1)) + 1
    bounds = [0, *ends.tolist(), len(units)] if len(units) else [0]
    for first, end in pairwise(bounds):
        name = UNITS[units[first]]
        start, duration = int(times[first]), int(times[end - 1] - times[first]) + 1
        yield {
            **track,
            "ph": "X",
            "cat": "unit",
            "name": name,
            "cname": COLOURS[name],
            "ts": start,
            "dur": duration,
        }


def _details(trace: Trace) -> dict[tuple[int, int], dict[str, str]]:
    """(step, wave) -> what to say of its memory accesses."""
    told: dict[tuple[int, int], dict[str, str]] = {}
    for row in trace.accesses.tolist():
        step, wave, space, kind, size, lanes, _, phases, clocks, _, lines = row
        text = f"{lanes} lanes x {size} bytes"
        if SPACES[space] == "lds":
            text += f", {clocks} LDS clocks, {clocks - phases} of them bank conflicts"
        elif lines:
            text += f", {lines} lines of 128 bytes"
        entry = told.setdefault((step, wave), {})
        entry[f"{SPACES[space]} {KINDS[kind]}" + (f" {len(entry) + 1}" if entry else "")] = text
    return told
