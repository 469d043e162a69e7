"""flycc::gemm as a PyTorch operator: values, empty sizes, broadcasting, and what happens when something fails.

Bound: the kernel accumulates K products of 16-bit inputs (exact in float32) in float32, in some order, so
|error| <= (K + 1) 2^-24 sum|a||b| (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1, and one
more rounding for the bias), plus half an ulp of the output dtype for the one rounding at the end.
"""

import sys
import threading
import warnings
from dataclasses import replace

import pytest
import torch

from flycc.contracts import FlyccError, GemmProblem, Reason
from flycc.kernels.gemm.config import RINGS
from flycc.runtime import choice, gemm, ops, refusals
from flycc.runtime.devices import emulated_device

HALF_ULP = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}


def check(result, a, b, bias=None):
    exact, scale = torch.matmul(a.double(), b.double()), torch.matmul(a.double().abs(), b.double().abs())
    if bias is not None:
        exact, scale = exact + bias.double(), scale + bias.double().abs()
    # A power of two's ulp is half that of the numbers just below it, hence 2 * HALF_ULP of the magnitude at most.
    bound = 2 * HALF_ULP[result.dtype] * exact.abs() + (a.shape[-1] + 1) * 2.0**-24 * scale + 2.0**-25
    assert result.is_contiguous()
    assert ((result.double() - exact).abs() <= bound).all()


@pytest.fixture(autouse=True)
def _strict():
    with refusals.strict():
        yield


def randn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_layouts(dtype, trans_a, trans_b, with_bias):
    a, b = (
        randn(*((33, 19) if trans_a else (19, 33)), dtype=dtype),
        randn(*((21, 33) if trans_b else (33, 21)), dtype=dtype),
    )
    bias = randn(21, dtype=dtype) if with_bias else None
    result = torch.ops.flycc.gemm(a, b, bias, trans_a=trans_a, trans_b=trans_b)
    check(result, a.t() if trans_a else a, b.t() if trans_b else b, bias)


@pytest.mark.parametrize(
    ("a", "b", "bias"),
    [
        ((2, 3, 5, 8), (8, 7), (7,)),
        ((2, 3, 5, 8), (2, 3, 8, 7), None),
        ((2, 1, 5, 8), (1, 3, 8, 7), (2, 3, 5, 7)),
        ((4, 5, 8), (1, 8, 7), (4, 1, 7)),
        ((5, 8), (4, 8, 7), (5, 1)),
    ],
)
def test_batches_broadcast_as_in_matmul(a, b, bias):
    a, b = randn(*a), randn(*b)
    bias = None if bias is None else randn(*bias)
    check(torch.ops.flycc.gemm(a, b, bias), a, b, bias)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 4, 3), (4, 0, 3), (4, 3, 0), (0, 0, 0)])
def test_empty_sizes(m, k, n):
    a, b, bias = randn(m, k), randn(k, n), randn(n)
    assert torch.equal(torch.ops.flycc.gemm(a, b), torch.zeros(m, n, dtype=torch.bfloat16))
    assert torch.equal(torch.ops.flycc.gemm(a, b, bias), bias.expand(m, n))


def test_views_with_gaps_and_odd_offsets():
    a, b = randn(40, 64)[3:, 5:38], randn(50, 64)[1:, 7:40].t()
    check(torch.ops.flycc.gemm(a, b), a, b)


def test_nan_and_inf_go_where_they_go_in_float32():
    a, b = randn(5, 40), randn(40, 6)
    a[1, 3], a[2, 39], b[7, 4] = float("nan"), float("inf"), float("-inf")
    result = torch.ops.flycc.gemm(a, b).float()
    expected = a.float() @ b.float()
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result[expected.isinf()], expected[expected.isinf()])


def test_the_operator_is_legal():
    a, b = randn(4, 8), randn(8, 4)
    torch.library.opcheck(torch.ops.flycc.gemm.default, (a, b), {"trans_a": False})


def test_shape_mismatch_names_both_sizes():
    with pytest.raises(RuntimeError, match="a has K = 8, b has K = 9"):
        torch.ops.flycc.gemm(randn(4, 8), randn(9, 4))


def failing_launch(*_):
    raise FlyccError(Reason("device.launch", "planted"))


def test_a_failed_launch_gives_pytorchs_result_one_warning_and_a_reason(monkeypatch):
    monkeypatch.setattr(gemm, "launch", failing_launch)
    monkeypatch.setattr(refusals, "_warned", set())
    monkeypatch.setattr(refusals._policy, "strict", False)
    a, b, bias = randn(4, 8), randn(8, 4), randn(4)
    heard = []
    with refusals.listening(heard.append), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert torch.equal(torch.ops.flycc.gemm(a, b, bias), torch.addmm(bias, a, b))
    assert [reason.code for reason in heard] == ["device.launch"] * 3
    assert len(caught) == 1
    assert "planted" in str(caught[0].message)
    assert caught[0].filename == __file__  # the line that calls it, not one of flycc's or PyTorch's


def test_an_unexpected_exception_is_a_refusal_too(monkeypatch):
    monkeypatch.setattr(gemm, "launch", lambda *_: 1 / 0)
    monkeypatch.setattr(refusals, "_warned", set())
    monkeypatch.setattr(refusals._policy, "strict", False)
    a, b = randn(4, 8), randn(8, 4)
    with pytest.warns(RuntimeWarning, match=r"gemm\.internal: ZeroDivisionError"):
        assert torch.equal(torch.ops.flycc.gemm(a, b), a @ b)


def test_strict_raises_what_was_not_expected_as_a_refusal(monkeypatch):
    monkeypatch.setattr(gemm, "launch", lambda *_: 1 / 0)
    with pytest.raises(FlyccError, match="ZeroDivisionError in flycc") as caught:
        torch.ops.flycc.gemm(randn(4, 8), randn(8, 4))
    assert caught.value.reason.code == "gemm.internal"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_strict_raises(monkeypatch):
    monkeypatch.setattr(gemm, "launch", failing_launch)
    with pytest.raises(FlyccError, match="planted"):
        torch.ops.flycc.gemm(randn(4, 8), randn(8, 4))


def test_strides_beyond_32_bit_offsets_go_to_pytorch(monkeypatch):
    monkeypatch.setattr(refusals, "_warned", set())
    monkeypatch.setattr(refusals._policy, "strict", False)
    pitch = 1 << 24
    # Two rows, 32 MiB apart; the memory between them is never touched.
    a = torch.empty_strided((2, 8), (pitch, 1), dtype=torch.bfloat16)
    a.copy_(randn(2, 8))
    b = randn(8, 4)
    with pytest.warns(RuntimeWarning, match=r"gemm\.\w*stride"):
        result = torch.ops.flycc.gemm(a, b)
    assert torch.equal(result, a @ b)


def test_strides_that_the_chosen_tile_cannot_take_get_a_smaller_tile(monkeypatch):
    """256-wide tiles take strides up to 2^21 elements, narrower ones more; the memory between is never touched."""
    pitch = 3 << 20
    problem = GemmProblem("bf16", 512, 512, 64, trans_b=True)
    strides = {"ld_a": pitch, "ld_b": 64, "ld_out": 512}
    device = emulated_device()
    wide = next(config for config in RINGS if config.tile_m == 256)
    assert wide.check_strides(strides)
    monkeypatch.setattr(choice, "_providers", [lambda problem: wide])
    assert gemm.prepare(problem, device)[0] == wide
    assert not gemm.prepare(problem, device, strides)[0].check_strides(strides)
    a = torch.empty(511 * pitch + 64, dtype=torch.bfloat16).as_strided((512, 64), (pitch, 1))
    a.copy_(randn(512, 64))
    b = randn(512, 64).t()
    check(torch.ops.flycc.gemm(a, b), a, b)


def test_meaningless_strides_of_size_one_are_not_refused():
    a = randn(1, 8).as_strided((1, 8), (1 << 30, 1))
    bias = randn(4).as_strided((1, 4), (1 << 30, 1))
    b = randn(8, 4)
    check(torch.ops.flycc.gemm(a, b, bias), a, b, bias)


@pytest.mark.parametrize(
    ("a", "b", "bias"), [((1, 5, 8), (3, 8, 7), (3, 5, 7)), ((3, 5, 8), (1, 8, 7), (7,))]
)
def test_pytorchs_result_for_batches_that_broadcast(monkeypatch, a, b, bias):
    monkeypatch.setattr(gemm, "launch", failing_launch)
    monkeypatch.setattr(refusals, "_warned", {"device.launch"})
    monkeypatch.setattr(refusals._policy, "strict", False)
    a, b, bias = randn(*a), randn(*b), randn(*bias)
    # PyTorch has no one operator for this: a product, rounded, then a sum.
    assert torch.equal(torch.ops.flycc.gemm(a, b, bias), torch.matmul(a, b) + bias)


def test_threads_do_not_meet_in_the_device():
    interval = sys.getswitchinterval()
    failures = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        a = torch.randn(3, 24, generator=generator).bfloat16()
        b = torch.randn(24, 5, generator=generator).bfloat16()
        try:
            with refusals.strict():
                for _ in range(20):
                    check(torch.ops.flycc.gemm(a, b), a, b)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []


def test_a_kernel_that_cannot_be_built_warns_and_an_uncovered_problem_does_not(monkeypatch):
    problem = GemmProblem("bf16", 4, 4, 8)
    monkeypatch.setattr(refusals, "_warned", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reason = ops.serve(replace(problem, dtype="f32"), torch.device("cpu"))
    assert reason.code == "gemm.dtype"

    def broken(*_):
        raise FlyccError(Reason("codegen.linker", "planted"))

    monkeypatch.setitem(ops._FAMILIES, GemmProblem, ("gemm", broken))
    with pytest.warns(RuntimeWarning, match=r"codegen\.linker: planted"):
        assert ops.serve(problem, torch.device("cpu")).code == "codegen.linker"
