"""Calls that were left to PyTorch at run time: one warning for each reason, and listeners that count them all."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flycc.contracts import FlyccError, Reason

_listeners: list[Callable[[Reason], None]] = []
_warned: set[str] = set()
_policy = threading.local()


@contextmanager
def listening(listener: Callable[[Reason], None]) -> Iterator[None]:
    """Call `listener` with the reason of every refusal while the block runs."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def strict() -> Iterator[None]:
    """Inside the block, on this thread, a refusal is a `FlyccError`."""
    before = getattr(_policy, "strict", False)
    _policy.strict = True
    try:
        yield
    finally:
        _policy.strict = before


def is_answer(family: str, reason: Reason) -> bool:
    """Whether `reason` says that a family's kernels do not cover a call; anything else is a failure."""
    return reason.code.startswith(f"{family}.") and reason.code != f"{family}.internal"


def refuse(op: str, error: Exception) -> None:
    """Note that a call of `op` goes to PyTorch because of `error`; raises it where the policy is strict."""
    if isinstance(error, FlyccError):
        reason = error.reason
    else:
        reason = Reason(
            f"{op}.internal", f"{type(error).__name__} in flycc: {' '.join(str(error).split())[:300]}"
        )
    if getattr(_policy, "strict", False):
        raise error if isinstance(error, FlyccError) else FlyccError(reason) from error
    for listener in list(_listeners):
        listener(reason)
    warn_once(f"a call of {op}", reason)


def warn_once(what: str, reason: Reason) -> None:
    """One warning for each reason code that `what` is left to PyTorch."""
    if reason.code not in _warned:
        _warned.add(reason.code)
        text = f"flycc leaves {what} to PyTorch: {reason}"
        warnings.warn(text, RuntimeWarning, stacklevel=_level_of_model())


def _level_of_model() -> int:
    """How far above its caller the first frame is that is neither flycc's, PyTorch's nor made by it: a model's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_inside(frame.f_globals.get("__name__", "torch")):
        frame, level = frame.f_back, level + 1
    return level


def _is_inside(module: str) -> bool:
    return module.partition(".")[0] in ("flycc", "torch")
