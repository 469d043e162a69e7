"""flycc's kernels in eager mode: ATen operators overridden, by name, until they are given back.

    flycc.eager.enable()                       # all of OPS, on the device that flycc runs on
    with flycc.eager.enabled("topk"): ...      # one, for a block
    print(flycc.eager.status())

A call that no kernel serves has ATen's result, error and all, and is counted with its reason. What is enabled holds
for the whole process, all its threads. As for any kernel registered with PyTorch, no other thread may be calling
the operators while they are enabled or disabled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

import flycc.runtime.ops  # noqa: F401  defines torch.ops.flycc
from flycc.contracts import FlyccError, Reason
from flycc.eager import rms_norm, topk
from flycc.eager.calls import Calls
from flycc.eager.overrides import Overrides
from flycc.eager.status import OpStatus, Status
from flycc.runtime.devices import device_for

__all__ = ["OPS", "OpStatus", "Status", "disable", "enable", "enabled", "status"]


@dataclass(frozen=True, slots=True)
class _Op:
    """What puts an operator's overrides in place, and the calls that it counts."""

    install: Callable[[Overrides], None]
    calls: tuple[Calls, ...]


_TABLE = {
    "rms_norm": _Op(rms_norm.install, (rms_norm.CALLS, rms_norm.BACKWARD_CALLS)),
    "topk": _Op(topk.install, (topk.CALLS,)),
}
#: The operators that can be enabled.
OPS = tuple(_TABLE)

#: Device type -> the dispatch key of its kernels; ROCm's tensors have CUDA's.
_KEYS = {"cpu": "CPU", "cuda": "CUDA"}

_lock = threading.RLock()


@dataclass(slots=True)
class _Held:
    """Overrides in place, how many blocks want them, and whether `enable` does: then none of these removes them."""

    overrides: Overrides
    blocks: int = 0
    kept: bool = False


#: What is in place, by (op, device type).
_installed: dict[tuple[str, str], _Held] = {}


def enable(ops: str | Iterable[str] | None = None, *, device: torch.device | str | None = None) -> None:
    """Let flycc's kernels serve calls of `ops`; those that are enabled already stay so.

    Args:
        ops: names in `OPS`; by default all.
        device: where the tensors are: "cpu" is served by the emulated gfx950, "cuda" by ROCm GPUs. By default
            "cuda" on a PyTorch for ROCm that sees a GPU, else "cpu".

    Raises `FlyccError` for an operator that is not in `OPS`, or a device that runs no kernels.
    """
    kind = _device(device)
    names = _names(ops)
    with _lock:
        for name in names:
            _hold(name, kind).kept = True


def disable(ops: str | Iterable[str] | None = None, *, device: torch.device | str | None = None) -> None:
    """Give `ops` (by default all) back to ATen on `device` (by default every one), even inside `enabled` blocks."""
    names = _names(ops)
    kind = None if device is None else torch.device(device).type
    with _lock:
        for name, where in list(_installed):
            if name in names and kind in (None, where):
                _remove(name, where)


@contextmanager
def enabled(*ops: str, device: torch.device | str | None = None) -> Iterator[None]:
    """`enable` for a block, without arguments all of `OPS`.

    After it those stay enabled that `enable` or another block, of any thread, still wants.
    """
    kind = _device(device)
    names = dict.fromkeys(_names(ops or None))
    with ExitStack() as block:
        for name in names:
            block.enter_context(_held(name, kind))
        yield


def status() -> Status:
    """What is enabled, and what became of the calls that were made while it was."""
    with _lock:
        installed = list(_installed)
    return Status(
        tuple(
            OpStatus(
                calls.name,
                tuple(where for op, where in installed if op == name),
                calls.served.value(),
                calls.refused(),
            )
            for name, entry in _TABLE.items()
            for calls in entry.calls
        )
    )


@contextmanager
def _held(name: str, kind: str) -> Iterator[None]:
    with _lock:
        held = _hold(name, kind)
        held.blocks += 1
    try:
        yield
    finally:
        with _lock:
            held.blocks -= 1
            # `disable` may have removed it since, and something else put it back.
            if not held.blocks and not held.kept and _installed.get((name, kind)) is held:
                _remove(name, kind)


def _hold(name: str, kind: str) -> _Held:
    """The overrides of an operator on a device, put in place if they are not. `_lock` is held."""
    if (name, kind) not in _installed:
        overrides = Overrides(_KEYS[kind])
        try:
            _TABLE[name].install(overrides)
        except BaseException:
            overrides.remove()
            raise
        _installed[name, kind] = _Held(overrides)
    return _installed[name, kind]


def _remove(name: str, kind: str) -> None:
    """Give back an operator that is in place. `_lock` is held."""
    _installed.pop((name, kind)).overrides.remove()
    for calls in _TABLE[name].calls:
        calls.forget()


def _names(ops: str | Iterable[str] | None) -> tuple[str, ...]:
    names = OPS if ops is None else (ops,) if isinstance(ops, str) else tuple(ops)
    for name in names:
        if name not in _TABLE:
            raise FlyccError(Reason("eager.op", f"ops: {name!r} is not among {', '.join(OPS)}"))
    return names


def _device(device: torch.device | str | None) -> str:
    """The type of a device that runs kernels."""
    if device is None:
        device = "cuda" if torch.version.hip is not None and torch.cuda.is_available() else "cpu"
    found = torch.device(device)
    device_for(found)
    return found.type
