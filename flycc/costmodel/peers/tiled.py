"""Time of a kernel that computes a matrix product tile by tile: the one equation behind every GEMM peer.

A workgroup computes one tile of the result, or a K-split of it. Compute units take their workgroups in rounds; a
workgroup fills its pipeline, takes its steps along K, and stores:

    step    = norm(serial, resident * shared)
    serial  = (step_us + operand bytes / wg_bytes_per_us) * distance + lag * MFMA time        of one workgroup alone
    shared  = norm(MFMA time / mfma_efficiency, operand bytes / cu_bytes_per_us)              of a compute unit
    body    = rounds * (steps * step + prologue_us + resident * stored bytes / store_bytes_per_us)
    time    = launch_us + norm(body, bytes that must cross HBM / hbm_bytes_per_us) + reduction of K-splits

`norm(a, b) = (a^4 + b^4)^(1/4)`: limits that overlap, softly. `MFMA time` is at the peak clock, so that
`mfma_efficiency` holds what power takes away. `distance` falls from 1 towards `NEAR` for operands of a few MB in all:
their loads are answered by L2 and not from farther away. Everything is numpy arrays that broadcast, so that all tiles
of all shapes are computed at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flycc.costmodel.machine import MI350, Machine

Array = NDArray[np.float64]

#: [M] Bytes per microsecond of HBM that tuned kernels of every class reach: 5.8 TB/s.
HBM_BYTES_PER_US = 5.8e6
#: [S] Bytes per microsecond of the bus of a compute unit: 64 bytes a clock.
CU_BYTES_PER_US = 64 * MI350.hypotheses[0].peak_ghz * 1e3
#: [M] Half of the way from near to far memory, in bytes of both operands, and what near memory leaves of a latency.
NEAR_BYTES = 1.2e6
NEAR = 0.05
#: Residency that the resources other than LDS (registers, waves) leave to kernels of this kind.
MAX_RESIDENT = 4


@dataclass(frozen=True, slots=True)
class Format:
    """Element types of a product: bytes of an operand element, scales included, and MFMA work of a clock."""

    name: str
    element_bytes: float
    macs_per_clk_per_simd: int

    def mfma_us(self, macs: Array, machine: Machine = MI350) -> Array:
        """Time of `macs` multiply-adds on one compute unit at the peak clock, which every hypothesis shares."""
        clk = macs / self.macs_per_clk_per_simd / machine.simds_per_cu
        return clk / machine.hypotheses[0].peak_ghz / 1e3


BF16 = Format("bf16", 2, 512)
FP8 = Format("fp8", 1, 1024)
INT8 = Format("int8", 1, 1024)
MXFP8 = Format("mxfp8", 1 + 1 / 32, 1024)
MXFP4 = Format("mxfp4", 0.5 + 1 / 32, 2048)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles as arrays that broadcast: elements of M, N and K of a step, K-splits, and LDS buffers of a step."""

    m: Array
    n: Array
    k: Array
    split: Array
    stages: Array

    @classmethod
    def of(cls, rows: ArrayLike) -> Tiles:
        """From rows of (m, n, k, split, stages)."""
        return cls(*np.asarray(rows, np.float64).T)

    def resident(self, element_bytes: float, machine: Machine = MI350) -> Array:
        """Workgroups whose buffers fit the LDS of a compute unit together."""
        lds = (self.m + self.n) * self.k * self.stages * element_bytes
        return np.clip(machine.lds_bytes_per_cu // lds, 1, MAX_RESIDENT)


@dataclass(frozen=True, slots=True)
class Work:
    """What a launch has to do under some tiles: workgroups, rows and columns that a tile really loads, K, bytes."""

    workgroups: Array
    rows: Array
    columns: Array
    k: Array
    operand_bytes: Array
    results: Array
    result_bytes: float | Array = 2.0

    @classmethod
    def dense(
        cls, m: Array, n: Array, k: Array, tiles: Tiles, fmt: Format, result_bytes: float | Array = 2.0
    ) -> Work:
        """One product of [m, k] by [k, n]; loads beyond its edges cost nothing."""
        return cls(
            workgroups=np.ceil(m / tiles.m) * np.ceil(n / tiles.n) * tiles.split,
            rows=np.minimum(tiles.m, m),
            columns=np.minimum(tiles.n, n),
            k=k,
            operand_bytes=(m + n) * k * fmt.element_bytes,
            results=m * n,
            result_bytes=result_bytes,
        )


@dataclass(frozen=True, slots=True)
class Constants:
    """What tells one implementation from another. Bytes per us are of one workgroup or one compute unit."""

    launch_us: float
    mfma_efficiency: float
    cu_bytes_per_us: float
    step_us: float
    wg_bytes_per_us: float
    lag: float
    prologue_us: float
    store_bytes_per_us: float
    split_us: float
    split_bytes_per_us: float


#: Where a fit starts and what it is drawn to: round values of the machine's own limits.
START = Constants(
    launch_us=2.5,
    mfma_efficiency=0.7,
    cu_bytes_per_us=80e3,  # 33 bytes a clock, half of the bus of a compute unit
    step_us=0.1,
    wg_bytes_per_us=150e3,  # 64 bytes a clock
    lag=0.1,
    prologue_us=0.5,
    store_bytes_per_us=17e3,
    split_us=0.5,
    split_bytes_per_us=1.5e6,
)


def norm(*limits: Array) -> Array:
    """Soft maximum of limits that overlap."""
    powers: Array = np.zeros(()) + sum(limit**4 for limit in limits)
    return powers**0.25


def total(parts: Mapping[str, Array]) -> Array:
    """The whole of its parts."""
    whole: Array = np.zeros(()) + sum(parts.values())
    return whole


def parts_us(
    work: Work, tiles: Tiles, fmt: Format, c: Constants, machine: Machine = MI350
) -> dict[str, Array]:
    """Modelled microseconds of each part; their sum is the time."""
    steps = np.ceil(np.ceil(work.k / tiles.k) / tiles.split)
    load = np.ceil(work.workgroups / machine.cus)  # workgroups of the busiest compute unit
    resident = np.minimum(tiles.resident(fmt.element_bytes, machine), load)
    rounds = np.ceil(load / resident)

    mfma = fmt.mfma_us(tiles.m * tiles.n * tiles.k, machine)
    operands = (work.rows + work.columns) * tiles.k * fmt.element_bytes
    distance = NEAR + (1 - NEAR) * work.operand_bytes / (work.operand_bytes + NEAR_BYTES)
    latency = (c.step_us + operands / c.wg_bytes_per_us) * distance + c.lag * mfma
    busy = resident * mfma / c.mfma_efficiency
    stream = resident * operands / c.cu_bytes_per_us
    in_steps = rounds * steps * norm(latency, busy, stream)

    prologue = rounds * c.prologue_us + 0 * in_steps
    store = (
        rounds * resident * tiles.m * work.columns * work.result_bytes / c.store_bytes_per_us + 0 * in_steps
    )
    body = in_steps + prologue + store
    crossing = (work.operand_bytes + work.results * work.result_bytes) / HBM_BYTES_PER_US
    reduction = c.split_us + 4 * work.results * tiles.split / c.split_bytes_per_us
    weight = latency**4 + busy**4 + stream**4
    return {
        "launch": c.launch_us + 0 * body,
        "prologue": prologue,
        "latency": in_steps * latency**4 / weight,
        "mfma": in_steps * busy**4 / weight,
        "operands": in_steps * stream**4 / weight,
        "store": store,
        "hbm": norm(body, crossing) - body,
        "split-k": np.where(tiles.split > 1, reduction, 0.0) + 0 * body,
    }


def time_us(work: Work, tiles: Tiles, fmt: Format, c: Constants, machine: Machine = MI350) -> Array:
    """Modelled microseconds."""
    return total(parts_us(work, tiles, fmt, c, machine))
