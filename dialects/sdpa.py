"""`flycc.sdpa` and `flycc.sdpa_backward`: scaled dot product attention and its gradients."""

# No `from __future__ import annotations` here: the ops are built from their evaluated annotations.

import math
from collections.abc import Mapping
from typing import cast

from torch_mlir import ir
from torch_mlir.dialects.ext import Operand, Pure, Result

from flycc.contracts.sdpa import MAX_HEAD_DIM, MaskKind, SdpaBackwardProblem, SdpaDtype, SdpaProblem
from flycc.dialects.base import Flycc, create
from flycc.dialects.constants import constant
from flycc.dialects.sizes import known, named, product, row_alignment
from flycc.dialects.tensor import Dims, Tensor, TorchFloat, TorchInt, VTensor, contradict, show
from flycc.dialects.verifying import Fault, check_dims, check_dtype, has_attributes, segments, tensors, verify

#: Element types of query, key, value and what is computed from them.
DTYPES = ("bf16", "f16")
#: Element types of a mask, and how Problems spell them.
MASKS: dict[str, MaskKind] = {"i1": "bool", "bf16": "bf16", "f16": "f16", "f32": "f32"}

#: Operands that can be absent, in their order.
OPTIONS = ("lower", "upper", "mask", "query_documents", "key_documents", "slopes", "seed")
_OPTIONAL = " ".join(f"{name}?" for name in OPTIONS)
_NUMBERS = ("softcap", "dropout_p")
_INTEGERS = ("si32", "si64")


class SdpaOp(Flycc.Operation, name="sdpa", traits=[Pure]):  # type: ignore[call-arg,name-defined]
    """`out = softmax(scores) value`, as `SdpaProblem` defines it; bf16 or f16.

    `query` is [B, H, S, D], `key` [B, G, T, D], `value` [B, G, T, E] with H a multiple of G; `out` is [B, H, S, E] and
    `lse`, if there, f32 [B, H, S]. All may lack B, or B and the heads, or have several sizes in the place of B. `scale`
    multiplies the scores. Query i sees the keys i + lower <= j <= i + upper. `mask`, of i1 (true: seen), bf16, f16 or
    f32 (added), is broadcastable to [B, H, S, T]; `query_documents` [B, S] and `key_documents` [B, T] are integers, one
    there if the other is; `slopes` are f32 [H]. `softcap` 0 is none.
    `dropout_p` above 0 needs `seed`, si64 [2].

        %out = "flycc.sdpa"(%q, %k, %v, %scale, %zero) {dropout_p = 0.0 : f64, softcap = 0.0 : f64,
             operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0>,
             resultSegmentSizes = array<i32: 1, 0>}
            : (!torch.vtensor<[1,9,64,64],bf16>, !torch.vtensor<[1,3,64,64],bf16>,
               !torch.vtensor<[1,3,64,64],bf16>, !torch.float, !torch.int) -> !torch.vtensor<[1,9,64,64],bf16>
    """

    query: Operand[VTensor]
    key: Operand[VTensor]
    value: Operand[VTensor]
    scale: Operand[TorchFloat]
    out: Result[VTensor]
    softcap: ir.FloatAttr
    dropout_p: ir.FloatAttr
    lower: Operand[TorchInt] | None = None
    upper: Operand[TorchInt] | None = None
    mask: Operand[VTensor] | None = None
    query_documents: Operand[VTensor] | None = None
    key_documents: Operand[VTensor] | None = None
    slopes: Operand[VTensor] | None = None
    seed: Operand[VTensor] | None = None
    lse: Result[VTensor] | None = None

    @staticmethod
    def verify_invariants(op: ir.Operation) -> bool:
        """Called by MLIR's verifier."""
        return verify(op, _check_forward)


class SdpaBackwardOp(Flycc.Operation, name="sdpa_backward", traits=[Pure]):  # type: ignore[call-arg,name-defined]
    """Gradients of query, key and value of the `flycc.sdpa` that gave `out` and `lse`, from `grad`, that of out.

    `grad` has the type of out, and `dq`, `dk` and `dv` those of query, key and value; the rest is as in `flycc.sdpa`.
    """

    grad: Operand[VTensor]
    query: Operand[VTensor]
    key: Operand[VTensor]
    value: Operand[VTensor]
    out: Operand[VTensor]
    lse: Operand[VTensor]
    scale: Operand[TorchFloat]
    dq: Result[VTensor]
    dk: Result[VTensor]
    dv: Result[VTensor]
    softcap: ir.FloatAttr
    dropout_p: ir.FloatAttr
    lower: Operand[TorchInt] | None = None
    upper: Operand[TorchInt] | None = None
    mask: Operand[VTensor] | None = None
    query_documents: Operand[VTensor] | None = None
    key_documents: Operand[VTensor] | None = None
    slopes: Operand[VTensor] | None = None
    seed: Operand[VTensor] | None = None

    @staticmethod
    def verify_invariants(op: ir.Operation) -> bool:
        """Called by MLIR's verifier."""
        return verify(op, _check_backward)


def build_sdpa(
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    scale: ir.Value,
    options: Mapping[str, ir.Value],
    results: tuple[ir.Type, ir.Type | None],
    *,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    before: ir.Operation,
) -> SdpaOp:
    """Creates a `flycc.sdpa` in front of `before`; `options` are those of `OPTIONS` that are there, `results` the types
    of out and lse."""
    operands = (query, key, value, scale, *map(options.get, OPTIONS))
    attributes = _number_attributes(softcap, dropout_p, before)
    return create("flycc.sdpa", operands, results, attributes, before=before, segmented=True)


def build_sdpa_backward(
    grad: ir.Value,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    out: ir.Value,
    lse: ir.Value,
    scale: ir.Value,
    options: Mapping[str, ir.Value],
    results: tuple[ir.Type, ir.Type, ir.Type],
    *,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    before: ir.Operation,
) -> SdpaBackwardOp:
    """Creates a `flycc.sdpa_backward` in front of `before`; see `build_sdpa`."""
    operands = (grad, query, key, value, out, lse, scale, *map(options.get, OPTIONS))
    attributes = _number_attributes(softcap, dropout_p, before)
    return create("flycc.sdpa_backward", operands, results, attributes, before=before, segmented=True)


def problem(op: SdpaOp) -> SdpaProblem:
    """The Problem that a verified `flycc.sdpa` poses.

    A dynamic size becomes its symbol from the stamps, or else "B", "H", "G", "S", "T", "D" or "E". The alignment
    assumes a row-major result at a 16-byte-aligned address.
    """
    return _posed(op, known(op.out), op.lse is not None)


def backward_problem(op: SdpaBackwardOp) -> SdpaBackwardProblem:
    """The Problem that a verified `flycc.sdpa_backward` poses; see `problem`."""
    return SdpaBackwardProblem(_posed(op, known(op.out), True))


def four(dims: Dims) -> Dims:
    """[batch, heads, length, dim] of what has other sizes in front of the length: see `SdpaOp`."""
    if len(dims) <= 4:
        return (*(1,) * (4 - len(dims)), *dims)
    *outer, heads, length, dim = dims
    batch = None if None in outer else product(size for size in outer if size is not None)
    return batch, heads, length, dim


def _posed(op: SdpaOp | SdpaBackwardOp, out: Tensor, lse: bool) -> SdpaProblem:
    dtype = known(op.query).dtype
    query, key, value = (four(known(x).dims) for x in (op.query, op.key, op.value))
    return SdpaProblem(
        dtype=cast(SdpaDtype, dtype),
        batch=named(query[0], "B"),
        heads=named(query[1], "H"),
        kv_heads=named(key[1], "G"),
        queries=named(query[2], "S"),
        keys=named(key[2], "T"),
        head_dim=named(query[3], "D"),
        value_dim=named(value[3], "E"),
        mask="none" if op.mask is None else MASKS[known(op.mask).dtype],
        lower=op.lower is not None,
        upper=op.upper is not None,
        documents=op.query_documents is not None,
        alibi=op.slopes is not None,
        softcap=op.softcap.value != 0,
        dropout=op.dropout_p.value != 0,
        lse=lse,
        align_out=row_alignment(out),
    )


def _number_attributes(softcap: float, dropout_p: float, near: ir.Operation) -> dict[str, ir.Attribute]:
    number = ir.F64Type.get(near.context)
    return {
        name: ir.FloatAttr.get(number, given, ir.Location.unknown(near.context))
        for name, given in zip(_NUMBERS, (softcap, dropout_p), strict=True)
    }


def _check_forward(op: ir.Operation) -> None:
    if (
        not has_attributes(op, dict.fromkeys(_NUMBERS, ir.FloatAttr))
        or len(op.operands) < 4
        or not op.results
    ):
        return  # MLIR checks the declaration next, and reports what is not as declared
    given = segments(op, "operandSegmentSizes", op.operands, f"query key value scale {_OPTIONAL}")
    results = segments(op, "resultSegmentSizes", op.results, "out lse?")
    _check(op, given, results)


def _check_backward(op: ir.Operation) -> None:
    declared = has_attributes(op, dict.fromkeys(_NUMBERS, ir.FloatAttr))
    if not declared or len(op.operands) < 7 or len(op.results) != 3:
        return  # MLIR checks the declaration next, and reports what is not as declared
    names = f"grad query key value out lse scale {_OPTIONAL}"
    given = segments(op, "operandSegmentSizes", op.operands, names)
    results = segments(op, "resultSegmentSizes", op.results, "dq dk dv")
    values = _check(op, given, results)
    for gradient, name in (("dq", "query"), ("dk", "key"), ("dv", "value")):
        check_dtype(gradient, values[gradient], (values[name].dtype,))
        check_dims(gradient, values[gradient], values[name].dims)


def _check(op: ir.Operation, given: dict[str, ir.Value], results: dict[str, ir.Value]) -> dict[str, Tensor]:
    scale = constant(given.pop("scale"))
    if scale is not None and not math.isfinite(scale):
        raise Fault(f"scale must be finite, got {scale}")
    for name in ("lower", "upper"):
        given.pop(name, None)
    values = tensors(given | results)
    out_dims = _check_operands(values)
    for name in ("out", "grad"):
        if name in values:
            check_dtype(name, values[name], (values["query"].dtype,))
            check_dims(name, values[name], out_dims)
    if "lse" in values:
        check_dtype("lse", values["lse"], ("f32",))
        check_dims("lse", values["lse"], out_dims[:-1])
    _check_options(values)
    softcap, dropout_p = (op.attributes[name].value for name in _NUMBERS)
    if not 0 <= softcap < math.inf:
        raise Fault(f"softcap must be finite and not negative, got {softcap}")
    if not 0 <= dropout_p <= 1:
        raise Fault(f"dropout_p must be 0 to 1, got {dropout_p}")
    if (dropout_p != 0) != ("seed" in values):
        raise Fault("seed must be there if, and only if, dropout_p is not 0")
    return values


def _check_operands(values: dict[str, Tensor]) -> Dims:
    """Checks query, key and value; the shape of what they make."""
    query, key, value = (values[name] for name in ("query", "key", "value"))
    check_dtype("query", query, DTYPES)
    rank = len(query.dims)
    for name in ("query", "key", "value"):
        check_dtype(name, values[name], (query.dtype,))
        if len(values[name].dims) != rank or rank < 2:
            wanted = "at least 2" if name == "query" else f"{rank} as query has"
            raise Fault(f"{name} must have rank {wanted}, got {show(values[name].dims)}")
    *outer, queries, head_dim = query.dims
    keys, value_dim = key.dims[-2], value.dims[-1]
    heads, kv_heads = (four(tensor.dims)[1] for tensor in (query, key))
    shared = (*outer[:-1], *key.dims[-3:-2])
    check_dims("key", key, (*shared, keys, head_dim))
    check_dims("value", value, (*shared, keys, value_dim))
    if isinstance(heads, int) and isinstance(kv_heads, int) and (heads % kv_heads if kv_heads else heads):
        raise Fault(f"heads of query must be a multiple of those of key, got {heads} and {kv_heads}")
    for name, dim in (("query", head_dim), ("value", value_dim)):
        if isinstance(dim, int) and not 1 <= dim <= MAX_HEAD_DIM:
            raise Fault(f"the last dimension of {name} must be 1 to {MAX_HEAD_DIM}, got {dim}")
    return (*outer, queries, value_dim)


def _check_options(values: dict[str, Tensor]) -> None:
    """Checks the tensors that need not be there."""
    *outer, queries, _ = values["query"].dims
    batch, heads, _, _ = four(values["query"].dims)
    keys = values["key"].dims[-2]
    if "mask" in values:
        mask = values["mask"]
        check_dtype("mask", mask, tuple(MASKS))
        fault = mask_fault(mask.dims, (*outer, queries, keys))
        if fault is not None:
            raise Fault(fault)
    if ("query_documents" in values) != ("key_documents" in values):
        raise Fault("query_documents and key_documents must be there together")
    for name, length in (("query_documents", queries), ("key_documents", keys)):
        if name in values:
            check_dtype(name, values[name], _INTEGERS)
            check_dims(name, values[name], (batch, length))
    if "slopes" in values:
        check_dtype("slopes", values["slopes"], ("f32",))
        check_dims("slopes", values["slopes"], (heads,))
    if "seed" in values:
        check_dtype("seed", values["seed"], ("si64",))
        check_dims("seed", values["seed"], (2,))


def mask_fault(mask: Dims, scores: Dims) -> str | None:
    """Why a mask cannot be broadcast to scores, or None."""
    trailing = scores[len(scores) - len(mask) :] if len(mask) <= len(scores) else ()
    if len(mask) > len(scores) or any(
        m != 1 and contradict(m, s) for m, s in zip(mask, trailing, strict=True)
    ):
        return f"mask must be broadcastable to {show(scores)}, got {show(mask)}"
    return None
