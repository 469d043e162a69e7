"""The ceilings that a kernel's rates are drawn against."""

from __future__ import annotations

from collections.abc import Iterable

from flycc.costmodel.machine import MI350, Machine
from flycc.costmodel.mfma import mfma
from flycc.costmodel.prediction import InstructionCost


def bandwidth_tb_s(machine: Machine = MI350) -> dict[str, tuple[float, float]]:
    """TB/s of the whole device out of each level, (least, most): the hypotheses differ about L2."""
    l2 = [clock.operand_tb_s for clock in machine.hypotheses]
    return {
        "l2": (min(l2), max(l2)),
        "mall": (machine.mall_tb_s, machine.mall_tb_s),
        "hbm": (machine.hbm_tb_s, machine.hbm_tb_s),
    }


def matrix_peak_tflops(instructions: Iterable[InstructionCost], machine: Machine = MI350) -> float:
    """TFLOP/s of the whole device if it executed nothing but the fastest of a kernel's MFMAs at the highest clock;
    0 for a kernel without MFMAs."""
    costs = [mfma(cost.text.split()[0], cost.text) for cost in instructions if cost.unit == "MFMA"]
    macs_per_clk = max((cost.macs / cost.clk for cost in costs), default=0.0)
    ghz = max(clock.peak_ghz for clock in machine.hypotheses)
    return 2 * macs_per_clk * machine.simds_per_cu * machine.cus * ghz / 1e3
