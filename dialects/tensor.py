"""What a torch tensor type, and the `flycc.shape` stamp beside it, say about a value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from torch_mlir import ir

#: One size of a tensor: a number, the symbolic expression of a run-time size, or None where nothing is known.
Dim = int | str | None
Dims = tuple[Dim, ...]

#: Array attribute of strings on an op with one result, or on a function argument: its symbolic shape.
SHAPE_ATTR = "flycc.shape"
#: Array attribute of such arrays on an op with several results, empty for what is not a tensor.
SHAPES_ATTR = "flycc.shapes"
#: String attribute of an op, or function argument, whose result is an integer that only the run knows: its expression.
SIZE_ATTR = "flycc.size"

_VTENSOR = re.compile(r"!torch\.vtensor<\[(?P<dims>[\d?,]*)\],(?P<dtype>\w+)>")


class VTensor(ir.Type):
    """`!torch.vtensor<[sizes],dtype>`, as a constraint on operands and results."""

    type_name = "torch.vtensor"


class TorchInt(ir.Type):
    """`!torch.int`, as a constraint on operands."""

    type_name = "torch.int"


class TorchFloat(ir.Type):
    """`!torch.float`, as a constraint on operands."""

    type_name = "torch.float"


@dataclass(frozen=True, slots=True)
class Tensor:
    """Sizes and element type (by its MLIR name) of a value tensor of known rank."""

    dims: Dims
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{show(self.dims)}"


def show(dims: Dims) -> str:
    """`[2, s0, ?]`."""
    return f"[{', '.join('?' if d is None else str(d) for d in dims)}]"


@lru_cache(maxsize=4096)
def _parse(type_text: str) -> Tensor | None:
    match = _VTENSOR.fullmatch(type_text)
    if match is None or match["dtype"] == "unk":
        return None
    dims = match["dims"].split(",") if match["dims"] else []
    return Tensor(tuple(None if d == "?" else int(d) for d in dims), match["dtype"])


def typed(value: ir.Value) -> Tensor | None:
    """What the type alone says, or None if it is no value tensor of known rank and element type."""
    return _parse(str(value.type))


def stamped(value: ir.Value) -> Tensor | None:
    """`typed`, with sizes that the type leaves open taken from the `flycc.shape` stamp.

    A stamp whose rank differs from the type's describes something else and is not used.
    """
    tensor = typed(value)
    if tensor is None or None not in tensor.dims:
        return tensor
    stamp = _stamp(value)
    if stamp is None or len(stamp) != len(tensor.dims):
        return tensor
    names = (int(s) if s.isdecimal() else s for s in stamp)
    dims = tuple(n if d is None else d for d, n in zip(tensor.dims, names, strict=True))
    return Tensor(dims, tensor.dtype)


def _stamp(value: ir.Value) -> list[str] | None:
    if isinstance(value, ir.BlockArgument):
        function = value.owner.owner
        if "arg_attrs" not in function.attributes:
            return None
        attributes = function.attributes["arg_attrs"][value.arg_number]
    else:
        operation = value.owner
        attributes = operation.attributes
        if SHAPES_ATTR in attributes and value.result_number < len(attributes[SHAPES_ATTR]):
            return [s.value for s in attributes[SHAPES_ATTR][value.result_number]]
        if len(operation.results) != 1:
            return None
    return [s.value for s in attributes[SHAPE_ATTR]] if SHAPE_ATTR in attributes else None


def same(x: Dim, y: Dim) -> bool:
    """Whether two sizes are provably equal."""
    return x is not None and x == y


def same_dims(x: Dims, y: Dims) -> bool:
    """Whether two shapes are provably equal."""
    return len(x) == len(y) and all(map(same, x, y))


def contradict(x: Dim, y: Dim) -> bool:
    """Whether two sizes are provably different (distinct symbols may still be equal)."""
    return isinstance(x, int) and isinstance(y, int) and x != y


def broadcast(x: Dims, y: Dims) -> Dims:
    """Shape of two shapes broadcast together, None where unknown. Raises ValueError if they cannot be."""
    rank = max(len(x), len(y))
    padded = ((1,) * (rank - len(s)) + s for s in (x, y))
    return tuple(_broadcast_dim(dx, dy) for dx, dy in zip(*padded, strict=True))


def _broadcast_dim(x: Dim, y: Dim) -> Dim:
    if x == 1 or x == y:
        return y
    if y == 1:
        return x
    if contradict(x, y):
        raise ValueError(f"{x} and {y} do not broadcast")
    return None
