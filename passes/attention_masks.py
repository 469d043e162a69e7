"""What a mask in a graph is known to be: which keys a query sees, from the ops that make the mask.

Indices (`arange`) are followed as sums of positions along axes and a number, through sums, differences and views.
Comparing two of them, or `tril` and `triu`, gives a tensor of two values: one in a band of diagonals and one outside.
Axes are counted from the end, so that dimensions put in front change nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch_mlir import ir

from flycc.dialects.tensor import same
from flycc.passes.seen_through import VIEWS, moved_axes, permutation, sizes
from flycc.passes.torch_ir import constant, operator_name, producer

#: Graphs that make masks are shallow; what is deeper is none.
_DEPTH = 40


@dataclass(frozen=True, slots=True)
class Band:
    """The elements (i, j) of the last two axes with i + lower <= j <= i + upper; None is no limit."""

    lower: int | None = None
    upper: int | None = None

    def __and__(self, other: Band) -> Band:
        lowers = [band.lower for band in (self, other) if band.lower is not None]
        uppers = [band.upper for band in (self, other) if band.upper is not None]
        return Band(max(lowers, default=None), min(uppers, default=None))

    def outside(self) -> Band | None:
        """All other elements, if they are a band."""
        if self.lower is None and self.upper is not None:
            return Band(lower=self.upper + 1)
        if self.upper is None and self.lower is not None:
            return Band(upper=self.lower - 1)
        return None


@dataclass(frozen=True, slots=True)
class Index:
    """At each element the sum of `number` and of its positions along axes, each times a factor."""

    axes: Mapping[int, int]
    number: float

    def plus(self, other: Index, factor: int) -> Index:
        """`self + factor * other`."""
        axes = dict(self.axes)
        for axis, times in other.axes.items():
            axes[axis] = axes.get(axis, 0) + factor * times
        return Index(
            {axis: times for axis, times in axes.items() if times}, self.number + factor * other.number
        )


@dataclass(frozen=True, slots=True)
class Banded:
    """One value in a band and another outside."""

    band: Band
    inside: float
    outside: float

    def map(self, function: Callable[[float], float]) -> Banded:
        """`function` of every element."""
        return replace(self, inside=function(self.inside), outside=function(self.outside))

    def where(self, chosen: Callable[[float], bool]) -> Band | None:
        """The elements whose value is `chosen`, if they are a band."""
        if chosen(self.inside):
            return Band() if chosen(self.outside) else self.band
        return self.band.outside() if chosen(self.outside) else None


_Known = Index | Banded


def known_mask(mask: ir.Value) -> Banded | None:
    """What a mask, of bools or numbers, is over queries (axis -2) and keys (axis -1), if it is known."""
    known = _known(mask, _DEPTH)
    return known if isinstance(known, Banded) else None


def fill_of(value: ir.Value) -> float | None:
    """The number that every element of `value` is."""
    known = _known(value, _DEPTH)
    return known.number if isinstance(known, Index) and not known.axes else None


def _known(value: ir.Value, depth: int) -> _Known | None:
    number = constant(value)
    if number is not None:
        return Index({}, number)
    op = producer(value)
    if op is None or not depth:
        return None
    name = operator_name(op)
    if name in VIEWS:
        return _viewed(op, name, _known(op.operands[0], depth - 1))
    base = name.rpartition(".")[0] if name.count(".") == 2 else name
    step = _STEPS.get(base)
    return None if step is None else step(op, lambda index: _unrepeated(op, index, depth - 1))


def _unrepeated(op: ir.Operation, index: int, depth: int) -> _Known | None:
    """An operand of `op`, which has the size of the result along each axis that its elements depend on."""
    known = _known(op.operands[index], depth)
    axes = (-2, -1) if isinstance(known, Banded) else () if known is None else tuple(known.axes)
    before, after = sizes(op.operands[index]), sizes(op.results[0])
    fits = all(-axis <= len(before) and same(before[axis], after[axis]) for axis in axes)
    return known if fits else None


_Read = Callable[[int], _Known | None]


def _viewed(op: ir.Operation, name: str, known: _Known | None) -> _Known | None:
    if known is None or (isinstance(known, Index) and not known.axes):
        return known
    before, after = sizes(op.operands[0]), sizes(op.results[0])
    axes = list(known.axes) if isinstance(known, Index) else [-2, -1]
    moved: Mapping[int, int] | None
    if name == "aten.slice.Tensor":
        return _sliced(op, known)
    if name == "aten.expand":
        if any(-axis > len(before) or not same(before[axis], after[axis]) for axis in axes):
            return None
        moved = {axis: axis for axis in axes}
    elif name in ("aten.permute", "aten.transpose.int", "aten.t"):
        order = permutation(op)
        if order is None:
            return None
        moved = {source - len(order): axis - len(order) for axis, source in enumerate(order)}
    else:
        moved = {axis: axis for axis in axes} if before == after else moved_axes(before, after)
    if moved is None or any(axis not in moved for axis in axes):
        return None
    if isinstance(known, Index):
        return replace(known, axes={moved[axis]: times for axis, times in known.axes.items()})
    return known if (moved[-2], moved[-1]) == (-2, -1) else None


def _sliced(op: ir.Operation, known: _Known) -> _Known | None:
    dim, start, _, step = (constant(value) for value in list(op.operands)[1:])
    rank = len(sizes(op.operands[0]))
    if dim is None or start is None or step != 1:
        return None
    axis = int(dim) % rank - rank
    if start < 0:
        size = sizes(op.operands[0])[axis]
        if not isinstance(size, int):
            return None
        start = max(start + size, 0)
    start = int(start)
    if isinstance(known, Index):
        return replace(known, number=known.number + start * known.axes.get(axis, 0))
    shift = {-2: start, -1: -start}.get(axis, 0)
    limits = (known.band.lower, known.band.upper)
    return replace(known, band=Band(*(None if limit is None else limit + shift for limit in limits)))


def _arange(op: ir.Operation, _: _Read) -> _Known | None:
    """`arange(end)`, `arange.start(start, end)` or `arange.start_step(start, end, step)`."""
    start: float | None = 0
    step: float | None = 1
    if not operator_name(op).endswith("arange"):
        start = constant(op.operands[0])
    if operator_name(op).endswith("start_step"):
        step = constant(op.operands[2])
    return None if start is None or not isinstance(step, int) else Index({-1: step}, start)


def _filled(at: int | None, number: float = 0) -> Callable[[ir.Operation, _Read], _Known | None]:
    """A tensor of one number: operand `at`, or `number`."""

    def read(_: ir.Operation, operand: _Read) -> _Known | None:
        return Index({}, number) if at is None else operand(at)

    return read


def _triangle(op: ir.Operation, operand: _Read) -> _Known | None:
    known, diagonal = operand(0), constant(op.operands[1])
    if diagonal is None or known is None:
        return None
    band = Band(upper=int(diagonal)) if operator_name(op).endswith("tril") else Band(lower=int(diagonal))
    if isinstance(known, Index):
        return None if known.axes else Banded(band, known.number, 0)
    return replace(known, band=known.band & band) if known.outside == 0 else None


def _converted(op: ir.Operation, operand: _Read) -> _Known | None:
    """To bool, every number but 0 is true; other casts keep what matters of a mask."""
    known = operand(0)
    to_bool = "i1>" in str(op.results[0].type)
    return known.map(bool) if to_bool and isinstance(known, Banded) else known


def _same(_: ir.Operation, operand: _Read) -> _Known | None:
    return operand(0)


def _sum(sign: int) -> Callable[[ir.Operation, _Read], _Known | None]:
    def read(op: ir.Operation, operand: _Read) -> _Known | None:
        alpha = constant(op.operands[2]) if len(op.operands) > 2 else 1
        if alpha != 1:
            return None
        left, right = operand(0), operand(1)
        if operator_name(op).startswith("aten.rsub"):
            left, right = right, left
        if isinstance(left, Index) and isinstance(right, Index):
            return left.plus(right, sign)
        return _combined(left, right, lambda x, y: x + sign * y)

    return read


def _combined(
    left: _Known | None, right: _Known | None, function: Callable[[float, float], float]
) -> Banded | None:
    """`function` of two tensors, where one has the same number everywhere or both agree in where what is decided."""
    if isinstance(left, Banded) and isinstance(right, Index) and not right.axes:
        number = right.number
        return left.map(lambda x: function(x, number))
    if isinstance(right, Banded) and isinstance(left, Index) and not left.axes:
        number = left.number
        return right.map(lambda x: function(number, x))
    if not isinstance(left, Banded) or not isinstance(right, Banded):
        return None
    inside, *outside = (
        function(x, y)
        for x, y in (
            (left.inside, right.inside),
            (left.inside, right.outside),
            (left.outside, right.inside),
            (left.outside, right.outside),
        )
    )
    return Banded(left.band & right.band, inside, outside[0]) if len(set(outside)) == 1 else None


def _product(_: ir.Operation, operand: _Read) -> _Known | None:
    return _combined(operand(0), operand(1), operator.mul)


def _logical(every: bool) -> Callable[[ir.Operation, _Read], _Known | None]:
    """And, or or: a band is where all are true of the first, and where all are false of the second."""

    def read(_: ir.Operation, operand: _Read) -> _Known | None:
        known = [operand(index) for index in range(2)]
        bands = [
            k.where(lambda x: bool(x) is every) if isinstance(k, Banded) else _everywhere(k, every)
            for k in known
        ]
        if bands[0] is None or bands[1] is None:
            return None
        return Banded(bands[0] & bands[1], every, not every)

    return read


def _everywhere(known: _Known | None, value: bool) -> Band | None:
    """All elements, where each is `value`."""
    if isinstance(known, Index) and not known.axes and bool(known.number) is value:
        return Band()
    return None


def _negation(_: ir.Operation, operand: _Read) -> _Known | None:
    known = operand(0)
    return known.map(lambda x: not x) if isinstance(known, Banded) else None


def _compared(name: str) -> Callable[[ir.Operation, _Read], _Known | None]:
    function: Callable[[float, float], bool] = getattr(operator, name)

    def read(_: ir.Operation, operand: _Read) -> _Known | None:
        left, right = operand(0), operand(1)
        if not isinstance(left, Index) or not isinstance(right, Index):
            return _combined(left, right, function)
        gap = left.plus(right, -1)
        number = gap.number
        if number != int(number) or name in ("eq", "ne"):
            return None
        if gap.axes == {-2: 1, -1: -1}:  # i - j + number compared with 0
            return _limit(name, int(number))
        if gap.axes == {-2: -1, -1: 1}:
            return _limit({"ge": "le", "le": "ge", "gt": "lt", "lt": "gt"}[name], -int(number))
        return None

    return read


def _limit(name: str, number: int) -> Banded:
    """`i - j + number` compared with 0."""
    band = {
        "ge": Band(upper=number),
        "gt": Band(upper=number - 1),
        "le": Band(lower=number),
        "lt": Band(lower=number + 1),
    }[name]
    return Banded(band, True, False)


def _chosen(_: ir.Operation, operand: _Read) -> _Known | None:
    """`where(condition, x, y)`."""
    return _choice(*(operand(index) for index in range(3)))


def _masked(_: ir.Operation, operand: _Read) -> _Known | None:
    """`masked_fill(x, mask, number)`."""
    x, mask, number = (operand(index) for index in range(3))
    return _choice(mask, number, x)


def _choice(condition: _Known | None, x: _Known | None, y: _Known | None) -> Banded | None:
    if not isinstance(condition, Banded):
        return None
    truths = condition.where(bool), condition.where(lambda value: not value)
    picked = []
    for band, chosen in zip(truths, (x, y), strict=True):
        if isinstance(chosen, Banded) and band is not None and chosen.band == band:
            chosen = Index({}, chosen.inside)
        if not isinstance(chosen, Index) or chosen.axes:
            return None
        picked.append(chosen.number)
    return condition.map(lambda value: picked[0] if value else picked[1])


_STEPS: dict[str, Callable[[ir.Operation, _Read], _Known | None]] = {
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
