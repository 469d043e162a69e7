"""What became of the calls of an ATen operator that eager mode overrides: counts, and the refusals it remembers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable
from typing import Any

from flycc.contracts import FlyccError, Reason
from flycc.runtime import refusals

#: Kinds of calls whose refusal one operator remembers; beyond that it starts anew.
REMEMBERED = 4096


class Tally:
    """A counter that threads bump without a lock: one call into C, which is atomic."""

    def __init__(self) -> None:
        counter = itertools.count()
        self.bump: Callable[[], int] = counter.__next__
        self._reads = itertools.count()

    def value(self) -> int:
        """How often `bump` was called. Reading bumps too, so the reads are counted and taken off."""
        with _reading:
            return self.bump() - next(self._reads)


_reading = threading.Lock()


class Calls:
    """Counts of one operator's calls, by whether a kernel served them or why not.

    A refusal is remembered under the `kind` of its call: any hashable that fixes what refusals depend on. Calls of
    that kind then go to PyTorch at the cost of a look-up.
    """

    def __init__(self, name: str, family: str) -> None:
        """`name` is for people; reasons of the kernel family start with `family` and a dot."""
        self.name = name
        self.served = Tally()
        self._family = family
        # By code, since sentences may name sizes, and a process meets any number of these.
        self._refused: dict[str, tuple[Reason, Tally]] = {}
        self._kinds: dict[Hashable, Tally] = {}

    def refused_before(self, kind: Hashable) -> bool:
        """Whether a call of this kind was refused before; then this one is counted as refused too."""
        tally = self._kinds.get(kind)
        if tally is None:
            return False
        tally.bump()
        return True

    def refuse(self, reason: Reason, kind: Hashable | None = None) -> None:
        """Count a refusal, and remember it for `kind`, if given."""
        _, tally = self._refused.setdefault(reason.code, (reason, Tally()))
        tally.bump()
        if kind is not None:
            if len(self._kinds) >= REMEMBERED:
                self._kinds.clear()
            self._kinds[kind] = tally

    def attempt(self, kind: Hashable, call: Callable[[], Any]) -> Any:
        """The result of `call`, which calls an operator of flycc's, or None where no kernel served it."""
        try:
            with refusals.strict():
                result = call()
        except Exception as error:  # the call goes to PyTorch, whatever happened here
            reason = _reason(self.name, error)
            if not refusals.is_answer(self._family, reason):
                refusals.warn_once(f"calls of {self.name}", reason)
            self.refuse(reason, kind)
            return None
        self.served.bump()
        return result

    def refused(self) -> dict[Reason, int]:
        """How many calls were refused, by reason: the first one of each code."""
        return {reason: tally.value() for reason, tally in list(self._refused.values())}

    def forget(self) -> None:
        """Drop what is remembered of refused kinds, but no counts."""
        self._kinds.clear()


def _reason(name: str, error: Exception) -> Reason:
    if isinstance(error, FlyccError):
        return error.reason
    return Reason(
        "eager.internal", f"{type(error).__name__} in flycc's {name}: {' '.join(str(error).split())}"
    )
