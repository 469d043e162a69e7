"""From the masks of attention written by hand to a band of keys and the one mask that kernels load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_mlir import ir

from flycc.dialects.sdpa import MASKS
from flycc.dialects.tensor import Dims, broadcast, contradict, same_dims, show, stamped
from flycc.passes.attention_masks import known_mask
from flycc.passes.linear_sizes import Linear, linear, size_symbols, value_of
from flycc.passes.mask_values import Band
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
    equal weights of everything, which a band does not say. One that is known to hide what is outside of a band is
    loaded, and the band says which keys need not be looked at. Raises Unlike.
    """
    _check_fills([mask.fill for mask in masks if mask.fill is not None])
    lengths = linear(scores[-2]), linear(scores[-1])
    found = [_part(mask) for mask in masks]
    # Beside a mask of which nothing is known any query may see nothing.
    wholes = [part.band for part in found if part is not None and part.whole]
    sees = len(wholes) == len(masks) and _sees_a_key(wholes, lengths, size_symbols(before))
    band, options, loaded = Band(), dict[str, ir.Value](), list[Mask]()
    for mask, part in zip(masks, found, strict=True):
        limits = None
        if part is not None and (sees or part.fill == -_INFINITY):
            both = band & part.band.within(*lengths)
            limits = None if both is None else _limits(both, before)
            band = band if both is None or limits is None else both
        options = options if limits is None else limits
        if part is None or limits is None or not part.whole:
            loaded.append(mask)
    return options | _loaded(loaded, scores, before)


def _check_fills(fills: Sequence[float]) -> None:
    """Scores take the numbers of several fills, from the last to the first, as `_loaded` has it."""
    if len({fill for fill in fills if fill > -_INFINITY}) > 1 or list(fills) != sorted(fills):
        given = ", ".join(f"{fill:g}" for fill in reversed(fills))
        raise Unlike(
            "mask", f"masked scores become {given}, one after the other; one number but for -inf is needed"
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """A band outside of which a mask leaves no key, and what the scores of others become.

    `whole`: it leaves all keys in the band.
    """

    band: Band
    fill: float
    whole: bool


def _limits(band: Band, before: ir.Operation) -> dict[str, ir.Value] | None:
    """The limits that there are; None where one is no value of the graph."""
    values = {}
    for name, limit in (("lower", band.lower), ("upper", band.upper)):
        if limit is not None:
            value = value_of(limit, before)
            if value is None:
                return None
            values[name] = value
    return values


def _part(mask: Mask) -> _Part | None:
    """What is known of `mask`."""
    known, shape = known_mask(mask.value), sizes(mask.value)
    if known is None:
        return None
    if mask.fill is not None:
        seen, fill = not mask.banned, mask.fill
        band = known.where(lambda x: bool(x) is seen)
        hidden = bool(known.outside) is not seen
    else:
        fill = known.outside if known.inside is None or known.outside != 0 else known.inside
        band = known.where(lambda x: x == 0)
        hidden = known.outside != 0
    part = _Part(known.band, fill, False) if band is None and hidden else None
    if band is not None:
        part = _Part(band, fill, True)
    if part is None or (part.fill > LOWEST_SCORE and part.band != Band()):
        return None
    aligned = len(shape) >= 2 and same_dims(shape[-2:], mask.scores[-2:])
    return part if aligned or part.band == Band() else None


def _sees_a_key(
    bands: Sequence[Band], lengths: tuple[Linear | None, Linear | None], sizes_: frozenset[str]
) -> bool:
    """Whether every query provably sees a key that is in all bands; `sizes_` are symbols that are not negative."""
    band: Band | None = Band()
    for each in bands:
        band = band and band & each
    if band is None:
        return False
    lower, upper = band.lower, band.upper
    if upper is not None and not upper.is_at_least(0, sizes_):
        return False
    if lower is None:
        return True
    queries, keys = lengths
    if queries is None or keys is None or not keys.plus(queries, -1).plus(lower, -1).is_at_least(0, sizes_):
        return False  # the last query might not see even the last key
    return upper is None or upper.plus(lower, -1).is_at_least(0, sizes_)


def _loaded(masks: Sequence[Mask], scores: Dims, before: ir.Operation) -> dict[str, ir.Value]:
    seen: ir.Value | None = None
    added: ir.Value | None = None
    banned: ir.Value | None = None
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
            value = value if mask.banned else _not(value, before)
            banned = value if banned is None else _pointwise("logical_or", banned, value, before)
    if banned is not None:
        lowest = new_constant(_LOWEST, before)
        value = new_op("mul.Scalar", [widened(banned, before), lowest], sizes(banned), "f32", before)
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
    if len(scores) != 4 or len(shape) != 3 or len(numbers) != 4 or contradict(heads, numbers[0] * numbers[1]):
        raise Unlike("mask", f"its mask is {show(shape)} where its scores are {show(mask.scores)}")
    return viewed(mask.value, numbers, before)
