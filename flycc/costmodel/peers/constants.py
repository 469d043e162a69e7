"""Fitted constants of the peers, kept as data: benchmarks/costmodel_fit.py writes the file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

#: Half-widths of intervals, in cross-validated mean absolute errors: 80% of a normal distribution.
ERRORS_IN_INTERVAL = 1.6
#: Errors of few rows say little: each class's is drawn to this one, as if this many more rows had shown it.
USUAL_ERROR, USUAL_ROWS = 0.1, 10
#: Rows with fewer of M have their own error.
SMALL_M = 256


@dataclass(frozen=True, slots=True)
class Fitted:
    """Constants of one peer class, the rows they were fitted on, and mean absolute relative errors."""

    constants: dict[str, float]
    rows: int
    error: float
    #: Of rows left out of the fit, by whole shapes: with M below `SMALL_M`, and all others.
    held_out_error: tuple[float, float]

    def spread(self, m: int) -> float:
        """Relative half-width of the interval of a prediction."""
        shown = self.held_out_error[m >= SMALL_M] * self.rows + USUAL_ERROR * USUAL_ROWS
        return ERRORS_IN_INTERVAL * shown / (self.rows + USUAL_ROWS)


@cache
def fitted(peer: str) -> Fitted:
    """The constants of the class `family/name`. Raises KeyError where there is none."""
    entry = _table()[peer]
    return Fitted(entry["constants"], entry["rows"], entry["error"], tuple(entry["held_out_error"]))


@cache
def _table() -> dict[str, dict]:
    return json.loads(files(__package__).joinpath("constants.json").read_text())
