"""The arguments of the top-k kernels."""

from __future__ import annotations

from flycc.kernels.common.spec import KernargLayout

#: `x` is [rows, n] with `ld_x` elements from row to row, of which a workgroup sees `chunk` at a time. `places`
#: (int32 [rows, n], or null) says which index of the original row an element has. `values` and `indices`
#: are [rows, parts, k]. `work` is int32 [rows, 4, n] for the kernel that sorts, and null for the others.
#: All but `work` is in the first 14 dwords, which are in registers when a wave starts (`codegen.stages`).
KERNARG = KernargLayout(
    (
        ("x", "ptr"),
        ("places", "ptr"),
        ("ld_x", "i64"),
        ("n", "i32"),
        ("k", "i32"),
        ("rows", "i32"),
        ("chunk", "i32"),
        ("values", "ptr"),
        ("indices", "ptr"),
        ("work", "ptr"),
    )
)
