"""fuse-epilogue, fuse-cast: fold the pointwise ops behind products into them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch_mlir import ir

from flycc.contracts import Reason
from flycc.contracts.gemm import Activation
from flycc.dialects.gemm import GemmOp, build_gemm, is_scale
from flycc.dialects.scaled_gemm import ScaledGemmOp
from flycc.dialects.tensor import SHAPE_ATTR, SHAPES_ATTR, Dims, Tensor, same, same_dims, show, stamped
from flycc.passes import scaled_epilogue
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
from flycc.passes.matching import CONSUMED_ATTR, RESULTS_ATTR, match, refuse, verify
from flycc.passes.torch_ir import (
    NODE_ATTR,
    constant,
    nested_ops,
    node_name,
    only_user,
    operator_name,
    producer,
    users,
)


def fuse_epilogue(module: ir.Operation) -> None:
    """Folds pointwise users into `flycc.gemm`: scales, biases, activations, gates, residuals and casts to f32.

    Before (a gated MLP, and the addition to the residual stream behind it):

        %g = "flycc.gemm"(%x, %wg) {layout = "NT", ...} : ...
        %s = torch.aten.silu %g : ...
        %u = "flycc.gemm"(%x, %wu) {layout = "NT", ...} : ...
        %m = torch.aten.mul.Tensor %s, %u : ...
        %d = "flycc.gemm"(%m, %wd) {layout = "NT", ...} : ...
        %y = torch.aten.add.Tensor %h, %d, %int1 : ...

    After:

        %m = "flycc.gemm"(%x, %wg, %wu) {layout = "NT", activation = "silu", ...} : ...
        %y = "flycc.gemm"(%m, %wd, %h) {layout = "NT", ...} : ...

    It pays: a folded op reads what it would read by itself but for the product, whose way through memory is saved. So
    a product that somebody else needs too is left alone, unless what is folded is its activation: the product, then the
    `preactivation`, is written once and not read again. Addends whose batches repeat otherwise than the kernel's one
    batch dimension can are left alone too.

    Rounding: sums are rounded once, at the end, where the graph rounds after every op. In particular the rounding in
    front of a cast to f32 is dropped. What a backward pass saved keeps its meaning and its own rounding.

    A cast to f32 with nothing behind it that could be folded too is left: it is what norms begin with, whose kernels
    read 16 bits. `fuse-cast` folds those that no norm took.

    Behind a `flycc.scaled_gemm` are folded a bias, an activation, a residual, casts, and views of its rows.

    An op that looks like part of an epilogue and is not folded gets the attributes `flycc.reason_code` and
    `flycc.reason`. The product behind it is none the worse.
    """
    _fuse(module, last_casts=False)


def fuse_cast(module: ir.Operation) -> None:
    """Folds casts of products to f32 that no op of another family took, and what comes behind, as `fuse-epilogue` does.

    Before:

        %g = "flycc.gemm"(%x, %w) {layout = "NT", ...} : ... -> !torch.vtensor<[4,16],bf16>
        %y = torch.aten._to_copy %g, %int6, ... : ... -> !torch.vtensor<[4,16],f32>

    After:

        %y = "flycc.gemm"(%x, %w) {layout = "NT", ...} : ... -> !torch.vtensor<[4,16],f32>
    """
    _fuse(module, last_casts=True)


def _fuse(module: ir.Operation, *, last_casts: bool) -> None:
    # Listed first: folding erases the product it starts from and pointwise ops; it leaves a second one to flycc-dce.
    for product in [op.opview for op in nested_ops(module) if type(op.opview) in _FOLDS]:
        fold, folded = _FOLDS[type(product)], product
        while folded is not None:
            folded = fold(folded, last_casts)


@dataclass(frozen=True)
class _Parts:
    """What becomes of the sums of `product`; `gate` is the other product of a gated one."""

    product: GemmOp
    bias: ir.Value | None
    b2: ir.Value | None
    residual: ir.Value | None
    scale: float
    activation: Activation
    preactivation: bool
    gate: GemmOp | None = None

    @classmethod
    def of(cls, op: GemmOp) -> _Parts:
        return cls(op, op.bias, op.b2, op.residual, op.scale, op.activation, op.preactivation is not None)

    @property
    def linear(self) -> bool:
        """Whether nothing but a scale and addends has become of the sums."""
        return self.activation == "none" and self.b2 is None


#: The parts of a product with an op that uses it, `root`, folded; None for an op that no epilogue has.
_Step = Callable[[GemmOp, _Parts, ir.Operation], _Parts | None]


def _fold(product: GemmOp, last_casts: bool) -> GemmOp | None:
    """The product with one more op folded, or None where nothing more can be."""
    uses = users(product.result)
    folded = activation_of(uses)
    kept = [use for use in uses if use not in folded]
    if not folded:
        _explain_parts(uses)
        if len(uses) > 1:
            _explain_uses(product, uses)
            return None
        folded, kept = uses, []
    if not folded or any(UNFUSED_ATTR in op.attributes for op in folded):
        return None
    if not last_casts and is_last_cast(folded[0], _STEPS):
        return None
    fused: list[GemmOp] = []

    def form(root: ir.Operation) -> Reason | None:
        try:
            parts = _step(product, root)
            if parts is not None:
                parts = replace(parts, preactivation=parts.preactivation or bool(kept))
                fused.append(_replace(parts, folded))
        except Apart as apart:
            return apart.reason
        return None

    match(folded[0], "epilogue", form)
    if not fused:
        return None
    product.operation.erase()
    return fused[0]


def _explain_parts(uses: list[ir.Operation]) -> None:
    """Activations of columns of a product, such as gate and up that are products with one packed weight."""
    for use in uses:
        if operator_name(use) not in _PARTS:
            continue
        for part in users(use.results[0]):
            pieces = part.results if operator_name(part) == "prim.ListUnpack" else [use.results[0]]
            for piece in pieces:
                for root in users(piece):
                    if activation(root) is not None:
                        sentence = (
                            f"{kind(root)}: it is of some columns of a product; halves that are products"
                        )
                        refuse(root, Reason("epilogue.gate", f"{sentence} of their own are folded"))


def _explain_uses(product: GemmOp, uses: list[ir.Operation]) -> None:
    for use in uses:
        try:
            foldable = _step(product, use) is not None and operator_name(use) not in COPIES
        except Apart as apart:
            refuse(use, apart.reason)
            continue
        if foldable:
            kind = operator_name(use).partition(".")[2]
            sentence = f"{kind}: {len(uses)} ops use the product, so it is stored anyway"
            refuse(use, Reason("epilogue.uses", sentence))


def _step(product: GemmOp, root: ir.Operation) -> _Parts | None:
    step = _STEPS.get(operator_name(root))
    return None if step is None else step(product, _Parts.of(product), root)


def _scaled(parts: _Parts, root: ir.Operation, factor: float) -> _Parts:
    scale = parts.scale * factor
    if not is_scale(scale):
        raise Apart("scale", f"{kind(root)}: a factor of {scale} is no normal float32 number")
    if not parts.linear or parts.bias is not None or parts.residual is not None:
        raise Apart("order", f"{kind(root)}: only sums themselves are scaled, and these have {_done(parts)}")
    return replace(parts, scale=scale)


def _multiplied(product: GemmOp, parts: _Parts, root: ir.Operation) -> _Parts | None:
    """By a constant, by its own sigmoid, or by the other half of a gated product."""
    left, right = list(root.operands)[:2]
    other = right if left == product.result else left
    factor = constant(other)
    if factor is not None and not isinstance(factor, bool):
        return _scaled(parts, root, factor)
    source = producer(other)
    if source is None or other == product.result:
        return None
    if operator_name(source) == "aten.sigmoid" and source.operands[0] == product.result:
        return _activated(product, parts, root)
    if not isinstance(source.opview, GemmOp):
        return None
    # The activation, if there is one, is the first product's.
    first, gate = parts, _Parts.of(source.opview)
    if gate.activation != "none":
        first, gate = gate, first
    return _gated(first, gate, root)


def _gated(first: _Parts, gate: _Parts, root: ir.Operation) -> _Parts:
    def apart(sentence: str) -> Apart:
        return Apart("gate", f"{kind(root)}: {sentence}")

    left, right = first.product, gate.product
    if gate.activation != "none":
        raise apart("both products have an activation")
    if only_user(left.result) is None or only_user(right.result) is None:
        raise apart("other ops use one of the products too, so it is stored anyway")
    if left.a != right.a or left.layout.value[0] != right.layout.value[0]:
        raise apart("the products have different left operands")
    b, b2 = stamped(left.b), stamped(right.b)
    if left.layout != right.layout or b is None or b2 is None or not same_dims(b.dims, b2.dims):
        raise apart(f"the right operands, {b} and {b2}, are not of one shape and layout")
    if first.preactivation:
        raise apart("others use what the activation is of")
    for parts in (first, gate):
        if parts.bias is not None or parts.residual is not None or parts.b2 is not None:
            raise apart(f"a product has {_done(replace(parts, activation='none'))} already")
    if first.scale != gate.scale:
        raise apart(f"the products are scaled by {first.scale} and {gate.scale}, not by one factor")
    return replace(first, b2=right.b, gate=right)


def _divided(product: GemmOp, parts: _Parts, root: ir.Operation) -> _Parts | None:
    divisor = constant(root.operands[1])
    if root.operands[0] != product.result or not divisor or isinstance(divisor, bool):
        return None
    return _scaled(parts, root, 1 / divisor)


def _added(product: GemmOp, parts: _Parts, root: ir.Operation) -> _Parts | None:
    left, right, alpha = list(root.operands)[:3]
    addend = right if left == product.result else left
    factor = constant(alpha)
    tensor, result, total = (stamped(value) for value in (addend, product.result, root.results[0]))
    if addend == product.result or tensor is None or result is None or total is None or not tensor.dims:
        return None
    if factor != 1:
        if factor is None or left == product.result:
            raise Apart("order", f"{kind(root)}: alpha scales the addend; only products are scaled")
        parts = _scaled(parts, root, factor)
    operand = stamped(product.a)
    assert operand is not None, "the verifier admits tensors of known rank only"
    if tensor.dtype != operand.dtype or total.dtype != result.dtype:
        sentence = f"adds {tensor.dtype} and gives {total.dtype}; the operands are {operand.dtype}"
        raise Apart("dtype", f"{kind(root)}: {sentence}, and addends must be, too")
    if not same_dims(total.dims, result.dims) or not _repeats_alike(product, tensor.dims, result):
        sentence = f"{show(tensor.dims)} is added to {show(result.dims)}"
        raise Apart("broadcast", f"{kind(root)}: {sentence}; batches must all be added to, or all alike")
    is_whole = same_dims(tensor.dims, result.dims)
    if parts.linear and parts.bias is None and not (is_whole and parts.residual is None):
        if parts.residual is None:
            return replace(parts, bias=addend)
        return replace(parts, bias=parts.residual, residual=addend)  # in the graph's order
    if parts.residual is None:
        return replace(parts, residual=addend)
    raise Apart("order", f"{kind(root)}: {_done(parts)} are all that is added to a product")


def _repeats_alike(product: GemmOp, addend: Dims, result: Tensor) -> bool:
    """Whether `addend` still broadcasts to the result when its batches are one dimension, without a copy.

    Products with one B for all batches have their rows in that dimension.
    """
    if len(addend) > len(result.dims):
        return False
    b = stamped(product.b)
    is_one_b = b is not None and len(b.dims) == 2 and not product.trans_a
    count = len(result.dims) - (1 if is_one_b else 2)
    padded = (*(1 for _ in range(len(result.dims) - len(addend))), *addend)
    pairs = list(zip(padded, result.dims, strict=True))
    if not all(x == 1 or same(x, y) for x, y in pairs):
        return False
    batch = [(x, y) for x, y in pairs[:count] if y != 1]
    return all(same(x, y) for x, y in batch) or all(x == 1 for x, _ in batch)


def _activated(product: GemmOp, parts: _Parts, root: ir.Operation) -> _Parts | None:
    function = "silu" if operator_name(root) == "aten.mul.Tensor" else activation(root)
    if function is None:
        return None
    if not parts.linear:
        raise Apart("order", f"{kind(root)}: the product has {_done(parts)} already")
    if parts.residual is not None:
        if parts.bias is not None:
            raise Apart("order", f"{kind(root)}: two addends come before it; one is accepted there")
        parts = replace(parts, bias=parts.residual, residual=None)
    return replace(parts, activation=function)


def _cast(product: GemmOp, parts: _Parts, root: ir.Operation) -> _Parts | None:
    """To f32, and back to the operands' type."""
    if not is_only_cast(root):
        return None
    given, result = stamped(product.a), stamped(root.results[0])
    if given is None or result is None or result.dtype not in (given.dtype, "f32"):
        return None
    if parts.preactivation:
        raise Apart("order", f"{kind(root)}: what the activation is of keeps the type of the result")
    return parts


def _copied(product: GemmOp, parts: _Parts, root: ir.Operation) -> _Parts | None:
    before, after = stamped(product.result), stamped(root.results[0])
    return parts if before is not None and after is not None and same_dims(before.dims, after.dims) else None


_PARTS = ("aten.split.Tensor", "aten.split_with_sizes", "aten.slice.Tensor")
_STEPS: dict[str, _Step] = {
    "aten.mul.Tensor": _multiplied,
    "aten.mul.Scalar": _multiplied,
    "aten.div.Tensor": _divided,
    "aten.div.Scalar": _divided,
    "aten.add.Tensor": _added,
    **dict.fromkeys(("aten.relu", "aten.clamp_min", "aten.silu", "aten.gelu"), _activated),
    **dict.fromkeys(CASTS, _cast),
    **dict.fromkeys(COPIES, _copied),
}


def _done(parts: _Parts) -> str:
    """What has become of the sums, for people."""
    named = {
        "a bias": parts.bias is not None,
        "an activation": parts.activation != "none",
        "a gate": parts.b2 is not None,
        "a residual": parts.residual is not None,
    }
    return " and ".join(name for name, is_there in named.items() if is_there) or "nothing"


def _replace(parts: _Parts, folded: list[ir.Operation]) -> GemmOp:
    """Puts one product in the place of that of `parts` and of what is `folded` into it, the result's op first."""
    product, root = parts.product, folded[0]
    operands = (parts.bias, parts.b2, parts.residual)
    before = root
    if parts.preactivation:
        # In front of whatever else uses that.
        before = product.operation
        late = [value for value in operands if value is not None and not _is_before(value, before)]
        if late:
            sentence = "what it adds is computed after the product, whose preactivation other ops need first"
            raise Apart("order", f"{kind(root)}: {sentence}")
    fused = build_gemm(
        product.a,
        product.b,
        parts.bias,
        root.results[0].type,
        layout=product.layout.value,
        b2=parts.b2,
        residual=parts.residual,
        scale=parts.scale,
        activation=parts.activation,
        preactivation=parts.preactivation,
        before=before,
    )
    verify(fused)
    _stamp(fused, parts, folded)
    root.results[0].replace_all_uses_with(fused.result)
    for op in folded:
        op.erase()
    if parts.preactivation:
        old = product.result if product.preactivation is None else product.preactivation
        old.replace_all_uses_with(fused.preactivation)
    return fused


def _stamp(fused: GemmOp, parts: _Parts, folded: list[ir.Operation]) -> None:
    """Provenance and shapes, from all that `fused` stands for."""
    product, root = parts.product, folded[0]
    attributes, given = fused.operation.attributes, product.operation.attributes
    sources = [product.operation, *([] if parts.gate is None else [parts.gate.operation])]
    with fused.operation.context:
        names = [ir.StringAttr.get(name) for op in folded if (name := node_name(op)) is not None]
        for attribute in (CONSUMED_ATTR, FUSED_ATTR):
            before = [
                name for op in sources if attribute in op.attributes for name in op.attributes[attribute]
            ]
            if names or before:
                attributes[attribute] = ir.ArrayAttr.get(list(dict.fromkeys(names + before)))
        if not parts.preactivation:
            for attribute in (NODE_ATTR, SHAPE_ATTR):
                if attribute in root.attributes:
                    attributes[attribute] = root.attributes[attribute]
            return
        if product.preactivation is None:
            kept = [given[attribute] for attribute in (NODE_ATTR, SHAPE_ATTR) if attribute in given]
        else:
            kept = [given[RESULTS_ATTR][1][0], given[SHAPES_ATTR][1]] if RESULTS_ATTR in given else []
        if len(kept) == 2 and NODE_ATTR in root.attributes and SHAPE_ATTR in root.attributes:
            names = [ir.ArrayAttr.get([name]) for name in (root.attributes[NODE_ATTR], kept[0])]
            attributes[RESULTS_ATTR] = ir.ArrayAttr.get(names)
            attributes[SHAPES_ATTR] = ir.ArrayAttr.get([root.attributes[SHAPE_ATTR], kept[1]])


def _is_before(value: ir.Value, op: ir.Operation) -> bool:
    source = producer(value)
    return source is None or source.is_before_in_block(op)


#: How a kind of product is folded with one more op behind it.
_FOLDS: dict[type, Callable[[Any, bool], Any]] = {GemmOp: _fold, ScaledGemmOp: scaled_epilogue.fold}
