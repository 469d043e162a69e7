"""match-rms-norm: raises RMS normalisations, whole or written out by hand, to `flycc.rms_norm`."""

from __future__ import annotations

from collections.abc import Callable

from torch_mlir import ir

from flycc.contracts import Reason
from flycc.dialects.base import Flycc
from flycc.dialects.rms_norm import DTYPES, build_rms_norm, build_rms_norm_backward, eps_fault
from flycc.dialects.tensor import same_dims, show, stamped
from flycc.passes.matching import match, replace
from flycc.passes.norm_reading import STATISTICS, Norm, read_norm
from flycc.passes.torch_ir import constant, is_none, nested_ops, new_constant, operator_name, producer

#: What PyTorch takes for an eps of None: the float32 epsilon, as it computes in float32.
DEFAULT_EPS = 2.0**-23


def match_rms_norm(module: ir.Operation) -> None:
    """Raises RMS norms over the last dimension to `flycc.rms_norm`, with the residual addition before them.

    Before (Llama; Gemma multiplies with 1 + weight before it casts, T5 takes `x` itself for the product):

        %x = torch.aten.add.Tensor %a, %b, %int1 : ... -> !torch.vtensor<[4,8],bf16>
        %x32 = torch.aten._to_copy %x, ... -> !torch.vtensor<[4,8],f32>
        %squares = torch.aten.pow.Tensor_Scalar %x32, %int2 : ... -> !torch.vtensor<[4,8],f32>
        %mean = torch.aten.mean.dim %squares, %last, %true, %none : ... -> !torch.vtensor<[4,1],f32>
        %sum = torch.aten.add.Scalar %mean, %eps, %int1 : ... -> !torch.vtensor<[4,1],f32>
        %rstd = torch.aten.rsqrt %sum : ... -> !torch.vtensor<[4,1],f32>
        %n32 = torch.aten.mul.Tensor %x32, %rstd : ... -> !torch.vtensor<[4,8],f32>
        %n = torch.aten._to_copy %n32, ... -> !torch.vtensor<[4,8],bf16>
        %y = torch.aten.mul.Tensor %weight, %n : ... -> !torch.vtensor<[4,8],bf16>

    After:

        %y, %x = "flycc.rms_norm"(%a, %eps, %weight, %b) {weight_offset = false,
            cast_before_weight = true, ...} : ... -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>)

    `flycc::rms_norm` and `flycc::rms_norm_backward`, which keep PyTorch's own norm in one piece, and
    `aten._fused_rms_norm` are raised alike. Every rounding stays where the graph has it. A norm that is not
    raised, and one that only looks like an RMS norm, gets the attributes `flycc.reason_code` and
    `flycc.reason`.
    """
    # Listed first: raising a norm erases ops around its anchor, but no other norm's anchor.
    for op in [op for op in nested_ops(module) if operator_name(op) in _FORMS]:
        raised = isinstance(op.opview, Flycc.Operation)  # `flycc::rms_norm` and what it becomes share a name
        if raised or not any(list(result.uses) for result in op.results):
            continue
        match(op, "rms-norm", _FORMS[operator_name(op)])


def _written_out(statistic: ir.Operation) -> Reason | None:
    found = read_norm(statistic)
    if not isinstance(found, Norm):
        return found
    _raise_norm(found)
    return None


def _layer_norm(op: ir.Operation) -> Reason:
    kind = operator_name(op).removeprefix("aten.")
    return Reason("rms-norm.mean-subtracted", f"{kind} subtracts the mean; flycc.rms_norm does not")


def _whole(op: ir.Operation) -> Reason | None:
    """`flycc::rms_norm(x, normalized_shape, weight?, eps?, *flags) -> (y, rstd)`, rstd [...] and float32."""
    x, shape, weight, eps, *options = op.operands
    reason = _refusal(op, x, shape, weight)
    if reason is not None:
        return reason
    y, rstd = op.results
    number = DEFAULT_EPS if is_none(eps) else constant(eps)
    if number is not None and (fault := eps_fault(number)):
        return Reason("rms-norm.eps", f"{operator_name(op).partition('.')[2]}: {fault}")
    _raise_norm(
        Norm(
            x=x,
            y=y,
            eps=eps if number is None else float(number),
            folded=(op,),
            weight=None if is_none(weight) else weight,
            rstd=rstd if list(rstd.uses) else None,
            **_flags(options, weight),
        )
    )
    return None


def _fused(op: ir.Operation) -> Reason | None:
    """`aten._fused_rms_norm`: as `_whole`, but its rstd is [..., 1]."""
    if list(op.results[1].uses):
        return Reason(
            "rms-norm.rstd", "_fused_rms_norm: its second result, [..., 1], is used; kernels give [...]"
        )
    return _whole(op)


def _backward(op: ir.Operation) -> Reason | None:
    """`flycc::rms_norm_backward(grad, x, rstd, normalized_shape, weight?, eps?, *flags) -> (dx, dweight?)`."""
    grad, x, rstd, shape, weight, _, *options = op.operands
    reason = _refusal(op, x, shape, weight)
    if reason is not None:
        return reason
    gradients = list(op.results)[: 1 if is_none(weight) else 2]
    types = (gradients[0].type, None if is_none(weight) else gradients[1].type)
    scale = None if is_none(weight) else weight
    raised = build_rms_norm_backward(grad, x, rstd, scale, types, before=op, **_flags(options, weight))
    replace(raised, [[gradient] for gradient in gradients], [op])
    return None


def _flags(options: list[ir.Value], weight: ir.Value) -> dict[str, bool]:
    """The flags among the `options` of flycc's composite ops; PyTorch's own norms have none."""
    if not options or is_none(weight):
        return {}
    cast_before_weight, weight_offset, _ = (constant(option) is True for option in options)
    return {"cast_before_weight": cast_before_weight, "weight_offset": weight_offset}


def _refusal(op: ir.Operation, x: ir.Value, shape: ir.Value, weight: ir.Value) -> Reason | None:
    """Why a norm that is one op cannot be raised, or None."""
    kind = operator_name(op).partition(".")[2]
    given = stamped(x)
    if given is None:
        return Reason("rms-norm.type", f"{kind}: x is {x.type}; a value tensor of known rank is needed")
    dtypes = {"x": given.dtype}
    scale = None if is_none(weight) else stamped(weight)
    if scale is not None:
        dtypes["weight"] = scale.dtype
    for name, dtype in dtypes.items():
        if dtype not in DTYPES:
            return Reason(
                "rms-norm.dtype", f"{kind}: {name} is {dtype}; it must be one of {', '.join(DTYPES)}"
            )
    sizes = producer(shape)
    if sizes is None or len(sizes.operands) != 1:
        return Reason("rms-norm.dims", f"{kind} over several dimensions; only the last one is accepted")
    if 0 in given.dims:
        return Reason("rms-norm.empty", f"{kind}: x is {show(given.dims)}; every size must be at least 1")
    return None


def _raise_norm(norm: Norm) -> None:
    """Puts a `flycc.rms_norm` in the place of `norm` and, where it takes one, of the addition before it."""
    root = norm.y.owner.operation
    addition = _residual_addition(norm)
    first, x, residual = root, norm.x, None
    if addition is not None:
        # In front of whatever else uses the sum, which is from now on the op's second result.
        first, (x, residual) = addition, list(addition.operands)[:2]
    raised = build_rms_norm(
        x,
        norm.eps if isinstance(norm.eps, ir.Value) else new_constant(norm.eps, first),
        norm.weight,
        residual,
        (
            norm.y.type,
            None if addition is None else addition.results[0].type,
            None if norm.rstd is None else norm.rstd.type,
        ),
        weight_offset=norm.weight_offset,
        cast_before_weight=norm.cast_before_weight,
        before=first,
    )
    folded = list(norm.folded)
    replaced = [[norm.y]]
    if addition is not None:
        replaced.append([addition.results[0]])
        folded.append(addition)
    if norm.rstd is not None:
        replaced.append([norm.rstd])
    replace(raised, replaced, folded)


def _residual_addition(norm: Norm) -> ir.Operation | None:
    """The addition of two tensors of x's shape and type that makes x, if weight and eps are known before it."""
    addition = producer(norm.x)
    if (
        addition is None
        or operator_name(addition) != "aten.add.Tensor"
        or constant(addition.operands[2]) != 1
    ):
        return None
    total, *terms = (stamped(value) for value in (norm.x, *list(addition.operands)[:2]))
    if total is None or any(
        term is None or term.dtype != total.dtype or not same_dims(term.dims, total.dims) for term in terms
    ):
        return None
    for operand in (norm.weight, norm.eps):
        source = producer(operand) if isinstance(operand, ir.Value) else None
        if source is not None and not source.is_before_in_block(addition):
            return None
    return addition


_FORMS: dict[str, Callable[[ir.Operation], Reason | None]] = {
    "flycc.rms_norm": _whole,
    "flycc.rms_norm_backward": _backward,
    "aten._fused_rms_norm": _fused,
    **dict.fromkeys(STATISTICS, _written_out),
    "aten.native_layer_norm": _layer_norm,
    "aten.layer_norm": _layer_norm,
}
