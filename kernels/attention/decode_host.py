"""Few queries and many keys: binaries and launches of the kernels that share out the keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flycc.contracts.sdpa import SdpaProblem
from flycc.kernels.attention.decode_config import COMBINE_WAVES, DecodeConfig, Keys, share_out, tile_rows
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
    rows, batch, kv_heads = tile_rows(problem), problem.batch, problem.kv_heads
    if not (rows is not None and isinstance(batch, int) and isinstance(kv_heads, int)) or not isinstance(
        problem.keys, int
    ):
        raise ValueError(f"launch: every size must be known, got {problem}")
    keys = share_out(problem, config, lower, upper)
    decode = Launch((keys.splits, kv_heads, batch), (config.threads, 1, 1))
    if not config.split:
        return Decoding(keys, decode, None, 0)
    combine = Launch((rows, kv_heads, batch), (COMBINE_WAVES * WAVE_SIZE, 1, 1))
    return Decoding(keys, decode, combine, batch * kv_heads * keys.splits * rows * config.row_floats)


def _require_valid(problem: SdpaProblem, config: DecodeConfig) -> None:
    reason = config.is_valid(problem)
    if reason is not None:
        raise ValueError(str(reason))
