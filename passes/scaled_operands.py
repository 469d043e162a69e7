"""Operands of PyTorch's scaled products as flycc's ops have them: K innermost, scales [rows, blocks] or [rows, 1].

What stands otherwise gets new torch ops in front; what no kernel takes is `Refused`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from math import prod

from torch_mlir import ir

from flycc.contracts import Reason
from flycc.contracts.scaled_gemm import BLOCK_K
from flycc.dialects.scaled_gemm import DTYPES, E8M0, FORMATS, elements, known_row
from flycc.dialects.tensor import Dim, Dims, Tensor, contradict, same, show, stamped
from flycc.passes.new_ops import new_list, new_op, new_size, transposed, viewed, widened
from flycc.passes.operand_reading import Reading, readings
from flycc.passes.torch_ir import constant, is_none, new_constant, operator_name, producer


class Refused(Exception):
    """A scaled product is of no form that kernels have."""

    def __init__(self, what: str, sentence: str) -> None:
        super().__init__(sentence)
        self.what = what


#: PyTorch's `ScalingType` by its numbers.
TENSOR, ROW, BLOCK = 0, 1, 3
_RECIPES = {2: "BlockWise1x16 (NVFP4)", 4: "BlockWise1x128", 5: "BlockWise128x128"}
#: How block scales are stored: PyTorch's `SwizzleType` by its numbers, and as `_scaled_mm` has them on ROCm: plain, but
#: with rows up to a multiple of 128, and for whole 128s along K only.
PLAIN, TILED, PADDED = 0, 1, -1


@dataclass(frozen=True)
class Scale:
    """A scale operand of PyTorch, its recipe, and how it is stored (`PLAIN` and so on)."""

    value: ir.Value
    recipe: int
    swizzle: int = PLAIN


def refusing(area: str, form: Callable[[ir.Operation], None]) -> Callable[[ir.Operation], Reason | None]:
    """`form`, with what it refuses as a Reason of `area`."""

    def attempt(op: ir.Operation) -> Reason | None:
        try:
            form(op)
        except Refused as refused:
            return Reason(f"{area}.{refused.what}", f"{operator_name(op).partition('.')[2]}: {refused}")
        return None

    return attempt


def check_types(a: Tensor, b: Tensor, result: Tensor) -> None:
    """Raises Refused for types of elements that no scaled product has."""
    for name, tensor, accepted in (("a", a, FORMATS), ("b", b, FORMATS), ("the result", result, DTYPES)):
        if tensor.dtype not in accepted:
            raise Refused("dtype", f"{name} is {tensor.dtype}; {', '.join(accepted)} are accepted")


def count_k(a: Tensor, b: Tensor) -> Dim:
    """K of operands [.., M, K] and [.., K, N], as far as one of them says."""
    return elements(known_row(a, Tensor((b.dims[-2],), b.dtype)))


def addend(name: str, value: ir.Value, dims: Dims, dtype: str, before: ir.Operation) -> ir.Value | None:
    """`value`, if it is not None, in the type `dtype` of the result, if that holds its numbers. Raises Refused."""
    if is_none(value):
        return None
    tensor = known(name, value)
    if len(tensor.dims) != len(dims) or any(map(contradict, tensor.dims, dims)):
        raise Refused("addend", f"{name} is {show(tensor.dims)}; {show(dims)} is needed")
    if tensor.dtype == dtype:
        return value
    if tensor.dtype not in DTYPES or dtype != "f32":
        raise Refused("dtype", f"{name} is {tensor.dtype} and the result {dtype}; one type is needed, or f32")
    return widened(value, before)


def known(name: str, value: ir.Value) -> Tensor:
    """What is known about a tensor; raises Refused where that is too little."""
    tensor = stamped(value)
    if tensor is None:
        raise Refused("type", f"{name} is {value.type}; a value tensor of known rank is needed")
    return tensor


def stored(operand: ir.Value, *, transposed: bool) -> Reading | None:
    """The farthest reading of which `operand` is the transpose, or not: what it is a view or a copy of."""
    fitting = [r for r in readings(operand) if r.transposed == transposed and not r.broadcast]
    return fitting[-1] if fitting else None


def transposed_operand(operand: ir.Value, before: ir.Operation) -> tuple[ir.Value, tuple[ir.Operation, ...]]:
    """What `operand` is the transpose of, and the views between; without any, a new transpose of it."""
    reading = stored(operand, transposed=True)
    return (transposed(operand, before), ()) if reading is None else (reading.value, reading.looked_through)


def laid_out(name: str, scale: Scale, operand: ir.Value, dim: int, k: Dim, before: ir.Operation) -> ir.Value:
    """`scale` as `flycc.scaled_gemm` has it, of `operand`, which has its rows along `dim`. Raises Refused."""
    if scale.recipe in _RECIPES:
        raise Refused(
            "recipe",
            f"{name} is {_RECIPES[scale.recipe]}; BlockWise1x32, RowWise and TensorWise are accepted",
        )
    tensor, rows = known(name, scale.value), known("an operand", operand).dims[dim]
    wanted = E8M0 if scale.recipe == BLOCK else "f32"
    if tensor.dtype != wanted:
        raise Refused("dtype", f"{name} is {tensor.dtype}; it must be {wanted}")
    if scale.swizzle not in (PLAIN, TILED, PADDED):
        raise Refused(
            "swizzle", f"the swizzle of {name} is number {scale.swizzle}; none and 32x4x4 are accepted"
        )
    if scale.swizzle == TILED:
        return _untiled(name, scale.value, rows, k, before)
    if scale.recipe == TENSOR:
        if _count(tensor) != 1:
            raise Refused("scale", f"{name} is {show(tensor.dims)}; one number is needed")
        return scale.value if tensor.dims == (1, 1) else viewed(scale.value, (1, 1), before)
    value = scale.value
    if scale.recipe == ROW and len(tensor.dims) == 2 and tensor.dims[0] == 1 != tensor.dims[1]:
        value = transposed_operand(value, before)[0]
        tensor = Tensor(tensor.dims[::-1], tensor.dtype)
    columns = 1 if scale.recipe == ROW else -(-k // BLOCK_K) if isinstance(k, int) else None
    if columns is None and tensor.dims[-1:] == (1,):
        raise Refused(
            "scale", f"{name} is {show(tensor.dims)} and K is {k}; blocks of a K above 32 are needed"
        )
    if len(tensor.dims) == 2 and same(tensor.dims[0], rows) and not contradict(tensor.dims[1], columns):
        return value
    # Of contiguous scales PyTorch looks at their number only: where one size is not known, the other says it.
    stored_rows = rows
    if scale.swizzle == PADDED and scale.recipe == BLOCK and (columns is None or columns % 4 == 0):
        stored_rows = -(-rows // 128) * 128 if isinstance(rows, int) else None
    whole = stored_rows * columns if isinstance(stored_rows, int) and isinstance(columns, int) else None
    fits = not contradict(_count(tensor), whole)
    if not fits or (stored_rows is None and columns is None) or 0 in (stored_rows, columns):
        raise Refused("scale", f"{name} is {show(tensor.dims)}; {show((rows, columns))} is needed")
    stands = len(tensor.dims) == 2 and (same(tensor.dims[1], columns) or same(tensor.dims[0], stored_rows))
    if not stands:
        sizes = [stored_rows if isinstance(stored_rows, int) else -1, -1 if columns is None else columns]
        if sizes == [-1, -1]:
            sizes[0] = new_size(operand, dim, before)
        value = viewed(value, sizes, before, "reshape", (stored_rows, columns))
    return value if stored_rows == rows else _first(value, 0, rows, before, like=(operand, dim))


def _count(tensor: Tensor) -> int | None:
    """How many elements `tensor` has, if its sizes are known."""
    sizes = [dim for dim in tensor.dims if isinstance(dim, int)]
    return prod(sizes) if len(sizes) == len(tensor.dims) else None


def _untiled(name: str, scale: ir.Value, rows: Dim, k: Dim, before: ir.Operation) -> ir.Value:
    """Block scales from PyTorch's tiles (`SwizzleType.SWIZZLE_32_4_4`).

    Rows are padded to whole 128s and blocks to whole 4s. A tile of 128 rows and 4 blocks is 512 bytes in a row: of row
    r and block c the byte is at 16 (r % 32) + 4 (r // 32) + c; tiles follow one another along K first.
    """
    tensor = known(name, scale)
    if not isinstance(rows, int) or not isinstance(k, int):
        raise Refused("swizzle", f"{name} is in tiles of 32x4x4; only known sizes are put in order")
    blocks = -(-k // BLOCK_K)
    down, across = -(-rows // 128), -(-blocks // 4)
    if _count(tensor) != 512 * down * across:
        sizes = show((128 * down, 4 * across))
        raise Refused("scale", f"{name} is {show(tensor.dims)} in tiles of 32x4x4; {sizes} is needed")
    tiles = viewed(scale, (down, across, 32, 4, 4), before, "reshape")
    permuted = new_op(
        "permute", [tiles, new_list((0, 3, 2, 1, 4), before)], (down, 4, 32, across, 4), E8M0, before
    )
    padded = viewed(permuted, (128 * down, 4 * across), before, "reshape")
    whole = _first(padded, 0, rows, before)
    return _first(whole, 1, blocks, before)


def _first(
    value: ir.Value, dim: int, count: Dim, before: ir.Operation, like: tuple[ir.Value, int] | None = None
) -> ir.Value:
    """The first `count` places along `dim`: a number, or the size of a tensor along a dimension, `like`."""
    tensor = known("a tensor", value)
    if tensor.dims[dim] == count:
        return value
    number, start, step = (new_constant(number, before) for number in (dim, 0, 1))
    if isinstance(count, int):
        end = new_constant(count, before)
    else:
        assert like is not None, "a size that is no number is a tensor's"
        end = new_size(*like, before)
    dims = (*tensor.dims[:dim], count, *tensor.dims[dim + 1 :])
    return new_op("slice.Tensor", [value, number, start, end, step], dims, tensor.dtype, before)


def take_scale(name: str, operands: list[ir.Value]) -> Scale:
    """Takes a scale, its recipe and its swizzle from the front of `operands`, which stand one after the other there.

    Of the integers behind tensors the first are as many recipes as there are tensors.
    """
    values = _leading(operands, lambda value: stamped(value) is not None)
    numbers = _leading(operands, lambda value: str(value.type) == "!torch.int")
    if len(values) != 1:
        levels = " (NVFP4 has two levels of scales)" if len(values) == 2 else ""
        raise Refused("recipe", f"{name} is {len(values)} tensors{levels}; one is accepted")
    recipe, swizzle = [*map(constant, numbers), TENSOR, PLAIN][:2]
    if not isinstance(recipe, int) or not isinstance(swizzle, int):
        raise Refused("recipe", f"the recipe of {name} is no constant")
    return Scale(values[0], recipe, swizzle)


def check_contraction(dims: list[ir.Value]) -> None:
    """Raises Refused unless `dims`, a contraction_dim, are K of [.., M, K] and [.., K, N], or not given."""
    given = [constant(dim) for dim in dims]
    if given not in ([], [1, 0], [-1, -2], [-1, 0], [1, -2]):
        raise Refused("contraction", f"contraction_dim is {given}; [-1, -2] is accepted")


def spelled_out(op: ir.Operation) -> list[ir.Value]:
    """The operands of an op, lists as what is in them: as an op looks that the torch dialect cannot say."""
    return [item for operand in op.operands for item in _items(operand)]


def _items(operand: ir.Value) -> list[ir.Value]:
    op = producer(operand)
    return list(op.operands) if op is not None and op.name == "torch.prim.ListConstruct" else [operand]


def _leading(values: list[ir.Value], fits: Callable[[ir.Value], bool]) -> list[ir.Value]:
    """Takes from the front of `values` those that fit."""
    found = list(takewhile(fits, values))
    del values[: len(found)]
    return found
