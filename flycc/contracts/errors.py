"""The base of every error flycc raises on purpose. Re-exported, with the rooms' own, by `flycc.errors`."""

from __future__ import annotations

from flycc.contracts.reason import Reason


class FlyccError(Exception):
    """An error whose cause is known: it carries the `Reason`, and its text is the reason's sentence."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.sentence)
        self.reason = reason


def flycc_error_in(error: BaseException | None) -> FlyccError | None:
    """The error of ours inside what `torch.compile` raised, or None.

    Dynamo wraps whatever a backend raises in its `BackendCompilerFailed`, as `inner_exception`.
    """
    while error is not None and not isinstance(error, FlyccError):
        error = getattr(error, "inner_exception", None) or error.__cause__
    return error
