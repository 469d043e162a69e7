"""What launches of attention need to run, to be modelled: contiguous operands."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flycc.contracts.sdpa import SdpaBackwardProblem, SdpaProblem
from flycc.kernels import attention
from flycc.kernels.attention.features import BAND_LIMIT, band
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
    keys, queries = (size if isinstance(size, int) else 1 for size in (problem.keys, problem.queries))
    upper = keys - queries if problem.upper else None
    lower = keys - queries - 1024 if problem.lower else None
    sizes, numbers = _operands(problem, lower, upper)
    numbers = {name: number for name, number in numbers.items() if name in attention.FORWARD.names}
    found = []
    for step in attention.steps(problem, config, lower, upper):
        spec = attention.step_kernel(problem, step)
        buffers = {name: {**sizes, "partial": 4 * step.partial}[name] for name in spec.kernarg.pointers}
        found.append(Attending(spec, step.launch, buffers, step.numbers(numbers)))
    return found


def gradients(
    problem: SdpaBackwardProblem, step: attention.BackwardStep, upper: int | None = None
) -> Attending:
    """A launch of the gradients. A band is as in `launches`, but the first query sees the first key; `upper`, if given,
    is its upper end."""
    forward = problem.forward
    keys, queries = (size if isinstance(size, int) else 1 for size in (forward.keys, forward.queries))
    if forward.upper and upper is None:
        upper = max(keys - queries, 0)
    lower = keys - queries - 1024 if forward.lower else None
    sizes, numbers = _operands(forward, lower, upper)
    spec = attention.backward_kernel(problem, step.config)
    buffers = {name: sizes[name] for name in spec.kernarg.pointers}
    given = {name: numbers[name] for name in spec.kernarg.names if name not in buffers}
    return Attending(spec, step.launch, buffers, given)


def average(
    problem: SdpaBackwardProblem, step: attention.BackwardStep, most: int
) -> tuple[Attending, int] | None:
    """A launch of dK and dV, or of dQ, of which all workgroups do as much as one of `step` on average, but for the
    other turns of their loops; these are left out if there are more than `most`. None where they are not alike.

    Where there is an upper end, a launch of a tile of rows a head: what the last of a head's tiles does, with less to
    walk through; in that of dK and dV all pairs are seen, as most are. That workgroups which take longest start first
    and the others fill up is taken for granted.
    """
    forward, config = problem.forward, step.config
    of_keys = config.what == "dkv"
    walked, own = ("queries", "keys") if of_keys else ("keys", "queries")
    size, rows = getattr(forward, walked), getattr(forward, own)
    repeated = forward.heads // forward.kv_heads if of_keys else 1  # type: ignore[operator]
    if config.what == "delta" or forward.lower:
        return None
    turns = math.ceil(size / config.tile)
    launch = step.launch
    if forward.upper:
        beyond = max(forward.keys - forward.queries, 0)  # type: ignore[operator]
        starts = range(0, rows, config.rows)
        seen = [
            size - max(0, start - beyond) if of_keys else min(size, start + config.rows + beyond)
            for start in starts
        ]
        turns = max(round(sum(seen) / len(seen) / config.tile), config.rows // config.tile)
        rows = min(rows, config.rows)
        launch = Launch((launch.grid[0] // len(starts), 1, 1), launch.block)
    traced = min(turns, max(-(-most // repeated), config.rows // config.tile + most // 2))
    end = size % config.tile if not forward.upper else 0
    short = replace(forward, **{walked: traced * config.tile - (-end % config.tile), own: rows})
    left_out = (turns - traced) * repeated
    upper = BAND_LIMIT if forward.upper and of_keys else None
    return gradients(SdpaBackwardProblem(short), attention.BackwardStep(config, launch), upper), left_out


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
        **{"head_dim": head_dim, "value_dim": value_dim, "lower": band(lower), "upper": band(upper)},
        **{"threshold": 0, "scale": head_dim**-0.5, "softcap": 1.0, "inverse_keep": 1.0},
    }
    return sizes, numbers
