"""`flycc.rms_norm` and `flycc.rms_norm_backward`: RMS normalisation over the last dimension."""

# No `from __future__ import annotations` here: the ops are built from their evaluated annotations.

from typing import cast

from torch_mlir import ir
from torch_mlir.dialects.ext import Operand, Pure, Result

from flycc.contracts.rms_norm import MAX_EPS, NormDtype, RmsNormBackwardProblem, RmsNormProblem, WeightDtype
from flycc.dialects.base import Flycc, create
from flycc.dialects.constants import constant
from flycc.dialects.sizes import known, named, row_alignment, rows
from flycc.dialects.tensor import Dims, Tensor, TorchFloat, VTensor
from flycc.dialects.verifying import Fault, check_dims, check_dtype, has_attributes, segments, tensors, verify

#: Element types of every operand and result.
DTYPES = ("bf16", "f16", "f32")

_FLAGS = {"weight_offset": ir.BoolAttr, "cast_before_weight": ir.BoolAttr}


class RmsNormOp(Flycc.Operation, name="rms_norm", traits=[Pure]):  # type: ignore[call-arg,name-defined]
    """`y = h / sqrt(mean(h**2) + eps) * w` over the last dimension, computed in f32, with `h = x (+ residual)`.

    `x`, `residual` and `new_residual` are [..., N] of one type, bf16, f16 or f32; `new_residual` is h, which
    is rounded to that type before it is normalised, and is there if `residual` is. `weight` is [N] of any of
    the types; w is `1 + weight` with `weight_offset`, and 1 without a weight. `y` is [..., N] of any of the
    types. With `cast_before_weight` the normalised value is rounded to the type of x before the product with
    w; without, the only rounding is that to the type of y. `rstd` is `1 / sqrt(mean(h**2) + eps)`, f32 [...].

        %y, %h, %rstd = "flycc.rms_norm"(%x, %eps, %weight, %residual)
            {weight_offset = false, cast_before_weight = true,
             operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1, 1>}
            : (!torch.vtensor<[2,4,8],bf16>, !torch.float, !torch.vtensor<[8],bf16>, !torch.vtensor<[2,4,8],bf16>)
            -> (!torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[2,4],f32>)
    """

    x: Operand[VTensor]
    eps: Operand[TorchFloat]
    y: Result[VTensor]
    weight_offset: ir.IntegerAttr
    cast_before_weight: ir.IntegerAttr
    weight: Operand[VTensor] | None = None
    residual: Operand[VTensor] | None = None
    new_residual: Result[VTensor] | None = None
    rstd: Result[VTensor] | None = None

    @staticmethod
    def verify_invariants(op: ir.Operation) -> bool:
        """Called by MLIR's verifier."""
        return verify(op, _check_forward)


class RmsNormBackwardOp(Flycc.Operation, name="rms_norm_backward", traits=[Pure]):  # type: ignore[call-arg,name-defined]
    """Gradients of what a `flycc.rms_norm` normalised, and of its weight.

    `grad` is the gradient of y, of its type, and `x` what was normalised, both [..., N]; `rstd` is the
    forward op's, f32 [...]. `dx` has the type and shape of x; `dweight` has those of `weight` and is there if
    `weight` is.

        %dx, %dw = "flycc.rms_norm_backward"(%grad, %x, %rstd, %weight)
            {weight_offset = false, cast_before_weight = false,
             operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1>}
            : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[4],f32>,
               !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[8],bf16>)
    """

    grad: Operand[VTensor]
    x: Operand[VTensor]
    rstd: Operand[VTensor]
    dx: Result[VTensor]
    weight_offset: ir.IntegerAttr
    cast_before_weight: ir.IntegerAttr
    weight: Operand[VTensor] | None = None
    dweight: Result[VTensor] | None = None

    @staticmethod
    def verify_invariants(op: ir.Operation) -> bool:
        """Called by MLIR's verifier."""
        return verify(op, _check_backward)


def build_rms_norm(
    x: ir.Value,
    eps: ir.Value,
    weight: ir.Value | None,
    residual: ir.Value | None,
    results: tuple[ir.Type, ir.Type | None, ir.Type | None],
    *,
    weight_offset: bool = False,
    cast_before_weight: bool = False,
    before: ir.Operation,
) -> RmsNormOp:
    """Creates a `flycc.rms_norm` in front of `before`; `results` are the types of y, new_residual and rstd."""
    attributes = {
        "weight_offset": ir.BoolAttr.get(weight_offset, before.context),
        "cast_before_weight": ir.BoolAttr.get(cast_before_weight, before.context),
    }
    return create(
        "flycc.rms_norm", (x, eps, weight, residual), results, attributes, before=before, segmented=True
    )


def build_rms_norm_backward(
    grad: ir.Value,
    x: ir.Value,
    rstd: ir.Value,
    weight: ir.Value | None,
    results: tuple[ir.Type, ir.Type | None],
    *,
    weight_offset: bool = False,
    cast_before_weight: bool = False,
    before: ir.Operation,
) -> RmsNormBackwardOp:
    """Creates a `flycc.rms_norm_backward` in front of `before`; `results` are the types of dx and dweight."""
    attributes = {
        "weight_offset": ir.BoolAttr.get(weight_offset, before.context),
        "cast_before_weight": ir.BoolAttr.get(cast_before_weight, before.context),
    }
    return create(
        "flycc.rms_norm_backward", (grad, x, rstd, weight), results, attributes, before=before, segmented=True
    )


def eps_fault(eps: float) -> str | None:
    """What is wrong with an eps, or None."""
    return None if 0 <= eps <= MAX_EPS else f"eps must be finite in f32 and not negative, got {eps}"


def problem(op: RmsNormOp) -> RmsNormProblem:
    """The Problem that a verified `flycc.rms_norm` poses.

    A dynamic size becomes its symbol from the stamps, or else "N" or "B<i>". Alignments assume contiguous
    tensors at 16-byte-aligned addresses.
    """
    x, y = known(op.x), known(op.y)
    return RmsNormProblem(
        dtype=cast(NormDtype, x.dtype),
        rows=rows(x.dims[:-1]),
        columns=named(x.dims[-1], "N"),
        weight=_weight_dtype(op.weight),
        out=None if y.dtype == x.dtype else cast(NormDtype, y.dtype),
        weight_offset=op.weight_offset.value,
        cast_before_weight=op.cast_before_weight.value,
        residual=op.residual is not None,
        rstd=op.rstd is not None,
        align=min(row_alignment(x), row_alignment(Tensor(x.dims, y.dtype))),
    )


def backward_problem(op: RmsNormBackwardOp) -> RmsNormBackwardProblem:
    """The Problem that a verified `flycc.rms_norm_backward` poses; see `problem`."""
    x, grad = known(op.x), known(op.grad)
    return RmsNormBackwardProblem(
        dtype=cast(NormDtype, x.dtype),
        rows=rows(x.dims[:-1]),
        columns=named(x.dims[-1], "N"),
        weight=_weight_dtype(op.weight),
        out=None if grad.dtype == x.dtype else cast(NormDtype, grad.dtype),
        weight_offset=op.weight_offset.value,
        cast_before_weight=op.cast_before_weight.value,
        align=min(row_alignment(x), row_alignment(Tensor(x.dims, grad.dtype))),
    )


def _weight_dtype(weight: ir.Value | None) -> WeightDtype:
    return "none" if weight is None else cast(WeightDtype, known(weight).dtype)


def _check_forward(op: ir.Operation) -> None:
    if not has_attributes(op, _FLAGS) or len(op.operands) < 2 or not op.results:
        return  # MLIR checks the declaration next, and reports what is not as declared
    given = segments(op, "operandSegmentSizes", op.operands, "x eps weight? residual?")
    results = segments(op, "resultSegmentSizes", op.results, "y new_residual? rstd?")
    if ("residual" in given) != ("new_residual" in results):
        raise Fault("new_residual must be there if, and only if, residual is")
    eps = constant(given.pop("eps"))
    if eps is not None and (fault := eps_fault(eps)):
        raise Fault(fault)
    values = tensors(given | results)
    x = _check_row(values)
    for name in ("residual", "new_residual"):
        if name in values:
            _check_like(name, values[name], x)
    check_dtype("y", values["y"], DTYPES)
    check_dims("y", values["y"], x.dims)
    _check_weight(op, values, x.dims)
    if "rstd" in values:
        _check_rstd(values["rstd"], x.dims)


def _check_backward(op: ir.Operation) -> None:
    if not has_attributes(op, _FLAGS) or len(op.operands) < 3 or not op.results:
        return  # MLIR checks the declaration next, and reports what is not as declared
    given = segments(op, "operandSegmentSizes", op.operands, "grad x rstd weight?")
    results = segments(op, "resultSegmentSizes", op.results, "dx dweight?")
    if ("weight" in given) != ("dweight" in results):
        raise Fault("dweight must be there if, and only if, weight is")
    values = tensors(given | results)
    x = _check_row(values)
    check_dtype("grad", values["grad"], DTYPES)
    check_dims("grad", values["grad"], x.dims)
    _check_like("dx", values["dx"], x)
    _check_rstd(values["rstd"], x.dims)
    _check_weight(op, values, x.dims)
    if "weight" in values:
        weight, dweight = values["weight"], values["dweight"]
        if dweight.dtype != weight.dtype:
            raise Fault(
                f"element type of dweight must be that of weight, {weight.dtype}, got {dweight.dtype}"
            )
        check_dims("dweight", dweight, weight.dims)


def _check_row(values: dict[str, Tensor]) -> Tensor:
    x = values["x"]
    check_dtype("x", x, DTYPES)
    if not x.dims:
        raise Fault("x must have rank 1 or more, got []")
    return x


def _check_like(name: str, tensor: Tensor, x: Tensor) -> None:
    if tensor.dtype != x.dtype:
        raise Fault(f"element type of {name} must be that of x, {x.dtype}, got {tensor.dtype}")
    check_dims(name, tensor, x.dims)


def _check_weight(op: ir.Operation, values: dict[str, Tensor], dims: Dims) -> None:
    if "weight" in values:
        check_dtype("weight", values["weight"], DTYPES)
        check_dims("weight", values["weight"], dims[-1:])
    else:
        for name in _FLAGS:
            if op.attributes[name].value:
                raise Fault(f"{name} needs a weight")


def _check_rstd(rstd: Tensor, dims: Dims) -> None:
    check_dtype("rstd", rstd, ("f32",))
    check_dims("rstd", rstd, dims[:-1])
