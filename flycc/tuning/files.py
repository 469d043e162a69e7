"""Files of JSON that others may have written, or be writing: read only if they are such, and replaced as a whole."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    """What a regular file says: a pipe or a device would not end. Raises OSError, ValueError or RecursionError."""
    if path.exists() and not path.is_file():
        raise ValueError("it is no regular file")
    return json.loads(path.read_bytes())


def replace(path: Path, text: str) -> None:
    """Write a file, through links; a reader sees the old one or the new one. Raises OSError."""
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def shortened(value: object, most: int = 160) -> str:
    """`value` for a warning: what stands in a file may be of any length."""
    text = str(value)
    return text if len(text) <= most else text[:most] + "..."
