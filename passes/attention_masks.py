"""What a mask in a graph is known to be: which keys a query sees, from the ops that make the mask.

Indices (`arange`) are followed as sums of positions along axes and an integer, through sums, views, gathers and more.
Comparing two of them, or `tril` and `triu`, gives a tensor of two values: one in a band of diagonals and one outside.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, reduce

from torch_mlir import ir

from flycc.dialects.tensor import Dim, Dims, same, stamped
from flycc.passes.linear_sizes import Linear, linear, linear_value, size_symbols
from flycc.passes.mask_values import Band, Banded, Index, Known
from flycc.passes.seen_through import TRANSPOSES, VIEWS, moved_axes, permutation, sizes
from flycc.passes.torch_ir import constant, operator_name, producer

#: Graphs that make masks are shallow; what is deeper is none.
_DEPTH = 60
#: Integers up to which a type of floats has all.
_EXACT = {"bf16": 1 << 8, "f16": 1 << 11, "f32": 1 << 24}


def known_mask(mask: ir.Value) -> Banded | None:
    """What a mask, of bools or numbers, is over queries (axis -2) and keys (axis -1), if it is known.

    Values inside of its band may be unknown: the mask then says at least what is outside.
    """
    known = _known(mask, _DEPTH)
    if isinstance(known, Index):
        number = known.everywhere
        return None if number is None else Banded(Band(), number, number)
    return known


def fill_of(value: ir.Value) -> float | None:
    """The number that every element of `value` is."""
    known = _known(value, _DEPTH)
    return known.everywhere if isinstance(known, Index) else None


def _known(value: ir.Value, depth: int) -> Known | None:
    number = constant(value)
    if number is not None:
        return Index.of(number)
    if stamped(value) is None:
        integer = linear_value(value)
        return None if integer is None else Index({}, integer)
    op = producer(value)
    if op is None or not depth:
        return None
    name = operator_name(op)
    if name in VIEWS:
        known = _viewed(op, name, _known(op.operands[0], depth - 1))
    else:
        base = name.rpartition(".")[0] if name.count(".") == 2 else name
        step = _STEPS.get(base)
        known = None if step is None else step(op, lambda operand: _known(operand, depth - 1))
    return _without_single(known, value) if isinstance(known, Index) else known


def _without_single(known: Index, value: ir.Value) -> Index:
    """Along an axis of one element there is the position 0 alone."""
    dims = sizes(value)
    return replace(known, axes={axis: times for axis, times in known.axes.items() if dims[axis] != 1})


#: What is known of an operand.
_Read = Callable[[ir.Value], Known | None]


def _unrepeated(op: ir.Operation, index: int, read: _Read) -> Known | None:
    """Operand `index` of `op`, if it has the size of the result along each axis that its elements depend on."""
    if index >= len(op.operands):
        return None
    known = read(op.operands[index])
    axes = (-2, -1) if isinstance(known, Banded) else () if known is None else tuple(known.axes)
    before, after = sizes(op.operands[index]), sizes(op.results[0])
    return known if all(same(_size(before, axis), _size(after, axis)) for axis in axes) else None


def _size(dims: Dims, axis: int) -> Dim:
    """That of a dimension counted from the end; those that are not there have one element."""
    return dims[axis] if -axis <= len(dims) else 1


def _viewed(op: ir.Operation, name: str, known: Known | None) -> Known | None:
    if known is None or (isinstance(known, Index) and not known.axes):
        return known
    before, after = sizes(op.operands[0]), sizes(op.results[0])
    if name == "aten.slice.Tensor":
        return _sliced(op, known)
    axes = [-2, -1] if isinstance(known, Banded) else list(known.axes)
    moved: Mapping[int, int] | None
    if name == "aten.expand" or (before == after and name not in TRANSPOSES):
        moved = {axis: axis for axis in axes if same(_size(before, axis), _size(after, axis))}
    elif name in TRANSPOSES:
        order = permutation(op)
        moved = None if order is None else {s - len(order): a - len(order) for a, s in enumerate(order)}
    else:
        moved = moved_axes(before, after)
        if moved is not None and _size(before, -2) == _size(after, -2) == 1:
            moved = {**moved, -2: -2}
    if moved is None or any(axis not in moved for axis in axes):
        return None
    if isinstance(known, Index):
        return replace(known, axes={moved[axis]: times for axis, times in known.axes.items()})
    if (moved[-2], moved[-1]) == (-1, -2):
        return replace(known, band=known.band.transposed())
    return known if (moved[-2], moved[-1]) == (-2, -1) else None


def _sliced(op: ir.Operation, known: Known) -> Known | None:
    dim, start, _, step = (constant(value) for value in list(op.operands)[1:])
    rank = len(sizes(op.operands[0]))
    if dim is None or start is None or step != 1:
        return None
    axis = int(dim) % rank - rank
    first = _position(op.operands[0], axis, int(start))
    if first is None:
        return None
    if isinstance(known, Index):
        return replace(known, number=known.number.plus(first, known.axes.get(axis, 0)))
    shift = {-2: 1, -1: -1}.get(axis, 0)
    return replace(known, band=known.band.shifted(Linear().plus(first, shift)))


def _position(value: ir.Value, axis: int, index: int) -> Linear | None:
    """Where an index that may count from the end is; None where the size may be too small for it."""
    if index >= 0:
        return Linear(index)
    size = sizes(value)[axis]
    return Linear(max(size + index, 0)) if isinstance(size, int) else None


def _selected(op: ir.Operation, read: _Read) -> Known | None:
    """`select(x, dim, index)`, which drops the dimension."""
    known, dim, index = read(op.operands[0]), constant(op.operands[1]), constant(op.operands[2])
    rank = len(sizes(op.operands[0]))
    if known is None or dim is None or index is None:
        return None
    axis = int(dim) % rank - rank
    if isinstance(known, Banded):
        return known if axis < -2 else None
    place = _position(op.operands[0], axis, int(index))
    if place is None:
        return None
    axes = {a + (a < axis): times for a, times in known.axes.items() if a != axis}
    return Index(axes, known.number.plus(place, known.axes.get(axis, 0)))


def _gathered(op: ir.Operation, read: _Read) -> Known | None:
    """`x[i, j, ...]` with a tensor of indices for each dimension: what is known of x, at what is known of these."""
    known, items = read(op.operands[0]), producer(op.operands[1])
    rank = len(sizes(op.operands[0]))
    if isinstance(known, Index) and not known.axes:
        return known
    if (
        known is None
        or items is None
        or items.name != "torch.prim.ListConstruct"
        or len(items.operands) != rank
    ):
        return None
    axes = tuple(known.axes) if isinstance(known, Index) else (-2, -1)
    found: dict[int, Index] = {}
    for axis in axes:
        places = items.operands[axis]
        index, tensor = read(places), stamped(places)
        if not isinstance(index, Index) or tensor is None or tensor.dtype == "i1":
            return None
        # One that is negative would count from the end.
        if not index.number.is_at_least(0, size_symbols(op)) or any(
            times < 0 for times in index.axes.values()
        ):
            return None
        if not all(same(tensor.dims[a], sizes(op.results[0])[a]) for a in index.axes):
            return None
        found[axis] = index
    if isinstance(known, Index):
        start = Index({}, known.number)
        return reduce(lambda total, axis: total.plus(found[axis], known.axes[axis]), axes, start)
    if (found[-2].axes, found[-1].axes) != ({-2: 1}, {-1: 1}):
        return None
    return replace(known, band=known.band.shifted(found[-2].number.plus(found[-1].number, -1)))


def _concatenated(op: ir.Operation, read: _Read) -> Known | None:
    """`cat` of parts that go on counting where the one before stops."""
    items, dim = producer(op.operands[0]), constant(op.operands[1])
    rank = len(sizes(op.results[0]))
    if items is None or items.name != "torch.prim.ListConstruct" or dim is None:
        return None
    axis, first = int(dim) % rank - rank, Linear()
    whole: Index | None = None
    single: list[tuple[Linear, Index]] = []
    for part in items.operands:
        index, size = read(part), linear(sizes(part)[axis])
        if not isinstance(index, Index) or size is None:
            return None
        times = index.axes.get(axis, 0)
        if size.known == 1:  # a position, of which any factor is right
            single.append((first, index))
        else:
            shifted = replace(index, number=index.number.plus(first, -times))
            if whole is not None and shifted != whole:
                return None
            whole = shifted
        first = first.plus(size)
    if whole is None:
        return None
    for place, index in single:
        axes = {a: times for a, times in whole.axes.items() if a != axis}
        if index != Index(axes, whole.number.plus(place, whole.axes.get(axis, 0))):
            return None
    return whole


def _running_sum(op: ir.Operation, read: _Read) -> Known | None:
    """`cumsum`, of zeros."""
    known = read(op.operands[0])
    return known if isinstance(known, Index) and known.everywhere == 0 else None


def _arange(op: ir.Operation, _: _Read) -> Known | None:
    """`arange(end)`, `arange.start(start, end)` or `arange.start_step(start, end, step)`."""
    start: Linear | None = Linear()
    step: float | None = 1
    if not operator_name(op).endswith("arange"):
        start = linear_value(op.operands[0])
    if operator_name(op).endswith("start_step"):
        step = constant(op.operands[2])
    return None if start is None or not isinstance(step, int) else Index({-1: step}, start)


def _filled(at: int | None, number: float = 0) -> Callable[[ir.Operation, _Read], Known | None]:
    """A tensor of one number: operand `at`, or `number`."""

    def read(op: ir.Operation, operand: _Read) -> Known | None:
        return Index.of(number) if at is None else operand(op.operands[at])

    return read


def _triangle(op: ir.Operation, read: _Read) -> Known | None:
    known, diagonal = read(op.operands[0]), linear_value(op.operands[1])
    if diagonal is None or known is None:
        return None
    band = Band(upper=diagonal) if operator_name(op).endswith("tril") else Band(lower=diagonal)
    if isinstance(known, Index):
        number = known.everywhere
        return None if number is None else Banded(band, number, 0)
    both = known.band & band
    return None if both is None or known.outside != 0 else replace(known, band=both)


def _converted(op: ir.Operation, read: _Read) -> Known | None:
    """To bool, every number but 0 is true; other casts keep what matters of a mask, but may round large indices."""
    known, tensor = read(op.operands[0]), stamped(op.results[0])
    if tensor is None or known is None:
        return None
    if tensor.dtype == "i1":
        return _truth(known)
    if isinstance(known, Banded) or not known.axes or tensor.dtype not in _EXACT:
        return known
    dims = sizes(op.results[0])
    largest = sum(
        abs(times) * size if isinstance(size := dims[axis], int) else math.inf
        for axis, times in known.axes.items()
    )
    number = known.number.known
    return None if number is None or largest + abs(number) > _EXACT[tensor.dtype] else known


def _same(op: ir.Operation, read: _Read) -> Known | None:
    return read(op.operands[0])


def _sum(sign: int) -> Callable[[ir.Operation, _Read], Known | None]:
    def read(op: ir.Operation, operand: _Read) -> Known | None:
        alpha = constant(op.operands[2]) if len(op.operands) > 2 else 1
        if alpha != 1:
            return None
        left, right = (_unrepeated(op, index, operand) for index in range(2))
        if operator_name(op).startswith("aten.rsub"):
            left, right = right, left
        if isinstance(left, Index) and isinstance(right, Index):
            return left.plus(right, sign)
        return _combined(left, right, lambda x, y: x + sign * y)

    return read


def _combined(
    left: Known | None, right: Known | None, function: Callable[[float, float], float]
) -> Banded | None:
    """`function` of two tensors, where one has the same number everywhere or both agree in where what is decided."""
    if isinstance(right, Index) and right.everywhere is not None and isinstance(left, Banded):
        return left.map(partial(_swapped, function, right.everywhere))
    if isinstance(left, Index) and left.everywhere is not None and isinstance(right, Banded):
        return right.map(partial(function, left.everywhere))
    if not isinstance(left, Banded) or not isinstance(right, Banded):
        return None
    for x, y in itertools.product(left.forms(), right.forms()):
        assert x.inside is not None
        assert y.inside is not None
        band = x.band & y.band
        outside = {
            function(*pair) for pair in ((x.inside, y.outside), (x.outside, y.inside), (x.outside, y.outside))
        }
        if band is not None and len(outside) == 1:
            return Banded(band, function(x.inside, y.inside), outside.pop())
    return None


def _swapped(function: Callable[[float, float], float], right: float, left: float) -> float:
    return function(left, right)


def _product(op: ir.Operation, read: _Read) -> Known | None:
    left, right = (_unrepeated(op, index, read) for index in range(2))
    numbers = [known.everywhere if isinstance(known, Index) else None for known in (left, right)]
    for number, other in zip(numbers, (right, left), strict=True):
        if number is not None and isinstance(other, Index) and (math.isfinite(number) or not other.axes):
            return Index().plus(other, number)
    return _combined(left, right, operator.mul)


def _logical(every: bool) -> Callable[[ir.Operation, _Read], Known | None]:
    """And, or or: a band is where all are true of the first, and where all are false of the second.

    What one operand decides outside of a band is decided, whatever the other is.
    """

    def read(op: ir.Operation, operand: _Read) -> Known | None:
        if not _is_bool(op):
            return None
        known = [_truth(_unrepeated(op, index, operand)) for index in range(2)]
        numbers = [k.everywhere if isinstance(k, Index) else None for k in known]
        for number, other in zip(numbers, reversed(known), strict=True):
            if number is not None:
                return other if number is every else Index.of(not every)
        exact = [k.where(lambda x: x is every) for k in known if isinstance(k, Banded)]
        if len(exact) == 2 and exact[0] is not None and exact[1] is not None:
            both = exact[0] & exact[1]
            if both is not None:
                return Banded(both, every, not every)
        forms = [form for k in known if isinstance(k, Banded) for form in k.forms() or [k]]
        bands = [form.band for form in forms if form.outside is not every]
        return Banded(reduce(lambda x, y: (x & y) or x, bands), None, not every) if bands else None

    return read


def _is_bool(op: ir.Operation) -> bool:
    """Whether the result of `op` is of bools; of integers bitwise ops say nothing here."""
    tensor = stamped(op.results[0])
    return tensor is not None and tensor.dtype == "i1"


def _truth(known: Known | None) -> Known | None:
    """Whether what is known is not 0, where each element is one of a few numbers."""
    if isinstance(known, Index):
        number = known.everywhere
        return None if number is None else Index.of(bool(number))
    return None if known is None else known.map(bool)


def _negation(op: ir.Operation, read: _Read) -> Known | None:
    known = _truth(read(op.operands[0])) if _is_bool(op) else None
    if isinstance(known, Index):
        return Index.of(not known.everywhere)
    return None if known is None else known.map(operator.not_)


def _compared(name: str) -> Callable[[ir.Operation, _Read], Known | None]:
    function: Callable[[float, float], bool] = getattr(operator, name)

    def read(op: ir.Operation, operand: _Read) -> Known | None:
        left, right = (_unrepeated(op, index, operand) for index in range(2))
        if not isinstance(left, Index) or not isinstance(right, Index):
            return _combined(left, right, function)
        gap = left.plus(right, -1)
        number = gap.everywhere
        if number is not None:
            return Index.of(function(number, 0))
        if gap.number.number != int(gap.number.number):
            return None
        # Of one query there is no axis; its position is 0.
        dims = sizes(op.results[0])
        single = len(dims) < 2 or dims[-2] == 1
        if gap.axes == {-2: 1, -1: -1} or (single and gap.axes == {-1: -1}):  # i - j + number compared with 0
            return _limit(name, gap.number)
        if gap.axes == {-2: -1, -1: 1} or (single and gap.axes == {-1: 1}):
            turned = {"ge": "le", "le": "ge", "gt": "lt", "lt": "gt"}.get(name, name)
            return _limit(turned, Linear().plus(gap.number, -1))
        return None

    return read


def _limit(name: str, number: Linear) -> Banded:
    """`i - j + number` compared with 0."""
    band = {
        "ge": Band(upper=number),
        "gt": Band(upper=number.plus(-1)),
        "le": Band(lower=number),
        "lt": Band(lower=number.plus(1)),
    }.get(name, Band(number, number))
    return Banded(band, name != "ne", name == "ne")


def _chosen(op: ir.Operation, read: _Read) -> Known | None:
    """`where(condition, x, y)`."""
    return _choice(*(_unrepeated(op, index, read) for index in range(3)))


def _masked(op: ir.Operation, read: _Read) -> Known | None:
    """`masked_fill(x, mask, number)`."""
    x, mask, number = (_unrepeated(op, index, read) for index in range(3))
    return _choice(mask, number, x)


def _choice(condition: Known | None, x: Known | None, y: Known | None) -> Known | None:
    if isinstance(condition, Index):
        number = condition.everywhere
        return None if number is None else x if number else y
    if condition is None:
        return None
    truths = condition.where(bool), condition.where(lambda value: not value)
    picked: list[float | None] = []
    for band, chosen in zip(truths, (x, y), strict=True):
        if isinstance(chosen, Banded) and band is not None and chosen.band == band:
            picked.append(chosen.inside)
        else:
            picked.append(chosen.everywhere if isinstance(chosen, Index) else None)
    outside = picked[0] if condition.outside else picked[1]
    if outside is None:
        return None
    inside = None if condition.inside is None else picked[0] if condition.inside else picked[1]
    return Banded(condition.band, inside, outside)


_STEPS: dict[str, Callable[[ir.Operation, _Read], Known | None]] = {
    "aten.arange": _arange,
    "aten.ones": _filled(None, 1),
    "aten.zeros": _filled(None, 0),
    "aten.full": _filled(1),
    "aten.scalar_tensor": _filled(0),
    "aten.ones_like": _filled(None, 1),
    "aten.zeros_like": _filled(None, 0),
    "aten.full_like": _filled(1),
    "aten.new_ones": _filled(None, 1),
    "aten.new_zeros": _filled(None, 0),
    "aten.new_full": _filled(2),
    "aten.tril": _triangle,
    "aten.triu": _triangle,
    "aten._to_copy": _converted,
    "prims.convert_element_type": _converted,
    "aten.lift_fresh_copy": _same,
    "aten.select": _selected,
    "aten.index": _gathered,
    "aten.cat": _concatenated,
    "aten.cumsum": _running_sum,
    "aten.add": _sum(1),
    "aten.sub": _sum(-1),
    "aten.rsub": _sum(-1),
    "aten.mul": _product,
    "aten.logical_not": _negation,
    "aten.bitwise_not": _negation,
    "aten.logical_and": _logical(True),
    "aten.bitwise_and": _logical(True),
    "aten.__and__": _logical(True),
    "aten.logical_or": _logical(False),
    "aten.bitwise_or": _logical(False),
    "aten.__or__": _logical(False),
    **{f"aten.{name}": _compared(name) for name in ("ge", "gt", "le", "lt", "eq", "ne")},
    "aten.where": _chosen,
    "aten.masked_fill": _masked,
}
