"""Calls of operators whose launches fail, so that PyTorch computes them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from types import ModuleType

import pytest

from flycc.contracts import FlyccError, Reason
from flycc.runtime import refusals


@contextlib.contextmanager
def by_pytorch(runtime: ModuleType) -> Iterator[None]:
    """No launch of `runtime` inside the block succeeds; one at least is tried."""

    def failing_launch(*_: object) -> None:
        raise FlyccError(Reason("device.launch", "planted"))

    heard: list[Reason] = []
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), refusals.listening(heard.append):
        patch.setattr(runtime, "launch", failing_launch)
        patch.setattr(refusals._policy, "strict", False)
        warnings.simplefilter("ignore")
        yield
    assert {reason.code for reason in heard} == {"device.launch"}
