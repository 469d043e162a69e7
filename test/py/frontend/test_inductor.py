"""A rebuilt graph is a legal graph for Inductor, in training and with dynamic shapes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from frontend_graphs import ints
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from flycc.frontend import compile_graph, compile_with_inductor, keep_whole

needs_cxx = pytest.mark.skipif(not shutil.which("c++"), reason="Inductor needs a C++ compiler")


def compile_all(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """A Dynamo backend: forward and backward graphs rebuilt, the rest by Inductor."""

    def compile_aten(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return compile_with_inductor(compile_graph(gm, example_inputs)[0])

    return aot_autograd(fw_compiler=compile_aten, decompositions={})(keep_whole(gm), example_inputs)


@needs_cxx
def test_inductor_runs_the_rest_of_a_rebuilt_graph() -> None:
    calls = 0

    def compile_aten(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        nonlocal calls
        rebuilt, report = compile_graph(gm, example_inputs)
        assert report.failure is None
        calls += len(rebuilt.graph.find_nodes(op="call_function", target=torch.ops.flycc.gemm.default))
        return compile_with_inductor(rebuilt)

    def backend(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return aot_autograd(fw_compiler=compile_aten, decompositions={})(keep_whole(gm), example_inputs)

    def function(x: Tensor, w: Tensor, z: Tensor) -> Tensor:
        y = F.linear(x, w).float() * 2
        return y + F.rms_norm(z, (4,)) + F.scaled_dot_product_attention(z, z, z)

    compiled = torch.compile(function, backend=backend, dynamic=True, fullgraph=True)
    for length in (3, 5):
        x, w = ints(2, length, 8), ints(4, 8).requires_grad_()
        z = (torch.rand(2, length, 4) + 0.5).requires_grad_()
        result, (dw, dz) = with_gradients(compiled, x, w, z)
        expected, (expected_dw, expected_dz) = with_gradients(function, x, w, z)
        # Small integers make the product and its gradient exact. The rest is the same f32 arithmetic but for
        # the order in which Inductor sums up to four values below 2**3: errors of at most 3 * 2**3 * 2**-24.
        torch.testing.assert_close(result, expected, rtol=0, atol=2**-19)
        assert torch.equal(dw, expected_dw)
        torch.testing.assert_close(dz, expected_dz, rtol=0, atol=2**-19)
    assert calls == 2  # the forward product and the weight's gradient


def cached_heads(empty: Tensor, x: Tensor) -> Tensor:
    # A cache's first step: eager PyTorch's `cat` gives a row-major tensor, Inductor's the view's strides.
    return torch.cat([empty, x.view(*x.shape[:2], 4, 2).transpose(1, 2)], -2)


@needs_cxx
@pytest.mark.parametrize("dynamic", [False, True])
def test_outputs_keep_their_strides_when_inductor_decomposes_otherwise(dynamic: bool) -> None:
    def square(empty: Tensor, x: Tensor) -> Tensor:
        heads = cached_heads(empty, x)
        return heads * heads  # saves `heads` for the backward graph, which was traced for its strides

    compiled = torch.compile(square, backend=compile_all, dynamic=dynamic, fullgraph=True)
    empty, x = torch.empty(0, dtype=torch.bfloat16), ints(2, 7, 8).requires_grad_()
    result, (dx,) = with_gradients(compiled, empty, x)
    expected = square(empty, x)
    assert torch.equal(result, expected)
    assert result.stride() == expected.stride()
    assert torch.equal(dx, 2 * x)


@needs_cxx
def test_strides_that_no_dense_copy_has_are_refused() -> None:
    def columns(empty: Tensor, x: Tensor) -> Tensor:
        return cached_heads(empty, x)[..., :1]

    compiled = torch.compile(columns, backend=compile_all, fullgraph=True)
    with torch.no_grad(), pytest.raises(Exception, match=r"strides .* which no dense copy has"):
        compiled(torch.empty(0, dtype=torch.bfloat16), ints(2, 7, 8))


def with_gradients(function: Callable[..., Tensor], x: Tensor, *parameters: Tensor) -> Any:
    result = function(x, *parameters)
    return result.detach(), torch.autograd.grad(result.sum(), parameters)
