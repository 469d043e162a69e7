"""Kernel arguments as FlyDSL sees them: pointers, and structs of the numbers between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import groupby
from types import MappingProxyType
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from flycc.kernels.common.spec import ArgType, KernargLayout

_TYPES = {"i64": fx.Int64, "i32": fx.Int32, "f32": fx.Float32}


def numbers(layout: KernargLayout) -> list[Any]:
    """The FlyDSL struct of each run of numbers between a layout's pointers."""
    return [_struct(run) for pointers, run in _runs(layout) if not pointers]


def placeholders(
    layout: KernargLayout,
    elements: Mapping[str, Any],
    values: Mapping[str, int | float] = MappingProxyType({}),
) -> list[Any]:
    """Arguments to trace a kernel with: pointers to `elements`, by their names, and the structs of `numbers`.

    They have `values`; pointers that are not named there are null, and numbers 1.
    """
    arguments: list[Any] = []
    for pointers, run in _runs(layout):
        if pointers:
            arguments += [flyc.from_c_void_p(elements[name], int(values.get(name, 0))) for name, _ in run]
        else:
            arguments.append(_struct(run)(*(values.get(name, 1) for name, _ in run)))
    return arguments


def _runs(layout: KernargLayout) -> Iterator[tuple[bool, tuple[tuple[str, ArgType], ...]]]:
    for pointers, run in groupby(layout.fields, lambda field: field[1] == "ptr"):
        yield pointers, tuple(run)


@cache
def _struct(run: tuple[tuple[str, ArgType], ...]) -> Any:
    return fx.Struct[tuple(slice(name, _TYPES[kind]) for name, kind in run)]
