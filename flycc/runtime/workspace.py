"""Memory that a launch needs beside its operands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from flycc.runtime.device import Device

#: Counters of each stream that are zero, and that no launch is being made with.
_zeros: WeakKeyDictionary[Device, dict[int, list[Tensor]]] = WeakKeyDictionary()
#: Counters that are made at a time, so that few launches need more than those before.
_AT_LEAST = 1 << 14


def sums(count: int, place: torch.device) -> Tensor:
    """float32 [count] of any values: PyTorch's allocator gives it to others only after the launch, in stream order."""
    return torch.empty(count, dtype=torch.float32, device=place)


@contextmanager
def counters(count: int, device: Device, place: torch.device) -> Iterator[Tensor]:
    """int32 [>= count] of zeros, for a launch inside the block that leaves them zero.

    The launches of a stream come one after another, so they share counters, but only those of launches that ended
    well (on a GPU: were handed to it) are used again. They belong to nobody while the block runs: after an exception,
    an interrupt, or in the child of a fork meanwhile, they may not be zero, and are not found again.

    A launch in a graph that is captured has counters of its own, as the graph may be replayed on any stream, beside
    others: the graph zeroes them before each launch. Nothing here refers to them after the block, so they belong to the
    graph's memory pool alone.
    """
    stream, capture = device.queue()
    if capture:
        yield torch.zeros(count, dtype=torch.int32, device=place)
        return
    unused = _zeros.setdefault(device, {}).setdefault(stream, [])
    try:
        found = unused.pop()  # no other thread can get between
    except IndexError:
        found = None
    if found is None or found.numel() < count:
        found = torch.zeros(max(count, _AT_LEAST), dtype=torch.int32, device=place)
    yield found
    unused.append(found)
