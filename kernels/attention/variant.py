"""What a forward binary is specialised on: everything but the sizes and strides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

from flycc.contracts.sdpa import SdpaDtype, SdpaProblem
from flycc.contracts.sizes import Size
from flycc.kernels.attention.config import SdpaConfig, WideConfig
from flycc.kernels.attention.features import Features

#: Elements of 16 bytes, and the most of out that are stored at once.
_CHUNK, _STORED = 8, 4


Config = TypeVar("Config", bound=SdpaConfig | WideConfig)


@dataclass(frozen=True, slots=True)
class SdpaVariant(Generic[Config]):
    """`ragged` says that the elements of a row of Q and K do not make whole chunks of 16 bytes; `vector` elements of a
    row of out are aligned."""

    dtype: SdpaDtype
    features: Features
    lse: bool
    ragged: bool
    vector: int
    config: Config

    @classmethod
    def of(cls, problem: SdpaProblem, config: Config) -> SdpaVariant[Config]:
        return cls(
            dtype=problem.dtype,
            features=Features.of(problem),
            lse=problem.lse,
            ragged=_known(problem.head_dim) % _CHUNK != 0,
            vector=math.gcd(_STORED, _known(problem.value_dim), max(1, problem.align_out // 2)),
            config=config,
        )

    @property
    def symbol(self) -> str:
        flags = "".join(f"_{name}" for name in ("lse", "ragged") if getattr(self, name))
        return f"sdpa_{self.dtype}{self.features}{flags}_v{self.vector}_{self.config}"


def _known(size: Size) -> int:
    return size if isinstance(size, int) else 1
