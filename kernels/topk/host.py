"""The host function that FlyDSL traces a top-k kernel from."""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from flycc.kernels.common.arguments import numbers, placeholders
from flycc.kernels.topk.kernarg import KERNARG
from flycc.kernels.topk.keys import KeyOrder

#: The numbers among the arguments.
Shape: Any = numbers(KERNARG)[0]


def host(kernel: Any, order: KeyOrder, threads: int) -> tuple[Any, tuple[Any, ...]]:
    """What launches `kernel`, which has the arguments of `KERNARG`, and placeholder arguments for it."""

    @flyc.jit
    def launch(
        x: fx.Pointer,
        places: fx.Pointer,
        shape: Shape,
        values: fx.Pointer,
        indices: fx.Pointer,
        work: fx.Pointer,
        groups: fx.Int32,
        parts: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        kernel(x, places, shape, values, indices, work).launch(
            grid=(groups, parts, fx.Int32(1)), block=(threads, 1, 1), stream=stream
        )

    element = fx.Int32 if order.bits == 32 else fx.Int16
    elements = dict.fromkeys(("places", "indices", "work"), fx.Int32) | dict.fromkeys(
        ("x", "values"), element
    )
    return launch, (*placeholders(KERNARG, elements), fx.Int32(1), fx.Int32(1))
