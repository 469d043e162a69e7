"""The part of fuse-epilogue that is about `flycc.scaled_gemm`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from torch_mlir import ir

from flycc.contracts import Reason
from flycc.contracts.gemm import Activation
from flycc.dialects.scaled_gemm import DTYPES, Placement, ScaledGemmOp, build_scaled_gemm
from flycc.dialects.tensor import SHAPE_ATTR, Dims, Tensor, same, same_dims, show, stamped
from flycc.passes.epilogues import (
    CASTS,
    COPIES,
    FUSED_ATTR,
    UNFUSED_ATTR,
    Apart,
    activation,
    activation_of,
    is_last_cast,
    is_only_cast,
    kind,
)
from flycc.passes.matching import CONSUMED_ATTR, match, refuse, verify
from flycc.passes.torch_ir import NODE_ATTR, constant, node_name, operator_name, users


@dataclass(frozen=True)
class _Parts:
    """What becomes of the sums of `product`, whose result is `result`."""

    product: ScaledGemmOp
    result: Tensor
    bias: ir.Value | None
    residual: ir.Value | None
    activation: Activation

    @property
    def bare(self) -> bool:
        """Whether nothing becomes of them."""
        return self.bias is None and self.residual is None and self.activation == "none"


def fold(product: ScaledGemmOp, last_casts: bool) -> ScaledGemmOp | None:
    """`product` with one more of the pointwise ops behind it, or None where nothing more can be folded.

    A product that more than one op uses is left alone. `last_casts` is as in `fuse_epilogue`.
    """
    uses = users(product.result)
    folded = activation_of(uses)
    if len(folded) != len(uses):
        if len(uses) != 1:
            _explain_uses(uses)
            return None
        folded = uses
    if not folded or any(UNFUSED_ATTR in op.attributes for op in folded):
        return None
    if not last_casts and is_last_cast(folded[0], _STEPS):
        return None
    fused: list[ScaledGemmOp] = []

    def form(root: ir.Operation) -> Reason | None:
        try:
            parts = _step(product, root)
        except Apart as apart:
            return apart.reason
        if parts is not None:
            fused.append(_replace(parts, folded))
        return None

    match(folded[0], "epilogue", form)
    if not fused:
        return None
    product.operation.erase()
    return fused[0]


def _explain_uses(uses: list[ir.Operation]) -> None:
    for use in uses:
        if operator_name(use) in _STEPS and operator_name(use) not in COPIES:
            sentence = f"{kind(use)}: {len(uses)} ops use the product, so it is stored anyway"
            refuse(use, Reason("epilogue.uses", sentence))


def _step(product: ScaledGemmOp, root: ir.Operation) -> _Parts | None:
    """The parts of `product` with `root`, an op that uses it; None for an op that no epilogue has. Raises Apart."""
    step, result = _STEPS.get(operator_name(root)), stamped(product.result)
    if step is None or result is None:
        return None
    return step(_Parts(product, result, product.bias, product.residual, product.activation), root)


def _multiplied(parts: _Parts, root: ir.Operation) -> _Parts | None:
    """By its own sigmoid; nothing else is folded."""
    by_itself = any(operator_name(use) == "aten.sigmoid" for use in users(parts.product.result))
    return _activated(parts, root) if by_itself else None


def _activated(parts: _Parts, root: ir.Operation) -> _Parts | None:
    function = "silu" if operator_name(root) == "aten.mul.Tensor" else activation(root)
    if function is None:
        return None
    if parts.activation != "none" or parts.residual is not None:
        done = "an activation" if parts.residual is None else "a residual"
        raise Apart("order", f"{kind(root)}: the product of scaled operands has {done} already")
    return replace(parts, activation=function)


def _added(parts: _Parts, root: ir.Operation) -> _Parts | None:
    left, right, alpha = list(root.operands)[:3]
    value = right if left == parts.product.result else left
    addend, total, result = stamped(value), stamped(root.results[0]), parts.result
    if value == parts.product.result or addend is None or total is None or not addend.dims:
        return None
    if constant(alpha) != 1:
        raise Apart("order", f"{kind(root)}: alpha scales one of the addends; none is scaled")
    if not addend.dtype == total.dtype == result.dtype:
        raise Apart(
            "dtype", f"{kind(root)}: {addend} is added to {result} and gives {total.dtype}, not one type"
        )
    if parts.residual is not None:
        raise Apart("order", f"{kind(root)}: the product of scaled operands has a residual already")
    if same_dims(addend.dims, result.dims):
        return replace(parts, residual=value)
    is_bias = len(addend.dims) == 1 and same(addend.dims[0], result.dims[-1])
    if is_bias and parts.bias is None and parts.activation == "none" and same_dims(total.dims, result.dims):
        return replace(parts, bias=value)
    sentence = (
        f"{show(addend.dims)} is added to {show(result.dims)}; a bias of columns, or all of it, is folded"
    )
    raise Apart("broadcast", f"{kind(root)}: {sentence}")


def _cast(parts: _Parts, root: ir.Operation) -> _Parts | None:
    """To another type of results, where nothing that was added is of the old one."""
    result = stamped(root.results[0])
    if not is_only_cast(root) or result is None or result.dtype not in DTYPES:
        return None
    # From 16 bits to others the first rounding counts.
    if parts.result.dtype not in ("f32", result.dtype) and result.dtype != "f32":
        return None
    if result.dtype != parts.result.dtype and (parts.bias is not None or parts.residual is not None):
        raise Apart("dtype", f"{kind(root)}: what is added to the product is {parts.result.dtype}")
    return parts


def _copied(parts: _Parts, root: ir.Operation) -> _Parts | None:
    after = stamped(root.results[0])
    if after is None or not (same_dims(after.dims, parts.result.dims) or _same_rows(after.dims, parts)):
        return None
    return parts


def _same_rows(dims: Dims, parts: _Parts) -> bool:
    """Whether a view to `dims` has the rows of the result, in more dimensions or fewer, of which one may be unknown."""
    unknown = [dim for dim in dims if not isinstance(dim, int)]
    rows_only = len(dims) >= 2 and isinstance(dims[-1], int) and dims[-1] == parts.result.dims[-1]
    return rows_only and len(unknown) <= 1 and 0 not in dims and parts.residual is None


_STEPS: dict[str, Callable[[_Parts, ir.Operation], _Parts | None]] = {
    "aten.mul.Tensor": _multiplied,
    "aten.add.Tensor": _added,
    **dict.fromkeys(("aten.relu", "aten.clamp_min", "aten.silu", "aten.gelu"), _activated),
    **dict.fromkeys(CASTS, _cast),
    **dict.fromkeys(COPIES, _copied),
}


def _replace(parts: _Parts, folded: list[ir.Operation]) -> ScaledGemmOp:
    """Puts one product in the place of that of `parts` and of what is `folded` into it, the result's op first."""
    product, root = parts.product, folded[0]
    fused = build_scaled_gemm(
        product.a,
        product.b,
        product.scale_a,
        product.scale_b,
        parts.bias,
        root.results[0].type,
        placement=cast(Placement, product.placement.value),
        tree=product.tree,
        operand_type=product.operand_type,
        residual=parts.residual,
        activation=parts.activation,
        before=root,
    )
    verify(fused)
    _stamp(fused, product, folded)
    root.results[0].replace_all_uses_with(fused.result)
    for op in folded:
        op.erase()
    return fused


def _stamp(fused: ScaledGemmOp, product: ScaledGemmOp, folded: list[ir.Operation]) -> None:
    """Provenance and shape: the root's, and all that `fused` stands for."""
    attributes, given, root = fused.operation.attributes, product.operation.attributes, folded[0]
    with fused.operation.context:
        names = [ir.StringAttr.get(name) for op in folded if (name := node_name(op)) is not None]
        for attribute in (CONSUMED_ATTR, FUSED_ATTR):
            before = list(given[attribute]) if attribute in given else []
            if names or before:
                attributes[attribute] = ir.ArrayAttr.get(list(dict.fromkeys(names + before)))
    for attribute in (NODE_ATTR, SHAPE_ATTR):
        if attribute in root.attributes:
            attributes[attribute] = root.attributes[attribute]
