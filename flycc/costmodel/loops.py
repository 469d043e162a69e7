"""Long loops: simulate a few turns and carry on from there, where a loop's turns settle into a steady pace.

That they do is checked, not taken for granted: the turns left out execute the same operations as those simulated, in
the same order and at the same cost, turn by turn or period by period (a tile narrower than a line makes every second
or fourth turn fetch; a selection is busy now and then); the simulated ones begin when as much is outstanding as the
code's waits let be; two consecutive stretches take equally long, and so do their loads; and no unit ends up busier than
there is time. Otherwise the whole trace is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flycc.costmodel.compute_unit import Timing
from flycc.costmodel.machine import MI350, Machine
from flycc.costmodel.streams import BRANCH, LDS, NEVER, SMEM, VMEM, WAIT, Op, Program, programs
from flycc.emulator.trace import Trace

_LONGEST_PERIOD = 32  # in turns
_SETTLE = 4  # turns until the pace is steady, at least
_MEASURE = 8  # turns between the shortest and the longest piece that are simulated, at least
_FEWEST = 1 + _SETTLE + _MEASURE  # turns that a trace needs to stand for more of them
#: By how much of their time the two consecutive stretches may differ: bursts of resident workgroups meet at random.
_UNSTEADY = 0.03
#: And the sums of the times that memory operations take: a steady rise means that a queue fills and will be full later.
_FILLING = 0.005


@dataclass(frozen=True, slots=True, eq=False)
class Shortened:
    """Programs of three lengths, with as many turns between `short` and `middle` as between that and `long`, in the
    order of the original ones, which have `left` times the turns between `short` and `long` more than `long`.

    `alike` says that turns repeat those between `short` and `long`, `traced` that the trace has all of them.
    """

    short: list[Program]
    middle: list[Program]
    long: list[Program]
    left: float
    alike: bool
    traced: bool

    def level_bytes(self, index: int) -> dict[str, float]:
        """`Program.level_bytes` of the original program of that index, with all its turns."""
        few, more = self.short[index].level_bytes, self.long[index].level_bytes
        return {name: more[name] + (more[name] - few[name]) * self.left for name in more}

    def macs(self, index: int) -> float:
        few, more = self.short[index].macs, self.long[index].macs
        return more + (more - few) * self.left


@dataclass(frozen=True, slots=True)
class _Plan:
    """Turns that stay in front of those left out, and behind them, in the three pieces: `head`, `head` + `step`,
    `head` + 2 `step`, and `tail`."""

    head: int
    step: int
    tail: int

    @property
    def kept(self) -> int:
        """Turns of the longest piece."""
        return self.head + 2 * self.step + self.tail

    @property
    def cost(self) -> int:
        """Turns of all three."""
        return 3 * (self.head + self.step + self.tail)


def shorten(programs: list[Program], machine: Machine, turns: int | None = None) -> Shortened | None:
    """The programs with fewer turns of their longest loop, or None if that gains nothing or turns are not alike.

    All waves must make the same number of turns of it, each time they come to it: a workgroup that stays, and computes
    tile after tile, comes to its main loop as often. With `turns` that number is replaced: the trace is of a smaller
    problem, whose longest loop is taken to have no loop inside. Raises ValueError for `turns` that the trace cannot be
    brought to.
    """
    all_waves = [(program, ops) for program in programs for ops in program.waves]
    entries = [_longest_loop(program, ops, innermost=turns is not None) for program, ops in all_waves]
    loops = [entry for found in entries for entry in found]
    counts = {(len(ends) + 1, turned) for ends, turned in loops} if all(entries) else set()
    made, turned = counts.pop() if len(counts) == 1 else (0, 0)
    wanted = made if turns is None else made + turns - turned
    if wanted != made and (made < _FEWEST or wanted < made):
        raise ValueError(
            f"turns: got {turns}; accepted is what the trace's waves make of their longest loop or more, if all make "
            f"the same number and at least {_FEWEST}: these make {turned or 'different ones, or none'}"
        )
    if made < _FEWEST:
        return None
    streams = [ops for (_, ops), found in zip(all_waves, entries, strict=True) for _ in found]
    bounds = [ends for ends, _ in loops]
    plan = _plan(_kinds_of_turns(streams, bounds), _settling(streams, bounds, machine))
    if wanted == made and not (plan and plan.cost < made):
        return None
    alike = plan is not None
    if plan is None:  # there is nothing to go by but the latest turns
        plan = _Plan(made - _MEASURE - 1, _MEASURE // 2, 1)
    tail = plan.tail

    def piece(head: int) -> list[Program]:
        cut = iter(
            [
                _cut(ops, [ends for ends, _ in found], head, tail)
                for (_, ops), found in zip(all_waves, entries, strict=True)
            ]
        )
        return [replace(program, waves=[next(cut) for _ in program.waves]) for program in programs]

    short, middle, long = (piece(plan.head + i * plan.step) for i in range(3))
    left = (wanted - plan.kept) / (2 * plan.step)
    return Shortened(short, middle, long, left, alike, traced=wanted == made)


def loop_turns(trace: Trace, machine: Machine = MI350) -> int | None:
    """How often waves go round their longest loop that has no loop inside, each time that they come to it: what the
    `turns` of a prediction replace. None where there is none, or not all do so equally often."""
    found = {
        turned
        for program in programs(trace, machine, 1)
        for ops in program.waves
        for _, turned in _longest_loop(program, ops, innermost=True) or [([], 0)]
    }
    return found.pop() or None if len(found) == 1 else None


#: A loop each time that a wave comes to it: positions where its branch goes back, and how often that is executed.
_Entry = tuple[list[int], int]


def _longest_loop(program: Program, ops: list[Op], *, innermost: bool) -> list[_Entry]:
    """The loop with most operations of those that a wave comes to once, if that has turns enough to leave out some;
    else, or if it must be `innermost`, of those that have no loop inside."""
    address = program.addresses
    back: dict[int, list[int]] = {}
    for position, (op, following) in enumerate(pairwise(ops)):
        if op.kind == BRANCH and address[following.instruction] <= address[op.instruction]:
            back.setdefault(op.instruction, []).append(position)
    once: list[_Entry] = []
    often: list[_Entry] = []
    for branch, ends in back.items():
        first, last = address[ops[ends[0] + 1].instruction], address[branch]
        entries = _entries(ops, ends, range(first, last + 1), address)
        has_loop = any(first <= address[other] < last for other in back)
        if len(entries) == 1 and not (innermost and has_loop) and _covered(entries) > _covered(once):
            once = entries
        if not has_loop and _covered(entries) > _covered(often):
            often = entries
    if often and (innermost or not once or len(once[0][0]) + 1 < _FEWEST):
        return often
    return once


def _entries(ops: list[Op], ends: list[int], loop: range, address: list[int]) -> list[_Entry]:
    """The loop at the addresses `loop`, whose branch goes back at the positions `ends`, by the times it is come to."""
    parts = [[ends[0]]]
    for before, end in pairwise(ends):
        if all(address[op.instruction] in loop for op in ops[before:end]):
            parts[-1].append(end)
        else:
            parts.append([end])
    executed = [position for position, op in enumerate(ops) if op.instruction == ops[ends[0]].instruction]
    starts = [0, *(part[0] for part in parts[1:]), len(ops)]
    return [
        (part, sum(start <= position < following for position in executed))
        for part, start, following in zip(parts, starts[:-1], starts[1:], strict=True)
    ]


def _covered(entries: list[_Entry]) -> int:
    """Operations between the first and the last time that the branch goes back."""
    return sum(ends[-1] - ends[0] for ends, _ in entries)


def _kinds_of_turns(streams: list[list[Op]], bounds: list[list[int]]) -> list[int]:
    """A number for what all waves execute in each turn but the first one: the same where they execute the same."""
    numbers: dict[tuple[int, ...], int] = {}
    by_wave = []
    for ops, ends in zip(streams, bounds, strict=True):
        objects = list(map(id, ops))  # operations of equal cost are one object
        turns = [tuple(objects[first + 1 : last + 1]) for first, last in pairwise(ends)]
        by_wave.append([numbers.setdefault(turn, len(numbers)) for turn in turns])
    together: dict[tuple[int, ...], int] = {}
    return [together.setdefault(turn, len(together)) for turn in zip(*by_wave, strict=True)]


def _plan(kinds: list[int], settling: int) -> _Plan | None:
    """How to leave out most turns: the period, and the stretch of turns that repeat with it, that need fewest."""
    best = None
    for period in range(1, min(_LONGEST_PERIOD, len(kinds) // 2) + 1):
        first, last = _longest_run([a == b for a, b in zip(kinds, kinds[period:], strict=False)])
        last += period  # the turns from `first` + 1 to `last` repeat
        step = period * -(-_MEASURE // (2 * period))
        tail = len(kinds) - last + 1  # with the turn whose branch is not taken
        head = first + 1 + settling
        head += (last + 1 - head) % period  # so that whole periods are left out
        plan = _Plan(head, step, tail)
        if plan.kept <= len(kinds) + 2 and (best is None or plan.cost < best.cost):
            best = plan
    return best


def _longest_run(same: Sequence[bool]) -> tuple[int, int]:
    """First and one past the last of the longest stretch of True."""
    best, start = (0, 0), 0
    for i, here in enumerate([*same, False]):
        if not here:
            best = max(best, (start, i), key=lambda run: run[1] - run[0])
            start = i + 1
    return best


def _settling(streams: list[list[Op]], bounds: list[list[int]], machine: Machine) -> int:
    """Turns until as much is outstanding as the loop's waits let be, or as queues hold where it does not wait."""
    needed = _SETTLE
    for ops, ends in zip(streams, bounds, strict=True):
        turn = ops[ends[-2] + 1 : ends[-1] + 1]
        waits = [op for op in turn if op.kind == WAIT]
        for counted, allowed, queue in (
            ((VMEM,), [op.vm for op in waits], machine.l1_queue),
            ((LDS, SMEM), [op.lgkm for op in waits], machine.lds_queue),
        ):
            issued = sum(op.kind in counted for op in turn)
            if issued:
                outstanding = min((depth for depth in allowed if depth != NEVER), default=queue)
                needed = max(needed, 1 + -(-outstanding // issued))
    return needed


def _cut(ops: list[Op], entries: list[list[int]], head: int, tail: int) -> list[Op]:
    """Only the first `head` and the last `tail` turns of each time in the loop, and what stands before and after."""
    kept, start = [], 0
    for ends in entries:
        kept += ops[start : ends[head - 1] + 1]
        start = ends[len(ends) - tail] + 1
    return kept + ops[start:]


def steady(short: Timing, middle: Timing, long: Timing) -> bool:
    """Whether the two stretches between three lengths take equally long, and their memory operations, too: these take
    longer and longer while queues fill."""

    def alike(first: int, second: int, tolerance: float) -> bool:
        return abs(first - second) <= tolerance * max(first, second)

    return alike(middle.clk - short.clk, long.clk - middle.clk, _UNSTEADY) and alike(
        middle.in_flight - short.in_flight, long.in_flight - middle.in_flight, _FILLING
    )


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
        in_flight=on(short.in_flight, long.in_flight),
        events=long.events,
    )
