"""Kernels put over ATen's in PyTorch's dispatcher, and taken off again without a trace."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Kernel(Protocol):
    """What the dispatcher ran before: `torch.library.get_kernel`'s result."""

    def call_boxed(self, keyset: torch.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        """Run it, below none of its own dispatch keys but those in `keyset`."""


class Overrides:
    """The overrides of one operator of `flycc.eager` for tensors whose backend has dispatch key `key`.

    torch.backends.python_native could install these too, but only at backend keys, where an override of the
    composite aten::rms_norm would break autograd; and it asks a predicate, which can give no reason, and then goes
    through the dispatcher a second time.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self._library = torch.library.Library("aten", "IMPL")

    def original(self, name: str, key: str | None = None) -> Kernel:
        """What aten::`name` runs now for `key`, by default the backend's."""
        return torch.library.get_kernel(f"aten::{name}", key or self.key)

    def has_kernel(self, name: str) -> bool:
        """Whether aten::`name` runs anything on the backend."""
        return torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{name}", self.key)

    def put(self, name: str, kernel: Callable[..., Any], key: str | None = None) -> None:
        """Let aten::`name` run `kernel(keyset, *args)` for `key`, by default the backend's."""
        with warnings.catch_warnings():
            # The dispatcher warns of the first override in a process. This one is asked for.
            warnings.filterwarnings("ignore", message="Warning only once for all operators")
            self._library.impl(name, kernel, key or self.key, with_keyset=True)

    def remove(self) -> None:
        """Give every operator back what it ran before."""
        self._library._destroy()
