"""Traces: complete and exact against a plain observer, small files that come back, exports that browsers read."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from assembled import kernel
from harness import SEED

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.contracts import GemmProblem
from flycc.emulator import perfetto
from flycc.emulator.isa.format import format_instruction
from flycc.emulator.isa.registers import UNITS
from flycc.emulator.lds_banks import clocks
from flycc.emulator.observe import Access, Observer
from flycc.emulator.trace import ARRAYS, FILES, KINDS, OFF, SPACES, Trace
from flycc.emulator.trace_recorder import Recorder
from flycc.kernels import gemm

SIZE = 128


class Plain(Observer):
    """The same facts as a trace, kept as Python objects: {(workgroup, slot): [...]}."""

    def __init__(self) -> None:
        self.executed: dict = defaultdict(list)
        self.accesses: dict = defaultdict(list)

    def batch_begins(self, batch: object, groups: np.ndarray) -> None:
        self.groups = [tuple(group) for group in groups.tolist()]

    def _who(self, batch, wave: int) -> tuple:
        return self.groups[wave // batch.waves_per_group], wave % batch.waves_per_group

    def instruction(self, batch, waves: np.ndarray, inst) -> None:
        for wave in waves.tolist():
            self.executed[self._who(batch, wave)].append((inst.address, format_instruction(inst)))

    def access(self, batch, access: Access) -> None:
        for wave, addresses, mask in zip(access.waves.tolist(), access.addresses, access.mask, strict=True):
            lanes = {lane: int(addresses[lane]) for lane in np.flatnonzero(mask)}
            self.accesses[self._who(batch, wave)].append((access.space, access.kind, access.size, lanes))


def run_gemm(observers: tuple[Observer, ...], order: str | int = "lockstep") -> emulator.LaunchStats:
    problem = GemmProblem("bf16", SIZE, SIZE, SIZE)
    config = gemm.GemmConfig(64, 64, 64, waves_m=2, waves_n=2)
    compiled, extent = compile_kernel(gemm.kernel(problem, config)), gemm.launch(problem, config)
    memory = emulator.Memory()
    values = dict.fromkeys(compiled.kernarg.names, 0) | dict.fromkeys(
        ("m", "n", "k", "ld_a", "ld_b", "ld_out"), SIZE
    )
    values |= {name: memory.register(np.zeros((SIZE, SIZE), np.uint16)) for name in ("a", "b", "out")}
    loaded = emulator.load(compiled.elf).kernels[compiled.symbol]
    kernarg = compiled.kernarg.pack(values)
    return emulator.launch(
        loaded, extent.grid, extent.block, kernarg, memory, wave_order=order, observers=observers
    )


def run_divergent(observers: tuple[Observer, ...], order: str | int = "lockstep") -> emulator.LaunchStats:
    """Some waves skip the work, others have half their lanes on."""
    n = 128 * 3 + 32
    program = kernel("add_arrays", ("a", "b", "out", "n"))
    a, out = np.ones(n, np.float32), np.zeros(n, np.float32)
    module = emulator.Module(program.code, {program.name: program})
    args = [a, a, out, np.uint32(n)]
    return emulator.run(
        module, program.name, (6, 1, 1), (128, 1, 1), args, wave_order=order, observers=observers
    )


RUNS = [run_gemm, run_divergent]


@pytest.mark.parametrize("order", ["lockstep", "serial", pytest.param(SEED, id="random")])
@pytest.mark.parametrize("run", RUNS)
def test_every_instruction_of_every_wave_is_there(run, order) -> None:
    plain, recorder = Plain(), Recorder()
    stats = run((plain, recorder), order)
    trace = recorder.trace()
    assert trace.wave_instructions == stats.wave_instructions
    assert len(trace.waves) == len(plain.executed)
    for wave, (x, y, z, slot) in enumerate(trace.waves.tolist()):
        stream = trace.stream(wave)
        expected = plain.executed[(x, y, z), slot]
        assert list(zip(stream["address"].tolist(), stream["text"].tolist(), strict=True)) == expected


@pytest.mark.parametrize("run", RUNS)
def test_every_access_of_every_wave_is_there(run) -> None:
    plain, recorder = Plain(), Recorder()
    run((plain, recorder))
    trace = recorder.trace()
    recorded: dict = defaultdict(list)
    for row in trace.accesses:
        x, y, z, slot = trace.waves[row["wave"]].tolist()
        recorded[(x, y, z), slot].append(row)
    assert recorded.keys() == plain.accesses.keys()
    spaces = set()
    for who, accesses in plain.accesses.items():
        for row, (space, kind, size, lanes) in zip(recorded[who], accesses, strict=True):
            spaces.add(space)
            assert (SPACES[row["space"]], KINDS[row["kind"]]) == (space, kind)
            assert (row["size"], row["lanes"]) == (size, len(lanes))
            first, count = int(row["first_line"]), int(row["line_count"])
            touched = {at // 128 for start in lanes.values() for at in range(start, start + size)}
            assert trace.lines[first : first + count].tolist() == (
                sorted(touched) if space in ("global", "scalar") else []
            )
            if space == "lds":
                pattern = trace.patterns[row["pattern"]].tolist()
                assert {lane: at for lane, at in enumerate(pattern) if at != OFF} == lanes
                mask = np.array([at != OFF for at in pattern])
                expected = clocks(np.array(pattern), mask, size, writes=kind != "load")
                assert (row["phases"], row["clocks"]) == expected
            else:
                assert (row["pattern"], row["phases"], row["clocks"]) == (-1, 0, 0)
    assert spaces >= {"global", "scalar"} | ({"lds"} if run is run_gemm else set())


def test_accesses_belong_to_steps_of_their_wave() -> None:
    recorder = Recorder()
    run_gemm((recorder,))
    trace = recorder.trace()
    steps = trace.steps[trace.accesses["step"]]
    for wave, number, unit in zip(
        trace.accesses["wave"], steps["set"], trace.instructions["unit"][steps["instruction"]], strict=True
    ):
        assert wave in trace.set_of(number)
        assert UNITS[unit] in ("LDS", "VMEM", "SMEM")


def test_registers_and_waits_of_instructions() -> None:
    recorder = Recorder()
    run_divergent((recorder,))
    trace = recorder.trace()
    named = {}
    for row in trace.instructions:
        ranges = trace.registers[row["first_register"] : row["first_register"] + row["register_count"]]
        named[str(row["text"])] = {(FILES[f], w, first, count) for f, w, first, count in ranges.tolist()}
    load = next(ranges for text, ranges in named.items() if text.startswith("s_load_dwordx"))
    assert ("s", False, 0, 2) in load
    add = named[next(text for text in named if text.startswith("v_add_f32"))]
    assert {(file, written) for file, written, _, _ in add} == {("v", False), ("v", True)}
    waits = {
        str(r["text"]): (r["vmcnt"], r["lgkmcnt"]) for r in trace.instructions if "waitcnt" in str(r["text"])
    }
    assert waits
    assert waits == {
        text: (0 if "vmcnt(0)" in text else 63, 0 if "lgkmcnt(0)" in text else 15) for text in waits
    }


def test_chosen_workgroups_are_the_same_as_in_the_whole() -> None:
    whole, part = Recorder(), Recorder([(1, 0, 0)])
    run_divergent((whole, part))
    everything, chosen = whole.trace(), part.trace()
    assert [tuple(row)[:3] for row in chosen.waves.tolist()] == [(1, 0, 0)] * 2
    for wave, row in enumerate(chosen.waves):
        (same,) = np.flatnonzero(everything.waves == row)
        np.testing.assert_array_equal(chosen.stream(wave)["address"], everything.stream(same)["address"])
    assert chosen.wave_instructions < everything.wave_instructions
    assert set(chosen.accesses["wave"].tolist()) == {0, 1}


def test_no_chosen_workgroup_gives_an_empty_trace(tmp_path: Path) -> None:
    recorder = Recorder([(99, 0, 0)])
    run_divergent((recorder,))
    recorder.trace().save(tmp_path / "t.npz")
    trace = Trace.load(tmp_path / "t.npz")
    assert trace.wave_instructions == len(trace.waves) == len(trace.accesses) == 0
    assert perfetto.export(trace, tmp_path / "t.json") == 0


def test_files_come_back(tmp_path: Path) -> None:
    recorder = Recorder()
    stats = run_gemm((recorder,))
    trace = recorder.trace()
    trace.save(tmp_path / "t.npz")
    back = Trace.load(tmp_path / "t.npz")
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(back, name), getattr(trace, name), strict=True)
    assert back.info == trace.info
    assert back.info["grid"] == [2, 2, 1]
    assert (back.info["waves_per_workgroup"], len(trace.waves)) == (4, 16)
    assert back.info["lds_bytes"] > trace.patterns[trace.patterns != OFF].max()
    assert back.info["vgprs"] >= back.info["accum_offset"] > 0
    # Compact: less than a byte for each instruction of each wave and each byte of access records together.
    assert (tmp_path / "t.npz").stat().st_size < stats.wave_instructions + trace.accesses.nbytes


@pytest.mark.parametrize("kind", ["text", "half", "other arrays", "other version", "pickle"])
def test_other_files_are_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    recorder = Recorder()
    run_divergent((recorder,))
    recorder.trace().save(path)
    if kind == "text":
        path.write_text("no trace")
    elif kind == "half":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif kind == "other arrays":
        np.savez(path, x=np.zeros(3))
    elif kind == "pickle":
        np.savez(path, x=np.array([{}], object))
    else:
        with np.load(path) as stored:
            arrays = {**stored, "info": np.array(json.dumps({"version": 0}))}
        np.savez(path, **arrays)
    with pytest.raises(ValueError, match="is not a trace"):
        Trace.load(path)


@pytest.mark.parametrize("order", ["lockstep", "serial"])
def test_export_has_a_track_for_each_wave(order: str, tmp_path: Path) -> None:
    recorder = Recorder()
    stats = run_divergent((recorder,), order)
    assert perfetto.export(recorder.trace(), tmp_path / "t.json") == stats.wave_instructions
    shown = json.loads((tmp_path / "t.json").read_text())
    assert "not time on a GPU" in shown["otherData"]["time"]
    tracks: dict = defaultdict(list)
    for event in shown["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    assert len(tracks) == 12
    assert perfetto.COLOURS.keys() == set(UNITS)
    for events in tracks.values():
        instructions = [e for e in events if e["cat"] == "instruction"]
        times = [e["ts"] for e in instructions]
        assert times == sorted(set(times))  # one at a time
        runs = [e for e in events if e["cat"] == "unit"]
        covered = [time for run in runs for time in range(run["ts"], run["ts"] + run["dur"])]
        assert sorted(covered) == times  # each instruction is below the slice of its unit
        colour_at = {time: run["cname"] for run in runs for time in range(run["ts"], run["ts"] + run["dur"])}
        assert all(colour_at[e["ts"]] == e["cname"] for e in instructions)


def reference_clocks(addresses: list[int], lanes: list[list[int]], size: int, banks: int) -> int:
    """Bank conflicts counted one dword after another."""
    total = 0
    for phase in lanes:
        wanted: dict[int, set[int]] = defaultdict(set)
        for lane in phase:
            for byte in range(addresses[lane], addresses[lane] + size):
                wanted[byte // 4 % banks].add(byte // 4)
        total += max(map(len, wanted.values()), default=0)
    return total


B128 = [[0, 1, 2, 3, 12, 13, 14, 15, *range(20, 28)], [*range(4, 12), 16, 17, 18, 19, 28, 29, 30, 31]]


@pytest.mark.parametrize(
    ("size", "writes", "phases", "banks"),
    [
        (4, False, [list(range(64))], 64),
        (2, False, [list(range(64))], 64),
        (8, False, [list(range(32)), list(range(32, 64))], 64),
        (16, False, [*B128, *([lane + 32 for lane in phase] for phase in B128)], 64),
        (4, True, [list(range(at, at + 32)) for at in (0, 32)], 32),
        (8, True, [list(range(at, at + 16)) for at in (0, 16, 32, 48)], 32),
        (16, True, [list(range(at, at + 8)) for at in range(0, 64, 8)], 32),
    ],
)
def test_bank_conflicts(size: int, writes: bool, phases: list[list[int]], banks: int) -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(50):
        addresses = rng.integers(0, 160 * 1024 // size // rng.choice([1, 64, 1024]), 64) * size
        mask = rng.random(64) < rng.choice([0.0, 0.3, 1.0])
        active = [[lane for lane in phase if mask[lane]] for phase in phases]
        busy, total = clocks(addresses, mask, size, writes=writes)
        assert busy == sum(bool(phase) for phase in active)
        assert total == reference_clocks(addresses.tolist(), active, size, banks)


@pytest.mark.parametrize(
    ("stride", "expected"), [(0, 1), (4, 1), (8, 2), (128, 32), (256, 64), (260, 1), (64 * 4 + 8, 2)]
)
def test_strided_dword_reads(stride: int, expected: int) -> None:
    """A broadcast and consecutive dwords are free; 64 dwords apart all lanes want one bank; padding cures it."""
    assert clocks(np.arange(64) * stride, np.ones(64, bool), 4, writes=False) == (1, expected)


def test_damaged_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    recorder = Recorder()
    run_divergent((recorder,))
    recorder.trace().save(path)
    whole = path.read_bytes()
    for position in range(len(whole) // 40, len(whole), max(1, len(whole) // 40)):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        # Some bytes are of no consequence; for the others it is this error and no other.
        with suppress(ValueError):
            Trace.load(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("grid", [0, 1, 1]), ("grid", [-5, 1, 1]), ("grid", [3, 1]), ("grid", [3.5, 1, 1]), ("grid", "abc"),
        ("block", None), ("kernel", 5), ("vgprs", -8), ("vgprs", 600), ("vgprs", "x"), ("vgprs", None),
        ("waves_per_workgroup", 0), ("waves_per_workgroup", 64), ("lds_bytes", -1), ("lds_bytes", 200_000),
        ("lds_bytes", float("inf")), ("sgprs", True),
    ],
)  # fmt: skip
def test_impossible_info_is_refused(name: str, value: object, tmp_path: Path) -> None:
    recorder = Recorder()
    run_divergent((recorder,))
    trace = recorder.trace()
    replace(trace, info={**trace.info, name: value}).save(tmp_path / "t.npz")
    with pytest.raises(ValueError, match=f"is not a trace: {name} is "):
        Trace.load(tmp_path / "t.npz")


@pytest.mark.parametrize("name", ["instructions", "waves", "steps", "lines", "patterns", "set_starts"])
def test_indices_beyond_the_end_are_refused(name: str, tmp_path: Path) -> None:
    recorder = Recorder()
    run_gemm((recorder,))
    trace = recorder.trace()
    replace(trace, **{name: getattr(trace, name)[:1]}).save(tmp_path / "t.npz")
    with pytest.raises(ValueError, match=r"is not a trace: .* (beyond the end of|do not divide)"):
        Trace.load(tmp_path / "t.npz")
