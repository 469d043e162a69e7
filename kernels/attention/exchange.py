"""What a wave has for another one, through LDS, in FlyDSL."""

from __future__ import annotations

from dataclasses import dataclass

import flydsl.expr as fx

from flycc.kernels.attention.mfma import RESULTS
from flycc.kernels.common.machine import WAVE_SIZE


@dataclass(frozen=True)
class Exchange:
    """Places for results of an MFMA in LDS, float32 [4][64 lanes][4] each: a wave puts its own to place `own` and gets
    those at place `other`, once the waves have met in between."""

    lds: fx.Pointer
    lane: fx.Int32
    own: fx.Int32
    other: fx.Int32

    def put(self, values: fx.Vector) -> None:
        for i in range(RESULTS // 4):
            four = fx.Vector.from_elements([values[4 * i + j] for j in range(4)], fx.Float32)
            fx.ptr_store(four.ir_value(), self._place(self.own, i))

    def get(self) -> fx.Vector:
        kind = fx.Vector.make_type(4, fx.Float32)
        places = [self._place(self.other, i) for i in range(RESULTS // 4)]
        fours = [fx.Vector(fx.ptr_load(place, result_type=kind)) for place in places]
        return fx.Vector.from_elements([four[j] for four in fours for j in range(4)], fx.Float32)

    def _place(self, number: fx.Int32, i: int) -> fx.Pointer:
        return self.lds + (number * (WAVE_SIZE * RESULTS) + (i * WAVE_SIZE * 4) + self.lane * 4)
