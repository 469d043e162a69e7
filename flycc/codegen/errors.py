"""Why no code object came out."""

from __future__ import annotations

from flycc.contracts import FlyccError


class UnsupportedTarget(FlyccError):
    """The GPU target is not one that flycc generates code for."""


class MissingLinker(FlyccError):
    """No LLD was found to link code objects with."""


class CompileError(FlyccError):
    """A lowering stage failed; the reason's sentence starts with the stage's name."""
