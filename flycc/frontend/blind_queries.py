"""Gradients of attention for queries that see no key, where a mask of finite numbers gives them equal weights.

Of scores of -1e9, lse in float32 has no room for log(n): the weights that a backward pass makes of it are not 1/n.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: At most this is what a mask adds to all keys of a query that sees none. Differences of such numbers that are not
#: exact in the mask's type are so large that nothing is left of a weight.
_HIDES = -(2.0**10)
#: From there on a float32 has no fraction: scores are lost in sums with it.
_LOSES_SCORES = -(2.0**24)


def with_moderate_scores(
    query: Tensor, key: Tensor, mask: Tensor, lower: int | None, upper: int | None
) -> tuple[Tensor, Tensor]:
    """Query and mask that attend as `query` and `mask` do, with scores near 0 for queries that see no key.

    `query` is [..., queries, dim], `key` [..., keys, dim]; `mask` holds floats and is broadcastable to
    [..., queries, keys]. A query i sees keys from i + lower to i + upper at most. Softmax is the same if all scores of
    a query are shifted: those whose highest number in the mask is very low have it subtracted. Where it is so low
    that sums with it do not depend on scores the query becomes 0, too, so that all keys with that number get equal
    weights, dropped like any, and Q and K no gradient. Keys with -inf stay hidden, and queries that see nothing else
    are left alone.
    """
    if lower is not None or upper is not None:
        distance = torch.arange(key.size(-2), device=query.device)
        distance = distance - torch.arange(query.size(-2), device=query.device)[:, None]
        if lower is not None:
            mask = mask.masked_fill(distance < lower, -torch.inf)
        if upper is not None:
            mask = mask.masked_fill(distance > upper, -torch.inf)
    highest = mask.amax(-1, keepdim=True)
    finite = highest > -torch.inf
    mask = torch.where(finite & (highest <= _HIDES), mask - highest, mask)
    return query.masked_fill(finite & (highest <= _LOSES_SCORES), 0), mask
