"""Norms before MX layers: which quantise their rows themselves, and that this changes no bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

import flycc.runtime.ops
from flycc.contracts import Reason, RmsNormProblem
from flycc.frontend import compile as frontend_compile
from flycc.frontend.quantised_norms import fuse_quantised_norms

NORM, FUSED, QUANTIZE = (
    getattr(torch.ops.flycc, name).default for name in ("rms_norm_fwd", "rms_norm_mx", "mx_quantize")
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """Two norms whose rows two layers take, and a product of them that is quantised by itself."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.second = (nn.RMSNorm(width, eps=1e-6) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 96, bias=False) for _ in range(2))
        self.down = nn.Linear(96, width, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.first(x)
        x = x + self.down(F.silu(self.gate(rows)) * self.up(rows))
        return x, self.gate(self.second(x))


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The norms and quantisations of the graphs that are rebuilt."""
    found: list[Any] = []

    def remember(gm: GraphModule, serve: Any) -> None:
        fuse_quantised_norms(gm, serve)
        found.extend(node.target for node in gm.graph.nodes if node.target in (NORM, FUSED, QUANTIZE))

    monkeypatch.setattr(frontend_compile, "fuse_quantised_norms", remember)
    return found


def check(model: nn.Module, *inputs: Tensor, dynamic: bool = False, **options: Any) -> None:
    """The same bits as without, for each input."""

    def run() -> list[Tensor]:
        torch._dynamo.reset()
        with torch.no_grad():
            compiled = torch.compile(model, backend="flycc", options=options, dynamic=dynamic)
            return [result for x in inputs for result in compiled(x)]

    found = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frontend_compile, "fuse_quantised_norms", lambda gm, serve: None)
        expected = run()
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("fallback", ["eager", pytest.param("inductor", marks=pytest.mark.nightly)])
def test_rows_that_are_only_quantised(fallback: str, ops: list[Any]) -> None:
    check(Block().bfloat16(), torch.randn(2, 5, 64).bfloat16(), mx="mxfp4", fallback=fallback)
    assert ops == [FUSED, QUANTIZE, FUSED]


def test_sizes_that_are_not_known(ops: list[Any]) -> None:
    rows = [torch.randn(2, size, 64).bfloat16() for size in (5, 3)]
    check(Block().bfloat16(), *rows, dynamic=True, mx="mxfp8")
    assert ops == [FUSED, QUANTIZE, FUSED]


class Summed(Block):
    """Rows of a sum, which is wanted too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x + x.flip(0)
        return x, self.gate(self.first(x))


def test_the_sum_comes_from_the_norm(ops: list[Any]) -> None:
    check(Summed().bfloat16(), torch.randn(3, 64).bfloat16(), mx="mxfp4")
    assert ops == [FUSED]


class Used(Block):
    """Rows that are wanted themselves."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.first(x)
        return rows, self.gate(rows)


@pytest.mark.parametrize(
    ("model", "dtype", "width"),
    [(Used(), torch.bfloat16, 64), (Block(48), torch.bfloat16, 48)],
    ids=["rows are used", "short blocks"],
)
def test_rows_that_stay(model: Block, dtype: torch.dtype, width: int, ops: list[Any]) -> None:
    check(model.to(dtype), torch.randn(3, width, dtype=dtype), mx="mxfp8")
    assert NORM in ops
    assert FUSED not in ops


def test_what_no_kernel_serves_stays(monkeypatch: pytest.MonkeyPatch, ops: list[Any]) -> None:
    asked = []

    def refuse(problem: Any, device: torch.device, **_: Any) -> Reason | None:
        if isinstance(problem, RmsNormProblem) and problem.mx is not None:
            asked.append(problem)
            return Reason("rms-norm.planted", "on purpose")
        return None

    monkeypatch.setattr(flycc.backend, "serve", refuse)
    check(Block().half(), torch.randn(4, 64).half(), mx="mxfp8")
    assert FUSED not in ops
    assert len(asked) == 2
    assert (asked[0].dtype, asked[0].rows, asked[0].columns, asked[0].mx) == ("f16", 4, 64, "e4m3")
