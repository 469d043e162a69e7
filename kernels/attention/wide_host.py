"""Heads wider than 256: the binary of a problem, and how it is launched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flycc.contracts import Reason
from flycc.contracts.sdpa import MAX_HEAD_DIM, SdpaDtype, SdpaProblem
from flycc.contracts.sizes import Size
from flycc.kernels.attention.features import Features
from flycc.kernels.attention.kernarg import FORWARD
from flycc.kernels.common.machine import WAVE_SIZE, XCDS
from flycc.kernels.common.spec import KernelSpec, Launch

#: Waves of a workgroup and the queries that it has.
WAVES, QUERIES = 8, 128
#: Heads are padded to multiples of this: half a head, a wave's share, is of whole slices of 64 elements.
_STEP = 128
#: Elements of 16 bytes.
_VECTOR = 8

_HERE = Path(__file__).parent
_SOURCES = (
    *(
        _HERE / f"{name}.py"
        for name in ("dropout", "features", "kernarg", "mfma", "scores", "tiles", "wide", "wide_host")
    ),
    *(
        _HERE.parent / "common" / f"{name}.py"
        for name in ("arguments", "buffers", "machine", "vectors", "wave")
    ),
)


@dataclass(frozen=True, slots=True)
class WideVariant:
    """What a binary is specialised on: everything but sizes and strides.

    Heads are padded to `head_dim` and `value_dim`; `ragged` says that rows of Q and K may end inside of 16 bytes.
    `store` neighbours of out, of which all exist or none, are stored together.
    """

    dtype: SdpaDtype
    features: Features
    head_dim: int
    value_dim: int
    ragged: bool
    store: int
    lse: bool

    @classmethod
    def of(cls, problem: SdpaProblem) -> WideVariant:
        value_dim = problem.value_dim
        store = min(4, problem.align_out // 2)
        while store > 1 and not (isinstance(value_dim, int) and value_dim % store == 0):
            store //= 2
        return cls(
            dtype=problem.dtype,
            features=Features.of(problem),
            head_dim=_padded(problem.head_dim),
            value_dim=_padded(value_dim),
            ragged=not (isinstance(problem.head_dim, int) and problem.head_dim % _VECTOR == 0),
            store=store,
            lse=problem.lse,
        )

    @property
    def symbol(self) -> str:
        flags = "".join(f"_{name}" for name in ("ragged", "lse") if getattr(self, name))
        shape = f"{self.head_dim}x{self.value_dim}"
        return f"sdpa_wide_{self.dtype}_{shape}{self.features}{flags}_store{self.store}"


def wide_refusal(problem: SdpaProblem) -> Reason | None:
    """Why the kernel does not compute `problem`, if so: it takes all heads up to `MAX_HEAD_DIM`."""
    for name in ("head_dim", "value_dim"):
        dim = getattr(problem, name)
        if isinstance(dim, int) and not 0 < dim <= MAX_HEAD_DIM:
            return Reason(
                "sdpa.dims", f"{name} is {dim}: heads of 1 to {MAX_HEAD_DIM} elements have a kernel"
            )
    return None


def wide_kernel(problem: SdpaProblem) -> KernelSpec:
    """The binary that computes `problem`; problems that differ in sizes other than head dims share it.

    Raises ValueError for what `wide_refusal` refuses.
    """
    if reason := wide_refusal(problem):
        raise ValueError(f"{problem}: {reason.sentence}")
    variant = WideVariant.of(problem)

    def build() -> tuple[Any, tuple[Any, ...]]:
        from flycc.kernels.attention.wide import build

        return build(variant)

    return KernelSpec("sdpa", variant.symbol, repr(variant), FORWARD, _SOURCES, build)


def wide_launch(problem: SdpaProblem) -> Launch:
    """Launch geometry: a workgroup for each 128 queries of a head, as many for each XCD."""
    workgroups = problem.batch * problem.heads * (-(-problem.queries // QUERIES))  # type: ignore[operator]
    return Launch((-(-workgroups // XCDS) * XCDS, 1, 1), (WAVES * WAVE_SIZE, 1, 1))


def _padded(dim: Size) -> int:
    return -(-dim // _STEP) * _STEP if isinstance(dim, int) else MAX_HEAD_DIM
