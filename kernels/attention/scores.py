"""From products of queries and keys to scores in units of ln 2, masked, in FlyDSL; and back, for the backward pass.

A lane has results of an MFMA along one column: of one query and several keys (`Place.along_keys`), or of one key and
several queries. Scores are float32 and have log2 e as a factor, so that p = 2^(score - highest) takes one v_exp_f32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.contracts.sdpa import MaskKind
from flycc.kernels.attention.features import Features
from flycc.kernels.common import vectors
from flycc.kernels.common.buffers import bounded
from flycc.kernels.common.machine import OFFSET_LIMIT

LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
#: Rows of a 32 x 32 result that a lane has, but for 4 (lane / 32); of a 16 x 16 result, but for 4 (lane / 16).
STEPS_32 = tuple(8 * (r // 4) + r % 4 for r in range(16))
STEPS_16 = (0, 1, 2, 3)
#: Neighbours along a column that a lane has, from a multiple of so many on.
NEIGHBOURS = 4

_LOWEST = -float.fromhex("0x1.fffffep127")
#: tanh(u) / u = 1 + z (c0 + z (c1 + ...)), z = u^2, within 2^-26 for |u| < `_TANH_NEAR`: a weighted least-squares fit.
_TANH = (-0.33333293, 0.13331729, -0.053766288, 0.020733997, -0.0058199195)
_TANH_NEAR = 0.6


@dataclass(frozen=True)
class Place:
    """Where a lane's results lie: number r is of query `first_query + query` and key `first_key + key`, to which
    `steps[r]` is to be added, to the key where `along_keys`, else to the query.

    `first_*` are the same in all lanes of a wave, and multiples of 4.
    """

    first_query: fx.Int32
    first_key: fx.Int32
    query: fx.Int32
    key: fx.Int32
    along_keys: bool = True
    steps: tuple[int, ...] = STEPS_32

    @classmethod
    def of(cls, first_query: fx.Int32, first_key: fx.Int32, lane: fx.Int32, along_keys: bool = True) -> Place:
        """Of a 32 x 32 result: S^T = K Q^T where `along_keys`, else S = Q K^T; `lane` is that of the wave."""
        column, row = lane % 32, lane // 32 * NEIGHBOURS
        query, key = (column, row) if along_keys else (row, column)
        return cls(first_query, first_key, query, key, along_keys)

    @property
    def of_column(self) -> fx.Int32:
        """The query or key that all of the lane's results are of."""
        return self.first_query + self.query if self.along_keys else self.first_key + self.key

    @property
    def of_rows(self) -> fx.Int32:
        """What a result's step is added to: its key or query."""
        return self.first_key + self.key if self.along_keys else self.first_query + self.query


@dataclass(frozen=True)
class Mask:
    """The mask [queries, keys] of a head, in memory; strides, 0 or more, are in elements.

    Lanes whose heads differ have `of_lane` elements more, up to `most`.
    """

    kind: MaskKind
    pointer: fx.Pointer  # to Int8 for bools
    query_stride: fx.Int64
    key_stride: fx.Int64
    queries: fx.Int32
    keys: fx.Int32
    of_lane: fx.Int32 | int = 0
    most: fx.Int64 | int = 0

    @property
    def size(self) -> int:
        """Of an element, in bytes."""
        return 1 if self.kind == "bool" else vectors.element_bytes(vectors.ELEMENTS[self.kind])

    def load(self, place: Place) -> list[fx.Vector]:
        """What the mask has for a lane's results, in groups of neighbours: float32, or int32 that are 0 or not.

        Those of queries or keys that do not exist are anything.
        """
        first_query, first_key = fx.Int64(place.first_query), fx.Int64(place.first_key)
        start = first_query * self.query_stride + first_key * self.key_stride
        last = fx.Int64(self.queries - place.first_query - 1) * self.query_stride
        last = last + fx.Int64(self.keys - place.first_key - 1) * self.key_stride + self.most
        size = fx.min(fx.max((last + 1) * self.size, fx.Int64(0)), fx.Int64(OFFSET_LIMIT))
        buffer = bounded(self.pointer + start, fx.Int32(fx.Uint32(size)))
        across, along = fx.Int32(self.query_stride), fx.Int32(self.key_stride)
        offset = (place.query * across + place.key * along + self.of_lane) * self.size
        groups = place.steps[::NEIGHBOURS]
        if not place.along_keys:
            return self._one_by_one(buffer, offset, across * self.size, groups)
        return either(
            self._in_words,
            lambda: [self._neighbours(buffer, offset, step) for step in groups],
            lambda: self._one_by_one(buffer, offset, along * self.size, groups),
            [
                fx.Vector.filled(NEIGHBOURS, 0, fx.Int32 if self.kind == "bool" else fx.Float32)
                for _ in groups
            ],
        )

    @property
    def _in_words(self) -> Any:
        """Whether neighbouring keys are neighbours in memory, in whole words of 4 bytes."""
        ends = fx.Int64(self.keys) | self.query_stride | self.of_lane
        address = fx.Int64(fx.ptrtoint(self.pointer))
        return (self.key_stride == 1) & (((ends * self.size | address) & 3) == 0)

    def _neighbours(self, buffer: Any, offset: fx.Int32, step: int) -> fx.Vector:
        if self.kind == "bool":
            word = fx.Int32(rocdl.raw_ptr_buffer_load(T.i32, buffer, offset, fx.Int32(step)))
            return fx.Vector.from_elements([word & (0xFF << 8 * i) for i in range(NEIGHBOURS)], fx.Int32)
        element = vectors.ELEMENTS[self.kind]
        return vectors.load(buffer, element, NEIGHBOURS, offset, step * self.size).to(fx.Float32)

    def _one_by_one(
        self, buffer: Any, offset: fx.Int32, stride: fx.Int32, groups: Sequence[int]
    ) -> list[fx.Vector]:
        return [
            fx.Vector.from_elements(
                [self._one(buffer, offset, stride * (step + i)) for i in range(NEIGHBOURS)],
                fx.Int32 if self.kind == "bool" else fx.Float32,
            )
            for step in groups
        ]

    def _one(self, buffer: Any, offset: fx.Int32, scalar_offset: fx.Int32) -> Any:
        if self.kind == "bool":
            return fx.Int32(fx.Int8(rocdl.raw_ptr_buffer_load(T.i8, buffer, offset, scalar_offset)))
        element = vectors.ELEMENTS[self.kind]
        return vectors.load(buffer, element, 1, offset, scalar_offset).to(fx.Float32)[0]


@flyc.jit
def either(condition: Any, then: Any, otherwise: Any, found: Any) -> Any:
    """What `then` gives where `condition`, which is the same in all lanes, else what `otherwise` gives: both as
    `found`, of which only the types matter."""
    if condition:
        found = then()
    else:
        found = otherwise()
    return found


@dataclass(frozen=True)
class Documents:
    """Documents of a batch's queries and keys: that of a lane's column, and a buffer of those along it."""

    of_column: fx.Int32
    along: Any

    @classmethod
    def of(
        cls, column: fx.Int32, across: fx.Pointer, columns: fx.Int32, along: fx.Pointer, rows: fx.Int32
    ) -> Documents:
        """`across` and `along` are int32 [columns] and [rows], for queries and keys or the other way around."""
        loaded = rocdl.raw_ptr_buffer_load(T.i32, bounded(across, columns * 4), column * 4, fx.Int32(0))
        return cls(fx.Int32(loaded), bounded(along, rows * 4))

    def load(self, place: Place) -> list[fx.Vector]:
        """Those of a lane's results, in groups of neighbours; 0 where there are none."""
        kind = fx.Vector.make_type(NEIGHBOURS, fx.Int32)
        offset = place.of_rows * 4
        groups = place.steps[::NEIGHBOURS]
        return [
            fx.Vector(rocdl.raw_ptr_buffer_load(kind, self.along, offset, fx.Int32(4 * step)))
            for step in groups
        ]


@dataclass(frozen=True)
class Beside:
    """What a lane's results take from memory, on its way."""

    mask: list[fx.Vector]
    documents: list[fx.Vector]


@dataclass(frozen=True)
class Band:
    """Keys that queries see: i + lower <= j <= i + upper, where the features have these, and j < keys.

    What is asked of tiles, from the first query or key to the last, is the same in all lanes if they are.
    """

    features: Features
    lower: fx.Int32
    upper: fx.Int32
    queries: fx.Int32
    keys: fx.Int32

    def keys_of(self, first: fx.Int32, last: fx.Int32) -> tuple[fx.Int32, fx.Int32]:
        """The first key that a query of the tile sees, and the end of those: none where it is not above the first."""
        start = fx.max(first + self.lower, fx.Int32(0)) if self.features.lower else fx.Int32(0)
        end = fx.min(last + self.upper + 1, self.keys) if self.features.upper else self.keys
        return start, end

    def queries_of(self, first: fx.Int32, last: fx.Int32) -> tuple[fx.Int32, fx.Int32]:
        """The first query that sees a key of the tile, and the end of those."""
        start = fx.max(first - self.upper, fx.Int32(0)) if self.features.upper else fx.Int32(0)
        end = fx.min(last - self.lower + 1, self.queries) if self.features.lower else self.queries
        return start, end

    def has_all(
        self, first_query: fx.Int32, last_query: fx.Int32, first_key: fx.Int32, last_key: fx.Int32
    ) -> Any:
        """Whether every query of the tile sees every key of it, as far as the band goes."""
        whole = last_key < self.keys
        if self.features.lower:
            whole = whole & (first_key >= last_query + self.lower)
        if self.features.upper:
            whole = whole & (last_key <= first_query + self.upper)
        return whole

    def steps(self, place: Place) -> tuple[fx.Int32, fx.Int32]:
        """The lowest and the highest step of a lane's results that are in the band."""
        column, rows = place.of_column, place.of_rows
        if place.along_keys:
            low = column + self.lower - rows if self.features.lower else fx.Int32(0)
            end = fx.min(column + self.upper, self.keys - 1) if self.features.upper else self.keys - 1
            return low, end - rows
        low = column - self.upper - rows if self.features.upper else fx.Int32(0)
        high = column - self.lower - rows if self.features.lower else fx.Int32(place.steps[-1])
        return low, (column < self.keys).select(high, fx.Int32(-1))


@dataclass(frozen=True)
class Scores:
    """What makes scores of a lane's results.

    `scale` must be above 0. `slope`, of the lane's head, is there with the feature alibi, `cap` with softcap; `mask`
    and `documents` as the features say.
    """

    features: Features
    band: Band
    scale: fx.Float32
    cap: fx.Float32
    slope: fx.Float32
    mask: Mask | None = None
    documents: Documents | None = None

    @property
    def unit(self) -> fx.Float32:
        """A score is so many times what `of` gives, which is products as they are where scores are linear in them."""
        return self.scale * LOG2_E if self.features.linear else fx.Float32(1.0)

    def load(self, place: Place) -> Beside:
        """Starts the loads of what `of` takes beside products."""
        mask = [] if self.mask is None else self.mask.load(place)
        return Beside(mask, [] if self.documents is None else self.documents.load(place))

    def of(
        self, products: fx.Vector, place: Place, beside: Beside, whole: bool = False
    ) -> tuple[fx.Vector, fx.Vector | None]:
        """Scores in `unit` of a lane's products, -inf where the query does not see the key, and with a softcap also
        d score / d (scale * product), both in float32.

        `whole` says that all pairs are in the band and exist.
        """
        scores, derivative = products, None
        if not self.features.linear:
            factor = self.scale * LOG2_E
            if self.features.softcap:
                scores, derivative = self._capped(products)
                factor = self.cap * LOG2_E
            scores = scores * factor
            if self.features.alibi:
                nearest = (place.first_key - place.first_query + place.key - place.query).to(fx.Float32)
                sign = 1 if place.along_keys else -1
                distances = [nearest + float(sign * step) for step in place.steps]
                distance = fx.Vector.from_elements(distances, fx.Float32)
                scores = fx.math.fma(distance, _splat(self.slope * LOG2_E, len(distances)), scores)
            if self.features.adds:
                scores = self._with_addends(scores, beside.mask)
        seen = self._seen(place, beside, whole)
        if seen is None:
            return scores, derivative
        hidden = fx.Float32(-math.inf)
        kept = [see.select(scores[i], hidden) for i, see in enumerate(seen)]
        return fx.Vector.from_elements(kept, fx.Float32), derivative

    def probabilities(self, scores: fx.Vector, lse: fx.Vector | fx.Float32) -> fx.Vector:
        """p of what `of` gave, without dropout; `lse` is `lse_in_units` of what the forward pass returned."""
        count = scores.numel
        lse = lse if isinstance(lse, fx.Vector) else _splat(lse, count)
        exponents = fx.math.fma(scores, _splat(self.unit, count), -lse)
        values = [exponents[i] for i in range(count)]
        if self.features.adds:
            # Numbers so large that lse is rounded by more than 1 must not give more than 1.
            values = [fx.min(value, fx.Float32(0.0)) for value in values]
        return fx.Vector.from_elements([exp2(value) for value in values], fx.Float32)

    def _capped(self, products: fx.Vector) -> tuple[fx.Vector, fx.Vector]:
        """tanh u, u = scale * product / cap, and 1 - tanh^2 u, both within some ulps of themselves.

        With r = 1 / (1 + e^2|u|) they are 1 - 2r and 4r (1 - r); the first cancels near 0, where there is `_TANH`.
        """
        u = products * (self.scale / self.cap)
        z = u * u
        near = _splat(_TANH[-1], u.numel)
        for coefficient in reversed(_TANH[:-1]):
            near = fx.math.fma(near, z, _splat(coefficient, u.numel))
        near = fx.math.fma(near * z, u, u)
        far, derivative = [], []
        for i in range(u.numel):
            size = abs(u[i])
            r = fx.Float32(rocdl.rcp(T.f32, (exp2(size * (2 * LOG2_E)) + 1.0).ir_value()))
            large = fx.Float32(fx.math.copysign(fx.math.fma(r, -2.0, 1.0), u[i]))
            far.append((size < _TANH_NEAR).select(near[i], large))
            derivative.append(r * 4.0 * (1.0 - r))
        return fx.Vector.from_elements(far, fx.Float32), fx.Vector.from_elements(derivative, fx.Float32)

    def _with_addends(self, scores: fx.Vector, groups: list[fx.Vector]) -> fx.Vector:
        """Finite addends stay finite in units of ln 2, so that rows of nothing but the lowest number are not empty."""
        addends = [group[i] for group in groups for i in range(NEIGHBOURS)]
        if self.features.mask == "f16":
            mask = fx.Vector.from_elements(addends, fx.Float32)
            return fx.math.fma(mask, _splat(LOG2_E, scores.numel), scores)
        lowest = fx.Float32(_LOWEST)
        sums = []
        for i, addend in enumerate(addends):
            exact = scores[i] + addend
            finite = fx.max(fx.math.fma(addend, LOG2_E, scores[i]), lowest)
            sums.append((exact == -math.inf).select(exact, finite))
        return fx.Vector.from_elements(sums, fx.Float32)

    def _seen(self, place: Place, beside: Beside, whole: bool) -> list[Any] | None:
        """Whether the query sees the key, for each result; None where all do."""
        conditions = []
        if not whole:
            low, high = self.band.steps(place)
            lowest = self.features.lower if place.along_keys else self.features.upper
            inside = [high >= step for step in place.steps]
            if lowest:
                inside = [inner & (low <= step) for inner, step in zip(inside, place.steps, strict=True)]
            conditions.append(inside)
        if self.features.mask == "bool":
            conditions.append([group[i] != 0 for group in beside.mask for i in range(NEIGHBOURS)])
        if self.documents is not None:
            own = self.documents.of_column
            conditions.append([group[i] == own for group in beside.documents for i in range(NEIGHBOURS)])
        if not conditions:
            return None
        seen = conditions[0]
        for more in conditions[1:]:
            seen = [a & b for a, b in zip(seen, more, strict=True)]
        return seen


def lse_in_units(lse: fx.Float32) -> fx.Float32:
    """A row's `lse` in units of ln 2, for `Scores.probabilities`: rows that see no key get 0 from it."""
    return (lse == -math.inf).select(fx.Float32(math.inf), lse * LOG2_E)


def exp2(value: fx.Float32) -> fx.Float32:
    """v_exp_f32: within 1 ulp; below 2^-126 it is 0."""
    return fx.Float32(rocdl.exp2(T.f32, value.ir_value()))


def _splat(value: fx.Float32 | float, count: int) -> fx.Vector:
    return fx.Vector.filled(count, value, fx.Float32)
