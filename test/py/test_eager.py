"""flycc.eager: what is served, what stays PyTorch's to the bit, and that disabling leaves no trace.

Most tests put stand-ins in the place of flycc's operators, which compute the same with PyTorch and count their calls:
they are of the dispatcher's mechanics, not of kernels. The last section runs the kernels, emulated.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx

import flycc
from flycc import eager
from flycc.contracts import FlyccError, Reason
from flycc.eager.calls import REMEMBERED, Calls, Tally

OVERRIDDEN = ("rms_norm", "_fused_rms_norm", "_fused_rms_norm_backward", "topk", "topk.values")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def tables() -> list[str]:
    return [
        dump(f"aten::{name}")
        for name in OVERRIDDEN
        for dump in (torch._C._dispatch_dump_table, torch._C._dispatch_dump)
    ]


@pytest.fixture(autouse=True)
def _no_trace() -> Iterator[None]:
    """Every test starts and ends with the dispatcher as PyTorch made it."""
    before = tables()
    try:
        yield
    finally:
        eager.disable()
    assert tables() == before


@pytest.fixture(autouse=True)
def _seed() -> None:
    seed = int(os.environ["FLYCC_TEST_SEED"])
    torch.manual_seed(seed)
    print(f"FLYCC_TEST_SEED={seed}")


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """flycc's operators by PyTorch's, and how often each was called. They refuse the dtypes that kernels refuse."""
    calls: Counter[str] = Counter()

    def check(family: str, x: Tensor) -> None:
        if x.dtype not in FLOATS:
            raise FlyccError(Reason(f"{family}.dtype", f"x is {x.dtype}"))

    def forward(
        x: Tensor, weight: Tensor | None, residual: None, eps: float, want_rstd: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        calls["rms_norm"] += 1
        check("rms-norm", x)
        wide = x.float()
        rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        y = wide * rstd if weight is None else wide * rstd * weight
        return y.to(x.dtype).contiguous(), x.new_empty(0), rstd.squeeze(-1)

    def backward(grad: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor) -> tuple[Tensor, Tensor]:
        calls["rms_norm_backward"] += 1
        check("rms-norm", x)
        normal = x.float() * rstd[..., None]
        g = grad.float() if weight is None else grad.float() * weight
        dx = (g - normal * (g * normal).mean(-1, keepdim=True)) * rstd[..., None]
        dweight = (grad.float() * normal).flatten(0, -2).sum(0)
        return dx.to(x.dtype), x.new_empty(0) if weight is None else dweight.to(weight.dtype)

    def topk(x: Tensor, k: int, *, largest: bool, sorted: bool) -> tuple[Tensor, Tensor]:
        calls["topk"] += 1
        check("topk", x)
        values, indices = torch.sort(x, stable=True, descending=largest)
        found = (values[..., :k], indices[..., :k]) if x.dim() else (values, indices)
        return tuple(result.clone(memory_format=torch.contiguous_format) for result in found)  # type: ignore[return-value]

    for name, function in (("rms_norm_fwd", forward), ("rms_norm_bwd", backward), ("topk", topk)):
        monkeypatch.setattr(torch.ops.flycc, name, function)
    return calls


def counts(name: str) -> tuple[int, int]:
    """(served, refused) calls of an operator so far."""
    status = eager.status()[name]
    return status.served, sum(status.refused.values())


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, down to strides and bits, or the error it raises."""
    try:
        result = call()
    except Exception as error:
        # PyTorch goes on to list the kernels that there are.
        return type(error), str(error).partition(" is only available for these backends")[0]
    tensors = [result] if isinstance(result, Tensor) else list(result)
    return type(result), [
        (type(t), t.dtype, t.shape, t.stride(), t.requires_grad, t.detach().contiguous().view(-1).tolist())
        for t in tensors
    ]


# Enabling and disabling.


def test_enabling_and_disabling_twice_is_harmless(stand_ins: Counter[str]) -> None:
    x = torch.randn(3, 16)
    before, plain = tables(), outcome(lambda: F.rms_norm(x, (16,)))
    eager.enable()
    first = tables()
    assert first != before
    eager.enable("topk")
    assert tables() == first
    eager.disable("rms_norm")
    F.rms_norm(x, (16,))
    assert not stand_ins["rms_norm"]
    torch.topk(x, 2)
    assert stand_ins["topk"] == 1
    eager.disable()
    eager.disable()
    assert tables() == before
    assert outcome(lambda: F.rms_norm(x, (16,))) == plain
    torch.topk(x, 2)
    assert stand_ins["topk"] == 1


def test_a_block_leaves_enabled_what_was(stand_ins: Counter[str]) -> None:
    with eager.enabled("topk"):
        inner = tables()
        with eager.enabled():
            assert tables() != inner
        assert tables() == inner
        assert eager.status()["topk"].devices == ("cpu",)
        assert eager.status()["rms_norm"].devices == ()
    assert eager.status()["topk"].devices == ()


def test_blocks_of_two_threads_do_not_end_each_other() -> None:
    entered, left = threading.Event(), threading.Event()

    def first() -> None:
        with eager.enabled("topk"):
            assert entered.wait(10)
        left.set()

    thread = threading.Thread(target=first)
    thread.start()
    with eager.enabled("topk"):
        entered.set()
        assert left.wait(10)
        assert eager.status()["topk"].devices == ("cpu",)
    thread.join()
    assert eager.status()["topk"].devices == ()


def test_disabling_inside_a_block_and_enabling_again_outlasts_it() -> None:
    with eager.enabled("topk"):
        eager.disable("topk")
        assert eager.status()["topk"].devices == ()
        with eager.enabled("topk"):
            assert eager.status()["topk"].devices == ("cpu",)
        assert eager.status()["topk"].devices == ()
        eager.enable("topk")
    assert eager.status()["topk"].devices == ("cpu",)


def test_a_block_that_raises_disables() -> None:
    before = tables()
    with pytest.raises(ZeroDivisionError), eager.enabled():
        raise ZeroDivisionError
    assert tables() == before


def test_enabling_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eager.enable()


def test_the_package_offers_it() -> None:
    assert flycc.eager is eager


@pytest.mark.parametrize("call", [eager.enable, eager.disable, lambda op: eager.enabled(op).__enter__()])
def test_unknown_operators_are_refused(call: Callable[[str], Any]) -> None:
    with pytest.raises(FlyccError, match="'mm' is not among rms_norm, topk") as caught:
        call("mm")
    assert caught.value.reason.code == "eager.op"


@pytest.mark.skipif(torch.version.hip is not None, reason="ROCm's CUDA tensors are served")
@pytest.mark.parametrize("device", ["cuda", "meta", "mps:0"])
def test_devices_that_run_no_kernels_are_refused(device: str) -> None:
    with pytest.raises(FlyccError) as caught:
        eager.enable(device=device)
    assert caught.value.reason.code == "device.type"


# RMS norm.


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(16,), (3, 16)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_rms_norm_is_served(
    stand_ins: Counter[str], dtype: torch.dtype, shape: tuple[int, ...], weighted: bool, context: Callable
) -> None:
    """The stand-in and ATen compute alike in float32; they may round the last bit of a sum differently."""
    x = torch.randn(2, 5, *shape).to(dtype)
    weight = torch.randn(shape).to(dtype) if weighted else None
    with context():
        expected = F.rms_norm(x, shape, weight)
        served, refused = counts("rms_norm")
        with eager.enabled("rms_norm"):
            y = F.rms_norm(x, shape, weight)
    assert counts("rms_norm") == (served + 1, refused)
    assert stand_ins["rms_norm"] == 1
    assert y.dtype == dtype
    assert y.is_inference() == expected.is_inference()
    # Sums of at most 48 squares, in any order, differ by 48 roundings; then one rounding to dtype.
    torch.testing.assert_close(y, expected, rtol=48 * 2**-23 + torch.finfo(dtype).eps, atol=0)


def gradients(y: Tensor, inputs: list[Tensor], **options: bool) -> tuple[Tensor, ...]:
    return torch.autograd.grad(
        (y.float() * torch.arange(1, y.numel() + 1).view_as(y)).sum(), inputs, **options
    )


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_training_uses_the_backward_operator(stand_ins: Counter[str], needs: tuple[bool, bool]) -> None:
    x, weight = (
        torch.randn(*shape, requires_grad=need)
        for shape, need in zip([(4, 3, 16), (16,)], needs, strict=True)
    )
    inputs = [tensor for tensor in (x, weight) if tensor.requires_grad]
    expected = gradients(F.rms_norm(x, (16,), weight, 1e-5), inputs)
    with eager.enabled("rms_norm"):
        found = gradients(F.rms_norm(x, (16,), weight, 1e-5), inputs)
    assert stand_ins == {"rms_norm": 1, "rms_norm_backward": 1}
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("changed", [0, 1])
@pytest.mark.parametrize("inference", [False, True])
def test_operands_may_be_changed_before_the_gradient_as_without_flycc(
    stand_ins: Counter[str], dtype: torch.dtype, needs: tuple[bool, bool], changed: int, inference: bool
) -> None:
    """That is where PyTorch saves a copy or nothing; elsewhere the error is its own. The same for inference tensors."""
    x, weight = torch.randn(4, 16).to(dtype), torch.randn(16).to(dtype)

    def train() -> list[Tensor] | str:
        leaves = [
            tensor.clone().requires_grad_(need) for tensor, need in zip((x, weight), needs, strict=True)
        ]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        with torch.inference_mode(inference and not needs[changed]):
            operands = [leaf * 1 for leaf in leaves]
        try:
            y = F.rms_norm(operands[0], (16,), operands[1], 1e-5)
            if not operands[changed].is_inference():
                operands[changed].mul_(2)
            return list(torch.autograd.grad(y.float().pow(2).sum(), wanted)) if wanted else [y]
        except RuntimeError as error:
            return re.sub(r"\[.*", "", str(error))  # the shape that it then tells is of what was saved

    expected = train()
    with eager.enabled("rms_norm"):
        found = train()
    assert stand_ins["rms_norm"] == 1 or "Inference" in expected
    if isinstance(expected, str):
        assert found == expected
    else:
        # 16 squares, products and sums, each rounded in float32, and gradients once in dtype.
        torch.testing.assert_close(found, expected, rtol=1e-4 + 4 * torch.finfo(dtype).eps, atol=1e-3)


def test_a_refused_eps_says_nothing_of_another(
    stand_ins: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = torch.ops.flycc.rms_norm_fwd

    def picky(x: Tensor, weight: None, residual: None, eps: float, want_rstd: bool) -> tuple[Tensor, ...]:
        if eps > 1:
            raise FlyccError(Reason("rms-norm.eps", "too large"))
        return forward(x, weight, residual, eps, want_rstd=want_rstd)

    monkeypatch.setattr(torch.ops.flycc, "rms_norm_fwd", picky)
    x = torch.randn(4, 16)
    before = counts("rms_norm")
    with eager.enabled("rms_norm"):
        for eps in (1e39, 1e-6, 1e39, 1e-6):
            F.rms_norm(x, (16,), None, eps)
    assert counts("rms_norm") == (before[0] + 2, before[1] + 2)
    assert stand_ins["rms_norm"] == 2


def test_modules_train(stand_ins: Counter[str]) -> None:
    module = torch.nn.RMSNorm((2, 8))
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    with eager.enabled():
        module(torch.randn(5, 2, 8)).square().sum().backward()
    assert module.weight.grad is not None
    assert module.weight.grad.shape == (2, 8)
    optimizer.step()
    assert stand_ins == {"rms_norm": 1, "rms_norm_backward": 1}


def test_gradients_of_gradients(stand_ins: Counter[str]) -> None:
    x, weight = torch.randn(4, 16, requires_grad=True), torch.randn(16, requires_grad=True)

    def twice() -> tuple[Tensor, ...]:
        first = gradients(F.rms_norm(x, (16,), weight, 1e-5), [x, weight], create_graph=True)
        return gradients(first[0], [x, weight])

    expected = twice()
    with eager.enabled():
        found = twice()
    assert stand_ins["rms_norm"] == 1
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_function_transforms(stand_ins: Counter[str]) -> None:
    x, weight, tangent = torch.randn(4, 16), torch.randn(16), torch.randn(4, 16)
    transforms: dict[str, Callable[[], Any]] = {
        "grad": lambda: torch.func.grad(lambda x: F.rms_norm(x, (16,), weight, 1e-5).pow(3).sum())(x),
        "vmap": lambda: torch.func.vmap(lambda row: F.rms_norm(row, (16,), weight, 1e-5))(x),
        "vmap of grad": lambda: torch.func.vmap(
            torch.func.grad(lambda row: F.rms_norm(row, (16,), weight, 1e-5).pow(3).sum())
        )(x),
        "jvp": lambda: torch.func.jvp(lambda x: F.rms_norm(x, (16,), weight, 1e-5), (x,), (tangent,)),
        "hessian": lambda: torch.func.hessian(lambda x: F.rms_norm(x, (16,), weight, 1e-5).pow(3).sum())(x),
        "functionalize": lambda: torch.func.functionalize(lambda x: F.rms_norm(x, (16,), weight, 1e-5))(x),
        "topk": lambda: torch.func.vmap(lambda row: torch.topk(row, 3))(x),
    }
    for name, transform in transforms.items():
        expected = transform()
        with eager.enabled():
            torch.testing.assert_close(
                transform(), expected, rtol=1e-3, atol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
            )


def test_autocast(stand_ins: Counter[str]) -> None:
    x, weight = torch.randn(4, 16, dtype=torch.bfloat16), torch.randn(16, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        expected = F.rms_norm(x, (16,), weight)
        with eager.enabled():
            y = F.rms_norm(x, (16,), weight)
    assert stand_ins["rms_norm"] == 1
    torch.testing.assert_close(y, expected)


# topk.


@pytest.mark.parametrize("dim", [-1, 0, 1, -2])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_topk_is_served(stand_ins: Counter[str], dim: int, largest: bool, transposed: bool) -> None:
    x = torch.randperm(6 * 9 * 4).float().view(6, 9, 4)
    x = x.transpose(0, 1) if transposed else x
    expected = torch.topk(x, 3, dim, largest)
    out = (torch.empty_like(expected[0]), torch.empty_like(expected[1]))
    with eager.enabled("topk"):
        found = torch.topk(x, 3, dim, largest)
        into = torch.topk(x, 3, dim, largest, out=out)
    assert stand_ins["topk"] == 2
    assert type(found) is torch.return_types.topk
    for index in range(2):
        assert torch.equal(found[index], expected[index])
        assert into[index] is out[index]
        assert torch.equal(out[index], expected[index])


@pytest.mark.parametrize("shape", [(4, 6, 10), (1, 6, 10), (4, 1, 1), (1, 1, 5)])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_results_have_pytorchs_strides(stand_ins: Counter[str], shape: tuple[int, ...], dim: int) -> None:
    """Those of dimensions of size 1 too."""
    x = torch.randperm(math.prod(shape)).float().view(shape)
    for k in {1, shape[dim]}:
        expected = outcome(lambda k=k: torch.topk(x, k, dim))
        with eager.enabled("topk"):
            assert outcome(lambda k=k: torch.topk(x, k, dim)) == expected


def test_topk_has_a_gradient(stand_ins: Counter[str]) -> None:
    x = torch.randn(5, 20, requires_grad=True)
    with eager.enabled():
        values, indices = x.topk(4)
    [gradient] = torch.autograd.grad(values.sum(), [x])
    assert torch.equal(gradient, torch.zeros_like(x).scatter_(1, indices, 1.0))
    assert stand_ins["topk"] == 1


# What stays PyTorch's.


class Sub(Tensor):
    """A subclass without a dispatch of its own."""


def refused_calls() -> dict[str, Callable[[], Any]]:
    """Calls that no kernel serves, and calls that PyTorch refuses."""
    x, double = torch.randn(6, 16), torch.randn(6, 16, dtype=torch.float64)
    weight = torch.randn(16, dtype=torch.float64, requires_grad=True)
    shared = torch.empty(6, 6)
    spare = torch.empty(6, 3, dtype=torch.int64)

    def trained() -> tuple[Tensor, ...]:
        leaf = double.clone().requires_grad_()
        return torch.autograd.grad(F.rms_norm(leaf, (16,), weight).pow(3).sum(), [leaf, weight])

    return {
        "float64": lambda: torch.topk(double, 3),
        "float64 norm": lambda: F.rms_norm(double, (16,), weight),
        "float64 gradients": trained,
        "fused float64 norm": lambda: torch.ops.aten._fused_rms_norm(double, [16], weight, 1e-5),
        "other float weight": lambda: F.rms_norm(x, (16,), torch.ones(16, dtype=torch.float64)),
        "strided float64 norm": lambda: F.rms_norm(double.t()[:, ::2], (3,)),
        "integers": lambda: F.rms_norm(torch.ones(2, 4, dtype=torch.int32), (4,)),
        "complex": lambda: F.rms_norm(torch.ones(2, 4, dtype=torch.complex64), (4,)),
        "wrong shape": lambda: F.rms_norm(x, (15,)),
        "no shape": lambda: F.rms_norm(x, ()),
        "wrong weight": lambda: F.rms_norm(x, (16,), torch.ones(15)),
        "empty norm": lambda: F.rms_norm(x[:0], (16,)),
        "no columns": lambda: F.rms_norm(x[:, :0], (0,)),
        "empty topk": lambda: torch.topk(x[:0], 3),
        "k of nothing": lambda: torch.topk(x[:, :0], 0),
        "k = 0": lambda: torch.topk(x, 0),
        "k < 0": lambda: torch.topk(x, -1),
        "k > N": lambda: torch.topk(x, 17),
        "k > 1 of 0-d": lambda: torch.topk(x[0, 0], 2),
        "dim": lambda: torch.topk(x, 3, 2),
        "bool": lambda: torch.topk(x > 0, 1),
        "complex topk": lambda: torch.topk(x + 0j, 1),
        "out of another shape": lambda: torch.topk(x, 3, out=(torch.ones(2, 2), spare)),
        "out to be resized": lambda: torch.topk(
            x, 3, out=(torch.empty(0), torch.empty(0, dtype=torch.int64))
        ),
        "out of another dtype": lambda: torch.topk(x, 3, out=(torch.empty(6, 3), torch.empty(6, 3))),
        "out with gaps": lambda: torch.topk(x, 3, out=(shared[:, ::2], spare)),
        "out that overlaps itself": lambda: torch.topk(x, 3, out=(torch.empty(1, 3).expand(6, 3), spare)),
        "out that overlaps": lambda: torch.topk(
            shared.fill_(1.0), 3, out=(shared.view(-1)[:18].view(6, 3), spare)
        ),
        "subclass": lambda: torch.topk(x.as_subclass(Sub), 3),
        "norm of a subclass": lambda: F.rms_norm(x.as_subclass(Sub), (16,)),
        "meta": lambda: torch.topk(x.to("meta"), 3)[0].shape and torch.ones(1),
        "sparse norm": lambda: F.rms_norm(x.to_sparse(), (16,)),
        "sparse weight": lambda: F.rms_norm(x, (16,), torch.ones(16).to_sparse()),
        "nested norm": lambda: F.rms_norm(torch.nested.nested_tensor([x[:2], x]), (16,)).to_padded_tensor(
            0.0
        ),
        "quantized": lambda: torch.topk(torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), 3)[0].dequantize(),
        "meta norm": lambda: F.rms_norm(x.to("meta"), (16,)).shape and torch.ones(1),
        "sparse": lambda: torch.topk(x.to_sparse(), 3),
    }


@pytest.mark.parametrize("name", refused_calls())
@pytest.mark.parametrize("inference", [False, True])
def test_refused_calls_are_pytorchs_to_the_bit(stand_ins: Counter[str], name: str, inference: bool) -> None:
    call = refused_calls()[name]
    with torch.inference_mode(inference), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of resizes and of weights of another dtype
        expected = outcome(call)
        with eager.enabled():
            served = counts("topk")[0] + counts("rms_norm")[0]
            assert outcome(call) == expected
            assert outcome(call) == expected  # now that the refusal is remembered
    assert counts("topk")[0] + counts("rms_norm")[0] == served


def test_out_of_what_needs_a_gradient_is_pytorchs_error(stand_ins: Counter[str]) -> None:
    out = torch.empty(6, 3), torch.empty(6, 3, dtype=torch.int64)
    with eager.enabled(), pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        torch.topk(torch.randn(6, 16, requires_grad=True), 3, out=out)
    assert not stand_ins


@pytest.mark.parametrize(
    ("call", "op", "code"),
    [
        (lambda x: torch.topk(x.double(), 3), "topk", "topk.dtype"),
        (lambda x: torch.topk(x, 0), "topk", "eager.empty"),
        (lambda x: torch.topk(x.as_subclass(Sub), 3), "topk", "eager.plain"),
        (
            lambda x: torch.topk(x, 3, out=(torch.empty(6, 6)[:, ::2], torch.empty(0).long())),
            "topk",
            "eager.out",
        ),
        (lambda x: F.rms_norm(x.double(), (16,)), "rms_norm", "rms-norm.dtype"),
        (lambda x: F.rms_norm(x[:0], (16,)), "rms_norm", "eager.empty"),
        (lambda x: F.rms_norm(x.as_subclass(Sub), (16,)), "rms_norm", "eager.plain"),
    ],
)
def test_refusals_are_counted_by_reason(stand_ins: Counter[str], call: Callable, op: str, code: str) -> None:
    def count() -> int:
        return sum(n for reason, n in eager.status()[op].refused.items() if reason.code == code)

    before = count()
    x = torch.randn(6, 16)
    with eager.enabled():
        for _ in range(3):
            outcome(lambda: call(x))
    assert count() == before + 3


def test_a_refusal_is_remembered_until_disabled(stand_ins: Counter[str]) -> None:
    x = torch.randn(6, 16, dtype=torch.float64)
    for _ in range(2):
        with eager.enabled():
            for _ in range(5):
                torch.topk(x, 3)
                F.rms_norm(x, (16,))
    assert stand_ins == {"topk": 2, "rms_norm": 2}


def test_a_fault_of_ours_is_pytorchs_result_and_a_warning(
    stand_ins: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise IndexError("a fault")

    monkeypatch.setattr("flycc.runtime.refusals._warned", set())
    for name in ("rms_norm_fwd", "rms_norm_bwd", "topk"):
        monkeypatch.setattr(torch.ops.flycc, name, broken)
    x = torch.randn(6, 16, requires_grad=True)
    expected = (
        outcome(lambda: torch.autograd.grad(F.rms_norm(x, (16,)).pow(3).sum(), [x])),
        outcome(lambda: x.topk(3)),
    )
    with eager.enabled(), pytest.warns(RuntimeWarning, match="IndexError in flycc's rms_norm: a fault"):
        found = (
            outcome(lambda: torch.autograd.grad(F.rms_norm(x, (16,)).pow(3).sum(), [x])),
            outcome(lambda: x.topk(3)),
        )
    assert found == expected


def test_a_gradient_that_is_refused_is_pytorchs_formula(
    stand_ins: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: object) -> None:
        raise FlyccError(Reason("rms-norm.rows", "not these"))

    x, weight = torch.randn(4, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    expected = gradients(F.rms_norm(x, (16,), weight), [x, weight])
    monkeypatch.setattr(torch.ops.flycc, "rms_norm_bwd", refused)
    before = counts("rms_norm_backward")
    with eager.enabled():
        found = gradients(F.rms_norm(x, (16,), weight), [x, weight])
    assert counts("rms_norm_backward") == (before[0], before[1] + 1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


# Tracing.


def test_traced_graphs_are_the_same() -> None:
    def model(x: Tensor, weight: Tensor) -> Tensor:
        return torch.topk(F.rms_norm(x, (16,), weight), 3).values

    x, weight = torch.randn(6, 16, requires_grad=True), torch.randn(16)

    def traced() -> list[str]:
        codes = []

        def backend(gm: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
            codes.append(gm.code)
            return gm

        torch._dynamo.reset()
        compiled = torch.compile(
            model,
            backend=aot_autograd(fw_compiler=backend, bw_compiler=backend),
            dynamic=True,
        )
        compiled(x, weight).sum().backward()
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                compiled(x.detach()[1:], weight)
        exported = torch.export.export(
            torch.nn.RMSNorm(16), (x.detach(),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
        )
        return [
            *codes,
            str(exported.graph),
            str(exported.run_decompositions().graph),
            make_fx(model)(x, weight).code,
        ]

    expected = traced()
    with eager.enabled():
        assert traced() == expected
    assert len(expected) == 7


# Threads.


def test_threads_share_the_overrides(stand_ins: Counter[str]) -> None:
    x, double = torch.randn(6, 16), torch.randn(6, 16, dtype=torch.float64)
    expected = torch.topk(x, 3), F.rms_norm(double, (16,))
    before = counts("topk"), counts("rms_norm")
    wrong: list[int] = []

    def work() -> None:
        for step in range(200):
            if not torch.equal(torch.topk(x, 3).indices, expected[0].indices) or not torch.equal(
                F.rms_norm(double, (16,)), expected[1]
            ):
                wrong.append(step)

    with eager.enabled():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert counts("topk") == (before[0][0] + 800, before[0][1])
    assert counts("rms_norm") == (before[1][0], before[1][1] + 800)


def test_tallies_are_exact_and_reading_is_no_count() -> None:
    tally = Tally()

    def work() -> None:
        for _ in range(5000):
            tally.bump()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert 0 <= tally.value() <= 20000
    assert [tally.value(), tally.value()] == [20000, 20000]


def test_what_is_remembered_is_bounded() -> None:
    calls = Calls("op", "family")
    reason = Reason("family.size", "too large")
    for size in range(2 * REMEMBERED + 1):
        calls.refuse(reason, size)
    assert len(calls._kinds) <= REMEMBERED
    assert calls.refused() == {reason: 2 * REMEMBERED + 1}


# Status.


def test_status_prints_in_80_columns_and_as_json(stand_ins: Counter[str]) -> None:
    with eager.enabled("topk"):
        torch.topk(torch.randn(4, 8), 2)
        torch.topk(torch.randn(4, 8, dtype=torch.float64), 2)
        status = eager.status()
    lines = str(status).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("topk.dtype" in line for line in lines)
    found = json.loads(json.dumps(status.to_json()))
    assert found.keys() == {"rms_norm", "rms_norm_backward", "topk"}
    assert found["topk"]["devices"] == ["cpu"]
    assert found["rms_norm"]["devices"] == []
    assert found["topk"]["served"] == status["topk"].served > 0
    assert {entry["code"]: entry["count"] for entry in found["topk"]["refused"]} == {
        reason.code: count for reason, count in status["topk"].refused.items()
    }


# The kernels themselves, emulated.


@pytest.mark.parametrize("dtype", FLOATS)
def test_rms_norm_trains_on_the_kernels(dtype: torch.dtype) -> None:
    """Against float64, from the same inputs and the same gradient of the result.

    u is half the spacing of float32 at 1, v that of dtype. Forward: a mean of n squares errs by at most n u of itself,
    its root by half of that, rsqrt and two products by 4 u, and one rounding by v. Backward, for dx: two terms whose
    sums err by 2 n u of their sums of magnitudes; for dweight a sum of m products, each with the error of the result.
    """
    m, n, u, v = 6, 80, 2**-24, torch.finfo(dtype).eps / 2
    x, weight, grad = (torch.randn(*shape).to(dtype) for shape in ((m, n), (n,), (m, n)))
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    before = counts("rms_norm"), counts("rms_norm_backward")
    with eager.enabled("rms_norm"):
        y = F.rms_norm(x, (n,), weight, 1e-5)
        dx, dweight = torch.autograd.grad(y, leaves, grad)
    assert (counts("rms_norm"), counts("rms_norm_backward")) == tuple((s + 1, r) for s, r in before)

    h, w, g = (tensor.detach().double() for tensor in (x, weight, grad))
    rstd = torch.rsqrt(h.square().mean(1, keepdim=True) + 1e-5)
    forward = (n / 2 + 4) * u
    exact = h * rstd * w
    assert ((y.double() - exact).abs() <= (forward + v * (1 + forward)) * exact.abs() + 2**-24).all()
    gw = g * w
    dx_exact = rstd * (gw - h * rstd**2 * (gw * h).mean(1, keepdim=True))
    magnitude = rstd * (gw.abs() + h.abs() * rstd**2 * (gw * h).abs().mean(1, keepdim=True))
    error = (dx.double() - dx_exact).abs()
    assert (error <= (2 * n + 3 * forward / u + 8) * u * magnitude + v * dx_exact.abs() + 2**-24).all()
    terms = (g * h * rstd).abs().sum(0)
    error = (dweight.double() - (g * h * rstd).sum(0)).abs()
    assert (error <= (m + forward / u + 4) * u * terms + v * dweight.double().abs() + 2**-24).all()


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32])
def test_topk_on_the_kernels(dtype: torch.dtype) -> None:
    """A stable sort says which of equal values are meant, and there are many."""
    x = torch.randint(-20, 20, (3, 4, 100)).to(dtype)
    before = counts("topk")
    with eager.enabled("topk"):
        found = torch.topk(x, 5), torch.topk(x.transpose(1, 2), 7, dim=1, largest=False)
    assert counts("topk") == (before[0] + 2, before[1])
    for (values, indices), k, descending in zip(found, (5, 7), (True, False), strict=True):
        if not descending:
            values, indices = values.transpose(1, 2), indices.transpose(1, 2)
        expected = torch.sort(x, stable=True, descending=descending)
        assert torch.equal(values, expected.values[..., :k])
        assert torch.equal(indices, expected.indices[..., :k])
