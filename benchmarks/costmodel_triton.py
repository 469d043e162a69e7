"""Like with like: Triton's matrix products, compiled here, emulated in part, modelled; beside Triton's published times.

`flycc bench costmodel` prints it where Triton is installed.

The published kernels were tuned over tiles and stages that nobody lists, so the time modelled is that of the best of
`triton_products.CONFIGS`. Nothing in the model was calibrated on these rows, nor on any kernel of Triton's. The shapes'
rows beyond M are computed too, as a tile of 16 does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from flycc.benchmarks.costmodel_data import products
from flycc.benchmarks.triton_products import best
from flycc.costmodel import Interval


@dataclass(frozen=True, slots=True)
class Row:
    """A shape, the published time and the best modelled one, in us."""

    m: int
    n: int
    k: int
    published_us: float
    modelled_us: Interval
    config: str

    @property
    def ratio(self) -> float:
        return self.modelled_us.typical / self.published_us


def measure() -> Iterator[Row]:
    """Row after row of the published bf16 products."""
    for row in products():
        if row.key == "gemm/triton/bf16":
            sizes = (row.problem.m, row.problem.n, row.problem.k)
            config, found = best(*sizes)
            yield Row(*sizes, row.us, found.time, str(config))


def report(rows: Iterable[Row]) -> dict[str, Any]:
    """The rows and their mean absolute errors, as plain data."""
    found = [{**asdict(row), "ratio": row.ratio} for row in rows]
    many, few = ([r for r in found if (r["m"] >= 256) == large] for large in (True, False))
    errors = {
        name: float(np.mean([abs(r["ratio"] - 1) for r in part]))
        for name, part in (("M >= 256", many), ("M < 256", few))
        if part
    }
    return {"modelled": True, "rows": found, "mean_absolute_error": errors}
