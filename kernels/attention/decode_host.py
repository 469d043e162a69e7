"""Few queries and many keys: binaries and launches of the kernels that share out the keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from flycc.contracts.sdpa import SdpaProblem
from flycc.kernels.attention.decode_config import DecodeConfig, Keys, combine_waves, rows, share_out, tiles
from flycc.kernels.attention.decode_kernarg import COMBINE, DECODE
from flycc.kernels.attention.decode_variant import CombineVariant, DecodeVariant
from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.common.spec import KernelSpec, Launch

_HERE = Path(__file__).parent
_SHARED = (
    *(_HERE / name for name in ("combine.py", "decode_config.py", "decode_kernarg.py", "decode_variant.py")),
    *(_HERE / name for name in ("features.py", "scores.py")),
    *(
        _HERE.parent / "common" / name
        for name in ("arguments.py", "buffers.py", "machine.py", "vectors.py", "wave.py")
    ),
)


@dataclass(frozen=True, slots=True)
class Decoding:
    """The launches of one call: of `decode`, over `keys`, and with `combine` of what puts its results together.

    `partial` is the float32 numbers between them, 0 without.
    """

    keys: Keys
    decode: Launch
    combine: Launch | None
    partial: int


def decode_kernel(problem: SdpaProblem, config: DecodeConfig) -> KernelSpec:
    """The binary that computes `problem`, or its shares.

    Problems that differ in batch, heads, queries and keys only have the same. Raises ValueError if `config` does not
    compute `problem`.
    """
    _require_valid(problem, config)
    variant = DecodeVariant.of(problem, config)

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.attention.decode import build

        return build(variant)

    return KernelSpec("sdpa", variant.symbol, repr(variant), DECODE, (*_SHARED, _HERE / "decode.py"), build)


def combine_kernel(problem: SdpaProblem, config: DecodeConfig) -> KernelSpec:
    """The binary that puts shares together. Raises as `decode_kernel`."""
    _require_valid(problem, config)
    variant = CombineVariant.of(problem, config)

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.attention.combine import build

        return build(variant)

    return KernelSpec("sdpa", variant.symbol, repr(variant), COMBINE, _SHARED, build)


def decode_launches(
    problem: SdpaProblem, config: DecodeConfig, lower: int | None = None, upper: int | None = None
) -> Decoding:
    """The launches of `problem`, whose sizes must all be known, with this band. Raises as `decode_kernel`."""
    _require_valid(problem, config)
    count, batch, kv_heads = rows(problem), problem.batch, problem.kv_heads
    if not all(isinstance(size, int) for size in (count, batch, kv_heads, problem.keys)):
        raise ValueError(f"launch: every size must be known, got {problem}")
    assert isinstance(count, int)
    assert isinstance(batch, int)
    assert isinstance(kv_heads, int)
    keys = share_out(problem, config, lower, upper)
    grid = (keys.splits * tiles(problem, config), kv_heads, batch)
    decode = Launch(grid, (config.threads, 1, 1))
    if not config.split:
        return Decoding(keys, decode, None, 0)
    combine = Launch((count, kv_heads, batch), (combine_waves(problem, config) * WAVE_SIZE, 1, 1))
    return Decoding(keys, decode, combine, batch * kv_heads * keys.splits * count * config.row_floats)


def decode_numbers(decoding: Decoding, numbers: Mapping[str, int | float]) -> dict[str, int | float]:
    """The numbers of the kernel's arguments, from those of `SdpaProblem`'s other kernels: strides in elements.

    They are {q,k,v,out}_{batch,head,row}, mask_{batch,head,query,key}, queries, keys, heads, group, head_dim,
    value_dim, lower, upper (`features.band`), scale and softcap.
    """
    values = _with_shares(decoding, numbers)
    for name, axis in product("kv", ("batch", "head", "row")):
        # The stride of a dimension of 1 may be any, and does not matter.
        values[f"{name}_{axis}_16"] = int(numbers[f"{name}_{axis}"]) * 2 // 16
    return {name: values[name] for name, kind in DECODE.fields if kind != "ptr"}


def combine_numbers(decoding: Decoding, numbers: Mapping[str, int | float]) -> dict[str, int | float]:
    """The same for the kernel that puts shares together."""
    values = _with_shares(decoding, numbers)
    return {name: values[name] for name, kind in COMBINE.fields if kind != "ptr"}


def _with_shares(decoding: Decoding, numbers: Mapping[str, int | float]) -> dict[str, int | float]:
    keys = decoding.keys
    shares = {"first": keys.first, "end": keys.end, "share": keys.share, "splits": keys.splits}
    return {**numbers, **shares, "kv_heads": int(numbers["heads"]) // int(numbers["group"])}


def _require_valid(problem: SdpaProblem, config: DecodeConfig) -> None:
    reason = config.is_valid(problem)
    if reason is not None:
        raise ValueError(str(reason))
