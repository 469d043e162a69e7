"""flycc::mx_quantize, mx_dequantize and scale_range as PyTorch operators, bit for bit against float64 by search.

Both ways of computing them are tested: kernels, and PyTorch's operators.
"""

from __future__ import annotations

import os

import mx_reference
import numpy as np
import pytest
import torch

from flycc.runtime import mx_quantize, ops, refusals  # noqa: F401 (ops defines them)

FORMATS = ("e4m3", "e5m2", "e2m1")
ROUNDINGS = ("floor", "even", "ceil")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
generator = np.random.default_rng(int(os.environ["FLYCC_TEST_SEED"]))


@pytest.fixture(autouse=True)
def _strict():
    with refusals.strict():
        yield


def numbers(shape, dtype, spread=8.0):
    """Of any size, with zeros, blocks of zeros, denormal numbers, infinities and NaN."""
    count = int(np.prod(shape))
    x = generator.standard_normal(count) * np.exp2(generator.normal(0, spread, count))
    x[generator.random(count) < 0.1] = -0.0
    x[generator.random(count) < 0.002] = np.inf
    x[generator.random(count) < 0.002] = np.nan
    tensor = torch.from_numpy(x.reshape(shape)).to(dtype)
    if tensor.numel() > 64:
        tensor.view(-1)[:40] = 0
        tensor.view(-1)[40:64] *= torch.finfo(dtype).smallest_normal
    return tensor


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy()


def check(x, format, rounding, quantize=torch.ops.flycc.mx_quantize):
    data, scales, found = quantize(x, format=format, rounding=rounding)
    fake = mx_quantize.mx_quantize_fake(x, format=format, rounding=rounding)
    for result, wanted in zip((data, scales, found), fake, strict=True):
        assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
        assert result.is_contiguous()
    rows = x.double().reshape(-1, x.shape[-1]).numpy()
    bytes_, exponents = mx_reference.quantize(rows, format, rounding)
    np.testing.assert_array_equal(raw(scales).reshape(exponents.shape), exponents)
    np.testing.assert_array_equal(raw(data).reshape(bytes_.shape), bytes_)
    assert found.tolist() == mx_reference.scale_range(exponents)
    return data, scales, found


def in_pytorch(x, format, rounding):
    return mx_quantize._quantize_in_pytorch(x, format, rounding)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_by_pytorch(dtype, format, rounding):
    for shape in ((64, 256), (3, 5, 63), (33,)):
        check(numbers(shape, dtype), format, rounding, in_pytorch)
    check(numbers((8, 64), dtype, spread=60.0), format, rounding, in_pytorch)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_back_by_pytorch(dtype, format):
    data, scales, _ = in_pytorch(numbers((16, 96), torch.float32, spread=40.0), format, "even")
    scales.view(torch.uint8)[0] = torch.tensor([0, 255, 254])
    result = mx_quantize._dequantize_in_pytorch(data, scales, dtype)
    exact = torch.from_numpy(mx_reference.dequantize(raw(data), raw(scales), format))
    # float32 holds each, or overflows: a rounding to it first is none.
    torch.testing.assert_close(result, exact.float().to(dtype), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(result.signbit() & (result == 0), exact.signbit() & (result == 0))


@pytest.mark.parametrize(
    "view",
    [
        lambda: numbers((6, 160), torch.bfloat16)[:, 3:131],
        lambda: numbers((6, 161), torch.bfloat16)[:, :128],
        lambda: numbers((64, 6), torch.float16).t(),
        lambda: numbers((4, 6, 64), torch.float32)[:, 1:3],
        lambda: numbers((1, 32), torch.bfloat16).expand(5, 32),
        lambda: numbers((100,), torch.bfloat16)[1:65],
    ],
)
def test_views(view):
    x = view()
    data, scales, _ = check(x, "e2m1", "floor")
    wide = torch.ops.flycc.mx_dequantize(data, scales, dtype=torch.float32)
    exact = mx_reference.dequantize(
        raw(data).reshape(-1, data.shape[-1]), raw(scales).reshape(-1, scales.shape[-1]), "e2m1"
    )
    np.testing.assert_array_equal(wide.double().reshape(exact.shape).numpy(), exact)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,), (2, 0, 5)])
def test_empty_sizes(shape):
    x = torch.empty(shape)
    for format in FORMATS:
        data, scales, found = torch.ops.flycc.mx_quantize(x, format=format)
        assert scales.shape == (*shape[:-1], -(-shape[-1] // 32))
        assert found.tolist() == [127, 127, 0]
        result = torch.ops.flycc.mx_dequantize(data, scales, dtype=torch.bfloat16)
        assert result.shape[:-1] == shape[:-1]


def test_ranges_of_weights_are_kept(monkeypatch):
    scales = torch.tensor([5, 255], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    launches = []
    launch = mx_quantize.launch_range
    monkeypatch.setattr(mx_quantize, "launch_range", lambda *given: launches.append(0) or launch(*given))
    for _ in range(3):
        found = torch.ops.flycc.scale_range(scales, keep=True)
        assert found.tolist() == [5, 5, 1]
        found.zero_()  # is the caller's
    assert len(launches) == 1
    scales.view(torch.uint8)[1] = 9
    assert torch.ops.flycc.scale_range(scales, keep=True).tolist() == [5, 9, 0]
    assert torch.ops.flycc.scale_range(scales.clone(), keep=True).tolist() == [5, 9, 0]
    assert len(launches) == 3
    with torch.inference_mode():
        other = scales.clone()
        other.view(torch.uint8)[0] = 1
        assert torch.ops.flycc.scale_range(other, keep=True).tolist() == [1, 9, 0]
        other.view(torch.uint8)[0] = 2
        assert torch.ops.flycc.scale_range(other, keep=True).tolist() == [2, 9, 0]


def test_ranges():
    scales = torch.tensor([[3, 255], [200, 7]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    assert torch.ops.flycc.scale_range(scales).tolist() == [3, 200, 1]
    assert torch.ops.flycc.scale_range(scales[:, 1:]).tolist() == [7, 7, 1]
    assert torch.ops.flycc.scale_range(scales[:1, 1:]).tolist() == [127, 127, 1]
    assert torch.ops.flycc.scale_range(scales[1]).tolist() == [7, 200, 0]


def test_the_operators_are_legal():
    x = torch.randn(4, 96)
    options = {"test_utils": "test_faketensor"}  # PyTorch's test of schemas lacks arithmetic of these types
    for format in FORMATS:
        torch.library.opcheck(torch.ops.flycc.mx_quantize, (x,), {"format": format}, **options)
        given = torch.ops.flycc.mx_quantize(x, format=format)[:2]
        torch.library.opcheck(torch.ops.flycc.mx_dequantize, given, {"dtype": torch.bfloat16}, **options)
    torch.library.opcheck(torch.ops.flycc.scale_range, given[1:], {"keep": True}, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: torch.ops.flycc.mx_quantize(torch.ones(4, dtype=torch.int32)), "x is torch.int32"),
        (lambda: torch.ops.flycc.mx_quantize(torch.tensor(1.0)), "no dimension"),
        (lambda: torch.ops.flycc.mx_quantize(torch.ones(4), format="e3m2"), "format is e3m2"),
        (lambda: torch.ops.flycc.mx_quantize(torch.ones(4), rounding="up"), "rounding is up"),
        (lambda: torch.ops.flycc.scale_range(torch.ones(4)), "scales is torch.float32"),
        (
            lambda: torch.ops.flycc.mx_dequantize(
                torch.zeros(4, 64).to(torch.float8_e5m2),
                torch.ones(4, 3).to(torch.float8_e8m0fnu),
                dtype=torch.float32,
            ),
            r"scales are \[4, 3\], must be \[4, 2\]",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises((RuntimeError, ValueError), match=message):
        call()
