"""The arguments of the kernels of attention's gradients as FlyDSL sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from flycc.kernels.attention.backward_kernarg import BACKWARD
from flycc.kernels.attention.backward_variant import BackwardVariant
from flycc.kernels.attention.order import tile_of
from flycc.kernels.common import arguments
from flycc.kernels.common.vectors import ELEMENTS

if TYPE_CHECKING:
    Numbers = Any
else:
    (Numbers,) = arguments.numbers(BACKWARD)


@dataclass(frozen=True)
class Head:
    """The rows of a head that a workgroup has: from `first` on, of head `head` (of queries, or for dK and dV of keys)
    of batch `batch`."""

    batch: fx.Int32
    head: fx.Int32
    first: fx.Int32

    @classmethod
    def of(cls, variant: BackwardVariant, shape: Any, descending: bool = False) -> Head:
        """That of this workgroup. Those that one die takes are neighbours, so that heads of a group share its L2;
        `descending` says that a head's last rows come first."""
        of_keys = variant.config.what == "dkv"
        size = shape.keys if of_keys else shape.queries
        tiles = (size + (variant.config.rows - 1)) // variant.config.rows
        heads = fx.Int32(fx.Uint32(shape.heads) // fx.Uint32(shape.group)) if of_keys else shape.heads
        uneven = variant.features.upper and variant.config.what != "delta"
        of_all, tile = tile_of(fx.block_idx.x, tiles, heads * shape.batch, uneven)
        if descending:
            tile = tiles - 1 - tile
        batch = fx.Int32(fx.Uint32(of_all) // fx.Uint32(heads))
        return cls(batch, of_all - batch * heads, tile * variant.config.rows)

    def place(self, shape: Any, name: str, head: fx.Int32 | None = None) -> fx.Int64:
        """Elements from the operand's first to that of row 0 of the head, or of another head of the batch."""
        of_head = fx.Int64(self.head if head is None else head) * getattr(shape, f"{name}_head")
        return fx.Int64(self.batch) * getattr(shape, f"{name}_batch") + of_head


def placeholders(variant: BackwardVariant) -> list[Any]:
    """Arguments to trace a kernel with."""
    kind = variant.features.mask
    elements = dict.fromkeys(BACKWARD.pointers, ELEMENTS[variant.dtype])
    elements |= dict.fromkeys(("lse", "delta", "slopes"), fx.Float32)
    elements |= dict.fromkeys(("query_documents", "key_documents", "seed"), fx.Int32)
    elements["mask"] = fx.Int8 if kind in ("none", "bool") else ELEMENTS[kind]
    return [*arguments.placeholders(BACKWARD, elements), fx.Int32(1)]


def host(kernel: Any, block: int) -> Any:
    """The host function that launches a kernel in workgroups of `block` work-items."""

    @flyc.jit
    def launch(
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
        grid: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        kernel(
            q,
            k,
            v,
            out,
            grad,
            lse,
            delta,
            mask,
            slopes,
            query_documents,
            key_documents,
            seed,
            dq,
            dk,
            dv,
            shape,
        ).launch(grid=(grid, 1, 1), block=(block, 1, 1), stream=stream)

    return launch
