"""Loops over experts become grouped products with the loop's results, or stay with a reason.

Inputs are small integers, so that every sum is exact in float32 and both ways round the same numbers.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

import flycc
from flycc.frontend import roll_up_expert_loops
from flycc.record import collect

EXPERTS, TOKENS, WIDTH, INNER = 4, 12, 16, 8


def ints(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randint(-1, 2, shape).to(dtype)


class Layer:
    """Weights, and the choices of experts: nobody chooses the last one."""

    def __init__(self) -> None:
        self.up, self.down = ints(EXPERTS, 2 * INNER, WIDTH), ints(EXPERTS, WIDTH, INNER)
        self.up_bias, self.down_bias = ints(EXPERTS, 2 * INNER), ints(EXPERTS, WIDTH)
        self.up_t, self.down_t = self.up.mT.contiguous(), self.down.mT.contiguous()
        self.separate = [ints(WIDTH, WIDTH) for _ in range(EXPERTS)]
        self.x, self.scores = ints(TOKENS, WIDTH), ints(TOKENS, 2)
        self.factors = torch.tensor([0.5, 1.0, -2.0, 4.0])
        self.chosen = torch.rand(TOKENS, EXPERTS - 1).topk(2).indices

    @property
    def mask(self) -> Tensor:
        """[experts, choices, tokens], as transformers' models have it."""
        return F.one_hot(self.chosen, EXPERTS).permute(2, 1, 0)


def mixtral(layer: Layer, x: Tensor) -> Tensor:
    """As in transformers 4, but for the activation."""
    mask = layer.mask
    out = torch.zeros((TOKENS, WIDTH), dtype=x.dtype, device=x.device)
    for e in range(EXPERTS):
        slot, token = torch.where(mask[e])
        state = x[None, token].reshape(-1, WIDTH)
        gate, up = F.linear(state, layer.up[e]).chunk(2, dim=-1)
        state = F.linear(F.relu(gate) * up, layer.down[e]) * layer.scores[token, slot, None]
        out.index_add_(0, token, state.to(x.dtype))
    return out


def gpt_oss(layer: Layer, x: Tensor) -> Tensor:
    """Weights the other way around, biases, and halves that alternate."""
    mask = layer.mask
    out = torch.zeros_like(x)
    for e in range(EXPERTS):
        slot, token = torch.where(mask[e])
        both = x[token] @ layer.up_t[e] + layer.up_bias[e]
        gate, up = both[..., ::2], both[..., 1::2]
        state = (up + 1) * gate.clamp(min=None, max=1.0)
        state = state @ layer.down_t[e] + layer.down_bias[e]
        out.index_add_(0, token, state * layer.scores[token, slot, None])
    return out * 2


def compared(layer: Layer, x: Tensor) -> Tensor:
    """No mask; sums that are new tensors; transposed weights."""
    out = torch.zeros_like(x)
    for e in range(EXPERTS):
        token, slot = (layer.chosen == e).nonzero(as_tuple=True)
        state = torch.matmul(x[token], layer.up[e].t()).relu()[:, :INNER]
        state = state.mm(layer.down[e].T) * layer.scores[token, slot].unsqueeze(-1)
        out = out.index_add(0, token, state)
    return out


def halves(layer: Layer, x: Tensor) -> Tensor:
    """Two products with slices of one weight."""
    mask = layer.mask
    out = torch.zeros_like(x)
    for e in range(EXPERTS):
        _, token = torch.where(mask[e])
        state = F.linear(x[token], layer.up[e, :INNER]) * F.linear(x[token], layer.up[e, INNER:])
        out.index_add_(0, token, F.linear(state, layer.down[e]))
    return out


def biased_linear(layer: Layer, x: Tensor) -> Tensor:
    mask = layer.mask
    out = torch.zeros_like(x)
    for e in range(EXPERTS):
        _, token = torch.where(mask[e])
        state = F.linear(x[token], layer.up[e], layer.up_bias[e]).relu()
        out.index_add_(0, token, F.linear(state[:, :INNER], layer.down[e], layer.down_bias[e]))
    return out


def loop(body: Callable[..., Tensor], experts: range = range(EXPERTS)) -> Callable[[Layer, Tensor], Tensor]:
    """A loop whose iteration adds up `body(layer, rows, expert, token)`."""

    def run(layer: Layer, x: Tensor) -> Tensor:
        mask = layer.mask
        out = torch.zeros_like(x)
        for e in experts:
            _, token = torch.where(mask[e])
            out.index_add_(0, token, body(layer, x[token], e, token))
        return out

    return run


def up(layer: Layer, rows: Tensor, e: int, _: Tensor) -> Tensor:
    return F.linear(rows, layer.up[e])


def added_by_assignment(layer: Layer, x: Tensor) -> Tensor:
    mask, out = layer.mask, torch.zeros_like(x)
    for e in range(EXPERTS):
        _, token = torch.where(mask[e])
        out[token] += up(layer, x[token], e, token)
    return out


def added_to_its_input(layer: Layer, x: Tensor) -> Tensor:
    mask, out = layer.mask, x.clone()
    for e in range(EXPERTS):
        _, token = torch.where(mask[e])
        out.index_add_(0, token, up(layer, out[token], e, token))
    return out


def written_in_between(layer: Layer, x: Tensor) -> Tensor:
    mask, out, y = layer.mask, torch.zeros_like(x), x.clone()
    for e in range(EXPERTS):
        _, token = torch.where(mask[e])
        out.index_add_(0, token, up(layer, y[token], e, token))
        y.add_(1)
    return out


def read_in_between(layer: Layer, x: Tensor) -> Tensor:
    mask, out, sums = layer.mask, torch.zeros_like(x), x
    for e in range(EXPERTS):
        _, token = torch.where(mask[e])
        out.index_add_(0, token, up(layer, x[token], e, token))
        sums = sums + out
    return sums


def one_number_an_expert(layer: Layer, x: Tensor) -> Tensor:
    mask, out = layer.mask[:, 0, 0], torch.zeros_like(x)
    for e in range(EXPERTS):
        (token,) = torch.where(mask[e])
        out.index_add_(0, token, up(layer, x[token], e, token))
    return out


def frozen(layer: Layer, rows: Tensor, e: int, _: Tensor) -> Tensor:
    with torch.set_grad_enabled(e != 3):
        return up(layer, rows, e, _)


def scaled_by_numbers(layer: Layer, x: Tensor) -> Tensor:
    """A factor of no dimensions leaves the type of scores; one of a dimension would not."""
    mask, out = layer.mask, torch.zeros_like(x)
    for e in range(EXPERTS):
        slot, token = torch.where(mask[e])
        scores = layer.scores[token, slot] * layer.factors[e]
        out.index_add_(0, token, up(layer, x[token], e, token) * scores[:, None])
    return out


def kept_rows(layer: Layer, x: Tensor) -> Tensor:
    mask, out, kept = layer.mask, torch.zeros_like(x), []
    for e in range(EXPERTS):
        _, token = torch.where(mask[e])
        kept.append(up(layer, x[token], e, token))
        out.index_add_(0, token, kept[-1])
    return torch.cat([out, kept[2]])


def in_another_order(layer: Layer, x: Tensor) -> Tensor:
    mask, out = layer.mask, torch.zeros_like(x)
    for e in (3, 1, 0, 2):
        _, token = torch.where(mask[e])
        state = F.linear(x[token], layer.up[e])[:, :INNER]
        out.index_add_(0, token, F.linear(state, layer.down[e]))
    return out


def same_slice_in_all(layer: Layer, x: Tensor) -> Tensor:
    mask, out = layer.mask, torch.zeros_like(x)
    for e in range(EXPERTS):
        _, token = torch.where(mask[e])
        state = F.linear(x[token], layer.up[e])[:, :INNER] * layer.up_bias[2, :INNER]
        out.index_add_(0, token, F.linear(state, layer.down[e]) * layer.factors[0])
    return out


FORMS = {
    f.__name__: f
    for f in (mixtral, gpt_oss, compared, halves, biased_linear, in_another_order, same_slice_in_all)
}
NEAR_MISSES: dict[str, tuple[Callable[[Layer, Tensor], Tensor], str]] = {
    "separate-weights": (loop(lambda layer, rows, e, _: F.linear(rows, layer.separate[e])), "weights"),
    "not-all-experts": (loop(up, range(1, EXPERTS)), "experts"),
    "backwards": (loop(lambda layer, rows, e, _: F.linear(rows, layer.up[EXPERTS - 1 - e])), "experts"),
    "odd-sizes": (
        loop(lambda layer, rows, e, _: F.linear(rows, layer.up[e])[:, :3] @ layer.up[e, :3]),
        "align",
    ),
    "other-halves": (
        loop(lambda layer, rows, e, _: F.linear(rows[:, :8], layer.up[e, :, 8 * (e % 2) :][:, :8])),
        "weights",
    ),
    "mixed-rows": (loop(lambda layer, rows, e, _: up(layer, rows.cumsum(0), e, _)), "op"),
    "normalised-by-count": (loop(lambda layer, rows, e, t: up(layer, rows, e, t) * t.shape[0]), "op"),
    "other-activations": (
        loop(lambda layer, rows, e, t: up(layer, rows, e, t).relu() if e == 2 else up(layer, rows, e, t)),
        "differs",
    ),
    "constants-differ": (loop(lambda layer, rows, e, t: up(layer, rows, e, t) * e), "differs"),
    "no-product": (loop(lambda layer, rows, e, _: rows * 2), "no-product"),
    "assigned": (added_by_assignment, "op"),
    "to-its-input": (added_to_its_input, "write"),
    "written-in-between": (written_in_between, "write"),
    "read-in-between": (read_in_between, "write"),
    "kept-rows": (kept_rows, "differs"),
    "one-number": (one_number_an_expert, "op"),
    "scaled-by-numbers": (scaled_by_numbers, "differs"),
    "frozen": (loop(frozen), "mode"),
    "strided-rows": (
        loop(lambda layer, rows, e, _: F.linear(up(layer, rows, e, _)[:, ::2], layer.up[e, :, :INNER])),
        "align",
    ),
}


@pytest.fixture(autouse=True)
def capture() -> Any:
    """Without this, Dynamo breaks the graph at `where`, and a function with a loop around it stays Python."""
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


@pytest.fixture
def layer() -> Layer:
    """As narrow as possible for `loop`, whose rows are added up as they come from `up`."""
    made = Layer()
    made.x, made.up = ints(TOKENS, 2 * INNER), ints(EXPERTS, 2 * INNER, 2 * INNER)
    assert 2 * INNER == WIDTH
    return made


class Rolling:
    """A Dynamo backend that runs the edited graph by PyTorch."""

    def __call__(self, gm: GraphModule, _: list[Any]) -> Callable[..., Any]:
        self.reasons = [reason.code for reason in roll_up_expert_loops(gm)]
        gm.graph.lint()
        self.grouped = len(gm.graph.find_nodes(op="call_function", target=F.grouped_mm))
        self.searches = len(gm.graph.find_nodes(op="call_function", target=torch.where)) + len(
            gm.graph.find_nodes(op="call_method", target="nonzero")
        )
        return gm.forward


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str, layer: Layer) -> None:
    rolling = Rolling()
    compiled = torch.compile(FORMS[name], backend=rolling, fullgraph=True)
    assert torch.equal(compiled(layer, layer.x), FORMS[name](layer, layer.x))
    assert (rolling.reasons, rolling.grouped, rolling.searches) == ([], 3 if name == "halves" else 2, 1)
    layer.chosen = torch.full_like(layer.chosen, EXPERTS - 1)
    assert torch.equal(compiled(layer, layer.x), FORMS[name](layer, layer.x))


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str, layer: Layer) -> None:
    function, what = NEAR_MISSES[name]
    rolling = Rolling()
    compiled = torch.compile(function, backend=rolling, fullgraph=True)
    assert torch.equal(compiled(layer, layer.x), function(layer, layer.x))
    assert rolling.reasons == [f"grouped-gemm.loop-{what}"]
    assert (rolling.grouped, rolling.searches) == (0, EXPERTS - (name == "not-all-experts"))


@pytest.mark.parametrize(
    ("dtype", "width", "what"), [(torch.float32, 16, "dtype"), (torch.bfloat16, 12, "align")]
)
def test_products_that_pytorch_does_not_group(
    dtype: torch.dtype, width: int, what: str, layer: Layer
) -> None:
    layer.x, layer.up = ints(TOKENS, width, dtype=dtype), ints(EXPERTS, width, width, dtype=dtype)
    rolling = Rolling()
    compiled = torch.compile(loop(up), backend=rolling, fullgraph=True)
    assert torch.equal(compiled(layer, layer.x), loop(up)(layer, layer.x))
    assert rolling.reasons == [f"grouped-gemm.loop-{what}"]


def test_the_backend_runs_kernels_forward_and_backward(layer: Layer) -> None:
    def gradients(function: Callable[[Layer, Tensor], Tensor]) -> list[Tensor]:
        leaves = [t.detach().clone().requires_grad_() for t in (layer.x, layer.up, layer.down)]
        x, layer.up, layer.down = leaves
        result = function(layer, x)
        result.backward(seed)
        return [result.detach(), *(leaf.grad for leaf in leaves)]  # type: ignore[misc]

    seed = ints(TOKENS, WIDTH)
    with collect() as record:
        ours = gradients(torch.compile(mixtral, backend="flycc", options={"strict": True}))
    for mine, theirs in zip(ours, gradients(mixtral), strict=True):
        assert torch.equal(mine, theirs)
    nodes = [node for graph in record.graphs for node in graph.report.nodes]
    assert [node.kernel for node in nodes if node.family == "grouped_gemm"] == ["flycc::grouped_gemm"] * 6
    assert not any(node.family == "gemm" for node in nodes)
    assert not record.notes
    assert not record.launch_refusals


def test_products_of_no_rows_and_the_note_on_a_loop_that_stays(layer: Layer) -> None:
    """Its dense products have the number of rows that each run finds: none for the expert whom nobody chooses."""
    function = NEAR_MISSES["separate-weights"][0]
    record = flycc.explain(function, layer, layer.x)
    assert [node.kernel for g in record.graphs for node in g.report.nodes if node.family == "gemm"] == [
        "flycc::gemm"
    ] * EXPERTS
    [(note, count)] = record.notes.items()
    assert (note.code, count) == ("grouped-gemm.loop-weights", 1)
    assert torch.equal(torch.compile(function, backend="flycc")(layer, layer.x), function(layer, layer.x))
    assert not record.launch_refusals


def test_a_loop_that_breaks_the_graph_is_noted(layer: Layer) -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=False):
        record = flycc.explain(mixtral, layer, layer.x)
    assert not any(graph.report.nodes for graph in record.graphs)
    codes = {note.code for note in record.notes}
    assert codes == {"dynamo.graph-break"}
    for advice in ("capture_dynamic_output_shape_ops = True", 'experts_implementation="grouped_mm"'):
        assert any(advice in note.sentence for note in record.notes), record.notes


def test_the_example(pytestconfig: pytest.Config) -> None:
    model, inputs = runpy.run_path(str(pytestconfig.rootpath / "examples" / "moe.py"))["example"]()
    record = flycc.explain(model, *inputs)
    kernels = [node.kernel for graph in record.graphs for node in graph.report.nodes]
    assert kernels == ["flycc::gemm", "flycc::topk", "flycc::grouped_gemm", "flycc::grouped_gemm"]


def test_autocast_has_rules_of_its_own(layer: Layer) -> None:
    rolling = Rolling()
    compiled = torch.compile(mixtral, backend=rolling, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(compiled(layer, layer.x), mixtral(layer, layer.x))
    assert (rolling.reasons, rolling.grouped) == ([], 0)
