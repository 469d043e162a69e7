"""Rebuilt graphs: same bits, same interface, and a refusal wherever a match may not replace its nodes.

`record` runs every graph in both forms and compares; the tests here say what must have been matched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from frontend_graphs import Recorder, import_fresh, ints, record, reference_gemm
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch_mlir.ir import Block, StringAttr

from flycc.contracts import GemmProblem, Reason
from flycc.frontend import compile_graph
from flycc.frontend.rebuild import Inconsistent, rebuild_graph
from flycc.passes.pipeline import run_pipeline

GEMM = torch.ops.flycc.gemm.default


def attention(x: Tensor, w: Tensor) -> Tensor:
    """Batched 4-D products on a fused projection, whose parts are getitems of one split."""
    q, k, v = F.linear(x, w).view(*x.shape[:2], 6, 4).transpose(1, 2).split(2, dim=1)
    return (q @ k.transpose(-1, -2)).clamp(-2, 2) @ v


#: name: (function, inputs, products in it)
FORMS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], int]] = {
    "mm": (torch.mm, (ints(4, 8), ints(8, 3)), 1),
    "mm-tn": (lambda a, b: a.t() @ b, (ints(8, 4), ints(8, 3)), 1),
    "mm-tt": (lambda a, b: a.t() @ b.t(), (ints(8, 4), ints(3, 8)), 1),
    "addmm": (torch.addmm, (ints(3), ints(4, 8), ints(8, 3)), 1),
    "bmm": (torch.bmm, (ints(2, 4, 8), ints(2, 8, 3)), 1),
    "baddbmm": (torch.baddbmm, (ints(2, 1, 3), ints(2, 4, 8), ints(2, 8, 3)), 1),
    "linear-2d": (F.linear, (ints(4, 8), ints(3, 8), ints(3)), 1),
    "linear-3d": (F.linear, (ints(2, 4, 8), ints(3, 8), ints(3)), 1),
    "linear-4d-no-bias": (F.linear, (ints(2, 2, 4, 8), ints(3, 8)), 1),
    "matmul-4d": (torch.matmul, (ints(2, 3, 4, 8), ints(2, 3, 8, 5)), 1),
    "matmul-broadcast": (torch.matmul, (ints(2, 1, 4, 8), ints(3, 8, 5)), 1),
    "einsum": (lambda a, b: torch.einsum("bhik,bhjk->bhij", a, b), (ints(2, 3, 4, 8), ints(2, 3, 5, 8)), 1),
    "chain": (lambda x, w: F.linear(F.linear(x, w).clamp(-1, 1), w.t()), (ints(4, 8), ints(3, 8)), 2),
    "shared-weight": (
        lambda x, y, w: F.linear(x, w) + F.linear(y, w),
        (ints(4, 8), ints(4, 8), ints(3, 8)),
        2,
    ),
    "returned-view": (lambda x, w: (F.linear(x, w), w.t()), (ints(2, 4, 8), ints(3, 8)), 1),
    "attention": (attention, (ints(2, 3, 8), ints(24, 8)), 3),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_products_become_calls_with_the_same_bits(name: str, dynamic: bool) -> None:
    function, inputs, products = FORMS[name]
    recorder = record(function, *inputs, dynamic=dynamic)
    assert recorder.families() == {"gemm": (products, 0)}
    [rebuilt] = recorder.rebuilt
    assert len(rebuilt.graph.find_nodes(op="call_function", target=GEMM)) == products
    check_interface(recorder)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_training_graphs_go_the_same_way(name: str, dynamic: bool) -> None:
    function, inputs, _ = FORMS[name]
    parameters = [tensor.clone().requires_grad_() for tensor in inputs]
    recorder = record(function, *parameters, dynamic=dynamic, grad=True)
    assert len(recorder.graphs) == 2
    kernel, fallback = recorder.families()["gemm"]
    assert kernel > 0
    assert fallback == 0
    check_interface(recorder)
    compiled = [parameter.grad for parameter in parameters]
    eager = [tensor.clone().requires_grad_() for tensor in inputs]
    result = function(*eager)
    (result[0] if isinstance(result, tuple) else result).float().sum().backward()
    for mine, theirs in zip(compiled, (parameter.grad for parameter in eager), strict=True):
        assert torch.equal(mine, theirs)  # small integers: exact


@settings(max_examples=15, deadline=None)
@given(
    batch=st.lists(st.integers(1, 3), max_size=3),
    m=st.integers(1, 5),
    n=st.integers(1, 5),
    k=st.integers(1, 9),
    bias=st.booleans(),
)
def test_linear_of_any_rank(batch: list[int], m: int, n: int, k: int, bias: bool) -> None:
    torch._dynamo.reset()
    vector = (ints(n),) if bias else ()
    recorder = record(F.linear, ints(*batch, m, k), ints(n, k), *vector)
    assert recorder.families() == {"gemm": (1, 0)}
    check_interface(recorder)


def check_interface(recorder: Recorder) -> None:
    """Same inputs and outputs; kept nodes are the original's in its order; calls say what they give."""
    for gm, rebuilt in zip(recorder.graphs, recorder.rebuilt, strict=True):
        original = {node.name: node for node in gm.graph.nodes}
        kept = [node.name for node in rebuilt.graph.nodes]
        assert kept == [name for name in original if name in kept]
        assert str(rebuilt.graph.output_node().args) == str(gm.graph.output_node().args)
        for node in rebuilt.graph.nodes:
            if node.target is GEMM:
                assert node.meta["val"] is original[node.name].meta["val"]
                args, kwargs = map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
                fake = GEMM(*args, **kwargs)
                assert fake.shape == node.meta["val"].shape
                assert fake.stride() == node.meta["val"].stride()
            else:
                assert (node.target, str(node.args)) == (
                    original[node.name].target,
                    str(original[node.name].args),
                )


def test_in_place_updates_keep_their_order() -> None:
    def step(cache: Tensor, x: Tensor, w: Tensor) -> Tensor:
        cache[:, 1:2] = F.linear(x, w)
        return cache @ w

    recorder = record(step, ints(2, 3, 4), ints(2, 1, 8), ints(4, 8))
    assert recorder.families() == {"gemm": (2, 0)}
    check_interface(recorder)


def traced(function: Callable[..., Any], *inputs: Tensor) -> GraphModule:
    """An ATen graph that is not functional: what writes to memory stays where it was written."""
    return make_fx(function, tracing_mode="fake")(*inputs)


def test_a_write_between_a_copy_and_its_product_is_not_crossed() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        before = w.t().clone()
        w.add_(1)
        return x @ before

    x, w = ints(4, 8), ints(3, 8)
    gm = traced(function, x, w)
    compiled, report = compile_graph(gm, [x, w])
    [candidate] = report.nodes
    assert candidate.kernel is None
    assert candidate.reason is not None
    assert candidate.reason.code == "rebuild.mutation"
    assert torch.equal(compiled(x, w.clone()), function(x, w.clone()))


def test_a_result_that_is_not_row_major_is_refused() -> None:
    gm = traced(torch.mm, ints(4, 8), ints(8, 3))
    [node] = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    node.meta["val"] = node.meta["val"].as_strided((4, 3), (1, 4))
    _, report = compile_graph(gm, [])
    assert report.nodes[0].reason is not None
    assert report.nodes[0].reason.code == "rebuild.layout"


def test_the_caller_may_refuse_a_problem() -> None:
    seen: list[tuple[GemmProblem, torch.device]] = []

    def serve(problem: GemmProblem, device: torch.device) -> Reason | None:
        seen.append((problem, device))
        return Reason("gemm.too-wide", "no") if problem.n == 3 else None

    gm = traced(lambda x, v, w: (x @ v) @ w, ints(4, 8), ints(8, 3), ints(3, 5))
    rebuilt, report = compile_graph(gm, [], serve=serve)
    assert [(problem.m, problem.n, problem.k) for problem, _ in seen] == [(4, 3, 8), (4, 5, 3)]
    assert {device for _, device in seen} == {torch.device("cpu")}
    assert [(c.kernel, c.reason and c.reason.code) for c in report.nodes] == [
        (None, "gemm.too-wide"),
        ("flycc::gemm", None),
    ]
    assert len(rebuilt.graph.find_nodes(op="call_function", target=GEMM)) == 1


def rename(block: Block, name: str) -> None:
    with block.owner.context:
        block.operations[0].attributes["flycc.node"] = StringAttr.get(name)


def return_an_input(block: Block) -> None:
    block.operations[1].operands[0] = block.arguments[0]


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda block: rename(block, "nowhere"), "rebuild.provenance"),
        (lambda block: rename(block, "a_1"), "rebuild.order"),
        (return_an_input, "rebuild.output"),
    ],
)
def test_a_module_that_does_not_describe_the_graph_is_refused(
    damage: Callable[[Block], None], code: str
) -> None:
    gm = traced(lambda a, b: a @ b, ints(4, 8), ints(8, 3))
    module = import_fresh(gm)
    run_pipeline(module)
    damage(module.body.operations[0].regions[0].blocks[0])
    with pytest.raises(Inconsistent) as caught:
        rebuild_graph(gm, module, lambda problem, device: None)
    assert caught.value.reason.code == code


def test_a_fault_of_flycc_leaves_the_graph_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(module: object) -> None:
        raise KeyError("no such thing")

    monkeypatch.setattr("flycc.frontend.compile.run_pipeline", fail)
    gm = traced(torch.mm, ints(4, 8), ints(8, 3))
    compiled, report = compile_graph(gm, [])
    assert compiled is gm
    assert report.failure is not None
    assert report.failure.code == "compile.internal"
    assert [candidate.reason for candidate in report.nodes] == [report.failure]


def test_a_size_that_only_the_run_knows() -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        recorder = record(lambda x, i, w: F.linear(x[i.nonzero()[:, 0]], w), ints(4, 8), ints(4), ints(3, 8))
    assert recorder.families() == {"gemm": (1, 0)}


def test_near_misses_keep_the_reason_of_the_pass() -> None:
    recorder = record(lambda x, w: x @ w, ints(4, 8, dtype=torch.float32), ints(8, 3, dtype=torch.float32))
    [candidate] = recorder.reports[0].nodes
    assert candidate.kernel is None
    assert candidate.reason is not None
    assert candidate.reason.code == "gemm.dtype"
    assert candidate.shapes == "f32[4, 8] x f32[8, 3] -> f32[4, 3]"


def test_attention_is_served_forward_and_backward() -> None:
    def function(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    recorder = record(function, ints(1, 2, 4, 8).requires_grad_(), grad=True)
    assert recorder.families() == {"sdpa": (1, 0), "sdpa_backward": (1, 0)}
    [report] = record(function, ints(1, 2, 4, 8).float()).reports
    assert {c.family: c.reason.code for c in report.nodes if c.reason} == {"sdpa": "sdpa.dtype"}


def test_report_is_plain_data() -> None:
    [report] = record(F.linear, ints(4, 8), ints(3, 8)).reports
    [entry] = report.to_json()["nodes"]
    assert entry["kernel"] == "flycc::gemm"
    assert entry["problem"].startswith("gemm 4x3x8 bf16 NT")
    assert entry["count"] == 2  # t and mm


def test_reference_gemm_agrees_with_its_definition() -> None:
    a, b, bias = ints(2, 8, 4), ints(3, 8), ints(3)
    expected = torch.einsum("bkm,nk->bmn", a.double(), b.double()) + bias
    assert torch.equal(reference_gemm(a, b, bias, trans_a=True, trans_b=True).double(), expected)
