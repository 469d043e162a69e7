"""Products of 32 x 32 results over 16 elements, and what their operands and results are in a lane, in FlyDSL.

v_mfma_f32_32x32x16 takes of both operands 8 elements a lane: those from 8 (lane / 32) on of row (A) or column (B)
lane % 32. Of the results a lane has column lane % 32, and in number r row 8 (r / 4) + 4 (lane / 32) + r % 4. So results
8 h to 8 h + 7, rounded, are the B operand of a product over these rows, whose A operand has the elements
16 h + 4 (lane / 32) + {0..3, 8..11} of its rows (`tiles.Columns`): nothing has to move between lanes.
"""

from __future__ import annotations

from typing import Any

import flydsl.expr as fx
from flydsl.expr import rocdl

from flycc.kernels.common.vectors import rounded

#: Rows and columns of the results; elements that are summed over.
BLOCK, SLICE = 32, 16
#: Results of a lane.
RESULTS = 16


def product(element: Any, a: fx.Vector, b: fx.Vector, sums: fx.Vector) -> fx.Vector:
    """sums + a b, of 32 x 32 results over 16 elements."""
    mfma = rocdl.mfma_f32_32x32x16_bf16 if element is fx.BFloat16 else rocdl.mfma_f32_32x32x16_f16
    kind = fx.Vector.make_type(16, fx.Float32)
    return fx.Vector(mfma(kind, [a.bitcast(element), b.bitcast(element), sums]))


def as_operands(values: fx.Vector, element: Any) -> list[fx.Vector]:
    """16 results of a lane, rounded, as B operands of the two products over their rows (see `Columns`)."""
    return [
        rounded(fx.Vector.from_elements([values[i + j] for j in range(8)], fx.Float32), element)
        for i in (0, 8)
    ]
