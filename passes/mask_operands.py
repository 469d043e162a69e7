"""From the masks of attention written by hand to a band of keys and the one mask that kernels load."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from torch_mlir import ir

from flycc.dialects.sdpa import MASKS
from flycc.dialects.tensor import Dims, broadcast, contradict, same, same_dims, show, stamped
from flycc.passes.attention_masks import Band, Banded, known_mask
from flycc.passes.new_ops import new_op, viewed, widened
from flycc.passes.seen_through import sizes
from flycc.passes.torch_ir import new_constant
from flycc.passes.written_attention import LOWEST_SCORE, Mask, Unlike

#: Added to any score it is itself in float32: a row of these alone has equal weights, as the program's has.
_LOWEST = -3e38
_INFINITY = float("inf")


def mask_options(masks: Sequence[Mask], scores: Dims, before: ir.Operation) -> dict[str, ir.Value]:
    """`lower`, `upper` and `mask` of `flycc.sdpa` for `masks`, as new ops in front of `before`.

    A mask that is known to be a band is not loaded, unless a query may see nothing and the program then gives it
    equal weights of everything, which a band does not say. Raises Unlike.
    """
    bands = [_band(mask) for mask in masks]
    band = reduce(Band.__and__, (found[0] for found in bands if found is not None), Band())
    loaded = [
        mask
        for mask, found in zip(masks, bands, strict=True)
        if found is None or (found[1] > -_INFINITY and not _always_sees(band, scores))
    ]
    if len(loaded) > sum(found is None for found in bands):
        kept = [found[0] for mask, found in zip(masks, bands, strict=True) if found and mask not in loaded]
        band = reduce(Band.__and__, kept, Band())
    limits = {"lower": band.lower, "upper": band.upper}
    options = {name: new_constant(limit, before) for name, limit in limits.items() if limit is not None}
    return options | _loaded(loaded, scores, before)


def _band(mask: Mask) -> tuple[Band, float] | None:
    """The keys that `mask` leaves, if they are a band, and what the scores of others become."""
    known, shape = known_mask(mask.value), sizes(mask.value)
    if known is None or len(shape) < 2 or not same_dims(shape[-2:], mask.scores[-2:]):
        return None
    if mask.fill is not None:
        band, fill = known.where(lambda x: bool(x) is not mask.banned), mask.fill
    else:
        band, fill = known.where(lambda x: x == 0), _lowest(known)
    return None if band is None or fill > LOWEST_SCORE else (band, fill)


def _lowest(known: Banded) -> float:
    """What a mask of numbers adds where it does not add 0."""
    return known.inside if known.outside == 0 else known.outside


def _always_sees(band: Band, scores: Dims) -> bool:
    """Whether every query provably sees a key."""
    if band.upper is not None and band.upper < 0:
        return False
    return band.lower is None or (band.lower <= 0 and same(scores[-2], scores[-1]))


def _loaded(masks: Sequence[Mask], scores: Dims, before: ir.Operation) -> dict[str, ir.Value]:
    seen: ir.Value | None = None
    added: ir.Value | None = None
    for mask in masks:
        value = _in_place(mask, scores, before)
        tensor = stamped(value)
        if tensor is None or tensor.dtype not in MASKS or (tensor.dtype == "i1") == (mask.fill is None):
            raise Unlike("mask", f"its mask is {value.type}; bools or floats are needed")
        if mask.fill is None:
            added = value if added is None else _pointwise("add.Tensor", added, value, before)
        elif mask.fill == -_INFINITY:
            value = _not(value, before) if mask.banned else value
            seen = value if seen is None else _pointwise("logical_and", seen, value, before)
        else:
            banned = value if mask.banned else _not(value, before)
            lowest = new_constant(_LOWEST, before)
            value = new_op("mul.Scalar", [widened(banned, before), lowest], tensor.dims, "f32", before)
            added = value if added is None else _pointwise("add.Tensor", added, value, before)
    if seen is not None and added is not None:
        condition, other = stamped(seen), stamped(added)
        assert condition is not None
        assert other is not None
        dims = broadcast(condition.dims, other.dims)
        operands = [added, _not(seen, before), new_constant(-_INFINITY, before)]
        return {"mask": new_op("masked_fill.Scalar", operands, dims, other.dtype, before)}
    mask_ = seen if added is None else added
    return {} if mask_ is None else {"mask": mask_}


def _not(value: ir.Value, before: ir.Operation) -> ir.Value:
    return new_op("logical_not", [value], sizes(value), "i1", before)


def _pointwise(name: str, left: ir.Value, right: ir.Value, before: ir.Operation) -> ir.Value:
    x, y = stamped(left), stamped(right)
    assert x is not None
    assert y is not None
    dtype = x.dtype if x.dtype == y.dtype else "f32"
    operands = [left, right, *([new_constant(1, before)] if name == "add.Tensor" else [])]
    return new_op(name, operands, broadcast(x.dims, y.dims), dtype, before)


def _in_place(mask: Mask, scores: Dims, before: ir.Operation) -> ir.Value:
    """The mask as it is broadcast to `scores`, which may be seen as another shape where it meets them."""
    shape = sizes(mask.value)
    if len(shape) <= 2 or same_dims(mask.scores, scores[-len(mask.scores) :]):
        return mask.value
    heads, *rest = shape
    batch_heads = scores[:2]
    if len(shape) == 3 and heads == 1 and all(isinstance(size, int) for size in rest):
        return viewed(mask.value, [size for size in rest if isinstance(size, int)], before)
    numbers = [size for size in (*batch_heads, *rest) if isinstance(size, int)]
    if len(shape) != 3 or len(numbers) != 4 or contradict(heads, numbers[0] * numbers[1]):
        raise Unlike("mask", f"its mask is {show(shape)} where its scores are {show(mask.scores)}")
    return viewed(mask.value, numbers, before)
