"""What the binaries that share out keys are specialised on: everything but sizes, strides and numbers of workgroups."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flycc.contracts.sdpa import SdpaProblem
from flycc.kernels.attention.decode_config import DecodeConfig, combine_waves
from flycc.kernels.attention.features import Features

#: Elements of a chunk of 16 bytes, and the most of out that are stored at once.
_CHUNK, _STORED = 8, 4


@dataclass(frozen=True, slots=True)
class DecodeVariant:
    """`whole_head` and `whole_value` say that a head has all the elements that the configuration has, `ragged` that the
    elements of Q and K do not make whole chunks of 16 bytes. `vector` elements of a row of out are aligned."""

    dtype: str
    whole_head: bool
    whole_value: bool
    ragged: bool
    features: Features
    lse: bool
    vector: int
    config: DecodeConfig

    @classmethod
    def of(cls, problem: SdpaProblem, config: DecodeConfig) -> DecodeVariant:
        head = problem.head_dim if isinstance(problem.head_dim, int) else 1
        return cls(
            dtype=problem.dtype,
            whole_head=head == config.head,
            whole_value=problem.value_dim == config.value,
            ragged=head % _CHUNK != 0,
            features=Features.of(problem),
            lse=problem.lse and not config.split,
            vector=1 if config.split else _vector(problem),
            config=config,
        )

    @property
    def symbol(self) -> str:
        flags = ("whole_head", "whole_value", "ragged", "lse")
        chosen = "".join(f"_{name}" for name in flags if getattr(self, name))
        return f"sdpa_decode_{self.dtype}{self.features}{chosen}_v{self.vector}_{self.config}"


@dataclass(frozen=True, slots=True)
class CombineVariant:
    """`value` as in `DecodeConfig`, `vector` as in `DecodeVariant`; `waves` have one row."""

    dtype: str
    lse: bool
    value: int
    vector: int
    waves: int

    @classmethod
    def of(cls, problem: SdpaProblem, config: DecodeConfig) -> CombineVariant:
        return cls(problem.dtype, problem.lse, config.value, _vector(problem), combine_waves(problem, config))

    @property
    def symbol(self) -> str:
        return f"sdpa_combine_{self.dtype}{'_lse' * self.lse}_v{self.vector}_d{self.value}_w{self.waves}"


def _vector(problem: SdpaProblem) -> int:
    value = problem.value_dim if isinstance(problem.value_dim, int) else 1
    return math.gcd(_STORED, value, max(1, problem.align_out // 2))
