"""Sanitizers: every planted fault is found where it is, and its clean twin is quiet.

A program and its twin differ in one instruction, which the fault takes out or puts in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from assembled import ENTRY, kernel, recorded
from harness import SEED

from flycc.emulator import (
    Finding,
    Kernel,
    LaunchStats,
    MemoryFault,
    Module,
    SanitizerError,
    run,
)
from flycc.emulator.elf import CodeObject, Segment
from flycc.emulator.isa.decode import decode_range
from flycc.emulator.isa.format import format_instruction

ORDERS = ["lockstep", "serial", "reverse", pytest.param(("random", SEED), id="random")]
NOP = 0xBF80_0000


@dataclass(frozen=True)
class Planted:
    """A fault: `name` of a program, the text of an instruction, and what `sanitizer` says of it.

    The fault is the program without the instruction (the `nth` of this text), or, if `by_presence`, with it.
    `site` and `earlier` are the instructions that the finding names, `what` a pattern of its text.
    """

    program: str
    text: str
    sanitizer: str
    site: str
    what: str
    earlier: str | None = None
    nth: int = 0
    by_presence: bool = False
    lane: int | None = None
    memory_address: int | None = None
    grid: int = 1
    block: int = 64
    lds: int = 0
    scratch: int = 0
    outputs: dict[str, int] = field(default_factory=lambda: {"out": 64})

    def __str__(self) -> str:
        return f"{self.program}-{self.text}-{self.nth}-{self.sanitizer}"


_UNINITIALIZED = {"lds": 1024, "scratch": 16, "outputs": {"out": 256}}
_SWAP = {"grid": 3, "block": 128, "lds": 512, "outputs": {"out": 384}}
_COPY = {"lds": 512, "outputs": {"in": 128, "out": 128}}

PLANTED = [
    Planted(
        "checked_bounds", "v_and_b32_e32 v1, 0x7c, v1", "bounds", "global_store_dword v1, v6, s[4:5]",
        "store of 4 bytes past the end of buffer out", lane=32, lds=128, scratch=16, outputs={"out": 32},
    ),
    Planted(
        "checked_bounds", "v_and_b32_e32 v2, 0x78, v2", "bounds", "ds_write_b32 v2, v0",
        "store of 4 bytes past the 128 bytes of LDS", lane=32, memory_address=128, lds=128, scratch=16,
        outputs={"out": 32},
    ),
    Planted(
        "checked_bounds", "v_and_b32_e32 v3, 12, v3", "bounds", "scratch_store_dword v3, v0, off",
        "store of 4 bytes past the 16 bytes of scratch", lane=4, memory_address=16, lds=128, scratch=16,
        outputs={"out": 32},
    ),
    Planted(
        "checked_align", "v_and_b32_e32 v1, -16, v1", "align", "ds_write_b128 v1, v[4:7]",
        "store of 16 bytes in lds, not aligned to 16", lane=1, memory_address=12, lds=1024,
        outputs={"out": 512},
    ),
    Planted(
        "checked_align", "v_and_b32_e32 v2, -8, v2", "align", "ds_write_b64 v2, v[4:5]",
        "store of 8 bytes in lds, not aligned to 8", lane=1, memory_address=12, lds=1024,
        outputs={"out": 512},
    ),
    Planted(
        "checked_align", "v_and_b32_e32 v3, -4, v3", "align", "global_store_dwordx2 v3, v[8:9], s[4:5]",
        "store of 8 bytes in global, not aligned to 4", lane=1, lds=1024, outputs={"out": 512},
    ),
    Planted(
        "checked_uninitialized", "v_mov_b32_e32 v5, 7", "uninitialized",
        "global_store_dword v1, v5, s[4:5] offset:512",
        "v5 goes to memory and is undefined, a copy of a vector register", lane=0, **_UNINITIALIZED,
    ),
    Planted(
        "checked_uninitialized", "v_mov_b32_e32 v6, 0", "uninitialized",
        "global_store_dword v1, v3, s[4:5]",
        "v1 is an address and is undefined", lane=0, **_UNINITIALIZED,
    ),
    Planted(
        "checked_uninitialized", "s_mov_b32 s6, 1", "uninitialized", "s_cbranch_scc1",
        "scc decides a branch and is undefined", **_UNINITIALIZED,
    ),
    Planted(
        "checked_uninitialized", "v_mov_b32_e32 v7, 3", "uninitialized", "s_and_saveexec_b64 s[8:9], vcc",
        "exec decides which lanes run and is undefined", **_UNINITIALIZED,
    ),
    Planted(
        "checked_uninitialized", "ds_write_b32 v1, v0", "uninitialized", "global_store_dword v1, v3, s[4:5]",
        "v3 goes to memory and is undefined, a copy of a LDS", lane=0, **_UNINITIALIZED,
    ),
    Planted(
        "checked_uninitialized", "scratch_store_dword off, v0, off offset:4", "uninitialized",
        "global_store_dword v1, v4, s[4:5] offset:256",
        "v4 goes to memory and is undefined, a copy of a scratch", lane=0, **_UNINITIALIZED,
    ),
    Planted(
        "checked_race_lds", "s_barrier", "race", "ds_read_b32 v3, v2",
        "another wave has written with no order", "ds_write_b32 v1, v0", **_SWAP,
    ),
    Planted(
        "checked_race_lds", "s_barrier", "race", "ds_write_b32 v1, v3",
        "another wave has read with no order", "ds_read_b32 v3, v2", nth=1, **_SWAP,
    ),
    Planted(
        "checked_race_lds", "s_waitcnt lgkmcnt(0)", "race", "ds_read_b32 v3, v2",
        "a write that has not been waited for", "ds_write_b32 v1, v0", **_SWAP,
    ),
    Planted(
        "checked_same_store", "v_and_b32_e32 v2, 63, v2", "race", "ds_write_b32 v1, v2",
        "another wave has written with no order", "ds_write_b32 v1, v2", block=128, lds=256,
    ),
    Planted(
        "checked_same_store", "v_and_b32_e32 v2, 63, v2", "race", "global_store_dword v1, v2, s[4:5]",
        "another wave has written with no order", "global_store_dword v1, v2, s[4:5]", block=128, lds=256,
    ),
    Planted(
        "checked_race_global", "s_barrier", "race", "global_load_dword v3, v2, s[4:5]",
        "another wave has written with no order", "global_store_dword v1, v0, s[4:5]",
        grid=3, block=128, outputs={"work": 384, "out": 384},
    ),
    Planted(
        "checked_last_group", "s_cbranch_scc1", "race", "global_load_dword v8, v1, s[4:5] offset:256",
        "another wave has written with no order", "global_store_dword v2, v3, s[4:5]",
        grid=4, outputs={"work": 256, "count": 1, "out": 64},
    ),
    Planted(
        "checked_share_load", "s_waitcnt vmcnt(0)", "race", "ds_read_b32 v3, v1",
        "another wave has written with no order", "global_load_lds_dword v2, s[4:5]", block=128, **_COPY,
    ),
    Planted(
        "checked_share_load", "s_waitcnt vmcnt(0)", "wait", "ds_read_b32 v3, v1",
        "touches LDS that a load of the same wave is still to fill", "global_load_lds_dword v1, s[4:5]",
        lane=0, memory_address=0, block=128, **_COPY,
    ),
    Planted(
        "checked_waits", "s_waitcnt lgkmcnt(0)", "wait", "global_load_dword v2, v1, s[4:5]",
        "reads s4 before", "s_load_dwordx4 s[4:7], s[0:1], 0x0", **_COPY,
    ),
    Planted(
        "checked_waits", "s_waitcnt vmcnt(1)", "wait", "v_add_u32_e32 v4, 1, v2",
        "reads v2 before", "global_load_dword v2, v1, s[4:5]", **_COPY,
    ),
    Planted(
        "checked_waits", "s_waitcnt lgkmcnt(1)", "wait", "v_add_u32_e32 v4, v4, v5",
        "reads v5 before", "ds_read_b32 v5, v1", **_COPY,
    ),
    Planted(
        "checked_waits", "s_waitcnt vmcnt(0) lgkmcnt(0)", "wait", "v_mov_b32_e32 v3, 0",
        "overwrites v3 before", "global_load_dword v3, v1, s[4:5] offset:256", **_COPY,
    ),
    Planted(
        "checked_waits", "s_waitcnt vmcnt(0) lgkmcnt(0)", "wait", "v_mov_b32_e32 v6, 0",
        "overwrites v6 before", "ds_read_b32 v6, v1", **_COPY,
    ),
    *(
        Planted(
            "checked_barriers", "s_barrier", "barrier", "s_barrier",
            f"barrier number 2 of this wave; wave {skipping} of the workgroup has ended after number 1; waves "
            "first met at different ones at", "s_endpgm", nth=skipping, block=128, outputs={"out": 128},
        )
        for skipping in (0, 1)
    ),
    Planted(
        "early_exit", "s_cbranch_scc1", "barrier", "s_barrier",
        "barrier number 1 of this wave; wave 0 of the workgroup has ended after number 0", "s_endpgm", by_presence=True,
        block=128, outputs={"out": 128},
    ),
    Planted(
        "checked_deadlock", "s_barrier", "runaway", "", "another waits at a barrier: a deadlock", "s_barrier",
        nth=1, by_presence=True, block=128, lds=16, outputs={},
    ),
    Planted("endless", "s_branch", "runaway", "s_branch", "an endless loop", by_presence=True, outputs={}),
]  # fmt: skip


def program(fault: Planted, *, clean: bool) -> Kernel:
    base = kernel(fault.program, tuple(fault.outputs), lds=fault.lds)
    code = bytearray(recorded(fault.program))
    if clean == fault.by_presence:
        found = [
            inst
            for inst in decode_range(bytes(code), ENTRY)
            if format_instruction(inst).startswith(fault.text)
        ]
        inst = found[fault.nth]
        for at in range(inst.address - ENTRY, inst.address - ENTRY + inst.size, 4):
            code[at : at + 4] = NOP.to_bytes(4, "little")
    # A program that loses its last instruction ends all the same.
    code += (0xBF81_0000).to_bytes(4, "little")
    object_ = CodeObject((Segment(ENTRY, bytes(code), False, True),), {}, {})
    return Kernel(replace(base.descriptor, scratch_bytes=fault.scratch), object_)


def go(fault: Planted, *, clean: bool, **options: object) -> LaunchStats:
    made = program(fault, clean=clean)
    arrays = [np.zeros(size, np.uint32) for size in fault.outputs.values()]
    module = Module(made.code, {made.name: made})
    size = (fault.grid, 1, 1), (fault.block, 1, 1)
    return run(module, made.name, *size, arrays, max_instructions=10_000, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("fault", PLANTED, ids=str)
def test_planted_fault_is_found(fault: Planted, order) -> None:
    # What the fault leads to may be out of bounds too, and must not end the launch.
    names = {fault.sanitizer, "bounds"}
    findings = go(fault, clean=False, sanitize=sorted(names), wave_order=order).findings
    assert {finding.sanitizer for finding in findings} <= names
    assert any(matches(fault, finding) for finding in findings), (
        "\n".join(map(str, findings)) or "no findings"
    )


def matches(fault: Planted, finding: Finding) -> bool:
    site, earlier = finding.site, finding.earlier
    return (
        re.search(re.escape(fault.what), finding.what) is not None
        and site.text.startswith(fault.site)
        and site.address >= ENTRY
        and site.workgroup[1:] == (0, 0)
        and 0 <= site.workgroup[0] < fault.grid
        and 0 <= site.wave < -(-fault.block // 64)
        and finding.kernel == fault.program
        and finding.count >= 1
        and (fault.lane is None or finding.lane == fault.lane)
        and (fault.memory_address is None or finding.memory_address == fault.memory_address)
        and (earlier is None) == (fault.earlier is None)
        and (earlier is None or fault.earlier is None or earlier.text.startswith(fault.earlier))
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("fault", PLANTED, ids=str)
def test_clean_twin_is_quiet(fault: Planted, order) -> None:
    findings = go(fault, clean=True, sanitize="all", wave_order=order).findings
    assert not findings, "\n".join(map(str, findings))


def test_findings_are_raised_where_asked_for() -> None:
    fault = PLANTED[0]
    with pytest.raises(SanitizerError, match="global_store_dword v1, v6") as caught:
        go(fault, clean=False, sanitize="bounds", raise_on_finding=True)
    assert [finding.sanitizer for finding in caught.value.findings] == ["bounds"]
    go(fault, clean=True, sanitize="bounds", raise_on_finding=True)


def test_a_fault_without_its_sanitizer_carries_the_findings() -> None:
    fault = next(f for f in PLANTED if f.program == "checked_waits" and f.text == "s_waitcnt lgkmcnt(0)")
    with pytest.raises(MemoryFault) as caught:
        go(fault, clean=False, sanitize="wait")
    assert any("reads s4 before" in note for note in caught.value.__notes__)


def test_findings_count_repetitions() -> None:
    fault = next(f for f in PLANTED if f.program == "checked_race_global")
    (finding,) = go(fault, clean=False, sanitize="race").findings
    # Every lane of two waves in three workgroups reads what the other wave has stored.
    assert finding.count == 3 * 2 * 64


def test_unknown_sanitizers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sanitize: got \['speed'\]; \"all\" or some of"):
        go(PLANTED[0], clean=True, sanitize=["bounds", "speed"])


def test_sanitizers_do_not_change_results() -> None:
    """Of programs that initialize what they use; also of the instruction count."""
    for fault in PLANTED:
        if fault.program == "endless":
            continue
        outputs = []
        for sanitize in ((), "all"):
            made = program(fault, clean=True)
            rng = np.random.default_rng(SEED)
            arrays = [rng.integers(0, 2**32, n, dtype=np.uint32) for n in fault.outputs.values()]
            if fault.program == "checked_last_group":
                arrays[1][:] = 0
            stats = run(
                Module(made.code, {made.name: made}),
                made.name,
                (fault.grid, 1, 1),
                (fault.block, 1, 1),
                arrays,
                sanitize=sanitize,
            )
            outputs.append([stats.wave_instructions, *(array.tobytes() for array in arrays)])
        assert outputs[0] == outputs[1], fault
