"""The library that holds `torch.ops.flycc.*` as the runtime defines them."""

from __future__ import annotations

from typing import Any

import torch

#: Each family defines and implements its operators here, in its own file.
LIBRARY = torch.library.Library("flycc", "FRAGMENT")


def not_differentiable(name: str) -> None:
    """Have no result of `flycc::name` need a gradient, whatever is given to it, as with `torch.argmax`.

    Without that PyTorch would record the op for autograd, and lose the gradient with a warning.
    """
    op = getattr(torch.ops.flycc, name).default

    def below_autograd(*args: Any, **options: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args, **options)

    LIBRARY.impl(name, below_autograd, "Autograd")
