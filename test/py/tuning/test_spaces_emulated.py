"""Every configuration that a search may choose computes its problem: emulated, chosen as a table would."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from flycc.contracts import GemmProblem, RmsNormProblem
from flycc.runtime import choice, ops, refusals
from flycc.tuning.family import FAMILIES

GEMM = GemmProblem("bf16", 40, 72, 352, trans_b=True)
NORM = RmsNormProblem("bf16", 5, 2888, weight="bf16")
SPACES: dict[str, list[Any]] = {
    "gemm": list(FAMILIES["gemm"].space(GEMM)),
    "rms_norm": list(FAMILIES["rms_norm"].space(NORM)),
}
EPS = 1e-6

assert ops  # it defines torch.ops.flycc


def some(family: str, count: int) -> list[Any]:
    """A few of a space, other ones in each run; the whole of it is for the nightly tests."""
    seed = int(os.environ["FLYCC_TEST_SEED"])
    drawn = set(random.Random(seed).sample(range(len(SPACES[family])), count))
    return [
        pytest.param(config, id=str(config), marks=() if i in drawn else pytest.mark.nightly)
        for i, config in enumerate(SPACES[family])
    ]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What the test appends answers for every problem."""
    configs: list[Any] = []
    monkeypatch.setattr(choice, "_providers", [lambda problem: configs[0]])
    with refusals.strict():
        yield configs


@pytest.mark.parametrize("config", some("gemm", 3))
def test_products(config: Any, asked: list[Any]) -> None:
    """Whole numbers of magnitude at most 4: float32 has their sums exactly, so that one rounding is all there is."""
    asked.append(config)
    a, b = torch.randint(-4, 5, (GEMM.m, GEMM.k)), torch.randint(-4, 5, (GEMM.n, GEMM.k))
    out = torch.ops.flycc.gemm(a.bfloat16(), b.bfloat16(), trans_b=True)
    assert choice.choose(GEMM, lambda problem: None) == config
    assert torch.equal(out, (a @ b.T).double().bfloat16())


@pytest.mark.parametrize("config", some("rms_norm", 3))
def test_norms(config: Any, asked: list[Any]) -> None:
    """The result is rounded once to bfloat16, by 2^-8 of the value at most; float32's roundings are below 2^-16."""
    asked.append(config)
    x, weight = torch.randn(NORM.rows, NORM.columns).bfloat16(), torch.randn(NORM.columns).bfloat16()
    y, *_ = torch.ops.flycc.rms_norm_fwd(x, weight, None, EPS)
    assert choice.choose(NORM, lambda problem: None) == config
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()
    torch.testing.assert_close(y.double(), expected, rtol=2**-8 + 2**-16, atol=0)
