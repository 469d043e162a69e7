"""flycc.attention against float64, with what each option changes, in one part and in several.

It computes what a kernel computes with fewer roundings, so kernels' bounds hold.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_reference import Attention, dropout_mask

from flycc import attention
from flycc.contracts.sdpa import kept

SEED, OFFSET = 2**61 + 12345, 7
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "softcap": {"softcap": 3.0},
    "band": {"lower": -2, "upper": 1},
    "slopes": {"slopes": torch.tensor([0.5, 0.25, 0.0, -1.0, 2.0, 0.125])},
    "bool-mask": {"mask": torch.arange(90).view(2, 1, 5, 9) % 7 > 2},
    "mask": {"mask": torch.linspace(-3, 3, 54).view(6, 1, 9)},
    "documents": {"documents": (torch.arange(10).view(2, 5) // 3, torch.arange(18).view(2, 9) // 4)},
    "dropout": {"dropout_p": 0.3},
    "dropout-of-all": {"dropout_p": 1.0},
    "queries-that-see-nothing": {"upper": -2},
}


@pytest.mark.parametrize("at_a_time", [1 << 24, 200])
@pytest.mark.parametrize("name", OPTIONS)
def test_against_float64(name: str, at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_SCORES", at_a_time)
    q, k, v, grad = (
        torch.randn(shape).bfloat16() for shape in ((2, 6, 5, 16), (2, 2, 9, 16), (2, 2, 9, 8), (2, 6, 5, 8))
    )
    options = dict(OPTIONS[name])
    p = options.get("dropout_p")
    keep = None if p is None else dropout_mask(SEED, OFFSET, (2, 6, 5, 9), p)
    reference = Attention(q, k, v, 0.3, **options, keep=keep)
    documents = options.pop("documents", (None, None))
    scoring = attention.Scoring(
        0.3,
        query_documents=documents[0],
        key_documents=documents[1],
        seed=torch.tensor([SEED, OFFSET]),
        **options,
    )
    out, lse = attention.forward(q, k, v, scoring)
    exact, exact_lse = reference.forward()
    assert ((out - exact).abs() <= reference.bound()).all()
    seen = exact_lse > -torch.inf
    assert torch.equal(lse > -torch.inf, seen)
    assert ((lse - exact_lse).abs() <= reference.lse_bound())[seen].all()
    assert torch.equal(attention.log_sums(q, k, scoring), lse)
    gradients = attention.backward(grad, q, k, v, out, lse, scoring)
    for mine, theirs, bound in zip(
        gradients, reference.backward(grad), reference.backward_bounds(grad), strict=True
    ):
        assert ((mine - theirs).abs() <= bound).all()


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4)])
@pytest.mark.parametrize("keys", [0, 3])
def test_empty_sizes(shape: tuple[int, ...], keys: int) -> None:
    q, k = torch.randn(shape), torch.randn(*shape[:2], keys, 4)
    out, lse = attention.forward(q, k, k, attention.Scoring(1.0))
    assert out.shape == shape
    assert lse.shape == shape[:-1]
    gradients = attention.backward(out, q, k, k, out, lse, attention.Scoring(1.0))
    assert [x.shape for x in gradients] == [q.shape, k.shape, k.shape]


def test_queries_without_keys() -> None:
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 0, 4)
    out, lse = attention.forward(q, k, k, attention.Scoring(1.0))
    assert not out.any()
    assert (lse == -torch.inf).all()


@pytest.mark.parametrize("lowest", [-1e4, -1e9, torch.finfo(torch.bfloat16).min])
def test_equal_weights_where_a_mask_gives_its_lowest_number_to_all_keys(lowest: float) -> None:
    q, k, v, grad = (torch.randn(1, 2, n, 16).bfloat16() for n in (3, 5, 5, 3))
    q[:, :, 1] = 0
    mask = torch.zeros(3, 5)
    mask[1] = lowest
    scoring, reference = (
        attention.Scoring(0.25, mask),
        Attention(q, k, v, 0.25),
    )  # q of 0 has the same weights
    out, lse = attention.forward(q, k, v, scoring)
    assert ((out - reference.forward()[0]).abs() <= reference.bound()).all()
    mine = attention.backward(grad, q, k, v, out, lse, scoring)
    for x, right, bound in zip(mine, reference.backward(grad), reference.backward_bounds(grad), strict=True):
        assert ((x - right).abs() <= bound).all()


def test_dropout_keeps_what_the_contract_says() -> None:
    mask = attention.keep_mask(torch.tensor([-SEED, OFFSET]), 0.4, 3, range(2, 6), 7)
    for place in ((0, 2, 0), (1, 5, 6), (2, 3, 3), (2, 4, 5)):
        batch_head, query, key = place
        assert mask[batch_head, query - 2, key] == kept(-SEED, OFFSET, *place, 0.4)
