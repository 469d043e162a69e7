"""Finding the LLD that links code objects, and presenting it the way MLIR looks for it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flycc.codegen.errors import MissingLinker
from flycc.contracts import Reason

#: Below a ROCm installation.
_IN_TOOLKIT = Path("llvm", "bin", "ld.lld")

#: Paths whose every character stands for itself in a pass's options.
_PLAIN = re.compile(r"[\w ./+-]+", re.ASCII)

#: Seconds that a linker may take to tell its version, also on a busy machine with a cold disk.
_PROBE_SECONDS = 60


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
            if not tool.is_symlink() and tool.read_bytes() == self._wrapper():
                return directory
        tool.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=tool.parent) as scratch:
            new = Path(scratch, tool.name)
            if self.origin == "iree-base-compiler":
                new.write_bytes(self._wrapper())
                new.chmod(0o755)
            else:
                new.symlink_to(self.path)
            new.replace(tool)
        return directory

    @contextlib.contextmanager
    def plain_toolkit(self, root: Path) -> Iterator[Path]:
        """`toolkit`, by a path that can be written in a pass's options.

        Where `root` cannot be used, or the path holds other characters than `_PLAIN` ones, a temporary
        directory stands in. Raises MissingLinker if that one's path is not plain either.
        """
        with tempfile.TemporaryDirectory(prefix="flycc-") as scratch:
            try:
                directory = self.toolkit(root)
            except OSError:
                directory = self.toolkit(Path(scratch))
            if not _PLAIN.fullmatch(str(directory)):
                if not _PLAIN.fullmatch(scratch):
                    why = f"LLD cannot be passed to MLIR by way of {scratch}: TMPDIR may hold letters, digits, ' ./+-_'"
                    raise MissingLinker(Reason("codegen.linker", why))
                link = Path(scratch, "toolkit")
                link.symlink_to(directory.absolute())
                directory = link
            yield directory

    def works(self) -> bool:
        """Whether it runs and says that it is LLD; MLIR ends the process if what it runs writes no file."""
        return _is_lld(self._command(), self.identity)

    def _command(self) -> tuple[str, ...]:
        """iree-lld is every LLD in one and does not go by its own name."""
        return (str(self.path), *(("-flavor", "gnu") if self.origin == "iree-base-compiler" else ()))

    def _wrapper(self) -> bytes:
        return b'#!/bin/sh\nexec %s "$@"\n' % os.fsencode(shlex.join(self._command()))


def find_linker() -> Linker:
    """The linker to use: the first that works, with a warning for those that do not.

    Raises MissingLinker, which says where it was looked for.
    """
    broken = []
    for path, origin in _places():
        if path.is_file() and os.access(path, os.X_OK):
            linker = Linker(path, origin)
            if linker.works():
                return linker
            broken.append(f"; {path} is no working LLD")
    raise MissingLinker(
        Reason(
            "codegen.linker",
            "no LLD found: looked for llvm/bin/ld.lld in ROCM_PATH "
            f"({os.environ.get('ROCM_PATH') or 'not set'}), for ld.lld on PATH, and for iree-lld of the PyPI "
            f"package iree-base-compiler{''.join(broken)}; install one with: pip install iree-base-compiler",
        )
    )


@functools.cache
def _is_lld(command: tuple[str, ...], identity: str) -> bool:
    """Runs `command --version`, once a process for a file as `identity` describes it."""
    try:
        done = subprocess.run(
            [*command, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PROBE_SECONDS,
            check=False,
        )
        found = f"exits {done.returncode} and prints {done.stdout[:160].decode(errors='replace').strip()!r}"
        if done.returncode == 0 and b"LLD" in done.stdout:
            return True
    except (OSError, subprocess.TimeoutExpired) as error:
        found = str(error)
    text = f"flycc: {command[0]} is no working LLD, and is passed over: --version {found}"
    warnings.warn(text, RuntimeWarning, stacklevel=4)
    return False


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
