"""Helpers: ATen graphs of a function, and a backend that runs each graph both as it was and rebuilt."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map
from torch_mlir.ir import Context, Module, Operation

import flycc.runtime.ops  # noqa: F401  defines torch.ops.flycc.gemm
from flycc import dialects
from flycc.frontend import Report, compile_graph, keep_whole
from flycc.frontend.importer import import_graph


def ints(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Values -1, 0 and 1. Sums of up to 256 of their products are exact in bf16 in any order."""
    return torch.randint(-1, 2, shape).to(dtype)


def reference_gemm(
    a: Tensor, b: Tensor, bias: Tensor | None = None, *, trans_a: bool = False, trans_b: bool = False
) -> Tensor:
    """`flycc::gemm` by PyTorch on the CPU."""
    product = torch.matmul(a.mT if trans_a else a, b.mT if trans_b else b)
    return product if bias is None else product + bias


@dataclass
class Recorder:
    """A Dynamo backend that keeps the ATen graphs, their rebuilt forms and reports.

    Each graph runs in its original form and rebuilt, with `reference_gemm` for `flycc::gemm`, on separate
    copies of the inputs; the results, and what happened to the inputs, must agree bit for bit.
    """

    transform: Callable[[GraphModule], GraphModule] = keep_whole
    graphs: list[GraphModule] = field(default_factory=list)
    rebuilt: list[GraphModule] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    def __call__(self, gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        aot = aot_autograd(fw_compiler=self._compile, decompositions={}, keep_inference_input_mutations=True)
        return aot(self.transform(gm), example_inputs)

    def _compile(self, gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        rebuilt, report = compile_graph(gm, example_inputs)
        assert report.failure is None
        self.graphs.append(gm)
        self.rebuilt.append(rebuilt)
        self.reports.append(report)
        stand_in = GraphModule(rebuilt, copy.deepcopy(rebuilt.graph))
        for node in stand_in.graph.find_nodes(op="call_function", target=torch.ops.flycc.gemm.default):
            node.target = reference_gemm
        stand_in.recompile()

        def run(*inputs: Any) -> Any:
            copies = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, inputs)
            state = torch.get_rng_state()
            rebuilt_outputs = stand_in(*copies)
            torch.set_rng_state(state)
            outputs = gm(*inputs)
            assert_same_bits(rebuilt_outputs, outputs)
            assert_same_bits(copies, inputs)
            return outputs

        return make_boxed_func(run)

    def families(self) -> dict[str, tuple[int, int]]:
        """How many candidates of each family got a kernel, and how many did not."""
        candidates = [candidate for report in self.reports for candidate in report.nodes]
        return {
            family: (
                sum(c.family == family and c.kernel is not None for c in candidates),
                sum(c.family == family and c.kernel is None for c in candidates),
            )
            for family in sorted({c.family for c in candidates})
        }


def record(fn: Callable[..., Any], *inputs: Any, dynamic: bool | None = None, grad: bool = False) -> Recorder:
    """Runs `fn` once, and with `grad` its backward pass for the sum of its first result."""
    recorder = Recorder()
    compiled = torch.compile(fn, backend=recorder, dynamic=dynamic, fullgraph=True)
    with torch.set_grad_enabled(grad):
        result = compiled(*inputs)
    if grad:
        (result[0] if isinstance(result, tuple) else result).float().sum().backward()
    return recorder


def import_fresh(gm: GraphModule) -> Module:
    """`gm` imported into a context of its own."""
    return import_graph(gm, dialects.load(Context()))


def entry_ops(module: Module) -> list[Operation]:
    return [op.operation for op in module.body.operations[0].regions[0].blocks[0].operations]


def targets(recorder: Recorder) -> list[str]:
    """The targets of all calls in the graphs before matching."""
    return [
        str(node.target) for gm in recorder.graphs for node in gm.graph.nodes if node.op == "call_function"
    ]


def is_result_of_tuple(node: Node) -> bool:
    return node.target is operator.getitem


def assert_same_bits(actual: Any, expected: Any) -> None:
    """Equal structure, dtypes, strides and bits; NaNs of the same bits are equal."""
    if isinstance(expected, tuple | list):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_same_bits(a, e)
    elif isinstance(expected, Tensor):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        assert actual.stride() == expected.stride()
        assert torch.equal(_bytes(actual), _bytes(expected))
    else:
        assert actual == expected


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
