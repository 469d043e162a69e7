"""What the backward kernels share: a workgroup's rows of the operands, and the arithmetic of the gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from flycc.kernels.common import arguments, vectors
from flycc.kernels.common.machine import ACCESS_BYTES
from flycc.kernels.common.vectors import ELEMENTS
from flycc.kernels.rms_norm.kernarg import BACKWARD
from flycc.kernels.rms_norm.row import Operand, Place, Row
from flycc.kernels.rms_norm.variant import BackwardVariant

if TYPE_CHECKING:
    Numbers = Any
else:
    (Numbers,) = arguments.numbers(BACKWARD)


@dataclass(frozen=True)
class Pointers:
    """The operands in memory."""

    grad: fx.Pointer
    x: fx.Pointer
    weight: fx.Pointer
    rstd: fx.Pointer
    dx: fx.Pointer


@dataclass(frozen=True)
class GradientRows:
    """A workgroup's rows of all operands, and its work-item's `rstd`."""

    variant: BackwardVariant
    row: Row
    grad: Operand
    x: Operand
    weight: Operand
    dx: Operand
    rstd: fx.Float32

    def terms(self, place: Place) -> tuple[fx.Vector, fx.Vector]:
        """The gradient of y, and the normalised x, in float32."""
        grad, x = self.grad.load(place), self.x.load(place)
        return grad.to(fx.Float32), x.to(fx.Float32) * self.rstd

    def weighted(self, place: Place, grad: fx.Vector) -> fx.Vector:
        """`grad` times the weight."""
        if self.variant.weight == "none":
            return grad
        factor = self.weight.load(place).to(fx.Float32)
        return grad * (factor + 1.0 if self.variant.weight_offset else factor)

    def write(self, place: Place, weighted: fx.Vector, normalised: fx.Vector, mean: fx.Float32) -> None:
        """Stores dx, given the mean of `weighted * normalised` over the row."""
        self.dx.store(place, (weighted - normalised * mean) * self.rstd)


def gradient_row(variant: BackwardVariant, shape: Any, first_row: Any, index: Any, thread: fx.Int32) -> Row:
    """The work-item's row, `index` after `first_row`; it exists if there are so many."""
    width = ACCESS_BYTES // vectors.element_bytes(ELEMENTS[variant.dtype])
    head = (first_row + index) & shape.columns & 1 if variant.odd else None
    exists = first_row + index < shape.rows
    return Row(index, shape.columns, thread, variant.config.threads, width, shape.whole, head, exists)


def gradient_rows(
    variant: BackwardVariant, pointers: Pointers, shape: Any, first_row: Any, row: Row
) -> GradientRows:
    """All operands' rows, for a workgroup whose first is `first_row`."""
    element, out = ELEMENTS[variant.dtype], ELEMENTS[variant.out]
    first, ld = fx.Int64(first_row), fx.Int64(shape.columns)
    rstd = Operand.of(pointers.rstd + first, fx.Float32, row, fx.Int64(1))
    return GradientRows(
        variant=variant,
        row=row,
        grad=Operand.of(pointers.grad + first * shape.ld_grad, out, row, shape.ld_grad),
        x=Operand.of(pointers.x + first * shape.ld_x, element, row, shape.ld_x),
        weight=Operand.of(pointers.weight, ELEMENTS.get(variant.weight, element), row, None),
        dx=Operand.of(pointers.dx + first * ld, element, row, ld),
        rstd=rstd.load(Place(fx.Int32(0), 0, 1, row.exists))[0],
    )


def placeholders(variant: BackwardVariant) -> list[Any]:
    """Arguments to trace a backward kernel with."""
    element, out = ELEMENTS[variant.dtype], ELEMENTS[variant.out]
    elements = dict.fromkeys(("x", "dx"), element) | dict.fromkeys(("rstd", "partial"), fx.Float32)
    return arguments.placeholders(
        BACKWARD, elements | {"grad": out, "weight": ELEMENTS.get(variant.weight, element)}
    )


def host(kernel: Any, block: int) -> Any:
    """The host function that launches a backward kernel in workgroups of `block` work-items."""

    @flyc.jit
    def launch(
        grad: fx.Pointer,
        x: fx.Pointer,
        weight: fx.Pointer,
        rstd: fx.Pointer,
        dx: fx.Pointer,
        partial: fx.Pointer,
        shape: Numbers,
        grid_x: fx.Int32,
        grid_y: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        kernel(grad, x, weight, rstd, dx, partial, shape).launch(
            grid=(grid_x, grid_y, 1), block=(block, 1, 1), stream=stream
        )

    return launch
