"""The arguments of the RMS norm kernels."""

from __future__ import annotations

from flycc.kernels.common.spec import KernargLayout

#: `ld_*` is the stride between rows in elements; y and new_residual are contiguous. `whole` is how many of a
#: row's elements make 16-byte vectors of x. Pointers of what the variant does not have are null. `y` is
#: of elements of an MX format where those are wanted, with their `scales`. All that is needed
#: before results are stored is in the first 14 dwords, which are in registers when a wave starts (`codegen.stages`).
FORWARD = KernargLayout(
    (
        ("x", "ptr"),
        ("residual", "ptr"),
        ("weight", "ptr"),
        ("ld_x", "i64"),
        ("ld_residual", "i64"),
        ("rows", "i32"),
        ("columns", "i32"),
        ("whole", "i32"),
        ("eps", "f32"),
        ("y", "ptr"),
        ("new_residual", "ptr"),
        ("rstd", "ptr"),
        ("scales", "ptr"),
    )
)

#: Work of a launch is in `turns` rounds of `groups` workgroups. `partial` is float32 [groups * config.rows, columns]:
#: sums over rows of what makes the gradient of the weight.
BACKWARD = KernargLayout(
    (
        ("grad", "ptr"),
        ("x", "ptr"),
        ("weight", "ptr"),
        ("rstd", "ptr"),
        ("dx", "ptr"),
        ("partial", "ptr"),
        ("ld_grad", "i64"),
        ("ld_x", "i64"),
        ("rows", "i32"),
        ("columns", "i32"),
        ("whole", "i32"),
        ("groups", "i32"),
        ("turns", "i32"),
    )
)
