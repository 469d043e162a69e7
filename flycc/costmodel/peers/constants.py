"""Fitted constants of the peers, kept as data: benchmarks/costmodel_fit.py writes the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

#: Share of rows that intervals are to hold.
COVERAGE = 0.8
#: Few rows say little of a spread: each is drawn to this one, as if this many more rows had shown it.
USUAL_SPREAD, USUAL_ROWS = 0.16, 10
#: Rows with fewer of M have their own spread.
SMALL_M = 256


@dataclass(frozen=True, slots=True)
class Spread:
    """How far times lay from predictions that had not seen them.

    `ratio` is the larger of time/prediction and its inverse, less 1, that `COVERAGE` of `rows` keep to.
    """

    rows: int
    ratio: float

    @property
    def half_width(self) -> float:
        """Relative half-width of an interval."""
        return (self.ratio * self.rows + USUAL_SPREAD * USUAL_ROWS) / (self.rows + USUAL_ROWS)


@dataclass(frozen=True, slots=True)
class Fitted:
    """Constants of one peer class, the rows they were fitted on, and mean absolute relative errors."""

    constants: dict[str, float]
    rows: int
    error: float
    #: Of rows left out of the fit, by whole shapes: with M below `SMALL_M`, and all others.
    held_out_error: tuple[float, float]
    #: The same two, of tiles that are known, and of tiles that the class chooses: a wrong choice costs too.
    known: tuple[Spread, Spread]
    chosen: tuple[Spread, Spread]
    #: size -> least and greatest of the rows.
    ranges: dict[str, tuple[int, int]]

    def spread(self, m: int, *, known_tile: bool) -> float:
        """Relative half-width of the interval of a prediction."""
        return (self.known if known_tile else self.chosen)[m >= SMALL_M].half_width

    def outside(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """A note if `sizes` are not within those of the rows: nothing is known of the error there."""
        beyond = [
            f"{name} {size:,} (fitted {low:,} to {high:,})"
            for name, size in sizes.items()
            for low, high in [self.ranges[name]]
            if not low <= size <= high
        ]
        return (f"outside the rows fitted: {', '.join(beyond)}",) if beyond else ()


@cache
def fitted(peer: str) -> Fitted:
    """The constants of the class `family/name`. Raises KeyError where there is none."""
    entry = _table()[peer]
    (known_few, known_many), (chosen_few, chosen_many) = (
        [Spread(**part) for part in entry["spread"][kind]] for kind in ("known tile", "chosen tile")
    )
    ranges = {name: (low, high) for name, (low, high) in entry["ranges"].items()}
    held_out = tuple(entry["held_out_error"])
    known, chosen = (known_few, known_many), (chosen_few, chosen_many)
    return Fitted(entry["constants"], entry["rows"], entry["error"], held_out, known, chosen, ranges)


@cache
def _table() -> dict[str, dict]:
    return json.loads(files(__package__).joinpath("constants.json").read_text())
