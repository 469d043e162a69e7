"""flycc: a torch.compile backend for AMD MI350 GPUs (gfx950).

`torch.compile(model, backend="flycc")` needs no import of this package. What is here for users:
`flycc.explain(fn, *inputs)`, `flycc.forget_weights()`, `flycc.eager` and `flycc.errors`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from flycc import eager as eager
    from flycc import errors as errors
    from flycc.explanation import explain as explain
    from flycc.runtime.kept import forget_weights as forget_weights

__all__ = ["__version__", "eager", "errors", "explain", "forget_weights"]


def __getattr__(name: str) -> Any:
    # Lazy, because flycc-opt and the passes import this package and must start without torch.
    if name == "explain":
        # The module cannot share the function's name: importing it would put the module in the function's place.
        return import_module("flycc.explanation").explain
    if name == "forget_weights":
        return import_module("flycc.runtime.kept").forget_weights
    if name in ("eager", "errors"):
        return import_module(f"flycc.{name}")
    raise AttributeError(f"module 'flycc' has no attribute {name!r}")
