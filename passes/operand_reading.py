"""The ways to read a matrix operand once the views in front of it are looked through.

A reading is sound by itself as long as it looks through transposes, copies and expands that change nothing.
An expand that really broadcasts, or a view that flattens batch dimensions, is sound only in a product whose
result has the batch dimensions that the reading has lost or regained; the caller checks that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch_mlir import ir

from flycc.dialects.gemm import logical
from flycc.dialects.tensor import Dims, same, same_dims, stamped
from flycc.passes.torch_ir import constant, int_list, producer


@dataclass(frozen=True)
class Reading:
    """`value`, transposed if `transposed`, is the operand.

    `looked_through` are the ops between. `broadcast` says that one of them is an expand that repeats batches.
    `flattened` are the leading dimensions that one of them, a view, makes one of; None if none does.
    `may_flatten` says that a view may still do so.
    """

    value: ir.Value
    transposed: bool = False
    broadcast: bool = False
    flattened: Dims | None = None
    may_flatten: bool = False
    looked_through: tuple[ir.Operation, ...] = ()

    @property
    def dims(self) -> Dims:
        """Logical shape: as the operand enters the product."""
        return logical(dims_of(self.value), self.transposed)


def readings(operand: ir.Value, *, transposed: bool = False, may_flatten: bool = False) -> list[Reading]:
    """Every reading of `operand`, nearest first.

    `transposed` says that the product takes the operand transposed (as `linear` takes its weight).
    `may_flatten` says that the first dimension of the operand is one that batches may be flattened into.
    """
    found = [Reading(operand, transposed, may_flatten=may_flatten)]
    while (op := producer(found[-1].value)) is not None and (step := _STEPS.get(op.name)) is not None:
        further = step(op, found[-1])
        if further is None:
            break
        found.append(replace(further, looked_through=(*further.looked_through, op)))
    return found


def dims_of(value: ir.Value) -> Dims:
    """Shape of a tensor as far as it is known; () for what is none."""
    tensor = stamped(value)
    return () if tensor is None else tensor.dims


def _through_transpose(op: ir.Operation, reading: Reading) -> Reading | None:
    rank = len(dims_of(op.operands[0]))
    if rank < 2 or not _swaps_last_two(op, rank):
        return None
    return replace(reading, value=op.operands[0], transposed=not reading.transposed)


def _swaps_last_two(op: ir.Operation, rank: int) -> bool:
    if op.name == "torch.aten.t":
        return True
    if op.name == "torch.aten.transpose.int":
        axes = [constant(axis) for axis in list(op.operands)[1:]]
        return {axis % rank for axis in axes if axis is not None} == {rank - 2, rank - 1}
    order = int_list(op.operands[1])
    return order is not None and [axis % rank for axis in order] == [*range(rank - 2), rank - 1, rank - 2]


def _through_copy(op: ir.Operation, reading: Reading) -> Reading:
    return replace(reading, value=op.operands[0])


def _through_expand(op: ir.Operation, reading: Reading) -> Reading | None:
    source, target = dims_of(op.operands[0]), dims_of(op.results[0])
    if len(source) < 2 or not same_dims(source[-2:], target[-2:]):
        return None
    return replace(
        reading, value=op.operands[0], broadcast=reading.broadcast or not same_dims(source, target)
    )


def _through_view(op: ir.Operation, reading: Reading) -> Reading | None:
    source, target = dims_of(op.operands[0]), dims_of(op.results[0])
    if same_dims(source, target):
        return replace(reading, value=op.operands[0])
    # In a matrix the rows are what batches are flattened into; transposed they would be the summed dimension.
    kept = len(target) - 1
    if not reading.may_flatten or (kept == 1 and reading.transposed):
        return None
    if len(source) <= len(target) or not all(map(same, source[-kept:], target[-kept:])):
        return None
    return replace(reading, value=op.operands[0], flattened=source[:-kept], may_flatten=False)


_STEPS: dict[str, Callable[[ir.Operation, Reading], Reading | None]] = {
    "torch.aten.t": _through_transpose,
    "torch.aten.transpose.int": _through_transpose,
    "torch.aten.permute": _through_transpose,
    "torch.aten.clone": _through_copy,
    "torch.aten.detach": _through_copy,
    "torch.aten.alias": _through_copy,
    "torch.aten.expand": _through_expand,
    "torch.aten.view": _through_view,
    "torch.aten._unsafe_view": _through_view,
    "torch.aten.reshape": _through_view,
}
