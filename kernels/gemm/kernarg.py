"""The arguments of a GEMM kernel."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from flycc.kernels.common.spec import KernargLayout

#: Strides count elements. `ld_*` is the stride between rows of the stored operand, `batch_*` the one between
#: matrices (0 broadcasts), `bias_*` and `residual_*` those of the bias and of the residual (0 broadcasts).
#: `b2` has the strides of `b`, and `pre` those of `out`. Where K is split, all tiles but the first `whole` are computed
#: in `parts` parts of `part_k` elements of K, the last of what is left; `partial` and `arrived` are `Workspace`'s.
#: What the first loads of operands need comes first: 14 dwords, which are in registers when a wave starts
#: (`codegen.stages`). Strides between matrices are not among them; a binary for one matrix does not read them.
KERNARG = KernargLayout(
    (
        ("a", "ptr"),
        ("b", "ptr"),
        ("b2", "ptr"),
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
        ("batch_a", "i64"),
        ("batch_b", "i64"),
        ("batch_out", "i64"),
        ("bias_batch", "i64"),
        ("bias_m", "i64"),
        ("bias_n", "i64"),
        ("residual_batch", "i64"),
        ("residual_m", "i64"),
        ("residual_n", "i64"),
        ("ld_out", "i32"),
        ("scale", "f32"),
    )
)

#: The values of arguments that a problem has no use for.
ABSENT: Mapping[str, int | float] = MappingProxyType(
    {
        **dict.fromkeys(
            ("bias", "b2", "residual", "pre", "partial", "arrived", "parts", "part_k", "whole"), 0
        ),
        **{f"{name}_{dim}": 0 for name in ("bias", "residual") for dim in ("batch", "m", "n")},
        "scale": 1.0,
    }
)
