"""`torch.ops.flycc.sdpa_fwd` and `sdpa_bwd`: problem -> plan -> code objects -> launches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flycc.attention import Scoring
from flycc.attention import backward as backward_in_pytorch
from flycc.attention import forward as forward_in_pytorch
from flycc.contracts import FlyccError, Reason, SdpaBackwardProblem, SdpaProblem
from flycc.contracts.sdpa import FACTORS, LEAST_FACTOR, threshold
from flycc.kernels import attention as family
from flycc.kernels.attention.features import band
from flycc.runtime import derivatives, launching, plans, refusals, workspace
from flycc.runtime.device import Device
from flycc.runtime.devices import common_device, device_for
from flycc.runtime.launching import Launched
from flycc.runtime.library import LIBRARY
from flycc.runtime.loading import Loaded, load
from flycc.runtime.sdpa_operands import (
    alignment,
    check_mask,
    documents,
    few_rows,
    in_order,
    near_rows,
    rows_of,
    strides,
)

_TENSORS = (
    "Tensor? attn_mask=None, Tensor? query_documents=None, Tensor? key_documents=None, Tensor? slopes=None, "
    "Tensor? seed=None"
)
_NUMBERS = "float scale, SymInt? lower=None, SymInt? upper=None, float softcap=0.0, float dropout_p=0.0"
LIBRARY.define(
    f"sdpa_fwd(Tensor query, Tensor key, Tensor value, {_TENSORS}, *, {_NUMBERS}, bool want_lse=False, "
    'str layout="bhsd") -> (Tensor out, Tensor lse)'
)
LIBRARY.define(
    f"sdpa_bwd(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, {_TENSORS}, *, "
    f"{_NUMBERS}) -> (Tensor dq, Tensor dk, Tensor dv)"
)

_PLANS, _BACKWARD_PLANS = plans.Plans(), plans.Plans()
_NAMES: dict[torch.dtype, Any] = {torch.bfloat16: "bf16", torch.float16: "f16"}
_MASKS: dict[torch.dtype, Any] = {torch.bool: "bool", torch.float32: "f32", **_NAMES}
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
#: Orders of out in memory, by the name of `layout`, and how to permute a tensor in that order to get out.
_ORDERS = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3), "sbhd": (2, 0, 1, 3)}
_BACK = {name: tuple(map(order.index, range(4))) for name, order in _ORDERS.items()}


def prepare(problem: SdpaProblem, device: Device) -> list[tuple[family.ForwardStep, Loaded]]:
    """Each launch that `problem` takes, with its loaded kernel; compiled if this is its first use.

    Raises `FlyccError` with the reason where no kernel serves the problem or it cannot be built.
    """
    return _loaded(problem, family.plan(problem), device)


def prepare_backward(
    problem: SdpaBackwardProblem, device: Device
) -> list[tuple[family.BackwardStep, Loaded]]:
    """As `prepare`."""
    steps = family.plan_backward(problem)
    if isinstance(steps, Reason):
        raise FlyccError(steps)
    return [(step, load(family.backward_kernel(problem, step.config), device)) for step in steps]


def describe(problem: SdpaProblem | SdpaBackwardProblem) -> str:
    """The launches of `problem`: "forward d64_64_w8t64, 1 launch"; sizes that are not known leave them to the run."""
    forward = problem if isinstance(problem, SdpaProblem) else problem.forward
    sizes = (forward.batch, forward.heads, forward.queries, forward.keys, forward.head_dim, forward.value_dim)
    if not all(isinstance(size, int) for size in sizes):
        return "kernel chosen when lengths are known"
    steps: Any = family.plan(problem) if isinstance(problem, SdpaProblem) else family.plan_backward(problem)
    if isinstance(steps, Reason):
        return ""
    named = [
        str(step.config) if isinstance(step, family.BackwardStep) else f"{step.what} {step.config}"
        for step in steps
    ]
    return f"{', '.join(named)}, {len(steps)} launch{'es' * (len(steps) > 1)}"


def _loaded(
    problem: SdpaProblem, steps: tuple[family.ForwardStep, ...] | Reason, device: Device
) -> list[tuple[family.ForwardStep, Loaded]]:
    if isinstance(steps, Reason):
        raise FlyccError(steps)
    return [(step, load(family.step_kernel(problem, step), device)) for step in steps]


@dataclass(frozen=True, slots=True)
class Call:
    """What both ops are given beside Q, K and V, by the names of their arguments."""

    attn_mask: Tensor | None
    query_documents: Tensor | None
    key_documents: Tensor | None
    slopes: Tensor | None
    seed: Tensor | None
    scale: float
    lower: int | None
    upper: int | None
    softcap: float
    dropout_p: float

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        """By the names of the kernels' arguments."""
        return {
            "mask": self.attn_mask,
            "query_documents": self.query_documents,
            "key_documents": self.key_documents,
            "slopes": self.slopes,
            "seed": self.seed,
        }

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.scale, self.lower, self.upper, self.softcap, self.dropout_p

    @property
    def scoring(self) -> Scoring:
        """The same for PyTorch's operators."""
        return Scoring(
            self.scale,
            self.attn_mask,
            self.lower,
            self.upper,
            self.query_documents,
            self.key_documents,
            self.slopes,
            self.softcap,
            self.dropout_p,
            self.seed,
        )

    def problem(self, query: Tensor, key: Tensor, value: Tensor, lse: bool, align_out: int) -> SdpaProblem:
        """Raises `FlyccError` where there is none."""
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            if tensor.dtype not in _NAMES:
                given = f"{name} is {tensor.dtype}"
                raise FlyccError(
                    Reason("sdpa.dtype", f"{given}: the kernels take {', '.join(map(str, _NAMES))}")
                )
        if self.attn_mask is not None and self.attn_mask.dtype not in _MASKS:
            given = f"attn_mask is {self.attn_mask.dtype}"
            raise FlyccError(Reason("sdpa.mask", f"{given}: the kernels take {', '.join(map(str, _MASKS))}"))
        for name, number in (("scale", self.scale), ("softcap", self.softcap or 1.0)):
            if not LEAST_FACTOR <= number <= 1 / LEAST_FACTOR:
                sentence = f"{name} is {number}: the kernels take {FACTORS}"
                raise FlyccError(Reason(f"sdpa.{name}", sentence))
        batch, heads, queries, head_dim = query.shape
        _, kv_heads, keys, value_dim = value.shape
        return SdpaProblem(
            _NAMES[query.dtype],
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            head_dim,
            value_dim,
            mask="none" if self.attn_mask is None else _MASKS[self.attn_mask.dtype],
            lower=self.lower is not None,
            upper=self.upper is not None,
            documents=self.query_documents is not None,
            alibi=self.slopes is not None,
            softcap=self.softcap != 0,
            dropout=self.dropout_p != 0,
            lse=lse,
            align_out=align_out,
        )

    def inputs(self, shape: Sequence[int]) -> dict[str, Tensor]:
        """What kernels read of these; `shape` is that of the scores."""
        found: dict[str, Tensor] = {}
        if self.attn_mask is not None:
            found["mask"] = self.attn_mask.expand(shape)
        if self.query_documents is not None and self.key_documents is not None:
            pair = documents(self.query_documents, self.key_documents)
            found["query_documents"], found["key_documents"] = pair
        if self.slopes is not None:
            found["slopes"] = self.slopes.to(torch.float32).contiguous()
        if self.seed is not None and self.dropout_p:
            found["seed"] = self.seed.contiguous()
        return found

    def numbers(self, problem: SdpaProblem, mask: Tensor | None) -> dict[str, int | float]:
        limit = threshold(self.dropout_p)
        apart = (0, 0, 0, 0) if mask is None else mask.stride()
        names = ("batch", "heads", "queries", "keys", "head_dim", "value_dim")
        return {
            **{name: getattr(problem, name) for name in names},
            **{f"mask_{axis}": n for axis, n in zip(("batch", "head", "query", "key"), apart, strict=True)},
            "group": problem.heads // problem.kv_heads,  # type: ignore[operator]
            "scale": self.scale,
            "softcap": self.softcap,
            "lower": band(self.lower),
            "upper": band(self.upper),
            "threshold": limit - (1 << 32) if limit >= 1 << 31 else limit,
            "inverse_keep": 1 / (1 - self.dropout_p) if self.dropout_p < 1 else 0.0,
        }


def _launch_all(
    steps: Sequence[tuple[Any, Loaded]],
    device: Device,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    numbers: Sequence[Mapping[str, int | float]],
) -> list[Launched]:
    """Each launch with those that its kernel has pointers to."""
    found = []
    for (step, loaded), of_step in zip(steps, numbers, strict=True):
        names = loaded.spec.kernarg.pointers
        some, others = ({n: x for n, x in tensors.items() if n in names} for tensors in (inputs, outputs))
        found.append(launching.launch(device, loaded, step.launch, some, others, of_step))
    return found


def launch(
    query: Tensor, key: Tensor, value: Tensor, call: Call, out: Tensor, lse: Tensor | None, device: Device
) -> list[Launched]:
    """Compute `out` and, where it is given, `lse`. Raises `FlyccError` before anything ran, or `DeviceError` from a
    launch."""
    problem = call.problem(query, key, value, lse is not None, alignment(out))
    steps = _loaded(problem, family.plan(problem, call.lower, call.upper), device)
    operands = {"q": rows_of(query), "k": rows_of(key), "v": rows_of(value)}
    others = call.inputs((*query.shape[:3], key.size(2)))
    of_group = query.size(1) // key.size(1) if steps[0][0].what == "decode" else 1
    operands["q"] = few_rows(operands["q"], of_group)
    if "mask" in others and (reason := check_mask(others["mask"], of_group)):
        raise FlyccError(reason)
    numbers = call.numbers(problem, others.get("mask"))
    for name, tensor in (operands | {"out": out}).items():
        numbers |= strides(name, tensor)
    outputs = {"out": out} | ({} if lse is None else {"lse": lse})
    if partial := max(step.partial for step, _ in steps):
        outputs["partial"] = workspace.sums(partial, query.device)
    return _launch_all(
        steps, device, operands | others, outputs, [step.numbers(numbers) for step, _ in steps]
    )


def launch_backward(
    given: Mapping[str, Tensor], call: Call, gradients: Mapping[str, Tensor], device: Device
) -> list[Launched]:
    """Compute `gradients`, dq, dk and dv, from q, k, v, out, grad and lse. Raises as `launch`."""
    query, key, value = (given[name] for name in "qkv")
    forward = call.problem(query, key, value, True, alignment(*gradients.values()))
    steps = prepare_backward(SdpaBackwardProblem(forward), device)
    operands = {name: rows_of(tensor) for name, tensor in given.items() if name != "lse"}
    others = call.inputs((*query.shape[:3], key.size(2))) | {"lse": given["lse"].contiguous()}
    if "mask" in others and (reason := check_mask(others["mask"])):
        raise FlyccError(reason)
    numbers = call.numbers(forward, others.get("mask"))
    for name, tensor in (operands | dict(gradients)).items():
        numbers |= strides(name, tensor)
    outputs = {**gradients, "delta": workspace.sums(given["lse"].numel(), query.device)}
    return _launch_all(steps, device, operands | others, outputs, [numbers] * len(steps))


def sdpa_fwd(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    query_documents: Tensor | None = None,
    key_documents: Tensor | None = None,
    slopes: Tensor | None = None,
    seed: Tensor | None = None,
    *,
    scale: float,
    lower: int | None = None,
    upper: int | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    want_lse: bool = False,
    layout: str = "bhsd",
) -> tuple[Tensor, Tensor]:
    """Attention, as `flycc.contracts.SdpaProblem` defines it.

    Args:
        query: [B, H, S, D], floating point; key: [B, G, T, D] and value: [B, G, T, E] of its dtype, H a multiple of G.
        attn_mask: bool or floating point, broadcastable to [B, H, S, T].
        query_documents, key_documents: integers [B, S] and [B, T], both or none.
        slopes: [H], what is added to scores for each key further on.
        seed: int64 [2], where `dropout_p` is not 0.
        lower, upper: query i sees keys i + lower to i + upper.
        layout: the order of out in memory, "bhsd", "bshd" or "sbhd".

    Returns out [B, H, S, E] and, with `want_lse`, float32 [B, H, S], else an empty tensor.
    """
    call = Call(
        attn_mask, query_documents, key_documents, slopes, seed, scale, lower, upper, softcap, dropout_p
    )
    arguments = (*call.arguments, want_lse, layout)
    tensors = (query, key, value, *call.tensors.values())
    if made := _PLANS.repeat(tensors, arguments):
        order = _BACK.get(layout, _BACK["bhsd"])
        lse = made[1] if want_lse else query.new_empty(0, dtype=torch.float32)
        return _recorded(made[0].permute(order), tensors), lse
    out, lse = _forward_results(query, key, value, call, want_lse, layout)
    if not query.shape[:3].numel() or not key.size(2):
        return _recorded(out.zero_(), tensors), lse.fill_(-math.inf)
    try:
        given = {"q": query, "k": key, "v": value, **call.tensors}
        device = device_for(common_device(**given))
        launched = launch(query, key, value, call, out, lse if want_lse else None, device)
        results = [out.permute(_ORDERS[layout]), *([lse] if want_lse else [])]
        _PLANS.keep(given, arguments, results, launched)
    except Exception as error:  # a model never breaks because of us: see refusals.refuse
        refusals.refuse("sdpa", error)
        computed, sums = forward_in_pytorch(query, key, value, call.scoring)
        out.copy_(computed)
        if want_lse:
            lse.copy_(sums)
    return _recorded(out, tensors), lse


def _recorded(out: Tensor, tensors: Sequence[Tensor | None]) -> Tensor:
    """`out`, that has no derivative of its own: `flycc::sdpa` has."""
    return derivatives.missing("flycc::sdpa_fwd", out, tensors) if derivatives.wanted(tensors) else out


def sdpa_bwd(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    attn_mask: Tensor | None = None,
    query_documents: Tensor | None = None,
    key_documents: Tensor | None = None,
    slopes: Tensor | None = None,
    seed: Tensor | None = None,
    *,
    scale: float,
    lower: int | None = None,
    upper: int | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `sdpa_fwd`, as `flycc.contracts.SdpaBackwardProblem` defines them.

    Args:
        grad: [B, H, S, E], the gradient of out; out and lse: what `sdpa_fwd` returned; others as there.

    Returns those of query, key and value, laid out as `torch.empty_like` of each.
    """
    call = Call(
        attn_mask, query_documents, key_documents, slopes, seed, scale, lower, upper, softcap, dropout_p
    )
    given = {"grad": grad, "q": query, "k": key, "v": value, "out": out, "lse": lse}
    tensors = (*given.values(), *call.tensors.values())
    if made := _BACKWARD_PLANS.repeat(tensors, call.arguments):
        likes = [torch.empty_like(x, device="meta") for x in (query, key, value)]
        dq, dk, dv = (x.permute(in_order(like)[1]) for x, like in zip(made[:3], likes, strict=True))
        return dq, dk, dv
    results = _backward_results(grad, query, key, value, out, lse, call)
    if not query.shape[:3].numel() or not key.size(2):
        for result in results:
            result.zero_()
        return results
    try:
        device = device_for(common_device(**given, **call.tensors))
        written = [x if x.stride(3) == 1 and near_rows(x) else x.new_empty(x.shape) for x in results]
        gradients = dict(zip(("dq", "dk", "dv"), written, strict=True))
        launched = launch_backward(given, call, gradients, device)
        for result, from_kernel in zip(results, written, strict=True):
            if result is not from_kernel:
                result.copy_(from_kernel)
        if all(result is from_kernel for result, from_kernel in zip(results, written, strict=True)):
            _BACKWARD_PLANS.keep(
                {**given, **call.tensors}, call.arguments, [in_order(x)[0] for x in results], launched
            )
    except Exception as error:  # a model never breaks because of us: see refusals.refuse
        refusals.refuse("sdpa", error)
        computed = backward_in_pytorch(grad, query, key, value, out, lse, call.scoring)
        for result, gradient in zip(results, computed, strict=True):
            result.copy_(gradient)
    return results


def _forward_results(
    query: Tensor, key: Tensor, value: Tensor, call: Call, want_lse: bool, layout: str
) -> tuple[Tensor, Tensor]:
    _check("sdpa_fwd", query, key, value, call)
    torch._check(
        layout in _ORDERS,
        lambda: f"flycc::sdpa_fwd: layout is {layout!r}, must be one of {', '.join(_ORDERS)}",
    )
    batch, heads, queries, _ = query.shape
    sizes = (batch, heads, queries, value.shape[3])
    out = query.new_empty([sizes[dim] for dim in _ORDERS[layout]]).permute(_BACK[layout])
    lse = query.new_empty((batch, heads, queries) if want_lse else 0, dtype=torch.float32)
    return out, lse


def _backward_results(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, call: Call
) -> tuple[Tensor, Tensor, Tensor]:
    _check("sdpa_bwd", query, key, value, call)
    shape = (*query.shape[:3], value.shape[3])
    for name, given, wanted in (
        ("grad", grad.shape, shape),
        ("out", out.shape, shape),
        ("lse", lse.shape, query.shape[:3]),
    ):
        torch._check(
            tuple(given) == tuple(wanted),
            lambda name=name, given=given, wanted=wanted: (
                f"flycc::sdpa_bwd: {name} is {list(given)}, must be {list(wanted)}"
            ),
        )
    for name, dtype, must in (
        ("grad", grad.dtype, query.dtype),
        ("out", out.dtype, query.dtype),
        ("lse", lse.dtype, torch.float32),
    ):
        torch._check(
            dtype == must,
            lambda name=name, dtype=dtype, must=must: f"flycc::sdpa_bwd: {name} is {dtype}, must be {must}",
        )
    dq, dk, dv = (torch.empty_like(x) for x in (query, key, value))
    return dq, dk, dv


def _check(op: str, query: Tensor, key: Tensor, value: Tensor, call: Call) -> None:
    """Raises RuntimeError that names what does not fit."""

    def need(holds: Any, sentence: str) -> None:
        torch._check(holds, lambda: f"flycc::{op}: {sentence}")

    for name, x in (("query", query), ("key", key), ("value", value)):
        need(x.dim() == 4, f"{name} is {list(x.shape)}, must be [batch, heads, length, dim]")
        need(
            x.is_floating_point() and x.dtype == query.dtype,
            f"{name} is {x.dtype}, must be floating point and that of query, {query.dtype}",
        )
    batch, heads, queries, head_dim = query.shape
    need(
        key.shape[0] == batch and key.shape[3] == head_dim,
        f"key is {list(key.shape)}, must be [{batch}, heads, length, {head_dim}] as query is {list(query.shape)}",
    )
    need(
        value.shape[:3] == key.shape[:3],
        f"value is {list(value.shape)}, its first three sizes must be those of key, {list(key.shape)}",
    )
    need(
        (heads % key.shape[1] if key.shape[1] else heads) == 0,
        f"query has {heads} heads, must be a multiple of those of key, {key.shape[1]}",
    )
    keys = key.shape[2]
    if call.attn_mask is not None:
        mask = call.attn_mask
        need(
            mask.dtype == torch.bool or mask.is_floating_point(),
            f"attn_mask is {mask.dtype}, must be bool or floating point",
        )
        sizes = (batch, heads, queries, keys)[4 - mask.dim() :] if mask.dim() <= 4 else ()
        fits = mask.dim() <= 4 and all(n in (1, size) for n, size in zip(mask.shape, sizes, strict=True))
        need(
            fits, f"attn_mask is {list(mask.shape)}, must be broadcastable to {[batch, heads, queries, keys]}"
        )
    need(
        (call.query_documents is None) == (call.key_documents is None),
        "query_documents and key_documents must be there both or not at all",
    )
    for name, x, shape in (
        ("query_documents", call.query_documents, (batch, queries)),
        ("key_documents", call.key_documents, (batch, keys)),
        ("slopes", call.slopes, (heads,)),
    ):
        if x is not None:
            need(tuple(x.shape) == shape, f"{name} is {list(x.shape)}, must be {list(shape)}")
            if name == "slopes":
                need(x.is_floating_point(), f"slopes is {x.dtype}, must be floating point")
            else:
                need(x.dtype in _INTEGERS, f"{name} is {x.dtype}, must be int64, int32 or narrower")
    need(0 <= call.softcap < math.inf, f"softcap is {call.softcap}, must be finite and not negative")
    need(0 <= call.dropout_p <= 1, f"dropout_p is {call.dropout_p}, must be between 0 and 1")
    if call.dropout_p:
        seed = call.seed
        fits = seed is not None and tuple(seed.shape) == (2,) and seed.dtype == torch.int64
        given = "missing" if seed is None else f"{seed.dtype} {list(seed.shape)}"
        need(fits, f"seed is {given}, must be torch.int64 [2] with dropout_p")


def sdpa_fwd_fake(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    query_documents: Tensor | None = None,
    key_documents: Tensor | None = None,
    slopes: Tensor | None = None,
    seed: Tensor | None = None,
    *,
    scale: float,
    lower: int | None = None,
    upper: int | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    want_lse: bool = False,
    layout: str = "bhsd",
) -> tuple[Tensor, Tensor]:
    """The uninitialised results of `sdpa_fwd`, arguments checked."""
    call = Call(
        attn_mask, query_documents, key_documents, slopes, seed, scale, lower, upper, softcap, dropout_p
    )
    return _forward_results(query, key, value, call, want_lse, layout)


def sdpa_bwd_fake(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    attn_mask: Tensor | None = None,
    query_documents: Tensor | None = None,
    key_documents: Tensor | None = None,
    slopes: Tensor | None = None,
    seed: Tensor | None = None,
    *,
    scale: float,
    lower: int | None = None,
    upper: int | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The uninitialised results of `sdpa_bwd`, arguments checked."""
    call = Call(
        attn_mask, query_documents, key_documents, slopes, seed, scale, lower, upper, softcap, dropout_p
    )
    return _backward_results(grad, query, key, value, out, lse, call)


for _name, _function, _fake in (("sdpa_fwd", sdpa_fwd, sdpa_fwd_fake), ("sdpa_bwd", sdpa_bwd, sdpa_bwd_fake)):
    LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"flycc::{_name}", _fake, lib=LIBRARY)
