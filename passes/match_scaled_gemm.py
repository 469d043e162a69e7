"""match-scaled-gemm: raises torch's scaled matrix products to `flycc.scaled_gemm`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from math import prod

from torch_mlir import ir

from flycc.contracts import Reason
from flycc.contracts.scaled_gemm import BLOCK_K
from flycc.dialects.scaled_gemm import DTYPES, E8M0, FORMATS, Placement, build_scaled_gemm, elements
from flycc.dialects.tensor import Dim, Tensor, contradict, show, stamped
from flycc.passes.matching import match, replace
from flycc.passes.new_ops import new_list, new_op, transposed, viewed, widened
from flycc.passes.operand_reading import Reading, readings
from flycc.passes.torch_ir import constant, is_none, nested_ops, new_constant, operator_name, producer


def match_scaled_gemm(module: ir.Operation) -> None:
    """Raises `torch.nn.functional.scaled_mm` and `torch._scaled_mm` to `flycc.scaled_gemm`, folding transposes.

    Before:

        %wt = torch.aten.t %w : !torch.vtensor<[16,64],f8E4M3FN> -> !torch.vtensor<[64,16],f8E4M3FN>
        %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %wt, %sx, %int3, %int0, %sw, %int3, %int0, %none, ...) : ...
            -> !torch.vtensor<[4,16],bf16>

    After:

        %y = "flycc.scaled_gemm"(%x, %w, %sx, %sw) {placement = "operand", tree = "mfma", k_block = 32, ...} : ...
            -> !torch.vtensor<[4,16],bf16>

    Elements are e4m3, e5m2 or packed e2m1, and may differ. Of PyTorch's recipes the scales of blocks of 1x32 (E8M0),
    of rows and of tensors are raised: the first become the MFMA's operands, the others are "hoisted" behind the sums,
    where PyTorch applies them too. What stands otherwise than a kernel reads it gets a view or a copy: scales in
    PyTorch's tiles or with rows to spare (known sizes only), one scale for a tensor, a weight that no transpose in the
    graph makes [K, N], a bias to be widened to the result's type.

    What fed the op stays, for flycc-dce or for other users. An op that is not raised gets the attributes
    `flycc.reason_code` and `flycc.reason`; one that nobody uses is passed over.
    """
    for op in [op for op in nested_ops(module) if operator_name(op) in _FORMS]:
        if list(op.results[0].uses):
            match(op, "scaled-gemm", _scaled)


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
PLAIN, TILED, PADDED = 0, 1, 2


@dataclass(frozen=True)
class Scale:
    """A scale operand of PyTorch, its recipe, and how it is stored (`PLAIN` and so on)."""

    value: ir.Value
    recipe: int
    swizzle: int = PLAIN


@dataclass(frozen=True)
class _Call:
    """What an op of PyTorch multiplies."""

    a: ir.Value
    b: ir.Value
    scale_a: Scale
    scale_b: Scale
    bias: ir.Value


def _scaled(op: ir.Operation) -> Reason | None:
    kind = operator_name(op).removeprefix("aten.")
    try:
        _raise(op, _FORMS[operator_name(op)](op))
    except Refused as refused:
        return Reason(f"scaled-gemm.{refused.what}", f"{kind}: {refused}")
    return None


def _raise(op: ir.Operation, call: _Call) -> None:
    a, b, result = known("a", call.a), known("b", call.b), known("the result", op.results[0])
    for name, tensor, accepted in (("a", a, FORMATS), ("b", b, FORMATS), ("the result", result, DTYPES)):
        if tensor.dtype not in accepted:
            raise Refused("dtype", f"{name} is {tensor.dtype}; {', '.join(accepted)} are accepted")
    if len(a.dims) != 2 or len(b.dims) != 2:
        raise Refused("rank", f"a is {a} and b is {b}; both must be matrices")
    left, right = stored(call.a, transposed=False), stored(call.b, transposed=True)
    rows_b = Tensor(b.dims[::-1], b.dtype)
    k = elements(a)
    k = k if isinstance(k, int) else elements(rows_b)
    bias = None if is_none(call.bias) else _bias(call.bias, result, op)
    scale_a = rows_of_scales("scale_a", call.scale_a, a.dims[0], k, op)
    scale_b = rows_of_scales("scale_b", call.scale_b, b.dims[1], k, op)
    blocks_only = call.scale_a.recipe == call.scale_b.recipe == BLOCK
    placement: Placement = "operand" if blocks_only else "hoisted"
    raised = build_scaled_gemm(
        call.a if left is None else left.value,
        transposed(call.b, op) if right is None else right.value,
        scale_a,
        scale_b,
        bias,
        op.results[0].type,
        placement=placement,
        before=op,
    )
    folded = [reading.looked_through for reading in (right, left) if reading is not None]
    replace(raised, [[op.results[0]]], [op, *(step for steps in folded for step in steps)])


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


def rows_of_scales(name: str, scale: Scale, rows: Dim, k: Dim, before: ir.Operation) -> ir.Value:
    """`scale` as `flycc.scaled_gemm` has it, of an operand of `rows` rows of `k` elements. Raises Refused."""
    if scale.recipe in _RECIPES:
        raise Refused(
            "recipe",
            f"{name} is {_RECIPES[scale.recipe]}; BlockWise1x32, RowWise and TensorWise are accepted",
        )
    tensor = known(name, scale.value)
    wanted = E8M0 if scale.recipe == BLOCK else "f32"
    if tensor.dtype != wanted:
        raise Refused("dtype", f"{name} is {tensor.dtype}; it must be {wanted}")
    if scale.swizzle == TILED:
        return _untiled(name, scale.value, rows, k, before)
    if scale.recipe == TENSOR:
        if _count(tensor) != 1:
            raise Refused("scale", f"{name} is {show(tensor.dims)}; one number is needed")
        return scale.value if tensor.dims == (1, 1) else viewed(scale.value, (1, 1), before)
    columns = 1 if scale.recipe == ROW else -(-k // BLOCK_K) if isinstance(k, int) else None
    if len(tensor.dims) == 2:
        if not contradict(tensor.dims[0], rows) and not contradict(tensor.dims[1], columns):
            return scale.value
        if scale.recipe == ROW and tensor.dims[0] == 1 and not contradict(tensor.dims[1], rows):
            reading = stored(scale.value, transposed=True)
            return transposed(scale.value, before) if reading is None else reading.value
    if isinstance(rows, int) and isinstance(columns, int):
        # Of contiguous scales it is only the number of bytes that PyTorch looks at.
        padded = -(-rows // 128) * 128 if scale.swizzle == PADDED and columns % 4 == 0 else rows
        if _count(tensor) == padded * columns:
            value = scale.value
            if tensor.dims != (padded, columns):
                value = viewed(value, (padded, columns), before, "reshape")
            return _first(value, 0, rows, before)
    raise Refused("scale", f"{name} is {show(tensor.dims)}; {show((rows, columns))} is needed")


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


def _first(value: ir.Value, dim: int, count: int, before: ir.Operation) -> ir.Value:
    """The first `count` places along `dim`."""
    tensor = known("a tensor", value)
    if tensor.dims[dim] == count:
        return value
    numbers = [new_constant(number, before) for number in (dim, 0, count, 1)]
    dims = (*tensor.dims[:dim], count, *tensor.dims[dim + 1 :])
    return new_op("slice.Tensor", [value, *numbers], dims, tensor.dtype, before)


def _bias(bias: ir.Value, result: Tensor, before: ir.Operation) -> ir.Value:
    """`bias` in the type of the result, if that holds its numbers."""
    tensor = known("the bias", bias)
    if len(tensor.dims) != 1 or contradict(tensor.dims[0], result.dims[-1]):
        raise Refused("bias", f"the bias is {show(tensor.dims)}; {show(result.dims[-1:])} is needed")
    if tensor.dtype == result.dtype:
        return bias
    if tensor.dtype not in DTYPES or result.dtype != "f32":
        raise Refused(
            "dtype", f"the bias is {tensor.dtype} and the result {result.dtype}; one type is needed, or f32"
        )
    return widened(bias, before)


def _first_form(op: ir.Operation) -> _Call:
    """`_scaled_mm`, whose scales say by their types and shapes what they are of."""
    a, b, scale_a, scale_b, bias, scale_result, _, _ = op.operands  # the result's type says what out_dtype is
    if not is_none(scale_result):
        raise Refused("scale-result", "its result is scaled (scale_result); no kernel does that")
    left, right = _recipe("scale_a", scale_a), _recipe("scale_b", scale_b)
    return _Call(a, b, Scale(scale_a, left, PADDED), Scale(scale_b, right, PADDED), bias)


def _recipe(name: str, scale: ir.Value) -> int:
    tensor = known(name, scale)
    if tensor.dtype == E8M0:
        return BLOCK
    if tensor.dtype == "f8E4M3FN":
        return 2
    if all(dim == 1 for dim in tensor.dims):
        return TENSOR
    if len(tensor.dims) == 2 and 1 not in tensor.dims:
        raise Refused("recipe", f"{name} is {tensor}: of blocks of 128; rows and tensors are accepted")
    return ROW


def _second_form(op: ir.Operation) -> _Call:
    """`_scaled_mm_v2`, in which lists are spelled out if the torch dialect cannot say it: one after the other.

    Of the integers behind a's scales, and behind b's, the first are as many recipes as there are scales.
    """
    a, b, *operands = [item for operand in op.operands for item in _spelled_out(operand)]
    scale_a = _scale("scale_a", operands)
    scale_b = _scale("scale_b", operands)
    bias, _, *dims, _ = operands  # the result's type says what out_dtype is, and sums are never fast ones
    contracted = [constant(dim) for dim in dims]
    if contracted not in ([], [1, 0], [-1, 0], [-1, -2], [1, -2]):
        raise Refused("contraction", f"contraction_dim is {contracted}; [1, 0] is accepted")
    return _Call(a, b, scale_a, scale_b, bias)


def _scale(name: str, operands: list[ir.Value]) -> Scale:
    """Takes a scale, its recipe and its swizzle from the front of `operands`."""
    values = _leading(operands, lambda value: stamped(value) is not None)
    numbers = _leading(operands, lambda value: str(value.type) == "!torch.int")
    if len(values) != 1:
        levels = " (NVFP4 has two levels of scales)" if len(values) == 2 else ""
        raise Refused("recipe", f"{name} is {len(values)} tensors{levels}; one is accepted")
    recipe, swizzle = [*map(constant, numbers), TENSOR, PLAIN][:2]
    if not isinstance(recipe, int) or not isinstance(swizzle, int):
        raise Refused("recipe", f"the recipe of {name} is no constant")
    return Scale(values[0], recipe, swizzle)


def _spelled_out(operand: ir.Value) -> list[ir.Value]:
    op = producer(operand)
    return list(op.operands) if op is not None and op.name == "torch.prim.ListConstruct" else [operand]


def _leading(values: list[ir.Value], fits: Callable[[ir.Value], bool]) -> list[ir.Value]:
    """Takes from the front of `values` those that fit."""
    found = list(takewhile(fits, values))
    del values[: len(found)]
    return found


_FORMS: dict[str, Callable[[ir.Operation], _Call]] = {
    "aten._scaled_mm": _first_form,
    "aten._scaled_mm_v2": _second_form,
}
