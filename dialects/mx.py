"""`flycc.mx_quantize` and `flycc.mx_dequantize`: to blocks of 32 elements with one E8M0 scale, and back."""

# No `from __future__ import annotations` here: the op is built from its evaluated annotations.

from typing import cast, get_args

from torch_mlir import ir
from torch_mlir.dialects.ext import Operand, Pure, Result

from flycc.contracts.mx import MxDequantizeProblem, MxQuantizeProblem, ScaleRounding, WideDtype
from flycc.contracts.scaled_gemm import BLOCK_K, ElementFormat
from flycc.dialects.base import Flycc, create
from flycc.dialects.scaled_gemm import DTYPES, E8M0, FORMATS, elements
from flycc.dialects.sizes import known, named, row_alignment, rows
from flycc.dialects.tensor import Dim, Tensor, VTensor
from flycc.dialects.verifying import Fault, check_dims, check_dtype, has_attributes, tensors, verify

_TYPES = {form: dtype for dtype, form in FORMATS.items()}


class MxQuantizeOp(Flycc.Operation, name="mx_quantize", traits=[Pure]):  # type: ignore[call-arg,name-defined]
    """Blocks of 32 of `x` along the last dimension as elements and a scale each: see `contracts.mx`.

    `x` is [.., K] of bf16, f16 or f32. `data` is [.., K] of the type of `format` ("e4m3", "e5m2"), or [.., ceil(K / 2)]
    of f4E2M1FN ("e2m1"), two elements a byte; `scales` are f8E8M0FNU [.., ceil(K / 32)], chosen by `rounding` ("floor",
    "even", "ceil"); `range` is si32 [3]: the lowest and the highest of their bytes that is no NaN, and whether one is.

        %data, %scales, %range = "flycc.mx_quantize"(%x) {format = "e2m1", rounding = "floor"}
            : (!torch.vtensor<[4,64],bf16>)
            -> (!torch.vtensor<[4,32],f4E2M1FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[3],si32>)
    """

    x: Operand[VTensor]
    data: Result[VTensor]
    scales: Result[VTensor]
    range: Result[VTensor]
    format: ir.StringAttr
    rounding: ir.StringAttr

    @staticmethod
    def verify_invariants(op: ir.Operation) -> bool:
        """Called by MLIR's verifier."""
        return verify(op, _check_quantize)


class MxDequantizeOp(Flycc.Operation, name="mx_dequantize", traits=[Pure]):  # type: ignore[call-arg,name-defined]
    """The reverse: elements times their blocks' scales, rounded once to the type of the result, bf16, f16 or f32.

    %y = "flycc.mx_dequantize"(%data, %scales)
        : (!torch.vtensor<[4,32],f4E2M1FN>, !torch.vtensor<[4,2],f8E8M0FNU>) -> !torch.vtensor<[4,64],bf16>
    """

    data: Operand[VTensor]
    scales: Operand[VTensor]
    result: Result[VTensor]

    @staticmethod
    def verify_invariants(op: ir.Operation) -> bool:
        """Called by MLIR's verifier."""
        return verify(op, _check_dequantize)


def build_mx_quantize(
    x: ir.Value,
    results: tuple[ir.Type, ir.Type, ir.Type],
    *,
    format: ElementFormat,
    rounding: ScaleRounding = "floor",
    before: ir.Operation,
) -> MxQuantizeOp:
    """Creates a `flycc.mx_quantize` in front of `before`; `results` are the types of data, scales and range."""
    attributes = {
        "format": ir.StringAttr.get(format, before.context),
        "rounding": ir.StringAttr.get(rounding, before.context),
    }
    return create("flycc.mx_quantize", (x,), results, attributes, before=before, segmented=False)


def build_mx_dequantize(
    data: ir.Value, scales: ir.Value, result_type: ir.Type, *, before: ir.Operation
) -> MxDequantizeOp:
    """Creates a `flycc.mx_dequantize` in front of `before`."""
    return create("flycc.mx_dequantize", (data, scales), (result_type,), {}, before=before, segmented=False)


def quantize_problem(op: MxQuantizeOp) -> MxQuantizeProblem:
    """The Problem that a verified `flycc.mx_quantize` poses, of a contiguous x at a 16-byte-aligned address.

    A dynamic size becomes its symbol from the `flycc.shape` stamps, or else "K" or "B<i>".
    """
    x = known(op.x)
    return MxQuantizeProblem(
        dtype=cast(WideDtype, x.dtype),
        format=cast(ElementFormat, op.format.value),
        rows=rows(x.dims[:-1]),
        columns=named(x.dims[-1], "K"),
        rounding=cast(ScaleRounding, op.rounding.value),
        align=row_alignment(x),
    )


def dequantize_problem(op: MxDequantizeOp) -> MxDequantizeProblem:
    """The Problem that a verified `flycc.mx_dequantize` poses, likewise."""
    data, result = known(op.data), known(op.result)
    return MxDequantizeProblem(
        format=FORMATS[data.dtype],
        dtype=cast(WideDtype, result.dtype),
        rows=rows(data.dims[:-1]),
        columns=named(elements(data), "K"),
        align=row_alignment(data),
    )


def _over(size: Dim, count: int) -> Dim:
    """How many of `count` each are `size`."""
    return -(-size // count) if isinstance(size, int) else None


def _check_scales(scales: Tensor, like: Tensor, k: Dim) -> None:
    check_dtype("scales", scales, (E8M0,))
    check_dims("scales", scales, (*like.dims[:-1], _over(k, BLOCK_K)))


def _check_quantize(op: ir.Operation) -> None:
    kinds = dict.fromkeys(("format", "rounding"), ir.StringAttr)
    if not has_attributes(op, kinds) or len(op.operands) != 1 or len(op.results) != 3:
        return  # MLIR checks the declaration next, and reports what is not as declared
    names = ("x", "data", "scales", "range")
    values = tensors(dict(zip(names, [*op.operands, *op.results], strict=True)))
    for name, accepted in (("format", tuple(_TYPES)), ("rounding", get_args(ScaleRounding))):
        if op.attributes[name].value not in accepted:
            raise Fault(f"{name} must be one of {', '.join(accepted)}, got {op.attributes[name]}")
    x, form = values["x"], op.attributes["format"].value
    check_dtype("x", x, DTYPES)
    if not x.dims:
        raise Fault("x must have rank 1 or more")
    stored = _over(x.dims[-1], 2) if form == "e2m1" else x.dims[-1]
    check_dtype("data", values["data"], (_TYPES[form],))
    check_dims("data", values["data"], (*x.dims[:-1], stored))
    _check_scales(values["scales"], x, x.dims[-1])
    check_dtype("range", values["range"], ("si32",))
    check_dims("range", values["range"], (3,))


def _check_dequantize(op: ir.Operation) -> None:
    if len(op.operands) != 2 or len(op.results) != 1:
        return  # as above
    values = tensors(dict(zip(("data", "scales", "result"), [*op.operands, *op.results], strict=True)))
    data = values["data"]
    check_dtype("data", data, tuple(FORMATS))
    if not data.dims:
        raise Fault("data must have rank 1 or more")
    k = elements(data)
    _check_scales(values["scales"], data, k)
    check_dtype("result", values["result"], DTYPES)
    check_dims("result", values["result"], (*data.dims[:-1], k))
