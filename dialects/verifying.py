"""What the verifiers of all ops share."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch_mlir import ir

from flycc.dialects.tensor import Dims, Tensor, contradict, show, typed


class Fault(Exception):
    """What is wrong with an op; its text is the verifier's message."""


def verify(op: ir.Operation, check: Callable[[ir.Operation], None]) -> bool:
    """Whether `check` finds no Fault in `op`; emits the one it finds."""
    try:
        check(op)
    except Fault as fault:
        op.location.emit_error(f"{op.name}: {fault}")
        return False
    return True


def has_attributes(op: ir.Operation, kinds: dict[str, type[ir.Attribute]]) -> bool:
    """Whether `op` has attributes of these names and kinds."""
    return all(name in op.attributes and isinstance(op.attributes[name], kinds[name]) for name in kinds)


def segments(op: ir.Operation, attribute: str, values: Iterable[ir.Value], names: str) -> dict[str, ir.Value]:
    """The operands or results of `op` by their names, given in order and separated by spaces.

    `attribute` says of each name whether there is one: an array of 0 and 1. A name that ends in "?" may be
    absent. Raises Fault.
    """
    wanted, values = names.split(), list(values)
    if attribute not in op.attributes:
        raise Fault(f"{attribute} is missing; it must have {len(wanted)} entries")
    given = op.attributes[attribute]
    counts = list(given) if isinstance(given, ir.DenseI32ArrayAttr) else []
    fits = len(counts) == len(wanted) and all(
        count == 1 or (count == 0 and name.endswith("?")) for count, name in zip(counts, wanted, strict=True)
    )
    if not fits or sum(counts) != len(values):
        shape = ", ".join("0 or 1" if name.endswith("?") else "1" for name in wanted)
        raise Fault(f"{attribute} must be {shape}, {len(values)} in all, got {given}")
    present = [name.rstrip("?") for name, count in zip(wanted, counts, strict=True) if count]
    return dict(zip(present, values, strict=True))


def tensors(values: dict[str, ir.Value]) -> dict[str, Tensor]:
    """What the types of `values` say, by name. Raises Fault where one is no tensor of known rank and type."""
    found = {}
    for name, value in values.items():
        tensor = typed(value)
        if tensor is None:
            raise Fault(f"{name} must be a value tensor of known rank and element type, got {value.type}")
        found[name] = tensor
    return found


def check_dtype(name: str, tensor: Tensor, accepted: tuple[str, ...]) -> None:
    """Raises Fault if the element type of `tensor` is not one of `accepted`."""
    if tensor.dtype not in accepted:
        raise Fault(f"element type of {name} must be one of {', '.join(accepted)}, got {tensor.dtype}")


def check_dims(name: str, tensor: Tensor, expected: Dims) -> None:
    """Raises Fault if the shape of `tensor` provably is not `expected`."""
    if len(tensor.dims) != len(expected) or any(map(contradict, tensor.dims, expected)):
        raise Fault(f"{name} must be {show(expected)}, got {show(tensor.dims)}")
