"""The `flycc` dialect, and how a context comes to know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


def create(
    name: str,
    operands: Sequence[ir.Value | None],
    results: Sequence[ir.Type | None],
    attributes: Mapping[str, ir.Attribute],
    *,
    before: ir.Operation,
    segmented: bool,
) -> Any:
    """Creates the op `name` in front of `before`, with its location; None stands for what is absent.

    `segmented` says that operands and results can be absent. Returns the op's view. The ops' own constructors
    would drop attributes that are false.
    """
    given = dict(attributes)
    with before.context:
        for kind, values in (("operand", operands), ("result", results)) if segmented else ():
            counts = ir.DenseI32ArrayAttr.get([int(value is not None) for value in values])
            given[f"{kind}SegmentSizes"] = counts
        op = ir.Operation.create(
            name,
            [result for result in results if result is not None],
            [operand for operand in operands if operand is not None],
            given,
            loc=before.location,
            ip=ir.InsertionPoint(before),
        )
    return op.opview
