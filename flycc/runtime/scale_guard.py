"""`torch.ops.flycc.scale_guard`: whether two operands' scales are such that a product may run in its faster form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from flycc.runtime.kept import Kept
from flycc.runtime.library import LIBRARY
from flycc.scales.formats import BIAS, NAN_BYTE
from flycc.scales.guards import Bounds
from flycc.scales.ranges import Range

LIBRARY.define("scale_guard(Tensor? a, Tensor? b, int[] bounds, int[] blocks, str product) -> Tensor")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a guard found for a product of a graph: ranges of scale bytes, how far those of a result spread, and
    which bounds that missed."""

    product: str
    a: Range
    b: Range
    spread: int
    missed: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether all bounds are kept."""
        return not self.missed


_listeners: list[Callable[[Verdict], None]] = []
#: The ranges of weights' scales, and their spread within a row, by the scales in a row.
_KEPT: Kept[tuple[Range, int]] = Kept()


@contextmanager
def listening(listener: Callable[[Verdict], None]) -> Iterator[None]:
    """Call `listener` with every guard's verdict while the block runs."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def scale_guard(
    a: Tensor | None, b: Tensor | None, bounds: Sequence[int], blocks: Sequence[int], product: str
) -> Tensor:
    """Whether the scales of a and b are within `bounds`: a bool tensor [] in the CPU's memory, where it is asked.

    Args:
        a, b: a range, int32 [3] as `flycc::scale_range` has it; or a weight's scales, float8_e8m0fnu [...] or
            the same bytes as uint8, whose range is read once and kept until they are written to (see `Kept`); or None
            for an operand without scales, whose bytes count as 127.
        bounds: the fields of `flycc.scales.guards.Bounds`.
        blocks: of a and of b, how many scales in a row belong to one result; 0 is not known.
        product: what verdicts are counted by: the number of the graph, a dot, and the name of the product's node.

    Ranges that a GPU computes are waited for.
    """
    _checked(a, b, bounds, blocks)
    (range_a, spread_a), (range_b, spread_b) = map(_extent, (a, b), blocks)
    spread = spread_a + spread_b
    missed = Bounds(*bounds).missed(range_a, range_b, spread)
    verdict = Verdict(product, range_a, range_b, spread, missed)
    for listener in list(_listeners):
        listener(verdict)
    return torch.tensor(verdict.holds)


def _extent(scales: Tensor | None, blocks: int) -> tuple[Range, int]:
    """The range of scales, and how far those of one row lie apart at most."""
    if scales is None:
        return Range(BIAS, BIAS), 0
    if scales.dtype == torch.int32:
        found = _numbers(scales)
        return found, 0 if blocks == 1 else found.hi - found.lo
    return _KEPT.get(scales, blocks, lambda: _extent_of_weight(scales, blocks))


def _extent_of_weight(scales: Tensor, blocks: int) -> tuple[Range, int]:
    found = _numbers(torch.ops.flycc.scale_range(scales.view(torch.float8_e8m0fnu)))
    if blocks in (0, 1) or not scales.numel():
        return found, 0 if blocks == 1 else found.hi - found.lo
    rows = scales.view(torch.uint8).reshape(-1, blocks)
    nan = rows == NAN_BYTE
    spread = (
        rows.masked_fill(nan, 0).amax(1).int() - rows.amin(1)
    ).amax()  # the least byte is no NaN, or all are
    return found, max(int(spread), 0)


def _numbers(range_: Tensor) -> Range:
    low, high, nan = range_.tolist()
    return Range(low, high, bool(nan))


def _checked(a: Tensor | None, b: Tensor | None, bounds: Sequence[int], blocks: Sequence[int]) -> None:
    for name, scales in (("a", a), ("b", b)):
        if scales is None or scales.dtype in (torch.float8_e8m0fnu, torch.uint8):
            continue
        if scales.dtype != torch.int32 or list(scales.shape) != [3]:
            given = f"{scales.dtype} {list(scales.shape)}"
            known = "a range, int32 [3], or scales of float8_e8m0fnu are accepted"
            raise RuntimeError(f"flycc::scale_guard: {name} is {given}; {known}")
    count = len(Bounds.__slots__)
    for name, numbers, accepted in (("bounds", bounds, count), ("blocks", blocks, 2)):
        if len(numbers) != accepted:
            raise RuntimeError(
                f"flycc::scale_guard: {name} are {len(numbers)} numbers; {accepted} are accepted"
            )


def _scale_guard_fake(
    a: Tensor | None, b: Tensor | None, bounds: Sequence[int], blocks: Sequence[int], product: str
) -> Tensor:
    _checked(a, b, bounds, blocks)
    return torch.empty((), dtype=torch.bool, device="cpu")


LIBRARY.impl("scale_guard", scale_guard, "CompositeExplicitAutograd")
torch.library.register_fake("flycc::scale_guard", _scale_guard_fake, lib=LIBRARY)
