"""Runs a batch of waves: which waves execute next, control flow, barriers, faults.

As long as all waves agree on the next address they run as one. When a branch splits them, the
scheduler runs one group of equal addresses at a time, the lowest address first, so that groups meet
again where the compiler made control flow join. Waves that this starves get turns of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from flycc.emulator.errors import EmulatorError
from flycc.emulator.isa.format import format_instruction
from flycc.emulator.isa.instruction import Instruction
from flycc.emulator.memory import AccessError, MemoryFault
from flycc.emulator.observe import Watch
from flycc.emulator.program import Block, Kernel
from flycc.emulator.semantics import Op, bind
from flycc.emulator.semantics.operands import (
    U64,
    first_row,
    is_vector,
    reader,
    scalar_sink,
    scalar_source,
)
from flycc.emulator.semantics.waits import COUNTER_LIMITS, COUNTERS, wait_counts
from flycc.emulator.state import EXEC, VCC, Batch

#: Addresses that mean that the waves have ended, or wait at a barrier.
END, BARRIER = -1, -2

#: Blocks that run before waves that had no turn get theirs: they may be what the others spin for.
PATIENCE = 1000

#: Memory operations that may be outstanding before the oldest complete, as counters and queues are finite.
MOST_OUTSTANDING = 512

#: "lockstep", "serial", "reverse", or a seed (an int, or ("random", int)).
WaveOrder = str | int | tuple[str, int]

#: Priorities of all waves, [waves]; of a workgroup's runnable waves those with the least one run.
Priorities = Callable[[], np.ndarray]


class RunawayKernel(EmulatorError):
    """A kernel executed more instructions than it was allowed: `executed`, when `waves` were at `address`."""

    def __init__(self, name: str, limit: int, address: int, waves: np.ndarray) -> None:
        super().__init__(
            f"kernel {name} executed more than {limit} instructions and is at {address:#x}: "
            "a loop that does not end, or max_instructions is too low for it"
        )
        self.executed, self.address, self.waves = limit, address, waves


@dataclass(slots=True)
class BoundBlock:
    """A basic block bound to a batch. `step` gives the next address: one for all, or int64 [waves]."""

    ops: list[Op]
    count: int
    step: Callable[[], int | np.ndarray]
    next: int


class Executor:
    """A batch with its bound blocks."""

    def __init__(self, kernel: Kernel, batch: Batch) -> None:
        self.kernel, self.batch = kernel, batch
        self._blocks: dict[int, BoundBlock] = {}
        self.executed = 0
        self.wave_instructions = 0

    def run(self, order: WaveOrder, max_instructions: int) -> None:
        """Execute all waves from the kernel's start to their end."""
        self.executed = self.wave_instructions = 0
        self._limit = max_instructions
        priorities = wave_priorities(order, self.batch)
        try:
            if priorities is None:
                self._run_together(self.kernel.descriptor.start)
            else:
                pcs = np.full(self.batch.waves, self.kernel.descriptor.start, np.int64)
                self._run_apart(pcs, priorities)
        except AccessError as error:
            raise self._fault(error) from None

    def _run_together(self, pc: int) -> None:
        """All waves at one address."""
        waves = self.batch.waves
        while True:
            block = self._blocks.get(pc) or self._bind(pc)
            for op in block.ops:
                op()
            self._count(block, waves, pc)
            following = block.step()
            if isinstance(following, np.ndarray):
                rejoined = self._run_apart(following, None)
                if rejoined is None:
                    return
                pc = rejoined
            elif following == END:
                return
            else:
                pc = following

    def _run_apart(self, pcs: np.ndarray, priorities: Priorities | None) -> int | None:
        """Waves at different addresses, until all of them meet again (that address) or have ended (None)."""
        batch = self.batch
        waiting, done = np.zeros(batch.waves, bool), np.zeros(batch.waves, bool)
        last_ran = np.zeros(batch.waves, np.int64)
        fair, turn = False, 0
        while True:
            ready = ~(waiting | done)
            if not ready.any():
                batch.activate(None)
                return None
            turn += 1
            if turn % PATIENCE == 0:
                fair = bool((last_ran[ready] <= turn - PATIENCE).any())
            if fair:
                pc = int(pcs[np.where(ready, last_ran, turn).argmin()])
            else:
                if priorities is not None:
                    ready = self._foremost(ready, priorities())
                pc = int(pcs[ready].min())
            active = ready & (pcs == pc)
            everyone = bool(active.all())
            if everyone and priorities is None:
                batch.activate(None)
                return pc
            last_ran[active] = turn
            batch.activate(None if everyone else active)
            block = self._blocks.get(pc) or self._bind(pc)
            for op in block.ops:
                op()
            self._count(block, int(np.count_nonzero(active)), pc)
            following = block.step()
            if isinstance(following, np.ndarray):
                pcs[active] = following[active]
            elif following == END:
                done |= active
            elif following == BARRIER:
                pcs[active] = block.next
                waiting |= active
            else:
                pcs[active] = following
            self._release(waiting, done)

    def _foremost(self, ready: np.ndarray, priorities: np.ndarray) -> np.ndarray:
        shape = (self.batch.groups, self.batch.waves_per_group)
        ranked = np.where(ready, priorities, np.inf).reshape(shape)
        return ready & (ranked == ranked.min(axis=1, keepdims=True)).reshape(-1)

    def _release(self, waiting: np.ndarray, done: np.ndarray) -> None:
        """Open the barrier of every workgroup of which all waves that have not ended are at one."""
        if waiting.any():
            shape = (self.batch.groups, self.batch.waves_per_group)
            complete = (waiting | done).reshape(shape).all(axis=1)
            if self.batch.watch is not None:
                self.batch.watch.barrier(self.batch, complete & waiting.reshape(shape).any(axis=1))
            waiting.reshape(shape)[complete] = False

    def _count(self, block: BoundBlock, waves: int, pc: int) -> None:
        for queue in (self.batch.vmcnt, self.batch.lgkmcnt, self.batch.smem):
            if len(queue) > MOST_OUTSTANDING:
                queue.wait(None, MOST_OUTSTANDING // 2)
        self.executed += block.count
        self.wave_instructions += block.count * waves
        if self.executed > self._limit:
            active = self.batch.active
            waves_here = np.arange(self.batch.waves) if active is None else np.flatnonzero(active)
            raise RunawayKernel(self.kernel.name, self._limit, pc, waves_here)

    def _bind(self, pc: int) -> BoundBlock:
        block = self.kernel.block(pc)
        ops, step = self._bind_body(block.body), self._bind_end(block)
        watch, batch = self.batch.watch, self.batch
        if watch is not None:
            ops = [_announced(batch, watch, inst, op) for inst, op in zip(block.body, ops, strict=True)]
            if block.end is not None:
                ops.append(partial(watch.instruction, batch, block.end))
        length = len(block.body) + (block.end is not None)
        bound = self._blocks[pc] = BoundBlock(ops, length, step, block.next)
        return bound

    def _bind_body(self, body: tuple[Instruction, ...]) -> list[Op]:
        batch = self.batch
        batch.fragments.written(0, len(batch.vgpr))
        landing = Landing(batch)
        ops = []
        for inst in body:
            ops.append(bind(batch, inst))
            for rows in landing.written_by(inst):
                batch.fragments.written(*rows)
        return ops

    def _bind_end(self, block: Block) -> Callable[[], int | np.ndarray]:
        end, following = block.end, block.next
        if end is None:
            return lambda: following
        if end.name == "s_branch":
            target = end.mods["target"]
            return lambda: target
        if end.name == "s_barrier":
            return self._bind_barrier(following)
        if end.name.startswith("s_endpgm"):
            return self._bind_endpgm()
        if end.name.startswith("s_cbranch"):
            return self._bind_conditional(end, following)
        return self._bind_indirect(end, following)

    def _bind_barrier(self, following: int) -> Callable[[], int | np.ndarray]:
        batch, watch = self.batch, self.batch.watch
        everyone = np.ones(batch.groups, bool)

        def step() -> int | np.ndarray:
            if batch.active is not None:
                return BARRIER
            if watch is not None:
                watch.barrier(batch, everyone)
            return following

        return step

    def _bind_endpgm(self) -> Callable[[], int | np.ndarray]:
        batch = self.batch

        def step() -> int | np.ndarray:
            batch.wait(0, 0)
            return END

        return step

    def _bind_conditional(self, end: Instruction, following: int) -> Callable[[], int | np.ndarray]:
        batch, target = self.batch, end.mods["target"]
        taken = _condition(batch, end.name.removeprefix("s_cbranch_"))

        def step() -> int | np.ndarray:
            takes = taken()
            active = takes if batch.active is None else takes[batch.active]
            count = np.count_nonzero(active)
            if count == 0:
                return following
            if count == active.size:
                return target
            return np.where(takes, target, following)

        return step

    def _bind_indirect(self, end: Instruction, following: int) -> Callable[[], int | np.ndarray]:
        """s_setpc, s_swappc and s_call: to an address from a register, saving the return address."""
        batch = self.batch
        save = scalar_sink(batch, end.dst[0], U64) if end.dst else None
        read = reader([scalar_source(batch, end.src[0], U64)]) if end.src else None

        def step() -> int | np.ndarray:
            targets = np.array(end.mods["target"]) if read is None else read()[0] - np.uint64(batch.code_base)
            targets = np.broadcast_to(targets, (batch.waves,)).astype(np.int64)
            if save is not None:
                save(np.array(batch.code_base + following, np.uint64))
            live = targets if batch.active is None else targets[batch.active]
            return int(live[0]) if (live == live[0]).all() else targets

        return step

    def _fault(self, error: AccessError) -> MemoryFault:
        batch, inst = self.batch, self.batch.at
        assert inst is not None
        wave, *lane = error.index or (0 if batch.active is None else int(np.argmax(batch.active)),)
        group = tuple(int(i) for i in batch.workgroups[wave // batch.waves_per_group])
        who = f"workgroup {group}, wave {wave % batch.waves_per_group}" + "".join(f", lane {i}" for i in lane)
        return MemoryFault(
            f"kernel {self.kernel.name}: {format_instruction(inst)} at {inst.address:#x} "
            f"accesses {error.size} bytes at {error.address:#x}, {error.why} ({who})"
        )


class Landing:
    """Which vector registers change where in straight-line code whose loads land at waits."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._everything = (0, len(batch.vgpr))
        #: Per counter, rows that a wait may change: also those of loads from before the code, until a wait for 0.
        self._pending: dict[str, list[tuple[int, int]]] = {
            "vmcnt": [self._everything],
            "lgkmcnt": [self._everything],
        }

    def written_by(self, inst: Instruction) -> list[tuple[int, int]]:
        """(first row, count) of the registers that change when `inst` executes."""
        if inst.name == "s_waitcnt":
            return [rows for counter in wait_counts(inst).items() for rows in self._waited(*counter)]
        rows = [
            (first_row(self._batch, operand), operand.count) for operand in inst.dst if is_vector(operand)
        ]
        counter = COUNTERS.get(inst.encoding)
        if counter is None:
            return rows
        self._pending[counter] += rows
        return []

    def _waited(self, counter: str, outstanding: int) -> list[tuple[int, int]]:
        if outstanding == COUNTER_LIMITS[counter]:
            return []
        rows = list(self._pending[counter])
        if outstanding == 0:
            self._pending[counter].clear()
        return rows


def _announced(batch: Batch, watch: Watch, inst: Instruction, op: Op) -> Op:
    def announced() -> None:
        watch.instruction(batch, inst)
        op()

    return announced


def _condition(batch: Batch, name: str) -> Callable[[], np.ndarray]:
    """A branch condition by its part of the mnemonic, as bool [waves]."""
    flag, vcc, lanes = batch.scc, batch.sgpr64[:, VCC // 2], batch.sgpr64[:, EXEC // 2]
    return {
        "scc0": lambda: ~flag,
        "scc1": lambda: flag,
        "vccz": lambda: vcc == 0,
        "vccnz": lambda: vcc != 0,
        "execz": lambda: lanes == 0,
        "execnz": lambda: lanes != 0,
    }[name]


def wave_priorities(order: WaveOrder, batch: Batch) -> Priorities | None:
    """The scheduling rule that `order` names; None for lockstep."""
    slots = np.arange(batch.waves) % batch.waves_per_group
    if order == "lockstep":
        return None
    if order == "serial":
        return lambda: slots
    if order == "reverse":
        return lambda: -slots
    seed = order[1] if isinstance(order, tuple) and len(order) == 2 and order[0] == "random" else order
    if isinstance(seed, int):
        generator = np.random.default_rng(seed)
        return lambda: batch.mirror(generator.random(batch.waves))
    raise ValueError(f'wave_order: got {order!r}; "lockstep", "serial", "reverse" or a seed is accepted')
