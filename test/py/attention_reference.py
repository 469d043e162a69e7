"""Attention in float64 as `SdpaProblem` defines it, and how far a kernel may be from it.

The bounds are worst cases of rounding, element by element. With u the unit roundoff of the 16-bit type and e that of
float32: a score is a sum of head_dim products, so it is off by at most ds = 2 (head_dim + 4) e scale |Q| |K|^T, which
makes p off by a factor of exp(2 ds) at most; p is rounded to 16 bits once (u), sums over keys add (keys + 8) e.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from flycc.contracts.sdpa import PHILOX_KEY_STEPS, PHILOX_MULTIPLIERS, PHILOX_ROUNDS, threshold

#: Unit roundoff.
ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
#: Half the smallest subnormal number, what rounding near zero adds.
TINY = {torch.bfloat16: 2.0**-127, torch.float16: 2.0**-25}
#: Exponentials below this may be 0.
FLUSHED = 2.0**-126


def dropout_mask(seed: int, offset: int, shape: tuple[int, ...], dropout_p: float) -> Tensor:
    """`flycc.contracts.sdpa.kept` of every element of [batch, heads, queries, keys]."""
    batch, heads, queries, keys = shape
    words = -(-keys // 4)
    low = 0xFFFFFFFF
    c = [
        torch.arange(words).view(1, 1, words).expand(batch * heads, queries, words),
        torch.arange(queries).view(1, queries, 1).expand(batch * heads, queries, words),
        torch.arange(batch * heads).view(-1, 1, 1).expand(batch * heads, queries, words),
        torch.full((batch * heads, queries, words), offset & low),
    ]
    key = [seed & low, seed >> 32 & low]
    for _ in range(PHILOX_ROUNDS):
        first, second = (_wide_product(c[2 * i], PHILOX_MULTIPLIERS[i]) for i in range(2))
        c = [second[0] ^ c[1] ^ key[0], second[1], first[0] ^ c[3] ^ key[1], first[1]]
        key = [(k + step) & low for k, step in zip(key, PHILOX_KEY_STEPS, strict=True)]
    random = torch.stack(c, -1).reshape(batch, heads, queries, 4 * words)[..., :keys]
    return random >= threshold(dropout_p)


def _wide_product(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """Upper and lower 32 bits of the 64-bit products of 32-bit numbers, which int64 would overflow on."""
    low, high = a * (b & 0xFFFF), a * (b >> 16)
    total = low + ((high & 0xFFFF) << 16)
    return (high >> 16) + (total >> 32), total & 0xFFFFFFFF


@dataclass(frozen=True)
class Attention:
    """Operands of a problem: 16-bit [batch, heads, ...] tensors, and what is known at run time."""

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    mask: Tensor | None = None
    lower: int | None = None
    upper: int | None = None
    documents: tuple[Tensor, Tensor] | None = None
    slopes: Tensor | None = None
    softcap: float = 0.0
    keep: Tensor | None = None
    dropout_p: float = 0.0

    def forward(self) -> tuple[Tensor, Tensor]:
        """out and lse in float64."""
        out, lse, _, _ = self._forward(*self._operands())
        return out, lse

    def backward(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, key and value in float64, for a gradient of out."""
        leaves = [x.double().requires_grad_() for x in (self.query, self.key, self.value)]
        out, *_ = self._forward(*leaves)
        return torch.autograd.grad(out, leaves, grad.double())

    def bound(self) -> Tensor:
        """How far an element of out may be from `forward`."""
        q, k, v = self._operands()
        out, _, p, kept = self._forward(q, k, v)
        u = ROUNDOFF[self.query.dtype]
        # p is rounded to 16 bits and of the scores' error; where p is next to nothing it may be flushed, and what
        # dropout keeps of it is multiplied after that.
        off = (p * (u + self._relative(q, k))) @ self._of_heads(v).abs()
        floor = (TINY[self.query.dtype] + FLUSHED) * (kept @ self._of_heads(v).abs())
        return off + u * (out.abs() + off) + floor + TINY[self.query.dtype]

    def lse_bound(self) -> Tensor:
        """How far an element of lse may be from `forward`."""
        q, k, v = self._operands()
        _, lse, _, _ = self._forward(q, k, v)
        off = self._relative(q, k).amax(-1) if self.key.size(2) else torch.zeros_like(lse)
        return off + 8 * ROUNDOFF[torch.float32] * (1 + lse.abs().nan_to_num(posinf=0, neginf=0))

    def backward_bounds(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How far elements of the gradients may be from `backward`.

        dS = p (dP - delta): p has the scores' error and that of lse; delta comes from out rounded to 16 bits, and is
        off by u sum |dO| |out|; dS is rounded to 16 bits before the products with K and Q, p before that with dO.
        """
        q, k, v = self._operands()
        dout = grad.double()
        out, _, p, kept = self._forward(q, k, v)
        u, e = ROUNDOFF[self.query.dtype], ROUNDOFF[torch.float32]
        values, keys = self._of_heads(v), self._of_heads(k)
        relative = 2 * self._relative(q, k)
        dp = kept * (dout @ values.mT)
        dp_off = kept * (2 * (v.size(-1) + 4) * e * (dout.abs() @ values.abs().mT))
        delta = (dout * out).sum(-1, keepdim=True)
        delta_off = ((dout.abs() * (self.bound() + u * out.abs())).sum(-1, keepdim=True)) + 2 * (
            v.size(-1) + 4
        ) * e * (dout.abs() * out.abs()).sum(-1, keepdim=True)
        softmax = torch.where(kept > 0, p / kept.clamp(min=1e-300), self._softmax(q, k))
        ds = softmax * (dp - delta)
        ds_off = softmax * (dp_off + delta_off) + ds.abs() * (u + relative) + TINY[self.query.dtype]
        ds_off = ds_off + FLUSHED * (dp - delta).abs()
        group = q.size(1) // k.size(1)
        p_off = p * (u + relative) + (TINY[self.query.dtype] + FLUSHED) * kept

        def grouped(x: Tensor) -> Tensor:
            return x.unflatten(1, (-1, group)).sum(2) if x.numel() else x.new_zeros(k.shape[:2] + x.shape[2:])

        sums = 2 * (q.size(2) * group + k.size(2)) * e
        dq, dk, dv = self.backward(grad)
        dq_off = abs(self.scale) * (ds_off @ keys.abs() + sums * (ds.abs() @ keys.abs()))
        dk_off = abs(self.scale) * grouped(ds_off.mT @ q.abs() + sums * (ds.abs().mT @ q.abs()))
        dv_off = grouped(p_off.mT @ dout.abs() + sums * (p.mT @ dout.abs()))
        pairs = ((dq, dq_off), (dk, dk_off), (dv, dv_off))
        return tuple(off + u * (x.abs() + off) + TINY[self.query.dtype] for x, off in pairs)

    def _operands(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query.double(), self.key.double(), self.value.double()

    def _of_heads(self, x: Tensor) -> Tensor:
        """K or V of every head of the query."""
        return x.repeat_interleave(self.query.size(1) // x.size(1), 1)

    def _scores(self, query: Tensor, key: Tensor) -> Tensor:
        queries, keys = query.size(2), key.size(2)
        t = self.scale * (query @ self._of_heads(key).mT)
        i, j = torch.arange(queries).view(-1, 1), torch.arange(keys).view(1, -1)
        if self.softcap:
            t = self.softcap * torch.tanh(t / self.softcap)
        if self.slopes is not None:
            t = t + self.slopes.double().view(-1, 1, 1) * (j - i)
        seen = torch.ones(queries, keys, dtype=torch.bool)
        if self.mask is not None and self.mask.dtype != torch.bool:
            t = t + self.mask.double()
        elif self.mask is not None:
            seen = seen & self.mask
        if self.lower is not None:
            seen = seen & (j >= i + self.lower)
        if self.upper is not None:
            seen = seen & (j <= i + self.upper)
        if self.documents is not None:
            of_queries, of_keys = self.documents
            seen = seen & (of_queries[:, None, :, None] == of_keys[:, None, None, :])
        return t.masked_fill(~seen, -math.inf)

    def _softmax(self, query: Tensor, key: Tensor) -> Tensor:
        t = self._scores(query, key)
        highest = t.amax(-1, keepdim=True) if key.size(2) else t.sum(-1, keepdim=True)
        highest = torch.where(highest == -math.inf, 0.0, highest).detach()
        weights = torch.exp(t - highest)
        total = weights.sum(-1, keepdim=True)
        return weights / torch.where(total == 0, 1.0, total)

    def _forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """out, lse, p after dropout, and what dropout multiplies p by."""
        softmax = self._softmax(query, key)
        kept = torch.ones_like(softmax)
        if self.keep is not None:
            kept = self.keep.double() / (1 - self.dropout_p) if self.dropout_p < 1 else torch.zeros_like(kept)
        p = softmax * kept
        return p @ self._of_heads(value), torch.logsumexp(self._scores(query, key), -1), p, kept.detach()

    def _relative(self, query: Tensor, key: Tensor) -> Tensor:
        """The largest relative error of p, from its score's and the largest score's absolute errors and the sum."""
        e = ROUNDOFF[torch.float32]
        size = abs(self.scale) * (query.abs() @ self._of_heads(key).abs().mT)
        scores = self._scores(query, key).abs().nan_to_num(posinf=0)
        off = 2 * (query.size(-1) + 4) * e * size + 8 * e * scores
        highest = off.amax(-1, keepdim=True) if key.size(2) else off
        return torch.expm1(off + highest) + (key.size(2) + 8) * e
