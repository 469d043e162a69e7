"""MLIR's diagnostics as `file:line:col: severity: message`, and the expectations that test files hold."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

from torch_mlir import ir

from flycc.contracts import FlyccError, Reason

_MAX_MESSAGE = 400
_LOCATION = re.compile(r'"(?P<file>[^"]*)":(?P<line>\d+):(?P<col>\d+)')
_EXPECTED = re.compile(r"//\s*expected-error\s*(?:@(?P<where>[+-]\d+|above|below))?\s*\{\{(?P<text>.*?)\}\}")


@dataclass(frozen=True)
class Diagnostic:
    """One message about one place."""

    file: str
    line: int
    col: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col}: error: {self.message}"


class At(FlyccError):
    """A refusal of the op at `location`."""

    def __init__(self, location: ir.Location, reason: Reason) -> None:
        super().__init__(reason)
        self.location = location


def diagnostics(error: ir.MLIRError | FlyccError, file: str) -> list[Diagnostic]:
    """What `error` says. MLIR's notes, which may print the whole module, are left out, and messages are cut.

    `file` is the name of the text that was parsed.
    """
    if isinstance(error, ir.MLIRError):
        return [_diagnostic(str(info.location), info.message, file) for info in error.error_diagnostics]
    if isinstance(error, At):
        return [_diagnostic(str(error.location), str(error), file)]
    text = str(error)
    place = _LOCATION.search(text)  # code generation hands MLIR's messages on as text
    if place is not None:
        return [_diagnostic(place[0], text[place.end() :].removeprefix(": ").partition("\n")[0], file)]
    return [_diagnostic("", text, file)]


def _diagnostic(location: str, message: str, file: str) -> Diagnostic:
    message = " ".join(message.split())
    if len(message) > _MAX_MESSAGE:
        message = message[:_MAX_MESSAGE] + "..."
    place = _LOCATION.search(location)
    if place is None:  # the input as a whole, or an op that a pass made up
        return Diagnostic(file, 1, 1, message)
    # MLIR calls a text parsed from memory "-".
    name = file if place["file"] == "-" else place["file"]
    return Diagnostic(name, int(place["line"]), int(place["col"]), message)


def unexpected(found: list[Diagnostic], text: str, file: str) -> list[Diagnostic]:
    """Differences between `found` and the comments `// expected-error @<where> {{message part}}` in `text`.

    `@<where>` is `@+n` or `@-n` lines from the comment, `@above`, `@below`, or absent for the same line.
    """
    differences = []
    left = Counter(found)
    for number, line in enumerate(text.splitlines(), start=1):
        for expected in _EXPECTED.finditer(line):
            where = {"above": -1, "below": 1, None: 0}.get(expected["where"], expected["where"])
            at = number + int(where)
            match = next((d for d in left if d.line == at and expected["text"] in d.message), None)
            if match is None:
                differences.append(Diagnostic(file, at, 1, f"expected error not seen: {expected['text']}"))
            else:
                left -= Counter([match])
    return differences + [replace(d, message=f"unexpected: {d.message}") for d in left.elements()]
