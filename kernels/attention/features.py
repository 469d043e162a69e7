"""What of attention a binary is specialised on besides types and sizes of heads: how products become scores."""

from __future__ import annotations

from dataclasses import dataclass

from flycc.contracts.sdpa import MaskKind, SdpaProblem

#: Bands go to kernels clamped to this, and no size is above it: places of queries and keys, and offsets of a number for
#: each, stay 32-bit integers.
BAND_LIMIT = (1 << 29) - 1


@dataclass(frozen=True, slots=True)
class Features:
    """The parts of `SdpaProblem`'s formula that a kernel has; what it has not costs nothing."""

    mask: MaskKind = "none"
    lower: bool = False
    upper: bool = False
    documents: bool = False
    alibi: bool = False
    softcap: bool = False
    dropout: bool = False

    @classmethod
    def of(cls, problem: SdpaProblem) -> Features:
        return cls(
            mask=problem.mask,
            lower=problem.lower,
            upper=problem.upper,
            documents=problem.documents,
            alibi=problem.alibi,
            softcap=problem.softcap,
            dropout=problem.dropout,
        )

    @property
    def adds(self) -> bool:
        """Whether the mask is of numbers that are added to scores."""
        return self.mask not in ("none", "bool")

    @property
    def linear(self) -> bool:
        """Whether a score is its product times the scale."""
        return not (self.softcap or self.alibi or self.adds)

    @property
    def hides(self) -> bool:
        """Whether any pair inside the band may be hidden."""
        return self.documents or self.mask == "bool"

    def __str__(self) -> str:
        """Part of a kernel's symbol: `_` and a word for each."""
        flags = ("lower", "upper", "documents", "alibi", "softcap", "dropout")
        chosen = [] if self.mask == "none" else [f"mask{self.mask}"]
        return "".join(f"_{name}" for name in chosen + [name for name in flags if getattr(self, name)])


def band(bound: int | None) -> int:
    """A `lower` or `upper` as kernels take it; 0 where there is none."""
    return 0 if bound is None else max(-BAND_LIMIT, min(bound, BAND_LIMIT))
