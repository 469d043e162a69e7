"""What every subcommand shares: a console, tables that fit 80 columns, and JSON files."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from flycc.contracts import FlyccError, Reason

console = Console(highlight=False, soft_wrap=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; only the last column wraps. A title is cut to the table's width, so keep it short."""
    shown = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for number, column in enumerate(columns):
        last = number == len(columns) - 1
        shown.add_column(column, overflow="fold", ratio=1 if last else None, no_wrap=not last)
    for row in rows:
        shown.add_row(*(str(cell) for cell in row))
    console.print(shown)


def check_json(path: str | None) -> None:
    """Raise `FlyccError` if `write_json` could not write there; for before the work whose result it is."""
    if path and path != "-" and not os.access(Path(path).absolute().parent, os.W_OK | os.X_OK):
        raise FlyccError(Reason("cli.json", f"--json {path}: its folder is missing or cannot be written to"))


def write_json(path: str, value: Any) -> None:
    """Write `value` to `path`, or to standard output for "-"; a reader never sees half a file."""
    text = json.dumps(value, indent=2) + "\n"
    if path == "-":
        print(text, end="")
        return
    check_json(path)
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.absolute().parent, prefix=target.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
