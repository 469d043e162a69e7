"""`flycc.gemm`: a matrix product whose operand layouts, batching and bias are part of the op."""

# No `from __future__ import annotations` here: the op is built from its evaluated annotations.

from typing import cast

from torch_mlir import ir
from torch_mlir.dialects.ext import Operand, Pure, Result

from flycc.contracts.gemm import GemmDtype, GemmProblem
from flycc.dialects.base import Flycc
from flycc.dialects.sizes import known, named, product, row_alignment
from flycc.dialects.tensor import Dim, Dims, Tensor, VTensor, broadcast, contradict, show, typed

#: Element types of operands and result.
DTYPES = ("bf16", "f16")
LAYOUTS = ("NN", "NT", "TN", "TT")


class GemmOp(Flycc.Operation, name="gemm", traits=[Pure]):  # type: ignore[call-arg,name-defined]
    """`result = A @ B (+ bias)`, summed in the `accumulate` type and rounded once to the result's type.

    With `layout` "NN", `a` is [batch..., M, K] and `b` is [batch..., K, N]. A "T" as first letter says that
    `a` is stored [batch..., K, M], as second letter that `b` is stored [batch..., N, K]. Batch dimensions
    broadcast as in `torch.matmul`; either operand may have none. `bias` broadcasts to the result
    [batch..., M, N]. All tensors are bf16, or all are f16; `accumulate` is f32. Sizes may be dynamic.

        %r = "flycc.gemm"(%x, %w, %bias)
            {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1>}
            : (!torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[16,8],bf16>, !torch.vtensor<[16],bf16>)
            -> !torch.vtensor<[2,4,16],bf16>

    The layout is one string because a false flag would not survive the op builder, and because it is how
    BLAS and `GemmProblem` spell it.
    """

    a: Operand[VTensor]
    b: Operand[VTensor]
    result: Result[VTensor]
    layout: ir.StringAttr
    accumulate: ir.TypeAttr
    bias: Operand[VTensor] | None = None

    @property
    def trans_a(self) -> bool:
        """Whether `a` is stored [batch..., K, M]."""
        return self.layout.value[0] == "T"

    @property
    def trans_b(self) -> bool:
        """Whether `b` is stored [batch..., N, K]."""
        return self.layout.value[1] == "T"

    @staticmethod
    def verify_invariants(op: ir.Operation) -> bool:
        """Called by MLIR's verifier."""
        fault = _fault(op)
        if fault is not None:
            op.location.emit_error(f"flycc.gemm: {fault}")
        return fault is None


def build_gemm(
    a: ir.Value,
    b: ir.Value,
    bias: ir.Value | None,
    result_type: ir.Type,
    *,
    layout: str,
    before: ir.Operation,
) -> GemmOp:
    """Creates a `flycc.gemm`, accumulated in f32, in front of `before` and with its location."""
    context = before.context
    with context:
        return GemmOp(
            a,
            b,
            result_type,
            ir.StringAttr.get(layout),
            ir.TypeAttr.get(ir.F32Type.get()),
            bias=bias,
            loc=before.location,
            ip=ir.InsertionPoint(before),
        )


def logical(dims: Dims, transposed: bool) -> Dims:
    """The shape an operand has in the product, given the shape it is stored with."""
    return (*dims[:-2], dims[-1], dims[-2]) if transposed else dims


def product_dims(a: Dims, b: Dims) -> Dims:
    """Result shape of `A @ B` for logical shapes of rank two or more. Raises ValueError if batches clash."""
    return (*broadcast(a[:-2], b[:-2]), a[-2], b[-1])


def _fault(op: ir.Operation) -> str | None:
    """What is wrong with a `flycc.gemm`, or None. Relies on types alone, never on stamps."""
    if not _as_declared(op):
        return None  # MLIR checks the declaration next, and reports what is not as declared
    attributes = op.attributes
    segments = f"array<i32: 1, 1, {len(op.operands) - 2}>"
    if "operandSegmentSizes" not in attributes:
        return f"operandSegmentSizes is missing; it must be {segments}"
    if str(attributes["operandSegmentSizes"]) != segments:
        return f"operandSegmentSizes must be {segments}, got {attributes['operandSegmentSizes']}"
    layout = attributes["layout"].value
    if layout not in LAYOUTS:
        return f'layout must be one of {", ".join(LAYOUTS)}, got "{layout}"'
    accumulate = attributes["accumulate"].value
    if not isinstance(accumulate, ir.F32Type):
        return f"accumulate type must be f32, got {accumulate}"
    names = ("a", "b", "bias")
    values = [*zip(names, op.operands, strict=False), ("result", op.results[0])]
    tensors: dict[str, Tensor] = {}
    for name, value in values:
        tensor = typed(value)
        if tensor is None:
            return f"{name} must be a value tensor of known rank and element type, got {value.type}"
        tensors[name] = tensor
    return _dtype_fault(tensors) or _shape_fault(tensors, layout)


def _as_declared(op: ir.Operation) -> bool:
    """Whether operands and results are as many, and attributes of the kinds, that the class declares."""
    attributes = op.attributes
    return (
        len(op.operands) in (2, 3)
        and len(op.results) == 1
        and "layout" in attributes
        and isinstance(attributes["layout"], ir.StringAttr)
        and "accumulate" in attributes
        and isinstance(attributes["accumulate"], ir.TypeAttr)
    )


def _dtype_fault(tensors: dict[str, Tensor]) -> str | None:
    dtype = tensors["a"].dtype
    if dtype not in DTYPES:
        return f"element type of a must be one of {', '.join(DTYPES)}, got {dtype}"
    for name, tensor in tensors.items():
        if tensor.dtype != dtype:
            return f"element type of {name} must be that of a, {dtype}, got {tensor.dtype}"
    return None


def _shape_fault(tensors: dict[str, Tensor], layout: str) -> str | None:
    for name in ("a", "b"):
        if len(tensors[name].dims) < 2:
            return f"{name} must have rank 2 or more, got {show(tensors[name].dims)}"
    a = logical(tensors["a"].dims, layout[0] == "T")
    b = logical(tensors["b"].dims, layout[1] == "T")
    if contradict(a[-1], b[-2]):
        return f"K is {a[-1]} in a but {b[-2]} in b (layout {layout})"
    try:
        expected = product_dims(a, b)
    except ValueError as clash:
        return f"batch dimensions {show(a[:-2])} of a and {show(b[:-2])} of b: {clash}"
    result = tensors["result"].dims
    if len(result) != len(expected) or any(map(contradict, result, expected)):
        return f"result must be {show(expected)}, got {show(result)}"
    if "bias" in tensors:
        bias = tensors["bias"].dims
        if len(bias) > len(result) or any(
            d != 1 and contradict(d, r) for d, r in zip(reversed(bias), reversed(result), strict=False)
        ):
            return f"bias {show(bias)} does not broadcast to the result {show(result)}"
    return None


def problem(op: GemmOp) -> GemmProblem:
    """The Problem that a verified `flycc.gemm` poses.

    A dynamic size becomes its symbol from the `flycc.shape` stamps, or else "M", "N", "K" or "B<i>". Batch
    dimensions that every row of A shares one B for are counted as rows: [batch..., M, K] times [K, N] is one
    GEMM of batch*M rows. Alignments assume contiguous tensors at 16-byte-aligned addresses.
    """
    a, b, result = (known(v) for v in (op.a, op.b, op.result))
    bias = None if op.bias is None else known(op.bias)
    logical_a, logical_b = logical(a.dims, op.trans_a), logical(b.dims, op.trans_b)
    seen = map(_first_known, result.dims, product_dims(logical_a, logical_b))
    *batch, rows, columns = map(named, seen, [*(f"B{i}" for i in range(len(result.dims) - 2)), "M", "N"])
    bias_is_per_row = bias is None or len(bias.dims) <= 1 or bias.dims == result.dims
    if len(b.dims) == 2 and not op.trans_a and bias_is_per_row:
        rows, batch = product([*batch, rows]), []
    return GemmProblem(
        dtype=cast(GemmDtype, a.dtype),
        m=rows,
        n=columns,
        k=named(_first_known(logical_a[-1], logical_b[-2]), "K"),
        batch=product(batch),
        trans_a=op.trans_a,
        trans_b=op.trans_b,
        bias=bias is not None,
        align_a=row_alignment(a),
        align_b=row_alignment(b),
        align_out=row_alignment(result),
    )


def _first_known(x: Dim, y: Dim) -> Dim:
    return y if x is None else x
