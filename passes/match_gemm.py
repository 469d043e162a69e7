"""match-gemm: raises torch's matrix products to `flycc.gemm`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from torch_mlir import ir

from flycc.contracts import Reason
from flycc.dialects.gemm import DTYPES, build_gemm, is_scale, product_dims
from flycc.dialects.tensor import SHAPE_ATTR, Dims, same, same_dims, stamped
from flycc.passes.matching import CONSUMED_ATTR, match, verify
from flycc.passes.operand_reading import Reading, dims_of, readings
from flycc.passes.torch_ir import (
    NODE_ATTR,
    constant,
    is_none,
    nested_ops,
    node_name,
    only_user,
    operator_name,
)


def match_gemm(module: ir.Operation) -> None:
    """Raises matrix products to `flycc.gemm`, folding transposes, batch flattening and a linear layer's bias.

    Before:

        %wt = torch.aten.t %w : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
        %x2 = torch.aten.view %x, %sizes : !torch.vtensor<[2,4,8],bf16>, ... -> !torch.vtensor<[8,8],bf16>
        %y2 = torch.aten.mm %x2, %wt : ... -> !torch.vtensor<[8,16],bf16>
        %y = torch.aten._unsafe_view %y2, %out_sizes : ... -> !torch.vtensor<[2,4,16],bf16>

    After:

        %y = "flycc.gemm"(%x, %w) {layout = "NT", accumulate = f32, ...}
            : (!torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[2,4,16],bf16>

    The op whose result is replaced is erased; what fed it stays, for flycc-dce or for its other users. A fold
    that types and `flycc.shape` stamps do not prove is left out, which keeps the views and gives a GEMM of
    two or three dimensions. A product that is not raised gets the attributes `flycc.reason_code` and
    `flycc.reason`; one that nobody uses is passed over.

    A constant alpha becomes the `scale` of the sums, to which a bias is added if beta is 1; if it is 0 there is none.
    A product with an out_dtype of f32 has a result of that type.

    A bias that is added after the product is then added before rounding: one rounding instead of eager's two.
    """
    # Listed first: raising erases ops, but none that is itself a product still to be looked at.
    for op in [op for op in nested_ops(module) if operator_name(op) in _FORMS]:
        if not list(op.results[0].uses):
            continue
        match(op, "gemm", _product)


def _product(op: ir.Operation) -> Reason | None:
    form = _FORMS[operator_name(op)]
    reason = _refusal(op, form)
    if reason is None:
        _raise_product(op, form)
    return reason


@dataclass(frozen=True)
class _Form:
    """Where an op of torch keeps the parts of a product, by operand number.

    `rank` is that of its operands, None if any from 2 on will do. `factors` are beta and alpha.
    """

    a: int
    b: int
    bias: int | None = None
    factors: tuple[int, ...] = ()
    rank: int | None = None
    trans_b: bool = False


_FORMS = {
    "aten.mm": _Form(0, 1, rank=2),
    "aten.mm.dtype": _Form(0, 1, rank=2),
    "aten.bmm": _Form(0, 1, rank=3),
    "aten.bmm.dtype": _Form(0, 1, rank=3),
    "aten.addmm": _Form(1, 2, bias=0, factors=(3, 4), rank=2),
    "aten.addmm.dtype": _Form(1, 2, bias=0, factors=(4, 5), rank=2),
    "aten.baddbmm": _Form(1, 2, bias=0, factors=(3, 4), rank=3),
    "aten.baddbmm.dtype": _Form(1, 2, bias=0, factors=(4, 5), rank=3),
    "aten.linear": _Form(0, 1, bias=2, trans_b=True),
    "aten.matmul": _Form(0, 1),
}
_VIEWS = ("torch.aten.view", "torch.aten._unsafe_view", "torch.aten.reshape")


def _bias(op: ir.Operation, form: _Form) -> ir.Value | None:
    if form.bias is None or is_none(op.operands[form.bias]) or _factors(op, form)[0] == 0:
        return None
    return op.operands[form.bias]


def _factors(op: ir.Operation, form: _Form) -> tuple[float | None, float | None]:
    """beta and alpha; None for a run-time value."""
    beta, alpha = (constant(op.operands[operand]) for operand in form.factors) if form.factors else (1, 1)
    return beta, alpha


def _refusal(op: ir.Operation, form: _Form) -> Reason | None:
    """Why `op` cannot be a `flycc.gemm`, or None."""
    kind = operator_name(op).removeprefix("aten.")
    bias = _bias(op, form)
    values = {"a": op.operands[form.a], "b": op.operands[form.b], "the result": op.results[0]}
    if bias is not None:
        values["the bias"] = bias
    tensors = {}
    for name, value in values.items():
        tensor = stamped(value)
        if tensor is None:
            return Reason(
                "gemm.type", f"{kind}: {name} is {value.type}; a value tensor of known rank is needed"
            )
        tensors[name] = tensor
    a, b = tensors["a"], tensors["b"]
    if len(a.dims) < 2 or len(b.dims) < 2:
        return Reason("gemm.rank", f"{kind} of {a} and {b}: both operands need two dimensions or more")
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    may_widen = operator_name(op).endswith(".dtype")
    alike = {t for name, t in dtypes.items() if not (may_widen and name == "the result" and t == "f32")}
    if len(alike) > 1 or a.dtype not in DTYPES:
        seen = ", ".join(f"{name} is {dtype}" for name, dtype in dtypes.items())
        return Reason("gemm.dtype", f"{kind}: {seen}; all must be bf16 or all f16")
    if 0 in a.dims or 0 in b.dims:
        return Reason("gemm.empty", f"{kind} of {a} and {b}: every size must be at least 1")
    beta, alpha = _factors(op, form)
    if beta not in (0, 1):
        return Reason("gemm.factor", f"{kind}: beta is {_seen(beta)}; only 0 and 1 are accepted")
    if alpha is None or not is_scale(alpha):
        return Reason("gemm.factor", f"{kind}: alpha is {_seen(alpha)}; a normal float32 constant is needed")
    return None


def _seen(factor: float | None) -> str:
    return "a run-time value" if factor is None else str(factor)


def _raise_product(op: ir.Operation, form: _Form) -> None:
    bias = _bias(op, form)
    root = op
    a_readings = readings(op.operands[form.a], may_flatten=form.rank is not None)
    b_readings = readings(op.operands[form.b], transposed=form.trans_b, may_flatten=form.rank == 3)
    found = None
    unflatten = only_user(op.results[0])
    if form.rank is not None and unflatten is not None and unflatten.name in _VIEWS:
        found = _widest(a_readings, b_readings, bias, unflatten, form.rank)
        if found is not None:
            root = unflatten
    if found is None:
        found = _widest(a_readings, b_readings, bias, op, None)
    assert found is not None, "the operands as they are make a product"
    a, b = found
    folded = [op, *a.looked_through, *b.looked_through]
    if root is not op:
        folded.insert(0, root)
    if bias is None and (addition := _linear_bias(root)) is not None:
        root, bias = addition
        folded.insert(0, root)
    scale = _factors(op, form)[1]
    assert scale is not None, "run-time factors are refused"
    _replace(root, a, b, bias, scale, folded)


def _widest(
    a_readings: list[Reading],
    b_readings: list[Reading],
    bias: ir.Value | None,
    root: ir.Operation,
    rank: int | None,
) -> tuple[Reading, Reading] | None:
    """The farthest readings whose product provably is the result of `root`.

    `root` is the product itself, or (`rank` given: that of the product's operands) the view of its result.
    """
    for a, b in product(reversed(a_readings), reversed(b_readings)):
        if _is_result(a, b, bias, root, rank):
            return a, b
    return None


def _is_result(a: Reading, b: Reading, bias: ir.Value | None, root: ir.Operation, rank: int | None) -> bool:
    """Whether the product of two readings, plus `bias`, provably is the result of `root`; see `_widest`."""
    if rank is None:
        if a.flattened is not None or b.flattened is not None:
            return False
        if not a.broadcast and not b.broadcast:
            return True  # by the meaning of the op: nothing but transposes and copies was looked through
    result = dims_of(root.results[0])
    if rank is not None:
        batch = result[: len(result) - (rank - 1)]
        flattened = [reading.flattened for reading in (a, b) if reading.flattened is not None]
        if not all(same_dims(dims, batch) for dims in flattened):
            return False
        if bias is not None and not _broadcasts_to(dims_of(bias), result):
            return False
    try:
        return same_dims(product_dims(a.dims, b.dims), result)
    except ValueError:
        return False


def _broadcasts_to(dims: Dims, result: Dims) -> bool:
    return len(dims) <= len(result) and all(
        d == 1 or same(d, r) for d, r in zip(reversed(dims), reversed(result), strict=False)
    )


def _linear_bias(root: ir.Operation) -> tuple[ir.Operation, ir.Value] | None:
    """The addition that alone uses the result of `root`, if it adds one vector to each row; the vector."""
    addition = only_user(root.results[0])
    if addition is None or addition.name != "torch.aten.add.Tensor" or constant(addition.operands[2]) != 1:
        return None
    left, right = list(addition.operands)[:2]
    bias = right if left == root.results[0] else left
    vector, matrix, total = (stamped(value) for value in (bias, root.results[0], addition.results[0]))
    if vector is None or matrix is None or total is None:
        return None
    if len(vector.dims) != 1 or not same(vector.dims[0], matrix.dims[-1]):
        return None
    return (addition, bias) if vector.dtype == matrix.dtype == total.dtype != "f32" else None


def _replace(
    root: ir.Operation,
    a: Reading,
    b: Reading,
    bias: ir.Value | None,
    scale: float,
    folded: list[ir.Operation],
) -> None:
    layout = "NT"[a.transposed] + "NT"[b.transposed]
    gemm = build_gemm(a.value, b.value, bias, root.results[0].type, layout=layout, scale=scale, before=root)
    verify(gemm)
    names = dict.fromkeys(name for op in folded if (name := node_name(op)) is not None)
    with root.context:
        if names:
            gemm.attributes[CONSUMED_ATTR] = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in names])
    for attribute in (NODE_ATTR, SHAPE_ATTR):
        if attribute in root.attributes:
            gemm.attributes[attribute] = root.attributes[attribute]
    root.results[0].replace_all_uses_with(gemm.result)
    root.erase()
