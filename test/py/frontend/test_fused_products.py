"""Products with an epilogue in graphs: what reports say of them, and what happens where no kernel serves one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from frontend_graphs import ints, record
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from flycc.contracts import GemmProblem, Problem, Reason
from flycc.frontend import Report, compile_graph


def mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return x + F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def inputs() -> list[Tensor]:
    return [ints(3, 8), ints(16, 8), ints(16, 8), ints(8, 16)]


def test_the_report_names_what_was_fused_in_order() -> None:
    recorder = record(mlp, *inputs(), exact=False)
    [report] = recorder.reports
    assert [(c.node, c.kernel, c.fused) for c in report.nodes] == [
        ("mm", "flycc::gemm", ("aten.silu.default", "aten.mul.Tensor")),
        ("mm_1", "flycc::gemm", ("aten.silu.default", "aten.mul.Tensor")),
        ("mm_2", "flycc::gemm", ("aten.add.Tensor",)),
    ]
    assert report.nodes[1].count == 0, "the first product stands for both"
    assert report.others == {}


def served_with(serve: Any) -> tuple[list[Problem], Report, list[Any]]:
    """What `serve` was asked for the last graph that was tried, the report, and the calls of the rebuilt graph."""
    [gm] = record(mlp, *inputs(), exact=False).graphs
    asked: list[Problem] = []

    def serve_and_note(problem: Problem, device: torch.device) -> Reason | None:
        asked.append(problem)
        return serve(problem)

    rebuilt, report = compile_graph(gm, inputs(), serve=serve_and_note)
    calls = [node.target for node in rebuilt.graph.nodes if node.op == "call_function"]
    return asked, report, calls


def test_a_fused_product_that_no_kernel_serves_is_served_apart() -> None:
    def serve(problem: Problem) -> Reason | None:
        assert isinstance(problem, GemmProblem)
        return Reason("gemm.gated", "planted") if problem.epilogue.gated else None

    asked, report, calls = served_with(serve)
    assert len(asked) == 2 + 3, "two fused products, then each by itself and the residual's"
    assert report.refused() == []
    outcomes = {c.node: (c.kernel, c.reason and c.reason.code) for c in report.nodes}
    assert outcomes == {
        "mm": ("flycc::gemm", None),
        "silu": (None, "epilogue.unserved"),
        "mm_1": ("flycc::gemm", None),
        "mul": (None, "epilogue.unserved"),
        "mm_2": ("flycc::gemm", None),
    }
    reason = next(c.reason for c in report.nodes if c.node == "silu")
    assert reason is not None
    assert reason.sentence == "fused into mm, no kernel serves it: gemm.gated: planted"
    assert report.nodes[-1].fused == ("aten.add.Tensor",)
    assert calls == [
        torch.ops.flycc.gemm.default,
        torch.ops.aten.silu.default,
        torch.ops.flycc.gemm.default,
        torch.ops.aten.mul.Tensor,
        torch.ops.flycc.gemm.default,
    ]


def test_where_no_kernel_serves_anything_the_graph_is_as_it_was() -> None:
    asked, report, calls = served_with(lambda problem: Reason("gemm.none", "planted"))
    assert [problem.epilogue.gated for problem in asked] == [True, False, False, False, False]
    assert [reason.code for reason in report.refused()] == ["gemm.none"] * 3
    assert not any("flycc" in str(target) for target in calls)


def test_a_norm_behind_a_residual_still_reads_16_bits() -> None:
    def block(x: Tensor, w: Tensor, h: Tensor, weight: Tensor) -> Tensor:
        y = (h + F.linear(x, w)).float()
        return weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).bfloat16()

    recorder = record(block, ints(3, 8), ints(16, 8), ints(3, 16), ints(16), exact=False)
    assert recorder.families() == {"gemm": (1, 0), "rms_norm": (1, 0)}
    [report] = recorder.reports
    assert report.nodes[0].fused == ("aten.add.Tensor",)
    assert "f32" not in report.nodes[1].problem
    assert report.others == {}


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_backward_saved_is_the_preactivation(dynamic: bool) -> None:
    def layer(x: Tensor, w: Tensor) -> Tensor:
        return F.silu(F.linear(x, w))

    w = ints(4, 8).requires_grad_()
    recorder = record(layer, ints(3, 8), w, dynamic=dynamic, grad=True, exact=False)
    forward, _ = recorder.reports
    [candidate] = forward.nodes
    assert candidate.kernel == "flycc::gemm_with_preactivation"
    assert candidate.fused == ("aten.silu.default",)


@pytest.mark.parametrize("beta", [0, 1])
def test_alpha_is_the_scale(beta: int) -> None:
    def function(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.addmm(bias, a, b, beta=beta, alpha=-0.5)

    # What beta is 0 for is not read: NaN times 0 would be NaN.
    bias = ints(6) if beta else torch.full((6,), torch.nan, dtype=torch.bfloat16)
    recorder = record(function, bias, ints(4, 8), ints(8, 6))
    [gm] = recorder.rebuilt
    [call] = gm.graph.find_nodes(op="call_function", target=torch.ops.flycc.gemm.default)
    assert call.kwargs["scale"] == -0.5
    assert len(call.args) == 2 + beta


def test_a_product_with_an_out_dtype_has_it() -> None:
    a, b = ints(4, 8), ints(8, 6)

    def serve(problem: Problem, device: torch.device) -> None:
        assert isinstance(problem, GemmProblem)
        assert (problem.dtype, problem.epilogue.out_dtype) == ("bf16", "f32")

    # PyTorch has these for GPUs only, and fakes everywhere.
    traced = make_fx(lambda a, b: torch.mm(a, b, out_dtype=torch.float32), tracing_mode="fake")(a, b)
    rebuilt, report = compile_graph(traced, [a, b], serve=serve)
    [candidate] = report.nodes
    assert (candidate.target, candidate.kernel) == ("aten.mm.dtype", "flycc::gemm")
    assert torch.equal(rebuilt(a, b), a.float() @ b.float())


def packed(x: Tensor, both: Tensor) -> Tensor:
    gate, up = (x @ both).chunk(2, -1)
    return F.silu(gate) * up


def biased(x: Tensor, gate: Tensor, up: Tensor, gate_bias: Tensor, up_bias: Tensor) -> Tensor:
    return F.silu(F.linear(x, gate, gate_bias)) * F.linear(x, up, up_bias)


def test_gates_that_stay_apart_say_why() -> None:
    [report] = record(packed, ints(3, 8), ints(8, 32), exact=False).reports
    reasons = {c.node: c.reason and c.reason.code for c in report.nodes}
    assert reasons == {"mm": None, "silu": "epilogue.gate"}
    operands = [ints(3, 8), *(t.requires_grad_() for t in (ints(16, 8), ints(16, 8), ints(16), ints(16)))]
    forward, _ = record(biased, *operands, grad=True, exact=False).reports
    [gate] = [c for c in forward.nodes if c.node == "mul"]
    assert gate.reason is not None
    assert gate.reason.code == "epilogue.gate"


@pytest.mark.parametrize("batch", [(), (4,)])
def test_addends_of_sizes_that_depend_on_data(batch: tuple[int, ...]) -> None:
    def layer(x: Tensor, w: Tensor, residual: Tensor, mask: Tensor) -> Tensor:
        chosen = torch.nonzero(mask).view(-1)
        return F.relu(x[chosen] @ w) + residual[chosen]

    operands = ints(6, *batch, 8), ints(8, 16), ints(6, *batch, 16), torch.arange(6) > 2
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        [report] = record(layer, *operands, exact=False).reports
    assert report.failure is None
    assert [c.fused for c in report.nodes if c.family == "gemm"] == [("aten.relu.default", "aten.add.Tensor")]
