"""The constants of the torch dialect."""

from __future__ import annotations

from torch_mlir import ir

_CONSTANTS = ("torch.constant.int", "torch.constant.float", "torch.constant.bool")


def producer(value: ir.Value) -> ir.Operation | None:
    """The op that defines `value`, or None for a block argument."""
    return None if isinstance(value, ir.BlockArgument) else value.owner.operation


def constant(value: ir.Value) -> int | float | bool | None:
    """The number that `value` is known to be, or None."""
    op = producer(value)
    return op.attributes["value"].value if op is not None and op.name in _CONSTANTS else None
