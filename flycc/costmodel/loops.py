"""Long loops: simulate a few turns and carry on from there, for a loop's turns settle into a steady pace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from flycc.costmodel.compute_unit import Timing
from flycc.costmodel.streams import BRANCH, Op, Program

#: Turns are left out in multiples of this: a tile narrower than a line makes every second or fourth turn fetch.
_PERIOD = 4
_SETTLE = 4  # turns until the pace is steady, at least
_MEASURE = 8  # turns between the two lengths that are simulated


@dataclass(frozen=True, slots=True, eq=False)
class Shortened:
    """Programs with `short` and `long` loops of `_MEASURE` turns' difference, in the order of the original ones, which
    have `left` times that difference more than `long`."""

    short: list[Program]
    long: list[Program]
    left: float

    def level_bytes(self, index: int) -> dict[str, float]:
        """`Program.level_bytes` of the original program of that index, with all its turns."""
        few, more = self.short[index].level_bytes, self.long[index].level_bytes
        return {name: more[name] + (more[name] - few[name]) * self.left for name in more}

    def macs(self, index: int) -> float:
        few, more = self.short[index].macs, self.long[index].macs
        return more + (more - few) * self.left


def shorten(programs: list[Program], turns: int | None = None) -> Shortened | None:
    """The programs with fewer turns of their longest loop, or None if that gains nothing.

    All waves must make the same number of turns of it, in one go. With `turns` that number is replaced: the trace is
    of a smaller problem. Raises ValueError for `turns` that the trace cannot be brought to.
    """
    loops = [_longest_loop(program, ops) for program in programs for ops in program.waves]
    counts = {(len(ends), turned) for ends, turned in loops}
    traced, turned = counts.pop() if len(counts) == 1 else (0, 0)
    wanted = traced if turns is None else traced + turns - turned
    short = _SETTLE + traced % _PERIOD
    long = short + _MEASURE
    if traced < long or wanted < traced or (turns is None and wanted <= long + short):
        if turns is None or turns == turned:
            return None
        made = turned or "different ones, or none"
        raise ValueError(
            f"turns: got {turns}; accepted is what the trace's waves make of their longest loop or more, if all make "
            f"the same number and at least {_SETTLE + _PERIOD + _MEASURE}: these make {made}"
        )
    bounds = iter(loops)
    both: tuple[list[Program], list[Program]] = ([], [])
    for program in programs:
        mine = [next(bounds) for _ in program.waves]
        for found, keep in zip(both, (short, long), strict=True):
            waves = [_cut(ops, ends, keep) for ops, (ends, _) in zip(program.waves, mine, strict=True)]
            found.append(replace(program, waves=waves))
    return Shortened(both[0], both[1], (wanted - long) / _MEASURE)


def _longest_loop(program: Program, ops: list[Op]) -> tuple[list[int], int]:
    """The loop with most operations that is entered once: positions where its branch goes back, and how often it is
    executed. Without such a loop [] and 0."""
    address = program.addresses
    back: dict[int, list[int]] = {}
    for position, (op, following) in enumerate(pairwise(ops)):
        if op.kind == BRANCH and address[following.instruction] <= address[op.instruction]:
            back.setdefault(op.instruction, []).append(position)
    best: list[int] = []
    for ends in back.values():
        first, last = address[ops[ends[0] + 1].instruction], address[ops[ends[0]].instruction]
        inside = all(first <= address[op.instruction] <= last for op in ops[ends[0] : ends[-1] + 1])
        if inside and ends[-1] - ends[0] > (best[-1] - best[0] if best else 0):
            best = ends
    return best, sum(op.instruction == ops[best[0]].instruction for op in ops) if best else 0


def _cut(ops: list[Op], ends: list[int], keep: int) -> list[Op]:
    """Without the turns after the first `keep` - 1 of `ends`, but with the last one: prologue and epilogue stay."""
    removed = len(ends) - keep
    return ops[: ends[keep - 2] + 1] + ops[ends[keep - 2 + removed] + 1 :]


def extrapolate(short: Timing, long: Timing, left: float) -> Timing:
    """The timing `left` times the difference beyond `long`; the events are those of `long`."""

    def on(a: float, b: float) -> int:
        return round(b + (b - a) * left)

    return Timing(
        clk=on(short.clk, long.clk),
        ends=[on(a, b) for a, b in zip(short.ends, long.ends, strict=True)],
        counts=[on(a, b) for a, b in zip(short.counts, long.counts, strict=True)],
        issued=[on(a, b) for a, b in zip(short.issued, long.issued, strict=True)],
        stalls=[
            [max(0, on(a, b)) for a, b in zip(*rows, strict=True)]
            for rows in zip(short.stalls, long.stalls, strict=True)
        ],
        mfma_busy=on(short.mfma_busy, long.mfma_busy),
        valu_busy=on(short.valu_busy, long.valu_busy),
        lds_busy=on(short.lds_busy, long.lds_busy),
        l1_busy=on(short.l1_busy, long.l1_busy),
        link_busy=on(short.link_busy, long.link_busy),
        deep_busy=on(short.deep_busy, long.deep_busy),
        events=long.events,
    )
