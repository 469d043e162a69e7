"""Sanitizers: observers that find what hardware hides. `launch(..., sanitize="all")` runs them."""

from __future__ import annotations

from collections.abc import Sequence

from flycc.emulator.observe import Observer
from flycc.emulator.sanitize.control import Control
from flycc.emulator.sanitize.finding import Finding, Findings, SanitizerError, Site
from flycc.emulator.sanitize.places import Alignment, Bounds
from flycc.emulator.sanitize.race import Races
from flycc.emulator.sanitize.uninitialized import Uninitialized
from flycc.emulator.sanitize.waits import Waits

#: Sanitizers by name, in the order in which they look at an instruction.
SANITIZERS = ("bounds", "align", "uninitialized", "wait", "race", "barrier", "runaway")


def selected(sanitize: str | Sequence[str]) -> frozenset[str]:
    """The names that "all", one name or several stand for. Raises ValueError for others."""
    names = (sanitize,) if isinstance(sanitize, str) else tuple(sanitize)
    if names == ("all",):
        return frozenset(SANITIZERS)
    unknown = set(names) - set(SANITIZERS)
    if unknown:
        raise ValueError(f'sanitize: got {sorted(unknown)}; "all" or some of {list(SANITIZERS)} are accepted')
    return frozenset(names)


def observers(names: frozenset[str], findings: Findings) -> tuple[Observer, ...]:
    """The observers that look for what `names` stand for."""
    single = {
        "bounds": Bounds,
        "align": Alignment,
        "uninitialized": Uninitialized,
        "wait": Waits,
        "race": Races,
    }
    made: list[Observer] = [single[name](findings) for name in SANITIZERS if name in names & single.keys()]
    if names & {"barrier", "runaway"}:
        made.append(Control(findings, names))
    return tuple(made)


__all__ = ["SANITIZERS", "Finding", "Findings", "SanitizerError", "Site", "observers", "selected"]
