"""Calls that are repeated: what a call's tensors are decides all of its launches but the addresses, so it is kept.

A plan is kept for the device, shapes, strides, types and alignments of a call's tensors, the op's other arguments, and
which configurations are chosen (`choice.generation`). Only devices whose kernels take the tensors' own addresses have
plans.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from flycc.runtime import choice, workspace
from flycc.runtime.device import Device, ReadyLaunch
from flycc.runtime.devices import device_for
from flycc.runtime.launching import Launched

#: Plans of an op that are kept at most; at least half as many of those used last are. A model may meet ever new sizes.
KEPT = 4096
#: Kernels tell addresses apart by their alignment up to this.
_ALIGN = 16
#: The kernels' argument that points to counters: they belong to a stream, not to a call.
_COUNTERS = "arrived"

Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """How to repeat a call.

    `made` are the shape (as arguments of `torch.empty`), type and place of each result and of what else launches need,
    whose addresses are multiples of 16. Each launch takes its pointers from among the addresses of the call's
    tensors, of those made, and of `counters` zeros, if they are not 0.
    """

    device: Device
    made: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]
    counters: int
    launches: tuple[tuple[ReadyLaunch, Callable[[Sequence[int]], tuple[int, ...]]], ...]

    def repeat(self, addresses: list[int]) -> list[Tensor] | None:
        """The tensors made, or None where PyTorch aligned one to less than the plan's.

        `addresses` are those of the call's tensors, and get more.
        """
        made = []
        for shape, options in self.made:
            tensor = torch.empty(*shape, **options)
            address = tensor.data_ptr()
            if address % _ALIGN:
                return None
            made.append(tensor)
            addresses.append(address)
        if self.counters:
            with workspace.counters(self.counters, self.device, made[0].device) as arrived:
                self._launch([*addresses, arrived.data_ptr()])
        else:
            self._launch(addresses)
        return made

    def _launch(self, addresses: list[int]) -> None:
        for launch, pointers in self.launches:
            launch(*pointers(addresses))


class Plans:
    """The plans of one op. Threads share them: each step below leaves the two in a usable state."""

    def __init__(self) -> None:
        #: Those found or kept since `_before` were set aside.
        self._recent: dict[Key, Plan] = {}
        self._before: dict[Key, Plan] = {}

    def __len__(self) -> int:
        return len(self._recent.keys() | self._before.keys())

    def repeat(self, tensors: Sequence[Tensor | None], arguments: Key) -> list[Tensor] | None:
        """Do what an earlier call did whose tensors were like these, the first of which is there, and whose other
        arguments were `arguments`. Returns the results and what else it makes, or None if the call has to be analysed.
        """
        try:
            plan, addresses = self.find(tensors, arguments)
            return None if plan is None else plan.repeat(addresses)
        except Exception:  # what it was will be said by the analysis
            return None

    def find(self, tensors: Sequence[Tensor | None], arguments: Key) -> tuple[Plan | None, list[int]]:
        """The plan of a call, if there is one, and the addresses that its `repeat` takes."""
        key, addresses = _key(device_for(tensors[0].device), tensors, arguments)  # type: ignore[union-attr]
        plan = self._recent.get(key)
        if plan is None and (plan := self._before.get(key)) is not None:
            self._add(key, plan)
        return plan, addresses

    def keep(
        self,
        given: Mapping[str, Tensor | None],
        arguments: Key,
        results: Sequence[Tensor],
        launched: Sequence[Launched],
    ) -> None:
        """Remember how a call made `results`, if that can be repeated.

        `given` are the call's tensors by the names of the kernels' arguments. Nothing is remembered where a kernel took
        something else for one of them, a copy for instance.
        """
        made, first = list(results), len(given)  # the addresses of those made follow those given
        places = {tensor.data_ptr(): index for index, tensor in enumerate(made, first) if tensor.numel()}
        counters = 0
        for one in launched:  # what they need beside the results
            for name, tensor in one.outputs.items():
                if name == _COUNTERS:
                    counters = max(counters, tensor.numel())
                elif tensor.data_ptr() not in places:
                    places[tensor.data_ptr()] = first + len(made)
                    made.append(tensor)
        order = list(given)

        def place(one: Launched, name: str) -> int | None:
            """Which address the pointer `name` of a launch is; None for one that a repetition does not know."""
            tensor, origin = {**one.inputs, **one.outputs}[name], given.get(name)
            if name == _COUNTERS:
                return first + len(made)
            if (index := places.get(tensor.data_ptr())) is not None:
                return index
            return (
                order.index(name) if origin is not None and origin.data_ptr() == tensor.data_ptr() else None
            )

        launches = []
        for one in launched:
            indices = [place(one, name) for name in one.pointers]
            ready = one.ready()
            if ready is None or None in indices:
                return
            launches.append((ready, itemgetter(*indices)))
        if launches and not any(address % _ALIGN for address in places):
            device = launched[0].device
            key, _ = _key(device, [*given.values()], arguments)
            empty = tuple((tuple(x.shape) or ((),), {"dtype": x.dtype, "device": x.device}) for x in made)
            self._add(key, Plan(device, empty, counters, tuple(launches)))

    def _add(self, key: Key, plan: Plan) -> None:
        if len(self._recent) >= KEPT // 2:  # what was not used since the last time goes
            self._before, self._recent = self._recent, {}
        self._recent[key] = plan


def _key(device: Device, tensors: Sequence[Tensor | None], arguments: Key) -> tuple[Key, list[int]]:
    """What decides the launches of a call, and the addresses of its tensors, 0 for none."""
    parts: list[Hashable] = [device, choice.generation(), arguments]
    addresses = []
    for tensor in tensors:
        if tensor is None:
            parts.append(None)
            addresses.append(0)
        else:
            address = tensor.data_ptr()
            parts += tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device(), address % _ALIGN
            addresses.append(address)
    return tuple(parts), addresses
