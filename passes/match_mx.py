"""match-mx: raises calls of flycc's MX quantisation to `flycc.mx_quantize` and `flycc.mx_dequantize`."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch_mlir import ir

from flycc.contracts import Reason
from flycc.contracts.mx import ScaleRounding
from flycc.contracts.scaled_gemm import ElementFormat
from flycc.dialects.mx import build_mx_dequantize, build_mx_quantize
from flycc.dialects.scale_guard import VersionedOp
from flycc.passes.matching import match, replace
from flycc.passes.torch_ir import nested_ops, operator_name, text


def match_mx(module: ir.Operation) -> None:
    """Raises calls of `flycc::mx_quantize` and `flycc::mx_dequantize` to the ops of those names.

    Before (from an earlier rewrite, or by a user):

        %d, %s, %r = torch.operator "torch.flycc.mx_quantize"(%x, %str, %str_0) : ...

    After:

        %d, %s, %r = "flycc.mx_quantize"(%x) {format = "e4m3", rounding = "floor"} : ...

    One that nobody uses is passed over, and so is one in a form that is computed as it is written.
    """
    for op in [
        op for op in nested_ops(module) if op.name == "torch.operator" and operator_name(op) in _FORMS
    ]:
        inside = op.parent is not None and isinstance(op.parent.opview, VersionedOp)
        if not inside and any(list(result.uses) for result in op.results):
            match(op, "mx", _FORMS[operator_name(op)])


def _quantize(op: ir.Operation) -> Reason | None:
    x, form, rounding = op.operands
    data, scales, ends = (result.type for result in op.results)
    raised = build_mx_quantize(
        x,
        (data, scales, ends),
        format=cast(ElementFormat, text(form)),
        rounding=cast(ScaleRounding, text(rounding)),
        before=op,
    )
    replace(raised, [[result] for result in op.results], [op])
    return None


def _dequantize(op: ir.Operation) -> Reason | None:
    data, scales, _ = op.operands  # the result's type says what dtype is
    raised = build_mx_dequantize(data, scales, op.results[0].type, before=op)
    replace(raised, [[op.results[0]]], [op])
    return None


_FORMS: dict[str, Callable[[ir.Operation], Reason | None]] = {
    "flycc.mx_quantize": _quantize,
    "flycc.mx_dequantize": _dequantize,
}
