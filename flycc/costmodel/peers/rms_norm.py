"""Peers of RMS normalisation of M rows of N: what crosses memory, and what rows read element by element cost.

A row that fits a compute unit's registers as float32 is read once and written once; a longer one is read a second time.
Where only one row fits, nothing is read while it is written, and memory is slower.
Loads are wide where rows start at a multiple of `VECTOR` elements; elsewhere "aten" takes element by element, which is
then the limit, whatever their size; "flydsl" keeps wide loads. A row is one workgroup's: fewer rows than compute units
leave the others idle, and those that work have `CU_BYTES_PER_US` each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flycc.costmodel.machine import MI350
from flycc.costmodel.peers.constants import Fitted, fitted
from flycc.costmodel.peers.products import PeerPrediction
from flycc.costmodel.peers.tiled import CU_BYTES_PER_US, HBM_BYTES_PER_US, Array
from flycc.costmodel.peers.tiled import total as whole
from flycc.costmodel.prediction import Interval

SOURCE = "operator tables published with PyTorch's FlyDSL kernels"
ELEMENT_BYTES = {"bf16": 2, "f16": 2, "f32": 4}
#: Elements that a lane loads at once.
VECTOR = 4
#: Longest row of which a compute unit holds two at once: three quarters of its 512 KB of registers, as float32.
OVERLAP_ELEMENTS = 49152


@dataclass(frozen=True, slots=True)
class Constants:
    """`element_ps` and `row_ns` are of loads element by element, over the whole device."""

    launch_us: float
    bytes_per_us: float
    #: The same of rows longer than `OVERLAP_ELEMENTS`.
    long_bytes_per_us: float
    #: Longest row, in elements, that is read only once.
    cached_elements: float
    element_ps: float
    row_ns: float


#: What is known of both before any fit. [S] The shortest kernels take 2 to 3.5 us; ATen's kernel keeps no row; half of
#: a compute unit's registers hold 65,536. [?] Element by element there are `VECTOR` times as many requests, of which as
#: many are in flight: that many times the time of wide ones, of 2 bytes.
START = {
    "aten": Constants(
        launch_us=2.5,
        bytes_per_us=HBM_BYTES_PER_US,
        long_bytes_per_us=HBM_BYTES_PER_US,
        cached_elements=32768,
        element_ps=VECTOR * 2 * 2 / HBM_BYTES_PER_US * 1e6,
        row_ns=1.0,
    ),
    "flydsl": Constants(2.5, HBM_BYTES_PER_US, HBM_BYTES_PER_US, 65536, 0.0, 0.0),
}


def parts_us(m: Array, n: Array, element_bytes: Array, c: Constants) -> dict[str, Array]:
    """Modelled microseconds of each part."""
    row_bytes = m * n * element_bytes
    working = np.minimum(m, MI350.cus)
    bytes_per_us = np.minimum(
        np.where(n > OVERLAP_ELEMENTS, c.long_bytes_per_us, c.bytes_per_us), working * CU_BYTES_PER_US
    )
    again = np.where(n > c.cached_elements, row_bytes, 0.0) / bytes_per_us
    stream = 2 * row_bytes / bytes_per_us
    one_by_one = (m * n * c.element_ps * 1e-6 + m * c.row_ns * 1e-3) * MI350.cus / working
    by_element = np.where(n % VECTOR, one_by_one, 0.0)
    return {
        "launch": c.launch_us + 0 * stream,
        "memory": stream,
        "second read": again,
        "loads by element": np.maximum(by_element - stream - again, 0.0),
    }


def predict(peer: str, m: int, n: int, dtype: str) -> PeerPrediction:
    """Modelled time of `m` rows of `n` elements."""
    found = fitted(f"rms_norm/{peer}")
    size = np.array([ELEMENT_BYTES[dtype]], np.float64)
    parts = parts_us(np.array([m * 1.0]), np.array([n * 1.0]), size, Constants(**found.constants))
    return simple_prediction(peer, parts, found, {"M": m, "N": n})


def simple_prediction(
    peer: str, parts: dict[str, Array], found: Fitted, sizes: dict[str, int]
) -> PeerPrediction:
    """From parts of one problem of a class without tiles."""
    total = float(whole(parts)[0])
    shares = {name: float(values[0]) / total for name, values in parts.items()}
    spread = found.spread(sizes["M"], known_tile=True)
    time = Interval(total / (1 + spread), total, total * (1 + spread))
    return PeerPrediction(peer, SOURCE, time, shares, notes=found.outside(sizes))
