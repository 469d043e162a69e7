"""match-grouped-gemm: raises `torch._grouped_mm` to `flycc.grouped_gemm`."""

from __future__ import annotations

from torch_mlir import ir

from flycc.contracts import Reason
from flycc.dialects.gemm import DTYPES
from flycc.dialects.grouped_gemm import build_grouped_gemm
from flycc.dialects.tensor import Tensor, stamped
from flycc.passes.matching import match, replace
from flycc.passes.operand_reading import Reading, readings
from flycc.passes.torch_ir import is_none, nested_ops, operator_name


def match_grouped_gemm(module: ir.Operation) -> None:
    """Raises `torch._grouped_mm` (`torch.nn.functional.grouped_mm`) to `flycc.grouped_gemm`, folding transposes.

    Before:

        %wt = torch.aten.transpose.int %w, %last, %before : !torch.vtensor<[2,16,8],bf16>, ...
        %y = torch.operator "torch.aten._grouped_mm"(%x, %wt, %offsets, %none, %none) : ...
            -> !torch.vtensor<[4,16],bf16>

    After:

        %y = "flycc.grouped_gemm"(%x, %w, %offsets) {layout = "NT", accumulate = f32, ...} : ...
            -> !torch.vtensor<[4,16],bf16>

    What fed the op stays, for flycc-dce or for other users. An op that is not raised gets the attributes
    `flycc.reason_code` and `flycc.reason`; one that nobody uses is passed over.
    """
    for op in [op for op in nested_ops(module) if operator_name(op) == "aten._grouped_mm"]:
        if list(op.results[0].uses):
            match(op, "grouped-gemm", _grouped)


def _grouped(op: ir.Operation) -> Reason | None:
    a, b, offsets, bias, _ = op.operands  # the type of the result says what the last, its dtype, is
    given = {"a": a, "b": b, "the result": op.results[0]}
    if not is_none(offsets):
        given["the offsets"] = offsets
    tensors: dict[str, Tensor] = {}
    for name, value in given.items():
        tensor = stamped(value)
        if tensor is None:
            return _reason("type", f"{name} is {value.type}; a value tensor of known rank is needed")
        tensors[name] = tensor
    if not is_none(bias):
        return _reason("bias", "it has a bias; there must be none")
    dtypes = {name: tensors[name].dtype for name in ("a", "b", "the result")}
    if len(set(dtypes.values())) > 1 or dtypes["a"] not in DTYPES:
        seen = ", ".join(f"{name} is {dtype}" for name, dtype in dtypes.items())
        return _reason("dtype", f"{seen}; all must be bf16 or all f16")
    if any(0 in tensors[name].dims for name in tensors):
        shapes = ", ".join(f"{name} is {tensor}" for name, tensor in tensors.items())
        return _reason("empty", f"{shapes}; every size must be at least 1")
    left, right = _stored(a), _stored(b)
    raised = build_grouped_gemm(
        left.value,
        right.value,
        None if is_none(offsets) else offsets,
        op.results[0].type,
        layout="NT"[left.transposed] + "NT"[right.transposed],
        before=op,
    )
    replace(raised, [[op.results[0]]], [op, *right.looked_through, *left.looked_through])
    return None


def _stored(operand: ir.Value) -> Reading:
    """The operand before the transposes that follow it; batches that an expand repeats are left to the expand."""
    found = readings(operand)
    return next(reading for reading in reversed(found) if not reading.broadcast)


def _reason(what: str, sentence: str) -> Reason:
    return Reason(f"grouped-gemm.{what}", f"_grouped_mm: {sentence}")
