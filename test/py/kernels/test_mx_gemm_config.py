"""Which configurations compute which MX products, and which are chosen; nothing is compiled."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from flycc.contracts import Reason, ScaledGemmProblem
from flycc.contracts.gemm import Epilogue
from flycc.kernels import mx
from flycc.kernels.gemm import GemmConfig
from flycc.kernels.mx import MxConfig

RING = GemmConfig(64, 64, 64, 2, 2, stages_m=3, stages_n=3)
LARGEST = GemmConfig(384, 256, 64, 2, 4, stages_m=2, stages_n=2, schedule="staggered")


def problem(**changes: Any) -> ScaledGemmProblem:
    return ScaledGemmProblem(
        **{"format_a": "e4m3", "format_b": "e4m3", "dtype": "bf16", "m": 512, "n": 512, "k": 512} | changes
    )


@pytest.mark.parametrize(
    ("tile", "packed", "changes", "code"),
    [
        (RING, False, {"dtype": "f64"}, "scaled-gemm.dtype"),
        (RING, False, {"k": "s0"}, "scaled-gemm.size"),
        (RING, False, {"k": 511}, "scaled-gemm.size"),
        (RING, False, {"format_b": "e2m1", "k": 514}, "scaled-gemm.size"),
        (RING, False, {"align_scale_b": 3}, "scaled-gemm.align"),
        (RING, False, {"align_a": 8}, "scaled-gemm.align"),
        (RING, False, {"epilogue": Epilogue(gated=True)}, "scaled-gemm.epilogue"),
        (RING, False, {"format_b": "e2m1"}, "scaled-gemm.config"),
        (GemmConfig(32, 32, 96, staged=False), False, {}, "scaled-gemm.config"),
        (GemmConfig(32, 32, 64, staged=False), True, {}, "scaled-gemm.config"),
        (RING, True, {"scale_a": "none", "scale_b": "row"}, "scaled-gemm.config"),
        (
            GemmConfig(256, 64, 64, 2, 2, stages_m=2, stages_n=2, schedule="ahead"),
            False,
            {},
            "scaled-gemm.config",
        ),
        *(
            (LARGEST, packed, changes, "scaled-gemm.registers")
            for packed, changes in (
                (True, {"format_a": "e2m1", "format_b": "e2m1"}),
                (True, {"scale_b": "row_f32"}),
                (False, {}),
                (True, {"bias": True, "align_bias": 2}),
                (True, {"epilogue": Epilogue(residual=True), "align_residual": 16}),
            )
        ),
        (GemmConfig(256, 256, 64, 2, 2, stages_m=2, stages_n=2), True, {}, "scaled-gemm.registers"),
    ],
)
def test_reasons(tile: GemmConfig, packed: bool, changes: dict[str, Any], code: str) -> None:
    reason = MxConfig(tile, packed).is_valid(problem(**changes))
    assert reason is not None
    assert reason.code == code
    with pytest.raises(ValueError, match=re.escape(reason.sentence)):
        mx.kernel(problem(**changes), MxConfig(tile, packed))


def test_every_product_of_whole_pairs_of_bytes_has_a_kernel() -> None:
    sizes = (1, 33, 100, 4096, "s0")
    for first, second in itertools.product(("e4m3", "e5m2", "e2m1"), repeat=2):
        for m, k, align in itertools.product(sizes, (4, 40, 2880, 4096), (2, 16)):
            case = problem(format_a=first, format_b=second, m=m, k=k, align_a=align, align_scale_a=1)
            config = mx.choose(case)
            assert not isinstance(config, Reason)
            assert config.is_valid(case) is None


def test_scales_are_packed_where_tiles_take_many_steps_or_bytes() -> None:
    def packed(**changes: Any) -> bool:
        config = mx.choose(problem(**changes))
        assert not isinstance(config, Reason)
        return config.packed

    large = {"m": 4096, "n": 4096}
    assert packed(**large, k=4096)
    assert not packed(**large, k=256)
    assert packed(**large, k=416, align_scale_a=1)
    assert not packed(**large, k=4096, scale_a="row", scale_b="none")
    assert not packed(m=32, n=4096, k=4096)


@pytest.mark.parametrize(
    ("m", "n", "ring"),
    [
        (1, 8 * 8192, False),
        (32, 8 * 8192, False),
        (64, 8192, False),
        (64, 4 * 8192, True),
        (256, 4096, False),
        (512, 4096, True),
    ],
)
def test_waves_load_operands_themselves_of_few_rows_or_in_one_workgroup_of_each_compute_unit(
    m: int, n: int, ring: bool
) -> None:
    config = mx.choose(problem(m=m, n=n, k=4096))
    assert isinstance(config, MxConfig)
    assert config.tile.ring == ring
    assert config.tile.staged == ring
