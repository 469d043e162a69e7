"""Who chooses configurations: a tuner, if one is installed, else the kernels' own rules."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

from flycc.contracts import Problem, Reason

#: A tuned configuration for a problem, or None where it has none.
Provider = Callable[[Any], Any]

#: Goes up whenever another configuration may be chosen than before.
_generations = itertools.count()
_generation = next(_generations)

_providers: list[Provider] = []
#: Those that raised something: the user was told.
_failed: set[Provider] = set()


def generation() -> int:
    """A number that is another one whenever `choose` may answer differently than before."""
    return _generation


def changed() -> None:
    """To be called by a provider that may answer differently from now on."""
    global _generation
    _generation = next(_generations)


def install(provider: Provider) -> None:
    """Ask `provider` before those that are there already. It may be asked at any launch, so it must be quick; what it
    answers may be kept until it calls `changed`."""
    if provider not in _providers:
        _providers.insert(0, provider)
        changed()


def remove(provider: Provider) -> None:
    """Ask it no more."""
    _providers.remove(provider)
    changed()


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
