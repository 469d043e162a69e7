"""What a score_mod or mask_mod of flex_attention can mean, in the terms of `SdpaProblem`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Node

from flycc.frontend.fakes import example


@dataclass(frozen=True, slots=True)
class Linear:
    """query * q_idx + key * kv_idx + constant + the sum of numbers times their coefficients: all integers.

    `numbers` are nodes of the body that only the run knows, such as sizes.
    """

    query: int = 0
    key: int = 0
    constant: int = 0
    numbers: tuple[tuple[Node, int], ...] = ()

    def __add__(self, other: Linear) -> Linear:
        numbers = dict(self.numbers)
        for node, coefficient in other.numbers:
            numbers[node] = numbers.get(node, 0) + coefficient
        return Linear(
            self.query + other.query,
            self.key + other.key,
            self.constant + other.constant,
            tuple((node, coefficient) for node, coefficient in numbers.items() if coefficient),
        )

    def __mul__(self, factor: int) -> Linear:
        numbers = tuple((node, factor * coefficient) for node, coefficient in self.numbers if factor)
        return Linear(factor * self.query, factor * self.key, factor * self.constant, numbers)

    def __neg__(self) -> Linear:
        return self * -1

    @property
    def is_number(self) -> bool:
        """Whether it is the same for all queries and keys."""
        return not self.query and not self.key


@dataclass(frozen=True, slots=True)
class Magnitude:
    """The absolute value of `of`."""

    of: Linear


@dataclass(frozen=True, slots=True)
class Sloped:
    """factor * slope * distance, where `slope` depends on nothing but the head; None is 1."""

    distance: Linear | Magnitude
    slope: Expression | None = None
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Band:
    """kv_idx - q_idx is at least `lower` and at most `upper`: each is a number, or None."""

    lower: Linear | None
    upper: Linear | None


@dataclass(frozen=True, slots=True)
class SameDocument:
    """Integers of [batch, queries] and of [batch, keys] are equal."""

    query: Expression
    key: Expression


@dataclass(frozen=True, slots=True)
class Loaded:
    """Bools of which nothing else is known: a mask in memory."""

    of: Expression
    negated: bool = False


Condition = Band | SameDocument | Loaded


@dataclass(frozen=True, slots=True)
class Seen:
    """Bools that are true where all conditions hold."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Hiding:
    """0 where `seen` is true, else -inf."""

    seen: Seen


Form = Linear | Magnitude | Sloped | Seen | Hiding | float


@dataclass(frozen=True, slots=True)
class Expression:
    """What a body computes without the score: a node of it, or a constant.

    `uses` says of which of the numbers of batch, head, query and key it is a function, by the names "b", "h", "q_idx"
    and "kv_idx"; `captured` are the captured tensors that it reads.
    """

    source: Node | bool | int | float
    uses: frozenset[str] = frozenset()
    captured: frozenset[Node] = frozenset()
    form: Form | None = None

    @property
    def dtype(self) -> torch.dtype | None:
        """The type of a tensor; None for numbers."""
        value = example(self.source) if isinstance(self.source, Node) else self.source
        return value.dtype if isinstance(value, Tensor) else None


@dataclass(frozen=True, slots=True)
class Score:
    """factor * score, then amplitude * tanh of that if `capped`, then biases by their signs, then what hides."""

    factor: float = 1.0
    capped: bool = False
    amplitude: float = 1.0
    biases: tuple[tuple[Expression, int], ...] = ()
    seen: tuple[Condition, ...] = ()

    @property
    def is_product(self) -> bool:
        """Whether nothing but factors and a cap has been applied."""
        return not self.biases and not self.seen

    @property
    def scale(self) -> float:
        """What the product of query and key is multiplied by, as `SdpaProblem` has it: in front of the softcap."""
        return self.factor * self.amplitude

    @property
    def softcap(self) -> float:
        """0 without."""
        return self.amplitude if self.capped else 0.0
