"""Peers of top-k of M rows of N: a host floor, rounds of rows, and how long a row takes.

`flydsl` has two ways. "register" keeps rows in registers and takes K maxima: memory, then K times a scan. "radix"
gives a row to a workgroup whose LDS holds the result, so that a compute unit works on fewer rows at once the larger
K is. ATen takes a radix selection in passes over all rows, longer rows by several workgroups that must agree, and a
sort. All that is fitted is of float32. Fewer workgroups than compute units leave the others idle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flycc.costmodel.machine import MI350
from flycc.costmodel.peers.constants import fitted
from flycc.costmodel.peers.products import PeerPrediction
from flycc.costmodel.peers.rms_norm import simple_prediction
from flycc.costmodel.peers.tiled import CU_BYTES_PER_US, HBM_BYTES_PER_US, Array

ELEMENT_BYTES = {"f32": 4, "i32": 4, "bf16": 2, "f16": 2}
#: The type of all rows fitted.
FITTED_DTYPE = "f32"
_FITTED_BYTES = ELEMENT_BYTES[FITTED_DTYPE]
#: [S] K that the register way takes, and the longest row.
REGISTER_K = (2, 4, 8, 16)
REGISTER_N = 8192
#: Resident workgroups of the radix way: up to this K, so many in a compute unit.
RESIDENT = ((128, 4), (512, 2))
#: [S] ATen: elements that one workgroup takes at most, and the sizes that it sorts results in.
WORKGROUP_ELEMENTS = 16384
SORT_BUCKETS = (32, 128, 1024, 4096)


@dataclass(frozen=True, slots=True)
class RegisterConstants:
    """The host's floor, a launch, and the picoseconds of one maximum over the device, for each element of a row."""

    floor_us: float
    launch_us: float
    scan_ps: float


@dataclass(frozen=True, slots=True)
class RadixConstants:
    """A row's time alone is `row_us + element_ns * N`; `loaded` multiplies it where every compute unit has rows."""

    launch_us: float
    row_us: float
    element_ns: float
    loaded: float


@dataclass(frozen=True, slots=True)
class AtenConstants:
    """Over the whole device: picoseconds of an element, nanoseconds of a row, and of one shared by several workgroups;
    `sort_us` is that of one doubling of the bucket that the results are sorted in."""

    launch_us: float
    sort_us: float
    element_ps: float
    row_ns: float
    shared_row_ns: float


#: What is known before any fit, of the machine and of no time of these kernels. [S] 18 us through an eager op, 2 to
#: 3.5 us of the shortest kernels. [?] A maximum of the register way is three VALU instructions an element; radix
#: selection has four passes of 8 bits, each some microseconds of barriers, and a clock of a compute unit an element.
_SCAN_PS = 3e3 / (MI350.cus * MI350.simds_per_cu * 16 * 2.4)
_PASSES, _PASS_US = 4, 3.0
_ELEMENT_NS = _PASSES / 2.4
_REGISTER = RegisterConstants(floor_us=18.0, launch_us=2.5, scan_ps=_SCAN_PS)
_RADIX = RadixConstants(launch_us=18.0, row_us=_PASSES * _PASS_US, element_ns=_ELEMENT_NS, loaded=1.0)
START = {
    "register": _REGISTER,
    "register-deterministic": _REGISTER,
    "radix": _RADIX,
    "radix-deterministic": _RADIX,
    "aten": AtenConstants(
        launch_us=18.0,
        sort_us=2.5,
        element_ps=1e3 * _ELEMENT_NS / MI350.cus,
        row_ns=1e3 * _PASSES * _PASS_US / MI350.cus / 8,
        shared_row_ns=1e3 * _PASSES * _PASS_US / MI350.cus,
    ),
}


def register_us(m: Array, n: Array, k: Array, c: RegisterConstants) -> dict[str, Array]:
    """Modelled microseconds of each part."""
    working = np.minimum(m, MI350.cus)
    memory = m * n * _FITTED_BYTES / np.minimum(HBM_BYTES_PER_US, working * CU_BYTES_PER_US)
    scan = m * n * k * c.scan_ps * 1e-6 * MI350.cus / working
    device = c.launch_us + memory + scan
    return {
        "launch": c.launch_us + np.maximum(c.floor_us - device, 0.0),
        "memory": memory,
        "selection": scan,
    }


def radix_us(m: Array, n: Array, k: Array, c: RadixConstants) -> dict[str, Array]:
    """Modelled microseconds of each part."""
    resident = np.select([k <= most for most, _ in RESIDENT], [float(count) for _, count in RESIDENT], 1.0)
    load = m / MI350.cus
    rounds = np.maximum(load / resident, 1.0)
    alone = c.row_us + c.element_ns * n * 1e-3
    return {
        "launch": c.launch_us + 0 * alone,
        "selection": rounds * alone * np.where(load > 1, c.loaded, 1.0),
    }


def aten_us(m: Array, n: Array, k: Array, c: AtenConstants) -> dict[str, Array]:
    """Modelled microseconds of each part."""
    bucket = np.select(
        [k <= most for most in SORT_BUCKETS], [float(most) for most in SORT_BUCKETS], SORT_BUCKETS[-1]
    )
    idle = MI350.cus / np.minimum(m * np.ceil(n / WORKGROUP_ELEMENTS), MI350.cus)
    row_ns = c.row_ns + np.where(n > WORKGROUP_ELEMENTS, c.shared_row_ns, 0.0)
    return {
        "launch": c.launch_us + 0 * n,
        "memory": m * n * c.element_ps * 1e-6 * idle,
        "selection": m * row_ns * 1e-3 * idle,
        "sort": c.sort_us * np.log2(bucket / 16),
    }


WAYS: dict[str, tuple[Callable[..., dict[str, Array]], type]] = {
    "register": (register_us, RegisterConstants),
    "register-deterministic": (register_us, RegisterConstants),
    "radix": (radix_us, RadixConstants),
    "radix-deterministic": (radix_us, RadixConstants),
    "aten": (aten_us, AtenConstants),
}


def way(n: int, k: int) -> str:
    """Which of its two ways `flydsl` takes."""
    return "register" if k in REGISTER_K and n <= REGISTER_N else "radix"


def predict(peer: str, m: int, n: int, k: int) -> PeerPrediction:
    """Modelled time of the largest `k` of each of `m` rows of `n` float32. `peer` is "aten", "flydsl" or
    "flydsl-deterministic"."""
    name = "aten" if peer == "aten" else peer.replace("flydsl", way(n, k))
    found = fitted(f"topk/{name}")
    function, kind = WAYS[name]
    sizes = {"M": m, "N": n, "K": k}
    parts = function(*(np.array([size * 1.0]) for size in sizes.values()), kind(**found.constants))
    return simple_prediction(peer, parts, found, sizes)
