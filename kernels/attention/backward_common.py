"""What the kernels of attention's gradients have in common, in FlyDSL: products in turn, addresses made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import flydsl.expr as fx
from flydsl._mlir.dialects import llvm
from flydsl.expr import rocdl
from flydsl.expr.typing import T

#: What the compiler may move past a product: arithmetic and transcendental functions.
_MAY_MOVE = 0x2 | 0x4 | 0x400


@dataclass(frozen=True)
class Turn:
    """A product, and the operand of it that a wave reads from LDS."""

    read: Callable[[], fx.Vector]
    multiply: Callable[[fx.Vector], None]


def in_turn(turns: Sequence[Turn], ahead: int = 4) -> None:
    """Each product, while operands of the `ahead` next ones are on their way."""
    waiting = [turn.read() for turn in turns[:ahead]]
    for i, turn in enumerate(turns):
        rocdl.sched_barrier(_MAY_MOVE)
        if i + ahead < len(turns):
            waiting.append(turns[i + ahead].read())
        turn.multiply(waiting.pop(0))


def lane_again() -> fx.Int32:
    """This lane's number, from what no register has kept until here."""
    count = "v_mbcnt_lo_u32_b32 $0, -1, 0\nv_mbcnt_hi_u32_b32 $0, -1, $0"
    return fx.Int32(llvm.inline_asm(T.i32, [], count, "=&v", has_side_effects=True))


def in_loop(operands: Any) -> Any:
    """The same `RowSlices` or `Columns`, whose addresses the compiler computes in each turn: there are no registers for
    those of a tile's parts."""
    return replace(operands, own=operands.own + operands.tile, tile=fx.Int32(0))
