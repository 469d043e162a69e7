"""`flycc.gemm`: a matrix product whose operand layouts, batching and epilogue are part of the op."""

# No `from __future__ import annotations` here: the op is built from its evaluated annotations.

from typing import cast, get_args

from torch_mlir import ir
from torch_mlir.dialects.ext import Operand, Pure, Result

from flycc.contracts.gemm import Activation, Epilogue, GemmDtype, GemmProblem
from flycc.dialects.base import Flycc, create
from flycc.dialects.sizes import known, named, product, row_alignment
from flycc.dialects.tensor import Dim, Dims, Tensor, VTensor, broadcast, contradict, show
from flycc.dialects.verifying import Fault, check_dims, has_attributes, segments, tensors, verify

#: Element types of operands.
DTYPES = ("bf16", "f16")
LAYOUTS = ("NN", "NT", "TN", "TT")


def is_scale(factor: float) -> bool:
    """Whether float32 holds `factor` as a normal number, up to its rounding."""
    return 2.0**-126 <= abs(factor) <= 2.0**127


class GemmOp(Flycc.Operation, name="gemm", traits=[Pure]):  # type: ignore[call-arg,name-defined]
    """`result = A @ B (+ bias)`, summed in the `accumulate` type and rounded once to the result's type.

    With `layout` "NN", `a` is [batch..., M, K] and `b` is [batch..., K, N]. A "T" as first letter says that
    `a` is stored [batch..., K, M], as second letter that `b` is stored [batch..., N, K]. Batch dimensions
    broadcast as in `torch.matmul`; either operand may have none. `bias` broadcasts to the result
    [batch..., M, N]. All operands are bf16, or all are f16; `accumulate` is f32. Sizes may be dynamic.

    What else becomes of the sums before they are rounded, `contracts.gemm.Epilogue` defines: attributes `scale` (an
    f32) and `activation` (a string), which are left out where they change nothing, `b2` of the type of `b`, which makes
    the product a gated one without bias, and `residual`, which broadcasts to the result. The result has the operands'
    element type or f32; `preactivation` is a second one of the same type, not of a gated product.

        %r = "flycc.gemm"(%x, %w, %bias, %h)
            {layout = "NT", accumulate = f32, activation = "silu",
             operandSegmentSizes = array<i32: 1, 1, 1, 0, 1>, resultSegmentSizes = array<i32: 1, 0>}
            : (!torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[16,8],bf16>, !torch.vtensor<[16],bf16>,
               !torch.vtensor<[2,4,16],bf16>) -> !torch.vtensor<[2,4,16],bf16>

    The layout is one string because it is how BLAS and `GemmProblem` spell it.
    """

    a: Operand[VTensor]
    b: Operand[VTensor]
    result: Result[VTensor]
    layout: ir.StringAttr
    accumulate: ir.TypeAttr
    bias: Operand[VTensor] | None = None
    b2: Operand[VTensor] | None = None
    residual: Operand[VTensor] | None = None
    preactivation: Result[VTensor] | None = None

    @property
    def trans_a(self) -> bool:
        """Whether `a` is stored [batch..., K, M]."""
        return self.layout.value[0] == "T"

    @property
    def trans_b(self) -> bool:
        """Whether `b` is stored [batch..., N, K]."""
        return self.layout.value[1] == "T"

    @property
    def activation(self) -> Activation:
        """The function that the epilogue applies."""
        attributes = self.operation.attributes
        return cast(Activation, attributes["activation"].value) if "activation" in attributes else "none"

    @property
    def scale(self) -> float:
        """What the sums are multiplied with, a float32 number."""
        attributes = self.operation.attributes
        return attributes["scale"].value if "scale" in attributes else 1.0

    @staticmethod
    def verify_invariants(op: ir.Operation) -> bool:
        """Called by MLIR's verifier."""
        return verify(op, _check)


def build_gemm(
    a: ir.Value,
    b: ir.Value,
    bias: ir.Value | None,
    result_type: ir.Type,
    *,
    layout: str,
    b2: ir.Value | None = None,
    residual: ir.Value | None = None,
    scale: float = 1.0,
    activation: Activation = "none",
    preactivation: bool = False,
    before: ir.Operation,
) -> GemmOp:
    """Creates a `flycc.gemm`, accumulated in f32, in front of `before` and with its location."""
    with before.context:
        f32 = ir.F32Type.get()
        attributes = {"layout": ir.StringAttr.get(layout), "accumulate": ir.TypeAttr.get(f32)}
        if scale != 1:
            attributes["scale"] = ir.FloatAttr.get(f32, scale, ir.Location.unknown())
        if activation != "none":
            attributes["activation"] = ir.StringAttr.get(activation)
    return create(
        "flycc.gemm",
        (a, b, bias, b2, residual),
        (result_type, result_type if preactivation else None),
        attributes,
        before=before,
        segmented=True,
    )


def logical(dims: Dims, transposed: bool) -> Dims:
    """The shape an operand has in the product, given the shape it is stored with."""
    return (*dims[:-2], dims[-1], dims[-2]) if transposed else dims


def product_dims(a: Dims, b: Dims) -> Dims:
    """Result shape of `A @ B` for logical shapes of rank two or more. Raises ValueError if batches clash."""
    return (*broadcast(a[:-2], b[:-2]), a[-2], b[-1])


def _check(op: ir.Operation) -> None:
    """Relies on types alone, never on stamps."""
    declared = {"layout": ir.StringAttr, "accumulate": ir.TypeAttr}
    if not has_attributes(op, declared) or len(op.operands) < 2 or not op.results:
        return  # MLIR checks the declaration next, and reports what is not as declared
    operands = segments(op, "operandSegmentSizes", op.operands, "a b bias? b2? residual?")
    results = segments(op, "resultSegmentSizes", op.results, "result preactivation?")
    layout = op.attributes["layout"].value
    if layout not in LAYOUTS:
        raise Fault(f'layout must be one of {", ".join(LAYOUTS)}, got "{layout}"')
    accumulate = op.attributes["accumulate"].value
    if not isinstance(accumulate, ir.F32Type):
        raise Fault(f"accumulate type must be f32, got {accumulate}")
    values = tensors(operands | results)
    _check_dtypes(values)
    _check_shapes(values, layout)
    _check_epilogue(op, values)


def _check_dtypes(values: dict[str, Tensor]) -> None:
    dtype = values["a"].dtype
    if dtype not in DTYPES:
        raise Fault(f"element type of a must be one of {', '.join(DTYPES)}, got {dtype}")
    for name, tensor in values.items():
        if name == "result":
            if tensor.dtype not in (dtype, "f32"):
                raise Fault(f"element type of result must be that of a, {dtype}, or f32, got {tensor.dtype}")
            dtype = tensor.dtype  # the other results have it too
        elif tensor.dtype != dtype:
            like = "result" if name == "preactivation" else "a"
            raise Fault(f"element type of {name} must be that of {like}, {dtype}, got {tensor.dtype}")


def _check_shapes(values: dict[str, Tensor], layout: str) -> None:
    for name in ("a", "b"):
        if len(values[name].dims) < 2:
            raise Fault(f"{name} must have rank 2 or more, got {show(values[name].dims)}")
    a = logical(values["a"].dims, layout[0] == "T")
    b = logical(values["b"].dims, layout[1] == "T")
    if contradict(a[-1], b[-2]):
        raise Fault(f"K is {a[-1]} in a but {b[-2]} in b (layout {layout})")
    try:
        expected = product_dims(a, b)
    except ValueError as clash:
        raise Fault(f"batch dimensions {show(a[:-2])} of a and {show(b[:-2])} of b: {clash}") from None
    check_dims("result", values["result"], expected)
    result = values["result"].dims
    if "preactivation" in values:
        check_dims("preactivation", values["preactivation"], result)
    for name in ("bias", "residual"):
        dims = values[name].dims if name in values else ()
        if len(dims) > len(result) or any(
            d != 1 and contradict(d, r) for d, r in zip(reversed(dims), reversed(result), strict=False)
        ):
            raise Fault(f"{name} {show(dims)} does not broadcast to the result {show(result)}")


def _check_epilogue(op: ir.Operation, values: dict[str, Tensor]) -> None:
    if "activation" in op.attributes:
        activation, known_ones = op.attributes["activation"], get_args(Activation)
        if not isinstance(activation, ir.StringAttr) or activation.value not in known_ones:
            raise Fault(f"activation must be one of {', '.join(known_ones)}, got {activation}")
    if "scale" in op.attributes:
        scale = op.attributes["scale"]
        if not isinstance(scale, ir.FloatAttr) or not isinstance(scale.type, ir.F32Type):
            raise Fault(f"scale must be an f32, got {scale}")
    if "b2" in values:
        check_dims("b2", values["b2"], values["b"].dims)
        for name in ("bias", "preactivation"):
            if name in values:
                raise Fault(f"a gated product, one with b2, has no {name}")


def problem(op: GemmOp) -> GemmProblem:
    """The Problem that a verified `flycc.gemm` poses.

    A dynamic size becomes its symbol from the `flycc.shape` stamps, or else "M", "N", "K" or "B<i>". Batch
    dimensions that every row of A shares one B for are counted as rows: [batch..., M, K] times [K, N] is one
    GEMM of batch*M rows. Alignments assume contiguous tensors at 16-byte-aligned addresses.
    """
    a, b, result = (known(v) for v in (op.a, op.b, op.result))
    bias, residual = (None if addend is None else known(addend) for addend in (op.bias, op.residual))
    logical_a, logical_b = logical(a.dims, op.trans_a), logical(b.dims, op.trans_b)
    seen = map(_first_known, result.dims, product_dims(logical_a, logical_b))
    *batch, rows, columns = map(named, seen, [*(f"B{i}" for i in range(len(result.dims) - 2)), "M", "N"])
    addends_are_per_row = all(
        addend is None or len(addend.dims) <= 1 or addend.dims == result.dims for addend in (bias, residual)
    )
    if len(b.dims) == 2 and not op.trans_a and addends_are_per_row:
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
        align_bias=_addend_alignment(bias),
        align_residual=_addend_alignment(residual),
        epilogue=Epilogue(
            op.scale != 1,
            op.activation,
            op.b2 is not None,
            residual is not None,
            op.preactivation is not None,
            None if result.dtype == a.dtype else cast(GemmDtype, result.dtype),
        ),
    )


def _addend_alignment(addend: Tensor | None) -> int:
    """As `GemmProblem` has it, for a bias or a residual: 2 for one column, and rows that repeat are one row."""
    if addend is None or not addend.dims or addend.dims[-1] in (1, None):
        return 2
    return 16 if all(dim == 1 for dim in addend.dims[:-1]) else row_alignment(addend)


def _first_known(x: Dim, y: Dim) -> Dim:
    return y if x is None else x
