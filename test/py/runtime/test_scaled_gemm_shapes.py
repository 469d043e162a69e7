"""flycc::scaled_gemm at the sizes that PyTorch's own tests have, and at published ones, against float64.

Elements are quantised from normal numbers as the OCP rule does it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
import torch
from scaled_values import elements, scales, worth
from torch import Tensor

from flycc.kernels.gemm import GemmConfig
from flycc.kernels.mx import MxConfig
from flycc.runtime import refusals
from flycc.runtime import scaled_gemm as runtime
from flycc.runtime.mx_quantize import mx_quantize

scaled_gemm = torch.ops.flycc.scaled_gemm

#: M, N, K of PyTorch's tests of MX products.
PYTORCHS = [(256, 256, k) for k in (256, 512, 1024, 2048)]
PYTORCHS += [(64, 96, 256), (65, 104, 384), (65, 104, 640), (256, 512, 512), (256, 256, 8192)]
#: The published sizes with few rows.
PUBLISHED = [(32, n, 4096) for n in (4096, 14336, 28672)] + [(m, 4096, 4096) for m in (64, 128, 256)]


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    """Results are the kernels'."""
    torch.manual_seed(int(os.environ["FLYCC_TEST_SEED"]))
    with refusals.strict():
        yield


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["e4m3", "e2m1"])
@pytest.mark.parametrize(
    ("size", "biased"), [*itertools.product(PYTORCHS, (False, True)), *itertools.product(PUBLISHED, (False,))]
)
def test_relative_rms(size: tuple[int, int, int], biased: bool, form: str) -> None:
    """Results of bfloat16 are off by a relative RMS of 0.002: a rounding is by 2^-9 at most, and by a third in the mean
    of squares."""
    m, n, k = size
    x, y = torch.randn(m, k), torch.randn(n, k)
    (a, scale_a, _), (b, scale_b, _) = (mx_quantize(z, format=form) for z in (x, y))
    bias = torch.randn(n).bfloat16() if biased else None
    result = scaled_gemm(a, b, scale_a, scale_b, bias, out_dtype=torch.bfloat16)
    expected = worth(a, scale_a) @ worth(b, scale_b).T + (bias.double() if bias is not None else 0)
    assert relative_rms(result, expected) <= 0.002


def relative_rms(result: Tensor, expected: Tensor) -> float:
    return float((result.double() - expected).norm() / expected.norm())


#: Configurations by their order along K: 128 elements at a time by one wave, or shares of four waves added up. In pairs
#: of bytes 128 elements of 8 bits are 64.
ORDERS = {
    "one after the other": [
        MxConfig(GemmConfig(64, 64, 64, 2, 2)),
        MxConfig(GemmConfig(64, 64, 64, 2, 2, stages_m=3, stages_n=3)),
        MxConfig(GemmConfig(64, 64, 64, 2, 2, stages_m=3, stages_n=3), packed=True),
        MxConfig(GemmConfig(128, 64, 64, 2, 2, stages_m=3, stages_n=3)),
        MxConfig(GemmConfig(256, 128, 64, 2, 4, stages_m=2, stages_n=2, schedule="staggered"), packed=True),
        MxConfig(GemmConfig(32, 64, 64, staged=False)),
        MxConfig(GemmConfig(16, 16, 128, staged=False)),
    ],
    "four waves": [
        MxConfig(GemmConfig(16, 64, 128, waves_k=4, staged=False)),
        MxConfig(GemmConfig(32, 32, 128, waves_k=4, staged=False)),
        MxConfig(GemmConfig(32, 64, 128, waves_k=4, staged=False)),
    ],
}


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["e4m3", "e2m1"])
@pytest.mark.parametrize("order", ORDERS)
def test_tiles_of_one_order_along_k_give_the_same_bits(
    order: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales are so far apart that sums are rounded at each step: other orders would give other bits."""
    a, b = elements(form, 70, 2048), elements(form, 65, 2048)
    given = a, b, scales(110, 140, 70, 64), scales(110, 140, 65, 64)
    results = []
    for config in ORDERS[order]:
        monkeypatch.setattr(runtime.family, "choose", lambda problem, config=config: config)
        results.append(scaled_gemm(*given, out_dtype=torch.float32))
    for one, other in itertools.pairwise(results):
        assert torch.equal(one, other)
