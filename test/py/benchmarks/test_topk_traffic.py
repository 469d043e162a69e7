"""The figures of top-k's traffic: within the target for long and odd rows, and right where they can be counted."""

from __future__ import annotations

import pytest

from flycc.benchmarks import topk_traffic


@pytest.mark.parametrize(
    ("rows", "columns", "k"), [(4096, 4097, 8), (4096, 16384, 257), (2048, 32769, 256), (256, 131072, 768)]
)
def test_rows_are_moved_once(rows, columns, k):
    figure = topk_traffic.figure(rows, columns, k)
    assert figure["moved_over_least"] <= 1.05
    assert figure["lines_over_least"] <= 1.05
    assert figure["share_of_16_bytes"] >= 0.75


def test_accesses_are_counted():
    """A row of 256 elements is a load of 16 bytes of one wave, and its result a store of values and one of indices."""
    figure = topk_traffic.figure(1, 256, 2)
    assert figure["accesses"] == {"0 x load 16": 1, "0 values store 4": 1, "0 indices store 8": 1}
    assert figure["least_bytes"] == 256 * 4 + 2 * 12
    assert figure["moved_over_least"] == 1
