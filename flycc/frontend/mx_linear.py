"""Makes linear layers of a Dynamo graph products of MX operands: weights quantised once, activations on the fly."""

from __future__ import annotations

import contextlib
import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.fx import Graph, GraphModule, Node

from flycc.contracts import FlyccError, Reason
from flycc.frontend.fakes import difference, evaluate, example
from flycc.frontend.lockstep import called, switches_mode, writes
from flycc.frontend.mx_names import Names, kept_by
from flycc.frontend.nodes import changes_dispatch, copied, size_text

#: The element format of each MX format.
ELEMENTS = {"mxfp8": "e4m3", "mxfp4": "e2m1"}

#: Calls with products in them that are no linear layers of the graph: what is said of them, by their names.
_OTHER_PRODUCTS = {
    **dict.fromkeys(("grouped_mm", "_grouped_mm"), "grouped products (of experts)"),
    **dict.fromkeys(
        ("matmul", "mm", "bmm", "addmm", "baddbmm", "einsum"), "products that are no linear layers"
    ),
    **dict.fromkeys(
        ("multi_head_attention_forward", "_native_multi_head_attention", "_transformer_encoder_layer_fwd"),
        "layers inside PyTorch's own fused attention (nn.MultiheadAttention, nn.TransformerEncoder)",
    ),
}


class NotMx(FlyccError):
    """A linear layer stays as it is; `reason` says why."""


def quantize_linears(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    mx: str,
    keep: Sequence[str],
    quantize: Callable[..., object],
) -> list[Reason]:
    """Replaces the linear layers in `gm`, and says what became of each.

    `gm` is the graph that Dynamo hands to a backend, with its inputs; it is edited. `F.linear(x, w, bias)` becomes

        scaled_gemm(*mx_quantize(x), *mx_weight(w), bias, out_dtype=x.dtype)

    in the format `mx`, where x is bfloat16 or float16, w is a parameter or a buffer, and nothing needs a gradient.
    Layers of one x share its quantisation. `keep` lists names of modules, or patterns of them as of files, whose layers
    stay. `quantize` is called with each weight and its element `format`: it does now what `mx_weight` finds done.
    A fault of ours leaves the whole graph as it was, with a warning.
    """
    before = copied(gm.graph)
    try:
        reasons, caveats = _quantize(gm, example_inputs, mx, keep, quantize)
    except Exception as error:
        gm.graph = before
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        reasons = [Reason("mx.internal", f"linear layers stay as they are: a fault in flycc: {text}")]
        caveats = reasons
    else:
        for node in before.nodes:
            node.meta.clear()  # Dynamo's arguments in it have references to parameters, until the next collection
    gm.recompile()
    for caveat in caveats:
        # Where warnings are errors the model runs all the same: the reasons say it too.
        with contextlib.suppress(RuntimeWarning):
            warnings.warn(f"flycc: {caveat}", RuntimeWarning, stacklevel=2)
    return reasons


def _quantize(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    mx: str,
    keep: Sequence[str],
    quantize: Callable[..., object],
) -> tuple[list[Reason], list[Reason]]:
    """`quantize_linears`: the reasons, and those of them or others that are to be warned of."""
    reasons = _others(gm)
    linears = [node for node in gm.graph.nodes if node.target is torch._C._nn.linear]
    if not linears:
        return reasons, []
    if changes_dispatch(gm):
        sentence = "autocast, a choice of attention backends or a functorch transform is at work in the graph"
        return [*reasons, Reason("mx.dispatch", f"linear layers stay as they are: {sentence}")], []
    inputs = dict(zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=True))

    def stored(weight: Node) -> Any:
        return inputs[weight] if weight in inputs else operator.attrgetter(weight.target)(gm)

    layers = {linear: _weight(linear) for linear in linears}
    names = Names({weight: stored(weight) for weight in layers.values() if _is_stored(weight)})
    known = {
        linear: {*_names(linear), *names.of(weight, *_names(linear))} for linear, weight in layers.items()
    }
    caveats = names.unknown(keep, {name for each in known.values() for name in each})
    rewrite = _Rewrite(gm.graph, mx)
    became = rewrite.replace_all(keep, known)
    gm.graph.lint()
    for weight in rewrite.weights:
        tensor = stored(weight)
        if isinstance(tensor, FakeTensor):
            continue
        if tensor.is_inference():
            sentence = f"the weight {_stored_name(weight)} was made in inference mode: quantised in each call"
            became.append(Reason("mx.inference", sentence))
        quantize(tensor, format=ELEMENTS[mx])
    if any(reason.code == "mx.training" for reason in became) and names.evaluates():
        sentence = "layers of a model in eval mode stay: autograd records them; call it under torch.no_grad()"
        caveats += names.once(Reason("mx.training", sentence))
    return [*reasons, *became, *(each for each in caveats if each.code != "mx.training")], caveats


def _others(gm: GraphModule) -> list[Reason]:
    """What stays without being looked at: layers in bodies of higher-order ops, and other products."""
    reasons = []
    for module in gm.modules():
        if not isinstance(module, GraphModule):
            continue
        for node in module.graph.nodes:
            if node.target is torch._C._nn.linear:
                if module is not gm:
                    sentence = (
                        "linear layers in the body of a higher-order op (checkpoint, cond) stay as they are"
                    )
                    reasons.append(Reason("mx.body", sentence))
                continue
            what = called(node)
            found = _OTHER_PRODUCTS.get(what if isinstance(what, str) else getattr(what, "__name__", ""))
            if found is not None and any(map(_is_stored, node.all_input_nodes)):
                reasons.append(Reason("mx.product", f"{found} stay as they are"))
    return reasons


@dataclass
class _Rewrite:
    """The layers of `graph` while they are replaced.

    `quantised` has the nodes of elements and scales by the tensor's node, as far as it still holds what it held;
    `weights` are those of them that are weights, of the whole graph.
    """

    graph: Graph
    mx: str
    quantised: dict[Node, tuple[Node, Node]] = field(default_factory=dict)
    weights: set[Node] = field(default_factory=set)

    def replace_all(self, keep: Sequence[str], known: Mapping[Node, set[str]]) -> list[Reason]:
        """Replaces every layer that may be; what became of each. `known` are the names of each."""
        reasons = []
        for node in list(self.graph.nodes):
            if node.op != "output" and (writes(node) or switches_mode(node)):
                self.quantised.clear()  # what they hold may be another now
            if node.target is not torch._C._nn.linear:
                continue
            try:
                if (pattern := kept_by(known[node], keep)) is not None:
                    raise NotMx(Reason("mx.kept", f"kept by mx_keep {pattern!r}"))
                self.replace(node, *node.args, **node.kwargs)
                sentence = f"linear layers run in {self.mx}: {ELEMENTS[self.mx]}, a scale for each 32 along K"
                reasons.append(Reason("mx.linear", sentence))
            except NotMx as stays:
                sentence = f"{_title(node)} stays {_dtype(node)}: {stays.reason.sentence}"
                reasons.append(Reason(stays.reason.code, sentence))
        return reasons

    def replace(self, linear: Node, input: Node, weight: Node, bias: Node | None = None) -> None:
        """Replaces `linear`, the layer of the other arguments; raises NotMx before anything is changed."""
        _check(linear, input, weight, bias)
        x, n, made = example(input), example(weight).shape[0], _Made(self.graph)
        with self.graph.inserting_before(linear):
            if input not in self.quantised:
                rows = input if x.dim() == 2 else made.method("reshape", input, (-1, x.shape[-1]))
                self.quantised[input] = self._quantise(made, torch.ops.flycc.mx_quantize.default, rows)
            if weight not in self.quantised:
                self.quantised[weight] = self._quantise(made, torch.ops.flycc.mx_weight.default, weight)
                self.weights.add(weight)
            (a, scale_a), (b, scale_b) = self.quantised[input], self.quantised[weight]
            op = torch.ops.flycc.scaled_gemm.default
            new = made.function(op, a, b, scale_a, scale_b, bias, out_dtype=x.dtype)
            if x.dim() != 2:
                sizes = [
                    size if isinstance(size, int) else made.method("size", input, dim)
                    for dim, size in enumerate(x.shape[:-1])
                ]
                new = made.method("reshape", new, (*sizes, n))
        evaluate(made.nodes, linear)
        if (seen := difference(example(linear), example(new))) is not None:
            raise AssertionError(f"{linear} would have {seen}")
        linear.replace_all_uses_with(new)
        self.graph.erase_node(linear)

    def _quantise(self, made: _Made, op: Callable[..., Any], matrix: Node) -> tuple[Node, Node]:
        whole = made.function(op, matrix, format=ELEMENTS[self.mx])
        return made.function(operator.getitem, whole, 0), made.function(operator.getitem, whole, 1)


@dataclass
class _Made:
    """New calls in `graph`, at its insert point."""

    graph: Graph
    nodes: list[Node] = field(default_factory=list)

    def function(self, function: Callable[..., Any], *args: Any, **options: Any) -> Node:
        self.nodes.append(self.graph.call_function(function, args, options))
        return self.nodes[-1]

    def method(self, name: str, *args: Any) -> Node:
        self.nodes.append(self.graph.call_method(name, args))
        return self.nodes[-1]


def _check(linear: Node, input: Node, weight: Node, bias: Node | None) -> None:
    parts = [example(part) for part in (linear, input, weight, bias) if part is not None]
    if not all(type(value) is FakeTensor and value.layout is torch.strided for value in parts):
        raise NotMx(Reason("mx.subclass", "it has a tensor subclass or a sparse tensor"))
    result, _, w, *_ = parts
    dtypes = {value.dtype for value in parts}
    if len(dtypes) > 1 or not dtypes <= {torch.bfloat16, torch.float16}:
        raise NotMx(Reason("mx.dtype", "its tensors must be all bfloat16 or all float16"))
    if not _is_stored(weight):
        raise NotMx(
            Reason("mx.weight", f"its weight, {weight}, is computed, or an argument of what is compiled")
        )
    if w.dim() != 2 or not all(isinstance(size, int) and size for size in w.shape):
        raise NotMx(Reason("mx.weight", f"its weight, {size_text(w)}, is no matrix of a fixed size"))
    if result.requires_grad:
        raise NotMx(Reason("mx.training", "autograd records it; call the model under torch.no_grad()"))


def _is_stored(node: Node) -> bool:
    """Whether `node` is a parameter, or a buffer of a module, as it is stored."""
    if node.op == "get_attr":
        return True
    if node.op != "placeholder":
        return False
    return isinstance(example(node), torch.nn.Parameter) or "._buffers[" in _source(node)


def _source(node: Node) -> str:
    """Where Dynamo took an input of the graph from, as Python: `L['self']._modules['head']._parameters['weight']`."""
    argument = node.meta.get("grapharg")
    return argument.source.name if argument is not None else ""


def _weight(linear: Node) -> Node:
    weight = linear.args[1] if len(linear.args) > 1 else linear.kwargs["weight"]
    assert isinstance(weight, Node)
    return weight


def _names(linear: Node) -> tuple[str, str]:
    """The name of the weight of `linear`, and that of the innermost module around, from where the graph begins.

    For a layer that is a module both are the module's name, unless another module holds the weight too.
    """
    name = _stored_name(_weight(linear))
    root = _root(_weight(linear))
    modules = [path for path, _ in linear.meta.get("nn_module_stack", {}).values()]
    return name, modules[-1].removeprefix(root).strip(".") if modules else name


def _stored_name(weight: Node) -> str:
    source = str(weight.target) if weight.op == "get_attr" else _source(weight)
    stored = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", source)
    return stored.removeprefix(_root(weight)).strip(".").removesuffix(".weight") or str(weight)


def _root(weight: Node) -> str:
    """What Dynamo's source of `weight` begins with: the variable that has the module."""
    source = str(weight.target) if weight.op == "get_attr" else _source(weight)
    return source.partition("._modules[")[0].partition("._parameters[")[0].partition("._buffers[")[0]


def _title(linear: Node) -> str:
    """The name a layer goes by: its weight's within the module around, or that of the module."""
    weight, module = _names(linear)
    return weight if weight.startswith(module) else module


def _dtype(linear: Node) -> str:
    return str(example(linear).dtype).removeprefix("torch.")
