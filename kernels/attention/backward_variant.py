"""What a binary of attention's gradients is specialised on: everything but the sizes and strides."""

from __future__ import annotations

from dataclasses import dataclass

from flycc.contracts.sdpa import SdpaBackwardProblem, SdpaDtype
from flycc.contracts.sizes import Size
from flycc.kernels.attention.backward_config import BackwardConfig
from flycc.kernels.attention.features import Features

#: Elements of 16 bytes.
_VECTOR = 8


@dataclass(frozen=True, slots=True)
class BackwardVariant:
    """`ragged_*` say that a row may end inside of 16 bytes; `align_out` as in the problem."""

    dtype: SdpaDtype
    features: Features
    ragged_head: bool
    ragged_value: bool
    align_out: int
    config: BackwardConfig

    @classmethod
    def of(cls, problem: SdpaBackwardProblem, config: BackwardConfig) -> BackwardVariant:
        forward = problem.forward
        delta = config.what == "delta"
        return cls(
            dtype=forward.dtype,
            features=Features() if delta else Features.of(forward),
            ragged_head=not delta and _ragged(forward.head_dim),
            ragged_value=_ragged(forward.value_dim),
            align_out=16 if delta else forward.align_out,
            config=config,
        )

    @property
    def symbol(self) -> str:
        ragged = "".join(f"_{name}" for name in ("ragged_head", "ragged_value") if getattr(self, name))
        return f"sdpa_{self.config}_{self.dtype}{self.features}{ragged}_align{self.align_out}"


def _ragged(size: Size) -> bool:
    return not isinstance(size, int) or size % _VECTOR != 0
