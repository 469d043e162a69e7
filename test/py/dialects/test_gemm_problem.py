"""flycc.gemm -> GemmProblem, and contexts that know the dialect."""

from __future__ import annotations

import pytest
from torch_mlir import ir

from flycc.contracts import Epilogue, GemmProblem
from flycc.dialects import GemmOp, build_gemm, load, problem
from flycc.passes.torch_ir import nested_ops

#: A product of [4, k] with itself, which is well formed for k = 4.
_SQUARE = """
func.func @main(%a: !torch.vtensor<[4,{k}],bf16>) {{
  %r = "flycc.gemm"(%a, %a) {{layout = "NN", accumulate = f32,
        operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>}}
      : (!torch.vtensor<[4,{k}],bf16>, !torch.vtensor<[4,{k}],bf16>) -> !torch.vtensor<[4,{k}],bf16>
  return
}}
"""


def pose(
    a: str, b: str, result: str, layout: str = "NN", *, bias: str | None = None, stamps: tuple[str, ...] = ()
) -> GemmProblem:
    """The problem of an op on arguments of shapes such as "2,?,8"; stamps are those of a, b, bias."""
    shapes = [a, b] if bias is None else [a, b, bias]
    types = [f"!torch.vtensor<[{shape}],bf16>" for shape in (*shapes, result)]
    attributes = [""] * len(shapes)
    for i, stamp in enumerate(stamps):
        sizes = ", ".join(f'"{size}"' for size in stamp.split(","))
        attributes[i] = f" {{flycc.shape = [{sizes}]}}"
    arguments = [f"%{i}: {types[i]}{attributes[i]}" for i in range(len(shapes))]
    text = (
        f"func.func @main({', '.join(arguments)}) {{\n"
        f'%r = "flycc.gemm"({", ".join(f"%{i}" for i in range(len(shapes)))}) {{layout = "{layout}", '
        f"accumulate = f32, operandSegmentSizes = array<i32: 1, 1, {len(shapes) - 2}, 0, 0>, "
        f"resultSegmentSizes = array<i32: 1, 0>}} "
        f": ({', '.join(types[:-1])}) -> {types[-1]}\nreturn\n}}"
    )
    with load(ir.Context()):
        module = ir.Module.parse(text)
    return problem(_only_gemm(module))


def _only_gemm(module: ir.Module) -> GemmOp:
    (op,) = (op.opview for op in nested_ops(module.operation) if isinstance(op.opview, GemmOp))
    return op


@pytest.mark.parametrize(
    ("layout", "a", "b", "aligns"),
    [
        ("NN", "4,8", "8,12", (16, 8, 8)),
        ("NT", "4,8", "12,8", (16, 16, 8)),
        ("TN", "8,4", "8,12", (8, 8, 8)),
        ("TT", "8,4", "12,8", (8, 16, 8)),
    ],
)
def test_layouts(layout: str, a: str, b: str, aligns: tuple[int, int, int]) -> None:
    """Alignments are those of 2-byte rows of the stored operands: 8 -> 16 bytes, 4 and 12 -> 8 bytes."""
    posed = pose(a, b, "4,12", layout)
    assert posed == GemmProblem("bf16", 4, 12, 8, 1, layout[0] == "T", layout[1] == "T", False, *aligns)
    assert posed.layout == layout


@pytest.mark.parametrize(
    ("row", "align"), [(1, 2), (2, 4), (3, 2), (4, 8), (6, 4), (8, 16), (24, 16), (100, 8)]
)
def test_alignment(row: int, align: int) -> None:
    assert pose(f"4,{row}", f"{row},8", "4,8").align_a == align


def test_batches() -> None:
    def size(*args: str, **kwargs: str) -> tuple[object, object]:
        posed = pose(*args, **kwargs)
        return posed.batch, posed.m

    assert size("2,3,4,8", "2,3,8,16", "2,3,4,16") == (6, 4)
    assert size("4,8", "3,8,16", "3,4,16") == (3, 4)
    # One B for every row: batches are rows, unless rows of A are not stored one behind the other ...
    assert size("2,3,4,8", "8,16", "2,3,4,16") == (1, 24)
    assert size("2,3,8,4", "8,16", "2,3,4,16", "TN") == (6, 4)
    # ... or a bias repeats itself somewhere between them.
    assert size("2,3,4,8", "8,16", "2,3,4,16", bias="16") == (1, 24)
    assert size("2,3,4,8", "8,16", "2,3,4,16", bias="2,3,4,16") == (1, 24)
    assert size("2,3,4,8", "8,16", "2,3,4,16", bias="4,16") == (6, 4)
    assert size("2,3,4,8", "8,16", "2,3,4,16", bias="3,1,16") == (6, 4)


def test_dynamic_sizes() -> None:
    unknown = pose("?,?,?", "?,?,?", "?,?,?")
    assert (unknown.batch, unknown.m, unknown.n, unknown.k) == ("B0", "M", "N", "K")
    assert (unknown.align_a, unknown.align_b, unknown.align_out) == (2, 2, 2)
    # What one tensor leaves open another may tell.
    mixed = pose("?,?,8", "3,?,16", "3,4,?")
    assert (mixed.batch, mixed.m, mixed.n, mixed.k) == (3, 4, 16, 8)


def test_symbols() -> None:
    stamps = ("s0,s1,8", "16,8")
    posed = pose("?,?,8", "16,8", "?,?,16", "NT", stamps=stamps)
    assert (posed.batch, posed.m, posed.n, posed.k) == (1, "s0*s1", 16, 8)
    posed = pose("?,?,8", "8,16", "?,?,16", stamps=("s0 + 1,s1,8", "8,16"))
    assert (posed.batch, posed.m) == (1, "(s0 + 1)*s1")
    posed = pose("?,4,8", "?,8,16", "?,4,16", stamps=("s0 + 1,4,8", "s0 + 1,8,16"))
    assert (posed.batch, posed.m) == ("s0 + 1", 4)


def test_builder_writes_what_the_verifier_wants() -> None:
    with load(ir.Context()):
        module = ir.Module.parse(_SQUARE.format(k=4))
    op = _only_gemm(module)
    built = build_gemm(op.a, op.b, None, op.result.type, layout="NT", before=op.operation)
    assert module.operation.verify()
    assert (built.trans_a, built.trans_b, built.bias) == (False, True, None)
    with_bias = build_gemm(op.a, op.b, op.a, op.result.type, layout="TN", before=op.operation)
    assert module.operation.verify()
    assert (with_bias.trans_a, with_bias.trans_b, with_bias.bias) == (True, False, op.a)


def test_epilogues() -> None:
    with load(ir.Context()):
        module = ir.Module.parse(_SQUARE.format(k=4))
        wide = ir.Type.parse("!torch.vtensor<[4,4],f32>")
    op = _only_gemm(module)
    gated = build_gemm(
        op.a, op.b, None, wide, layout="NN", b2=op.a, residual=op.a, scale=0.1, activation="silu", before=op
    )
    assert module.operation.verify()
    assert problem(gated).epilogue == Epilogue(True, "silu", True, True, False, "f32")
    assert gated.scale == pytest.approx(0.1, rel=2**-24)
    kept = build_gemm(
        op.a, op.b, op.a, op.result.type, layout="NN", activation="relu", preactivation=True, before=op
    )
    assert module.operation.verify()
    assert problem(kept).epilogue == Epilogue(activation="relu", preactivation=True)


def test_alignments_of_addends() -> None:
    def align(bias: str) -> int:
        return pose("4,8", "8,12", "4,12", bias=bias).align_bias

    # Rows of 24 bytes; a row that all share is aligned as its address is.
    assert (align("4,12"), align("12"), align("1,12"), align("4,1"), align("1")) == (8, 16, 16, 2, 2)


def test_every_context_verifies() -> None:
    """Loading again changes nothing; a context loaded earlier still verifies after a later one is loaded."""
    first = load(ir.Context())
    assert load(first) is first
    second = load(ir.Context())
    for context in (first, second, first):
        with context, pytest.raises(ir.MLIRError, match="K is 8 in a but 4 in b"):
            ir.Module.parse(_SQUARE.format(k=8))
