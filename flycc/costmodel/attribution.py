"""Where the clocks go: by cause, by instruction, by loop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from flycc.costmodel.compute_unit import STALLS, Timing
from flycc.costmodel.prediction import InstructionCost, LoopCost
from flycc.costmodel.streams import BRANCH, Program
from flycc.emulator.isa.registers import UNITS
from flycc.emulator.trace import Trace

#: What an instruction's own issue slot counts as.
EXECUTING = {
    "SALU": "salu", "VALU": "valu", "TRANS": "trans", "MFMA": "mfma", "LDS": "lds", "VMEM": "global",
    "SMEM": "scalar", "BRANCH": "branch", "SYNC": "issue",
}  # fmt: skip


def loops_of(programs: Sequence[Program]) -> list[tuple[int, int]]:
    """(first address, address of the backward branch) of each loop, innermost first.

    A loop is where a wave goes back by a branch; several branches to one address are one loop.
    """
    found: dict[int, int] = {}
    for program in programs:
        address = program.addresses
        for ops in program.waves:
            for op, following in pairwise(ops):
                if op.kind == BRANCH and address[following.instruction] <= address[op.instruction]:
                    first = address[following.instruction]
                    found[first] = max(found.get(first, 0), address[op.instruction])
    return sorted(found.items(), key=lambda loop: loop[1] - loop[0])


def by_instruction(trace: Trace, timing: Timing, loops: list[tuple[int, int]]) -> list[InstructionCost]:
    """The executed instructions in the order of their addresses; clk summed over the waves simulated."""
    waves = max(1, len(timing.ends) * int(trace.info["waves_per_workgroup"]))
    found = []
    for i, row in enumerate(trace.instructions):
        if not timing.counts[i]:
            continue
        stalls, address = timing.stalls[i], int(row["address"])
        worst = max(range(len(STALLS)), key=stalls.__getitem__)
        inside = [n for n, (first, last) in enumerate(loops) if first <= address <= last]
        found.append(
            InstructionCost(
                address=address,
                text=str(row["text"]),
                unit=UNITS[row["unit"]],
                count=timing.counts[i] / waves,
                issue_clk=timing.issued[i],
                stall_clk=sum(stalls),
                stall_cause=STALLS[worst] if stalls[worst] else "",
                loop=inside[0] if inside else -1,
            )
        )
    return sorted(found, key=lambda cost: cost.address)


def by_loop(
    trace: Trace,
    instructions: list[InstructionCost],
    timing: Timing,
    loops: list[tuple[int, int]],
) -> list[LoopCost]:
    """The loops, innermost first; what stands in an inner loop counts in the outer one as well."""
    total = sum(cost.issue_clk + cost.stall_clk for cost in instructions)
    waves = max(1, len(timing.ends) * int(trace.info["waves_per_workgroup"]))
    rows = {int(row["address"]): i for i, row in enumerate(trace.instructions)}
    found = []
    for first, last in loops:
        inside = [cost for cost in instructions if first <= cost.address <= last]
        clk = sum(cost.issue_clk + cost.stall_clk for cost in inside)
        turns = max((cost.count for cost in inside if cost.address == last), default=0.0)
        found.append(
            LoopCost(
                first=first,
                last=last,
                iterations=turns,
                clk_per_iteration=clk / waves / turns if turns else 0.0,
                share=clk / total,
                breakdown=_shares(trace, timing, [rows[cost.address] for cost in inside]),
            )
        )
    return found


def _shares(trace: Trace, timing: Timing, rows: list[int]) -> dict[str, float]:
    """Wave time of these instructions by cause, of all of them together; causes without time left out."""
    clk: dict[str, float] = {}
    for i in rows:
        executing = EXECUTING[UNITS[trace.instructions["unit"][i]]]
        clk[executing] = clk.get(executing, 0.0) + timing.issued[i]
        for cause, waited in zip(STALLS, timing.stalls[i], strict=True):
            if waited:
                clk[cause] = clk.get(cause, 0.0) + waited
    total = sum(clk.values()) or 1.0
    return {cause: share / total for cause, share in sorted(clk.items(), key=lambda item: -item[1])}


def device_shares(trace: Trace, timing: Timing, tail: float) -> dict[str, float]:
    """Shares of the time on the device by cause: of the waves' time, and `tail`, when compute units run out of work."""
    shares = _shares(trace, timing, list(range(len(trace.instructions))))
    return {**{cause: share * (1 - tail) for cause, share in shares.items()}, "tail": tail}
