"""The on-disk cache of code objects.

Below the cache's root, `entries/<key>.json` names an ELF by its SHA-256, and `objects/<sha256>.elf` is it.
Both are written under a temporary name and renamed, the object first: a reader sees a whole entry or none,
whatever else runs or was killed. What does not match its checksum is removed and counts as absent. A root that
cannot be used is a warning, once a process, and a cache that holds nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: A temporary file this old belongs to a process that is gone.
_STALE_SECONDS = 3600

#: Roots that the user was warned of.
_warned: set[Path] = set()


def cache_root() -> Path:
    """FLYCC_CACHE_DIR, or ~/.cache/flycc. Without a home, a place below the null device: it holds nothing."""
    chosen = os.environ.get("FLYCC_CACHE_DIR")
    if chosen:
        return Path(chosen)
    try:
        return Path.home() / ".cache" / "flycc"
    except RuntimeError:
        return Path(os.devnull, "flycc")


@dataclass(frozen=True, slots=True)
class CodeObjectCache:
    """Code objects by key (a hexadecimal digest), at most about `max_bytes` of them."""

    root: Path = field(default_factory=cache_root)
    max_bytes: int = 1 << 30

    def get(self, key: str) -> bytes | None:
        """The ELF stored under `key`, or None. A damaged entry is removed if possible, with a warning."""
        entry = self._entry(key)
        damaged = [entry]
        try:
            record = json.loads(entry.read_bytes())
            if record["key"] != key:
                raise ValueError("the entry belongs to another key")
            object_ = self._object(record["sha256"])
            damaged.append(object_)
            elf = object_.read_bytes()
            if hashlib.sha256(elf).hexdigest() != record["sha256"]:
                raise ValueError("the checksum does not match")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError, IsADirectoryError) as error:
            for path in damaged:
                with contextlib.suppress(OSError):
                    _remove(path)
            warnings.warn(
                f"flycc: damaged cache entry, {entry}: {error}; compiling again", RuntimeWarning, stacklevel=2
            )
            return None
        except OSError as error:
            self._warn_unusable(error)
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
            self._warn_unusable(error)

    def problem(self) -> str | None:
        """What keeps the cache from being written to, or None. Tries it, and leaves nothing behind."""
        for folder in (self.root / "entries", self.root / "objects"):
            existing = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
            try:
                with contextlib.suppress(FileNotFoundError):
                    folder.lstat()  # fails for a name that cannot be
                tempfile.TemporaryDirectory(dir=existing).cleanup()
            except OSError as error:
                return _unusable(self.root, error)
        return None

    def usage(self) -> tuple[int, int]:
        """Number of entries, and bytes of all objects."""
        objects = (self.root / "objects").glob("*.elf")
        return sum(1 for _ in (self.root / "entries").glob("*.json")), sum(_size(path) for path in objects)

    def clear(self) -> int:
        """Removes everything; the number of entries removed. Raises OSError for what cannot be removed."""
        count = 0
        for path in (self.root / "entries").glob("*"):
            _remove(path)
            count += path.suffix == ".json"
        for path in (self.root / "objects").glob("*"):
            _remove(path)
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
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                object_ = self._object(json.loads(entry.read_bytes())["sha256"])
                surplus -= _size(object_)
                entry.unlink(missing_ok=True)
                object_.unlink(missing_ok=True)
        for leftover in self.root.glob("*/*.tmp"):
            if time.time() - _mtime(leftover) > _STALE_SECONDS:
                leftover.unlink(missing_ok=True)

    def _warn_unusable(self, error: OSError) -> None:
        if self.root not in _warned:
            _warned.add(self.root)
            text = f"flycc: {_unusable(self.root, error)}; compiling without it"
            warnings.warn(text, RuntimeWarning, stacklevel=3)


def _unusable(root: Path, error: OSError) -> str:
    return f"cannot use the cache in {root} ({error.strerror}); FLYCC_CACHE_DIR may name another directory"


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


def _remove(path: Path) -> None:
    """Removes what is there, a directory too."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _mtime(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
