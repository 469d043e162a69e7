"""What has been modelled already, so that a search that was interrupted goes on where it was.

A file for each problem, below the cache's root: {"digest": ..., "body": {"problem", "model", "found": {config: ...}}}.
`model` is a digest of the sources that decide modelled times, `digest` that of the body: what does not match is
a warning at most, and counts as absent. Files are replaced as a whole after each batch.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flycc import costmodel, kernels
from flycc.codegen.cache import cache_root
from flycc.contracts import Reason
from flycc.costmodel import Interval
from flycc.tuning.workers import Found


class Journal:
    """Results of one problem, by configuration; a folder that cannot be written to is one that keeps nothing."""

    def __init__(self, problem: Any, folder: Path | None = None) -> None:
        self._problem = repr(problem)
        name = hashlib.sha256(f"{self._problem} {model_digest()}".encode()).hexdigest()
        self.path = (folder or cache_root() / "tuning" / "journal") / f"{name}.json"
        self.found: dict[str, Found] = self._read()

    def add(self, results: Mapping[Any, Found]) -> None:
        """Note results by configuration, on disk too."""
        self.found |= {str(config): found for config, found in results.items()}
        stored = {config: asdict(found) for config, found in self.found.items()}
        body = {"problem": self._problem, "model": model_digest(), "found": stored}
        text = json.dumps({"digest": _digest(body), "body": body}, indent=1)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.path.parent, suffix=".tmp")
            with os.fdopen(handle, "w") as file:
                file.write(text)
            os.replace(temporary, self.path)
        except OSError as error:
            warnings.warn(f"flycc: tuning journal {self.path}: {error}", RuntimeWarning, stacklevel=2)

    def _read(self) -> dict[str, Found]:
        try:
            stored = json.loads(self.path.read_bytes())
            body = stored["body"]
            if stored["digest"] != _digest(body):
                raise ValueError("the digest does not match")
            if (body["problem"], body["model"]) != (self._problem, model_digest()):
                return {}
            return {
                config: Reason(**found) if "code" in found else Interval(**found)
                for config, found in body["found"].items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            warnings.warn(
                f"flycc: damaged tuning journal, {self.path}: {error}; starting again",
                RuntimeWarning,
                stacklevel=3,
            )
            return {}


@functools.cache
def model_digest() -> str:
    """A digest of the sources that modelled times depend on."""
    digest = hashlib.sha256()
    rooms = [Path(str(room.__file__)).parent for room in (costmodel, kernels)]
    paths = [path for room in rooms for path in sorted(room.rglob("*.py"))]
    for path in (*paths, Path(__file__).with_name("modelled.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
