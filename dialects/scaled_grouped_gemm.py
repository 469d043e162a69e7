"""`flycc.scaled_grouped_gemm`: products of MX operands, one for each group of rows."""

# No `from __future__ import annotations` here: the op is built from its evaluated annotations.

from typing import cast

from torch_mlir import ir
from torch_mlir.dialects.ext import Operand, Pure, Result

from flycc.contracts.gemm import GemmDtype
from flycc.contracts.scaled_gemm import BLOCK_K
from flycc.contracts.scaled_grouped_gemm import ScaledGroupedGemmProblem
from flycc.dialects.base import Flycc
from flycc.dialects.scaled_gemm import DTYPES, E8M0, FORMATS, elements, first_known, known_row
from flycc.dialects.sizes import known, named, row_alignment
from flycc.dialects.tensor import VTensor, contradict, show
from flycc.dialects.verifying import Fault, check_dims, check_dtype, segments, tensors, verify


class ScaledGroupedGemmOp(Flycc.Operation, name="scaled_grouped_gemm", traits=[Pure]):  # type: ignore[call-arg,name-defined]
    """For each group of rows of `a` a product with its matrix of `b`, summed in f32 and rounded once.

    `a` [M, K] and `b` [G, N, K] have elements as those of `flycc.scaled_gemm`, and scales of blocks, which are the
    MFMA's operands: `scale_a` f8E8M0FNU [M, ceil(K / 32)] and `scale_b` f8E8M0FNU [G, N, ceil(K / 32)]. `offsets` si32
    [G] say where each group of rows ends, ascending. A `bias` [G, N], of the type of the result, is added before the
    rounding, to each group its row. The result [M, N] is bf16, f16 or f32; rows of no group are undefined. Sizes may be
    dynamic.

        %r = "flycc.scaled_grouped_gemm"(%x, %w, %scale_x, %scale_w, %offsets)
            : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>,
               !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16>
    """

    a: Operand[VTensor]
    b: Operand[VTensor]
    scale_a: Operand[VTensor]
    scale_b: Operand[VTensor]
    offsets: Operand[VTensor]
    result: Result[VTensor]
    bias: Operand[VTensor] | None = None

    @staticmethod
    def verify_invariants(op: ir.Operation) -> bool:
        """Called by MLIR's verifier."""
        return verify(op, _check)


def build_scaled_grouped_gemm(
    a: ir.Value,
    b: ir.Value,
    scale_a: ir.Value,
    scale_b: ir.Value,
    offsets: ir.Value,
    bias: ir.Value | None,
    result_type: ir.Type,
    *,
    before: ir.Operation,
) -> ScaledGroupedGemmOp:
    """Creates a `flycc.scaled_grouped_gemm` in front of `before` and with its location."""
    with before.context:
        return ScaledGroupedGemmOp(
            a,
            b,
            scale_a,
            scale_b,
            offsets,
            result_type,
            bias=bias,
            loc=before.location,
            ip=ir.InsertionPoint(before),
        )


def _check(op: ir.Operation) -> None:
    if len(op.results) != 1:
        return  # MLIR checks the declaration next, and reports what is not as declared
    names = "a b scale_a scale_b offsets bias?"
    values = tensors(segments(op, "operandSegmentSizes", op.operands, names) | {"result": op.results[0]})
    for name, rank in (("a", 2), ("b", 3)):
        check_dtype(name, values[name], tuple(FORMATS))
        if len(values[name].dims) != rank:
            raise Fault(f"{name} must have rank {rank}, got {show(values[name].dims)}")
    a, b = values["a"], values["b"]
    if contradict(elements(a), elements(b)):
        raise Fault(f"K is {elements(a)} in a but {elements(b)} in b")
    k = elements(known_row(a, b))
    blocks = -(-k // BLOCK_K) if isinstance(k, int) else None
    for name, operand in (("scale_a", a), ("scale_b", b)):
        check_dtype(name, values[name], (E8M0,))
        check_dims(name, values[name], (*operand.dims[:-1], blocks))
    check_dtype("offsets", values["offsets"], ("si32",))
    check_dims("offsets", values["offsets"], (b.dims[0],))
    check_dtype("result", values["result"], DTYPES)
    check_dims("result", values["result"], (a.dims[0], b.dims[1]))
    if "bias" in values:
        check_dtype("bias", values["bias"], (values["result"].dtype,))
        check_dims("bias", values["bias"], b.dims[:2])


def problem(op: ScaledGroupedGemmOp) -> ScaledGroupedGemmProblem:
    """The Problem that a verified `flycc.scaled_grouped_gemm` poses.

    A dynamic size becomes its symbol from the `flycc.shape` stamps, or else "M", "N", "K" or "G". Alignments assume
    contiguous tensors at 16-byte-aligned addresses.
    """
    a, b, result = (known(v) for v in (op.a, op.b, op.result))
    return ScaledGroupedGemmProblem(
        format_a=FORMATS[a.dtype],
        format_b=FORMATS[b.dtype],
        dtype=cast(GemmDtype, result.dtype),
        groups=named(first_known(b.dims[0], known(op.offsets).dims[0]), "G"),
        m=named(first_known(a.dims[0], result.dims[0]), "M"),
        n=named(first_known(b.dims[1], result.dims[1]), "N"),
        k=named(elements(known_row(a, b)), "K"),
        bias=op.bias is not None,
        align_a=row_alignment(a),
        align_b=row_alignment(b),
        align_scale_a=row_alignment(known(op.scale_a)),
        align_scale_b=row_alignment(known(op.scale_b)),
        align_out=row_alignment(result),
        align_bias=2 if op.bias is None else row_alignment(known(op.bias)),
    )
