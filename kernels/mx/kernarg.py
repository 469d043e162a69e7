"""The arguments of an MX product's kernel."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from flycc.kernels.common.spec import KernargLayout

#: `k` and `part_k` count pairs of bytes along K, of B where A has elements of 4 bits and B of 8 (see `config.pairs`);
#: `ld_a` and `ld_b`, the strides between rows, those of the operand itself. Rows of block scales follow each other
#: without gaps. `row_a` and `row_b` are the strides between row scales (0 where one serves all rows), `bias_*` and
#: `residual_*` those of bias and residual (0 broadcasts), in elements; `pre` has the strides of `out`. Parts of K as in
#: `kernels.gemm.kernarg`. What the first loads of operands need comes first: 14 dwords, which are in registers when a
#: wave starts.
KERNARG = KernargLayout(
    (
        ("a", "ptr"),
        ("b", "ptr"),
        ("scale_a", "ptr"),
        ("scale_b", "ptr"),
        ("m", "i32"),
        ("n", "i32"),
        ("k", "i32"),
        ("ld_a", "i32"),
        ("ld_b", "i32"),
        ("parts", "i32"),
        ("part_k", "i32"),
        ("whole", "i32"),
        ("bias", "ptr"),
        ("out", "ptr"),
        ("residual", "ptr"),
        ("pre", "ptr"),
        ("partial", "ptr"),
        ("arrived", "ptr"),
        ("bias_m", "i64"),
        ("bias_n", "i64"),
        ("residual_m", "i64"),
        ("residual_n", "i64"),
        ("row_a", "i32"),
        ("row_b", "i32"),
        ("ld_out", "i32"),
        ("scale", "f32"),
    )
)

#: The values of arguments that a problem has no use for.
ABSENT: Mapping[str, int | float] = MappingProxyType(
    {
        **dict.fromkeys(("scale_a", "scale_b", "row_a", "row_b"), 0),
        **dict.fromkeys(("bias", "residual", "pre", "partial", "arrived", "parts", "part_k", "whole"), 0),
        **{f"{name}_{dim}": 0 for name in ("bias", "residual") for dim in ("m", "n")},
        "scale": 1.0,
    }
)
