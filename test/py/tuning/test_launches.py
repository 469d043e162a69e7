"""Launches of a compiled function are traced once for each problem, counted, and leave its results as they were."""

from __future__ import annotations

import warnings

import pytest
import torch

from flycc.kernels import mx
from flycc.kernels.gemm import GemmConfig
from flycc.runtime import choice, grouped_gemm, ops  # noqa: F401
from flycc.tuning import launches as subject
from flycc.tuning.launches import watched_launches


class Layers(torch.nn.Module):
    """Two equal products and one of other sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Linear(64, 64, bias=False) for _ in range(2))
        self.last = torch.nn.Linear(64, 96, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(self.first(x)))


@pytest.mark.parametrize("whole", [0, subject._WHOLE])
def test_counts_by_problem_and_right_results(whole: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing left for whole launches PyTorch computes; either way small integers make every product exact."""
    monkeypatch.setattr(subject, "_WHOLE", whole)
    seed = torch.seed()
    print("seed", seed)
    model = Layers().bfloat16().requires_grad_(False)
    for parameter in model.parameters():
        parameter.copy_(torch.zeros_like(parameter))
        # One entry of 1 in each row: a selection, exact in any order of summation.
        parameter[torch.arange(parameter.shape[0]), torch.randint(0, 64, (parameter.shape[0],))] = 1
    x = torch.randint(-8, 9, (32, 64)).bfloat16()
    compiled = torch.compile(model, backend="flycc")
    with watched_launches() as found, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert torch.equal(compiled(x), model(x))
        assert torch.equal(compiled(x), model(x))
    by_sizes = {tuple(launch.sizes.values()): launch for launch in found.values()}
    assert {sizes: launch.count for sizes, launch in by_sizes.items()} == {(32, 64, 64): 4, (32, 96, 64): 2}
    macs = {sizes: launch.prediction().flops / 2 for sizes, launch in by_sizes.items()}
    for (m, n, k), count in macs.items():
        assert count >= m * n * k  # tiles are padded, never cut


def test_only_launches_inside_the_block() -> None:
    a, b = torch.ones(32, 64).bfloat16(), torch.ones(64, 32).bfloat16()
    torch.ops.flycc.gemm(a, b)
    with watched_launches() as found:
        pass
    torch.ops.flycc.gemm(a, b)
    assert not found


def test_a_grouped_product_is_known_by_its_sizes() -> None:
    """Two rows for each of three groups, traced with the offsets that it was called with."""
    a, b = torch.ones(6, 64).bfloat16(), torch.ones(3, 64, 32).bfloat16()
    offsets = torch.tensor([2, 4, 6], dtype=torch.int32)
    with watched_launches() as found:
        assert torch.equal(grouped_gemm.grouped_gemm(a, b, offsets), torch.full((6, 32), 64.0).bfloat16())
    (launch,) = found.values()
    assert launch.sizes == {"groups": 3, "m": 6, "n": 32, "k": 64}
    assert launch.prediction().flops >= 2 * 6 * 32 * 64


def test_an_mx_product_is_known_by_its_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ones times ones, each with a scale of 1: sums of K, in which `k` counts pairs of bytes. Of workgroups that share
    K those that are traced are the last to come, which have the others' sums to add."""
    a, b = (torch.full((rows, 1024), 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn) for rows in (16, 32))
    scales = [torch.full((len(x), 32), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu) for x in (a, b)]
    config = mx.MxConfig(GemmConfig(16, 32, 64, waves_k=2, staged=False, splits=4))
    steps = []
    choice.install(provider := lambda problem: config)
    try:
        for arrived in (subject.gemm.others_arrived, lambda parts: 0):
            monkeypatch.setattr(subject.gemm, "others_arrived", arrived)
            with watched_launches() as found:
                y = torch.ops.flycc.scaled_gemm(a, b, *scales, out_dtype=torch.bfloat16)
            assert torch.equal(y, torch.full((16, 32), 1024.0).bfloat16())
            (launch,) = found.values()
            assert launch.grid == (4, 1, 1)
            assert launch.sizes == {"m": 16, "n": 32, "k": 512}
            steps.append(launch.trace.wave_instructions)
    finally:
        choice.remove(provider)
    assert steps[0] > steps[1]
