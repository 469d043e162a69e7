"""How many waves and workgroups a compute unit holds at once."""

from __future__ import annotations

from typing import Any

from flycc.costmodel.machine import Machine
from flycc.costmodel.prediction import Occupancy


def occupancy(info: dict[str, Any], machine: Machine, workgroups: int) -> Occupancy:
    """From a trace's `info` (vgprs of a lane, lds_bytes and waves of a workgroup) and the size of the grid.

    Raises ValueError for a workgroup that no compute unit can hold.
    """
    waves = int(info["waves_per_workgroup"])
    block, lds_block = machine.vgpr_block, machine.lds_block_bytes
    vgprs = max(block, -(-int(info["vgprs"]) // block) * block)
    lds = -(-int(info["lds_bytes"]) // lds_block) * lds_block
    by_registers = min(machine.waves_per_simd, machine.vgprs_per_lane // vgprs)
    limits = {
        "vgprs": machine.simds_per_cu * by_registers // waves,
        "waves": machine.simds_per_cu * machine.waves_per_simd // waves,
        "lds": machine.lds_bytes_per_cu // lds if lds else machine.workgroups_per_cu,
        "workgroups": machine.workgroups_per_cu,
        "grid": -(-workgroups // machine.cus),
    }
    if by_registers == machine.waves_per_simd:
        del limits["vgprs"]
    resident = min(limits.values())
    if resident < 1:
        raise ValueError(
            f"trace: a workgroup of {waves} waves with {vgprs} VGPRs and {lds} bytes of LDS fits no compute unit"
        )
    limit = next(name for name, value in limits.items() if value == resident)
    return Occupancy(resident * waves / machine.simds_per_cu, resident, limit)
