"""What a lane makes of products, against float64: scores, their derivative, probabilities, and what dropout keeps.

Errors come from float32's roundings, at most `ROUNDINGS` of them on the way to a score, each of a number that the sum
of its terms' magnitudes bounds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields

import ml_dtypes
import numpy as np
import pytest
from attention_reference import dropout_mask
from emulated_attention_scores import run

from flycc.contracts import sdpa
from flycc.contracts.sdpa import SdpaProblem
from flycc.kernels.attention.features import BAND_LIMIT, Features, band

E = 2.0**-24
ROUNDINGS = 16
TYPES = {"bool": np.bool_, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
ALONG_KEYS = pytest.mark.parametrize("along_keys", [True, False])


def generator() -> np.random.Generator:
    return np.random.default_rng(int(os.environ["FLYCC_TEST_SEED"]))


@dataclass
class Case:
    """A head's products and what its scores are made with; `mask` may be strided, strides of 0 among them."""

    products: np.ndarray
    scale: float = 0.125
    mask: np.ndarray | None = None
    lower: int | None = None
    upper: int | None = None
    documents: tuple[np.ndarray, np.ndarray] | None = None
    slope: float | None = None
    cap: float | None = None
    lse: np.ndarray | None = None

    @property
    def features(self) -> Features:
        kinds = [kind for kind, of in TYPES.items() if self.mask is not None and self.mask.dtype == of]
        return Features(
            mask=kinds[0] if kinds else "none",  # type: ignore[arg-type]
            lower=self.lower is not None,
            upper=self.upper is not None,
            documents=self.documents is not None,
            alibi=self.slope is not None,
            softcap=self.cap is not None,
        )

    def run(self, along_keys: bool) -> dict[str, np.ndarray]:
        queries, _ = self.products.shape
        lse = np.zeros(queries, np.float32) if self.lse is None else self.lse
        arrays = {"products": self.products, "lse": lse}
        values: dict[str, int | float] = {"scale": self.scale, "softcap": self.cap or 0.0}
        values |= {"lower": band(self.lower), "upper": band(self.upper)}
        if self.mask is not None:
            arrays["mask"] = whole_memory(self.mask)
            strides = (stride // self.mask.itemsize for stride in self.mask.strides)
            values |= dict(zip(("mask_query", "mask_key"), strides, strict=True))
        if self.documents is not None:
            arrays |= dict(zip(("query_documents", "key_documents"), self.documents, strict=True))
        if self.slope is not None:
            arrays["slopes"] = np.array([self.slope], np.float32)
        found = run(self.features, along_keys, arrays, values)
        assert found.findings == ()
        return found.results

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores in units of ln 2, and how far the kernel's may be from them."""
        i, j = np.ogrid[tuple(slice(n) for n in self.products.shape)]
        t = self.scale * self.products.astype(float)
        size = abs(t)
        if self.cap is not None:
            t = self.cap * np.tanh(t / self.cap)
        if self.slope is not None:
            t = t + self.slope * (j - i)
            size = size + abs(self.slope * (j - i))
        seen = np.ones(t.shape, bool)
        if self.mask is not None and self.mask.dtype == np.bool_:
            seen &= self.mask
        elif self.mask is not None:
            t = t + self.mask.astype(float)
            size = size + abs(self.mask.astype(float))
        if self.lower is not None:
            seen &= j >= i + self.lower
        if self.upper is not None:
            seen &= j <= i + self.upper
        if self.documents is not None:
            seen &= self.documents[0][:, None] == self.documents[1]
        return np.where(seen, t, -np.inf) / np.log(2), ROUNDINGS * E * size / np.log(2)

    def check(self, along_keys: bool) -> dict[str, np.ndarray]:
        found = self.run(along_keys)
        expected, bound = self.expected()
        finite = np.isfinite(expected)
        assert (abs(found["scores"][finite] - expected[finite]) <= bound[finite]).all()
        np.testing.assert_array_equal(found["scores"][~finite], expected[~finite])
        return found


def whole_memory(array: np.ndarray) -> np.ndarray:
    """What an array is a view of, from its first element to its last."""
    last = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True))
    return np.lib.stride_tricks.as_strided(array, (last // array.itemsize + 1,), (array.itemsize,))


def cases() -> Iterator[tuple[str, Case]]:
    rng = generator()
    products = rng.standard_normal((33, 36)).astype(np.float32) * 30
    ids = (np.sort(rng.integers(0, 3, 33)).astype(np.int32), np.sort(rng.integers(0, 3, 36)).astype(np.int32))
    yield "plain", Case(products)
    yield "causal", Case(products, upper=36 - 33)
    yield "window", Case(products, lower=-20, upper=2)
    yield "unbounded", Case(products, lower=-(1 << 40), upper=1 << 40)
    yield "documents", Case(products, documents=ids)
    yield "alibi", Case(products, slope=0.37)
    yield "all", Case(products, 0.3, masks(rng, 33, 36)["bf16 in words"], -9, 30, ids, -0.2, 30.0)
    for name, mask in masks(rng, 33, 36).items():
        yield f"mask {name}", Case(products, mask=mask)


def masks(rng: np.random.Generator, queries: int, keys: int) -> dict[str, np.ndarray]:
    """Of all types and layouts; `keys` is a multiple of 4, and rows in whole words are those of 4 bytes."""
    numbers = rng.standard_normal((queries, keys + 4)).astype(np.float32)
    numbers[rng.random(numbers.shape) < 0.3] = -np.inf
    whole = {kind: (numbers > 0 if kind == "bool" else numbers.astype(of)) for kind, of in TYPES.items()}

    def padded(kind: str, stride: int, first: int = 0) -> np.ndarray:
        return np.ascontiguousarray(whole[kind][:, :stride])[:, first : first + keys]

    found = {f"{kind} in words": padded(kind, keys) for kind in TYPES}
    found |= {f"{kind} not in words": padded(kind, keys + 3) for kind in TYPES}
    found["bf16 in padded words"] = padded("bf16", keys + 2)
    found["bf16 misaligned"] = padded("bf16", keys + 4, 1)
    found["f16 in columns"] = np.asfortranarray(whole["f16"])[:, :keys]
    found["f32 of keys"] = np.broadcast_to(whole["f32"][:1, :keys], (queries, keys))
    found["bool of queries"] = np.broadcast_to(whole["bool"][:, :1], (queries, keys))
    return found


@pytest.mark.parametrize("name", [name for name, _ in cases()])
def test_scores_along_keys(name: str) -> None:
    dict(cases())[name].check(True)


@pytest.mark.parametrize("name", ["causal", "window", "all", "mask bool in words", "mask f16 in columns"])
def test_scores_along_queries(name: str) -> None:
    dict(cases())[name].check(False)


@ALONG_KEYS
def test_the_softcap_of_any_number_and_its_derivative(along_keys: bool) -> None:
    special = [0.0, -0.0, 1e-30, 0.6 * 8, np.inf, -np.inf, np.nan, 3e38]
    ramp = np.geomspace(1e-6, 400, 40 * 32 - 8)
    u = np.concatenate([special, ramp * generator().choice([-1, 1], ramp.size)]).reshape(40, 32)
    case = Case(u.astype(np.float32), scale=0.25, cap=2.0)
    found = case.check(along_keys)
    exact = np.minimum(abs(case.products.astype(float) / 8), 300)
    derivative = 4 / (np.exp(exact) + np.exp(-exact)) ** 2
    off = (ROUNDINGS + 4 * exact) * E * derivative + 2.0**-124
    there = ~np.isnan(exact)
    assert (abs(found["derivatives"] - derivative)[there] <= off[there]).all()
    assert np.isnan(found["derivatives"][~there]).all()


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_addends_as_low_as_they_can_be_hide_nothing(kind: str) -> None:
    """-inf hides; the lowest finite number, of a row of nothing else, leaves finite scores that are all the same."""
    products = generator().standard_normal((32, 64)).astype(np.float32)
    lowest = float(ml_dtypes.finfo(TYPES[kind]).min)
    mask = np.full((32, 64), lowest, np.float32).astype(TYPES[kind])
    mask[3] = -np.inf
    mask[4, 5] = np.nan
    scores = Case(products, mask=mask).run(True)["scores"]
    assert (scores[3] == -np.inf).all()
    assert np.isnan(scores[4, 5])
    assert np.isfinite(np.delete(scores, (3, 4), 0)).all()
    assert (scores[0] == scores[0, 0]).all()


@ALONG_KEYS
@pytest.mark.parametrize("mask", [None, "f32"])
def test_probabilities(along_keys: bool, mask: str | None) -> None:
    """exp(t - lse): rows without a key have lse = -inf and p = 0; NaN in lse is NaN in p."""
    rng = generator()
    products = rng.standard_normal((40, 48)).astype(np.float32) * 20
    addends = None if mask is None else rng.standard_normal((40, 48)).astype(np.float32)
    case = Case(products, upper=-3, mask=addends)
    t = case.expected()[0] * np.log(2)
    with np.errstate(divide="ignore"):
        lse = np.logaddexp.reduce(t, 1)
    case.lse = lse.astype(np.float32)
    assert (case.lse[:3] == -np.inf).all()
    expected = np.exp(np.where(t == -np.inf, t, t - np.where(lse == -np.inf, 0, lse)[:, None]))
    size = (abs(products) * case.scale + (0 if mask is None else abs(addends)))[3:]
    bound = np.expm1(ROUNDINGS * E * (1 + size + abs(lse[3:, None]))) * expected[3:] + 2.0**-125
    found = case.run(along_keys)["probabilities"]
    assert (abs(found - expected)[3:] <= bound).all()
    assert (found[:3] == 0).all()
    case.lse[7] = np.nan
    assert np.isnan(case.run(along_keys)["probabilities"][7]).all()


@ALONG_KEYS
@pytest.mark.parametrize("dropout_p", [0.0, 0.1, 1.0])
def test_dropout_keeps_what_the_contract_says(along_keys: bool, dropout_p: float) -> None:
    rng = generator()
    seed, offset = (int(n) for n in rng.integers(-(2**63), 2**63, 2))
    arrays = {
        "products": np.zeros((40, 70), np.float32),
        "lse": np.zeros(40, np.float32),
        "seed": np.array([seed, offset], np.int64),
    }
    limit = sdpa.threshold(dropout_p)
    values = {"threshold": limit - (limit >> 31 << 32), "batch_head": 5}
    found = run(Features(dropout=True), along_keys, arrays, values | {"scale": 1.0})
    assert found.findings == ()
    expected = dropout_mask(seed, offset, (2, 3, 40, 70), dropout_p)[1, 2].numpy()
    np.testing.assert_array_equal(found.results["kept"], expected)
    assert sdpa.kept(seed, offset, 5, 39, 69, dropout_p) == expected[39, 69]


def test_features_are_those_of_the_problem() -> None:
    problem = SdpaProblem("bf16", 1, 1, 1, 1, 1, 64, 64, mask="bool", lower=True, dropout=True)
    features = Features.of(problem)
    assert str(features) == "_maskbool_lower_dropout"
    assert all(getattr(features, f.name) == getattr(problem, f.name) for f in fields(Features))
    assert [band(x) for x in (None, 5, -(1 << 40), 1 << 40)] == [0, 5, -BAND_LIMIT, BAND_LIMIT]
