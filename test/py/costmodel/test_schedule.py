"""Workgroups given out: hand-computed ends, and orders that are better or worse."""

from __future__ import annotations

import numpy as np
import pytest

from flycc.costmodel import MI350
from flycc.costmodel.schedule import Schedule, schedule


def everywhere(of_xcd: list[float]) -> list[float]:
    """What each XCD gets."""
    return [work for work in of_xcd for _ in range(MI350.xcds)]


def dealt(of_xcd: list[float], resident: int = 1, alone: float = 1.0) -> Schedule:
    return schedule(everywhere(of_xcd), resident, MI350, alone)


@pytest.mark.parametrize(
    ("count", "end", "active"), [(1, 1, 1), (256, 1, 256), (257, 2, 128.5), (768, 3, 256)]
)
def test_equal_workgroups_take_whole_rounds(count: int, end: float, active: float) -> None:
    found = schedule([1.0] * count, 1, MI350)
    assert (found.end, found.active) == (end, active)
    assert found.tail == pytest.approx(1 - active / MI350.cus)


def test_who_has_room_first_gets_the_next() -> None:
    """On the 32 compute units of an XCD: one of 9 and 31 of 2, then 31 of 4, which those that were done at 2 get until
    6, then two of 1, which the first two of them get until 7, when 9 is not done. Then one of 5 until 11."""
    found = dealt([9.0] + [2.0] * 31 + [4.0] * 31 + [1.0, 1.0] + [5.0])
    assert found.cu.tolist()[:: MI350.xcds] == [0, *range(1, 32), *range(1, 32), 1, 2, 3]
    assert found.ends[:5].tolist() == [9, 7, 7, 11, 6]
    assert found.end == 11


def test_the_heaviest_first_end_earlier() -> None:
    """1 to 64 on 32: from the heaviest on the sums are all 65; from the lightest on 32 and 64 make 96."""
    work = [float(i) for i in range(64, 0, -1)]
    assert (dealt(work).end, dealt(work[::-1]).end) == (65, 96)
    assert dealt(work).tail == 0


def test_each_xcd_has_its_own() -> None:
    """Every eighth workgroup is heavy: one XCD has them all and the others wait for it."""
    found = schedule([10.0 if i % MI350.xcds == 3 else 1.0 for i in range(512)], 1, MI350)
    busy = found.ends.reshape(MI350.xcds, -1)
    assert busy.tolist() == [[20.0 if xcd == 3 else 2.0] * MI350.cus_per_xcd for xcd in range(MI350.xcds)]


@pytest.mark.parametrize(("alone", "ends"), [(1.0, [4, 6]), (0.5, [4, 8]), (0.75, [4, 4 + 2 / 0.75])])
def test_residents_share_a_compute_unit(alone: float, ends: list[float]) -> None:
    """Of 2 and 4 on one, the first is done at 4; what is left of the second, 2, then runs alone."""
    found = dealt([2.0] * 32 + [4.0] * 32, 2, alone)
    assert found.ends == pytest.approx(np.full(MI350.cus, ends[1]))
    assert dealt([2.0] * 64, 2, alone).end == ends[0]


def test_any_workgroups_hang_together() -> None:
    """All are given out in their XCD; nobody ends before all its work is done, nor later than if it never had two."""
    rng = np.random.default_rng(seed := np.random.SeedSequence().entropy)
    for resident in (1, 2, 5):
        work = rng.integers(0, 9, rng.integers(1, 3000)).astype(float)
        found = schedule(work.tolist(), resident, MI350, 1 / resident)
        assert np.all(found.cu // MI350.cus_per_xcd == np.arange(len(work)) % MI350.xcds), f"seed {seed}"
        each = np.bincount(found.cu, work, MI350.cus)
        assert np.all(found.ends >= each - 1e-9), f"seed {seed}"
        assert np.all(found.ends <= resident * each + 1e-9), f"seed {seed}"


@pytest.mark.parametrize("resident", [1, 2, 3])
def test_rounding_does_not_matter(resident: int) -> None:
    """What ends at once, but for rounding, is given the next ones at once: as if numbers were whole."""
    work = [float(8 - i // 4 % 8) for i in range(2000)]
    whole = schedule(work, resident, MI350, 1 / resident)
    parts = schedule([each / 3 * 1.1 for each in work], resident, MI350, 1 / resident)
    assert parts.cu.tolist() == whole.cu.tolist()
    assert parts.ends == pytest.approx(whole.ends / 3 * 1.1)
