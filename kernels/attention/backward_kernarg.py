"""The arguments of the kernels of attention's gradients: one layout for all of them."""

from __future__ import annotations

from itertools import product

from flycc.kernels.common.spec import KernargLayout

#: Those with a stride between batches, heads and rows each, in elements.
STRIDED = ("q", "k", "v", "out", "grad", "dq", "dk", "dv")

#: lse and delta are float32 [batch, heads, queries], contiguous; slopes float32 [heads]; documents int32 [batch,
#: queries] and [batch, keys], contiguous; seed int64 [2]. Pointers of what the variant does not have are null. `group`
#: is heads / kv_heads. Bounds of the band are clamped (`features.band`); `threshold` is that of `contracts.sdpa`, as a
#: signed number, and `inverse_keep` 1 / (1 - dropout_p).
BACKWARD = KernargLayout(
    (
        *((name, "ptr") for name in ("q", "k", "v", "out", "grad", "lse", "delta", "mask", "slopes")),
        *((name, "ptr") for name in ("query_documents", "key_documents", "seed", "dq", "dk", "dv")),
        *((f"{name}_{axis}", "i64") for name, axis in product(STRIDED, ("batch", "head", "row"))),
        *((f"mask_{axis}", "i64") for axis in ("batch", "head", "query", "key")),
        *((name, "i32") for name in ("batch", "heads", "group", "queries", "keys", "head_dim", "value_dim")),
        *((name, "i32") for name in ("lower", "upper", "threshold")),
        *((name, "f32") for name in ("scale", "softcap", "inverse_keep")),
    )
)
