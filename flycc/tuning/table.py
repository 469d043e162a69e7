"""Tuned configurations on disk: plain JSON, an entry a line, sorted, so that a change is a readable diff.

    {"version": 1, "family": "gemm", "entries": [
    {"dtype": "bf16", "layout": "NT", "n": 4096, "k": 4096, "m": 8, "config": {...}, "us": 13.0, "by": "model"},
    ...
    ]}

`us` is what the configuration was chosen for: modelled ("by": "model") or measured ("by": "measure"). A table is
looked up by its exact parts, and by the nearest number of rows, in octaves.
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flycc.codegen.cache import cache_root
from flycc.tuning.family import Family, Key
from flycc.tuning.files import read_json, replace, shortened

VERSION = 1
#: A row count farther than this from every entry is not served: a factor of 4, two buckets.
_FAR_OCTAVES = 2.0
_BY = ("model", "measure")


@dataclass(frozen=True, slots=True)
class Entry:
    """What was found for a key; `us` by the model or by measurement."""

    key: Key
    config: Any
    us: float
    by: str


@dataclass(slots=True)
class Table:
    """The entries of a family."""

    family: Family
    entries: dict[Key, Entry] = field(default_factory=dict)
    #: Row counts by the exact parts of keys; made by the first lookup after a change.
    _rows: dict[tuple[str | int, ...], list[int]] = field(default_factory=dict)

    def add(self, entry: Entry) -> None:
        """Put `entry` in, in the place of one of the same key, unless that one was measured and this was not."""
        old = self.entries.get(entry.key)
        if old is None or (old.by, entry.by) != ("measure", "model"):
            self.entries[entry.key] = entry
            self._rows.clear()

    def nearest(self, key: Key) -> Entry | None:
        """The entry of the same exact parts whose rows are nearest; of two as near, the one of fewer rows."""
        if not self._rows:
            for known in sorted(self.entries, key=lambda known: known.rows):
                self._rows.setdefault(known.exact, []).append(known.rows)

        near = [self.entries[Key(key.exact, rows)] for rows in self._rows.get(key.exact, [])]
        found = min(near, key=lambda entry: entry.key.apart(key), default=None)
        return found if found is not None and found.key.apart(key) <= _FAR_OCTAVES else None

    def text(self) -> str:
        """The file's text."""
        # By shape, then by rows, so that what belongs together stands together.
        ordered = sorted(self.entries.values(), key=lambda entry: (entry.key.exact, entry.key.rows))
        lines = ",\n".join(json.dumps(self._stored(entry)) for entry in ordered)
        head = json.dumps({"version": VERSION, "family": self.family.name})[:-1]
        return f'{head}, "entries": [\n{lines}\n]}}\n'

    def write(self, path: Path) -> None:
        """Write the file; a reader sees the old one or the new one. Raises OSError."""
        replace(path, self.text())

    def _stored(self, entry: Entry) -> dict[str, Any]:
        rows, *exact = self.family.names
        parts = self.family.fields(entry.key)
        config = self.family.write_config(entry.config)
        return {name: parts[name] for name in (*exact, rows)} | {
            "config": config, "us": round(entry.us, 2), "by": entry.by
        }  # fmt: skip


def read(path: Path, family: Family) -> Table:
    """The table in a file, empty if there is none. Of what is wrong in it one warning says so; the rest counts."""
    table, wrong = examined(path, family)
    if wrong:
        warnings.warn(f"flycc: tuning table {path}: {wrong}", RuntimeWarning, stacklevel=2)
    return table


def examined(path: Path, family: Family) -> tuple[Table, str | None]:
    """As `read`, with what it would warn of: a file with something wrong in it must not be written over."""
    table = Table(family)
    try:
        stored = read_json(path)
        if type(stored["version"]) is not int or (stored["version"], stored["family"]) != (
            VERSION,
            family.name,
        ):
            raise ValueError(f"not a table of version {VERSION} of {family.name}")
        entries: list[Any] = list(stored["entries"])
    except FileNotFoundError:
        return table, None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return table, f"it is not used: {shortened(error)}"
    wrong = []
    for number, entry in enumerate(entries, 1):
        try:
            table.add(_entry(entry, family))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            wrong.append(f"entry {number}: {shortened(error)}")
    if not wrong:
        return table, None
    return table, f"{len(wrong)} of {len(entries)} entries are left out; {wrong[0]}"


def _entry(stored: Any, family: Family) -> Entry:
    key = family.key_of(stored)
    problem = family.problem(stored)
    if family.key(problem) != key:
        raise ValueError(f"no problem is looked up by {family.fields(key)}")
    config = family.read_config(stored["config"])
    # Nothing but what the space has: other numbers may pass a check and never end in the compiler.
    if not family.admits(problem, config):
        raise ValueError(
            str(config.is_valid(problem) or f"{config}: no configuration of the space of {problem}")
        )
    us, by = stored["us"], stored["by"]
    if type(us) not in (int, float) or not 0 < us <= sys.float_info.max or by not in _BY:
        raise ValueError(f"us = {us!r}, by = {by!r}: a time in us and one of {', '.join(_BY)} are needed")
    return Entry(key, config, float(us), by)


def shipped_path(family: str) -> Path:
    """Where this package has the table of a family."""
    return Path(__file__).parent / "tables" / f"{family}.json"


def user_path(family: str) -> Path:
    """Where `flycc tune` keeps the table of a family for this user."""
    return cache_root() / "tuning" / f"{family}.json"
