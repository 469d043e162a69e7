"""What a launch's trace says of its memory accesses and of how many waves fit onto a compute unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from flycc import emulator
from flycc.emulator.trace import KINDS, LINE_BYTES, SPACES, Trace
from flycc.emulator.trace_recorder import Recorder
from flycc.kernels.common.machine import LDS_BYTES
from flycc.kernels.common.spec import Launch

#: Of a SIMD: registers that its waves share, in allocations of VGPR_GRANULE, and the most waves.
VGPRS, VGPR_GRANULE, MAX_WAVES, SIMDS = 512, 8, 8, 4


@dataclass
class Traffic:
    """Of the workgroups that were traced. `requested` and `lines`, by operand: bytes that lanes asked for, and bytes of
    the 128-byte lines that each workgroup touched, once for each. `widths`: (operand, "load" or "store", bytes a lane)
    -> accesses of waves.
    """

    requested: Counter[str] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)
    widths: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    lds_clocks: int = 0
    lds_conflict_clocks: int = 0
    waves_per_unit: int = 0


def traffic(
    kernel: emulator.Kernel,
    geometry: Launch,
    kernarg: bytes,
    memory: emulator.Memory,
    operands: Mapping[str, tuple[int, int]],
    workgroups: Sequence[tuple[int, int, int]] | None = None,
) -> Traffic:
    """Launch `kernel`, on `workgroups` of its grid if given. `operands`: device address and bytes by name."""
    recorder = Recorder()
    emulator.launch(
        kernel,
        geometry.grid,
        geometry.block,
        kernarg,
        memory,
        observers=(recorder,),
        workgroups=workgroups,
    )
    trace = recorder.trace()
    result = Traffic(waves_per_unit=waves_per_unit(trace))
    lds = trace.accesses[trace.accesses["space"] == SPACES.index("lds")]
    result.lds_clocks = int(lds["clocks"].sum())
    result.lds_conflict_clocks = result.lds_clocks - int(lds["phases"].sum())
    touched: set[tuple[str, tuple[int, int, int], int]] = set()
    names = list(operands)
    starts = np.array([operands[name][0] for name in names], np.uint64)
    order = np.argsort(starts)
    in_memory = trace.accesses["space"] == SPACES.index("global")
    for access in trace.accesses[in_memory & (trace.accesses["line_count"] > 0)]:
        first, count = int(access["first_line"]), int(access["line_count"])
        lines = trace.lines[first : first + count]
        # The last operand that starts at or before the end of the first line is the one that is accessed.
        end = int(lines[0]) * LINE_BYTES + LINE_BYTES - 1
        name = names[order[int(np.searchsorted(starts[order], end, side="right")) - 1]]
        result.requested[name] += int(access["lanes"]) * int(access["size"])
        result.widths[name, KINDS[access["kind"]], int(access["size"])] += 1
        wave = trace.waves[access["wave"]]
        group = (int(wave["x"]), int(wave["y"]), int(wave["z"]))
        touched |= {(name, group, int(line)) for line in lines}
    for name, _, _ in touched:
        result.lines[name] += LINE_BYTES
    return result


def waves_per_unit(trace: Trace) -> int:
    """How many waves of such workgroups a compute unit holds."""
    info = trace.info
    per_group = info["waves_per_workgroup"]
    allocated = -(-max(info["vgprs"], 1) // VGPR_GRANULE) * VGPR_GRANULE
    by_registers = SIMDS * min(MAX_WAVES, VGPRS // allocated) // per_group
    by_lds = LDS_BYTES // info["lds_bytes"] if info["lds_bytes"] else by_registers
    return min(by_registers, by_lds) * per_group
