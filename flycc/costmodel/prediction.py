"""What the model answers. All times are modelled."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from flycc.costmodel.reuse import Reuse


@dataclass(frozen=True, slots=True)
class Interval:
    """A modelled time in microseconds: the hypotheses about the machine spread from `low` to `high`."""

    low: float
    typical: float
    high: float

    def __str__(self) -> str:
        return f"modelled {self.typical:.1f} us [{self.low:.1f}, {self.high:.1f}]"

    def ties(self, other: Interval) -> bool:
        """Whether the model cannot tell the two apart: each one's typical time lies within the other's interval."""
        return self.low <= other.typical <= self.high and other.low <= self.typical <= other.high


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Resident waves of a SIMD (their mean over the four) and workgroups of a compute unit, and what limits them.

    `limit` is "vgprs", "lds", "waves", "workgroups" or, for a grid too small to fill the device, "grid".
    """

    waves_per_simd: float
    workgroups_per_cu: int
    limit: str


@dataclass(frozen=True, slots=True)
class InstructionCost:
    """One instruction of the code: how often a wave executes it, and wave-clocks it takes and waits (their sum is the
    whole time of the waves simulated, so that shares can be made of them)."""

    address: int
    text: str
    unit: str
    count: float
    issue_clk: float
    stall_clk: float
    stall_cause: str
    #: Index in `Prediction.by_loop` of the innermost loop it stands in, -1 outside of loops.
    loop: int


@dataclass(frozen=True, slots=True)
class LoopCost:
    """A loop: code addresses `first` to `last` (its backward branch), its iterations in a wave and clocks of each."""

    first: int
    last: int
    iterations: float
    clk_per_iteration: float
    share: float
    breakdown: dict[str, float]


@dataclass(frozen=True, slots=True)
class Prediction:
    """A modelled launch.

    `time` is what a caller sees, `device_us` without launch and host floor. `by_hypothesis` has the device's
    microseconds and `clock_ghz` its clock under each hypothesis of the machine; the details are those of the slowest,
    which takes `clk` clocks. `breakdown` has shares of `time` by cause, which sum to 1: "mfma", "valu", "trans",
    "salu", "lds", "global", "scalar", "branch" (executing, or waiting for the unit), "wait-vm", "wait-lgkm", "barrier",
    "dependency", "issue", "start" (waiting), "tail" and "launch". `utilisation` is the share of the simulated clocks
    that each pipe and path of the compute unit is busy. `reuse` is what caches are taken to hold, `bytes` are those of
    the whole grid that come out of "l2", "mall" and "hbm", and "store". `lds_conflicts` is the share of LDS clocks that
    are bank conflicts. `flops` are those of the MFMAs, padding included.
    """

    kernel: str
    time: Interval
    device_us: Interval
    occupancy: Occupancy
    workgroups: int
    rounds: int
    clk: float
    by_hypothesis: dict[str, float]
    clock_ghz: dict[str, float]
    breakdown: dict[str, float]
    by_instruction: list[InstructionCost]
    by_loop: list[LoopCost]
    utilisation: dict[str, float]
    reuse: Reuse
    bytes: dict[str, float]
    lds_conflicts: float
    flops: float
    notes: list[str] = field(default_factory=list)

    @property
    def tflops(self) -> float:
        """Modelled matrix TFLOP/s over `time`, of the MFMAs executed (padding included)."""
        return self.flops / self.time.typical / 1e6

    @property
    def tb_s(self) -> dict[str, float]:
        """Modelled TB/s of each level over `time`."""
        return {level: count / self.time.typical / 1e6 for level, count in self.bytes.items()}

    def to_json(self) -> dict[str, Any]:
        """Plain data: the fields, "tflops" and "tb_s". Times without a unit in their key are in us."""
        return {"modelled": True, **asdict(self), "tflops": self.tflops, "tb_s": self.tb_s}
