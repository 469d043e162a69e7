"""match-scaled-gemm: raises torch's scaled matrix products to `flycc.scaled_gemm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch_mlir import ir

from flycc.contracts.gemm import Activation
from flycc.dialects.scaled_gemm import E8M0, Placement, build_scaled_gemm, elements, known_row, scale_kind
from flycc.passes.matching import match, replace
from flycc.passes.scaled_operands import (
    BLOCK,
    PADDED,
    ROW,
    TENSOR,
    Refused,
    Scale,
    addend,
    check_contraction,
    check_types,
    count_k,
    known,
    laid_out,
    refusing,
    spelled_out,
    stored,
    take_scale,
    transposed_operand,
)
from flycc.passes.torch_ir import is_none, nested_ops, operator_name, text


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
    PyTorch's tiles or with rows to spare, one scale for a tensor, a weight that no transpose in the
    graph makes [K, N], a bias to be widened to the result's type.

    What fed the op stays, for flycc-dce or for other users. An op that is not raised gets the attributes
    `flycc.reason_code` and `flycc.reason`; one that nobody uses is passed over.
    """
    for op in [op for op in nested_ops(module) if operator_name(op) in _FORMS]:
        if list(op.results[0].uses):
            match(op, "scaled-gemm", refusing("scaled-gemm", _FORMS[operator_name(op)]))


def _raise(
    op: ir.Operation, a: ir.Value, b: ir.Value, scale_a: Scale, scale_b: Scale, bias: ir.Value
) -> None:
    left, right, result = known("a", a), known("b", b), known("the result", op.results[0])
    check_types(left, right, result)
    if len(left.dims) != 2 or len(right.dims) != 2:
        raise Refused("rank", f"a is {left} and b is {right}; both must be matrices")
    k = count_k(left, right)
    rows = stored(a, transposed=False)
    columns, looked_through = transposed_operand(b, op)
    raised = build_scaled_gemm(
        a if rows is None else rows.value,
        columns,
        laid_out("scale_a", scale_a, a, 0, k, op),
        laid_out("scale_b", scale_b, b, 1, k, op),
        addend("the bias", bias, right.dims[1:], result.dtype, op),
        op.results[0].type,
        placement=_placement(scale_a.recipe == scale_b.recipe == BLOCK),
        before=op,
    )
    replace(raised, [[op.results[0]]], [op, *looked_through, *(() if rows is None else rows.looked_through)])


def _placement(blocks_only: bool) -> Placement:
    """Where PyTorch's operators, and flycc's, apply scales."""
    return "operand" if blocks_only else "hoisted"


def _first_form(op: ir.Operation) -> None:
    """`_scaled_mm`, whose scales say by their types and shapes what they are of."""
    a, b, scale_a, scale_b, bias, scale_result, _, _ = op.operands  # the result's type says what out_dtype is
    if not is_none(scale_result):
        raise Refused("scale-result", "its result is scaled (scale_result); no kernel does that")
    left, right = _recipe("scale_a", scale_a), _recipe("scale_b", scale_b)
    _raise(op, a, b, Scale(scale_a, left, PADDED), Scale(scale_b, right, PADDED), bias)


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


def _second_form(op: ir.Operation) -> None:
    """`_scaled_mm_v2`, which says so."""
    a, b, *operands = spelled_out(op)
    scale_a, scale_b = take_scale("scale_a", operands), take_scale("scale_b", operands)
    bias, _, *dims, _ = operands  # the result's type says what out_dtype is, and sums are never fast ones
    check_contraction(dims)
    _raise(op, a, b, scale_a, scale_b, bias)


def _own_form(op: ir.Operation) -> None:
    """flycc's own operator, called by an earlier rewrite or by whoever likes."""
    a, b, scale_a, scale_b, bias, residual, activation, _ = op.operands  # as before of out_dtype
    result, k = known("the result", op.results[0]), elements(known_row(known("a", a), known("b", b)))
    scales = [None if is_none(scale) else scale for scale in (scale_a, scale_b)]
    kinds = [
        scale_kind(known(f"a scale of {name}", scale), known(name, operand).dims[0], k)
        for name, operand, scale in (("a", a, scales[0]), ("b", b, scales[1]))
        if scale is not None
    ]
    raised = build_scaled_gemm(
        a,
        b,
        scales[0],
        scales[1],
        addend("the bias", bias, result.dims[1:], result.dtype, op),
        op.results[0].type,
        placement=_placement(all(kind == "block" for kind in kinds)),
        residual=addend("the residual", residual, result.dims, result.dtype, op),
        activation=cast(Activation, text(activation)),
        before=op,
    )
    replace(raised, [[op.results[0]]], [op])


_FORMS: dict[str, Callable[[ir.Operation], None]] = {
    "aten._scaled_mm": _first_form,
    "aten._scaled_mm_v2": _second_form,
    "flycc.scaled_gemm": _own_form,
}
