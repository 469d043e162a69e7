"""Hostile input: whatever the bytes of a code object, loading and launching give a result or our own error.

Three kinds of cases, chosen at random: real ELF files with broken bytes, real kernels with broken code, and
streams of single instructions of every form. What comes of each is launched with memory that a real launch
would have. A case is made from the seed and its number alone, so a failure names all that repeats it.
"""

from __future__ import annotations

import random
import re
import signal
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from assembled import ENTRY
from harness import SEED, descriptor

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.contracts import GemmProblem
from flycc.emulator.elf import CodeObject, KernelArg, Segment, UserSgpr
from flycc.emulator.isa.decode import decode
from flycc.emulator.semantics import is_known
from flycc.emulator.trace_recorder import Recorder
from flycc.kernels import gemm

#: What a case may take: instructions of a batch, and CPU seconds before it counts as a hang; the longest takes 0.3.
MAX_INSTRUCTIONS = 2000
SECONDS = 20

#: What a ValueError may be about: the launch's own arguments. Any other is a fault of the emulator.
ARGUMENT = re.compile(r"(grid|block|kernarg|dynamic_lds): ")


@contextmanager
def no_hang() -> Iterator[None]:
    """TimeoutError, which no case may end in, after SECONDS."""

    def expire(*_: object) -> None:
        raise TimeoutError(f"still running after {SECONDS} s of CPU time")

    before = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@cache
def real_elves() -> tuple[bytes, ...]:
    """Our GEMM kernels: each way to load operands, with and without transposes."""
    problems = [GemmProblem("bf16", m, 64, 64, trans_b=trans) for m in (1, 64) for trans in (False, True)]
    specs = {gemm.kernel(problem, config) for problem in problems for config in gemm.candidates(problem)}
    return tuple(compile_kernel(spec).elf for spec in sorted(specs, key=lambda spec: spec.key))


@cache
def real_forms() -> tuple[bytes, ...]:
    """One encoding of every gfx950 form that LLVM lists and the emulator executes."""
    lines = (Path(__file__).parent / "data" / "gfx950_forms.txt").read_text().splitlines()
    words = [line.partition("|")[0].split() for line in lines]
    forms = [struct.pack(f"<{len(w)}I", *(int(word, 16) for word in w)) for w in words]
    return tuple(form for form in forms if is_known(decode(form)))


def flip(rng: random.Random, data: bytearray, first: int, last: int) -> None:
    """Change some bytes of data[first:last]: bits, bytes, extremes, or a copy of another dword."""
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(first, last)
        kind = rng.random()
        if kind < 0.6:
            data[at] ^= 1 << rng.randrange(8)
        elif kind < 0.8:
            data[at] = rng.choice((0, 0xFF, 0x80, rng.randrange(256)))
        else:
            at, source = (min(at // 4 * 4, last - 4) for at in (at, rng.randrange(first, last)))
            data[at : at + 4] = data[source : source + 4]


def broken_elf(rng: random.Random) -> emulator.Module:
    data = bytearray(rng.choice(real_elves()))
    code = CodeObject.parse(bytes(data))
    text = bytes(data).index(next(s.data for s in code.segments if s.executable))
    if rng.random() < 0.05:
        del data[rng.randrange(len(data)) :]
    flip(rng, data, 0, min(text, len(data)))
    return emulator.load(bytes(data))


def broken_code(rng: random.Random) -> emulator.Module:
    data = bytearray(rng.choice(real_elves()))
    code = CodeObject.parse(bytes(data))
    (kernel,) = code.kernels.values()
    text = bytes(data).index(code.code(kernel))
    flip(rng, data, text, text + kernel.code_size)
    return emulator.load(bytes(data))


def stream(rng: random.Random) -> emulator.Module:
    """Forms in random order, some broken, then s_endpgm; registers hold what earlier instructions left."""
    code = bytearray()
    for _ in range(rng.randint(1, 12)):
        form = bytearray(rng.choice(real_forms()))
        if rng.random() < 0.2:
            flip(rng, form, 0, len(form))
        code += form
    code += struct.pack("<I", 0xBF810000)
    described = descriptor(
        name="stream",
        entry=ENTRY,
        code_size=len(code),
        kernarg_size=64,
        lds_bytes=rng.choice((0, 1024)),
        scratch_bytes=rng.choice((0, 64)),
        vgpr_count=rng.choice((32, 512)),
        accum_offset=rng.choice((8, 256)),
        user_sgprs=(UserSgpr("kernarg_segment_ptr", 0, 2),),
    )
    module = CodeObject((Segment(ENTRY, bytes(code), False, True),), {}, {"stream": described})
    return emulator.Module(module, {"stream": emulator.Kernel(described, module)})


def launch(rng: random.Random, kernel: emulator.Kernel) -> None:
    """One or two workgroups on buffers of 8 KiB; integers are the sizes of a 64 x 64 x 64 GEMM."""
    memory = emulator.Memory()
    kernarg = bytearray(kernel.descriptor.kernarg_size)
    slots = kernel.descriptor.args or tuple(KernelArg("", 8 * i, 8, "global_buffer") for i in range(8))
    for slot in slots[:64]:
        value = 64 if slot.value_kind == "by_value" else memory.register(np.zeros(8192, np.uint8))
        size = min(slot.size, 8, len(kernarg) - slot.offset)
        if size > 0:
            kernarg[slot.offset : slot.offset + size] = value.to_bytes(8, "little")[:size]
    most = min(kernel.descriptor.max_workgroup_size, 1024)
    block = 1024 if rng.random() < 0.05 else rng.choice((min(64, most), min(256, most), most))
    emulator.launch(
        kernel,
        (rng.choice((1, 2)), 1, 1),
        (max(block, 1), 1, 1),
        bytes(kernarg),
        memory,
        wave_order=rng.choice(("lockstep", "lockstep", "serial", "reverse", rng.randrange(1 << 30))),
        max_instructions=MAX_INSTRUCTIONS,
        **rng.choice(({}, {"sanitize": "all"}, {"observers": [Recorder()]})),
    )


def attack(count: int) -> Counter[str]:
    """Run `count` cases; how often each outcome came."""
    outcomes: Counter[str] = Counter()
    for number in range(count):
        rng = random.Random(f"{SEED} {number}")
        make = rng.choice((broken_elf, broken_code, stream, stream))
        try:
            with no_hang():
                for kernel in make(rng).kernels.values():
                    launch(rng, kernel)
            outcomes[f"{make.__name__}: ran to its end"] += 1
        except emulator.EmulatorError as error:
            outcomes[f"{make.__name__}: {type(error).__name__}"] += 1
        except Exception as error:
            if isinstance(error, ValueError) and ARGUMENT.match(str(error)):
                outcomes[f"{make.__name__}: refused arguments"] += 1
                continue
            error.add_note(f"FLYCC_TEST_SEED={SEED}, case {number}, a {make.__name__}")
            raise
    return outcomes


def report(outcomes: Counter[str]) -> None:
    print(f"seed {SEED}, {outcomes.total()} cases")
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:8} {outcome}")
    for kind in ("broken_elf", "broken_code", "stream"):
        assert outcomes[f"{kind}: ran to its end"]  # or the cases would test only what refuses them
        assert outcomes[f"{kind}: {'BadCodeObject' if kind == 'broken_elf' else 'MemoryFault'}"]


@pytest.mark.filterwarnings("error")
def test_hostile_input() -> None:
    report(attack(1000))


@pytest.mark.nightly
@pytest.mark.filterwarnings("error")
def test_much_hostile_input() -> None:
    report(attack(100_000))
