"""Every kind of op imports, each of its MLIR ops names its FX node, and the FX graph is left alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from frontend_graphs import Recorder, distinct, entry_ops, import_fresh, ints, is_result_of_tuple, record
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.attention.flex_attention import flex_attention
from torch_mlir.ir import Module

from flycc.frontend import compile_graph
from flycc.frontend.importer import ImportFailed


def branch(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))


def loop(x: Tensor) -> Tensor:
    return torch.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.zeros(()), x))[1]


def bump(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


@torch.library.custom_op("flycc_test::double_in_place", mutates_args=("x",))
def double_in_place(x: Tensor) -> None:
    x.mul_(2)


@torch.library.custom_op("flycc_test::halves", mutates_args=())
def halves(x: Tensor, scales: list[float], mode: str) -> list[Tensor]:
    return [half * scale for half, scale in zip(x.chunk(2), scales, strict=True)]


@halves.register_fake
def _(x: Tensor, scales: list[float], mode: str) -> list[Tensor]:
    return [torch.empty_like(half) for half in x.chunk(2)]


def custom(x: Tensor) -> Tensor:
    x = x.clone()
    torch.ops.flycc_test.double_in_place(x)
    first, second = torch.ops.flycc_test.halves(x, [1.0, 2.0], "round")
    return first + second


def grouped(a: Tensor, b: Tensor) -> Tensor:
    return F.grouped_mm(a, b, offs=torch.tensor([4, 8], dtype=torch.int32))


def flex(q: Tensor) -> Tensor:
    return flex_attention(q, q, q)


#: name: (function, inputs, text that must be in the imported module)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "mm": (torch.mm, (ints(4, 8), ints(8, 3)), "torch.aten.mm "),
    "addmm": (
        torch.addmm,
        (ints(3), ints(4, 8), ints(8, 3)),
        "torch.aten.addmm ",
    ),
    "bmm": (torch.bmm, (ints(2, 4, 8), ints(2, 8, 3)), "torch.aten.bmm "),
    "baddbmm": (
        torch.baddbmm,
        (ints(2, 4, 3), ints(2, 4, 8), ints(2, 8, 3)),
        "torch.aten.baddbmm ",
    ),
    "linear-3d": (
        F.linear,
        (ints(2, 4, 8), ints(3, 8), ints(3)),
        "torch.aten.t ",
    ),
    "matmul-4d": (torch.matmul, (ints(2, 3, 4, 8), ints(2, 3, 8, 5)), "torch.aten.bmm "),
    "einsum": (
        lambda a, b: torch.einsum("bik,bjk->bij", a, b),
        (ints(2, 4, 8), ints(2, 5, 8)),
        "torch.aten.bmm ",
    ),
    "views": (
        lambda x: x.view(2, 2, 8).permute(2, 0, 1).flatten(1),
        (ints(4, 8),),
        "torch.aten.permute ",
    ),
    "split": (lambda x: [y + 1 for y in x.split(3)], (ints(8, 4),), "torch.prim.ListUnpack"),
    "chunk-unbind": (
        lambda x: x.chunk(2)[1] + x.unbind(0)[0],
        (ints(4, 8),),
        "torch.prim.ListUnpack",
    ),
    "embedding": (F.embedding, (torch.tensor([[1, 2]]), ints(5, 8)), "torch.aten.embedding "),
    "index": (
        lambda x, i: x[i, :, None],
        (ints(5, 8), torch.tensor([0, 4])),
        "torch.aten.index.Tensor",
    ),
    "layer-norm": (lambda x: F.layer_norm(x, (8,)), (ints(4, 8),), "torch.aten.native_layer_norm"),
    "rms-norm": (
        lambda x, w: F.rms_norm(x, (8,), w),
        (ints(4, 8), ints(8)),
        '"torch.flycc.rms_norm"',
    ),
    "sdpa": (F.scaled_dot_product_attention, (ints(1, 2, 4, 8),) * 3, '"torch.flycc.sdpa"'),
    "sdpa-dropout": (
        lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5),
        (ints(1, 2, 4, 8),),
        "flycc.impure",
    ),
    "softmax": (lambda x: F.softmax(x, -1), (ints(4, 8),), "torch.aten._softmax"),
    "topk": (lambda x: torch.topk(x, 3), (distinct(4, 8),), "torch.aten.topk"),
    "sort-stable": (lambda x: torch.sort(x, stable=True), (ints(4, 8),), "torch.aten.sort"),
    "grouped-mm": (grouped, (ints(8, 16), ints(2, 16, 16)), "_grouped_mm"),
    "fp8": (lambda x: x.to(torch.float8_e4m3fn).view(torch.uint8), (ints(4, 8),), "f8E4M3FN"),
    "e8m0": (lambda x: x.view(torch.float8_e8m0fnu), (torch.ones(4, dtype=torch.uint8),), "f8E8M0FNU"),
    "fp4": (lambda x: x.view(torch.float4_e2m1fn_x2), (torch.ones(4, dtype=torch.uint8),), "f4E2M1FN"),
    "uint16": (lambda x: x.to(torch.uint16).view(torch.int16), (ints(4),), "unk"),
    "uint64-input": (lambda x: x.to(torch.int64), (torch.ones(4, dtype=torch.uint64),), "unk"),
    "complex": (torch.fft.fft, (ints(4, dtype=torch.float32),), "complex<f32>"),
    "bool": (lambda x: (x > 0) & torch.isfinite(x), (ints(4),), "i1"),
    "item": (lambda x: x + 2.5, (torch.tensor(1.0),), "torch.constant.float"),
    "constant": (lambda x: x + torch.tensor([1.0, 2.0]), (ints(2),), "torch.get_attr._tensor_constant"),
    "as-strided": (lambda x: x.as_strided((2, 2), (1, 4)), (ints(4, 4),), '"torch.aten.as_strided'),
    "rand": (lambda x: x + torch.rand_like(x), (ints(4),), "flycc.impure"),
    "dropout": (lambda x: F.dropout(x, 0.5), (ints(4),), "flycc.impure"),
    "in-place": (bump, (ints(4),), '"torch.aten.copy_'),
    "cond": (branch, (ints(4),), '"torch.higher_order.cond"'),
    "while-loop": (loop, (ints(4),), '"torch.higher_order.while_loop"'),
    "custom-op": (custom, (ints(4, 2),), '"torch.flycc_test.halves'),
    "flex-attention": (flex, (torch.randn(1, 2, 128, 16),), '"torch.higher_order.flex_attention"'),
    "none-output": (lambda x: (x + 1, None, 3), (ints(4),), "return"),
    "no-op": (lambda x: x, (ints(4),), "return"),
    "where-scalar": (
        lambda x: torch.where(x > 0, x, float("-inf")),
        (ints(4),),
        "torch.aten.where",
    ),
    "arange": (lambda x: x + torch.arange(4, device=x.device), (ints(4),), "torch.aten.arange"),
    "conv": (F.conv2d, (ints(1, 3, 8, 8), ints(4, 3, 3, 3)), "torch.aten.convolution"),
    "cat-stack": (
        lambda a, b: torch.stack([torch.cat([a, b]), torch.cat([b, a])]),
        (ints(2), ints(2)),
        "torch.aten.cat",
    ),
    "foreach": (
        lambda a, b: torch._foreach_add([a, b], 1.0),
        (ints(2), ints(3)),
        "foreach",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_ops_import_with_provenance(name: str) -> None:
    function, inputs, expected = CASES[name]
    recorder = record(function, *inputs)
    check_imports(recorder)
    assert any(expected in str(import_fresh(gm)) for gm in recorder.graphs)


def cross_entropy(table: Tensor, w: Tensor) -> Tensor:
    logits = F.embedding(torch.tensor([1, 2, 3]), table) @ w
    return F.cross_entropy(logits, torch.tensor([0, 1, 2]))


#: Forward and backward graphs with ops of their own: None results, scatter, saved masks, RNG.
TRAINING_CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "conv": (F.conv2d, (ints(1, 3, 8, 8), ints(4, 3, 3, 3))),
    "cross-entropy": (cross_entropy, (ints(5, 8), ints(8, 6))),
    "layer-norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), (ints(4, 8), ints(8), ints(8))),
    "dropout": (lambda x: F.dropout(x, 0.5), (ints(4, 8),)),
    "sdpa-dropout": (lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), (ints(1, 2, 4, 8),)),
    "index": (lambda x: x[torch.tensor([0, 0, 1])], (ints(4, 8),)),
    "topk": (lambda x: x.topk(2)[0], (distinct(4, 8),)),
    "max-pool": (lambda x: F.max_pool2d(x, 2), (ints(1, 1, 4, 4),)),
    "grouped-mm": (grouped, (ints(8, 16), ints(2, 16, 16))),
    "cond": (branch, (ints(4),)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", TRAINING_CASES)
def test_training_graphs_import_with_provenance(name: str, dynamic: bool) -> None:
    function, inputs = TRAINING_CASES[name]
    parameters = [x.clone().requires_grad_() for x in inputs]
    recorder = record(function, *parameters, dynamic=dynamic, grad=True)
    assert len(recorder.graphs) == 2
    check_imports(recorder)


def zeros_of_computed_length(x: Tensor) -> Tensor:
    length = x.sum().int().item()
    torch._check(length >= 0)
    return torch.zeros(length) + x[0]


def asserted(x: Tensor) -> Tensor:
    torch._assert_async((x > -5).all(), "too small")
    return x * 2


#: Sizes and scalars that only the run knows, and arithmetic on symbols.
SYMBOLIC_CASES: dict[str, Callable[[Tensor], Any]] = {
    "computed-size": zeros_of_computed_length,
    "nonzero": lambda x: x.nonzero() * 2,
    "item": lambda x: x * x.sum().item(),
    "assert": asserted,
    "arithmetic": lambda x: x * (x.shape[0] * 2.5) + (x.shape[0] > 3) + x.numel() ** 0.5,
    "max": lambda x: x[: max(x.shape[0] - 2, 1)],
    "rand": lambda x: torch.randn(x.shape[0]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", SYMBOLIC_CASES)
def test_symbolic_values_import_with_provenance(name: str, dynamic: bool) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        recorder = record(SYMBOLIC_CASES[name], torch.ones(4), dynamic=dynamic)
    check_imports(recorder)


@pytest.mark.parametrize("grad", [False, True])
def test_dynamic_shapes_are_stamped(grad: bool) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x, w).view(x.shape[0] * x.shape[1], -1) * (x.shape[1] // 2 + 1)

    x, w = ints(3, 4, 8), ints(5, 8)
    recorder = record(function, x.requires_grad_(grad), w.requires_grad_(grad), dynamic=True, grad=grad)
    assert len(recorder.graphs) == 1 + grad
    for gm in recorder.graphs:
        module = import_fresh(gm)
        check_provenance(gm, module)
        stamped = {
            op.attributes["flycc.node"].value: [size.value for size in op.attributes["flycc.shape"]]
            for op in entry_ops(module)
            if "flycc.shape" in op.attributes
        }
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default):
            assert stamped[node.name] == [str(size) for size in node.meta["val"].shape]


def test_symbolic_scalars_of_every_kind_are_arguments() -> None:
    def function(x: Tensor, n: int, f: float) -> Tensor:
        return x[: n + 1] * (f * 2.0)

    recorder = record(function, ints(8), 4, 1.5, dynamic=True)
    [gm] = recorder.graphs
    check_provenance(gm, import_fresh(gm))


def test_a_node_that_falls_back_to_opaque_leaves_nothing_behind() -> None:
    """The native attempt at `_to_copy` to uint16 builds literals before it fails on the dtype."""
    recorder = record(lambda x: x.to(torch.uint16).view(torch.int16), ints(4))
    [gm] = recorder.graphs
    module = import_fresh(gm)
    *literals, copy = [op for op in entry_ops(module) if op.attributes["flycc.node"].value == "_to_copy"]
    assert [op.results[0] for op in literals] == list(copy.operands)[1:]


def test_what_cannot_be_imported_names_the_node_and_runs_as_it_is() -> None:
    [gm] = record(lambda x: x + 1, ints(4)).graphs
    with gm.graph.inserting_before(), warnings.catch_warnings(action="ignore"):
        gm.graph.get_attr("missing")
    with pytest.raises(ImportFailed, match="missing"):
        import_fresh(gm)
    compiled, report = compile_graph(gm, [])
    assert compiled is gm
    assert report.failure is not None
    assert report.failure.code == "import.failed"


def check_imports(recorder: Recorder) -> None:
    for gm in recorder.graphs:
        before = snapshot(gm)
        module = import_fresh(gm)
        assert snapshot(gm) == before, "the importer edited the graph"
        check_provenance(gm, module)


def snapshot(gm: GraphModule) -> list[tuple[Any, ...]]:
    return [
        (n.name, n.op, n.target, str(n.args), str(n.kwargs), sorted(n.meta), n.meta.get("val"))
        for n in gm.graph.nodes
    ]


def check_provenance(gm: GraphModule, module: Module) -> None:
    """The ops of each node stand together, in graph order, and no op or node is without the other."""
    stamps = [op.attributes["flycc.node"].value for op in entry_ops(module)]
    in_order = [name for i, name in enumerate(stamps) if i == 0 or name != stamps[i - 1]]
    expected = [n.name for n in gm.graph.nodes if n.op != "placeholder" and not is_result_of_tuple(n)]
    assert in_order == expected
    function = module.body.operations[0]
    assert [attrs["flycc.node"].value for attrs in function.attributes["arg_attrs"]] == [
        node.name for node in gm.graph.find_nodes(op="placeholder")
    ]
    [output] = gm.graph.find_nodes(op="output")
    assert len(entry_ops(module)[-1].operands) == len(output.args[0])
