"""Values that are kept with the tensor they were computed from, for as long as it holds what it held then."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

Value = TypeVar("Value")

#: Every `Kept` of this process.
_all: list[Kept[Any]] = []


class Kept(Generic[Value]):
    """Values by tensor and key, made again after the tensor was written to, and freed with the tensor's memory.

    A write is what PyTorch counts as one (`Tensor._version`): in-place operators, `load_state_dict`; the step of an
    optimizer, fused ones too, which count none; or other memory, sizes or strides, as by an assignment to `.data`. What
    is written through `.data` PyTorch counts for the tensor that `.data` returns alone: it is not seen here, and
    `forget_weights` is for that.
    """

    def __init__(self) -> None:
        # By storage, not by tensor: torch.utils.swap_tensors refuses tensors that are weakly referenced.
        self._by_storage: dict[int, dict[Hashable, tuple[Hashable, Value]]] = {}
        _all.append(self)
        if len(_all) == 1:
            register_optimizer_step_post_hook(_forget_parameters)

    def get(self, tensor: Tensor, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of `tensor` under `key`: `make()`, if there is none of what the tensor holds now.

        PyTorch counts no writes to tensors made in inference mode, so theirs are made for every call.
        """
        if tensor.is_inference():
            return make()
        storage = tensor.untyped_storage()
        values = self._by_storage.get(storage._cdata)
        if values is None:
            values = self._by_storage[storage._cdata] = {}
            weakref.finalize(storage, self._by_storage.pop, storage._cdata, None).atexit = False
        # Tensors of the same memory may count their writes apart: each has values of its own.
        key = (key, id(tensor))
        state = (
            tensor._version,
            tensor.data_ptr(),
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            tensor.is_neg(),
            tensor.is_conj(),
        )
        found = values.get(key)
        if found is not None and found[0] == state:
            return found[1]
        value = make()
        # With the state from before `make`: what another thread wrote meanwhile shows as a write after it.
        values[key] = (state, value)
        return value

    def forget(self, storage: torch.UntypedStorage | None = None) -> None:
        """Drop what is kept of tensors in `storage`, or of all."""
        for values in (
            [*self._by_storage.values()] if storage is None else [self._by_storage.get(storage._cdata)]
        ):
            if values is not None:
                values.clear()


def forget_weights() -> None:
    """Have all weights quantised again when they are used next.

    To be called after writes that PyTorch does not count: those through `.data` (`w.data += delta`, as some merge LoRA
    weights or average them), through NumPy, or by kernels of one's own.
    """
    for kept in _all:
        kept.forget()


def _forget_parameters(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for kept in _all:
                kept.forget(parameter.untyped_storage())
