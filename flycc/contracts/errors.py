"""The base of every error flycc raises on purpose. Re-exported, with the rooms' own, by `flycc.errors`."""

from __future__ import annotations

from flycc.contracts.reason import Reason


class FlyccError(Exception):
    """An error whose cause is known: it carries the `Reason`, and its text is the reason's sentence."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.sentence)
        self.reason = reason
