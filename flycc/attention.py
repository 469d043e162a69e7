"""Attention as `flycc.contracts.sdpa` defines it, by PyTorch's own operators: what runs where no kernel does.

In float32 (float64 for float64), some queries at a time, so that the scores of long sequences take little memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from flycc.contracts.sdpa import PHILOX_KEY_STEPS, PHILOX_MULTIPLIERS, PHILOX_ROUNDS, threshold

#: Scores that are computed at a time, at least those of one query of every head.
_SCORES = 1 << 24
_LOW = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Scoring:
    """What makes scores of products, and weights of scores: see `SdpaProblem`.

    `mask` is broadcastable to [batch, heads, queries, keys]; `seed`, int64 [2], is what dropout's numbers come from:
    Philox's seed and the last word of its counter.
    """

    scale: float
    mask: Tensor | None = None
    lower: int | None = None
    upper: int | None = None
    query_documents: Tensor | None = None
    key_documents: Tensor | None = None
    slopes: Tensor | None = None
    softcap: float = 0.0
    dropout_p: float = 0.0
    seed: Tensor | None = None


def forward(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor]:
    """out, row-major of the dtype of `query`, and lse, at least float32; operands are [batch, heads, length, dim]."""
    batch, heads, queries, _ = query.shape
    out = query.new_empty((batch, heads, queries, value.size(-1)))
    lse = query.new_empty((batch, heads, queries), dtype=_wide(query))
    for rows in _parts(query, key):
        scores, _ = _scores(query, key, scoring, rows)
        lse[:, :, rows] = scores.logsumexp(-1)
        weights = _weights(scores, lse[:, :, rows])
        if scoring.dropout_p:
            weights = weights * _kept(scoring, weights, rows)
        out[:, :, rows] = _ungrouped(_grouped(weights, value) @ value.to(weights.dtype), heads)
    return out, lse


def in_four_dimensions(x: Tensor) -> Tensor:
    """[..., heads, length, dim], whose sizes in front may be missing, as [batch, heads, length, dim]."""
    return x[(None,) * (4 - x.dim())] if x.dim() < 4 else x.flatten(0, -4)


def mask_in_four_dimensions(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """The mask for `in_four_dimensions` of a query."""
    if mask is None or mask.dim() < 4 or query.dim() == 4:
        return mask
    return in_four_dimensions(mask.expand(*query.shape[:-3], *mask.shape[-3:]))


def log_sums(query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
    """The lse of `forward` alone, float32."""
    lse = query.new_empty(query.shape[:-1], dtype=torch.float32)
    for rows in _parts(query, key):
        lse[:, :, rows] = _scores(query, key, scoring, rows)[0].logsumexp(-1)
    return lse


def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, scoring: Scoring
) -> tuple[Tensor, Tensor, Tensor]:
    """Row-major gradients of query, key and value for the gradient `grad` of out, by the formulas of
    `SdpaBackwardProblem`, of the operands' dtypes."""
    heads, wide = query.size(1), _wide(query)
    dq = query.new_empty(query.shape)
    dk, dv = (x.new_zeros(x.shape, dtype=wide) for x in (key, value))
    for rows in _parts(query, key):
        scores, slope = _scores(query, key, scoring, rows)
        weights = _weights(scores, lse[:, :, rows])
        g = grad[:, :, rows].to(wide)
        delta = (g * out[:, :, rows]).sum(-1, keepdim=True)
        dp = _ungrouped(_grouped(g, value) @ value.to(wide).mT, heads)
        dropped = weights
        if scoring.dropout_p:
            kept = _kept(scoring, weights, rows)
            dropped, dp = weights * kept, dp * kept
        ds = weights * (dp - delta)
        ds = _grouped(ds if slope is None else ds * slope, key)
        dq[:, :, rows] = scoring.scale * _ungrouped(ds @ key.to(wide), heads)
        dk += scoring.scale * (ds.mT @ _grouped(query[:, :, rows].to(wide), key))
        dv += _grouped(dropped, value).mT @ _grouped(g, value)
    return dq, dk.to(key.dtype), dv.to(value.dtype)


def keep_mask(seed: Tensor, dropout_p: float, batch_heads: int, queries: range, keys: int) -> Tensor:
    """`flycc.contracts.sdpa.kept` of [batch_heads, queries, keys], on the device of `seed`."""
    shape = (batch_heads, len(queries), -(-keys // 4))

    def counted(count: Tensor, dim: int) -> Tensor:
        return count.view([-1 if d == dim else 1 for d in range(3)]).expand(shape)

    def arange(*bounds: int) -> Tensor:
        return torch.arange(*bounds, device=seed.device)

    c = [
        counted(arange(shape[2]), 2),
        counted(arange(queries.start, queries.stop), 1),
        counted(arange(batch_heads), 0),
        (seed[1] & _LOW).expand(shape),
    ]
    words = [seed[0] & _LOW, seed[0] >> 32 & _LOW]
    for _ in range(PHILOX_ROUNDS):
        (high0, low0), (high1, low1) = (_product(c[2 * i], PHILOX_MULTIPLIERS[i]) for i in range(2))
        c = [high1 ^ c[1] ^ words[0], low1, high0 ^ c[3] ^ words[1], low0]
        words = [(word + step) & _LOW for word, step in zip(words, PHILOX_KEY_STEPS, strict=True)]
    return torch.stack(c, -1).flatten(-2)[..., :keys] >= threshold(dropout_p)


def _product(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """Upper and lower word of the product of 32-bit words, held by int64: in two halves, as it may reach 2^64."""
    low, high = a * (b & 0xFFFF), a * (b >> 16)
    return high + (low >> 16) >> 16, ((high & 0xFFFF) << 16) + low & _LOW


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _parts(query: Tensor, key: Tensor) -> Iterator[slice]:
    """Queries to compute at a time."""
    batch, heads, queries, _ = query.shape
    count = max(1, _SCORES // max(1, batch * heads * key.size(2)))
    ends = queries if batch * heads else 0
    return (slice(first, min(first + count, queries)) for first in range(0, ends, count))


def _grouped(x: Tensor, key: Tensor) -> Tensor:
    """[batch, heads, rows, n] with the rows of all heads that share one of `key` below each other."""
    batch, heads, rows, n = x.shape
    kv_heads = key.size(1)
    return x.reshape(batch, kv_heads, heads * rows // max(1, kv_heads), n)


def _ungrouped(x: Tensor, heads: int) -> Tensor:
    """[batch, heads, rows, n] of what `_grouped` gives."""
    batch, kv_heads, rows, n = x.shape
    return x.reshape(batch, heads, rows * kv_heads // max(1, heads), n)


def _scores(query: Tensor, key: Tensor, scoring: Scoring, rows: slice) -> tuple[Tensor, Tensor | None]:
    """Scores of the queries `rows`, [batch, heads, rows, keys], and with a softcap its derivative."""
    wide, heads, keys = _wide(query), query.size(1), key.size(2)
    part = query[:, :, rows].to(wide)
    scores = scoring.scale * _ungrouped(_grouped(part, key) @ key.to(wide).mT, heads)
    slope = None
    if scoring.softcap:
        capped = torch.tanh(scores / scoring.softcap)
        scores, slope = scoring.softcap * capped, 1 - capped.square()
    i = torch.arange(rows.start, rows.stop, device=query.device)[:, None]
    distance = torch.arange(keys, device=query.device) - i
    if scoring.slopes is not None:
        scores = scores + scoring.slopes.to(wide)[:, None, None] * distance
    hidden = []
    if scoring.mask is not None:
        mask = scoring.mask.expand(*query.shape[:3], keys)[:, :, rows]
        if mask.dtype == torch.bool:
            hidden.append(~mask)
        else:
            scores = scores + mask
    if scoring.lower is not None:
        hidden.append(distance < scoring.lower)
    if scoring.upper is not None:
        hidden.append(distance > scoring.upper)
    if scoring.query_documents is not None and scoring.key_documents is not None:
        of_queries = scoring.query_documents[:, None, rows, None]
        hidden.append(of_queries != scoring.key_documents[:, None, None, :])
    for which in hidden:
        scores = scores.masked_fill(which, -torch.inf)
    return scores, slope


def _weights(scores: Tensor, lse: Tensor) -> Tensor:
    """The softmax of `scores`, 0 for a query that sees no key.

    Not exp(scores - lse): log(n) is lost beside scores of -1e9, whose weights are equal where a mask gives them to all.
    """
    return scores.softmax(-1).masked_fill((lse == -torch.inf)[..., None], 0)


def _kept(scoring: Scoring, weights: Tensor, rows: slice) -> Tensor:
    """What dropout multiplies `weights` by: 0 or 1 / (1 - dropout_p)."""
    assert scoring.seed is not None
    batch, heads, _, keys = weights.shape
    queries = range(rows.start, rows.stop)
    kept = keep_mask(scoring.seed, scoring.dropout_p, batch * heads, queries, keys)
    inverse = 1 / (1 - scoring.dropout_p) if scoring.dropout_p < 1 else 0.0
    return kept.view(weights.shape) * inverse
