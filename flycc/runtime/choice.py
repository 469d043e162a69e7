"""Who chooses configurations: a tuner, if one is installed, else the kernels' own rules."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from flycc.contracts import Problem, Reason

#: A tuned configuration for a problem, or None where it has none.
Provider = Callable[[Any], Any]

_providers: list[Provider] = []
#: Those that raised something: the user was told.
_failed: set[Provider] = set()


def install(provider: Provider) -> None:
    """Ask `provider` before those that are there already. It is asked at every launch, so it must be quick."""
    if provider not in _providers:
        _providers.insert(0, provider)


def remove(provider: Provider) -> None:
    """Ask it no more."""
    _providers.remove(provider)


def choose(problem: Problem, own: Callable[[Any], Any]) -> Any | Reason:
    """The configuration to run `problem` with: a tuned one that computes it, else what `own(problem)` says.

    What a provider raises is a warning, once: a model never breaks because of a tuner.
    """
    for provider in _providers:
        try:
            config = provider(problem)
            if config is not None and config.is_valid(problem) is None:
                return config
        except Exception as error:
            if provider not in _failed:
                _failed.add(provider)
                sentence = f"{problem}: {type(error).__name__}: {str(error)[:200]}"
                warnings.warn(f"flycc: a tuner failed: {sentence}", RuntimeWarning, stacklevel=2)
    return own(problem)
