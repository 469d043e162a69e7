"""Scales of whole rows of an operand, which multiply the finished sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

import flydsl.expr as fx
from flydsl._mlir.dialects import llvm
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.kernels.common.buffers import bounded, checked
from flycc.kernels.gemm.result import Chunk

#: What E8M0 adds to exponents, and its NaN.
_BIAS, _NAN = 127, 255


@dataclass(frozen=True)
class RowScales:
    """Scales of the workgroup's rows of A, or of B: E8M0 bytes, or float32 if `wide`, `stride` apart from `pointer`
    on."""

    pointer: fx.Pointer
    stride: fx.Int32
    rows_left: fx.Int32
    wide: bool

    def load(self, row: fx.Int32) -> fx.Int32:
        """The bits of a row's scale."""
        offset = checked(row < self.rows_left, row * self.stride * (4 if self.wide else 1))
        buffer = bounded(self.pointer)
        if self.wide:
            return fx.Int32(rocdl.raw_ptr_buffer_load(T.i32, buffer, offset, fx.Int32(0)))
        return fx.Int32(fx.Uint32(fx.Uint8(rocdl.raw_ptr_buffer_load(T.i8, buffer, offset, fx.Int32(0)))))

    def scaled(self, value: fx.Float32, bits: fx.Int32) -> fx.Float32:
        """`value` times a scale, rounded once. That of a byte of 255 is NaN."""
        if self.wide:
            return value * bits.bitcast(fx.Float32)
        return (bits == _NAN).select(fx.Float32(float("nan")), _ldexp(value, bits - _BIAS))


def scale_rows(chunks: list[Chunk], a: RowScales | None, b: RowScales | None) -> list[Chunk]:
    """The chunks' sums times the scales of their rows, then times those of their columns."""
    found = []
    for chunk in chunks:
        values = chunk.values
        if a is not None:
            bits = a.load(chunk.row)
            values = [a.scaled(value, bits) for value in values]
        if b is not None:
            values = [b.scaled(value, b.load(chunk.column + i)) for i, value in enumerate(values)]
        found.append(replace(chunk, values=values))
    return found


def _ldexp(value: fx.Float32, exponent: fx.Int32) -> fx.Float32:
    operands = [value.ir_value(), exponent.ir_value()]
    return fx.Float32(llvm.call_intrinsic(T.f32, "llvm.ldexp.f32.i32", operands, [], []))
