"""Which configurations serve which RMS norm problems, and what a launch covers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flycc.contracts import Reason, RmsNormBackwardProblem, RmsNormProblem
from flycc.kernels import rms_norm
from flycc.kernels.rms_norm import RmsNormConfig

PROBLEM = RmsNormProblem("bf16", 40, 576, "bf16")


@pytest.mark.parametrize(
    ("change", "code", "part"),
    [
        ({"dtype": "f64"}, "rms-norm.dtype", "dtype = f64"),
        ({"out": "f64"}, "rms-norm.dtype", "out_dtype = f64"),
        ({"weight": "i32"}, "rms-norm.dtype", "weight of i32"),
        ({"rows": 0}, "rms-norm.size", "rows = 0"),
        ({"columns": 0}, "rms-norm.size", "columns = 0"),
        ({"columns": 2**29}, "rms-norm.size", "columns = 536870912"),
        ({"rows": 2**31 // 64}, "rms-norm.size", "rows = 33554432"),
    ],
)
def test_problems_that_no_kernel_serves(change: dict[str, Any], code: str, part: str) -> None:
    reason = rms_norm.choose(replace(PROBLEM, **change))
    assert isinstance(reason, Reason)
    assert reason.code == code
    assert part in reason.sentence


def test_backward_refuses_too() -> None:
    reason = rms_norm.plan_backward(RmsNormBackwardProblem("bf16", 40, 0, "bf16"))
    assert isinstance(reason, Reason)
    assert reason.code == "rms-norm.size"


def test_a_configuration_for_other_columns_is_refused() -> None:
    config = rms_norm.choose(PROBLEM)
    assert isinstance(config, RmsNormConfig)
    with pytest.raises(ValueError, match="columns = 4096"):
        rms_norm.kernel(replace(PROBLEM, columns=4096), config)


def test_strides() -> None:
    several, one = RmsNormConfig(64, 4, 2), RmsNormConfig(256, 1, 4)
    assert several.check_strides({"ld_x": 576}) is None
    reason = several.check_strides({"ld_x": 1 << 28})
    assert reason is not None
    assert "ld_x = 268435456" in reason.sentence
    assert one.check_strides({"ld_x": 1 << 40}) is None


@given(
    dtype=st.sampled_from(("bf16", "f16", "f32")), rows=st.integers(1, 10**6), columns=st.integers(1, 10**6)
)
def test_every_size_has_a_launch_that_covers_it(dtype: Any, rows: int, columns: int) -> None:
    problem = RmsNormProblem(dtype, rows, columns, dtype)
    config = rms_norm.choose(problem)
    assert isinstance(config, RmsNormConfig)
    launch = rms_norm.launch(problem, config)
    assert launch.grid[0] * config.rows >= rows > (launch.grid[0] - 1) * config.rows
    assert launch.block[0] % 64 == 0
    width = 4 if dtype == "f32" else 8
    if not config.stream:
        assert config.slots * config.threads * width >= rms_norm.whole_columns(columns, dtype)
        assert config.threads >= width  # each takes at most one element beyond the vectors
    elif columns <= 131072:
        pytest.fail(f"{columns} columns are read twice")


@given(rows=st.integers(1, 10**5), columns=st.integers(1, 10**5))
def test_backward_launches_take_every_row(rows: int, columns: int) -> None:
    steps = rms_norm.plan_backward(RmsNormBackwardProblem("bf16", rows, columns, "bf16"))
    assert isinstance(steps, tuple)
    for step in steps:
        assert step.groups * step.turns * step.config.rows >= rows
        # A workgroup's rows of an odd length must all start alike.
        assert step.turns == 1 or step.groups * step.config.rows % 2 == 0
