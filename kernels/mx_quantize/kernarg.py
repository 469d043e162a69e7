"""The arguments of the kernels that quantise, dequantise and find the range of scales."""

from __future__ import annotations

from flycc.kernels.common.spec import ArgType, KernargLayout

#: How the workgroups' ranges of scales come together: `partial` is int32 [workgroups] of any values, `arrived` is 0 and
#: is left 0, `range` int32 [3].
_RANGE: tuple[tuple[str, ArgType], ...] = (("partial", "ptr"), ("arrived", "ptr"), ("range", "ptr"))

#: `ld_x` is in elements; what is in the first 14 dwords is in registers when a wave starts (`codegen.stages`).
QUANTIZE = KernargLayout(
    (
        ("x", "ptr"),
        ("data", "ptr"),
        ("scales", "ptr"),
        ("ld_x", "i64"),
        ("rows", "i32"),
        ("columns", "i32"),
        ("groups", "i32"),
        ("turns", "i32"),
        ("workgroups", "i32"),
        *_RANGE,
    )
)

#: `ld_data` is in bytes, `ld_scales` too; the result is contiguous. `columns` are elements.
DEQUANTIZE = KernargLayout(
    (
        ("data", "ptr"),
        ("scales", "ptr"),
        ("out", "ptr"),
        ("ld_data", "i64"),
        ("ld_scales", "i64"),
        ("rows", "i32"),
        ("columns", "i32"),
        ("groups", "i32"),
        ("turns", "i32"),
    )
)

RANGE = KernargLayout(
    (
        ("scales", "ptr"),
        ("count", "i32"),
        ("groups", "i32"),
        ("turns", "i32"),
        *_RANGE,
    )
)
