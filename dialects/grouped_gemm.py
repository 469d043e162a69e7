"""`flycc.grouped_gemm`: products of groups that share out one dimension of the operands."""

# No `from __future__ import annotations` here: the op is built from its evaluated annotations.

from typing import cast

from torch_mlir import ir
from torch_mlir.dialects.ext import Operand, Pure, Result

from flycc.contracts.gemm import GemmDtype, GemmProblem
from flycc.contracts.grouped_gemm import GroupedGemmProblem, Ragged
from flycc.dialects.base import Flycc
from flycc.dialects.gemm import DTYPES, LAYOUTS, logical
from flycc.dialects.sizes import known, named, row_alignment
from flycc.dialects.tensor import Dim, VTensor, contradict
from flycc.dialects.verifying import Fault, check_dims, check_dtype, has_attributes, segments, tensors, verify


class GroupedGemmOp(Flycc.Operation, name="grouped_gemm", traits=[Pure]):  # type: ignore[call-arg,name-defined]
    """A product for each group, summed in the `accumulate` type and rounded once to the result's type.

    With `layout` "NN", `a` is [M, K] or [G, M, K] and `b` is [K, N] or [G, K, N]; a "T" as first (second) letter says
    that the last two dimensions of `a` (`b`) are stored the other way around. `offsets` si32 [G] say where each group
    ends, ascending, in the dimension that the groups share out:

        a [M, K], b [G, K, N]: M, the result is [M, N]        a [G, M, K], b [K, N]: N, the result is [M, N]
        a [M, K], b [K, N]: K, the result is [G, M, N]        a [G, M, K], b [G, K, N]: none, and no offsets

    A `bias` [G, N], of the operands' type, is added before the rounding, to each group its row; there is none where the
    groups share out N.

    What of the result belongs to no group is undefined. All tensors but `offsets` are bf16, or all are f16;
    `accumulate` is f32. Sizes may be dynamic.

        %r = "flycc.grouped_gemm"(%x, %w, %offsets)
            {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>}
            : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,16,8],bf16>, !torch.vtensor<[2],si32>)
            -> !torch.vtensor<[4,16],bf16>
    """

    a: Operand[VTensor]
    b: Operand[VTensor]
    result: Result[VTensor]
    layout: ir.StringAttr
    accumulate: ir.TypeAttr
    offsets: Operand[VTensor] | None = None
    bias: Operand[VTensor] | None = None

    @property
    def trans_a(self) -> bool:
        """Whether `a` is stored [.., K, M]."""
        return self.layout.value[0] == "T"

    @property
    def trans_b(self) -> bool:
        """Whether `b` is stored [.., N, K]."""
        return self.layout.value[1] == "T"

    @staticmethod
    def verify_invariants(op: ir.Operation) -> bool:
        """Called by MLIR's verifier."""
        return verify(op, _check)


def build_grouped_gemm(
    a: ir.Value,
    b: ir.Value,
    offsets: ir.Value | None,
    result_type: ir.Type,
    *,
    layout: str,
    before: ir.Operation,
    bias: ir.Value | None = None,
) -> GroupedGemmOp:
    """Creates a `flycc.grouped_gemm`, accumulated in f32, in front of `before` and with its location."""
    with before.context:
        return GroupedGemmOp(
            a,
            b,
            result_type,
            ir.StringAttr.get(layout),
            ir.TypeAttr.get(ir.F32Type.get()),
            offsets=offsets,
            bias=bias,
            loc=before.location,
            ip=ir.InsertionPoint(before),
        )


def _check(op: ir.Operation) -> None:
    if not has_attributes(op, {"layout": ir.StringAttr, "accumulate": ir.TypeAttr}) or len(op.results) != 1:
        return  # MLIR checks the declaration next, and reports what is not as declared
    operands = segments(op, "operandSegmentSizes", op.operands, "a b offsets? bias?")
    layout, accumulate = op.attributes["layout"].value, op.attributes["accumulate"].value
    if layout not in LAYOUTS:
        raise Fault(f'layout must be one of {", ".join(LAYOUTS)}, got "{layout}"')
    if not isinstance(accumulate, ir.F32Type):
        raise Fault(f"accumulate type must be f32, got {accumulate}")
    values = tensors(operands | {"result": op.results[0]})
    check_dtype("a", values["a"], DTYPES)
    for name in ("b", "result", *(["bias"] if "bias" in values else [])):
        check_dtype(name, values[name], (values["a"].dtype,))
    a, b = values["a"].dims, values["b"].dims
    ranks = len(a), len(b)
    if not set(ranks) <= {2, 3}:
        raise Fault(f"a and b must have rank 2 or 3, got {ranks[0]} and {ranks[1]}")
    if ("offsets" in values) == (ranks == (3, 3)):
        raise Fault("offsets must be given unless a and b both have rank 3, and only then")
    a, b = logical(a, layout[0] == "T"), logical(b, layout[1] == "T")
    if contradict(a[-1], b[-2]):
        raise Fault(f"K is {a[-1]} in a but {b[-2]} in b (layout {layout})")
    groups = {name: dims[0] for name, dims in (("a", a), ("b", b)) if len(dims) == 3}
    if "offsets" in values:
        check_dtype("offsets", values["offsets"], ("si32",))
        check_dims("offsets", values["offsets"], (None,))
        groups["offsets"] = values["offsets"].dims[0]
    (first, count), *others = groups.items()
    for name, other in others:
        if contradict(count, other):
            raise Fault(f"{first} has {count} groups but {name} has {other}")
    if "bias" in values:
        if ranks == (3, 2):
            raise Fault("there must be no bias where the groups share out N")
        check_dims("bias", values["bias"], (count, b[-1]))
    matrix = (a[-2], b[-1])
    check_dims("result", values["result"], matrix if ranks[0] != ranks[1] else (count, *matrix))


def problem(op: GroupedGemmOp) -> GemmProblem | GroupedGemmProblem:
    """The Problem that a verified `flycc.grouped_gemm` poses: without offsets, a batch of products.

    A dynamic size becomes its symbol from the `flycc.shape` stamps, or else "M", "N", "K" or "G". Alignments assume
    contiguous tensors at 16-byte-aligned addresses.
    """
    a, b = known(op.a), known(op.b)
    a_dims, b_dims = logical(a.dims, op.trans_a), logical(b.dims, op.trans_b)
    m, n = named(a_dims[-2], "M"), named(b_dims[-1], "N")
    k = named(_first_known(a_dims[-1], b_dims[-2]), "K")
    dtype = cast(GemmDtype, a.dtype)
    layout = op.trans_a, op.trans_b
    alignments = row_alignment(a), row_alignment(b), row_alignment(known(op.result))
    biased = op.bias is not None
    align_bias = row_alignment(known(op.bias)) if biased else 2
    if op.offsets is None:
        groups = named(_first_known(a.dims[0], b.dims[0]), "G")
        return GemmProblem(dtype, m, n, k, groups, *layout, biased, *alignments)
    groups = named(known(op.offsets).dims[0], "G")
    ragged: Ragged = "k" if len(a.dims) == len(b.dims) else "m" if len(a.dims) == 2 else "n"
    return GroupedGemmProblem(dtype, ragged, groups, m, n, k, *layout, *alignments, biased, align_bias)


def _first_known(x: Dim, y: Dim) -> Dim:
    return y if x is None else x
