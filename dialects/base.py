"""The `flycc` dialect, and how a context comes to know it."""

from __future__ import annotations

from torch_mlir import ir

# torch_mlir.dialects.torch hands on the same function, after 45 ms for op classes that nothing here uses.
from torch_mlir._mlir_libs import _torchMlir as torch_dialect
from torch_mlir.dialects.ext import Dialect


class Flycc(Dialect, name="flycc"):  # type: ignore[call-arg]
    """Ops that a FlyDSL kernel can serve."""


def load(context: ir.Context) -> ir.Context:
    """Makes `context` know the torch and flycc dialects; a context that knows them stays as it is."""
    torch_dialect.register_dialect(context)
    with context, ir.Location.unknown():
        if not context.is_dialect_loaded(Flycc.DIALECT_NAMESPACE):
            Flycc.load()
    return context
