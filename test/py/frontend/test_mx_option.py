"""Option `mx`: linear layers as MX products, with weights quantised once, and which layers stay and why."""

from __future__ import annotations

import gc
import os
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from mx_layers import dequantised, quantise_layers
from torch import Tensor, nn
from torch.fx import GraphModule

import flycc
from flycc.contracts import Reason
from flycc.frontend import quantize_linears
from flycc.frontend.nodes import target_name
from flycc.record import Record, collect
from flycc.runtime import ops  # noqa: F401 (defines the operators)
from flycc.runtime.kept import Kept
from flycc.runtime.mx_weight import _KEPT, mx_weight


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    seed = int(os.environ["FLYCC_TEST_SEED"])
    print(f"FLYCC_TEST_SEED={seed}")
    torch.manual_seed(seed)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def check_linear(y: Tensor, x: Tensor, layer: nn.Linear, mx: str) -> None:
    """`y` is the layer's product of quantised operands, in exact arithmetic, within what rounding may do.

    Float32 sums of K products and the bias: at most K + 1 roundings, each 2^-24 of the sum of absolute values, or
    twice that where an MFMA truncates; then one rounding to the dtype, of eps / 2.
    """
    a, b = dequantised(x, mx).double(), dequantised(layer.weight, mx).double()
    bias = 0 if layer.bias is None else layer.bias.double()
    exact, absolute = a @ b.T + bias, a.abs() @ b.abs().T + abs(bias)
    summed = (a.shape[-1] + 1) * 2**-23 * absolute
    rounded = torch.finfo(y.dtype).eps / 2 * (exact.abs() + summed) + torch.finfo(y.dtype).tiny
    assert y.dtype == x.dtype
    assert y.shape == exact.shape
    assert ((y.double() - exact).abs() <= summed + rounded).all()


def compiled(
    model: nn.Module, mx: str = "mxfp8", keep: tuple[str, ...] = (), **options: object
) -> Callable[..., Tensor]:
    return torch.compile(model, backend="flycc", options={"mx": mx, "mx_keep": list(keep), **options})


def codes(record: Record) -> Counter[str]:
    return Counter({reason.code: count for reason, count in record.notes.items()})


@pytest.mark.parametrize("mx", ["mxfp8", "mxfp4"])
@pytest.mark.parametrize(
    ("shape", "n", "dtype", "bias"),
    [
        ((5, 96), 48, torch.bfloat16, True),
        ((2, 3, 80), 17, torch.float16, False),
        ((33,), 20, torch.bfloat16, True),
        ((2, 1, 2, 64), 16, torch.bfloat16, False),
        ((0, 64), 16, torch.bfloat16, True),
    ],
)
def test_a_layer_is_the_product_of_its_quantised_operands(
    mx: str, shape: tuple[int, ...], n: int, dtype: torch.dtype, bias: bool
) -> None:
    layer = nn.Linear(shape[-1], n, bias, dtype=dtype)
    x = torch.randn(shape, dtype=dtype) * torch.randn(shape[-1]).exp().to(dtype)
    with torch.no_grad(), collect() as record:
        check_linear(compiled(layer, mx)(x), x, layer, mx)
    assert codes(record) == {"mx.linear": 1}
    assert not record.launch_refusals


@pytest.mark.parametrize("fallback", ["eager", "inductor"])
def test_any_number_of_tokens_compiles_twice(fallback: str) -> None:
    layer = nn.Linear(64, 32, dtype=torch.bfloat16)
    run = compiled(layer, fallback=fallback)
    with torch.no_grad(), collect() as record:
        for tokens in (3, 5, 4, 9):
            x = torch.randn(1, tokens, 64, dtype=torch.bfloat16)
            check_linear(run(x), x, layer, "mxfp8")
    assert [graph.kind for graph in record.graphs] == ["inference", "inference"]
    assert not any(reason.code.startswith("fallback") for reason in record.notes)


class Attention(nn.Module):
    """Three layers of one input, one of another."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, dtype=torch.bfloat16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.o(torch.relu(self.q(x) * self.k(x) + self.v(x)))


class Model(nn.Module):
    """Two layers of attention and a head that shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 64, dtype=torch.bfloat16)
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.head = nn.Linear(64, 50, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.embed.weight
        self.free = nn.Parameter(torch.randn(64, 64, dtype=torch.bfloat16))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(F.linear(x, self.free))


TOKENS = torch.tensor([[1, 5, 7]])


def rewritten(
    fn: Callable[..., object], *inputs: Tensor, keep: tuple[str, ...] = ()
) -> tuple[Counter[str], list[Reason]]:
    """How often the rewritten Dynamo graph of `fn` calls each operator of flycc, and what became of the layers."""
    found: Counter[str] = Counter()
    reasons = []

    def backend(gm: GraphModule, example_inputs: list[Tensor]) -> Callable[..., object]:
        reasons.extend(quantize_linears(gm, example_inputs, "mxfp8", keep, mx_weight))
        calls = (target_name(node) for node in gm.graph.nodes if node.op == "call_function")
        found.update(name for name in calls if name.startswith("flycc."))
        return gm.forward

    with torch.no_grad():
        torch.compile(fn, backend=backend)(*inputs)
    return found, reasons


def test_layers_of_one_input_share_its_quantisation() -> None:
    found, _ = rewritten(Attention(), torch.randn(3, 64, dtype=torch.bfloat16))
    assert found == {
        "flycc.mx_quantize.default": 2,
        "flycc.mx_weight.default": 4,
        "flycc.scaled_gemm.default": 4,
    }


def triple_by_index(x: Tensor) -> None:
    x.__setitem__(slice(None), x * 3)


@pytest.mark.parametrize("triple", [lambda x: x.mul_(3), lambda x: x.__imul__(3), triple_by_index])
def test_what_was_written_to_is_quantised_again(triple: Callable[[Tensor], object]) -> None:
    layer = nn.Linear(64, 64, dtype=torch.bfloat16)

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone()
        first = layer(x)
        triple(x)
        return first, layer(x)

    x = torch.randn(3, 64, dtype=torch.bfloat16)
    assert rewritten(both, x)[0]["flycc.mx_quantize.default"] == 2
    torch._dynamo.reset()
    with torch.no_grad():
        first, second = torch.compile(both, backend="flycc", options={"mx": "mxfp8"})(x)
    check_linear(first, x, layer, "mxfp8")
    check_linear(second, x * 3, layer, "mxfp8")


def test_a_table_that_lookups_scale_is_quantised_again() -> None:
    table = nn.Embedding(8, 64, max_norm=0.5, dtype=torch.bfloat16)
    other = table.weight.detach().clone()

    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        first = F.linear(x, table.weight)
        F.embedding(torch.arange(8), x, max_norm=0.5)
        return first, F.linear(x, table.weight)

    assert rewritten(twice, other)[0]["flycc.mx_quantize.default"] == 2


class Broken(nn.Module):
    """A block with a graph break inside."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = (nn.Linear(64, 64, dtype=torch.bfloat16) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.q(x)
        torch._dynamo.graph_break()
        return self.o(x)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Broken() for _ in range(2))
        self.head = nn.Linear(64, 50, bias=False, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers[1](self.layers[0](x)))


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (("head",), {"head"}),
        # One graph runs for both blocks.
        (("layers.1", "head"), {"layers.0.q", "layers.0.o", "layers.1.q", "layers.1.o", "head"}),
        (("layers.0.o",), {"layers.0.o", "layers.1.o"}),
    ],
)
def test_names_hold_after_graph_breaks_inside_submodules(keep: tuple[str, ...], kept: set[str]) -> None:
    model = Blocks()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(model, keep=keep)(torch.randn(3, 64, dtype=torch.bfloat16))
    weights = {
        name: module.weight.untyped_storage()._cdata
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }
    assert {name for name, storage in weights.items() if storage not in _KEPT._by_storage} == kept


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ((), []),
        (("head",), ["head"]),
        (("embed",), ["head"]),  # the weight is the embedding's
        (("layers.1",), ["layers.1.q", "layers.1.k", "layers.1.v", "layers.1.o"]),
        (("layers.?.o", "free"), ["layers.0.o", "layers.1.o", "free"]),
        (("*.q", "*.q"), ["layers.0.q", "layers.1.q"]),
    ],
)
def test_kept_layers_stay(keep: tuple[str, ...], kept: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, reasons = rewritten(Model(), TOKENS, keep=keep)
    assert found["flycc.scaled_gemm.default"] == 10 - len(kept)
    notes = [reason.sentence for reason in reasons if reason.code == "mx.kept"]
    assert sorted(sentence.split()[0] for sentence in notes) == sorted(kept)
    assert all("stays bfloat16: kept by mx_keep" in sentence for sentence in notes)


def test_a_name_that_fits_nothing_is_warned_of_once_for_each_model() -> None:
    keep = ("layer.0.q", "head")
    model = Model()
    with pytest.warns(RuntimeWarning, match=r"mx_keep 'layer\.0\.q' fits no.*layers\.0\.q"):
        rewritten(model, TOKENS, keep=keep)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rewritten(nn.ReLU(), torch.ones(3), keep=keep)
        rewritten(model, TOKENS, keep=keep)
    with pytest.warns(RuntimeWarning, match="fits no"):
        rewritten(Model(), TOKENS, keep=keep)


def test_the_model_is_the_one_of_quantised_layers() -> None:
    """Of float16, so that roundings (2^-11) are small beside what quantising changes (2^-4).

    They may still turn single elements over, by an element's whole step: half of what the format changes is the bound.
    """
    model, reference = Model().half(), Model().half()
    reference.load_state_dict(model.state_dict())
    quantise_layers(reference, "mxfp8", ["head"])
    with torch.no_grad():
        ours = compiled(model, keep=("head", "free"))(TOKENS).double()
        theirs, plain = reference(TOKENS).double(), model(TOKENS).double()
    assert (ours - theirs).norm() <= (theirs - plain).norm() / 2


def called(layer: nn.Linear, x: Tensor) -> Tensor:
    return layer(x)


def called_without_gradients(layer: nn.Linear, x: Tensor) -> Tensor:
    with torch.no_grad():
        return layer(x)


def computed_weight(layer: nn.Linear, x: Tensor) -> Tensor:
    with torch.no_grad():
        return F.linear(x, layer.weight * 2)


def autocast(layer: nn.Linear, x: Tensor) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return layer(x)


@pytest.mark.parametrize(
    ("call", "dtype", "frozen", "code"),
    [
        (called, torch.bfloat16, False, "mx.training"),
        (called, torch.bfloat16, True, "mx.training"),
        (called_without_gradients, torch.float32, False, "mx.dtype"),
        (computed_weight, torch.bfloat16, False, "mx.weight"),
        (autocast, torch.bfloat16, False, "mx.dispatch"),
    ],
)
def test_layers_that_stay_say_why(
    call: Callable[[nn.Linear, Tensor], Tensor], dtype: torch.dtype, frozen: bool, code: str
) -> None:
    layer = nn.Linear(64, 32, dtype=dtype).requires_grad_(not frozen)
    x = torch.randn(2, 64, dtype=dtype, requires_grad=frozen)
    with collect() as record:
        ours = torch.compile(call, backend="flycc", options={"mx": "mxfp8"})(layer, x)
    assert codes(record) == {code: 1}
    torch.testing.assert_close(ours, call(layer, x))


def checkpointed(layer: nn.Module, x: Tensor) -> Tensor:
    return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)


def applied(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)


def multiplied(layer: nn.Linear, x: Tensor) -> Tensor:
    return x @ layer.weight


@pytest.mark.parametrize(
    ("call", "module", "code"),
    [
        (checkpointed, nn.Linear(64, 64), "mx.body"),
        (applied, nn.TransformerEncoderLayer(64, 4, 64, dropout=0, batch_first=True).eval(), "mx.product"),
        (multiplied, nn.Linear(64, 64), "mx.product"),
    ],
)
def test_what_is_not_looked_at_is_named(
    call: Callable[[nn.Module, Tensor], Tensor], module: nn.Module, code: str
) -> None:
    module = module.to(torch.bfloat16)
    with torch.no_grad(), collect() as record:
        torch.compile(call, backend="flycc", options={"mx": "mxfp8"})(
            module, torch.randn(2, 3, 64).bfloat16()
        )
    assert codes(record)[code] == 1


def test_eval_mode_with_gradients_is_warned_of_once() -> None:
    model = Model()
    run = compiled(model.eval())
    with pytest.warns(RuntimeWarning, match=r"eval mode.*torch\.no_grad"):
        run(TOKENS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        torch._dynamo.reset()
        run(TOKENS)
        compiled(Model().train())(TOKENS)


@pytest.mark.parametrize("action", ["always", "error"])
def test_a_fault_leaves_the_graph_as_it_was(
    monkeypatch: pytest.MonkeyPatch, action: Literal["always", "error"]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("flycc.backend.mx_weight", fails)
    model = Model()
    with torch.no_grad():
        plain = torch.compile(model, backend="flycc")(TOKENS)
        torch._dynamo.reset()
        with collect() as record, warnings.catch_warnings():
            warnings.simplefilter(action, RuntimeWarning)
            assert torch.equal(compiled(model)(TOKENS), plain)
    assert codes(record) == {"mx.internal": 1}


def test_no_gradient_is_needed_where_grad_mode_is_off_inside() -> None:
    layer = nn.Linear(64, 64, dtype=torch.bfloat16)

    def half(x: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = layer(x)
        return hidden * x

    x = torch.randn(2, 64, dtype=torch.bfloat16, requires_grad=True)
    y = torch.compile(half, backend="flycc", options={"mx": "mxfp8"})(x)
    y.sum().backward()
    check_linear(x.grad, x.detach(), layer, "mxfp8")


def write(weight: nn.Parameter, new: Tensor) -> None:
    weight.copy_(new)


def assign(weight: nn.Parameter, new: Tensor) -> None:
    weight.data = new


def load(weight: nn.Parameter, new: Tensor) -> None:
    holder = nn.Module()
    holder.weight = weight
    holder.load_state_dict({"weight": new})


def same_memory(weight: nn.Parameter, new: Tensor) -> None:
    """Parts of one storage by turns, whose addresses and versions differ in the offset alone."""
    if weight.untyped_storage().nbytes() < 2 * weight.nbytes:
        weight.data = torch.stack((torch.zeros_like(new), new))[1]
    else:
        whole = weight.data.as_strided((2, *new.shape), (new.numel(), *new.stride()), 0)
        other = whole[int(weight.storage_offset() == 0)]
        other.copy_(new)
        weight.data = other


def fused_step(weight: nn.Parameter, new: Tensor) -> None:
    weight.grad = new.clone()
    torch.optim.AdamW([weight], lr=0.5, fused=True).step()


def unseen(weight: nn.Parameter, new: Tensor) -> None:
    weight.data += new
    flycc.forget_weights()


def swap(weight: nn.Parameter, new: Tensor) -> None:
    torch.utils.swap_tensors(weight, nn.Parameter(new))


@pytest.mark.parametrize("change", [write, assign, load, same_memory, fused_step, unseen, swap])
def test_weights_are_quantised_once_for_each_content(change: Callable[[nn.Parameter, Tensor], None]) -> None:
    layer = nn.Linear(64, 32, dtype=torch.bfloat16)
    run, x = compiled(layer), torch.randn(3, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        check_linear(run(x), x, layer, "mxfp8")
        first, _ = mx_weight(layer.weight)
        assert mx_weight(layer.weight)[0] is first
        for _ in range(3):  # each may find the memory of the one before
            change(layer.weight, torch.randn_like(layer.weight))
            check_linear(run(x), x, layer, "mxfp8")
        assert mx_weight(layer.weight)[0] is not first


def test_a_write_while_the_weight_is_quantised_is_seen() -> None:
    kept, tensor = Kept[float](), torch.zeros(1)

    def make() -> float:
        value = float(tensor)
        tensor.add_(1)
        return value

    assert [kept.get(tensor, None, make) for _ in range(3)] == [0, 1, 2]


def test_quantising_has_no_gradient() -> None:
    x = torch.randn(2, 64, requires_grad=True)
    data, scales, _ = torch.ops.flycc.mx_quantize(x)
    wide = torch.ops.flycc.mx_dequantize(data, scales, dtype=torch.float32)
    assert not any(
        result.requires_grad for result in (data, scales, wide, *mx_weight(nn.Parameter(x.detach())))
    )
    (x * wide).sum().backward()  # a straight-through estimate of one's own
    torch.testing.assert_close(x.grad, wide)


def test_the_compiled_model_finds_what_compiling_quantised() -> None:
    layer, x = nn.Linear(64, 32, dtype=torch.bfloat16), torch.randn(3, 64, dtype=torch.bfloat16)
    run = compiled(layer)
    with torch.no_grad():
        run(x)
        with torch.profiler.profile() as profile:
            run(x)
    calls = Counter(event.name for event in profile.events())
    assert calls["flycc::mx_weight"] == 1
    assert calls["flycc::mx_quantize"] == 1  # the activation's


def test_quantised_weights_are_freed_with_the_weight() -> None:
    weight = nn.Parameter(torch.randn(32, 64, dtype=torch.bfloat16))
    kept = [weakref.ref(part) for part in mx_weight(weight)]
    gc.collect()
    assert all(part() is not None for part in kept)
    del weight
    gc.collect()
    assert all(part() is None for part in kept)


def test_inference_mode() -> None:
    layer, x = nn.Linear(64, 32, dtype=torch.bfloat16), torch.randn(3, 64, dtype=torch.bfloat16)
    with torch.inference_mode():
        check_linear(compiled(layer)(x), x, layer, "mxfp8")
        # Writes to its tensors go uncounted, so nothing is kept of them.
        made_here = torch.randn(32, 64, dtype=torch.bfloat16)
        before = mx_weight(made_here)[0].view(torch.uint8).clone()
        made_here.copy_(-made_here)
        assert not torch.equal(mx_weight(made_here)[0].view(torch.uint8), before)
    with torch.no_grad():
        check_linear(compiled(layer)(x), x, layer, "mxfp8")


def test_explain_says_what_became_of_the_layers() -> None:
    with torch.no_grad():
        record = flycc.explain(Model(), TOKENS, options={"mx": "mxfp4", "mx_keep": ["head"]})
    assert {reason.sentence: count for reason, count in record.notes.items()} == {
        "linear layers run in mxfp4: e2m1, a scale for each 32 along K": 9,
        "head stays bfloat16: kept by mx_keep 'head'": 1,
    }


def test_explain_counts_what_the_graph_calls_as_kernels() -> None:
    layer = nn.Linear(64, 32, dtype=torch.bfloat16)
    with torch.no_grad():
        families = flycc.explain(
            layer, torch.randn(3, 64, dtype=torch.bfloat16), options={"mx": "mxfp4"}
        ).families()
    kernels = {family: (counts["kernel"], counts["fallback"]) for family, counts in families.items()}
    assert kernels == {"mx_quantize": (1, 0), "mx_weight": (1, 0), "scaled_gemm": (1, 0)}
