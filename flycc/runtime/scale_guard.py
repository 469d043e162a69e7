"""`torch.ops.flycc.scale_guard`: whether two operands' scales are such that a product may run in its faster form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from flycc.runtime.library import LIBRARY
from flycc.scales.formats import BIAS
from flycc.scales.guards import Bounds
from flycc.scales.ranges import Range

LIBRARY.define("scale_guard(Tensor? a, Tensor? b, int[] bounds, str product) -> Tensor")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a guard found: for which product of a graph, whether it holds, and the ranges of scale bytes it saw."""

    product: str
    holds: bool
    a: Range
    b: Range


_listeners: list[Callable[[Verdict], None]] = []
#: What was read of ranges in the memory of a GPU, with the version that was read: those of weights stay the same.
_read: WeakIdKeyDictionary = WeakIdKeyDictionary()


@contextmanager
def listening(listener: Callable[[Verdict], None]) -> Iterator[None]:
    """Call `listener` with every guard's verdict while the block runs."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def scale_guard(a: Tensor | None, b: Tensor | None, bounds: Sequence[int], product: str) -> Tensor:
    """Whether the scales of a and b are within `bounds`: a bool tensor [] in the CPU's memory, where it is asked.

    Args:
        a, b: int32 [3] as `flycc::scale_range` has it; None for an operand without scales, whose bytes count as 127.
        bounds: the fields of `flycc.scales.guards.Bounds`.
        product: the name that verdicts are counted by.

    Ranges that are on a GPU are waited for, and read once for each tensor and each time that it was written to.
    """
    _checked(a, b, bounds)
    ranges = tuple(map(_range, (a, b)))
    verdict = Verdict(product, Bounds(*bounds).holds(*ranges), *ranges)
    for listener in list(_listeners):
        listener(verdict)
    return torch.tensor(verdict.holds)


def _range(scales: Tensor | None) -> Range:
    if scales is None:
        return Range(BIAS, BIAS)
    if scales.is_cpu:
        return _numbers(scales)
    version, found = _read.get(scales, (None, None))
    if found is None or version != scales._version:
        found = _numbers(scales)
        _read[scales] = scales._version, found
    return found


def _numbers(scales: Tensor) -> Range:
    low, high, nan = scales.tolist()
    return Range(low, high, bool(nan))


def _checked(a: Tensor | None, b: Tensor | None, bounds: Sequence[int]) -> None:
    for name, scales in (("a", a), ("b", b)):
        if scales is not None and (scales.dtype != torch.int32 or list(scales.shape) != [3]):
            given = f"{scales.dtype} {list(scales.shape)}"
            raise RuntimeError(f"flycc::scale_guard: {name} is {given}; a range, int32 [3], is accepted")
    count = len(Bounds.__slots__)
    if len(bounds) != count:
        raise RuntimeError(f"flycc::scale_guard: bounds are {len(bounds)} numbers; {count} are accepted")


def _scale_guard_fake(a: Tensor | None, b: Tensor | None, bounds: Sequence[int], product: str) -> Tensor:
    _checked(a, b, bounds)
    return torch.empty((), dtype=torch.bool, device="cpu")


LIBRARY.impl("scale_guard", scale_guard, "CompositeExplicitAutograd")
torch.library.register_fake("flycc::scale_guard", _scale_guard_fake, lib=LIBRARY)
