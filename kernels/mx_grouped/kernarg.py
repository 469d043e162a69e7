"""The arguments of an MX product's kernel by group."""

from __future__ import annotations

from flycc.kernels.common.spec import KernargLayout

#: `k` counts pairs of bytes along K, and `ld_a`, `ld_b` and `group_b` (from one group's B to the next) those of the
#: operand itself, as in `kernels.mx.kernarg`. `bias_n` leads from one column of a group's bias to the next, and
#: `group_bias` from one group's to the next, in elements. Rows of block scales follow each other without gaps, those of
#: all groups' B too. The rest is as in `kernels.grouped_gemm.kernarg`; the first 14 dwords are in registers when a wave
#: starts.
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
        ("scale_a", "ptr"),
        ("scale_b", "ptr"),
        ("bias", "ptr"),
        ("out", "ptr"),
        ("partial", "ptr"),
        ("arrived", "ptr"),
        ("group_b", "i64"),
        ("group_bias", "i64"),
        ("bias_n", "i32"),
    )
)
