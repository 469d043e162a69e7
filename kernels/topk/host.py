"""The host function that FlyDSL traces a top-k kernel from."""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from flycc.kernels.common.arguments import numbers
from flycc.kernels.topk.kernarg import KERNARG
from flycc.kernels.topk.keys import KeyOrder

#: The arguments after the pointers.
Shape: Any = numbers(KERNARG)


def host(kernel: Any, order: KeyOrder, threads: int) -> tuple[Any, tuple[Any, ...]]:
    """What launches `kernel`, which has the arguments of `KERNARG`, and placeholder arguments for it."""

    @flyc.jit
    def launch(
        x: fx.Pointer,
        places: fx.Pointer,
        values: fx.Pointer,
        indices: fx.Pointer,
        work: fx.Pointer,
        shape: Shape,
        groups: fx.Int32,
        parts: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        kernel(x, places, values, indices, work, shape).launch(
            grid=(groups, parts, fx.Int32(1)), block=(threads, 1, 1), stream=stream
        )

    element = fx.Int32 if order.bits == 32 else fx.Int16
    pointers = [flyc.from_c_void_p(kind, 0) for kind in (element, fx.Int32, element, fx.Int32, fx.Int32)]
    shape = Shape(*[1] * (len(KERNARG.fields) - len(pointers)))
    return launch, (*pointers, shape, fx.Int32(1), fx.Int32(1))
