"""The kernel of delta = sum over a row of dO * out, in FlyDSL: float32 [batch, heads, queries].

16-byte loads, a row's side by side; each work-item has all of its loads on their way before it adds.
"""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import rocdl

from flycc.kernels.attention.backward_arguments import Head, Numbers, host, placeholders
from flycc.kernels.attention.backward_variant import BackwardVariant
from flycc.kernels.common import vectors
from flycc.kernels.common.buffers import bounded, checked
from flycc.kernels.common.reduce import sum_of_elements, sum_over_threads
from flycc.kernels.common.vectors import ELEMENTS

#: Elements of a work-item's loads.
_WIDTH = 8


def build(variant: BackwardVariant) -> tuple[Any, tuple[Any, ...]]:
    """The host function that launches the kernel of `variant`, and placeholder arguments for it."""
    config = variant.config
    first_rows = range(0, config.rows, config.block // config.row_lanes)

    @flyc.kernel(name=variant.symbol)
    def sdpa_delta(
        q: fx.Pointer,
        k: fx.Pointer,
        v: fx.Pointer,
        out: fx.Pointer,
        grad: fx.Pointer,
        lse: fx.Pointer,
        delta: fx.Pointer,
        mask: fx.Pointer,
        slopes: fx.Pointer,
        query_documents: fx.Pointer,
        key_documents: fx.Pointer,
        seed: fx.Pointer,
        dq: fx.Pointer,
        dk: fx.Pointer,
        dv: fx.Pointer,
        shape: Numbers,
    ) -> None:
        head = Head.of(variant, shape)
        column = fx.thread_idx.x % config.row_lanes * _WIDTH
        rows = [fx.thread_idx.x // config.row_lanes + first for first in first_rows]
        pairs = [_rows(variant, shape, head, (out, grad), row, column) for row in rows]
        rocdl.sched_barrier(0)
        sums = fx.Int64(head.batch * shape.heads + head.head) * fx.Int64(shape.queries)
        result = bounded(delta + (sums + fx.Int64(head.first)), (shape.queries - head.first) * 4)
        for row, pair in zip(rows, pairs, strict=True):
            products = pair[0].to(fx.Float32) * pair[1].to(fx.Float32)
            total = sum_over_threads(sum_of_elements(products), config.row_lanes, fx.thread_idx.x, None)
            value = fx.Vector.from_elements([total], fx.Float32)
            vectors.store(result, value, checked(column == 0, row * 4))

    return host(sdpa_delta, config.block), tuple(placeholders(variant))


def _rows(
    variant: BackwardVariant,
    shape: Any,
    head: Head,
    pointers: tuple[fx.Pointer, fx.Pointer],
    row: fx.Int32,
    column: fx.Int32,
) -> list[fx.Vector]:
    """8 elements each of `row` of the workgroup's rows of out and of dO, on their way; zeros where there are none."""
    found = []
    for name, pointer in zip(("out", "grad"), pointers, strict=True):
        stride = getattr(shape, f"{name}_row")
        buffer = bounded(pointer + (head.place(shape, name) + fx.Int64(head.first) * stride))
        offset = (row * fx.Int32(stride) + column) * 2
        found.append(
            _load(variant, buffer, offset, head.first + row < shape.queries, shape.value_dim - column)
        )
    return found


def _load(variant: BackwardVariant, buffer: Any, offset: fx.Int32, exists: Any, left: fx.Int32) -> fx.Vector:
    """8 elements at byte `offset`, those from number `left` on zeros."""
    element = ELEMENTS[variant.dtype]
    if not variant.ragged_value:
        return vectors.load(buffer, element, _WIDTH, checked(exists & (left > 0), offset))
    parts = [
        vectors.load(buffer, element, 1, checked(exists & (left > i), offset), 2 * i) for i in range(_WIDTH)
    ]
    return fx.Vector.from_elements([part[0] for part in parts], element)
