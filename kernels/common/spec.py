"""What a kernel family hands to code generation and to the runtime."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

#: Kernel argument types: a 64-bit global pointer, or a little-endian number.
ArgType = Literal["ptr", "i64", "i32", "f32"]

_FORMAT: dict[ArgType, str] = {"ptr": "Q", "i64": "q", "i32": "i", "f32": "f"}


@dataclass(frozen=True, slots=True)
class KernargLayout:
    """The kernel argument segment: (name, type) in order, each at its natural alignment."""

    fields: tuple[tuple[str, ArgType], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.fields)

    @property
    def pointers(self) -> tuple[str, ...]:
        """The names of those that are pointers."""
        return tuple(name for name, kind in self.fields if kind == "ptr")

    def offset(self, name: str) -> int:
        """Where the argument lies, in bytes from the first."""
        end = 0
        for other, kind in self.fields:
            width = struct.calcsize(f"<{_FORMAT[kind]}")
            start = end + -end % width
            if other == name:
                return start
            end = start + width
        raise ValueError(f"kernel arguments: no {name}, there are {', '.join(self.names)}")

    def pack(self, values: Mapping[str, int | float]) -> bytes:
        """The bytes of the kernel argument segment; `values` must name every argument and nothing else."""
        if values.keys() != set(self.names):
            missing = sorted(set(self.names) - values.keys())
            unknown = sorted(values.keys() - set(self.names))
            raise ValueError(f"kernel arguments: missing {missing}, unknown {unknown}")
        data = b""
        for name, kind in self.fields:
            width = struct.calcsize(f"<{_FORMAT[kind]}")
            data += bytes(-len(data) % width)
            try:
                data += struct.pack(f"<{_FORMAT[kind]}", values[name])
            except (struct.error, OverflowError):
                raise ValueError(f"kernel argument {name}: {values[name]} does not fit {kind}") from None
        return data


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
