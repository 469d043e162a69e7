"""`flycc.explain`: what became of every candidate op of a model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from flycc.backend import flycc_backend
from flycc.record import Record, collect


def explain(
    fn: Callable[..., Any], *inputs: Any, options: dict[str, Any] | None = None, **kwargs: Any
) -> Record:
    """Compile `fn` with flycc for `inputs`, run it once, and say what became of every candidate op.

    Args:
        fn: a function or module, as for `torch.compile`.
        inputs, kwargs: its arguments.
        options: flycc's options, as for `torch.compile(..., options=...)`.

    Returns the `Record`; print it with `flycc explain`, or take `record.to_json()`.
    """
    # What `torch.compile` returned holds what it was given; that is compiled afresh.
    original = getattr(fn, "_orig_mod", None) or getattr(fn, "_torchdynamo_orig_callable", fn)
    # A backend object of its own makes Dynamo compile again what it compiled before, which counts as recompiling.
    backend = functools.partial(flycc_backend, options=options)
    with (
        collect() as record,
        torch._dynamo.config.patch(recompile_limit=2**31, accumulated_recompile_limit=2**31),
    ):
        torch.compile(original, backend=backend)(*inputs, **kwargs)
    return record
