"""Finding the LLD that links code objects, and presenting it the way MLIR looks for it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flycc.codegen.errors import MissingLinker
from flycc.contracts import Reason

#: Below a ROCm installation.
_IN_TOOLKIT = Path("llvm", "bin", "ld.lld")


@dataclass(frozen=True, slots=True)
class Linker:
    """An LLD: its `path`, and `origin`, which is "ROCM_PATH", "PATH" or "iree-base-compiler"."""

    path: Path
    origin: str

    @property
    def identity(self) -> str:
        """Changes when another linker is installed: LLD writes its version into what it links."""
        file = self.path.resolve()
        status = file.stat()
        return f"{file} {status.st_size} {status.st_mtime_ns}"

    def toolkit(self, root: Path) -> Path:
        """A directory with this linker at `llvm/bin/ld.lld`, which is where MLIR looks; made below `root`."""
        if self.origin == "ROCM_PATH":
            return self.path.parents[len(_IN_TOOLKIT.parts) - 1]
        directory = root / hashlib.sha256(str(self.path).encode()).hexdigest()[:16]
        tool = directory / _IN_TOOLKIT
        with contextlib.suppress(FileNotFoundError):
            if tool.is_symlink() and tool.readlink() == self.path:
                return directory
            if not tool.is_symlink() and tool.read_text() == self._wrapper():
                return directory
        tool.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=tool.parent) as scratch:
            new = Path(scratch, tool.name)
            if self.origin == "iree-base-compiler":
                new.write_text(self._wrapper())
                new.chmod(0o755)
            else:
                new.symlink_to(self.path)
            new.replace(tool)
        return directory

    def _wrapper(self) -> str:
        """iree-lld is every LLD in one and does not go by its own name."""
        return f'#!/bin/sh\nexec {shlex.quote(str(self.path))} -flavor gnu "$@"\n'


def find_linker() -> Linker:
    """The linker to use. Raises MissingLinker, which says where it was looked for."""
    for path, origin in _places():
        if path.is_file() and os.access(path, os.X_OK):
            return Linker(path, origin)
    raise MissingLinker(
        Reason(
            "codegen.linker",
            "no LLD found: looked for llvm/bin/ld.lld in ROCM_PATH "
            f"({os.environ.get('ROCM_PATH') or 'not set'}), for ld.lld on PATH, and for iree-lld of the PyPI "
            "package iree-base-compiler; install one with: pip install iree-base-compiler",
        )
    )


def _places() -> Iterator[tuple[Path, str]]:
    rocm = os.environ.get("ROCM_PATH")
    if rocm:
        yield Path(rocm).absolute() / _IN_TOOLKIT, "ROCM_PATH"
    on_path = shutil.which("ld.lld")
    if on_path:
        yield Path(on_path).absolute(), "PATH"
    # find_spec does not import the package, whose compiler library takes long to load.
    package = importlib.util.find_spec("iree")
    for location in (package.submodule_search_locations or ()) if package else ():
        yield Path(location, "compiler", "_mlir_libs", "iree-lld"), "iree-base-compiler"
