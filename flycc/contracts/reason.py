"""Why something was refused: the one currency of refusals in flycc."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """A short stable code for programs and a sentence for people.

    `code` is `<area>.<what>` in lower case with dashes, for example `gemm.dtype` or
    `import.higher-order-op`. `sentence` says what was seen and what would have been accepted.
    """

    code: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.code}: {self.sentence}"
