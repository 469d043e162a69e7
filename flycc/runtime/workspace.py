"""Memory that a launch needs beside its operands."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from flycc.runtime.device import Device

#: The capture and the counters of each stream that had launches with counters.
_counters: WeakKeyDictionary[Device, dict[int, tuple[int, Tensor]]] = WeakKeyDictionary()
#: Counters that are made at a time, so that few launches need more than those before.
_AT_LEAST = 1 << 14


def sums(count: int, place: torch.device) -> Tensor:
    """float32 [count] of any values: PyTorch's allocator gives it to others only after the launch, in stream order."""
    return torch.empty(count, dtype=torch.float32, device=place)


def counters(count: int, device: Device, place: torch.device) -> Tensor:
    """int32 [>= count] of zeros, for a launch that leaves them zero.

    The launches of a stream come one after another, so they share counters. A graph that is captured has counters of
    its own, made inside it: it may be replayed on any stream, beside others. They live until the capture is over, and
    after that belong to the graph's memory pool, as all that is freed during a capture; each replay zeroes them first.
    """
    stream, capture = device.queue()
    of_streams = _counters.setdefault(device, {})
    known = of_streams.get(stream)
    if known is None or known[0] != capture or known[1].numel() < count:
        known = capture, torch.zeros(max(count, _AT_LEAST), dtype=torch.int32, device=place)
        of_streams[stream] = known
    return known[1]
