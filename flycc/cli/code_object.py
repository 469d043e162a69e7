"""What `flycc disasm` and `flycc emulate` share: reading a code object and finding a kernel in it."""

from __future__ import annotations

from pathlib import Path

from flycc import emulator
from flycc.contracts import FlyccError, Reason


def read_module(path: str) -> emulator.Module:
    """The code object in a file; FlyccError if there is none that can be read."""
    try:
        return emulator.load(Path(path).read_bytes())
    except OSError as error:
        raise FlyccError(Reason("code-object.file", f"{path}: {error.strerror}")) from error
    except emulator.BadCodeObject as error:
        raise FlyccError(Reason("code-object.format", f"{path}: {error}")) from error


def pick_kernel(module: emulator.Module, path: str, name: str | None) -> emulator.Kernel:
    """The kernel of that name, or the only one if no name is given."""
    kernels = module.kernels
    if name is None and len(kernels) == 1:
        return next(iter(kernels.values()))
    if name in kernels:
        return kernels[name]
    given = "no --kernel is given" if name is None else f"there is no kernel {name!r}"
    raise FlyccError(
        Reason("code-object.kernel", f"{path}: {given}; it holds {', '.join(sorted(kernels)) or 'none'}")
    )
