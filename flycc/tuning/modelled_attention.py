"""What launches of attention need to run, to be modelled: contiguous operands."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flycc.contracts.sdpa import SdpaProblem
from flycc.kernels import attention
from flycc.kernels.attention.features import band
from flycc.kernels.common.spec import KernelSpec, Launch

_BYTES = {"bf16": 2, "f16": 2, "f32": 4, "bool": 1, "none": 0}


@dataclass(frozen=True, slots=True)
class Attending:
    """One launch: as `modelled.Step`."""

    spec: KernelSpec
    launch: Launch
    buffers: dict[str, int]
    numbers: dict[str, int | float]


def launches(
    problem: SdpaProblem, config: attention.SdpaConfig | attention.WideConfig | attention.DecodeConfig
) -> list[Attending]:
    """The launches that compute `problem` under `config`. A band with an upper end alone is causal, with the last query
    and key together; its lower end is 1,024 keys before."""
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
    upper = keys - queries if problem.upper else None
    lower = keys - queries - 1024 if problem.lower else None
    shapes = {
        "q": (batch, heads, queries, head_dim),
        "k": (batch, kv_heads, keys, head_dim),
        "v": (batch, kv_heads, keys, value_dim),
        "out": (batch, heads, queries, value_dim),
        "mask": (batch, heads, queries, keys),
    }
    sizes = {name: _BYTES[problem.dtype] * math.prod(shape) for name, shape in shapes.items()}
    sizes["mask"] = _BYTES[problem.mask] * math.prod(shapes["mask"])
    sizes |= {
        "lse": 4 * batch * heads * queries * problem.lse,
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
        **{"head_dim": head_dim, "value_dim": value_dim, "lower": band(lower), "upper": band(upper)},
        **{"threshold": 0, "scale": head_dim**-0.5, "softcap": 1.0, "inverse_keep": 1.0},
    }
    found = []
    for step in attention.steps(problem, config, lower, upper):
        spec = attention.step_kernel(problem, step)
        buffers = {name: {**sizes, "partial": 4 * step.partial}[name] for name in spec.kernarg.pointers}
        found.append(Attending(spec, step.launch, buffers, step.numbers(numbers)))
    return found
