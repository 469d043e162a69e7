"""flex_attention in a Dynamo graph, kept as `flycc::sdpa` where that computes the same.

A block mask says by its blocks and again by its mask_mod what queries see. In PyTorch's own implementation, which is
what flycc falls back on, the mask_mod decides, and so it does here: blocks are not read. Both agree in every mask of
`create_block_mask`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_hop
from torch._higher_order_ops.flex_attention import flex_attention_backward
from torch._subclasses import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from flycc.contracts import FlyccError, Reason
from flycc.frontend import composite_ops
from flycc.frontend.block_masks import drop_unread_blocks
from flycc.frontend.fakes import example
from flycc.frontend.flex_bodies import as_sloped, read_mask_mod, read_score_mod
from flycc.frontend.flex_forms import (
    Band,
    Condition,
    Expression,
    Linear,
    Loaded,
    Magnitude,
    SameDocument,
    Score,
    Sloped,
)
from flycc.frontend.flex_operands import Calls, NewNodes, Operands
from flycc.frontend.lockstep import NEW, called, switches_mode, writes, written
from flycc.frontend.model_numbers import known_number
from flycc.frontend.nodes import is_of_functorch, reached
from flycc.frontend.shared_heads import unrepeated

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
#: Under this name in a node's "custom" metadata, which AOTAutograd hands on, is the reason why a call stays.
_REASON = "flycc.flex_attention"
#: Arguments of a call from here on are what its bodies capture.
_CAPTURED = 7


class Refused(FlyccError):
    """A call stays as it is; `reason` says why."""


def keep_flex_attention(gm: GraphModule) -> list[Reason]:
    """Makes calls of flex_attention in `gm`, and in the graphs it holds, `flycc::sdpa`; why others stay.

    `gm` is the graph that Dynamo hands to a backend; it is edited. What score_mod and mask_mod may be is in
    `docs/attention.md`. Results are those of PyTorch's own implementation, but for roundings: slopes times
    distances are float32.
    """
    modules = [module for module in gm.modules() if isinstance(module, GraphModule)]
    reasons = []
    for module in modules:
        blocks: list[Node] = []
        for node, shared in _calls(module):
            made: list[Node] = []
            map_arg(node.args[4:5], made.append)
            try:
                _keep(module, node, shared)
                blocks += made
            except FlyccError as error:
                reasons.append(_stays(node, error.reason))
            except Exception as error:  # a fault of ours must not become the model's
                text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                reasons.append(_stays(node, Reason("flex.internal", f"a fault in flycc: {text}")))
        if blocks:
            drop_unread_blocks(module.graph, blocks)
            module.recompile()
    return reasons


def flex_refusals(gm: GraphModule) -> dict[str, Reason]:
    """Why calls of flex_attention in an ATen graph were not kept as `flycc::sdpa`, by the names of nodes."""
    calls = [node for hop in (flex_attention_hop, flex_attention_backward) for node in _calling(gm, hop)]
    found = {node.name: (node.meta.get("custom") or {}).get(_REASON) for node in calls}
    return {name: Reason(*reason) for name, reason in found.items() if reason is not None}


def _calling(gm: GraphModule, hop: Any) -> list[Node]:
    return gm.graph.find_nodes(op="call_function", target=hop)


def _stays(node: Node, reason: Reason) -> Reason:
    node.meta["custom"] = {**(node.meta.get("custom") or {}), _REASON: (reason.code, reason.sentence)}
    return reason


def _refuse(what: str, sentence: str) -> Refused:
    return Refused(Reason(f"flex.{what}", sentence))


def _calls(module: GraphModule) -> Iterator[tuple[Node, Calls]]:
    """The calls, and what they may share with each other: nothing across what may change captured tensors or modes."""
    calls = module.graph.find_nodes(op="call_function", target=flex_attention_hop)
    captured: list[Node] = []
    map_arg([call.args[_CAPTURED:] for call in calls], captured.append)
    read = reached(captured, back=True)
    shared: Calls = {}
    for node in list(module.graph.nodes) if calls else ():
        if node in calls:
            yield node, shared
        elif node.op.startswith("call_") and _changes(node, read):
            shared = {}


def _changes(node: Node, read: Collection[Node]) -> bool:
    """Whether `node` may write to one of the nodes `read`, or change what calls after it do.

    The blocks of a mask are made in transforms that end before they are used, and by writes to new tensors.
    """
    if is_of_functorch(node):
        return False
    if writes(node):
        return any(tensor in read or called(tensor) not in NEW for tensor in written(node))
    return switches_mode(node)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call: its node, its operands, and the nodes that take its results, by their index."""

    node: Node
    query: Node
    key: Node
    value: Node
    results: Mapping[int, Sequence[Node]]

    @property
    def out(self) -> FakeTensor:
        """The fake value of its first result."""
        return example(self.node)[0]

    @property
    def wants_lse(self) -> bool:
        return any(map(_is_used, self.results.get(1, ())))


def _keep(module: GraphModule, node: Node, shared: Calls) -> None:
    """Makes one call `flycc::sdpa`. Raises `FlyccError`, and then the graph is as it was."""
    if len(node.args) != 9 or node.kwargs:
        raise _refuse("form", "it has other arguments than flycc knows")
    query, key, value, score_mod, block_mask, scale, options, *captured = node.args
    call = _Call(node, query, key, value, _results(node))
    _check(call, [tensor for group in captured for tensor in group])
    bodies = [operator.attrgetter(body.target)(module) for body in (score_mod, block_mask[-1])]
    score, seen = read_score_mod(bodies[0]), read_mask_mod(bodies[1])
    scoring = _sorted(score, seen, call.wants_lse)
    scale = known_number(scale) * score.scale
    if not 0 < scale < math.inf:
        raise _refuse("scale", f"scores are multiplied by {scale:g}; kernels take positive numbers")
    new = NewNodes(node, shared)
    operands = Operands(new, query, key, zip(bodies, captured, strict=True))
    try:
        if call.out.requires_grad:
            _check_gradients(scoring, operands)
        whole = _sdpa(call, new, operands, scoring, scale, abs(score.softcap))
        out = new.function(operator.getitem, whole, 0)
        lse = new.function(operator.getitem, whole, 1) if call.wants_lse else None
        # The call gives it in units of ln 2, unless it asks for kernels that do not.
        if lse is not None and options.get("BACKEND") != "FLASH":
            lse = new.function(operator.mul, lse, math.log2(math.e))
        new.evaluate()
        out = _laid_out(new, out, call.out)
        _check_alike(call.out, example(out))
        if lse is not None:
            _check_alike(example(call.node)[1], example(lse))
    except BaseException:
        new.give_up()
        raise
    new.keep()
    for index, taken in ((0, out), (1, lse), (2, None)):
        for result in call.results.get(index, ()):
            if _is_used(result):
                result.replace_all_uses_with(taken)
            _erase(result)
    node.graph.erase_node(node)


def _is_used(node: Node) -> bool:
    """Whether anything that the graph returns or writes depends on `node`: Dynamo keeps calls of no use, too."""
    return any(user.op == "output" or writes(user) for user in reached([node]) - {node})


def _erase(node: Node) -> None:
    """Takes out `node` and all that depends on it, none of which is used."""
    for dead in sorted(reached([node]), reverse=True):
        dead.graph.erase_node(dead)


def _results(node: Node) -> dict[int, list[Node]]:
    found: dict[int, list[Node]] = {}
    for user in node.users:
        if user.target is not operator.getitem or user.args[1] not in (0, 1, 2):
            raise _refuse("form", f"its results are used together, by {user.name}")
        found.setdefault(user.args[1], []).append(user)
    return found


def _check(call: _Call, captured: Sequence[Any]) -> None:
    """The call must be one that `flycc::sdpa` can stand for, whatever its bodies.

    PyTorch has no rules for functorch transforms of flex_attention, so that none acts on it.
    """
    operands = (call.query, call.key, call.value)
    for node in (*operands, *captured):
        value = example(node) if isinstance(node, Node) else node
        if isinstance(value, Tensor) and (type(value) is not FakeTensor or value.layout is not torch.strided):
            raise _refuse("subclass", f"{node} is no plain dense tensor")
    dtypes = [example(operand).dtype for operand in operands]
    if call.out.dtype not in _DTYPES or not all(dtype in _DTYPES for dtype in dtypes):
        given = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise _refuse("dtype", f"query, key and value are {given}; flycc takes bfloat16, float16 and float32")
    if any(map(_is_used, call.results.get(2, ()))):
        raise _refuse("max-scores", "its highest scores are used, which kernels do not give")


@dataclass(frozen=True, slots=True)
class _Scoring:
    """What makes scores of products, by how kernels do it."""

    bands: Sequence[Band]
    documents: SameDocument | None
    slopes: Sloped | None
    biases: Sequence[tuple[Expression, int]]
    seen: Sequence[Loaded | SameDocument]

    @property
    def expressions(self) -> Iterator[Expression]:
        """All of them that may read captured tensors."""
        if self.slopes is not None and self.slopes.slope is not None:
            yield self.slopes.slope
        yield from (bias for bias, _ in self.biases)
        for condition in (*self.seen, *([self.documents] if self.documents else [])):
            yield from (condition.of,) if isinstance(condition, Loaded) else (condition.query, condition.key)


def _sorted(score: Score, seen: Sequence[Condition], wants_lse: bool) -> _Scoring:
    """Kernels know bands, one pair of documents and one slope of each head; what is left is loaded as a mask."""
    conditions = (*score.seen, *seen)
    bands = [condition for condition in conditions if isinstance(condition, Band)]
    documents = [condition for condition in conditions if isinstance(condition, SameDocument)]
    found = [(bias, slope) for bias in score.biases if (slope := _slope(*bias, bands, wants_lse)) is not None]
    return _Scoring(
        bands,
        documents[0] if documents else None,
        found[0][1] if found else None,
        [bias for bias in score.biases if not found or bias is not found[0][0]],
        [*(condition for condition in conditions if isinstance(condition, Loaded)), *documents[1:]],
    )


def _slope(bias: Expression, sign: int, bands: Sequence[Band], wants_lse: bool) -> Sloped | None:
    """`bias` as a slope times kv_idx - q_idx, if it is that but for terms that are the same for all keys of a query.

    Those change no weight, only the logsumexp.
    """
    sloped = as_sloped(bias.form)
    if sloped is None:
        return None
    distance: Any = sloped.distance
    if isinstance(distance, Magnitude):
        distance = _signed(distance.of, bands)
    if distance is None or (wants_lse and distance != Linear(query=-distance.key, key=distance.key)):
        return None
    return replace(sloped, distance=Linear(query=-1, key=1), factor=sign * distance.key * sloped.factor)


def _signed(distance: Linear, bands: Sequence[Band]) -> Linear | None:
    """The absolute value of `distance` in `bands`, if they hide all keys on one side of a query."""
    if distance.key < 0:
        distance = -distance
    if distance != Linear(query=-1, key=1):
        return None
    if any(_constant(band.upper, 1) <= 0 for band in bands):
        return -distance
    return distance if any(_constant(band.lower, -1) >= 0 for band in bands) else None


def _constant(bound: Linear | None, otherwise: int) -> int:
    """A bound that is known."""
    return otherwise if bound is None or bound.numbers else bound.constant


def _check_gradients(scoring: _Scoring, operands: Operands) -> None:
    for expression in scoring.expressions:
        for tensor in operands.captured(expression):
            if example(tensor).requires_grad:
                raise _refuse(
                    "gradient", f"{tensor} needs a gradient, which kernels give query, key and value alone"
                )


def _check_alike(old: FakeTensor, new: FakeTensor) -> None:
    """Strides aside, nobody can tell one from the other."""
    for name in ("dtype", "device", "shape", "requires_grad"):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            raise _refuse("internal", f"its {name} would be {after}, not {before}")


def _sdpa(
    call: _Call, new: NewNodes, operands: Operands, scoring: _Scoring, scale: float, softcap: float
) -> Node:
    """The call of `flycc::sdpa`."""
    dtype = call.out.dtype
    wants_lse = call.wants_lse or (call.out.requires_grad and dtype is not torch.float32)
    query, key, value = _operands(call, new)
    new.evaluate()
    shares = bool(example(query).shape[1] != example(key).shape[1])
    return new.own(
        composite_ops.sdpa._opoverload,
        query,
        key,
        value,
        wants_lse,
        _mask(new, operands, scoring, dtype),
        False,
        scale,
        shares,
        0.0,
        None,
        *_documents(new, operands, scoring.documents),
        _slopes(new, operands, scoring.slopes),
        *_bounds(new, operands, scoring.bands),
        softcap,
    )


def _operands(call: _Call, new: NewNodes) -> list[Any]:
    """Query, key and value in the type that autocast wants, and of the same batch; heads are not repeated for it."""
    before = [unrepeated(call.key), unrepeated(call.value)]
    if example(before[0]).shape[1] != example(before[1]).shape[1]:
        before = [call.key, call.value]
    found = []
    for operand in (call.query, *before):
        node: Any = operand
        int(example(operand).shape[3])  # a guard: kernels are made for heads of a width
        if example(operand).dtype != call.out.dtype:
            node = new.method("to", node, call.out.dtype)
        if operand is not call.query and example(operand).shape[0] != call.out.shape[0]:
            node = new.method("expand", node, new.size(call.query, 0), -1, -1, -1)
        found.append(node)
    return found


def _bounds(new: NewNodes, operands: Operands, bands: Sequence[Band]) -> tuple[Any, Any]:
    """The first and the last key that a query sees, from its own on; None where there is none."""
    lower = [operands.number(band.lower) for band in bands if band.lower is not None]
    upper = [operands.number(band.upper) for band in bands if band.upper is not None]
    return _extreme(new, lower, max, torch.sym_max), _extreme(new, upper, min, torch.sym_min)


def _extreme(
    new: NewNodes, numbers: Sequence[Any], known: Callable[..., int], unknown: Callable[..., Any]
) -> Any:
    constants = [number for number in numbers if isinstance(number, int)]
    others = [number for number in numbers if not isinstance(number, int)]
    if constants:
        others.append(known(constants))
    return functools.reduce(lambda x, y: new.function(unknown, x, y), others) if others else None


def _slopes(new: NewNodes, operands: Operands, slope: Sloped | None) -> Any:
    """float32 [heads]."""
    if slope is None:
        return None
    if slope.slope is None:
        return new.method("expand", new.method("flatten", operands.filled(slope.factor)), operands.size(1))
    of_heads = new.function(operator.getitem, operands.value(slope.slope), (0, slice(None), 0, 0))
    of_heads = new.method("expand", new.method("to", of_heads, torch.float32), operands.size(1))
    return of_heads if slope.factor == 1 else new.function(operator.mul, of_heads, slope.factor)


def _documents(new: NewNodes, operands: Operands, documents: SameDocument | None) -> tuple[Any, Any]:
    """Integers, [batch, queries] and [batch, keys]."""
    if documents is None:
        return None, None
    every = slice(None)
    pairs = ((documents.query, (every, 0, every, 0)), (documents.key, (every, 0, 0, every)))
    found = []
    for expression, index in pairs:
        each = new.function(operator.getitem, operands.value(expression), index)
        each = new.method("to", each, torch.int32) if expression.dtype is torch.bool else each
        found.append(new.method("expand", each, operands.size(0), -1))
    return found[0], found[1]


def _mask(new: NewNodes, operands: Operands, scoring: _Scoring, dtype: torch.dtype) -> Any:
    """What is added to scores or, where that is bools, says which are seen; None for neither."""
    bias: Any = None
    for expression, sign in scoring.biases:
        each = operands.value(expression)
        if len(scoring.biases) > 1 or sign < 0 or expression.dtype not in (torch.float32, dtype):
            each = new.method("to", each, torch.float32)
        each = each if sign > 0 else new.function(operator.neg, each)
        bias = each if bias is None else new.function(operator.add, bias, each)
    seen: Any = None
    for condition in scoring.seen:
        if isinstance(condition, SameDocument):
            each = new.function(torch.eq, operands.value(condition.query), operands.value(condition.key))
        else:
            each = operands.value(condition.of)
            each = new.function(torch.logical_not, each) if condition.negated else each
        seen = each if seen is None else new.function(torch.logical_and, seen, each)
    if bias is None or seen is None:
        return seen if bias is None else bias
    return new.function(torch.where, seen, bias, -math.inf)


def _laid_out(new: NewNodes, out: Node, like: FakeTensor) -> Node:
    """`out` with the strides of `like`, which is dense."""
    pairs = zip(example(out).stride(), like.stride(), like.shape, strict=True)
    if all(size == 1 or mine == theirs for mine, theirs, size in pairs):
        return out
    order = sorted(range(like.dim()), key=lambda dim: -like.stride(dim))
    back = [order.index(dim) for dim in range(like.dim())]
    dense = new.method("contiguous", new.method("permute", out, *order))
    laid_out = new.method("permute", dense, *back)
    new.evaluate()
    return laid_out
