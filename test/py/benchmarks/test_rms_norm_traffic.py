"""The figures of RMS norm's traffic: within the target for all rows, and right where they can be counted."""

from __future__ import annotations

import pytest

from flycc.benchmarks import rms_norm_traffic
from flycc.contracts import RmsNormProblem


@pytest.mark.parametrize("columns", [64, 4096, 4097, 32769])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_rows_are_moved_once(dtype, columns):
    figure = rms_norm_traffic.figure(RmsNormProblem(dtype, 8192, columns, dtype))
    assert figure["moved_over_least"] == 1
    assert figure["lines_over_least"] <= 1.05
    assert figure["lds_conflict_clocks"] == 0
    assert figure["share_of_16_bytes"] >= 0.75


def test_rows_beyond_registers_and_lds_are_read_twice():
    """But for what the last turn of the loop holds: 1024 work-items take 4 vectors of 4 elements in each."""
    rows, columns = 2048, 300_000
    figure = rms_norm_traffic.figure(RmsNormProblem("f32", rows, columns, "f32"))
    least = 2 * rows * columns + columns
    assert figure["moved_over_least"] == pytest.approx((least + rows * (columns - columns % 16384)) / least)


def test_accesses_are_counted():
    """Rows of 576 elements are 72 vectors: two of them for the lanes of a wave, and four waves."""
    found = rms_norm_traffic.figure(RmsNormProblem("bf16", 4, 576, "bf16"))
    assert found["accesses"] == {"weight load 16": 8, "x load 16": 8, "y store 16": 8}
