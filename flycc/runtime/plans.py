"""Launches that are repeated: what a call's tensors are decides all of a launch but its addresses, so it is kept.

A `Plan` is kept for what `key` says of a call: the device, shapes, strides, types and alignments of its tensors, the
op's other arguments, and which configurations are chosen (`choice.generation`). Only devices whose kernels take the
tensors' own addresses have plans.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flycc.kernels.common.spec import Launch
from flycc.runtime import choice, workspace
from flycc.runtime.device import Device, ReadyLaunch
from flycc.runtime.loading import Loaded

#: Plans of an op that are kept at most; at least half as many of those used last are. A model may meet ever new sizes.
KEPT = 4096
#: Kernels tell addresses apart by their alignment up to this.
_ALIGN = 16
#: Arguments of kernels that need workspace.
_WORKSPACE = ("partial", "arrived")

Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A launch that is ready but for its pointers, and how much of `workspace` it needs: 0 for nothing."""

    launch: ReadyLaunch
    sums: int = 0
    counters: int = 0

    def __call__(self, device: Device, place: torch.device, *pointers: int) -> None:
        """Launch with these pointers and, where that is needed, workspace on `place` after them."""
        if self.sums:
            partial = workspace.sums(self.sums, place)
            with workspace.counters(self.counters, device, place) as arrived:
                self.launch(*pointers, partial.data_ptr(), arrived.data_ptr())
        else:
            self.launch(*pointers)


@dataclass(frozen=True, slots=True)
class Plan:
    """`results` are the shape and type of each result, whose addresses are multiples of 16."""

    results: tuple[tuple[torch.Size, torch.dtype], ...]
    repeat: Repeat

    def empty(self, place: torch.device) -> tuple[list[Tensor], list[int]] | None:
        """The uninitialised results and their addresses, or None where PyTorch aligned one to less than the plan's."""
        results, addresses = [], []
        for shape, dtype in self.results:
            result = torch.empty(shape, dtype=dtype, device=place)
            address = result.data_ptr()
            if address % _ALIGN:
                return None
            results.append(result)
            addresses.append(address)
        return results, addresses


class Plans:
    """The plans of one op. Threads share them: each step below leaves the two in a usable state."""

    def __init__(self) -> None:
        #: Those found or kept since `_before` were set aside.
        self._recent: dict[Key, Plan] = {}
        self._before: dict[Key, Plan] = {}

    def __len__(self) -> int:
        return len(self._recent.keys() | self._before.keys())

    def find(self, key: Key) -> Plan | None:
        """The plan of a call that `key` describes, if there is one."""
        plan = self._recent.get(key)
        if plan is None and (plan := self._before.get(key)) is not None:
            self._add(key, plan)
        return plan

    def keep(self, key: Key, results: Sequence[Tensor], repeat: Repeat | None) -> None:
        """Remember how results like these come about, unless `repeat` is None."""
        if repeat is not None and not any(result.data_ptr() % _ALIGN for result in results):
            self._add(key, Plan(tuple((result.shape, result.dtype) for result in results), repeat))

    def _add(self, key: Key, plan: Plan) -> None:
        if len(self._recent) >= KEPT // 2:  # what was not used since the last time goes
            self._before, self._recent = self._recent, {}
        self._recent[key] = plan


def key(device: Device, tensors: Sequence[Tensor | None], arguments: Key) -> tuple[Key, list[int]]:
    """What decides a launch, and the addresses of `tensors` (0 for none). `arguments` are the op's other ones."""
    parts: list[Hashable] = [device, choice.generation(), arguments]
    addresses = []
    for tensor in tensors:
        if tensor is None:
            parts.append(None)
            addresses.append(0)
        else:
            address = tensor.data_ptr()
            parts.append((tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device(), address % _ALIGN))
            addresses.append(address)
    return tuple(parts), addresses


def repeat(
    device: Device,
    kernel: Loaded,
    geometry: Launch,
    kernarg: bytes,
    pointers: Sequence[str],
    sums: int = 0,
    counters: int = 0,
) -> Repeat | None:
    """How to make a launch again with other `pointers`, which are names of the kernel's arguments, in its order, before
    those of the workspace; None where the device has no such launches."""
    names = (*pointers, *_WORKSPACE[: 2 * (sums > 0)])
    offsets = [kernel.spec.kernarg.offset(name) for name in names]
    launch = device.ready(kernel.handle, geometry.grid, geometry.block, kernarg, offsets)
    return None if launch is None else Repeat(launch, sums, counters)
