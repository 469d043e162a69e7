"""Kernels as the executor sees them: decoded basic blocks, found by following control flow from the start."""

from __future__ import annotations

from dataclasses import dataclass, field

from flycc.emulator.elf import CodeObject
from flycc.emulator.elf import Kernel as Descriptor
from flycc.emulator.errors import EmulatorError
from flycc.emulator.isa.decode import decode
from flycc.emulator.isa.instruction import Instruction
from flycc.emulator.semantics import UnsupportedInstruction, is_known

_CONDITIONAL = frozenset(
    f"s_cbranch_{condition}" for condition in ("scc0", "scc1", "vccz", "vccnz", "execz", "execnz")
)
_ENDS = frozenset(("s_endpgm", "s_endpgm_saved", "s_endpgm_ordered_ps_done"))
_INDIRECT = frozenset(("s_setpc_b64", "s_swappc_b64"))

#: Instructions that end a basic block.
CONTROL = _CONDITIONAL | _ENDS | _INDIRECT | {"s_branch", "s_barrier", "s_call_b64"}


@dataclass(frozen=True, slots=True)
class Block:
    """Straight-line code: `body`, then `end` (of CONTROL; None where another block begins), `next`."""

    start: int
    body: tuple[Instruction, ...]
    end: Instruction | None
    next: int


@dataclass(eq=False)
class Kernel:
    """A kernel of a loaded code object, ready to launch.

    `descriptor` is what the ELF says about it. Blocks are decoded on demand and kept; `states` keeps
    what the executor wants to reuse from launch to launch.
    """

    descriptor: Descriptor
    code: CodeObject
    states: dict[tuple[int, ...], object] = field(default_factory=dict)
    _decoded: dict[int, Instruction] = field(default_factory=dict)
    _leaders: set[int] = field(default_factory=set)
    _blocks: dict[int, Block] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.descriptor.name

    def check(self) -> None:
        """Decode what direct branches reach. Raises UnsupportedInstruction for what cannot be executed."""
        if not self._leaders:
            self._explore(self.descriptor.start)

    def block(self, address: int) -> Block:
        """The basic block that starts at a virtual address."""
        block = self._blocks.get(address)
        if block is None:
            if address not in self._leaders:
                self._explore(address)
            block = self._blocks[address] = self._build(address)
        return block

    def instruction(self, address: int) -> Instruction:
        """The decoded instruction at a virtual address, in an executable segment."""
        inst = self._decoded.get(address)
        if inst is None:
            for segment in self.code.segments:
                at = address - segment.address
                if segment.executable and 0 <= at < len(segment.data):
                    inst = self._decoded[address] = decode(segment.data[at : at + 16], address)
                    return inst
            raise EmulatorError(f"kernel {self.name} runs to {address:#x}, which is not in a code segment")
        return inst

    def _explore(self, start: int) -> None:
        pending = [start]
        while pending:
            address = pending.pop()
            if address in self._leaders:
                continue
            self._leaders.add(address)
            while True:
                inst = self.instruction(address)
                address += inst.size
                if inst.name not in CONTROL:
                    if not is_known(inst):
                        raise UnsupportedInstruction(inst, "is not emulated")
                    continue
                if "target" in inst.mods:
                    pending.append(inst.mods["target"])
                if inst.name not in _ENDS | _INDIRECT | {"s_branch"}:
                    pending.append(address)
                break

    def _build(self, start: int) -> Block:
        body: list[Instruction] = []
        address = start
        while True:
            inst = self.instruction(address)
            address += inst.size
            if inst.name in CONTROL:
                return Block(start, tuple(body), inst, address)
            body.append(inst)
            if address in self._leaders:
                return Block(start, tuple(body), None, address)


@dataclass(frozen=True, slots=True)
class Module:
    """A loaded code object: its kernels by name."""

    code: CodeObject
    kernels: dict[str, Kernel]


def load(elf: bytes) -> Module:
    """Load a gfx950 ELF file. Raises BadCodeObject for anything else, however broken."""
    code = CodeObject.parse(elf)
    return Module(code, {name: Kernel(descriptor, code) for name, descriptor in code.kernels.items()})
