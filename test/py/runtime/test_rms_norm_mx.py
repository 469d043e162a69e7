"""flycc::rms_norm_mx: bit for bit what mx_quantize makes of what rms_norm_fwd makes, which have tests of their own."""

from __future__ import annotations

import pytest
import torch

from flycc.contracts import FlyccError, Reason
from flycc.runtime import launching, ops, refusals, rms_norm  # noqa: F401 (ops defines them)

EPS = 1e-6


@pytest.fixture(autouse=True)
def _strict():
    with refusals.strict():
        yield


@pytest.fixture
def launches(monkeypatch):
    """The kernels that were launched."""
    found = []
    launch = launching.launch

    def remember(device, kernel, *arguments):
        found.append(kernel.spec.symbol)
        return launch(device, kernel, *arguments)

    monkeypatch.setattr(launching, "launch", remember)
    return found


def check(x, weight, residual, format, rounding="floor", **options):
    found = torch.ops.flycc.rms_norm_mx(x, weight, residual, EPS, format=format, rounding=rounding, **options)
    y, new_residual, _ = torch.ops.flycc.rms_norm_fwd(x, weight, residual, EPS, **options)
    expected = (*torch.ops.flycc.mx_quantize(y, format=format, rounding=rounding)[:2], new_residual)
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.is_contiguous()
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def rows(*shape, dtype=torch.bfloat16):
    """Of very different size, with an infinity, so that a row is NaN."""
    x = torch.randn(*shape) * torch.randn(*shape[:-1], 1).mul(4).exp2()
    x.view(-1, shape[-1])[0, 3] = torch.inf
    return x.to(dtype)


def test_bits(launches):
    x = rows(2, 3, 576)
    check(x, torch.randn(576), rows(2, 3, 576), "e4m3", cast_before_weight=True)
    check(rows(3, 4096), torch.randn(4096).bfloat16(), None, "e2m1", "even", weight_offset=True)
    check(rows(5, 64, dtype=torch.float16)[:, :32], None, None, "e5m2", out_dtype=torch.bfloat16)
    fused = [name for name in launches if "_e4m3" in name or "_e2m1" in name or "_e5m2" in name]
    assert [name.startswith("rms_norm") for name in fused] == [True, False] * 3


@pytest.mark.parametrize(("shape", "dtype"), [((3, 40), torch.bfloat16), ((2, 64), torch.float32)])
def test_what_takes_two_launches(shape, dtype, launches):
    check(rows(*shape, dtype=dtype), None, rows(*shape, dtype=dtype), "e2m1")
    assert launches[0].startswith("rms_norm")
    assert launches[1].startswith("mx_quantize")


def test_no_rows():
    data, scales, residual = torch.ops.flycc.rms_norm_mx(
        torch.empty(0, 64), None, torch.empty(0, 64), EPS, format="e2m1"
    )
    assert (data.shape, scales.shape, residual.shape) == ((0, 32), (0, 2), (0, 64))


def test_a_failure_goes_to_the_two(monkeypatch):
    def fail(*_, **options):
        raise FlyccError(Reason("rms-norm.test", "on purpose"))

    x = rows(2, 64)
    expected = torch.ops.flycc.mx_quantize(torch.ops.flycc.rms_norm_fwd(x, None, None, EPS)[0])
    monkeypatch.setattr(rms_norm, "launch", fail)
    reasons = []
    monkeypatch.setattr(refusals, "refuse", lambda op, error: reasons.append(error.reason.code))
    found = torch.ops.flycc.rms_norm_mx(x, None, None, EPS)
    assert set(reasons) == {"rms-norm.test"}
    # PyTorch's own norm may round the last bit otherwise: what is compared are the scales of numbers that are not NaN.
    assert torch.equal(found[1][0].isnan(), expected[1][0].isnan())
    assert found[0].shape == expected[0].shape


def test_the_operator_is_legal():
    arguments = (torch.randn(4, 64).bfloat16(), torch.randn(64), torch.randn(4, 64).bfloat16(), EPS)
    options = {"test_utils": "test_faketensor"}
    torch.library.opcheck(torch.ops.flycc.rms_norm_mx, arguments, {"format": "e2m1"}, **options)
