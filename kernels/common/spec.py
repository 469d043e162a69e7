"""What a kernel family hands to code generation and to the runtime."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

#: Kernel argument types: a 64-bit global pointer, or a little-endian number.
ArgType = Literal["ptr", "i64", "i32", "f32"]

_FORMAT: dict[ArgType, str] = {"ptr": "Q", "i64": "q", "i32": "i", "f32": "f"}


@dataclass(frozen=True)
class KernargLayout:
    """The kernel argument segment: (name, type) in order, each at its natural alignment."""

    fields: tuple[tuple[str, ArgType], ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.fields)

    @cached_property
    def pointers(self) -> tuple[str, ...]:
        """The names of those that are pointers."""
        return tuple(name for name, kind in self.fields if kind == "ptr")

    @cached_property
    def _offsets(self) -> dict[str, int]:
        found, end = {}, 0
        for name, kind in self.fields:
            width = struct.calcsize(f"<{_FORMAT[kind]}")
            found[name] = end + -end % width
            end = found[name] + width
        return found

    @cached_property
    def _segment(self) -> struct.Struct:
        text, end = "<", 0
        for name, kind in self.fields:
            text += "x" * (self._offsets[name] - end) + _FORMAT[kind]
            end = struct.calcsize(text)
        return struct.Struct(text)

    def offset(self, name: str) -> int:
        """Where the argument lies, in bytes from the first."""
        if name not in self._offsets:
            raise ValueError(f"kernel arguments: no {name}, there are {', '.join(self.names)}")
        return self._offsets[name]

    def pack(self, values: Mapping[str, int | float]) -> bytes:
        """The bytes of the kernel argument segment; `values` must name every argument and nothing else."""
        if values.keys() != self._offsets.keys():
            missing = sorted(self._offsets.keys() - values.keys())
            unknown = sorted(values.keys() - self._offsets.keys())
            raise ValueError(f"kernel arguments: missing {missing}, unknown {unknown}")
        try:
            return self._segment.pack(*(values[name] for name in self.names))
        except (struct.error, OverflowError):
            raise ValueError(f"kernel argument {self._misfit(values)}") from None

    def _misfit(self, values: Mapping[str, int | float]) -> str:
        """The first that its type does not hold."""
        for name, kind in self.fields:
            try:
                struct.pack(f"<{_FORMAT[kind]}", values[name])
            except (struct.error, OverflowError):
                return f"{name}: {values[name]} does not fit {kind}"
        raise AssertionError("all fit")


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch geometry: `grid` in workgroups, `block` in work-items."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel binary, before it exists.

    `key` spells out everything the trace depends on, and no problem size: two specs with one key give the
    same bytes as long as `sources` and the toolchain are the same. `build()` imports FlyDSL and returns the
    host function that launches the kernel, with placeholder arguments to trace it with.
    """

    family: str
    symbol: str
    key: str
    kernarg: KernargLayout
    sources: tuple[Path, ...]
    build: Callable[[], tuple[Any, tuple[Any, ...]]] = field(repr=False, compare=False)

    def trace(self) -> tuple[Any, tuple[Any, ...]]:
        """The FlyDSL host function and its placeholder arguments."""
        return self.build()
