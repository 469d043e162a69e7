"""The on-disk cache of code objects.

Below the cache's root, `entries/<key>.json` names an ELF by its SHA-256, and `objects/<sha256>.elf` is it.
Both are written under a temporary name and renamed, the object first: a reader sees a whole entry or none,
whatever else runs or was killed. What does not match its checksum is removed and counts as absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: A temporary file this old belongs to a process that is gone.
_STALE_SECONDS = 3600


def cache_root() -> Path:
    """FLYCC_CACHE_DIR, or ~/.cache/flycc."""
    chosen = os.environ.get("FLYCC_CACHE_DIR")
    return Path(chosen) if chosen else Path.home() / ".cache" / "flycc"


@dataclass(frozen=True, slots=True)
class CodeObjectCache:
    """Code objects by key (a hexadecimal digest), at most about `max_bytes` of them."""

    root: Path = field(default_factory=cache_root)
    max_bytes: int = 1 << 30

    def get(self, key: str) -> bytes | None:
        """The ELF stored under `key`, or None. A damaged entry is removed, with a warning."""
        entry = self._entry(key)
        try:
            record = json.loads(entry.read_bytes())
            object_ = self._object(record["sha256"])
            if record["key"] != key:
                raise ValueError("the entry belongs to another key")
            elf = object_.read_bytes()
            if hashlib.sha256(elf).hexdigest() != record["sha256"]:
                object_.unlink(missing_ok=True)
                raise ValueError("the checksum does not match")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            entry.unlink(missing_ok=True)
            warnings.warn(
                f"flycc: removed a damaged cache entry, {entry}: {error}; compiling again",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        with contextlib.suppress(OSError):
            os.utime(entry)  # eviction goes by last use
        return elf

    def put(self, key: str, elf: bytes, about: Mapping[str, Any]) -> None:
        """Stores `elf` under `key`; `about` is JSON for people who look into the cache.

        A cache that cannot be written is a warning, not an error.
        """
        digest = hashlib.sha256(elf).hexdigest()
        record = {"key": key, "sha256": digest, "bytes": len(elf), "about": dict(about)}
        try:
            _write(self._object(digest), elf)
            _write(self._entry(key), json.dumps(record, indent=1, sort_keys=True).encode())
            self._evict()
        except OSError as error:
            warnings.warn(
                f"flycc: cannot write the cache in {self.root}: {error}", RuntimeWarning, stacklevel=2
            )

    def usage(self) -> tuple[int, int]:
        """Number of entries, and bytes of all objects."""
        objects = (self.root / "objects").glob("*.elf")
        return sum(1 for _ in (self.root / "entries").glob("*.json")), sum(_size(path) for path in objects)

    def clear(self) -> int:
        """Removes everything; the number of entries removed."""
        count = 0
        for path in (self.root / "entries").glob("*"):
            path.unlink(missing_ok=True)
            count += path.suffix == ".json"
        for path in (self.root / "objects").glob("*"):
            path.unlink(missing_ok=True)
        return count

    def _entry(self, key: str) -> Path:
        return self.root / "entries" / f"{key}.json"

    def _object(self, digest: str) -> Path:
        if not (isinstance(digest, str) and len(digest) == 64 and digest.isalnum()):
            raise ValueError("the entry names no object")
        return self.root / "objects" / f"{digest}.elf"

    def _evict(self) -> None:
        """Removes the entries used longest ago until the objects fit, and what killed processes left."""
        entries = sorted((self.root / "entries").glob("*.json"), key=_mtime)
        surplus = self.usage()[1] - self.max_bytes
        for entry in entries:
            if surplus <= 0:
                break
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                object_ = self._object(json.loads(entry.read_bytes())["sha256"])
                surplus -= _size(object_)
                entry.unlink(missing_ok=True)
                object_.unlink(missing_ok=True)
        for leftover in self.root.glob("*/*.tmp"):
            if time.time() - _mtime(leftover) > _STALE_SECONDS:
                leftover.unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _mtime(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
