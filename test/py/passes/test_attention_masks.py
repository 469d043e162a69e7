"""What passes claim to know of a mask is what the program that makes it computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch_mlir.ir import Context

from flycc import dialects
from flycc.frontend.importer import import_graph
from flycc.passes.attention_masks import known_mask
from flycc.passes.mask_values import Banded

INF, LOWEST = float("inf"), torch.finfo(torch.bfloat16).min
#: Of the masks: all sizes differ, and none is a power of 2.
Q, K = 7, 11


def distance(queries: int = Q, keys: int = K) -> Tensor:
    return torch.arange(keys) - torch.arange(queries)[:, None]


def transformers_positions(x: Tensor) -> Tensor:
    """Causal, and within sequences that are told apart by positions that do not go on counting: here there is one."""
    batch, length, _ = x.shape
    positions = torch.arange(length)[None].expand(batch, -1)
    before = torch.cat([positions[:, :1] - 1, positions], -1)
    document = ((before[:, 1:] - before[:, :-1]) != 1).cumsum(-1)
    b = torch.arange(batch)[:, None, None, None]
    i, j = torch.arange(length)[None, None, :, None], torch.arange(length)[None, None, None, :]
    mask = x.new_ones((), dtype=torch.bool) & (positions[b, j] <= positions[b, i])
    return mask & (document[b, i] == document[b, j])


def buffer(x: Tensor) -> Tensor:
    """The last rows of a larger triangle, as models with caches write it."""
    return torch.ones(20, 20, dtype=torch.bool).tril()[None, None, K - Q : K, :K]


def of_queries_alone(x: Tensor) -> Tensor:
    return (torch.arange(Q)[:, None] < 3).expand(Q, K)


#: Programs by name, whose argument is a float tensor [Q, K, 1]; what they make is [..., Q, K].
KNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "causal": lambda x: distance() <= 0,
    "strictly-causal": lambda x: distance() < 0,
    "anti-causal": lambda x: torch.arange(Q)[:, None] <= torch.arange(K),
    "offset": lambda x: torch.arange(3, 3 + K) <= (torch.arange(Q) + 5)[:, None],
    "diagonal": lambda x: distance() == 2,
    "off-diagonal": lambda x: distance() != -1,
    "window": lambda x: (distance() <= 0) & (distance() > -3),
    "not-window": lambda x: ~((distance() <= 0) & (distance() > -3)),
    "either-side": lambda x: torch.logical_not((distance() > 2) | (distance() < -2)),
    "triu": lambda x: torch.full((Q, K), -INF).triu(1),
    "tril-of-tril": lambda x: torch.ones(Q, K).triu(-3).tril(2),
    "lowest-where": lambda x: torch.where(distance() <= 0, 0.0, LOWEST),
    "one-minus": lambda x: (1 - (distance() <= 0).float()) * -1e9,
    "filled": lambda x: torch.zeros(Q, K).masked_fill(distance() > 1, -INF),
    "sum-of-two": lambda x: (
        torch.full((Q, K), -INF).triu(1) + torch.zeros(Q, K).masked_fill(distance() < -2, -INF)
    ),
    "buffer": buffer,
    "all": lambda x: torch.ones(Q, K, dtype=torch.bool) & (torch.arange(1)[:, None] >= torch.arange(1)),
    "last-query": lambda x: torch.arange(9, 10)[:, None] >= torch.arange(K),
    "select": lambda x: torch.arange(K) <= torch.arange(Q).expand(2, Q)[1][:, None],
    "halves": lambda x: torch.cat([torch.arange(3), torch.arange(3, Q)])[:, None] >= torch.arange(K),
    "tutorial": lambda x: (
        (torch.triu(torch.ones(K, K)) == 1)
        .transpose(0, 1)
        .float()
        .masked_fill(torch.ones(K, K).tril() == 0, -INF)
    ),
    "transposed": lambda x: (torch.arange(K)[:, None] <= torch.arange(Q)).mT,
    "gathered": lambda x: (distance() <= 0)[torch.arange(2, 5)[:, None], torch.arange(1, 7)],
    "positions": transformers_positions,
}
#: Programs whose masks are not known, and whether they are known to hide what comes after a query.
UNKNOWN: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "argument": (lambda x: x[..., 0] > 0, False),
    "queries-alone": (of_queries_alone, False),
    "blocks": (lambda x: torch.arange(K) // 2 <= torch.arange(Q)[:, None] // 2, False),
    "bits": (lambda x: (torch.arange(K) & 1) <= torch.arange(Q)[:, None], False),
    "rounded": (
        lambda x: torch.arange(1000).bfloat16() <= torch.arange(1000).bfloat16()[:, None],
        False,
    ),
    "turned": (lambda x: torch.arange(-Q, 0)[torch.arange(K)[None] - 5] <= torch.arange(Q)[:, None], False),
    "and": (lambda x: (distance() <= 0) & (x[..., 0] > 0), True),
    "added": (lambda x: torch.where((x[..., 0] > 0) & (distance() <= 0), 0.0, -INF), True),
    "not-or": (lambda x: ~((x[..., 0] > 0) | (distance() > 0)), True),
}


def known(
    program: Callable[[Tensor], Tensor], x: Tensor, mode: str = "fake"
) -> tuple[Banded | None, Context]:
    graph = make_fx(program, tracing_mode=mode)(x)
    context = dialects.load(Context())
    module = import_graph(graph, context)
    [entry] = module.body.operations[0].regions[0].blocks
    return known_mask(entry.operations[-1].operands[0]), context


def expanded(known: Banded, shape: torch.Size) -> Tensor:
    queries, keys = shape[-2:]
    limits = known.band.lower, known.band.upper
    assert all(limit is None or limit.known is not None for limit in limits)
    gap, inside = distance(queries, keys), torch.ones(queries, keys, dtype=torch.bool)
    if limits[0] is not None:
        inside &= gap >= limits[0].number
    if limits[1] is not None:
        inside &= gap <= limits[1].number
    assert known.inside is not None
    return torch.where(inside, float(known.inside), float(known.outside)).expand(shape)


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_is_what_is_computed(name: str) -> None:
    x = torch.randn(Q, K, 1)
    found, _ = known(KNOWN[name], x)
    assert found is not None
    computed = KNOWN[name](x)
    assert torch.equal(expanded(found, computed.shape).to(computed.dtype), computed)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_not_claimed(name: str) -> None:
    program, causal = UNKNOWN[name]
    x = torch.randn(Q, K, 1)
    found, _ = known(program, x)
    if not causal:
        assert found is None
        return
    assert found is not None
    assert found.inside is None
    outside = (distance() > 0).expand(program(x).shape)
    assert found.band.lower is None
    assert found.band.upper is not None
    assert found.band.upper.known == 0
    assert (program(x)[outside] == found.outside).all()


def test_lengths_that_only_the_run_knows() -> None:
    """The last queries of a longer sequence: key j of query i is at most at i + keys - queries."""

    def program(x: Tensor) -> Tensor:
        queries, keys, _ = x.shape
        return torch.arange(keys) <= torch.arange(keys - queries, keys)[:, None]

    found, _ = known(program, torch.randn(Q, K, 1), "symbolic")
    assert found is not None
    assert (found.inside, found.outside, found.band.lower) == (True, False, None)
    assert found.band.upper is not None
    [(first, plus), (second, minus)] = sorted(found.band.upper.terms, key=lambda term: -term[1])
    assert (plus, minus, found.band.upper.number) == (1, -1, 0)
    assert first != second
