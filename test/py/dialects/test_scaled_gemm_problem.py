"""flycc.scaled_gemm -> ScaledGemmProblem."""

from __future__ import annotations

import pytest
from torch_mlir import ir

from flycc.contracts import Epilogue, ScaledGemmProblem
from flycc.dialects import ScaledGemmOp, load, problem
from flycc.passes.torch_ir import nested_ops

_TYPES = {"e4m3": "f8E4M3FN", "e5m2": "f8E5M2", "e2m1": "f4E2M1FN", "e8m0": "f8E8M0FNU"}
_NAMES = ("a", "b", "scale_a", "scale_b", "bias", "residual")


def pose(
    result: str, *, placement: str = "operand", stamp: str = "", attributes: str = "", **operands: str
) -> ScaledGemmProblem:
    """The problem of an op on `operands` such as "4,?,e4m3"; `stamp` is that of a."""

    def tensor(text: str) -> str:
        *sizes, dtype = text.split(",")
        return f"!torch.vtensor<[{','.join(sizes)}],{_TYPES.get(dtype, dtype)}>"

    given = [name for name in _NAMES if name in operands]
    types = [tensor(operands[name]) for name in given]
    sizes = ", ".join(f'"{size}"' for size in stamp.split(","))
    stamps = [f" {{flycc.shape = [{sizes}]}}" if stamp else "", *[""] * 5]
    arguments = [f"%{i}: {kind}{stamps[i]}" for i, kind in enumerate(types)]
    segments = ", ".join(str(int(name in operands)) for name in _NAMES)
    text = (
        f"func.func @main({', '.join(arguments)}) {{\n"
        f'%r = "flycc.scaled_gemm"({", ".join(f"%{i}" for i in range(len(types)))}) {{placement = "{placement}", '
        f'tree = "mfma", k_block = 32 : i64, {attributes} operandSegmentSizes = array<i32: {segments}>}} '
        f": ({', '.join(types)}) -> {tensor(result)}\nreturn\n}}"
    )
    with load(ir.Context()):
        module = ir.Module.parse(text)
    (op,) = (op.opview for op in nested_ops(module.operation) if isinstance(op.opview, ScaledGemmOp))
    return problem(op)


def test_block_scales_of_formats_that_differ() -> None:
    """K = 72: rows of 72 and 36 bytes, and 3 scales each; rows of 12 results of 2 bytes."""
    posed = pose("4,12,bf16", a="4,72,e4m3", b="12,36,e2m1", scale_a="4,3,e8m0", scale_b="12,3,e8m0")
    assert posed == ScaledGemmProblem(
        *("e4m3", "e2m1", "bf16", 4, 12, 72),
        align_a=8,
        align_b=4,
        align_scale_a=1,
        align_scale_b=1,
        align_out=8,
    )


@pytest.mark.parametrize(
    ("a", "scale", "kind"),
    [
        ("4,64,e5m2", "4,1,e8m0", "row"),
        ("4,64,e5m2", "4,1,f32", "row_f32"),
        ("4,64,e5m2", "1,1,e8m0", "row"),
        ("4,64,e5m2", "1,1,f32", "row_f32"),
        ("4,64,e5m2", "4,2,e8m0", "block"),
        ("4,32,e5m2", "4,1,e8m0", "block"),
        ("4,32,e5m2", "1,1,e8m0", "row"),
        ("1,32,e5m2", "1,1,e8m0", "block"),
        ("4,16,e2m1", "4,1,e8m0", "block"),
        ("4,32,e2m1", "4,1,e8m0", "row"),
    ],
)
def test_the_types_of_scales_say_what_shares_them(a: str, scale: str, kind: str) -> None:
    """One column of bytes is of blocks where a row is one block (32 elements, 16 bytes of e2m1)."""
    columns = a.split(",")[1]
    placement = "operand" if kind == "block" else "hoisted"
    b = f"16,{columns},{a.split(',')[2]}"
    posed = pose(f"{a.split(',')[0]},16,f32", placement=placement, a=a, b=b, scale_a=scale)
    assert (posed.scale_a, posed.scale_b) == (kind, "none")


def test_epilogue() -> None:
    posed = pose(
        "4,16,f16",
        attributes='activation = "silu",',
        a="4,64,e5m2",
        b="16,64,e5m2",
        bias="16,f16",
        residual="4,16,f16",
    )
    assert posed.bias
    assert posed.epilogue == Epilogue(activation="silu", residual=True)
    assert (posed.align_bias, posed.align_residual) == (16, 16)


def test_dynamic_sizes_are_named_by_their_stamps_or_by_their_part() -> None:
    scales = {"scale_a": "?,?,e8m0", "scale_b": "?,?,e8m0"}
    posed = pose("?,?,bf16", a="?,?,e2m1", b="?,?,e2m1", stamp="s0,s1", **scales)
    assert (posed.m, posed.n, posed.k) == ("s0", "N", "2*s1")
    assert posed.align_a == posed.align_b == posed.align_scale_a == 1
    assert pose("?,?,bf16", a="?,?,e4m3", b="?,?,e4m3").k == "K"


def test_a_size_that_one_operand_knows_is_known() -> None:
    assert pose("4,16,bf16", a="4,?,e4m3", b="16,40,e2m1").k == 80
