"""Attention problems, forward and backward: what `flycc.sdpa` ops ask of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flycc.contracts.sizes import Size

#: Element types by their MLIR names.
SdpaDtype = Literal["bf16", "f16"]
#: What a mask in memory holds: a bool says which keys a query sees, a number is added to its score.
MaskKind = Literal["none", "bool", "bf16", "f16", "f32"]

#: The widest head, of keys and of values.
MAX_HEAD_DIM = 512
#: The least scale, or cap, that float32 has the reciprocal of, and of products with it; the largest is its reciprocal.
LEAST_FACTOR = 2.0**-100
FACTORS = "2^-100 to 2^100"


@dataclass(frozen=True, slots=True)
class SdpaProblem:
    """`out[b, h, i] = sum_j p[b, h, i, j] * V[b, g, j]`, where p is the softmax over keys j of the scores t.

        t = scale * (Q[b, h, i] . K[b, g, j])          head g = h // (heads / kv_heads) of K and V
        t = cap * tanh(t / cap)                        with `softcap`
        t = t + slope[h] * (j - i)                     with `alibi`
        t = t + mask[b, h, i, j]                       with a `mask` of numbers
        t = -inf  unless all of                        mask[b, h, i, j]                  with a `mask` of bools
                                                       j >= i + lower                    with `lower`
                                                       j <= i + upper                    with `upper`
                                                       document_q[b, i] = document_k[b, j]   with `documents`
        p = 0 or p / (1 - dropout_p)                   with `dropout`, after the softmax: see `kept`

    Q is [batch, heads, queries, head_dim], K [batch, kv_heads, keys, head_dim], V [batch, kv_heads, keys, value_dim],
    out [batch, heads, queries, value_dim]; the mask is broadcastable to [batch, heads, queries, keys]. Scores and sums
    are float32; p is rounded to `dtype` before the product with V, out once more. A query that sees no key has 0 in
    out. `scale`, `lower`, `upper`, the cap, slopes (float32 [heads]), documents (int32 [batch, queries] and [batch,
    keys]) and what dropout takes are known at run time; causal attention as PyTorch defines it has upper = 0, that
    which ends with the last query and key upper = keys - queries. `lse` says that the kernel also returns
    ln(sum_j exp(t)), float32 [batch, heads, queries], -inf where no key is seen. Scores are in units of ln 2: those of
    2^128 ln 2 and more are infinite, and finite ones below -2^128 ln 2 count as that. Rows of Q, K and V begin at
    multiples of 16 bytes; `align_out` is the largest power of two, at most 16, that divides the byte address of every
    row of out.

    Kernels take a scale and a cap of `LEAST_FACTOR` to its reciprocal. With any other scale, be it 0, negative,
    infinite or NaN, PyTorch's operators compute the same formula (`flycc.attention`).
    """

    dtype: SdpaDtype
    batch: Size
    heads: Size
    kv_heads: Size
    queries: Size
    keys: Size
    head_dim: Size
    value_dim: Size
    mask: MaskKind = "none"
    lower: bool = False
    upper: bool = False
    documents: bool = False
    alibi: bool = False
    softcap: bool = False
    dropout: bool = False
    lse: bool = False
    align_out: int = 16

    def __str__(self) -> str:
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}:{self.kv_heads}"
        dim = f"{self.head_dim}" if self.head_dim == self.value_dim else f"{self.head_dim}/{self.value_dim}"
        parts = [] if self.mask == "none" else [f"mask {self.mask}"]
        flags = ("lower", "upper", "documents", "alibi", "softcap", "dropout", "lse")
        parts += [name for name in flags if getattr(self, name)]
        extra = "".join(f"+{part}" for part in parts)
        return (
            f"sdpa {self.batch}x{heads} heads {self.queries}x{self.keys}x{dim} {self.dtype}{extra} "
            f"align {self.align_out}"
        )


@dataclass(frozen=True, slots=True)
class SdpaBackwardProblem:
    """Gradients of Q, K and V of `forward`, which has `lse`, for a gradient of its out; deterministic.

    With p from the scores and lse, dP = dO V^T (times 0 or 1 / (1 - dropout_p) with dropout) and
    delta[b, h, i] = sum_d dO * out: dS = p * (dP - delta), through the softcap, rounded to `dtype`;
    dV = p^T dO, dQ = scale * dS K, dK = scale * dS^T Q, summed in float32 over the heads of a group and rounded once.
    Rows of dO begin at multiples of 16 bytes, as those of Q, K and V; the gradients have `align_out` of `forward`.

    p is as exact as lse, a float32: from 2^20 on it is off by an eighth and more, and where a mask gives all keys of a
    query its lowest number, p is not the equal weights of the forward pass. dO of such a query is 0 as a rule.
    """

    forward: SdpaProblem

    def __str__(self) -> str:
        return str(self.forward).replace("sdpa", "sdpa_backward", 1)


#: Rounds and constants of Philox4x32 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011).
PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def kept(seed: int, offset: int, batch_head: int, query: int, key: int, dropout_p: float) -> bool:
    """Whether dropout keeps p[b, h, query, key]; `batch_head` is b * heads + h.

    Word key % 4 of Philox4x32-10 with the counter (key // 4, query, batch_head, offset), each modulo 2^32, and the two
    words of `seed`, lower first, as key. It is kept where that word is at least `threshold(dropout_p)`.
    """
    counter = [key // 4, query, batch_head, offset & 0xFFFFFFFF]
    keys = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(PHILOX_ROUNDS):
        first, second = (counter[2 * i] * PHILOX_MULTIPLIERS[i] for i in range(2))
        counter = [
            second >> 32 ^ counter[1] ^ keys[0],
            second & 0xFFFFFFFF,
            first >> 32 ^ counter[3] ^ keys[1],
            first & 0xFFFFFFFF,
        ]
        keys = [(k + step) & 0xFFFFFFFF for k, step in zip(keys, PHILOX_KEY_STEPS, strict=True)]
    return counter[key % 4] >= threshold(dropout_p)


def threshold(dropout_p: float) -> int:
    """What a random 32-bit word must reach to be kept."""
    return min(round(dropout_p * 2**32), 2**32 - 1)
