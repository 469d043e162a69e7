"""What has been modelled already, so that a search that was interrupted goes on where it was.

A file for each problem, below the cache's root: {"digest": ..., "body": {"problem", "model", "found": {config: ...}}}.
`model` is a digest of the sources that decide modelled times, `digest` that of the body: what does not match is
a warning at most, and counts as absent. Files are replaced as a whole after each batch. Failures that say nothing of
the candidate (a process that was killed, a linker that is missing) are not kept: the next run tries again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flycc import codegen, costmodel, emulator, kernels
from flycc.codegen.cache import cache_root
from flycc.contracts import Reason
from flycc.costmodel import Interval
from flycc.tuning.files import read_json, replace, shortened
from flycc.tuning.workers import Found

#: Codes of failures that say nothing of a candidate: a process was killed, there was no memory, no linker, no time.
_PASSING = ("tune.crash", "codegen.crash", "codegen.linker", "codegen.time", "codegen.worker")


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
        lasting = {config: found for config, found in self.found.items() if not _passing(found)}
        body = {
            "problem": self._problem,
            "model": model_digest(),
            "found": {config: asdict(found) for config, found in lasting.items()},
        }
        try:
            replace(self.path, json.dumps({"digest": _digest(body), "body": body}, indent=1))
        except OSError as error:
            warnings.warn(f"flycc: tuning journal {self.path}: {error}", RuntimeWarning, stacklevel=2)

    def _read(self) -> dict[str, Found]:
        try:
            stored = read_json(self.path)
            body = stored["body"]
            if stored["digest"] != _digest(body):
                raise ValueError("the digest does not match")
            if (body["problem"], body["model"]) != (self._problem, model_digest()):
                return {}
            return {config: _found(stored) for config, stored in body["found"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            warnings.warn(
                f"flycc: damaged tuning journal, {self.path}: {shortened(error)}; starting again",
                RuntimeWarning,
                stacklevel=3,
            )
            return {}


def _passing(found: Found) -> bool:
    """Whether it is a failure that may pass."""
    return isinstance(found, Reason) and found.code in _PASSING


def _found(stored: Any) -> Found:
    """What `asdict` made an object of. Raises ValueError, TypeError or AttributeError for anything else."""
    if set(stored) == {"code", "sentence"} and all(isinstance(text, str) for text in stored.values()):
        return Reason(**stored)
    found = Interval(**stored)
    if not all(type(us) in (int, float) for us in stored.values()):
        raise ValueError(f"{stored}: no times in us")
    if not 0 < found.low <= found.typical <= found.high <= sys.float_info.max:
        raise ValueError(f"{stored}: no times in us, from low to high")
    return found


@functools.cache
def model_digest() -> str:
    """A digest of what modelled times depend on: the sources of kernels, compiler, emulator and model, and FlyDSL."""
    digest = hashlib.sha256(version("flydsl").encode())
    for room in (codegen, costmodel, emulator, kernels):
        root = Path(str(room.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    digest.update(Path(__file__).with_name("modelled.py").read_bytes())
    return digest.hexdigest()


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
