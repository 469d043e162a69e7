"""Forms of RMS norm and top-k that are matched, with the results of the graph, and near misses with their reasons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from frontend_graphs import Recorder, distinct, record
from torch import Tensor

BF16 = torch.bfloat16
Form = tuple[Callable[..., Any], tuple[Tensor, ...], str]


def x(dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(2, 3, 8).to(dtype)


def w(dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(8).to(dtype)


def unit(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x over its root mean square, in float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)


def llama(x: Tensor, w: Tensor) -> Tensor:
    return w * unit(x).to(x.dtype)


def gemma(x: Tensor, w: Tensor) -> Tensor:
    return (unit(x) * (1.0 + w.float())).type_as(x)


def residual(a: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    total = a + b
    return total * 2, llama(total, w) + total


#: name: (function, inputs, what the kernel's problem says besides sizes), with the bits of the graph
EXACT: dict[str, Form] = {
    "llama": (llama, (x(), w()), "bf16 weight bf16 cast before weight"),
    "llama-f16": (llama, (x(torch.float16), w(torch.float16)), "f16 weight f16 cast before weight"),
    "llama-f32": (llama, (x(torch.float32), w(torch.float32)), "f32 weight f32 align"),
    "llama-f32-weight": (llama, (x(), w(torch.float32)), "bf16 -> f32 weight f32 cast before weight"),
    "gemma": (gemma, (x(), w()), "bf16 weight bf16+1 align"),
    "no-weight": (lambda x: unit(x).to(x.dtype), (x(),), "bf16 align"),
    "no-cast-back": (unit, (x(),), "bf16 -> f32 align"),
    "weight-then-cast": (lambda x, w: (unit(x) * w).to(x.dtype), (x(), w()), "bf16 weight bf16 align"),
    "offset-rounded-first": (
        lambda x, w: unit(x).to(x.dtype) * (1 + w),
        (x(), w()),
        "weight bf16 cast before",
    ),
    "square-by-product": (
        lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5),
        (x(torch.float32),),
        "f32 align",
    ),
    "residual": (residual, (x(), x(), w()), "bf16+residual weight bf16 cast before weight"),
    "transposed": (lambda x, w: gemma(x.transpose(0, 1), w), (x(), w()), "bf16 weight bf16+1 align"),
    "transposed-slice": (lambda x: unit(x[:, 1:].transpose(0, 1)), (x(torch.float32),), "f32 align"),
    "transposed-residual": (
        lambda a, b, w: residual(a.transpose(0, 1), b.transpose(0, 1), w),
        (x(), x(), w()),
        "bf16+residual weight bf16 cast before weight",
    ),
    "rms-norm": (lambda x, w: F.rms_norm(x, (8,), w), (x(), w()), "bf16 weight bf16 align"),
    "rms-norm-residual": (
        lambda x, y, w: F.rms_norm(x + y, (8,), w),
        (x(), x(), w()),
        "bf16+residual weight bf16 align",
    ),
}

#: The same, where the kernel's float32 operations are others than the graph's.
CLOSE: dict[str, Form] = {
    "pow": (
        lambda x, w: (x.float() * (x.float().pow(2).mean(-1, True) + 1e-6).pow(-0.5) * w.float()).type_as(x),
        (x(), w()),
        "bf16 weight bf16 align",
    ),
    "division": (
        lambda x: (x.float() / torch.sqrt(x.float().pow(2).mean(-1, True) + 1e-6)).to(x.dtype),
        (x(),),
        "bf16 align",
    ),
    "unsqueezed-mean": (
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1).unsqueeze(-1) + 1e-6),
        (x(torch.float32),),
        "f32 align",
    ),
    "unsqueezed-root": (
        lambda x: x / torch.sqrt(x.pow(2).mean(2) + 1e-6)[..., None],
        (x(torch.float32),),
        "f32 align",
    ),
    "centred-elsewhere": (
        lambda x: unit(x - x.mean(0, keepdim=True)),
        (x(torch.float32),),
        "f32 align",
    ),
    "integer-weight": (
        lambda x, w: unit(x) * (1.0 + w),
        (x(torch.float32), torch.arange(8)),
        "f32 weight f32 align",
    ),
    "reciprocal": (
        lambda x: x * (1 / (x.pow(2).mean(-1, True) + 1e-6).sqrt()),
        (x(torch.float32),),
        "f32 align",
    ),
}


@pytest.mark.parametrize(
    "factor", [lambda s: s / 8, lambda s: s / 7, lambda s: s * (1 / 7), lambda s: s * 0.125]
)
@pytest.mark.parametrize("columns", [7, 8])
def test_a_sum_of_squares_over_their_number_is_a_mean(
    factor: Callable[[Tensor], Tensor], columns: int
) -> None:
    def function(x: Tensor) -> Tensor:
        return x * torch.rsqrt(factor((x * x).sum(-1, keepdim=True)) + 1e-6)

    [report] = record(function, torch.randn(3, columns), exact=False).reports
    [candidate] = report.nodes
    if factor(torch.tensor(1.0 * columns)) == 1:
        assert candidate.kernel == "flycc::rms_norm_fwd"
    else:
        assert candidate.reason is not None
        assert candidate.reason.code == "rms-norm.form"


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", [*EXACT, *CLOSE])
def test_norms_become_calls(name: str, dynamic: bool) -> None:
    function, inputs, expected = (EXACT | CLOSE)[name]
    [report] = record(function, *inputs, dynamic=dynamic, exact=name in EXACT).reports
    [candidate] = report.nodes
    assert candidate.kernel == "flycc::rms_norm_fwd"
    assert expected in candidate.problem


def with_two_users(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return x * rstd * w, rstd


F32 = (x(torch.float32),)

#: name: (function, inputs, code of the reason)
NEAR_NORMS: dict[str, Form] = {
    "layer-norm": (lambda x: F.layer_norm(x, (8,)), F32, "rms-norm.mean-subtracted"),
    "variance": (
        lambda x: (x - x.mean(-1, True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-6),
        F32,
        "rms-norm.mean-subtracted",
    ),
    "mean-subtracted": (lambda x: unit(x - x.mean(-1, keepdim=True)), F32, "rms-norm.mean-subtracted"),
    "eps-outside": (
        lambda x: x / (x.pow(2).mean(-1, keepdim=True).sqrt() + 1e-6),
        F32,
        "rms-norm.eps-outside-root",
    ),
    "eps-tensor": (
        lambda x, e: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + e),
        (*F32, torch.rand(1)),
        "rms-norm.eps",
    ),
    "other-tensor": (
        lambda x, y: y * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
        (*F32, x(torch.float32)),
        "rms-norm.form",
    ),
    "centred-by-addition": (
        lambda x: unit(torch.add(x, x.mean(-1, keepdim=True), alpha=-1)),
        F32,
        "rms-norm.mean-subtracted",
    ),
    "mean-in-f16": (
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, True, dtype=torch.float16) + 1e-6),
        F32,
        "rms-norm.statistics",
    ),
    "mean-in-f64": (
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, True, dtype=torch.float64) + 1e-6),
        F32,
        "rms-norm.statistics",
    ),
    "mean-cast": (
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, True).bfloat16() + 1e-6),
        F32,
        "rms-norm.statistics",
    ),
    "root-cast": (
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6).bfloat16(),
        F32,
        "rms-norm.statistics",
    ),
    "squares-rounded": (
        lambda x: x * torch.rsqrt(x.pow(2).bfloat16().float().mean(-1, True) + 1e-6),
        F32,
        "rms-norm.statistics",
    ),
    "dropped-dim": (
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1) + 1e-6),
        (torch.randn(8),),
        "rms-norm.keep-dim",
    ),
    "scalar": (
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
        (torch.tensor(3.0),),
        "rms-norm.dims",
    ),
    "eps-inf": (lambda x: unit(x, torch.inf), F32, "rms-norm.eps"),
    "eps-beyond-f32": (lambda x: unit(x, 1e39), F32, "rms-norm.eps"),
    "whole-eps-inf": (lambda x: F.rms_norm(x, (8,), None, torch.inf), F32, "rms-norm.eps"),
    "whole-eps-beyond-f32": (lambda x: F.rms_norm(x, (8,), None, 1e39), F32, "rms-norm.eps"),
    "whole-eps-negative": (
        lambda x: F.rms_norm(x + 2, (8,), None, -1e-3),
        (torch.rand(2, 3, 8),),  # the mean of squares stays positive
        "rms-norm.eps",
    ),
    "eps-times-alpha": (
        lambda x: x * torch.rsqrt(torch.add(x.pow(2).mean(-1, keepdim=True), 1e-6, alpha=3)),
        F32,
        "rms-norm.eps",
    ),
    "clamped-mean": (
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True).clamp_min(1e-6)),
        F32,
        "rms-norm.eps",
    ),
    "clamped-root": (
        lambda x: x / x.pow(2).mean(-1, keepdim=True).sqrt().clamp(min=1e-6),
        F32,
        "rms-norm.eps-outside-root",
    ),
    "vector-norm-eps-outside": (
        lambda x: x / (x.norm(2, -1, keepdim=True) * 8**-0.5 + 1e-6),
        F32,
        "rms-norm.eps-outside-root",
    ),
    "vector-norm": (
        lambda x: x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) / 8**0.5),
        F32,
        "rms-norm.form",
    ),
    "in-bf16": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6), (x(),), "rms-norm.statistics"),
    "f64": (
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6),
        (x(torch.float64),),
        "rms-norm.dtype",
    ),
    "other-dim": (lambda x: x * torch.rsqrt(x.pow(2).mean(1, True) + 1e-6), F32, "rms-norm.dims"),
    "two-dims": (lambda x: F.rms_norm(x, (3, 8)), F32, "rms-norm.dims"),
    "intermediate": (with_two_users, (*F32, w(torch.float32)), "rms-norm.intermediate"),
    "strided-rows": (lambda x: unit(x.transpose(0, 2)), F32, "rebuild.layout"),
}


def sort_with_places(x: Tensor) -> tuple[Tensor, Tensor]:
    values, places = torch.sort(x, descending=True)
    return values[:, :3] * 2, places[:, :3]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.normalize(x, dim=-1),
        lambda x: x / (x.norm(2, -1, keepdim=True) + 1e-6),
        lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6),
        lambda x: x * x.norm(2, -1, keepdim=True) * 8**-0.5,
    ],
)
def test_other_norms_are_no_candidates(function: Callable[[Tensor], Tensor]) -> None:
    [report] = record(function, *F32).reports
    assert report.nodes == []


@pytest.mark.parametrize("eps", [-1.0, torch.nan, torch.inf, 1e39])
@pytest.mark.parametrize("grad", [False, True])
def test_an_eps_that_no_kernel_takes_leaves_the_rest_of_the_graph_to_kernels(eps: float, grad: bool) -> None:
    """Where rows become NaN, too."""
    x = torch.randn(4, 8, requires_grad=grad)
    a, b = torch.randn(4, 8).bfloat16(), torch.randn(8, 4).bfloat16()
    recorder = Recorder()
    y, _ = torch.compile(lambda: (F.rms_norm(x, (8,), None, eps), a @ b), backend=recorder)()
    families = {candidate.family: candidate for report in recorder.reports for candidate in report.nodes}
    assert families["rms_norm"].reason is not None
    assert families["rms_norm"].reason.code == "rms-norm.eps"
    assert families["gemm"].kernel == "flycc::gemm"
    assert torch.equal(y.isnan(), F.rms_norm(x, (8,), None, eps).isnan())


N = torch.nan
TOPK: dict[str, Form] = {
    "topk": (lambda x: torch.topk(x, 3), (distinct(4, 16),), "k 3 largest align"),
    "smallest": (lambda x: torch.topk(x, 3, largest=False), (distinct(4, 16),), "k 3 smallest align"),
    "dim": (lambda x: torch.topk(x, 3, dim=0), (distinct(5, 4),), "topk 4x5 f32 k 3 largest"),
    "middle": (lambda x: torch.topk(x, 3, dim=1), (distinct(2, 5, 4),), "topk 8x5 f32 k 3 largest"),
    "i32": (lambda x: x.topk(2), (distinct(4, 16, dtype=torch.int32),), "i32 k 2"),
    "sort": (sort_with_places, (distinct(4, 16),), "k 3 largest"),
    "sort-stable": (
        lambda x: x.sort(stable=True)[1][:, :5],
        (torch.randint(3, (4, 16)).float(),),
        "k 5 smallest",
    ),
    "sort-dim": (
        lambda x: x.sort(0, descending=True)[0][:2],
        (distinct(4, 16),),
        "topk 16x4 f32 k 2 largest",
    ),
    "argsort": (lambda x: x.argsort(-1, descending=True)[:, :2] + 1, (distinct(4, 16),), "k 2 largest"),
    "max": (lambda x: x.max(-1), (torch.tensor([[1.0, 3.0, 3.0], [N, 1.0, N]]),), "topk 2x3 f32 k 1 largest"),
    "max-dim": (lambda x: x.max(0, keepdim=True), (torch.randint(3, (4, 16)).float(),), "topk 16x4 f32 k 1"),
    "max-of-ones": (lambda x: x.max(0, keepdim=True), (torch.randn(1, 40),), "topk 40x1 f32 k 1"),
    "middle-one": (lambda x: x.topk(1, dim=1), (distinct(4, 6, 10),), "topk 40x6 f32 k 1"),
    "column": (lambda x: x.topk(2, dim=0), (distinct(3, 1),), "topk 1x3 f32 k 2"),
    "argmax": (
        lambda x: x.argmax(-1),
        (torch.tensor([[1.0, 3.0, 3.0], [N, 1.0, N], [-1.0, 0.0, -0.0]]),),
        "topk 3x3 f32 k 1 largest",
    ),
    "argmax-dim": (
        lambda x: x.argmax(0, keepdim=True),
        (torch.randint(3, (4, 16)).float(),),
        "topk 16x4 f32 k 1",
    ),
    "argmin-i32": (lambda x: x.argmin(-1), (torch.randint(3, (4, 16), dtype=torch.int32),), "k 1 smallest"),
    "min-i32": (lambda x: x.min(-1), (torch.randint(3, (4, 16), dtype=torch.int32),), "k 1 smallest"),
}


@pytest.mark.parametrize("dynamic", [False, None])
@pytest.mark.parametrize("name", TOPK)
def test_selections_become_calls(name: str, dynamic: bool | None) -> None:
    function, inputs, expected = TOPK[name]
    recorder = record(function, *inputs, dynamic=dynamic)
    [candidate] = recorder.reports[0].nodes
    assert candidate.kernel == "flycc::topk"
    assert expected in candidate.problem
    [rebuilt] = recorder.rebuilt
    assert not any("sort" in str(node.target) for node in rebuilt.graph.nodes)


@pytest.mark.parametrize("shape", [(5, 40), (1, 40), (3, 1), (4, 6, 10), (4, 1, 10), (1, 6, 1), (1, 1, 1)])
@pytest.mark.parametrize("dim", [0, -2, -1])
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_have_pytorchs_strides(shape: tuple[int, ...], dim: int, dynamic: bool) -> None:
    """Those of dimensions of size 1 too; the recorder compares them."""

    def function(x: Tensor) -> tuple[Any, ...]:
        best, whole = x.topk(1, dim), x.mT.topk(x.mT.shape[dim], dim)
        return *best, *whole, *x.max(dim, keepdim=True), *x.max(dim), x.argmax(dim, keepdim=True)

    torch._dynamo.reset()
    [report] = record(function, distinct(*shape), dynamic=dynamic).reports
    assert [candidate.kernel for candidate in report.nodes] == ["flycc::topk"] * 5


NEAR_TOPK: dict[str, Form] = {
    "full-sort": (torch.sort, (distinct(4, 16),), "topk.full-sort"),
    "last-places": (lambda x: x.sort()[0][:, 3:], (distinct(4, 16),), "topk.full-sort"),
    "sliced-elsewhere": (lambda x: x.sort()[0][:2], (distinct(4, 16),), "topk.full-sort"),
    "min": (lambda x: x.min(-1), (torch.tensor([[1.0, N, 3.0]]),), "topk.nan"),
    "argmin": (lambda x: x.argmin(-1), (torch.tensor([[1.0, N, 3.0]]),), "topk.nan"),
    "argmax-of-all": (lambda x: x.argmax(), (distinct(4, 16),), "topk.dims"),
    "kth-value": (lambda x: torch.kthvalue(x, 2), (distinct(4, 16),), "topk.kth-value"),
    "i64": (lambda x: x.topk(2), (distinct(4, 16, dtype=torch.int64),), "topk.dtype"),
    "scalar": (lambda x: x.topk(1), (torch.tensor(1.0),), "topk.rank"),
    "none": (lambda x: x.topk(0), (distinct(4, 16),), "topk.empty"),
    "empty": (lambda x: x.topk(2), (distinct(4, 16)[:0],), "topk.empty"),
}


@pytest.mark.parametrize("name", [*NEAR_NORMS, *NEAR_TOPK])
def test_near_misses_say_why(name: str) -> None:
    function, inputs, code = (NEAR_NORMS | NEAR_TOPK)[name]
    [report] = record(function, *inputs).reports
    assert [candidate.kernel for candidate in report.nodes] == [None]
    assert report.nodes[0].reason is not None
    assert report.nodes[0].reason.code == code


def test_a_run_time_k() -> None:
    [report] = record(
        lambda x, y: torch.topk(x, y.shape[0]), distinct(4, 16), torch.ones(3), dynamic=True
    ).reports
    assert [candidate.kernel for candidate in report.nodes] == ["flycc::topk"]
