"""Values that are kept with the tensor they were computed from, for as long as it holds what it held then."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakTensorKeyDictionary

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """Values by tensor object and key, made again after the tensor was written to, and freed with the tensor.

    A write is what PyTorch counts as one (`Tensor._version`): in-place operators, optimizers, `load_state_dict`; or an
    assignment to `.data`. What is written through `.data` PyTorch counts for the tensor that `.data` returns alone:
    it is not seen here.
    """

    def __init__(self) -> None:
        self._by_tensor: Any = WeakTensorKeyDictionary()

    def get(self, tensor: Tensor, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of `tensor` under `key`: `make()`, if there is none of what the tensor holds now.

        PyTorch counts no writes to tensors made in inference mode, so theirs are made for every call.
        """
        if tensor.is_inference():
            return make()
        values = self._by_tensor.setdefault(tensor, {})
        found = values.get(key)
        storage = tensor.untyped_storage()
        if found is not None:
            version, kept_storage, value = found
            # As long as the weak reference lives, no other storage has the address.
            if version == tensor._version and kept_storage.cdata == storage._cdata:
                return value
        value = make()
        values[key] = (tensor._version, StorageWeakRef(storage), value)
        return value
