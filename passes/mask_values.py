"""What a tensor that masks are made of can be known to be: a sum of indices, or one value in a band and one outside.

Axes are counted from the end, so that dimensions put in front change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from flycc.passes.linear_sizes import Linear


@dataclass(frozen=True, slots=True)
class Band:
    """The elements (i, j) of the last two axes with i + lower <= j <= i + upper; None is no limit."""

    lower: Linear | None = None
    upper: Linear | None = None

    def __and__(self, other: Band) -> Band | None:
        """What is in both; None where it is not known which limits are the tighter ones."""
        limits = []
        for mine, theirs, sign in ((self.lower, other.lower, 1), (self.upper, other.upper, -1)):
            if mine is None or theirs is None:
                limits.append(mine or theirs)
                continue
            ahead = mine.plus(theirs, -1).known
            if ahead is None:
                return None
            limits.append(mine if sign * ahead >= 0 else theirs)
        return Band(*limits)

    def outside(self) -> Band | None:
        """All other elements, if they are a band."""
        if self.lower is None and self.upper is not None:
            return Band(lower=self.upper.plus(1))
        if self.upper is None and self.lower is not None:
            return Band(upper=self.lower.plus(-1))
        return None

    def shifted(self, by: Linear | float) -> Band:
        """Both limits with `by` added."""
        return Band(*(None if limit is None else limit.plus(by) for limit in (self.lower, self.upper)))

    def transposed(self) -> Band:
        """The elements (j, i)."""
        return Band(
            *(None if limit is None else Linear().plus(limit, -1) for limit in (self.upper, self.lower))
        )

    def within(self, queries: Linear | None, keys: Linear | None) -> Band:
        """The same of that many queries and keys, without limits that leave out none of them."""
        lower, upper = self.lower, self.upper
        if upper is not None and keys is not None and upper.plus(keys, -1).is_at_least(-1):
            upper = None
        if lower is not None and queries is not None:
            last = lower.plus(queries).known
            lower = None if last is not None and last <= 1 else lower
        return Band(lower, upper)


@dataclass(frozen=True, slots=True)
class Index:
    """At each element the sum of `number` and of its positions along axes, each times a factor."""

    axes: Mapping[int, float] = field(default_factory=dict)
    number: Linear = field(default_factory=Linear)

    @classmethod
    def of(cls, number: float) -> Index:
        """The same number at each element."""
        return cls({}, Linear(number))

    @property
    def everywhere(self) -> float | None:
        """The number that is at each element, where there is one."""
        return None if self.axes else self.number.known

    def plus(self, other: Index, factor: float) -> Index:
        """`self + factor * other`."""
        axes = dict(self.axes)
        for axis, times in other.axes.items():
            axes[axis] = axes.get(axis, 0) + factor * times
        kept = {axis: times for axis, times in axes.items() if times}
        return Index(kept, self.number.plus(other.number, factor))


@dataclass(frozen=True, slots=True)
class Banded:
    """One value in a band and another outside; None for values in the band that are not known."""

    band: Band
    inside: float | None
    outside: float

    def map(self, function: Callable[[float], float]) -> Banded:
        """`function` of every element."""
        inside = None if self.inside is None else function(self.inside)
        return replace(self, inside=inside, outside=function(self.outside))

    def forms(self) -> list[Banded]:
        """The same in each way to say it, if all values are known: two where what is outside is a band, too."""
        if self.inside is None:
            return []
        other = self.band.outside()
        return [self] if other is None else [self, Banded(other, self.outside, self.inside)]

    def where(self, chosen: Callable[[float], bool]) -> Band | None:
        """The elements whose value is `chosen`, if they are a band."""
        if self.inside is None:
            return None
        if chosen(self.inside):
            return Band() if chosen(self.outside) else self.band
        return self.band.outside() if chosen(self.outside) else None


Known = Index | Banded
