"""flycc.grouped_gemm -> GroupedGemmProblem, or GemmProblem where there are no offsets."""

from __future__ import annotations

import pytest
from torch_mlir import ir

from flycc.contracts import GemmProblem, GroupedGemmProblem
from flycc.dialects import GroupedGemmOp, load, problem
from flycc.passes.torch_ir import nested_ops


def pose(
    a: str, b: str, offsets: str | None, result: str, layout: str = "NN", stamp: str = "", bias: str = ""
) -> GemmProblem | GroupedGemmProblem:
    """The problem of an op on arguments of shapes such as "2,?,8"; `stamp` is that of a."""
    types = [f"!torch.vtensor<[{shape}],bf16>" for shape in (a, b)]
    if offsets is not None:
        types.append(f"!torch.vtensor<[{offsets}],si32>")
    if biased := bool(bias):
        types.append(f"!torch.vtensor<[{bias}],bf16>")
    sizes = ", ".join(f'"{size}"' for size in stamp.split(","))
    attributes = [f" {{flycc.shape = [{sizes}]}}" if stamp else "", "", "", ""]
    arguments = [f"%{i}: {kind}{attributes[i]}" for i, kind in enumerate(types)]
    text = (
        f"func.func @main({', '.join(arguments)}) {{\n"
        f'%r = "flycc.grouped_gemm"({", ".join(f"%{i}" for i in range(len(types)))}) {{layout = "{layout}", '
        f"accumulate = f32, operandSegmentSizes = array<i32: 1, 1, {int(offsets is not None)}, {int(biased)}>}} "
        f": ({', '.join(types)}) -> !torch.vtensor<[{result}],bf16>\nreturn\n}}"
    )
    with load(ir.Context()):
        module = ir.Module.parse(text)
    (op,) = (op.opview for op in nested_ops(module.operation) if isinstance(op.opview, GroupedGemmOp))
    return problem(op)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("4,8", "2,8,12", "2", "4,12"),
            GroupedGemmProblem("bf16", "m", 2, 4, 12, 8, align_b=8, align_out=8),
        ),
        (
            ("2,4,8", "8,12", "2", "4,12"),
            GroupedGemmProblem("bf16", "n", 2, 4, 12, 8, align_b=8, align_out=8),
        ),
        (
            ("4,8", "8,12", "3", "3,4,12"),
            GroupedGemmProblem("bf16", "k", 3, 4, 12, 8, align_b=8, align_out=8),
        ),
        (("2,4,8", "2,8,12", None, "2,4,12"), GemmProblem("bf16", 4, 12, 8, 2, align_b=8, align_out=8)),
        (
            ("8,4", "2,12,8", "2", "4,12", "TT"),
            GroupedGemmProblem("bf16", "m", 2, 4, 12, 8, True, True, align_a=8, align_out=8),
        ),
    ],
)
def test_forms(arguments: tuple[str, ...], expected: GemmProblem | GroupedGemmProblem) -> None:
    """Rows of 4 and 12 elements keep addresses at multiples of 8 bytes only."""
    assert pose(*arguments) == expected


def test_a_bias_and_its_alignment() -> None:
    posed = pose("4,8", "2,8,12", "2", "4,12", bias="2,12")
    assert posed == GroupedGemmProblem(
        "bf16", "m", 2, 4, 12, 8, align_b=8, align_out=8, bias=True, align_bias=8
    )
    batch = pose("2,4,8", "2,8,16", None, "2,4,16", bias="2,16")
    assert batch == GemmProblem("bf16", 4, 16, 8, 2, bias=True)


def test_dynamic_sizes_are_named_by_their_stamps_or_by_their_part() -> None:
    assert pose("?,8", "2,8,16", "2", "?,16", stamp="s0,8") == GroupedGemmProblem("bf16", "m", 2, "s0", 16, 8)
    posed = pose("?,?", "?,?,?", "?", "?,?")
    assert posed == GroupedGemmProblem("bf16", "m", "G", "M", "N", "K", align_a=2, align_b=2, align_out=2)


def test_a_size_that_one_operand_knows_is_known() -> None:
    posed = pose("4,?", "?,8,16", "2", "4,16")
    assert posed == GroupedGemmProblem("bf16", "m", 2, 4, 16, 8, align_a=2)
