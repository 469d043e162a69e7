"""Every configuration of the GEMM family that is worth trying on a problem."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from flycc.contracts import GemmProblem
from flycc.kernels.common.machine import COMPUTE_UNITS
from flycc.kernels.gemm.config import (
    FRAGMENT,
    MAX_SPLITS,
    MFMA_K,
    MFMA_MN,
    PART_ROWS,
    RINGS,
    GemmConfig,
    divided,
    product_columns,
)

#: As fast as the ring of the same tile that is chosen, by the cost model, with more registers or LDS.
_OTHER_RINGS = (
    GemmConfig(256, 256, 64, 2, 4, stages_m=2, stages_n=2, schedule="ahead"),
    GemmConfig(256, 256, 64, 2, 4, stages_m=3, stages_n=2),
)
#: (tile_m, tile_n, waves_m, waves_n) of workgroups that stage tiles in LDS: each wave has a square, or near it.
_STAGED = (
    (32, 32, 1, 1),
    (32, 64, 1, 2),
    (32, 128, 1, 4),
    (64, 32, 2, 1),
    (64, 64, 2, 2),
    (64, 128, 2, 2),
    (128, 64, 2, 2),
    (128, 128, 2, 2),
    (128, 256, 2, 4),
    (256, 128, 4, 2),
)
_STAGED_K = (32, 64, 128)
#: (tile_m, tile_n) of workgroups whose waves load operands straight from memory and share K.
_DIRECT = ((16, 16), (16, 32), (16, 64), (32, 32), (32, 64), (64, 64))
_DIRECT_K = (64, 96, 128)
_DIRECT_WAVES = (1, 2, 4, 8)
#: VGPRs that results and the operands in flight of a lane may take of the 512 it has at most: more would be spilled.
_VGPRS = 320
#: VGPRs of addresses and of what the compiler keeps beside them, and so of tiles that are refilled by parts.
_OTHER_VGPRS, _OTHER_OF_PARTS = 40, 12


def vgprs(config: GemmConfig) -> int:
    """VGPRs of a lane, estimated: float32 sums, operands in flight (two 16-bit elements each), addresses."""
    rows = config.tile_m // config.waves_m, config.tile_n // config.waves_n
    sums = config.sums
    blocks = sum(rows) // MFMA_MN
    fragment = FRAGMENT // 2
    if not config.staged:  # the operands of two steps
        return sums + 2 * blocks * config.tile_k // MFMA_K * fragment + _OTHER_VGPRS
    if config.schedule != "steps":  # B's operands of a step, A's of one turn or two
        turns = 2 if config.schedule == "ahead" else 1
        of_a, of_b = turns * PART_ROWS // MFMA_MN, rows[1] // MFMA_MN * config.tile_k // MFMA_K
        return sums + (of_a + of_b) * fragment + _OTHER_OF_PARTS
    if config.ring:  # the operands of two slices along K
        return sums + 2 * blocks * fragment + _OTHER_VGPRS
    staging = (config.tile_m + config.tile_n) * config.tile_k // 2 // config.threads
    return sums + staging + blocks * fragment + _OTHER_VGPRS


def space(problem: GemmProblem) -> Iterator[GemmConfig]:
    """Every configuration worth trying that computes `problem`, always in the same order."""
    for config in _all():
        if vgprs(config) > _VGPRS or config.is_valid(problem) is not None:
            continue
        yield config
        if config.ring or not config.staged:
            yield from (other for other in _shared(config, problem) if other.is_valid(problem) is None)


def unshared(config: GemmConfig) -> GemmConfig:
    """The same without sharing K among workgroups."""
    return replace(config, splits=1, tail=False)


def _shared(config: GemmConfig, problem: GemmProblem) -> Iterator[GemmConfig]:
    """Where compute units would be idle: K in as many parts as they are, or what is left of the last round."""
    if (whole := divided(config, problem)) != config:
        yield whole
    m, n = problem.m, product_columns(problem)
    if config.ring and isinstance(m, int) and isinstance(n, int) and problem.batch == 1:
        rest = math.prod(config.tiles(m, n))
        if rest > COMPUTE_UNITS and (rest := rest % COMPUTE_UNITS) and (parts := COMPUTE_UNITS // rest) > 1:
            yield replace(config, splits=min(parts, MAX_SPLITS), tail=True)


def _all() -> Iterator[GemmConfig]:
    yield from (*RINGS, *_OTHER_RINGS)
    yield GemmConfig(32, 128, 64, 1, 4, stages_m=5, stages_n=5)
    for m, n, waves_m, waves_n in _STAGED:
        for k in _STAGED_K:
            yield GemmConfig(m, n, k, waves_m, waves_n)
    for m, n in _DIRECT:
        for k in _DIRECT_K:
            for waves in _DIRECT_WAVES:
                yield GemmConfig(m, n, k, waves_k=waves, staged=False)
