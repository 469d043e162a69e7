"""What one compute unit gets from the levels that it shares with others."""

from __future__ import annotations

from collections.abc import Mapping

from flycc.costmodel.machine import Clock, Machine
from flycc.costmodel.paths import Supply
from flycc.costmodel.reuse import Reuse

#: Below this share a level's latency is not what waves wait for.
_RARE = 0.02


def active_cus(machine: Machine, workgroups: int) -> float:
    """The mean number of compute units at work if all workgroups are equal: they take these in turns, in the last of
    which some are idle."""
    return workgroups / -(-workgroups // machine.cus)


def supply(machine: Machine, clock: Clock, ghz: float, active: float, reuse: Reuse) -> Supply:
    """A compute unit's share when `active` of them are at work in the mean, so that all workgroups' bytes together take
    what the device's bandwidth allows, at a core clock of `ghz`."""
    on_xcd = max(1.0, active / machine.xcds)
    clk_per_byte = active * ghz * 1e9 / 1e12  # of one compute unit's share of 1 TB/s
    link = max(1 / machine.operand_bytes_per_clk, clk_per_byte / clock.operand_tb_s)
    mall, hbm = clk_per_byte / machine.mall_tb_s, clk_per_byte / machine.hbm_tb_s
    beyond = 1 - reuse.l2
    from_hbm = beyond * (1 - reuse.mall)
    if from_hbm > _RARE:
        latency = machine.hbm_clk
    elif beyond > _RARE:
        latency = machine.mall_clk
    else:
        latency = machine.l2_hit_clk
    return Supply(
        link=link,
        deep=max(beyond * mall, from_hbm * hbm),
        store=max(1 / machine.l1_bytes_per_clk, on_xcd / machine.l2_write_bytes_per_clk_per_xcd),
        drain=hbm,
        fresh_latency=latency,
    )


def least_us(level_bytes: Mapping[str, float], clock: Clock, machine: Machine) -> float:
    """What a launch takes at least, in us: the bytes of each level (as in `Prediction.bytes`) at its bandwidth."""
    hbm = (level_bytes["hbm"] + level_bytes["store"]) / machine.hbm_tb_s
    return max(level_bytes["l2"] / clock.operand_tb_s, level_bytes["mall"] / machine.mall_tb_s, hbm) / 1e6
