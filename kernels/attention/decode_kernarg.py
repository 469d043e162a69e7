"""The arguments of the kernels that share out keys."""

from __future__ import annotations

from itertools import product

from flycc.kernels.common.spec import KernargLayout

#: What loads of K and V need is in the first 14 dwords, which are in registers when a wave starts (`codegen.stages`):
#: `_16` are strides in 16 bytes, all others are in elements. A workgroup has keys from `first` + `share` times its
#: number on, before `end`. `partial` is float32 [batch, kv_heads, splits, queries * group, row_floats], of each row its
#: highest score in units of ln 2, its sum of p, two unused numbers and its sums. Without splits it is null, else out
#: and lse are.
DECODE = KernargLayout(
    (
        ("q", "ptr"),
        ("k", "ptr"),
        ("v", "ptr"),
        *((f"{name}_{axis}_16", "i32") for name, axis in product("kv", ("batch", "head", "row"))),
        ("share", "i32"),
        ("end", "i32"),
        ("out", "ptr"),
        ("lse", "ptr"),
        ("partial", "ptr"),
        ("mask", "ptr"),
        ("slopes", "ptr"),
        ("query_documents", "ptr"),
        ("key_documents", "ptr"),
        *((f"{name}_{axis}", "i64") for name, axis in product(("q", "out"), ("batch", "head", "row"))),
        *((f"mask_{axis}", "i64") for axis in ("batch", "head", "query", "key")),
        ("first", "i32"),
        ("queries", "i32"),
        ("keys", "i32"),
        ("group", "i32"),
        ("kv_heads", "i32"),
        ("splits", "i32"),
        ("head_dim", "i32"),
        ("value_dim", "i32"),
        ("lower", "i32"),
        ("upper", "i32"),
        ("scale", "f32"),
        ("softcap", "f32"),
    )
)

#: `partial` of all workgroups becomes out and, where it is not null, lse, float32 [batch, heads, queries].
COMBINE = KernargLayout(
    (
        ("partial", "ptr"),
        ("splits", "i32"),
        ("queries", "i32"),
        ("group", "i32"),
        ("kv_heads", "i32"),
        ("value_dim", "i32"),
        ("out", "ptr"),
        ("lse", "ptr"),
        ("out_batch", "i64"),
        ("out_head", "i64"),
        ("out_row", "i64"),
    )
)
