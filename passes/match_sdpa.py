"""match-sdpa: raises attention, forward and backward, to `flycc.sdpa` and `flycc.sdpa_backward`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch_mlir import ir

from flycc.contracts import Reason
from flycc.contracts.sdpa import FACTORS, LEAST_FACTOR, MAX_HEAD_DIM
from flycc.dialects.base import Flycc
from flycc.dialects.sdpa import DTYPES, MASKS, build_sdpa, build_sdpa_backward, mask_fault
from flycc.dialects.tensor import Dims, contradict, same_dims, show, stamped
from flycc.passes.epilogues import UNFUSED_ATTR
from flycc.passes.mask_operands import mask_options
from flycc.passes.matching import match, replace
from flycc.passes.new_ops import tensor_type
from flycc.passes.seen_through import sizes
from flycc.passes.torch_ir import constant, is_none, nested_ops, new_constant, operator_name
from flycc.passes.written_attention import (
    LOG_SOFTMAXES,
    SOFTMAXES,
    Mask,
    Unlike,
    check_weights,
    read_attention,
)


def match_sdpa(module: ir.Operation) -> None:
    """Raises attention to `flycc.sdpa` or `flycc.sdpa_backward`: PyTorch's ops, flycc's composite, and what is
    written as two products and a softmax (see `passes.written_attention`).

    Before:

        %out, %lse = torch.operator "torch.flycc.sdpa"(%q, %k, %v, %want_lse, %none, %true, %none, %true, ...) : ...
            -> (!torch.vtensor<[1,9,64,64],bf16>, !torch.vtensor<[0],f32>)

    After, with %scale = 1 / sqrt(64) and %upper = 0, for causal:

        %out = "flycc.sdpa"(%q, %k, %v, %scale, %upper) {dropout_p = 0.0, softcap = 0.0, ...} : ...
            -> !torch.vtensor<[1,9,64,64],bf16>

    Heads of K and V that several of Q share, `enable_gqa`, need no repetition. An op that is not raised gets the
    attributes `flycc.reason_code` and `flycc.reason`.
    """
    for op in [op for op in nested_ops(module) if operator_name(op) in (*SOFTMAXES, *LOG_SOFTMAXES)]:
        if UNFUSED_ATTR not in op.attributes:
            match(op, "sdpa", _written)
    # Listed first: raising an op erases that op alone.
    for op in [op for op in nested_ops(module) if operator_name(op) in _FORMS]:
        raised = isinstance(op.opview, Flycc.Operation)  # `flycc::sdpa` and what it becomes share a name
        if raised or not any(list(result.uses) for result in op.results):
            continue
        match(op, "sdpa", _whole)


@dataclass
class _Attention:
    """Operands of an attention op by their names, without those that are None."""

    given: Mapping[str, ir.Value]

    def number(self, name: str, default: float) -> float:
        """A number that must be known."""
        if name not in self.given:
            return default
        number = constant(self.given[name])
        if number is None:
            raise Unlike("option", f"{name} must be a constant")
        return number

    def dims(self, name: str) -> Dims:
        """The shape of a tensor, which `check` has seen."""
        tensor = stamped(self.given[name])
        assert tensor is not None
        return tensor.dims

    def check(self) -> None:
        """Query, key and value must be what kernels take."""
        for name in ("query", "key", "value"):
            value = self.given[name]
            tensor = stamped(value)
            if tensor is None:
                raise Unlike("type", f"{name} is {value.type}; a value tensor of known rank is needed")
            if tensor.dtype not in DTYPES:
                raise Unlike("dtype", f"{name} is {tensor.dtype}; it must be one of {', '.join(DTYPES)}")
            self._check_rank(name, tensor.dims)
            if 0 in tensor.dims:
                raise Unlike("empty", f"{name} is {show(tensor.dims)}; every size must be at least 1")
            if isinstance(tensor.dims[-1], int) and tensor.dims[-1] > MAX_HEAD_DIM:
                raise Unlike(
                    "head-dim",
                    f"{name} is {show(tensor.dims)}; a head may have at most {MAX_HEAD_DIM} elements",
                )
        query = self.dims("query")
        for name in ("key", "value"):
            if any(map(contradict, query[:-3], self.dims(name)[:-3])):
                raise Unlike("broadcast", f"{name} has another batch than query; kernels do not broadcast it")
        if len(query) > 2 and contradict(self.dims("key")[-3], self.dims("value")[-3]):
            raise Unlike("broadcast", "key and value have different heads; kernels do not broadcast them")

    def _check_rank(self, name: str, dims: Dims) -> None:
        query = stamped(self.given["query"])
        assert query is not None
        if len(dims) < 2 or len(dims) != len(query.dims):
            raise Unlike("rank", f"{name} is {show(dims)}; [..., length, dim] of the rank of query is needed")
        if len(dims) > 4 and not all(isinstance(size, int) for size in dims[:-3]):
            raise Unlike("rank", f"{name} is {show(dims)}; sizes in front of heads must be known to be one")

    def scale(self, before: ir.Operation) -> ir.Value:
        """What scores are multiplied by; 1 / sqrt(head dim) where it is None."""
        if "scale" in self.given:
            number = constant(self.given["scale"])
            if number is not None and not LEAST_FACTOR <= number <= 1 / LEAST_FACTOR:
                raise Unlike("scale", f"it is {number}; kernels take {FACTORS}")
            return self.given["scale"]
        head_dim = self.dims("query")[-1]
        if not isinstance(head_dim, int):
            raise Unlike("scale", "it follows from a head dim that only the run knows")
        return new_constant(head_dim**-0.5, before)

    def masks(self) -> list[Mask]:
        """The mask, if there is one."""
        mask = self.given.get("mask")
        if mask is None:
            return []
        tensor = stamped(mask)
        if tensor is None or tensor.dtype not in MASKS:
            raise Unlike(
                "mask",
                f"the mask is {mask.type if tensor is None else tensor.dtype}; it must be bool or a float",
            )
        fault = mask_fault(tensor.dims, self.scores)
        if fault is not None:
            raise Unlike("mask", fault)
        return [Mask(mask, self.scores, -math.inf if tensor.dtype == "i1" else None)]

    @property
    def scores(self) -> Dims:
        """The shape of the scores."""
        return (*self.dims("query")[:-1], self.dims("key")[-2])

    def upper(self, before: ir.Operation) -> dict[str, ir.Value]:
        """The last key that a query sees, where there is one: the query's own with `is_causal`."""
        upper = self.given.get("upper")
        if self.number("is_causal", False):
            number = 0 if upper is None else constant(upper)
            if number is None:
                raise Unlike("option", "it is causal, and upper is known only when it runs")
            upper = new_constant(min(int(number), 0), before)
        return {} if upper is None else {"upper": upper}


_BEFORE = ("query", "key", "value")
_BACK = ("grad", *_BEFORE, "out", "lse")
#: Operands of flycc's composites after the tensors; "_" is one that does not matter.
_COMPOSITE = (
    *("mask", "is_causal", "scale", "_", "dropout_p", "seed", "query_documents", "key_documents", "slopes"),
    *("lower", "upper", "softcap"),
)
#: Of four operands the gradients that are wanted: what is not used of an op tells as much.
_WANTED = ("_", "_", "_", "_")
#: Attention that is one op: its operands. The first results are out and lse, or the three gradients.
_FORMS: dict[str, tuple[str, ...]] = {
    "flycc.sdpa": (*_BEFORE, "_", *_COMPOSITE),
    "flycc.sdpa_backward": (*_BACK, *_COMPOSITE),
    "aten._scaled_dot_product_flash_attention": (*_BEFORE, "dropout_p", "is_causal", "debug_mask", "scale"),
    "aten._scaled_dot_product_efficient_attention": (
        *_BEFORE,
        "mask",
        "_",
        "dropout_p",
        "is_causal",
        "scale",
    ),
    "aten._scaled_dot_product_cudnn_attention": (
        *(*_BEFORE, "mask", "_", "dropout_p", "is_causal", "debug_mask", "scale"),
    ),
    "aten._scaled_dot_product_flash_attention_for_cpu": (*_BEFORE, "dropout_p", "is_causal", "mask", "scale"),
    "aten._scaled_dot_product_fused_attention_overrideable": (
        *(*_BEFORE, "mask", "dropout_p", "is_causal", "debug_mask", "scale"),
    ),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": (
        *(*_BACK, "dropout_p", "is_causal", "mask", "scale"),
    ),
    "aten._scaled_dot_product_efficient_attention_backward": (
        *("grad", *_BEFORE, "mask", "out", "lse", "_", "_", "dropout_p", *_WANTED, "is_causal", "scale"),
    ),
    "aten._scaled_dot_product_cudnn_attention_backward": (
        *(*_BACK, "_", "_", "mask", "_", "_", "_", "_", "dropout_p", "is_causal", "scale"),
    ),
    "aten._scaled_dot_product_fused_attention_overrideable_backward": (
        *("grad", *_BEFORE, "mask", *_WANTED, "out", "lse", "_", "_", "_", "_", "dropout_p", "is_causal"),
        *("_", "_", "scale"),
    ),
    "aten._scaled_dot_product_flash_attention_backward": (
        *(*_BACK, "_", "_", "_", "_", "dropout_p", "is_causal", "_", "_", "scale"),
    ),
}


def _whole(op: ir.Operation) -> Reason | None:
    kind = operator_name(op)
    names = _FORMS[kind]
    if len(op.operands) != len(names):
        return Reason(
            "sdpa.form", f"{kind} has {len(op.operands)} operands; flycc knows it with {len(names)}"
        )
    given = {name: value for name, value in zip(names, op.operands, strict=True) if not is_none(value)}
    given.pop("_", None)
    try:
        _raise(op, _Attention(given), given)
    except Unlike as unlike:
        return Reason(f"sdpa.{unlike.what}", f"{kind.partition('.')[2]}: {unlike.sentence}")
    return None


def _written(softmax: ir.Operation) -> Reason | None:
    """Attention as two products with a softmax between."""
    try:
        if operator_name(softmax) in LOG_SOFTMAXES:
            check_weights(softmax)
            return None
        written = read_attention(softmax)
        if written is None:
            return None
        before = written.root.owner.operation
        operands = written.query, written.key, written.value
        given = {name: each.build(before) for name, each in zip(_BEFORE, operands, strict=True)}
        _Attention(given).check()
        query, key, value = given.values()
        made, wanted = stamped(written.root), stamped(query)
        if made is not None and wanted is not None and made.dtype != wanted.dtype:
            raise Unlike(
                "dtype", f"it gives {made.dtype} where query is {wanted.dtype}; kernels give what they take"
            )
        options = mask_options(written.masks, written.scores, before)
        scale = new_constant(written.scale, before)
        other = made is not None and not same_dims(made.dims, written.dims)
        out = tensor_type(written.dims, made.dtype, before) if made and other else written.root.type
        results = (out, None)
        raised = build_sdpa(
            query, key, value, scale, options, results, softcap=written.softcap, before=before
        )
    except Unlike as unlike:
        return Reason(f"sdpa.{unlike.what}", f"written as products and a softmax: {unlike.sentence}")
    replace(raised, [[written.root]], written.folded, written.dims if other else None)
    return None


def _raise(op: ir.Operation, attention: _Attention, given: Mapping[str, ir.Value]) -> None:
    attention.check()
    dropout_p, softcap = attention.number("dropout_p", 0.0), attention.number("softcap", 0.0)
    if dropout_p and "seed" not in given:
        raise Unlike("dropout", "its random numbers are PyTorch's own, which kernels do not draw")
    if attention.number("debug_mask", False):
        raise Unlike("option", "a mask for debugging is asked for")
    named = ("query_documents", "key_documents", "slopes", "lower")
    options = {name: given[name] for name in named if name in given}
    options |= {"seed": given["seed"]} if dropout_p else {}
    options |= attention.upper(op)
    masks = attention.masks()
    has_band = not options.keys().isdisjoint(("lower", "upper"))
    options |= {"mask": masks[0].value} if has_band and masks else mask_options(masks, attention.scores, op)
    numbers = {"softcap": float(softcap), "dropout_p": float(dropout_p)}
    scale = attention.scale(op)
    if "grad" in given:
        _raise_backward(op, given, scale, options, numbers)
        return
    out, lse, *others = op.results
    if any(list(result.uses) for result in others):
        raise Unlike("results", "more is used of it than its output and lse")
    wanted, sums = bool(list(lse.uses)), stamped(lse)
    # Some of PyTorch's ops pad their lse.
    right = sums is not None and same_dims(sums.dims, attention.dims("query")[:-1])
    if wanted and not right and not operator_name(op).startswith("flycc."):
        raise Unlike("lse", "its lse is used in a form that kernels do not give")
    query, key, value = (given[name] for name in _BEFORE)
    results = (out.type, lse.type if wanted else None)
    raised = build_sdpa(query, key, value, scale, options, results, before=op, **numbers)
    replace(raised, [[out], [lse]] if wanted else [[out]], [op])


def _raise_backward(
    op: ir.Operation,
    given: Mapping[str, ir.Value],
    scale: ir.Value,
    options: Mapping[str, ir.Value],
    numbers: Mapping[str, float],
) -> None:
    lse = stamped(given["lse"])
    query_dims = sizes(given["query"])
    if lse is None or len(lse.dims) + 1 != len(query_dims):
        raise Unlike("lse", "the forward pass has given no lse of a form that the kernels read")
    if any(map(contradict, lse.dims, query_dims)):
        raise Unlike(
            "lse", f"its lse is {show(lse.dims)}; that of {show(query_dims)} without the last size is needed"
        )
    grad, query, key, value, out, sums = (given[name] for name in _BACK)
    dq, dk, dv, *others = op.results
    if any(list(result.uses) for result in others):
        raise Unlike("results", "the gradient of its mask is used, which kernels do not make")
    types = (dq.type, dk.type, dv.type)
    raised = build_sdpa_backward(
        grad, query, key, value, out, sums, scale, options, types, before=op, **numbers
    )
    replace(raised, [[dq], [dk], [dv]], [op])
