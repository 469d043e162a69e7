"""Traces: every instruction that every wave of a launch executed, and every memory access it made, on disk.

    recorder = Recorder()                            # or Recorder(workgroups=[(0, 0, 0)])
    launch(..., observers=(recorder,))
    recorder.trace().save("gemm.npz")
    Trace.load("gemm.npz").stream(0)

The file is an .npz of plain arrays (no pickle), all little-endian; `Trace` has them as attributes of the same
names. Indices count from 0 and point into the named array.

    instructions  what the kernel's code says, once for each address: INSTRUCTION
    registers     the register ranges those instructions name: REGISTERS, in their order
    waves         the traced waves: WAVE
    set_starts    set i of waves is set_waves[set_starts[i] : set_starts[i + 1]], in rising order
    set_waves     -> waves
    steps         in the order of execution: `instruction`, executed by all waves of `set` at once: STEP
    accesses      one for each access of each wave: ACCESS, in the order of their steps
    patterns      uint32 [n, 64]: LDS byte offsets of the lanes, OFF in lanes that take no part
    lines         uint64: numbers of the 128-byte lines (device address / 128) that accesses touch
    info          a JSON text: version, kernel, grid, block, waves_per_workgroup, and what bounds occupancy: lds_bytes
                  of a workgroup with what the launch added, vgprs of a lane (the first accum_offset of them are no
                  AGPRs), sgprs of a wave, scratch_bytes of a lane

The steps of a wave are in its program order. Between waves the order is the emulator's, one of many possible: no
time can be read from it. Register contents are not recorded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

VERSION = 1
LINE_BYTES = 128
LANES = 64

#: A lane of a pattern that takes no part.
OFF = 0xFFFFFFFF

SPACES = ("global", "scalar", "lds", "scratch", "lanes")
KINDS = ("load", "store", "atomic", "load-to-lds")
FILES = ("v", "a", "s")

#: `unit` -> UNITS. `vmcnt` and `lgkmcnt`: what an s_waitcnt lets be outstanding; 63 and 15 wait for nothing.
#: Registers are registers[first_register : first_register + register_count].
INSTRUCTION = np.dtype(
    [
        ("address", "<u8"),
        ("size", "u1"),
        ("unit", "u1"),
        ("vmcnt", "u1"),
        ("lgkmcnt", "u1"),
        ("first_register", "<u4"),
        ("register_count", "u1"),
        ("name", "<U48"),
        ("text", "<U192"),
    ]
)
#: `count` registers of FILES[file] from `first` on, read or written. What is not listed: see `isa.registers.read`.
REGISTERS = np.dtype([("file", "u1"), ("written", "?"), ("first", "<u2"), ("count", "<u2")])
#: Workgroup id and the wave's place in its workgroup.
WAVE = np.dtype([("x", "<u4"), ("y", "<u4"), ("z", "<u4"), ("slot", "<u2")])
STEP = np.dtype([("instruction", "<u4"), ("set", "<u4")])
#: `space` -> SPACES, `kind` -> KINDS; `size` bytes a lane, of `lanes` lanes that take part and are within bounds.
#: In LDS: `pattern` -> patterns, `phases` and `clocks` as `lds_banks.clocks` gives them (clocks - phases are lost to
#: bank conflicts). In global and scalar memory: lines[first_line : first_line + line_count], in rising order.
#: Elsewhere `pattern` is -1 and the counts are 0.
ACCESS = np.dtype(
    [
        ("step", "<u4"),
        ("wave", "<u4"),
        ("space", "u1"),
        ("kind", "u1"),
        ("size", "u1"),
        ("lanes", "u1"),
        ("pattern", "<i4"),
        ("phases", "<u2"),
        ("clocks", "<u2"),
        ("first_line", "<u8"),
        ("line_count", "<u2"),
    ]
)
ARRAYS = {
    "instructions": INSTRUCTION,
    "registers": REGISTERS,
    "waves": WAVE,
    "set_starts": np.dtype("<u4"),
    "set_waves": np.dtype("<u4"),
    "steps": STEP,
    "accesses": ACCESS,
    "patterns": np.dtype("<u4"),
    "lines": np.dtype("<u8"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A recorded launch; the module's docstring describes the arrays. `info` is the JSON text's content."""

    instructions: np.ndarray
    registers: np.ndarray
    waves: np.ndarray
    set_starts: np.ndarray
    set_waves: np.ndarray
    steps: np.ndarray
    accesses: np.ndarray
    patterns: np.ndarray
    lines: np.ndarray
    info: dict[str, Any]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the .npz file, compressed."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        with open(path, "wb") as file:  # a path would get ".npz" appended
            np.savez_compressed(file, info=np.array(json.dumps(self.info)), **arrays)

    @staticmethod
    def load(path: str | PathLike[str]) -> Trace:
        """Read a file that `save` wrote. Raises ValueError for any other file, OSError if there is none."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in ARRAYS}
                info = json.loads(str(stored["info"]))
        except OSError:
            raise
        except Exception as error:  # zipfile, zlib and NumPy's parser raise many kinds for damaged bytes
            raise ValueError(f"{path} is not a trace: {error}") from None
        if not isinstance(info, dict) or info.get("version") != VERSION:
            raise ValueError(f"{path} is not a trace of version {VERSION}")
        for name, dtype in ARRAYS.items():
            if arrays[name].dtype != dtype:
                raise ValueError(f"{path}: {name} is of {arrays[name].dtype}, not of {dtype}")
        if wrong := _wrong(info, arrays):
            raise ValueError(f"{path} is not a trace: {wrong}")
        return Trace(**arrays, info=info)

    def set_of(self, index: int) -> np.ndarray:
        """The waves of a set, uint32 [n]."""
        return self.set_waves[self.set_starts[index] : self.set_starts[index + 1]]

    def steps_of(self, wave: int) -> np.ndarray:
        """The steps that a wave took part in, in its program order, int64 [n]."""
        has = np.zeros(len(self.set_starts) - 1, bool)
        places = np.flatnonzero(self.set_waves == wave)
        has[np.searchsorted(self.set_starts, places, side="right") - 1] = True
        return np.flatnonzero(has[self.steps["set"]])

    def stream(self, wave: int) -> np.ndarray:
        """What a wave executed: rows of `instructions`, in program order."""
        return self.instructions[self.steps["instruction"][self.steps_of(wave)]]

    def set_sizes(self) -> np.ndarray:
        """Waves in each set, int64 [sets]."""
        return np.diff(self.set_starts.astype(np.int64))

    @property
    def wave_instructions(self) -> int:
        """Instructions, summed over waves."""
        return int(self.set_sizes()[self.steps["set"]].sum())


#: The numbers of `info` that readers rely on, and the least and the greatest that a gfx950 has.
_LIMITS = {
    "waves_per_workgroup": (1, 16),
    "vgprs": (0, 512),
    "accum_offset": (0, 512),
    "sgprs": (0, 128),
    "lds_bytes": (0, 160 * 1024),
    "scratch_bytes": (0, 1 << 32),
}
#: Columns of indices, and the array that they point into.
_POINTERS = (
    ("set_waves", None, "waves"),
    ("steps", "instruction", "instructions"),
    ("accesses", "step", "steps"),
    ("accesses", "wave", "waves"),
    ("accesses", "pattern", "patterns"),
)


def _wrong(info: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """What is wrong with the contents of a file of the right version and types; "" if nothing is."""
    if not isinstance(info.get("kernel"), str):
        return f"kernel is {info.get('kernel')!r}, not a name"
    for name in ("grid", "block"):
        sizes = info.get(name)
        if (
            not isinstance(sizes, list)
            or len(sizes) != 3
            or not all(_within(n, 1, (1 << 31) - 1) for n in sizes)
        ):
            return f"{name} is {sizes!r}, not three positive whole numbers"
    for name, (least, most) in _LIMITS.items():
        if not _within(info.get(name), least, most):
            return f"{name} is {info.get(name)!r}, not a whole number from {least} to {most}"
    for name, array in arrays.items():
        if array.shape[1:] != ((LANES,) if name == "patterns" else ()):
            return f"{name} are of shape {array.shape}"
    for name, column, target in _POINTERS:
        values = arrays[name] if column is None else arrays[name][column]
        if values.size and int(values.max()) >= len(arrays[target]):
            return f"{name} point beyond the end of {target}"
    starts = arrays["set_starts"].astype(np.int64)
    if not len(starts) or np.any(np.diff(starts) < 0) or starts[-1] > len(arrays["set_waves"]):
        return "set_starts do not divide set_waves"
    if arrays["steps"].size and int(arrays["steps"]["set"].max()) >= len(starts) - 1:
        return "steps point beyond the end of set_starts"
    first, count = arrays["accesses"]["first_line"], arrays["accesses"]["line_count"]
    if count.size and int((first + count)[count > 0].max(initial=0)) > len(arrays["lines"]):
        return "accesses point beyond the end of lines"
    return ""


def _within(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
