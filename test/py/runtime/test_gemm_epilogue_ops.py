"""flycc::gemm with an epilogue: values, by the kernel and by PyTorch's operators, and what its arguments must be.

Bound: float32 sums are off by at most (K + 1) 2^-24 sum|a||b| (see test_ops); PyTorch's product of 16-bit tensors is
rounded once more, by half an ulp. Behind that an error grows by the slope of the activation, at most 1.13, or with the
other factor of a gated product. An activation's own error is taken to be 2^-12 of its argument at most, a quarter
of the half ulp of bfloat16 that the result is rounded by at the end.
"""

import itertools
import random

import pytest
import torch
from torch.nn import functional

from flycc.contracts import Epilogue, FlyccError, Reason
from flycc.runtime import gemm, refusals
from flycc.runtime.emulated import EmulatedDevice
from flycc.runtime.operands import GemmOperands

HALF_ULP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
ACTIVATIONS = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}


def randn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def check(
    results, a, b, bias=None, *, rounded, b2=None, residual=None, scale=1.0, activation="none", out_dtype=None
):
    """`results` against float64; `rounded` says that products were rounded to 16 bits."""
    dtype = out_dtype or a.dtype

    def product(b):
        exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        error = (a.shape[-1] + 1) * 2.0**-24 * magnitude
        if rounded and dtype == a.dtype:
            error = error + HALF_ULP[dtype] * (exact.abs() + error)
        return scale * exact, abs(scale) * error * (1 + 2.0**-22)

    p, error = product(b)
    if bias is not None:
        p, error = p + bias.double(), error * (1 + 2.0**-23) + 2.0**-23 * (p.abs() + bias.double().abs())
    wanted = [(p, error)]
    error = error if activation == "none" else 1.13 * error + 2.0**-12 * p.abs()
    y = ACTIVATIONS[activation](p)
    if b2 is not None:
        t, t_error = product(b2)
        y, error = y * t, error * t.abs() + y.abs() * t_error + error * t_error + 2.0**-23 * (y * t).abs()
    if residual is not None:
        y, error = y + residual.double(), error + 2.0**-23 * (y.abs() + residual.double().abs())
    for result, (value, off) in zip(results, [(y, error), *wanted], strict=False):
        assert result.is_contiguous()
        assert result.dtype == dtype
        bound = off + HALF_ULP[dtype] * (value.abs() + off) + 2.0**-24
        assert ((result.double() - value).abs() <= bound).all()


def planted(*_):
    raise FlyccError(Reason("device.launch", "planted"))


@pytest.fixture(params=["kernel", "PyTorch"])
def rounded(request, monkeypatch):
    """Whether the product is PyTorch's, which is so for one of two runs of a test."""
    monkeypatch.setattr(refusals, "_warned", {"device.launch"})
    if request.param == "PyTorch":
        monkeypatch.setattr(gemm, "launch", planted)
        yield True
    else:
        with refusals.strict():
            yield False


def cases():
    """Every activation with everything that it combines with, other arguments at random."""
    rng = random.Random(6)
    for activation, gated, preactivation in itertools.product(ACTIVATIONS, (False, True), (False, True)):
        if not (gated and preactivation):
            yield pytest.param(
                {
                    "activation": activation,
                    "gated": gated,
                    "preactivation": preactivation,
                    "bias": None if gated else rng.choice([None, (21,), (19, 1), (19, 21)]),
                    "residual": rng.choice([None, (19, 21), (21,)]),
                    "scale": rng.choice([1.0, 0.3, -2.5]),
                    "trans": (rng.random() < 0.5, rng.random() < 0.5),
                    "dtype": rng.choice([torch.bfloat16, torch.float16]),
                    "out_dtype": rng.choice([None, torch.float32]),
                },
                id=f"{activation}{'-gated' * gated}{'-preactivation' * preactivation}",
            )


@pytest.mark.parametrize("case", [*cases()])
def test_values(case, rounded):
    dtype, (trans_a, trans_b) = case["dtype"], case["trans"]
    a = randn(*((33, 19) if trans_a else (19, 33)), dtype=dtype)
    b, b2 = (randn(*((21, 33) if trans_b else (33, 21)), dtype=dtype) for _ in range(2))
    bias, residual = (case[name] and randn(*case[name], dtype=dtype) for name in ("bias", "residual"))
    tail = {name: case[name] for name in ("scale", "activation", "out_dtype")} | {"residual": residual}
    flags = {"trans_a": trans_a, "trans_b": trans_b}
    gate = b2 if case["gated"] else None
    if case["preactivation"]:
        results = torch.ops.flycc.gemm_with_preactivation(a, b, bias, **flags, b2=gate, **tail)
    else:
        results = [torch.ops.flycc.gemm(a, b, bias, **flags, b2=gate, **tail)]
    a, b, b2 = (
        tensor.t() if flag else tensor for tensor, flag in ((a, trans_a), (b, trans_b), (b2, trans_b))
    )
    check(results, a, b, bias, b2=b2 if case["gated"] else None, **tail, rounded=rounded)


def test_batches_and_a_residual_that_is_no_view_of_the_result(rounded):
    a, b, b2 = randn(2, 3, 5, 8), randn(7, 8), randn(7, 8)
    residual = randn(3, 2, 7, 5).permute(1, 0, 3, 2)
    result = torch.ops.flycc.gemm(a, b, trans_b=True, b2=b2, residual=residual, activation="silu")
    check([result], a, b.t(), b2=b2.t(), residual=residual, activation="silu", rounded=rounded)


def test_weights_of_different_strides(rounded):
    a, b, b2 = randn(5, 24), randn(16, 24).t(), randn(24, 40)[:, 3:19]
    check(
        [torch.ops.flycc.gemm(a, b, b2=b2, activation="relu")],
        a,
        b,
        b2=b2,
        activation="relu",
        rounded=rounded,
    )


@pytest.mark.parametrize(("m", "k", "n"), [(0, 4, 3), (4, 0, 3), (4, 3, 0), (0, 0, 0)])
def test_empty_sizes(m, k, n):
    a, b, bias, residual = randn(m, k), randn(k, n), randn(n), randn(m, n)
    out, preactivation = torch.ops.flycc.gemm_with_preactivation(
        a, b, bias, residual=residual, scale=2.0, activation="relu"
    )
    assert torch.equal(out, (bias.float().relu() + residual).bfloat16())
    assert torch.equal(preactivation, bias.expand(m, n))
    gated = torch.ops.flycc.gemm(a, b, b2=b, activation="silu", out_dtype=torch.float32)
    assert torch.equal(gated, torch.zeros(m, n))


def test_the_operators_are_legal():
    a, b, residual = randn(4, 8), randn(8, 4), randn(4, 4)
    for op in (torch.ops.flycc.gemm.default, torch.ops.flycc.gemm_with_preactivation.default):
        torch.library.opcheck(
            op, (a, b), {"residual": residual, "activation": "silu", "out_dtype": torch.float32}
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"b2": (8, 4)}, r"b2 must have the shape of b, \[8, 5\], got \[8, 4\]"),
        ({"b2": (8, 5), "bias": (5,)}, "takes no bias"),
        ({"bias": (4,)}, r"bias \[4\] does not broadcast to the result \[3, 5\]"),
        ({"residual": (1, 3, 5)}, r"residual \[1, 3, 5\] does not broadcast to the result \[3, 5\]"),
        ({"activation": "tanh"}, "activation must be one of none, relu, gelu, gelu_tanh, silu, got 'tanh'"),
        (
            {"out_dtype": torch.float16},
            "out_dtype must be torch.bfloat16 or torch.float32, got torch.float16",
        ),
    ],
)
def test_bad_arguments_are_named(given, message):
    tail = {name: randn(*value) if isinstance(value, tuple) else value for name, value in given.items()}
    with pytest.raises(RuntimeError, match=f"flycc::gemm: .*{message}"):
        torch.ops.flycc.gemm(randn(3, 8), randn(8, 5), **tail)


def test_a_gated_product_has_no_preactivation():
    with pytest.raises(RuntimeError, match="has no preactivation"):
        torch.ops.flycc.gemm_with_preactivation(randn(3, 8), randn(8, 5), b2=randn(8, 5))


def test_mixed_types_are_named():
    with pytest.raises(
        RuntimeError, match=r"residual is torch\.float32; it must be that of a, torch\.bfloat16"
    ):
        torch.ops.flycc.gemm(randn(3, 8), randn(8, 5), residual=torch.zeros(5))


@pytest.mark.parametrize("shapes", [((8,), (8, 5)), ((3, 8), (8,))])
def test_vectors_are_named(shapes):
    with pytest.raises(RuntimeError, match=r"flycc::gemm: [ab] must have at least 2 dimensions, got \["):
        torch.ops.flycc.gemm(*(randn(*shape) for shape in shapes))


@pytest.mark.parametrize("scale", [1e39, -1e300])
def test_a_scale_beyond_float32_is_refused(scale):
    with pytest.raises(FlyccError, match=r"at most 3\.40282347e\+38") as caught:
        gemm.launch(
            GemmOperands.of(randn(3, 8), randn(8, 5), None, randn(3, 5), scale=scale), EmulatedDevice()
        )
    assert caught.value.reason.code == "gemm.scale"


def test_the_problem_of_a_launch():
    out = torch.empty(6, 16, dtype=torch.float32)
    weight = randn(48, 32)
    operands = GemmOperands.of(
        randn(6, 32),
        weight[:16].t(),
        randn(16)[None].expand(6, 16),
        out,
        residual=randn(6, 40)[:, 8:24],
        b2=weight[16:32].t(),
        pre=torch.empty_like(out),
        scale=0.5,
        activation="gelu",
    )
    problem = operands.problem()
    assert problem.epilogue == Epilogue(True, "gelu", True, True, True, "f32")
    assert (problem.align_bias, problem.align_residual, problem.align_b) == (16, 16, 16)
    assert operands.b2.tensor.data_ptr() == weight[16:].data_ptr()
    assert {"residual_batch", "residual_m", "residual_n"} <= operands.strides().keys()
    assert operands.strides()["residual_m"] == 40
    assert list(operands.inputs()) == ["a", "b", "bias", "b2", "residual"]
    column = GemmOperands.of(randn(6, 32), weight[:16].t(), randn(6, 1), out)
    assert column.problem().align_bias == 2
