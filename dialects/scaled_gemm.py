"""`flycc.scaled_gemm`: a product of MX operands that says where scales are applied and in which order it sums."""

# No `from __future__ import annotations` here: the op is built from its evaluated annotations.

from typing import Literal, cast, get_args

from torch_mlir import ir
from torch_mlir.dialects.ext import Operand, Pure, Result

from flycc.contracts.gemm import Activation, Epilogue, GemmDtype
from flycc.contracts.scaled_gemm import BLOCK_K, ElementFormat, ScaledGemmProblem, ScaleKind
from flycc.dialects.base import Flycc
from flycc.dialects.sizes import known, named, product, row_alignment
from flycc.dialects.tensor import Dim, Dims, Tensor, VTensor, contradict, same, show
from flycc.dialects.verifying import Fault, check_dims, check_dtype, has_attributes, segments, tensors, verify

#: Formats of elements by their MLIR types. A tensor of e2m1 has a place for every byte, which holds two.
FORMATS: dict[str, ElementFormat] = {"f8E4M3FN": "e4m3", "f8E5M2": "e5m2", "f4E2M1FN": "e2m1"}
#: The MLIR type of E8M0 scales.
E8M0 = "f8E8M0FNU"
#: Element types of results.
DTYPES = ("bf16", "f16", "f32")

#: Where scales are applied:
#:   "element"    each element of both operands is multiplied with its scale and rounded to `operand_type`
#:   "product"    each product is multiplied with both scales
#:   "one_sided"  the elements of b are, as in "element"; a's scale multiplies the sum of a block
#:   "block"      both scales multiply the sum of a block
#:   "operand"    as "block", by the MFMA itself, whose operands the scales are
#:   "hoisted"    scales of rows multiply the finished sums, and those of blocks are the MFMA's operands
Placement = Literal["element", "product", "one_sided", "block", "operand", "hoisted"]

#: The order in which a dot product is summed: that of the MFMAs of flycc's kernels ("mfma"), a balanced tree
#: ("balanced"), left to right ("chain"), or one that nobody has promised ("any").
Tree = Literal["mfma", "balanced", "chain", "any"]

_ROUNDED = ("element", "one_sided")


class ScaledGemmOp(Flycc.Operation, name="scaled_gemm", traits=[Pure]):  # type: ignore[call-arg,name-defined]
    """`result = activation(A @ B^T (+ bias)) (+ residual)` of scaled operands, summed in f32 and rounded once.

    `a` is [M, K] and `b` is [N, K], of f8E4M3FN, f8E5M2 or f4E2M1FN each; of f4E2M1FN the shape is that of the bytes,
    [.., K / 2], of which each holds two elements, the first one in its low half. The result is [M, N], or [.., N] with
    its rows in more than one dimension, of bf16, f16 or f32. `bias` [N] and `residual`, which has the shape of the
    result, have its type; of `activation` and in which order they are applied `contracts.gemm.Epilogue` says. Sizes may
    be dynamic.

    The type of a scale says which elements share it (`contracts.scaled_gemm.ScaleKind`):

        f8E8M0FNU [rows, ceil(K / 32)]     block: 32 elements along K, of which the last block may have fewer
        f8E8M0FNU or f32 [rows, 1]         row, row_f32: a row; where ceil(K / 32) is 1 a byte is a block's
        f8E8M0FNU or f32 [1, 1]            row, row_f32: the whole tensor

    Without a scale an operand is what its elements are. `placement` says where the scales are applied, see `Placement`,
    `k_block` how many elements along K share a block's (32), and `tree` in which order is summed. That must be said
    unless the placement is "operand", which has the order of the MFMA. `operand_type`, the type that scaled elements
    are rounded to, goes with the placements "element" and "one_sided" only. "hoisted" needs a scale of rows, "operand"
    must have none. Kernels compute "operand" and "hoisted"; what else a graph does, passes turn into these or leave.

        %r = "flycc.scaled_gemm"(%a, %b, %scale_a, %scale_b, %bias)
            {placement = "operand", tree = "mfma", k_block = 32 : i64,
             operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>}
            : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,32],f4E2M1FN>, !torch.vtensor<[4,2],f8E8M0FNU>,
               !torch.vtensor<[16,2],f8E8M0FNU>, !torch.vtensor<[16],bf16>) -> !torch.vtensor<[4,16],bf16>
    """

    a: Operand[VTensor]
    b: Operand[VTensor]
    result: Result[VTensor]
    placement: ir.StringAttr
    k_block: ir.IntegerAttr
    scale_a: Operand[VTensor] | None = None
    scale_b: Operand[VTensor] | None = None
    bias: Operand[VTensor] | None = None
    residual: Operand[VTensor] | None = None

    @property
    def tree(self) -> Tree:
        """The order in which is summed."""
        attributes = self.operation.attributes
        return cast(Tree, attributes["tree"].value) if "tree" in attributes else "mfma"

    @property
    def operand_type(self) -> str | None:
        """The MLIR type that scaled elements are rounded to, where they are."""
        attributes = self.operation.attributes
        return str(attributes["operand_type"].value) if "operand_type" in attributes else None

    @property
    def activation(self) -> Activation:
        """The function that the epilogue applies."""
        attributes = self.operation.attributes
        return cast(Activation, attributes["activation"].value) if "activation" in attributes else "none"

    @property
    def scale_kinds(self) -> tuple[ScaleKind, ScaleKind]:
        """How a and b are scaled."""
        a, b = known(self.a), known(self.b)
        k = elements(known_row(a, b))

        def kind(scale: ir.Value | None, rows: Dim) -> ScaleKind:
            found = "none" if scale is None else scale_kind(known(scale), rows, k)
            assert found is not None, "the verifier admits scales of known kinds only"
            return found

        return kind(self.scale_a, a.dims[0]), kind(self.scale_b, b.dims[0])

    @staticmethod
    def verify_invariants(op: ir.Operation) -> bool:
        """Called by MLIR's verifier."""
        return verify(op, _check)


def build_scaled_gemm(
    a: ir.Value,
    b: ir.Value,
    scale_a: ir.Value | None,
    scale_b: ir.Value | None,
    bias: ir.Value | None,
    result_type: ir.Type,
    *,
    placement: Placement,
    tree: Tree = "mfma",
    operand_type: str | None = None,
    residual: ir.Value | None = None,
    activation: Activation = "none",
    before: ir.Operation,
) -> ScaledGemmOp:
    """Creates a `flycc.scaled_gemm` in front of `before` and with its location. `operand_type` is an MLIR type."""
    with before.context:
        op = ScaledGemmOp(
            a,
            b,
            result_type,
            ir.StringAttr.get(placement),
            ir.IntegerAttr.get(ir.IntegerType.get_signless(64), BLOCK_K),
            scale_a=scale_a,
            scale_b=scale_b,
            bias=bias,
            residual=residual,
            loc=before.location,
            ip=ir.InsertionPoint(before),
        )
        op.attributes["tree"] = ir.StringAttr.get(tree)
        if operand_type is not None:
            op.attributes["operand_type"] = ir.TypeAttr.get(ir.Type.parse(operand_type))
        if activation != "none":
            op.attributes["activation"] = ir.StringAttr.get(activation)
    return op


def elements(row: Tensor) -> Dim:
    """K, given an operand [.., K] or, of e2m1, [.., K / 2]."""
    size = row.dims[-1]
    if size is None or FORMATS.get(row.dtype) != "e2m1":
        return size
    return product((2, size))


def scale_kind(scale: Tensor, rows: Dim, k: Dim) -> ScaleKind | None:
    """How `scale` scales an operand of `rows` rows of `k` elements; None if it does not, or if that is not known."""
    if len(scale.dims) != 2:
        return None
    given, columns = scale.dims
    if scale.dtype == "f32":
        return "row_f32" if columns == 1 and (given == 1 or not contradict(given, rows)) else None
    blocks = -(-k // BLOCK_K) if isinstance(k, int) else None
    if columns == 1 and blocks is None:
        return None
    if columns == 1 and blocks != 1:
        return "row" if given == 1 or not contradict(given, rows) else None
    # A number for the whole tensor is one of rows even where a row is one block.
    if (given, columns) == (1, 1) and not same(rows, 1):
        return "row"
    return "block" if not contradict(given, rows) and not contradict(columns, blocks) else None


def known_row(a: Tensor, b: Tensor) -> Tensor:
    """Of two operands that have K in common the one that says more of it."""
    return a if isinstance(a.dims[-1], int) or not isinstance(b.dims[-1], int) else b


def _check(op: ir.Operation) -> None:
    """Relies on types alone, never on stamps."""
    if (
        not has_attributes(op, {"placement": ir.StringAttr, "k_block": ir.IntegerAttr})
        or len(op.results) != 1
    ):
        return  # MLIR checks the declaration next, and reports what is not as declared
    operands = segments(op, "operandSegmentSizes", op.operands, "a b scale_a? scale_b? bias? residual?")
    values = tensors(operands | {"result": op.results[0]})
    kinds = _check_operands(values)
    _check_placement(op, kinds)
    result = values["result"].dims
    if "bias" in values:
        check_dims("bias", values["bias"], (result[-1],))
    if "residual" in values:
        check_dims("residual", values["residual"], result)
    if "activation" in op.attributes:
        _one_of(op, "activation", get_args(Activation))


def _check_operands(values: dict[str, Tensor]) -> list[ScaleKind]:
    """Types and shapes of all but the addends' shapes; the kinds of the scales that are there."""
    for name in ("a", "b"):
        check_dtype(name, values[name], tuple(FORMATS))
        if len(values[name].dims) != 2:
            raise Fault(f"{name} must have rank 2, got {show(values[name].dims)}")
    a, b = values["a"], values["b"]
    if contradict(elements(a), elements(b)):
        raise Fault(f"K is {elements(a)} in a but {elements(b)} in b")
    check_dtype("result", values["result"], DTYPES)
    _check_result(values["result"].dims, a.dims[0], b.dims[0])
    for name in ("bias", "residual"):
        if name in values:
            check_dtype(name, values[name], (values["result"].dtype,))
    k = elements(known_row(a, b))
    kinds: list[ScaleKind] = []
    for name, operand in (("scale_a", a), ("scale_b", b)):
        if name not in values:
            continue
        check_dtype(name, values[name], (E8M0, "f32"))
        kind = scale_kind(values[name], operand.dims[0], k)
        if kind is None:
            raise Fault(
                f"{name} must be {_accepted(values[name], operand.dims[0], k)}, got {show(values[name].dims)}"
            )
        kinds.append(kind)
    return kinds


def _check_result(result: Dims, m: Dim, n: Dim) -> None:
    *leading, last = result or (0,)
    rows = None if None in leading else product(dim for dim in leading if dim is not None)
    if not leading or contradict(rows, m) or contradict(last, n):
        raise Fault(
            f"result must be {show((m, n))}, or that with rows in more dimensions, got {show(result)}"
        )


def _accepted(scale: Tensor, rows: Dim, k: Dim) -> str:
    forms = [(rows, 1), (1, 1)]
    if scale.dtype == E8M0 and not isinstance(k, int):
        return f"{show((rows, None))} with more than one column, for the K of a and b is not known"
    if isinstance(k, int) and scale.dtype == E8M0:
        forms.insert(0, (rows, -(-k // BLOCK_K)))
    return " or ".join(dict.fromkeys(map(show, forms)))


def _check_placement(op: ir.Operation, kinds: list[ScaleKind]) -> None:
    k_block = op.attributes["k_block"].value
    if k_block != BLOCK_K:
        raise Fault(f"k_block must be {BLOCK_K}, got {k_block}")
    placement = _one_of(op, "placement", get_args(Placement))
    if "tree" in op.attributes:
        tree = _one_of(op, "tree", get_args(Tree))
        if placement == "operand" and tree != "mfma":
            raise Fault(f'tree must be "mfma" where placement is "operand", got "{tree}"')
    elif placement != "operand":
        raise Fault(f'tree must be stated where placement is "{placement}"')
    of_rows = any(kind != "block" for kind in kinds)
    if of_rows and placement == "operand":
        raise Fault('placement must not be "operand" where a scale is of rows')
    if not of_rows and placement == "hoisted":
        raise Fault('placement must not be "hoisted" where no scale is of rows')
    if ("operand_type" in op.attributes) != (placement in _ROUNDED):
        needed = "given" if placement in _ROUNDED else "absent"
        raise Fault(f'operand_type must be {needed} where placement is "{placement}"')
    if placement in _ROUNDED:
        operand_type = op.attributes["operand_type"]
        if not isinstance(operand_type, ir.TypeAttr) or str(operand_type.value) not in DTYPES:
            raise Fault(f"operand_type must be one of {', '.join(DTYPES)}, got {operand_type}")


def _one_of(op: ir.Operation, name: str, accepted: tuple[str, ...]) -> str:
    attribute = op.attributes[name]
    if not isinstance(attribute, ir.StringAttr) or attribute.value not in accepted:
        raise Fault(f"{name} must be one of {', '.join(accepted)}, got {attribute}")
    return attribute.value


def problem(op: ScaledGemmOp) -> ScaledGemmProblem:
    """The Problem that a verified `flycc.scaled_gemm` poses, whose scales are then applied as kernels apply them.

    A dynamic size becomes its symbol from the `flycc.shape` stamps, or else "M", "N" or "K". Alignments assume
    contiguous tensors at 16-byte-aligned addresses.
    """
    a, b, result = (known(v) for v in (op.a, op.b, op.result))
    scale_a, scale_b = op.scale_kinds
    return ScaledGemmProblem(
        format_a=FORMATS[a.dtype],
        format_b=FORMATS[b.dtype],
        dtype=cast(GemmDtype, result.dtype),
        m=named(first_known(a.dims[0], result.dims[0] if len(result.dims) == 2 else None), "M"),
        n=named(first_known(b.dims[0], result.dims[-1]), "N"),
        k=named(elements(known_row(a, b)), "K"),
        scale_a=scale_a,
        scale_b=scale_b,
        bias=op.bias is not None,
        align_a=row_alignment(a),
        align_b=row_alignment(b),
        align_scale_a=_alignment(op.scale_a if scale_a == "block" else None, 16),
        align_scale_b=_alignment(op.scale_b if scale_b == "block" else None, 16),
        align_out=row_alignment(result),
        align_bias=16 if op.bias is not None else 2,
        align_residual=_alignment(op.residual, 2),
        epilogue=Epilogue(activation=op.activation, residual=op.residual is not None),
    )


def _alignment(value: ir.Value | None, absent: int) -> int:
    return absent if value is None else row_alignment(known(value))


def first_known(x: Dim, y: Dim) -> Dim:
    """`x`, or `y` where nothing is known about it."""
    return y if x is None else x
