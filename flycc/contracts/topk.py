"""The top-k problem: what a `flycc.topk` op asks of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flycc.contracts.sizes import Size

#: Element types by their MLIR names.
TopkDtype = Literal["f32", "bf16", "f16", "i32"]


@dataclass(frozen=True, slots=True)
class TopkProblem:
    """The `k` largest (or smallest) of each row of [rows, columns], with their int64 indices.

    NaN is larger than every number and -0.0 equals 0.0, as PyTorch orders them. Of equal values
    those with the lowest indices are taken. With `sorted` the results come best first, equal ones by index:
    what `torch.sort(stable=True)` gives. `align` is the largest power of two, at most 16, that divides the
    byte address of every row.
    """

    dtype: TopkDtype
    rows: Size
    columns: Size
    k: Size
    largest: bool = True
    sorted: bool = True
    align: int = 16

    def __str__(self) -> str:
        order = ("largest" if self.largest else "smallest") + ("" if self.sorted else " unsorted")
        return f"topk {self.rows}x{self.columns} {self.dtype} k {self.k} {order} align {self.align}"
