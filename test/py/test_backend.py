"""torch.compile(..., backend="flycc") as users write it: values, gradients, dynamic shapes, refusals, strictness."""

import shutil

import pytest
import torch
from torch import nn

import flycc.backend
from flycc import record as recording
from flycc.errors import FlyccError


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def mlp(dtype=torch.bfloat16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 56), nn.SiLU(), nn.Linear(56, 24, bias=False)).to(dtype)


def close(result, reference):
    # Two bfloat16 computations of one value: each rounds two layers and an activation, and a layer averages its
    # input's errors of one part in 2^8 over its sum. 2^-5 of the largest value is far above that, and far below any
    # real fault.
    assert (result.double() - reference.double()).abs().max() <= 2.0**-5 * reference.double().abs().max()


needs_cxx = pytest.mark.skipif(not shutil.which("c++"), reason="Inductor needs a C++ compiler")


@pytest.mark.parametrize("fallback", ["eager", pytest.param("inductor", marks=needs_cxx)])
def test_inference(fallback):
    model, x = mlp(), torch.randn(7, 40, dtype=torch.bfloat16)
    compiled = torch.compile(model, backend="flycc", options={"fallback": fallback, "strict": True})
    with torch.no_grad():
        close(compiled(x), model(x))


def test_training_gradients():
    model, x = mlp(), torch.randn(7, 40, dtype=torch.bfloat16)
    model(x).float().square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    record = flycc.explain(lambda x: model(x).float().square().sum().backward(), x)
    model.zero_grad()
    compiled = torch.compile(model, backend="flycc", options={"strict": True})
    compiled(x).float().square().sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        close(parameter.grad, gradient)
    assert record.launch_refusals == {}


def test_forward_and_backward_graphs_use_kernels():
    model, x = mlp(), torch.randn(7, 40, dtype=torch.bfloat16)
    compiled = torch.compile(model, backend="flycc")
    with recording.collect() as record:
        compiled(x).float().square().sum().backward()
    kinds = {graph.kind: graph.report for graph in record.graphs}
    assert set(kinds) == {"forward", "backward"}
    # Two layers: two products forward; weight gradients of both and the input gradient of the second backward.
    assert sum(c.kernel is not None for c in kinds["forward"].nodes) == 2
    assert sum(c.kernel is not None for c in kinds["backward"].nodes) == 3


def test_rows_change_without_recompiling_twice():
    model = mlp()
    compiled = torch.compile(model, backend="flycc", options={"strict": True})
    with torch.no_grad(), recording.collect() as record:
        for rows in (7, 5, 30, 3, 64):
            x = torch.randn(rows, 40, dtype=torch.bfloat16)
            close(compiled(x), model(x))
    assert len(record.graphs) == 2


def test_a_refused_op_keeps_its_reason():
    x = torch.randn(4, 4)
    record = flycc.explain(lambda x: x @ x, x)
    [candidate] = record.graphs[0].report.nodes
    assert candidate.kernel is None
    assert candidate.reason.code.startswith("gemm.")
    assert "f32" in candidate.reason.sentence or "float32" in candidate.reason.sentence


def test_strict_turns_a_refusal_into_an_error():
    x = torch.randn(4, 4)
    compiled = torch.compile(lambda x: x @ x, backend="flycc", options={"strict": True})
    with pytest.raises(Exception, match=r"f32|float32"):
        compiled(x)


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda x: torch.nn.functional.rms_norm(x, (3, 4)), "rms-norm.dims"),
        (lambda x: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6), "rms-norm.dims"),
        (lambda x: x.double().topk(2), "topk.dtype"),
        (lambda x: x.to(torch.int64).argmax(-1), "topk.dtype"),
    ],
)
def test_strict_covers_every_family_with_kernels(function, code):
    x = torch.randn(2, 3, 4)
    torch.compile(function, backend="flycc")(x)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        torch.compile(function, backend="flycc", options={"strict": True})(x)
    assert flycc.errors.flycc_error_in(caught.value).reason.code == code


def test_strict_covers_gradients_of_norms():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    with pytest.raises(Exception, match=r"rms-norm\.dtype|f64"):
        torch.compile(lambda x: torch.rms_norm(x, (4,)), backend="flycc", options={"strict": True})(x)


def test_strict_does_not_ask_for_kernels_that_are_none():
    def function(x):
        """None of a family with kernels; the last two have a reason of one, for they look like it."""
        return torch.softmax(x, -1), torch.layer_norm(x, (4,)), x.sort().values

    x = torch.randn(3, 4)
    compiled = torch.compile(function, backend="flycc", options={"strict": True})
    for ours, eager in zip(compiled(x), function(x), strict=True):
        assert torch.equal(ours, eager)


def test_unknown_options_reach_the_user():
    with pytest.raises(Exception, match="unknown option 'nope'"):
        torch.compile(lambda x: x + 1, backend="flycc", options={"nope": 1})(torch.ones(2))


def test_explain_json_round_trips():
    import json

    record = flycc.explain(mlp(), torch.randn(7, 40, dtype=torch.bfloat16))
    loaded = json.loads(json.dumps(record.to_json()))
    assert loaded["families"]["gemm"]["kernel"] == 2
    assert loaded["graphs"][0]["nodes"][0]["kernel"].startswith("flycc::gemm")


def test_errors_are_importable():
    assert issubclass(flycc.errors.MissingLinker, FlyccError)


def test_ops_of_no_family_are_counted():
    record = flycc.explain(lambda x: torch.nn.functional.silu(x).t().contiguous() + 1, torch.randn(3, 4))
    # The transpose is a view: it computes nothing.
    assert record.graphs[0].report.others == {
        "aten.silu.default": 1,
        "aten.clone.default": 1,
        "aten.add.Tensor": 1,
    }
    other = record.families()["other"]
    assert (other["kernel"], other["fallback"]) == (0, 3)
    assert "aten.silu.default" in other["reasons"][0]


def test_a_failure_of_inductor_runs_the_graph_op_by_op(monkeypatch):
    def broken(_):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(flycc.backend.frontend, "compile_with_inductor", broken)
    model, x = mlp(), torch.randn(7, 40, dtype=torch.bfloat16)
    compiled = torch.compile(model, backend="flycc", options={"fallback": "inductor"})
    with (
        torch.no_grad(),
        pytest.warns(RuntimeWarning, match=r"fallback\.inductor: RuntimeError: no compiler"),
    ):
        close(compiled(x), model(x))


def test_explain_works_any_number_of_times_and_on_what_is_compiled():
    x = torch.randn(4, 40, dtype=torch.bfloat16)
    model = mlp()
    compiled = torch.compile(model, backend="flycc")
    compiled(x)
    for subject in [model] * 10 + [compiled]:
        assert flycc.explain(subject, x).families()["gemm"] == {"kernel": 2, "fallback": 0, "reasons": []}


def test_our_error_is_found_in_what_torch_compile_raises():
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        torch.compile(lambda x: x + 1, backend="flycc", options={"nope": 1})(torch.ones(2))
    assert isinstance(flycc.errors.flycc_error_in(caught.value), flycc.errors.OptionError)
    assert flycc.errors.flycc_error_in(ValueError()) is None


def test_strict_looks_into_higher_order_ops():
    def function(x):
        return torch.cond(x.sum() > 0, lambda y: y @ y, lambda y: y + 1, (x,))

    compiled = torch.compile(function, backend="flycc", options={"strict": True})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compiled(torch.ones(4, 4, dtype=torch.bfloat16))
    assert flycc.errors.flycc_error_in(caught.value).reason.code == "gemm.higher-order"
