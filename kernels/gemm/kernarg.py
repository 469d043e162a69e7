"""The arguments of a GEMM kernel."""

from __future__ import annotations

from flycc.kernels.common.spec import KernargLayout

#: Strides count elements. `ld_*` is the stride between rows of the stored operand, `batch_*` the one between
#: matrices (0 broadcasts), `bias_*` those of the bias (0 broadcasts; all 0 and a null pointer without bias).
KERNARG = KernargLayout(
    (
        ("a", "ptr"),
        ("b", "ptr"),
        ("bias", "ptr"),
        ("out", "ptr"),
        ("batch_a", "i64"),
        ("batch_b", "i64"),
        ("batch_out", "i64"),
        ("bias_batch", "i64"),
        ("bias_m", "i64"),
        ("bias_n", "i64"),
        ("m", "i32"),
        ("n", "i32"),
        ("k", "i32"),
        ("ld_a", "i32"),
        ("ld_b", "i32"),
        ("ld_out", "i32"),
    )
)
