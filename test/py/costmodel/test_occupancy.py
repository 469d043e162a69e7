"""How many workgroups and waves fit a compute unit: registers, LDS, waves, grid."""

from __future__ import annotations

import pytest

from flycc.costmodel.machine import MI350
from flycc.costmodel.occupancy import occupancy


def info(waves: int = 4, vgprs: int = 32, lds: int = 0) -> dict:
    return {"waves_per_workgroup": waves, "vgprs": vgprs, "lds_bytes": lds}


@pytest.mark.parametrize(
    ("given", "grid", "workgroups", "limit"),
    [
        (info(), 1 << 20, 8, "waves"),  # 8 waves of 64 VGPRs and less on a SIMD
        (info(vgprs=64), 1 << 20, 8, "waves"),
        (info(vgprs=65), 1 << 20, 7, "vgprs"),  # 72 in blocks of 8: 7 on a SIMD of 512
        (info(vgprs=128), 1 << 20, 4, "vgprs"),
        (info(vgprs=257), 1 << 20, 1, "vgprs"),
        (info(vgprs=512), 1 << 20, 1, "vgprs"),
        (info(waves=8, vgprs=256), 1 << 20, 1, "vgprs"),
        (info(lds=64 * 1024), 1 << 20, 2, "lds"),
        (info(lds=80 * 1024), 1 << 20, 2, "lds"),
        (info(lds=80 * 1024 + 4), 1 << 20, 1, "lds"),
        (info(lds=160 * 1024), 1 << 20, 1, "lds"),
        (info(waves=1), 1 << 20, 32, "waves"),
        (info(), 100, 1, "grid"),
        (info(), 600, 3, "grid"),
    ],
)
def test_limits(given: dict, grid: int, workgroups: int, limit: str) -> None:
    found = occupancy(given, MI350, grid)
    assert (found.workgroups_per_cu, found.limit) == (workgroups, limit)
    assert found.waves_per_simd == workgroups * given["waves_per_workgroup"] / 4


def test_workgroup_that_fits_nowhere() -> None:
    with pytest.raises(ValueError, match=r"8 waves with 512 VGPRs .* fits no compute unit"):
        occupancy(info(waves=8, vgprs=512), MI350, 1)
