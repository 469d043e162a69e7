"""Kernel arguments as FlyDSL sees them."""

from __future__ import annotations

from typing import Any

import flydsl.expr as fx

from flycc.kernels.common.spec import KernargLayout

_TYPES = {"i64": fx.Int64, "i32": fx.Int32, "f32": fx.Float32}


def numbers(layout: KernargLayout) -> Any:
    """The FlyDSL struct of a layout's arguments that are not pointers; pointers come first and are separate."""
    return fx.Struct[tuple(slice(name, _TYPES[kind]) for name, kind in layout.fields if kind != "ptr")]
