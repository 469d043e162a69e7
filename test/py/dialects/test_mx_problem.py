"""flycc.mx_quantize -> MxQuantizeProblem, flycc.mx_dequantize -> MxDequantizeProblem."""

from __future__ import annotations

from torch_mlir import ir

from flycc.contracts import Problem
from flycc.contracts.mx import MxDequantizeProblem, MxQuantizeProblem
from flycc.dialects import load, problem
from flycc.dialects.base import Flycc
from flycc.passes.torch_ir import nested_ops


def pose(operands: str, op: str, attributes: str, results: str) -> Problem:
    """The problem of `op` on arguments of `operands`, types such as "[4,8],bf16" separated by "; "."""
    types, made = ([f"!torch.vtensor<{text}>" for text in texts.split("; ")] for texts in (operands, results))
    arguments = ", ".join(f"%{i}: {kind}" for i, kind in enumerate(types))
    names = ", ".join(f"%{i}" for i in range(len(types)))
    text = (
        f"func.func @main({arguments}) {{\n"
        f'%r:{len(made)} = "{op}"({names}) {attributes} '
        f": ({', '.join(types)}) -> ({', '.join(made)})\nreturn\n}}"
    )
    with load(ir.Context()):
        module = ir.Module.parse(text)
    [view] = (op.opview for op in nested_ops(module.operation) if isinstance(op.opview, Flycc.Operation))
    return problem(view)


def test_quantisation() -> None:
    """Leading dimensions are rows, of 140 bytes each."""
    posed = pose(
        "[2,3,70],bf16",
        "flycc.mx_quantize",
        '{format = "e2m1", rounding = "even"}',
        "[2,3,35],f4E2M1FN; [2,3,3],f8E8M0FNU; [3],si32",
    )
    assert posed == MxQuantizeProblem("bf16", "e2m1", 6, 70, "even", align=4)


def test_dequantisation() -> None:
    """Columns count elements, of which two share a byte; rows of what is not known are named."""
    posed = pose("[?,32],f4E2M1FN; [?,2],f8E8M0FNU", "flycc.mx_dequantize", "", "[?,64],f32")
    assert posed == MxDequantizeProblem("e2m1", "f32", "B0", 64, align=16)
