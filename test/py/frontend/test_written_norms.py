"""RMS norms written by hand, in training: one op forward and one backward, with the gradients of what is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend_graphs import Recorder, assert_same_bits, record, targets
from torch import Tensor

from flycc import record as recording

transformers = pytest.importorskip("transformers")

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
EPS = 1e-3  # large enough to be seen in results


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def unit(x: Tensor) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)


def llama(x: Tensor, w: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    variance = wide.pow(2).mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(variance + EPS)
    return w * wide.to(x.dtype)


def gemma(x: Tensor, w: Tensor) -> Tensor:
    return (unit(x) * (1.0 + w.float())).type_as(x)


def t5(x: Tensor, w: Tensor) -> Tensor:
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    x = x * torch.rsqrt(variance + EPS)
    return w * (x.to(w.dtype) if w.dtype in (BF16, F16) else x)


def power(x: Tensor, w: Tensor) -> Tensor:
    return (x.float() * torch.pow(x.float().square().mean((-1,), True) + EPS, -0.5) * w).to(dtype=x.dtype)


def division(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    return (wide / torch.sqrt((wide * wide).mean(dim=-1, keepdim=True) + EPS) * w.float()).type(x.dtype)


def reciprocal(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    return w * (wide * (1 / torch.mean(wide**2, 2, keepdim=True).add(EPS).sqrt())).to(x.dtype)


#: name: (form, what the forward kernel's problem says of a bf16 weight, whether 1 is added to the weight)
FORMS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str, bool]] = {
    "llama": (llama, "bf16+rstd weight bf16 cast before weight", False),
    "gemma": (gemma, "bf16+rstd weight bf16+1 align", True),
    "t5": (t5, "bf16+rstd weight bf16 cast before weight", False),
    "power": (power, "bf16+rstd weight bf16 align", False),
    "division": (division, "bf16+rstd weight bf16 align", False),
    "reciprocal": (reciprocal, "bf16+rstd weight bf16 cast before weight", False),
}


def leaves(dtype: torch.dtype, columns: int = 24) -> tuple[Tensor, Tensor]:
    return torch.randn(2, 5, columns).to(dtype).requires_grad_(), torch.randn(columns).to(
        dtype
    ).requires_grad_()


def check_gradients(x: Tensor, w: Tensor, grad: Tensor, offset: bool, y: Tensor) -> None:
    """Result and gradients against autograd of the formula in float64.

    Up to two values are rounded to the dtype on the way (the normalised one and the result), each by eps / 2
    of it, and 2**-16 of it is more than the product of both errors. So are, of the largest result, the float32
    errors of sums of up to 24 terms, which may cancel.
    """
    x64, w64 = (tensor.detach().double().requires_grad_() for tensor in (x, w))
    y64 = x64 * torch.rsqrt(x64.square().mean(-1, keepdim=True) + EPS) * (w64 + offset)
    wanted = [y64.detach(), *torch.autograd.grad(y64, (x64, w64), grad.double())]
    for mine, exact in zip((y.detach(), x.grad, w.grad), wanted, strict=True):
        assert mine is not None
        assert mine.shape == exact.shape
        bound = torch.finfo(x.dtype).eps * exact.abs() + 2**-16 * exact.abs().max()
        assert ((mine.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("name", FORMS)
def test_forms_run_on_kernels_with_the_gradients_of_the_formula(name: str, dtype: torch.dtype) -> None:
    function, expected, offset = FORMS[name]
    x, w = leaves(dtype)
    with recording.collect() as record:
        y = torch.compile(function, backend="flycc", fullgraph=True, options={"strict": True})(x, w)
    grad = torch.randn_like(y)
    y.backward(grad)
    [candidate] = [c for c in record.graphs[0].report.nodes if c.family == "rms_norm"]
    if dtype == BF16:
        assert expected in candidate.problem
    check_gradients(x, w, grad, offset, y)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_forms_become_calls(name: str, dynamic: bool) -> None:
    recorder = record(FORMS[name][0], *leaves(BF16), dynamic=dynamic, grad=True)
    assert recorder.families() == {"rms_norm": (1, 0), "rms_norm_backward": (1, 0)}
    assert not any("rsqrt" in target or "pow" in target for target in targets(recorder))


def test_a_residual_addition_goes_into_the_kernel_and_its_gradient_to_both_terms() -> None:
    def function(a: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        total = a + b
        return llama(total, w), total

    a, w = leaves(F32)
    b = torch.randn_like(a).requires_grad_()
    with recording.collect() as record:
        y, total = torch.compile(function, backend="flycc", options={"strict": True})(a, b, w)
    [candidate] = record.graphs[0].report.nodes
    assert "+residual+rstd" in candidate.problem
    grad = torch.randn_like(y)
    (y * grad + total * 0).sum().backward()
    assert_same_bits(b.grad, a.grad)
    summed = (a + b).detach()
    summed.grad = a.grad
    check_gradients(summed, w, grad, False, y)


#: Norms of which something else uses, or may change, what is between x and y.
LEFT: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "rstd": lambda x, w: (w * x * (r := torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)), r),
    "squares": lambda x, w: (
        w * (x * torch.rsqrt((s := x.pow(2)).mean(-1, keepdim=True) + EPS)),
        s.sum(),
    ),
    "other-dim": lambda x, w: (x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + EPS), w),
    "two-dims": lambda x, w: (x * torch.rsqrt(x.pow(2).mean((1, 2), keepdim=True) + EPS), w),
    "eps-outside": lambda x, w: (x / (x.pow(2).mean(-1, keepdim=True).sqrt() + EPS), w),
    "cube": lambda x, w: (x * torch.rsqrt(x.pow(3).abs().mean(-1, keepdim=True) + EPS), w),
    "other-tensor": lambda x, w: ((x + 1) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS), w),
    "root-over-x": lambda x, w: (torch.sqrt(x.pow(2).mean(-1, keepdim=True) + EPS) / (x + 9), w),
}


def written_over(x: Tensor, w: Tensor) -> Tensor:
    x = x.detach().clone()
    variance = x.pow(2).mean(-1, keepdim=True)
    x.add_(1)
    return x * torch.rsqrt(variance + EPS) * w


@pytest.mark.parametrize("name", [*LEFT, "written-over"])
def test_what_is_no_norm_of_its_own_is_left_alone(name: str) -> None:
    function: Callable[[Tensor, Tensor], Any] = LEFT.get(name, written_over)
    x, w = leaves(F32)
    recorder = Recorder()
    compiled = torch.compile(function, backend=recorder, fullgraph=True)
    gradients = []
    for run in (compiled, function):
        results = run(x, w)
        results = results if isinstance(results, tuple) else (results,)
        gradients.append(torch.autograd.grad([r.sum() for r in results], (x, w), allow_unused=True))
    assert_same_bits(*gradients)
    kept = [target for target in targets(recorder) if target.startswith("flycc.rms_norm.")]
    assert kept == []


def test_an_input_called_mean_is_no_mean() -> None:
    def function(mean: Tensor, w: Tensor) -> Tensor:
        return llama(mean, w) + mean

    assert record(function, *leaves(F32), grad=True).families()["rms_norm"] == (1, 0)


def test_a_norm_whose_result_is_used_twice_ends_there() -> None:
    recorder = record(lambda x, w: w * (n := unit(x)) + n, *leaves(F32), grad=True)
    assert recorder.families() == {"rms_norm": (1, 0), "rms_norm_backward": (1, 0)}
    assert "weight" not in recorder.reports[0].nodes[0].problem


SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "use_cache": False,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    ("name", "norms"),
    [
        pytest.param(name, norms, marks=() if name in ("Llama", "Gemma3") else pytest.mark.nightly)
        for name, norms in (("Llama", 5), ("Gemma", 5), ("Gemma2", 9), ("Gemma3", 13), ("Qwen3", 9))
    ],
)
def test_a_training_step_of_a_decoder(name: str, norms: int) -> None:
    """Every norm has a kernel in both directions, and the gradients are those of the model in float64."""
    config = getattr(transformers, {"Gemma3": "Gemma3TextConfig"}.get(name, f"{name}Config"))(**SIZES)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    for parameter_name, parameter in model.named_parameters():
        if "norm" in parameter_name:  # all ones or zeros would hide where they enter
            torch.nn.init.normal_(parameter)
    tokens = torch.randint(64, (2, 5))
    gradients = []
    with recording.collect() as record:
        step = torch.compile(model, backend="flycc")
        for run in (step, model.double()):
            model.to(F32 if run is step else torch.float64).zero_grad()
            run(tokens, labels=tokens).loss.backward()
            gradients.append({key: p.grad.double().clone() for key, p in model.named_parameters()})
    kernels = {
        family: [c for graph in record.graphs for c in graph.report.nodes if c.family == family]
        for family in ("rms_norm", "rms_norm_backward")
    }
    for family, candidates in kernels.items():
        assert [c.reason for c in candidates if c.reason] == [], family
        assert len(candidates) == norms, family
    assert record.launch_refusals == {}
    mine, exact = gradients
    for key, gradient in exact.items():
        # float32 rounds by 2**-24; 2**-12 allows for a thousand roundings of one sign and their growth by 4.
        assert (mine[key] - gradient).norm() <= 2**-12 * gradient.norm(), key
