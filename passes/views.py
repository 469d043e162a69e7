"""Which element of a tensor each element of a view of it is: views as lists of strided factors.

A dimension of a view is a run of factors, from the outermost to the innermost. Each is a size and a stride, in elements
of the tensor that is viewed, taken as row-major; stride 0 repeats. So [N, K] with a scale for each 32 elements along K,
taken from scales [N, K / 32], is `[(N, K / 32)], [(K / 32, 1), (32, 0)]`. Reshapes, transposes and expands are exact on
this form, where strides alone would not do: the last dimension above has no one stride.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flycc.dialects.tensor import Dim, Dims

_PRODUCT = re.compile(r"\w+(\*\w+)*")


@dataclass(frozen=True, slots=True)
class Extent:
    """A size: a number times symbols, each as often as it is there. 0 is no size, but the stride of what repeats."""

    number: int = 1
    symbols: tuple[str, ...] = ()

    @classmethod
    def of(cls, dim: Dim) -> Extent | None:
        """That of a dimension; None where nothing is known of it."""
        if dim is None or isinstance(dim, int):
            return None if dim is None else cls(dim)
        # What is no product of names, `s0 + 1` say, counts as one name.
        parts = dim.split("*") if _PRODUCT.fullmatch(dim) else [dim]
        return product(cls(int(part)) if part.isdecimal() else cls(1, (part,)) for part in parts)

    def __mul__(self, other: Extent) -> Extent:
        number = self.number * other.number
        return Extent(number, tuple(sorted(self.symbols + other.symbols)) if number else ())

    def over(self, other: Extent) -> Extent | None:
        """The quotient, if this provably is a multiple of `other`."""
        left, right = Counter(self.symbols), Counter(other.symbols)
        if not other.number or self.number % other.number or right - left:
            return None
        return Extent(self.number // other.number, tuple(sorted((left - right).elements())))


ONE, REPEATS = Extent(), Extent(0)


def product(extents: Iterable[Extent]) -> Extent:
    """The product of extents."""
    total = ONE
    for extent in extents:
        total *= extent
    return total


@dataclass(frozen=True, slots=True)
class Factor:
    """`size` elements that lie `stride` apart."""

    size: Extent
    stride: Extent


@dataclass(frozen=True, slots=True)
class View:
    """The factors of each dimension; see the module. Methods return None for what they cannot express."""

    dims: tuple[tuple[Factor, ...], ...]

    @classmethod
    def whole(cls, dims: Dims) -> View | None:
        """A row-major tensor as it is."""
        sizes = [Extent.of(dim) for dim in dims]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes) or any(size.number == 0 for size in known):
            return None
        strides = [product(known[index + 1 :]) for index in range(len(known))]
        return cls(tuple(_canonical([Factor(*pair)]) for pair in zip(known, strides, strict=True)))

    def size(self, dims: slice) -> Extent:
        """How many elements some of the dimensions make."""
        return product(factor.size for factors in self.dims[dims] for factor in factors)

    def permute(self, order: Sequence[int]) -> View:
        """Dimension i of the result is dimension `order[i]`."""
        return View(tuple(self.dims[dim] for dim in order))

    def reshape(self, dims: Dims) -> View | None:
        """The same elements in the same order, in other dimensions."""
        left = [factor for dim in self.dims for factor in dim]
        grouped: list[tuple[Factor, ...]] = []
        for dim in dims:
            wanted, taken = Extent.of(dim), list[Factor]()
            while wanted != ONE:
                if wanted is None or not left:
                    return None
                factor = left.pop(0)
                rest = wanted.over(factor.size)
                if rest is None:
                    inner = factor.size.over(wanted)
                    if inner is None:
                        return None
                    left.insert(0, Factor(inner, factor.stride))
                    factor, rest = Factor(wanted, factor.stride * inner), ONE
                taken.append(factor)
                wanted = rest
            grouped.append(_canonical(taken))
        return None if left else View(tuple(grouped))

    def expand(self, dims: Dims) -> View | None:
        """Dimensions of one element, and new ones in front, repeated to make `dims`."""
        padded = (*(() for _ in range(len(dims) - len(self.dims))), *self.dims)
        expanded = []
        for factors, dim in zip(padded, dims, strict=True):
            size = Extent.of(dim)
            if size is None:
                return None
            if product(factor.size for factor in factors) == size:
                expanded.append(factors)
            elif not factors:
                expanded.append(_canonical([Factor(size, REPEATS)]))
            else:
                return None
        return View(tuple(expanded))

    def factors(self) -> tuple[Factor, ...]:
        """Those of all dimensions as one."""
        return _canonical([factor for dim in self.dims for factor in dim])


def _canonical(factors: Sequence[Factor]) -> tuple[Factor, ...]:
    """As few factors as there can be: without sizes of 1, and neighbours that make one run made one."""
    merged: list[Factor] = []
    for factor in factors:
        if factor.size == ONE:
            continue
        if merged and merged[-1].stride == factor.stride * factor.size:
            factor = Factor(merged.pop().size * factor.size, factor.stride)
        merged.append(factor)
    return tuple(merged)
