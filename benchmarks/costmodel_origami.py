"""rocm-origami, AMD's analytical model of GEMM tiles (PyPI, MIT), on the rows that name a tile; where it is installed.

It needs no GPU to answer for gfx950, but its package builds only beside HIP. It models a kernel on the device, without
a launch, and declines some of the rows; the peers' errors beside its own are of the rows that it answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from flycc.benchmarks.costmodel_data import ProductRow
from flycc.costmodel.machine import MI350

#: format -> origami's name of it, and the matrix instruction of 16x16 results.
_TYPES = {"bf16": ("BFloat16", 32), "fp8": ("Float8", 128), "int8": ("Int8", 64), "mxfp4": ("Float4", 128)}


def compare(predicted: Sequence[tuple[Any, float]]) -> list[dict[str, Any]] | None:
    """Mean absolute relative error by class, origami's and the peer's; None where it is not installed."""
    if not find_spec("origami"):
        return None
    classes = defaultdict(list)
    for row, ours in predicted:
        if isinstance(row, ProductRow) and row.kernel and row.kernel.tile[3] == 1:
            classes[row.key].append((row, ours, _us(row)))
    found = []
    for key, rows in classes.items():
        answered = [(row.us, ours, theirs) for row, ours, theirs in rows if theirs is not None]
        if answered:
            us, ours, theirs = np.array(answered).T
            errors = {"error": np.mean(abs(ours / us - 1)), "origami_error": np.mean(abs(theirs / us - 1))}
            counts = {"class": key, "rows": len(rows), "answered": len(answered)}
            found.append({**counts, **{name: float(error) for name, error in errors.items()}})
    return found


def _us(row: ProductRow) -> float | None:
    """Its microseconds at the peak clock; None where it says that the tile is not valid."""
    import origami

    ghz = MI350.hypotheses[0].peak_ghz
    hardware = origami.get_hardware_for_arch(
        origami.architecture_t.gfx950,
        MI350.cus,
        MI350.lds_bytes_per_cu,
        MI350.l2_bytes_per_xcd,
        round(ghz * 1e6),
    )
    name, instruction_k = _TYPES[row.key.rsplit("/", 1)[1]]
    problem, config = origami.problem_t(), origami.config_t()
    problem.size = origami.dim3_t(row.m, row.problem.n, row.problem.k)
    problem.batch = 1
    problem.a_transpose, problem.b_transpose = origami.transpose_t.T, origami.transpose_t.N
    problem.a_dtype = problem.b_dtype = problem.mi_dtype = getattr(origami.data_type_t, name)
    problem.c_dtype = problem.d_dtype = origami.data_type_t.BFloat16
    assert row.kernel is not None
    config.mt = origami.dim3_t(*row.kernel.tile[:3])
    config.mi = origami.dim3_t(16, 16, instruction_k)
    config.occupancy = 1
    try:
        (found,) = origami.rank_configs(problem, hardware, [config])
    except RuntimeError:
        return None
    return float(found.latency / ghz / 1e3)
