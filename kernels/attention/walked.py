"""How many tiles workgroups of a launch walk through, as kernels share out rows of heads and leave out tiles."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from flycc.contracts.sdpa import SdpaProblem
from flycc.kernels.attention.backward_config import WAVE_ROWS, BackwardStep
from flycc.kernels.attention.config import TOGETHER, SdpaConfig, WideConfig
from flycc.kernels.attention.decode_config import DecodeConfig
from flycc.kernels.attention.plan import ForwardStep
from flycc.kernels.common.machine import COMPUTE_UNITS, XCDS

Step: TypeAlias = ForwardStep | BackwardStep


def walks(step: Step) -> bool:
    """Whether workgroups of a launch have rows of one head each, and walk through tiles of the others."""
    return step.what in ("forward", "dkv", "dq")


def walked(problem: SdpaProblem, step: Step, lower: int | None, upper: int | None) -> np.ndarray:
    """Turns of the main loop of each workgroup of a launch that `walks`, in launch order, int64 [workgroups]. The sizes
    of `problem` are known; `lower` and `upper` are its band's, None where it has no such end."""
    queries, keys, heads, kv_heads = (
        size if isinstance(size, int) else 1
        for size in (problem.queries, problem.keys, problem.heads, problem.kv_heads)
    )
    of_keys, tile, rows = step.what == "dkv", _tile(step), _rows(step)
    own, others = (keys, queries) if of_keys else (queries, keys)
    tiles = -(-own // rows)
    place = _places(step.launch.grid[0], tiles, upper is not None)
    if step.what == "forward" or (step.what == "dq" and upper is not None):
        place = tiles - 1 - place  # the last rows come first
    first = place * rows
    last = np.minimum(first + rows, own) - 1
    if of_keys:  # seen from a key, the band's ends change places
        lower, upper = (None if end is None else -end for end in (upper, lower))
    start = np.zeros_like(first) if lower is None else np.maximum(first + lower, 0)
    end = np.full_like(last, others) if upper is None else np.minimum(last + upper + 1, others)
    step_of_start = WAVE_ROWS if of_keys else tile
    turns = -(-np.maximum(end - start // step_of_start * step_of_start, 0) // tile)
    return turns * (heads // kv_heads if of_keys else 1)


def _rows(step: Step) -> int:
    """Those of its head that a workgroup has."""
    config = step.config
    assert not isinstance(config, DecodeConfig)
    return config.queries if isinstance(config, SdpaConfig | WideConfig) else config.rows


def _tile(step: Step) -> int:
    config = step.config
    assert not isinstance(config, DecodeConfig)
    return config.tile


def _places(count: int, tiles: int, uneven: bool) -> np.ndarray:
    """`order.tile_of`: the place in its head's order of each of `count` workgroups' tiles."""
    each, more = divmod(count, XCDS)
    workgroup = np.arange(count, dtype=np.int64)
    number = workgroup % XCDS * each + np.minimum(workgroup % XCDS, more) + workgroup // XCDS
    heads, most = count // tiles, COMPUTE_UNITS // XCDS // tiles
    fitting = [n for n in TOGETHER if heads % (XCDS * n) == 0 and n <= most]
    together = max(fitting, default=1) if uneven else 1
    return number % (tiles * together) // together
