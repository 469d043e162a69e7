"""Who chooses configurations: a tuner, if one is installed, else the kernels' own rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flycc.contracts import Problem, Reason

#: A tuned configuration for a problem, or None where it has none.
Provider = Callable[[Any], Any]

_providers: list[Provider] = []


def install(provider: Provider) -> None:
    """Ask `provider` first from now on. It is asked at every launch, so it must be quick."""
    if provider not in _providers:
        _providers.append(provider)


def remove(provider: Provider) -> None:
    """Ask it no more."""
    _providers.remove(provider)


def choose(problem: Problem, own: Callable[[Any], Any]) -> Any | Reason:
    """The configuration to run `problem` with: a tuned one that computes it, else what `own(problem)` says."""
    for provider in _providers:
        config = provider(problem)
        if config is not None and config.is_valid(problem) is None:
            return config
    return own(problem)
