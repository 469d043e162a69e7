"""The arguments of the forward kernels."""

from __future__ import annotations

from itertools import product

from flycc.kernels.common.spec import KernargLayout

#: Strides are in elements. lse is float32 [batch, heads, queries], contiguous; slopes float32 [heads]; documents int32
#: [batch, queries] and [batch, keys], contiguous; seed int64 [2]. Pointers of what the variant does not have are null.
#: `group` is heads / kv_heads. Bounds of the band are clamped (`features.band`); `threshold` is that of
#: `contracts.sdpa`, as a signed number, and `inverse_keep` 1 / (1 - dropout_p).
FORWARD = KernargLayout(
    (
        *((name, "ptr") for name in ("q", "k", "v")),
        *((f"{name}_row", "i32") for name in ("q", "k", "v", "out")),
        *((name, "i32") for name in ("batch", "heads", "group", "queries", "keys", "head_dim", "value_dim")),
        *((name, "i32") for name in ("lower", "upper", "threshold")),
        *((name, "f32") for name in ("scale", "softcap", "inverse_keep")),
        *((name, "ptr") for name in ("out", "lse", "mask", "slopes")),
        *((name, "ptr") for name in ("query_documents", "key_documents", "seed")),
        *((f"{name}_{axis}", "i64") for name, axis in product(("q", "k", "v", "out"), ("batch", "head"))),
        *((f"mask_{axis}", "i64") for axis in ("batch", "head", "query", "key")),
    )
)
