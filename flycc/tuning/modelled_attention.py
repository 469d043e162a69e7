"""What launches of attention need to run, to be modelled: contiguous operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from flycc.contracts.sdpa import SdpaBackwardProblem, SdpaProblem
from flycc.kernels import attention
from flycc.kernels.attention.features import band as clamped
from flycc.kernels.common.spec import KernelSpec, Launch

AnyProblem: TypeAlias = SdpaProblem | SdpaBackwardProblem

_BYTES = {"bf16": 2, "f16": 2, "f32": 4, "bool": 1, "none": 0}


@dataclass(frozen=True, slots=True)
class Attending:
    """One launch: as `modelled.Step`."""

    spec: KernelSpec
    launch: Launch
    buffers: dict[str, int]
    numbers: dict[str, int | float]


def band(problem: SdpaProblem) -> tuple[int | None, int | None]:
    """`lower` and `upper` that are modelled. An upper end is that of causal attention, with the last query and key
    together, but the first query sees the first key; the lower end is 1,024 keys before the last query's."""
    keys, queries = (size if isinstance(size, int) else 1 for size in (problem.keys, problem.queries))
    upper = max(keys - queries, 0) if problem.upper else None
    return keys - queries - 1024 if problem.lower else None, upper


def launches(
    problem: AnyProblem,
    config: attention.SdpaConfig
    | attention.WideConfig
    | attention.DecodeConfig
    | Sequence[attention.BackwardStep],
) -> list[attention.Step]:
    """The launches that compute `problem` under `config`."""
    if isinstance(problem, SdpaBackwardProblem):
        return list(config)  # type: ignore[arg-type]
    return list(attention.steps(problem, config, *band(problem)))  # type: ignore[arg-type]


def attending(problem: AnyProblem, step: attention.Step) -> Attending:
    """What a launch needs."""
    forward = of_forward(problem)
    sizes, numbers = _operands(forward, *band(forward))
    if isinstance(step, attention.BackwardStep):
        assert isinstance(problem, SdpaBackwardProblem)
        spec = attention.backward_kernel(problem, step.config)
        given = {name: numbers[name] for name in spec.kernarg.names if name not in spec.kernarg.pointers}
    else:
        spec = attention.step_kernel(forward, step)
        given = step.numbers({name: numbers[name] for name in attention.FORWARD.names if name in numbers})
        sizes["partial"] = 4 * step.partial
    return Attending(spec, step.launch, {name: sizes[name] for name in spec.kernarg.pointers}, given)


def of_forward(problem: AnyProblem) -> SdpaProblem:
    """The problem, or the one whose gradients it is."""
    return problem.forward if isinstance(problem, SdpaBackwardProblem) else problem


def changed(problem: AnyProblem, **sizes: Any) -> AnyProblem:
    """The problem with other fields."""
    if isinstance(problem, SdpaBackwardProblem):
        return SdpaBackwardProblem(replace(problem.forward, **sizes))
    return replace(problem, **sizes)


def shortened(problem: AnyProblem, step: attention.Step, most: int) -> tuple[AnyProblem, int]:
    """A problem without a band whose workgroups, as many, make no more than `most` turns each, or one for each head of
    a group, and how many fewer."""
    forward, of_keys = of_forward(problem), step.what == "dkv"
    walked = "queries" if of_keys else "keys"
    repeated = forward.heads // forward.kv_heads if of_keys else 1  # type: ignore[operator]
    size, tile = getattr(forward, walked), step.config.tile  # type: ignore[union-attr]
    turns = math.ceil(size / tile)
    traced = min(turns, math.ceil(most / repeated))
    return changed(problem, **{walked: traced * tile - (-size % tile)}), (turns - traced) * repeated


def _operands(
    problem: SdpaProblem, lower: int | None, upper: int | None
) -> tuple[dict[str, int], dict[str, int | float]]:
    """Bytes of all operands by name, and numbers among kernel arguments."""
    batch, heads, kv_heads, queries, keys, head_dim, value_dim = (
        size if isinstance(size, int) else 1
        for size in (
            problem.batch,
            problem.heads,
            problem.kv_heads,
            problem.queries,
            problem.keys,
            problem.head_dim,
            problem.value_dim,
        )
    )
    shapes = {
        "q": (batch, heads, queries, head_dim),
        "k": (batch, kv_heads, keys, head_dim),
        "v": (batch, kv_heads, keys, value_dim),
        "out": (batch, heads, queries, value_dim),
        "mask": (batch, heads, queries, keys),
    }
    shapes |= {"grad": shapes["out"], **{f"d{name}": shapes[name] for name in "qkv"}}
    sizes = {name: _BYTES[problem.dtype] * math.prod(shape) for name, shape in shapes.items()}
    sizes["mask"] = _BYTES[problem.mask] * math.prod(shapes["mask"])
    sizes |= {
        "lse": 4 * batch * heads * queries * problem.lse,
        "delta": 4 * batch * heads * queries,
        "slopes": 4 * heads * problem.alibi,
        "query_documents": 4 * batch * queries * problem.documents,
        "key_documents": 4 * batch * keys * problem.documents,
        "seed": 16 * problem.dropout,
    }
    numbers: dict[str, int | float] = {
        **{
            f"{name}_{axis}": math.prod(shape[i + 1 :])
            for name, shape in shapes.items()
            for i, axis in enumerate(("batch", "head", "row"))
            if name != "mask"
        },
        **{
            f"mask_{axis}": math.prod(shapes["mask"][i + 1 :])
            for i, axis in enumerate(("batch", "head", "query", "key"))
        },
        **{"batch": batch, "heads": heads, "group": heads // kv_heads, "queries": queries, "keys": keys},
        **{"head_dim": head_dim, "value_dim": value_dim, "lower": clamped(lower), "upper": clamped(upper)},
        **{"threshold": 0, "scale": head_dim**-0.5, "softcap": 1.0, "inverse_keep": 1.0},
    }
    return sizes, numbers
