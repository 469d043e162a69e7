"""From what is known about tensors to the sizes and alignments in Problems."""

from __future__ import annotations

from collections.abc import Iterable

from torch_mlir import ir

from flycc.contracts.sizes import Size
from flycc.dialects.tensor import Dim, Dims, Tensor, stamped

#: Bytes of an element, by MLIR type name.
ITEMSIZE = {"bf16": 2, "f16": 2, "f32": 4, "si32": 4} | dict.fromkeys(
    ("f8E4M3FN", "f8E5M2", "f8E8M0FNU", "f4E2M1FN"), 1
)


def known(value: ir.Value) -> Tensor:
    """What type and stamp of an operand or result of a verified op say."""
    tensor = stamped(value)
    assert tensor is not None, "the verifier admits tensors of known rank only"
    return tensor


def named(dim: Dim, name: str) -> Size:
    """`dim`, or `name` where nothing is known about it."""
    return name if dim is None else dim


def rows(dims: Dims) -> Size:
    """How many rows the dimensions in front of a row make; unknown ones are called "B<i>"."""
    return product(named(dim, f"B{index}") for index, dim in enumerate(dims))


def product(sizes: Iterable[Size]) -> Size:
    """Product of sizes: a number, or factors joined by "*" with a number, if not one, in front."""
    number = 1
    symbols: list[str] = []
    for size in sizes:
        if isinstance(size, int):
            number *= size
        else:
            symbols.append(size)
    if not symbols:
        return number
    factors = [str(number)] * (number != 1) + symbols
    if len(factors) == 1:
        return factors[0]
    return "*".join(factor if factor.isalnum() else f"({factor})" for factor in factors)


def row_alignment(tensor: Tensor) -> int:
    """Largest power of two, at most 16, that divides the byte length of a row of contiguous `tensor`."""
    row, itemsize = tensor.dims[-1], ITEMSIZE[tensor.dtype]
    row_bytes = itemsize * row if isinstance(row, int) else itemsize
    return min(16, row_bytes & -row_bytes) if row_bytes else 16
