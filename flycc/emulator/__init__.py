"""The emulated gfx950: ELF and memory in, memory out. Stands alone: numpy and the standard library only.

memory = Memory()
address = memory.register(array)
kernel = load(elf).kernels["name"]
launch(kernel, grid=(8, 1, 1), block=(256, 1, 1), kernarg=struct.pack("<Q", address), memory=memory)
"""

from flycc.emulator.elf import CodeObject
from flycc.emulator.errors import BadCodeObject, EmulatorError, UnknownInstruction
from flycc.emulator.execute import RunawayKernel
from flycc.emulator.launch import LaunchStats, launch, run
from flycc.emulator.memory import Memory, MemoryFault
from flycc.emulator.observe import Access, Observer
from flycc.emulator.program import Kernel, Module, load
from flycc.emulator.sanitize import Finding, SanitizerError
from flycc.emulator.semantics.operands import UnsupportedInstruction

__all__ = [
    "Access",
    "BadCodeObject",
    "CodeObject",
    "EmulatorError",
    "Finding",
    "Kernel",
    "LaunchStats",
    "Memory",
    "MemoryFault",
    "Module",
    "Observer",
    "RunawayKernel",
    "SanitizerError",
    "UnknownInstruction",
    "UnsupportedInstruction",
    "launch",
    "load",
    "run",
]
