"""flycc::rms_norm_fwd and rms_norm_bwd as PyTorch operators: layouts, empty sizes, and what happens on failure.

Values of contiguous operands are tested with the kernels. Here the bound is coarse and catches misplaced rows: two ulps
of the output dtype around PyTorch's result, which is itself rounded once.
"""

from __future__ import annotations

import pytest
import torch

from flycc.contracts import FlyccError, Reason, RmsNormBackwardProblem, RmsNormProblem
from flycc.runtime import ops, refusals, rms_norm

EPS = 1e-6
ULP = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 2.0**-20}


@pytest.fixture(autouse=True)
def _strict():
    with refusals.strict():
        yield


def randn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def close(result, expected):
    assert result.is_contiguous()
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    bound = 2 * ULP[result.dtype]
    assert torch.allclose(result.double(), expected.double(), rtol=bound, atol=bound)


def check(x, weight=None, residual=None, **options):
    results = torch.ops.flycc.rms_norm_fwd(x, weight, residual, EPS, **options)
    h = x if residual is None else x + residual
    expected = torch.rms_norm(h.double(), x.shape[-1:], None if weight is None else weight.double(), EPS)
    close(results[0], expected.to(x.dtype))
    if residual is not None:
        assert torch.equal(results[1], h)
    if options.get("want_rstd"):
        close(results[2], torch.rsqrt(h.double().square().mean(-1) + EPS).float())
    return results


@pytest.mark.parametrize("dtype", ULP)
@pytest.mark.parametrize("shape", [(8,), (1, 7), (3, 5, 64), (2, 2, 3, 33)])
def test_shapes(dtype, shape):
    check(randn(*shape, dtype=dtype), randn(shape[-1]), randn(*shape, dtype=dtype), want_rstd=True)


@pytest.mark.parametrize(
    "view",
    [
        lambda: randn(6, 40)[:, 3:36],  # rows that start at odd elements
        lambda: randn(6, 41)[:, :33],  # an odd pitch is that of a contiguous [6, 33]
        lambda: randn(6, 41)[:, 1:33],
        lambda: randn(40, 6).t(),
        lambda: randn(4, 6, 64)[:, 1:3],
        lambda: randn(1, 32).expand(5, 32),
        lambda: randn(100)[1:34],
        lambda: randn(7, 3)[:, 1:2],
    ],
)
def test_views(view):
    x = view()
    check(x, randn(2 * x.shape[-1])[1::2], x)
    check(x, randn(x.shape[-1] + 1)[1:], want_rstd=True)


def test_huge_strides_between_rows_need_no_copy(monkeypatch):
    pitch = 1 << 22
    x = torch.empty_strided((3, 4096), (pitch, 1), dtype=torch.bfloat16)
    x.copy_(randn(3, 4096))
    monkeypatch.setattr(torch.Tensor, "clone", None)
    check(x, randn(4096))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,), (2, 0, 5)])
def test_empty_sizes(shape):
    x = randn(*shape)
    y, residual, rstd = torch.ops.flycc.rms_norm_fwd(x, randn(shape[-1]), x, EPS, want_rstd=True)
    assert (y.shape, residual.shape, rstd.shape) == (x.shape, x.shape, x.shape[:-1])
    dx, dweight = torch.ops.flycc.rms_norm_bwd(x, x, randn(shape[-1]), rstd)
    assert dx.shape == x.shape
    assert torch.equal(dweight, torch.zeros(shape[-1], dtype=torch.bfloat16))


def test_what_is_not_asked_for_is_empty():
    _, residual, rstd = torch.ops.flycc.rms_norm_fwd(randn(2, 8), None, None, EPS)
    assert residual.shape == rstd.shape == (0,)
    assert torch.ops.flycc.rms_norm_bwd(randn(2, 8), randn(2, 8), None, torch.ones(2))[1].shape == (0,)


@pytest.mark.parametrize("columns", [7, 64, 1025])
@pytest.mark.parametrize("dtype", ULP)
def test_gradients_are_those_of_autograd(columns, dtype):
    x, weight, grad = randn(2, 5, columns, dtype=dtype), randn(columns, dtype=dtype), randn(2, 5, columns)
    wide, wide_weight = x.double().requires_grad_(), weight.double().requires_grad_()
    torch.rms_norm(wide, (columns,), wide_weight, EPS).backward(grad.to(dtype).double())
    rstd = torch.rsqrt(x.float().square().mean(-1) + EPS)
    dx, dweight = torch.ops.flycc.rms_norm_bwd(grad.to(dtype), x, weight, rstd)
    close(dx, wide.grad.to(dtype))
    close(dweight, wide_weight.grad.to(dtype))


def test_the_operators_are_legal():
    x, weight = randn(4, 8), randn(8)
    torch.library.opcheck(torch.ops.flycc.rms_norm_fwd.default, (x, weight, x, EPS), {"want_rstd": True})
    torch.library.opcheck(torch.ops.flycc.rms_norm_fwd.default, (x, None, None, EPS))
    torch.library.opcheck(torch.ops.flycc.rms_norm_bwd.default, (x, x, weight, torch.ones(4)))


def test_shape_mismatches_name_both():
    with pytest.raises(RuntimeError, match=r"weight is \[7\], must be \[8\]"):
        torch.ops.flycc.rms_norm_fwd(randn(4, 8), randn(7), None, EPS)
    with pytest.raises(RuntimeError, match=r"residual is torch.bfloat16 \[8\]"):
        torch.ops.flycc.rms_norm_fwd(randn(4, 8), None, randn(8), EPS)
    with pytest.raises(RuntimeError, match=r"rstd is \[3\], must be \[4\]"):
        torch.ops.flycc.rms_norm_bwd(randn(4, 8), randn(4, 8), None, torch.ones(3))


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_an_rstd_of_another_type_is_named(place):
    x = torch.ones(4, 8, dtype=torch.bfloat16, device=place)
    with pytest.raises(RuntimeError, match=r"rstd is torch\.bfloat16, must be torch\.float32"):
        torch.ops.flycc.rms_norm_bwd(x, x, None, x[:, 0])


def failing(*_, **__):
    raise FlyccError(Reason("device.launch", "planted"))


def test_a_failed_launch_gives_pytorchs_result_and_a_reason(monkeypatch):
    monkeypatch.setattr(rms_norm, "launch", failing)
    monkeypatch.setattr(rms_norm, "launch_backward", failing)
    monkeypatch.setattr(refusals, "_warned", set())
    monkeypatch.setattr(refusals._policy, "strict", False)
    heard = []
    with refusals.listening(heard.append):
        with pytest.warns(RuntimeWarning, match="planted"):
            check(randn(4, 8), randn(8), randn(4, 8), want_rstd=True)
        torch.ops.flycc.rms_norm_bwd(randn(4, 8), randn(4, 8), randn(8), torch.ones(4))
    assert [reason.code for reason in heard] == ["device.launch"] * 2


def test_float64_is_left_to_pytorch(monkeypatch):
    monkeypatch.setattr(refusals, "_warned", set())
    monkeypatch.setattr(refusals._policy, "strict", False)
    x = torch.randn(3, 8, dtype=torch.float64)
    with pytest.warns(RuntimeWarning, match=r"rms-norm\.dtype: x is torch\.float64"):
        y, _, _ = torch.ops.flycc.rms_norm_fwd(x, None, None, EPS)
    assert torch.allclose(y, torch.rms_norm(x, (8,), None, EPS))


def test_serve_names_the_reason():
    device = torch.device("cpu")
    assert ops.serve(RmsNormProblem("bf16", "s0", 576, "bf16"), device) is None
    assert ops.serve(RmsNormBackwardProblem("bf16", "s0", 576, "bf16"), device) is None
    for problem in (RmsNormProblem("f64", 4, 8), RmsNormBackwardProblem("bf16", 0, 8)):  # type: ignore[arg-type]
        reason = ops.serve(problem, device)
        assert reason is not None
        assert reason.code.startswith("rms-norm.")


@pytest.mark.parametrize("eps", [3.5e38, 1e300, -1e39])
def test_an_eps_beyond_float32_is_refused(eps):
    with pytest.raises(FlyccError, match=r"at most 3\.40282347e\+38") as caught:
        torch.ops.flycc.rms_norm_fwd(torch.randn(2, 17), None, None, eps)
    assert caught.value.reason.code == "rms-norm.eps"


def test_the_largest_eps_of_float32_is_served():
    x = torch.randn(2, 17)
    y, _, _ = torch.ops.flycc.rms_norm_fwd(x, None, None, torch.finfo(torch.float32).max)
    # Each result is x times 2**-64 but for a few roundings of float32.
    torch.testing.assert_close(y * 2.0**64, x, rtol=2**-20, atol=0)
