"""What match passes share: a raised op that the verifier refuses leaves the op it was to stand for, and the others."""

from torch_mlir import ir

from flycc import dialects
from flycc.dialects.rms_norm import build_rms_norm
from flycc.passes.matching import REASON_ATTR, REASON_CODE_ATTR, match, replace
from flycc.passes.torch_ir import nested_ops, new_constant, operator_name

SOURCE = """
func.func @two(%x: !torch.vtensor<[4,8],f32>) -> !torch.vtensor<[4,8],f32> {
  %y = torch.aten.neg %x : !torch.vtensor<[4,8],f32> -> !torch.vtensor<[4,8],f32>
  %z = torch.aten.neg %y : !torch.vtensor<[4,8],f32> -> !torch.vtensor<[4,8],f32>
  return %z : !torch.vtensor<[4,8],f32>
}
"""


def test_what_would_be_invalid_is_refused_alone() -> None:
    module = ir.Module.parse(SOURCE, dialects.load(ir.Context()))
    negations = [op for op in nested_ops(module.operation) if operator_name(op) == "aten.neg"]
    for op, eps in zip(negations, (-1.0, 1.0), strict=True):

        def form(op: ir.Operation, eps: float = eps) -> None:
            types = (op.results[0].type, None, None)
            raised = build_rms_norm(op.operands[0], new_constant(eps, op), None, None, types, before=op)
            replace(raised, [[op.results[0]]], [op])

        match(op, "rms-norm", form)
    module.operation.verify()
    names = [operator_name(op) for op in nested_ops(module.operation)]
    assert names.count("aten.neg") == names.count("flycc.rms_norm") == 1
    assert negations[0].attributes[REASON_CODE_ATTR].value == "rms-norm.invalid"
    assert "eps must be finite" in negations[0].attributes[REASON_ATTR].value
