"""The arguments of a grouped GEMM kernel."""

from __future__ import annotations

from flycc.kernels.common.spec import KernargLayout

#: Strides count elements. Group g, whose first index of the ragged dimension is s, has its operand at
#: `g * group_* + s * ragged_*`. `total` is the size of the ragged dimension, as which one of m, n and k, not used
#: otherwise, is given too. `bias_n` leads from one column of a group's bias to the next; without a bias its pointer and
#: strides are 0. `workgroups` are those of the launch. The first 14 dwords, up to `ld_out`, are in registers when a
#: wave starts (`codegen.stages`): the offsets of groups can be loaded at once. Where K may be shared, `partial` has
#: room for the sums of a part of a tile for each workgroup, and `arrived` zeros, which are zero again after the launch;
#: else both are 0.
KERNARG = KernargLayout(
    (
        ("a", "ptr"),
        ("b", "ptr"),
        ("offsets", "ptr"),
        ("m", "i32"),
        ("n", "i32"),
        ("k", "i32"),
        ("groups", "i32"),
        ("workgroups", "i32"),
        ("ld_a", "i32"),
        ("ld_b", "i32"),
        ("ld_out", "i32"),
        ("bias", "ptr"),
        ("out", "ptr"),
        ("partial", "ptr"),
        ("arrived", "ptr"),
        ("group_a", "i64"),
        ("group_b", "i64"),
        ("group_out", "i64"),
        ("group_bias", "i64"),
        ("ragged_a", "i64"),
        ("ragged_b", "i64"),
        ("ragged_out", "i64"),
        ("bias_n", "i32"),
    )
)
