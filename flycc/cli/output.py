"""What every subcommand shares: a console, tables that fit 80 columns, and files that are written.

Nothing that is printed is taken as markup or as codes for a terminal: names of kernels and files are others'.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flycc.contracts import FlyccError, Reason

#: What stands for a character that would command a terminal.
_UNPRINTABLE = "\ufffd"


class _PlainConsole(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        """Print; of text, what `printable` leaves."""
        super().print(*(printable(each) if isinstance(each, str) else each for each in objects), **options)


console = _PlainConsole(highlight=False, soft_wrap=False, markup=False, emoji=False)


def printable(text: str) -> str:
    """The text with control characters replaced, but for line ends and tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else _UNPRINTABLE for c in text)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; only the last column wraps. A title is cut to the table's width, so keep it short."""
    shown = Table(
        title=Text(printable(title)),
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for number, column in enumerate(columns):
        last = number == len(columns) - 1
        shown.add_column(column, overflow="fold", ratio=1 if last else None, no_wrap=not last)
    for row in rows:
        shown.add_row(*(Text(printable(str(cell))) for cell in row))
    console.print(shown)


def check_writable(option: str, path: str | None) -> None:
    """Raise `FlyccError` if `path`, which `option` names, cannot be written to; for before the work whose result it is.

    None is no path, and "-" standard output.
    """
    if path is None or path == "-":
        return
    target = Path(path).absolute()
    if not path or target.is_dir():
        why = "is a folder, a file is needed" if path else "a file's name is needed"
    elif not os.access(target.parent, os.W_OK | os.X_OK):
        why = "its folder is missing or cannot be written to"
    elif target.exists() and not os.access(target, os.W_OK):
        why = "cannot be written to"
    else:
        return
    raise FlyccError(Reason(f"cli.{option.removeprefix('--')}", f"{option} {path}: {why}"))


def write_json(path: str, value: Any) -> None:
    """Write `value` to `path`, or to standard output for "-"; a reader never sees half a file."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    if path == "-":
        print(text, end="")
        return
    check_writable("--json", path)
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.absolute().parent, prefix=target.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
