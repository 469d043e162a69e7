"""The launches that compute attention: of the forward kernel, or of those that share out the keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from flycc.contracts import Reason
from flycc.contracts.sdpa import SdpaProblem
from flycc.kernels.attention import config as general
from flycc.kernels.attention.config import SdpaConfig, WideConfig
from flycc.kernels.attention.decode_config import DecodeConfig, choose_decode
from flycc.kernels.attention.decode_host import Decoding, combine_numbers, decode_launches, decode_numbers
from flycc.kernels.common.machine import COMPUTE_UNITS
from flycc.kernels.common.spec import Launch

#: Queries that are few whatever else; and where the forward kernel leaves half of the compute units without work.
_FEW, _FEW_FOR_IDLE = 16, 128
#: Keys that are many.
_MANY = 1024

What = Literal["forward", "decode", "combine"]


@dataclass(frozen=True, slots=True)
class ForwardStep:
    """A launch of a kernel. `partial` is the float32 numbers that launches share by the pointer of that name."""

    what: What
    config: SdpaConfig | WideConfig | DecodeConfig
    launch: Launch
    partial: int = 0
    decoding: Decoding | None = None

    def numbers(self, numbers: Mapping[str, int | float]) -> dict[str, int | float]:
        """The numbers of the launch's arguments, from those of `FORWARD` by their names."""
        if self.decoding is None:
            return dict(numbers)
        make = decode_numbers if self.what == "decode" else combine_numbers
        return make(self.decoding, numbers)


def plan(
    problem: SdpaProblem, lower: int | None = None, upper: int | None = None
) -> tuple[ForwardStep, ...] | Reason:
    """The launches that compute `problem`, in order, or why there are none; `lower` and `upper` are its band's.

    The configuration is that of `chosen`; in launches sizes that are not known count as 1, head dims as 128: a plan is
    made again at run time. Binaries of plans that differ in batch and keys are the same, but for few keys and for so
    many heads that no keys need be shared out.
    """
    config = chosen(problem)
    return config if isinstance(config, Reason) else steps(_known(problem), config, lower, upper)


def steps(
    problem: SdpaProblem,
    config: SdpaConfig | WideConfig | DecodeConfig,
    lower: int | None = None,
    upper: int | None = None,
) -> tuple[ForwardStep, ...]:
    """The launches that compute `problem`, whose sizes must be known, under `config`. Raises ValueError where it does
    not."""
    if isinstance(config, SdpaConfig | WideConfig):
        return (ForwardStep("forward", config, general.launch(problem, config)),)
    decoding = decode_launches(problem, config, lower, upper)
    decode = ForwardStep("decode", config, decoding.decode, decoding.partial, decoding)
    if decoding.combine is None:
        return (decode,)
    return decode, ForwardStep("combine", config, decoding.combine, decoding.partial, decoding)


def chosen(problem: SdpaProblem) -> SdpaConfig | WideConfig | DecodeConfig | Reason:
    """The configuration that computes `problem`, or why none does.

    It computes `problem` whatever sizes are not known turn out to be, but for head dims: queries count as many, and so
    do keys for few queries.
    """
    if reason := general.check_problem(problem):
        return reason
    config = general.choose(problem)
    if isinstance(config, Reason) or not _shares_keys(problem, config):
        return config
    decode = choose_decode(problem)
    return config if isinstance(decode, Reason) else decode


def _shares_keys(problem: SdpaProblem, config: SdpaConfig | WideConfig) -> bool:
    queries, keys = problem.queries, problem.keys
    if not isinstance(queries, int):
        return False
    idle = general.workgroups(problem, config) <= COMPUTE_UNITS // 2
    many = isinstance(keys, int) and keys >= _MANY
    return queries <= _FEW or (queries <= _FEW_FOR_IDLE and many and idle)


def _known(problem: SdpaProblem) -> SdpaProblem:
    """The smallest of its kind that the heads allow."""
    kv_heads = problem.kv_heads if isinstance(problem.kv_heads, int) else 1
    counted = {
        "batch": 1,
        "heads": kv_heads,
        "kv_heads": kv_heads,
        "queries": 1,
        "keys": 1,
        "head_dim": 128,
        "value_dim": 128,
    }
    unknown: dict[str, Any] = {
        name: size for name, size in counted.items() if isinstance(getattr(problem, name), str)
    }
    return replace(problem, **unknown) if unknown else problem
