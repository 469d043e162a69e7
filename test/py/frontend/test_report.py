"""Candidates in the bodies of higher-order ops are reported, with why they stay on PyTorch."""

from __future__ import annotations

import torch
from frontend_graphs import ints, record
from torch import Tensor

from flycc.contracts import Reason
from flycc.frontend.report import report_failure


def branch(p: Tensor, x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return torch.cond(
        p, lambda a: (a @ w).relu(), lambda a: (a @ v).topk(2).values.sum(-1, True) + a @ w, (x,)
    )


def loop(x: Tensor) -> Tensor:
    return torch.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y @ y), (torch.zeros(()), x))[1]


def test_both_branches_of_a_cond() -> None:
    recorder = record(branch, torch.tensor(True), ints(3, 8), ints(8, 5), ints(8, 5))
    [report] = recorder.reports
    assert [(c.node, c.family) for c in report.nodes] == [
        ("cond.true_graph_0.mm", "gemm"),
        ("cond.false_graph_0.mm", "gemm"),
        ("cond.false_graph_0.topk", "topk"),
        ("cond.false_graph_0.mm_1", "gemm"),
    ]
    for candidate in report.nodes:
        assert candidate.kernel is None
        assert candidate.reason is not None
        assert candidate.reason.code == f"{candidate.family}.higher-order"
        assert "higher_order.cond" in candidate.reason.sentence
    assert report.nodes[0].shapes == "bf16[3, 8] x bf16[8, 5] -> bf16[3, 5]"
    assert report.others["aten.relu.default"] == 1


def test_a_product_beside_a_loop_is_still_served() -> None:
    recorder = record(lambda x, w: loop(x) @ w, ints(4, 4), ints(4, 5))
    inside, outside = recorder.reports[0].nodes
    assert inside.reason is not None
    assert inside.reason.code == "gemm.higher-order"
    assert outside.kernel == "flycc::gemm"


def test_a_loop_in_a_cond() -> None:
    recorder = record(lambda p, x: torch.cond(p, loop, lambda y: y * 2, (x,)), torch.tensor(True), ints(4, 4))
    [candidate] = recorder.reports[0].nodes
    assert candidate.node == "cond.true_graph_0.while_loop.while_loop_body_graph_0.mm"


def test_a_failure_is_the_reason_in_bodies_too() -> None:
    [gm] = record(loop, ints(4, 4)).graphs
    failure = Reason("import.failed", "some cause")
    [candidate] = report_failure(gm, failure).nodes
    assert candidate.reason == failure
