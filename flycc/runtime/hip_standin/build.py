"""Builds the stand-in library with the C compiler, once for each text and compiler."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from flycc.codegen.cache import cache_root
from flycc.contracts import FlyccError, Reason

#: The name that FlyDSL's runtime asks the dynamic linker for.
SONAME = "libamdhip64.so.7"

_HERE = Path(__file__).parent
_SOURCE, _EXPORTS = _HERE / "standin.c", _HERE / "exports.map"
_OPTIONS = ("-std=c11", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{SONAME}")


def build() -> Path:
    """The library's path, in a directory of its own that holds nothing else.

    The compiler is `CC`, or cc. Raises `FlyccError` where there is none or it fails.
    """
    compiler = shlex.split(os.environ.get("CC") or "cc")
    program = shutil.which(compiler[0]) if compiler else None
    if program is None:
        raise FlyccError(
            Reason(
                "standin.compiler", f"the HIP stand-in needs a C compiler: there is no {compiler!r}; set CC"
            )
        )
    status = Path(program).stat()
    parts = [program, *compiler[1:], *_OPTIONS, str(status.st_size), str(status.st_mtime_ns)]
    digest = hashlib.sha256("\0".join(parts).encode())
    digest.update(_SOURCE.read_bytes() + _EXPORTS.read_bytes())
    library = cache_root() / "hip_standin" / digest.hexdigest()[:32] / SONAME
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent.parent) as scratch:
        made = Path(scratch, SONAME)
        command = [program, *compiler[1:], *_OPTIONS, f"-Wl,--version-script={_EXPORTS}", "-o", str(made)]
        done = subprocess.run([*command, str(_SOURCE)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise FlyccError(
                Reason("standin.compiler", f"{shlex.join(command)} failed: {done.stderr.strip()[:2000]}")
            )
        made.replace(library)
    return library
